"""Every kind of folder: how it is opened, what is put into it, and whether all of that is still there."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Self

import tidings
from tests.integration.broker_process import ServerProcess
from tests.integration.first_release.make import READ_UP_TO, SETTLED, VALUES, WORKING_ON, key, value
from tidings.admin.ports import free_addresses

ALONE, EMBEDDED, MEMBER, RING, STORAGE = "alone", "embedded", "member", "ring", "storage"
KINDS = (ALONE, EMBEDDED, MEMBER, RING, STORAGE)
PATIENCE_S = 60.0
"""For what has to come, however busy the machine is."""
Connect = Callable[[str], tidings.Bus]
"""A bus on the folder, for a client of this name."""


def command(kind: str, folder: Path, group: Sequence[str] = (), contact: str | None = None) -> tuple[str, ...]:
    """What a folder is opened with by processes of a kind."""
    match kind:
        case "alone":
            return "serve", "--data", str(folder)
        case "member":
            return "serve", "--data", str(folder), "--group", ",".join(group)
        case "ring":
            return "serve", "--data", str(folder), *(("--join", contact) if contact else ("--ring",))
        case "storage":
            return "storage", "--data", str(folder)
    raise AssertionError(f"{kind} is no process of its own")


class Server(ServerProcess):
    """A process at an address that was chosen before."""

    def __init__(self, address: str, *command: str) -> None:
        super().__init__(*command)
        self._bind = address


class House:
    """The folders of one kind, and while it is open its processes: three members, two nodes, one of all else."""

    def __init__(self, kind: str, folders: Sequence[Path], addresses: Sequence[str]) -> None:
        self.kind = kind
        self.folders = folders
        self.addresses = addresses
        self._running: list[ServerProcess] = []

    @classmethod
    def at(cls, place: Path, kind: str) -> House:
        """One that is made in a place, under addresses that are free."""
        count = {MEMBER: 3, RING: 2}.get(kind, 1)
        return cls(kind, [place / f"{kind}{number}" for number in range(1, count + 1)], free_addresses(count))

    @property
    def folder(self) -> Path:
        return self.folders[0]

    def connect(self, client: str) -> tidings.Bus:
        if self.kind == EMBEDDED:
            return tidings.open(self.folder, client)
        address = self._running[-1].address if self.kind == STORAGE else ",".join(self.addresses)
        return tidings.connect(address, client)

    def __enter__(self) -> Self:
        try:
            if self.kind != EMBEDDED:
                self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _start(self) -> None:
        """All at once: members wait for each other. A node of a ring is joined by the others."""
        for number, (folder, address) in enumerate(zip(self.folders, self.addresses, strict=True)):
            server = Server(address, *command(self.kind, folder, self.addresses, self.addresses[0] if number else None))
            self._running.append(server)
            server.launch()
        for server in self._running:
            server.wait_until_ready()
        if self.kind == STORAGE:
            self._running.append(ServerProcess("serve", "--storage", self.addresses[0]).start())

    def freeze(self) -> None:
        """SIGSTOP: its processes stand still with what they have."""
        for server in self._running:
            os.kill(server.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        for server in self._running:
            os.kill(server.pid, signal.SIGCONT)

    def __exit__(self, *exception: object) -> None:
        """Ends everything in good order, brokers before their storage."""
        servers = [self._running.pop() for _ in range(len(self._running))]
        codes = [server.stop() for server in servers]
        assert not any(codes), [(code, server.log) for code, server in zip(codes, servers, strict=True)]


def check(connect: Connect) -> None:
    """Everything that `fill` has left is there. May be done again, since nothing is taken."""
    with connect("checker") as bus:
        for topic in READ_UP_TO:
            found = [(each.offset, each.key, each.text) for batch in bus.read(topic) for each in batch]
            assert found == [(offset, key(offset).encode(), value(topic, offset)) for offset in range(VALUES)]
        assert [(group.name, group.lag) for group in bus.groups(WORKING_ON)] == [("packers", VALUES - SETTLED)]
    with connect("writer") as writer:
        for topic in READ_UP_TO:
            assert writer.publisher("writer").last_sequence(topic) == VALUES
    with connect("reader") as reader:
        assert sorted(reader.subscriptions()) == [(topic,) for topic in sorted(READ_UP_TO)]
        for topic, count in READ_UP_TO.items():
            # Looked at and not acknowledged: the loop is left before the next one is asked for.
            following = next(reader.subscribe(topic).messages(timeout=PATIENCE_S))
            assert (following.offset, following.text) == (count, value(topic, count))


def use_up(connect: Connect) -> None:
    """Takes everything that nobody has taken yet, and puts one message more."""
    with connect("writer") as writer:
        for topic in READ_UP_TO:
            assert writer.put(topic, value(topic, VALUES), key=key(VALUES)).offset == VALUES
    with connect("reader") as reader:
        for topic, count in READ_UP_TO.items():
            taken = [reader.get(topic, timeout=PATIENCE_S) for _ in range(count, VALUES + 1)]
            assert [each and each.offset for each in taken] == list(range(count, VALUES + 1))
    with connect("packer") as packer, packer.subscribe(WORKING_ON, group="packers") as jobs:
        worked = []
        while len(worked) <= VALUES - SETTLED:
            message = jobs.get(timeout=PATIENCE_S)
            assert message is not None
            jobs.ack(message)
            worked.append(message.offset)
        assert sorted(worked) == list(range(SETTLED, VALUES + 1))


Picture = dict[str, tuple[int, int, bytes]]


def picture(folders: Sequence[Path]) -> Picture:
    """Every file of some folders: when it was changed, its size and what is in it; and when each folder was changed."""
    found: Picture = {}
    for folder in folders:
        for path in (folder, *folder.rglob("*")):
            stat = path.stat()
            found[str(path)] = (stat.st_mtime_ns, stat.st_ino, path.read_bytes() if path.is_file() else b"")
    return found


@contextlib.contextmanager
def unchanged(folders: Sequence[Path]) -> Iterator[None]:
    """Not a byte of these folders is written meanwhile, and no file comes or goes, not even for a moment."""
    before = picture(folders)
    yield
    after = picture(folders)
    names = sorted(before.keys() | after.keys())
    changed = [os.path.relpath(name, folders[0].parent) for name in names if before.get(name) != after.get(name)]
    assert not changed, f"written to: {changed}"
