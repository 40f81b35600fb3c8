"""Makes the folders that are kept here, with the code of version 0.1.0; see README.md. No test runs this.

PYTHONPATH=CHECKOUT_OF_0.1.0/src python make.py TARGET
"""

from __future__ import annotations

import gzip
import io
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import tidings

VALUES = 60
READ_UP_TO = {"news": 17, "sport": 40}
"""How many messages of each topic the subscription of `reader` has acknowledged."""
SETTLED = 25
"""How many messages of news the group `packers` has settled."""
WORKING_ON = "news"
MEMBERS = [f"tcp://127.101.0.{number}:17401" for number in (1, 2, 3)]
NODES = [f"tcp://127.101.0.{number}:17501" for number in (11, 12)]
BROKER, STORAGE = "tcp://127.101.0.21:17400", "tcp://127.101.0.22:17410"
SETTINGS = {"TIDINGS_SEGMENT_RECORDS_MAX": "60", "TIDINGS_SEGMENT_BYTES_MAX": "9000"}


def key(offset: int) -> str:
    return f"key {offset % 5}"


def value(topic: str, offset: int) -> str:
    return f"{topic} {offset} " * (1 + offset * 7 % 13)


class Process:
    """A command of version 0.1.0, until it is ended."""

    def __init__(self, *command: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tidings", *command], stderr=subprocess.PIPE, text=True, env=os.environ | SETTINGS
        )

    def wait_until_ready(self) -> None:
        assert self._process.stderr is not None
        line = self._process.stderr.readline()
        assert line.startswith("tidings "), line

    def end(self, number: signal.Signals = signal.SIGTERM) -> None:
        self._process.send_signal(number)
        assert self._process.wait() in (0, -signal.SIGKILL)


def start(*commands: tuple[str, ...]) -> list[Process]:
    """Starts commands that may wait for each other."""
    processes = [Process(*command) for command in commands]
    for process in processes:
        process.wait_until_ready()
    return processes


def fill(connect: Callable[[str], tidings.Bus]) -> None:
    """Two topics with keys, a reader of both that has come to different places, and a group that has settled some."""
    with connect("reader") as reader:
        for topic in READ_UP_TO:
            reader.subscribe(topic)
    with connect("packer") as packer:
        packer.subscribe(WORKING_ON, group="packers")
    with connect("writer") as writer:
        for offset in range(VALUES):
            for topic in READ_UP_TO:
                assert writer.put(topic, value(topic, offset), key=key(offset)).offset == offset
    with connect("reader") as reader:
        for topic, count in READ_UP_TO.items():
            for offset in range(count):
                message = reader.get(topic, timeout=30)
                assert message is not None
                assert message.offset == offset
    with connect("packer") as packer, packer.subscribe(WORKING_ON, group="packers") as jobs:
        for offset in range(SETTLED):
            message = jobs.get(timeout=30)
            assert message is not None
            assert message.offset == offset
            jobs.ack(message)


def make_alone(place: Path, ending: signal.Signals) -> None:
    [broker] = start(("serve", "--data", str(place / "data"), "--bind", BROKER))
    fill(lambda client: tidings.connect(BROKER, client))
    broker.end(ending)


def make_stored(place: Path) -> None:
    [storage] = start(("storage", "--data", str(place / "data"), "--bind", STORAGE))
    [broker] = start(("serve", "--storage", STORAGE, "--bind", BROKER))
    fill(lambda client: tidings.connect(BROKER, client))
    broker.end()
    storage.end()


def make_group(place: Path) -> None:
    group = ",".join(MEMBERS)
    members = start(
        *(
            ("serve", "--data", str(place / f"member{number}"), "--bind", address, "--group", group)
            for number, address in enumerate(MEMBERS, 1)
        )
    )
    fill(lambda client: tidings.connect(group, client))
    for member in members:
        member.end()


def make_ring(place: Path) -> None:
    """Two groups of one node each, tried until each of them owns one of the topics: where they stand is drawn."""
    owners: set[str] = set()
    while len(owners) < 2:
        for folder in place.iterdir():
            shutil.rmtree(folder)
        first = start(("node", "--data", str(place / "node1"), "--bind", NODES[0]))
        second = start(("node", "--data", str(place / "node2"), "--bind", NODES[1], "--join", NODES[0]))
        time.sleep(3)  # The second gets its share.
        fill(lambda client: tidings.connect(NODES[0], client))
        for node in (*first, *second):
            node.end()
        owners = {owner for topic in READ_UP_TO for owner in ("node1", "node2") if _holds(place / owner, topic)}


def _holds(folder: Path, topic: str) -> bool:
    return any(value(topic, VALUES - 1).encode() in path.read_bytes() for path in folder.glob("*.journal"))


def pack(place: Path, target: Path) -> None:
    """A folder as an archive in which nothing says where and when it was made."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for path in sorted(place.rglob("*")):
            entry = tarfile.TarInfo(str(path.relative_to(place)))
            entry.mode = 0o755 if path.is_dir() else 0o644
            if path.is_dir():
                entry.type = tarfile.DIRTYPE
                archive.addfile(entry)
            else:
                data = path.read_bytes()
                entry.size = len(data)
                archive.addfile(entry, io.BytesIO(data))
    target.write_bytes(gzip.compress(packed.getvalue(), mtime=0))


def main() -> None:
    target = Path(sys.argv[1])
    for name, make in {
        "alone": lambda place: make_alone(place, signal.SIGTERM),
        "killed": lambda place: make_alone(place, signal.SIGKILL),
        "storage": make_stored,
        "group": make_group,
        "ring": make_ring,
    }.items():
        place = Path(tempfile.mkdtemp())
        make(place)
        pack(place, target / f"{name}.tar.gz")
        shutil.rmtree(place)


if __name__ == "__main__":
    main()
