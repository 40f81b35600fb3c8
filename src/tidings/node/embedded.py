"""The same broker inside the caller's process: no socket, no thread, the same files.

All buses that one process opens on a folder share one broker. A request is answered within the call that
sends it: the engine runs, the journal is written, the answers wait in the links of their clients.

The broker belongs to the process that opened it. The child of a fork has only a copy of what it knows, and must not
write to its journal: it closes its copies of the files before anything else runs there, and the folder is then as much
in use by another process as any other that somebody else has open.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from tidings.errors import InvalidRequest, StorageError, TidingsError, Unavailable
from tidings.journal.disk import Disk, DiskFull, RealDisk, lone_disk
from tidings.journal.journal import Journal
from tidings.node.clock import Clock, ManualClock
from tidings.node.engines import lone_engine
from tidings.settings import BrokerSettings, JournalSettings, load
from tidings.wire.codec import Frame


class EmbeddedNode:
    """A broker that is driven by its clients' calls."""

    def __init__(
        self,
        folder: Path,
        broker: BrokerSettings,
        journal: JournalSettings,
        disk: Disk | None = None,
        clock: Callable[[], int] | None = None,
    ) -> None:
        self.folder = folder
        self._settings = (broker, journal)
        self._disk = disk if disk is not None else lone_disk(folder)
        self._engine = lone_engine(broker, Journal.open(self._disk, journal))
        self._clock = clock or Clock()
        self._tick_at_ms = 0
        self.failed: TidingsError | None = None
        """What it could not go on after."""
        self.changed = threading.Condition()
        self.links: dict[int, EmbeddedLink] = {}
        self._last_link = 0
        try:
            self._engine.recover()
        except BaseException:
            self._disk.close()
            raise
        if isinstance(clock, ManualClock):
            clock.watch(self.pass_time)

    def check_same(
        self, given: Collection[str], wanted: Sequence[msgspec.Struct], clock: Callable[[], int] | None
    ) -> None:
        """One broker has one set of settings: a second open may repeat them, and not change them."""
        differ = [
            f"{name}={getattr(running, name)!r}"
            for running, asked in zip(self._settings, wanted, strict=True)
            for name in running.__struct_fields__
            if name in given and getattr(running, name) != getattr(asked, name)
        ]
        if clock is not None and clock is not self._clock:
            differ.append("another clock")
        if differ:
            raise InvalidRequest(
                f"{self.folder} is open in this process with {', '.join(differ)}: give the same settings or none, "
                "or close every bus on it first."
            )

    def join(self, link: EmbeddedLink) -> int:
        with self.changed:
            self._last_link += 1
            self.links[self._last_link] = link
            return self._last_link

    def leave(self, number: int) -> None:
        with self.changed:
            self.links.pop(number, None)

    def handle(self, number: int, requests: Sequence[list[Frame]]) -> None:
        """Runs requests to their end, and whatever they set off for other clients."""
        with self.changed:
            if self.failed is not None:
                raise self.failed
            try:
                self._run(number, requests)
            except BaseException as error:
                if self.failed is None:  # An interrupt, say: what is half done can be neither undone nor gone on with.
                    self.failed = StorageError(
                        f"The broker of {self.folder} in this process was interrupted by {type(error).__name__} in the "
                        "middle of its work: close every bus on it, then open it again."
                    )
                raise
            self.changed.notify_all()

    def pass_time(self) -> None:
        """The clock has been advanced: what is due by now is done."""
        self._tick_at_ms = 0
        if self.links and self.failed is None:
            self.handle(0, ())

    def _run(self, number: int, requests: Sequence[list[Frame]]) -> None:
        now_ms = self._clock()
        engine = self._engine
        if now_ms >= self._tick_at_ms:
            self._tick_at_ms = now_ms + self._engine.tick_ms
            engine.tick(now_ms)
        for frames in requests:
            engine.receive(now_ms, number, frames)
        while engine.has_staged:
            self._commit(now_ms)
        outgoing, engine.outgoing = engine.outgoing, []
        for peer, answer in outgoing:
            link = self.links.get(peer)
            if link is not None:
                link.take(answer)

    def _commit(self, now_ms: int) -> None:
        engine = self._engine
        commit = engine.begin_commit(now_ms)
        try:
            engine.journal.write(commit)
        except DiskFull as error:
            engine.refuse_commit(now_ms, error)
        except Exception as error:
            # What the disk has lost cannot be known: nothing more is answered from this state.
            self.failed = StorageError(f"The journal in {self.folder} could not be written ({error}): open it again.")
            raise self.failed from error
        else:
            engine.finish_commit(now_ms)

    def close(self) -> None:
        try:
            if self.failed is None:
                self._engine.journal.sync_mark()
        finally:
            self._disk.close()

    def abandon(self) -> None:
        """This is the child of a fork: the journal is the parent's."""
        self.changed = threading.Condition()  # The one who had the old one is not in this process.
        self.failed = InvalidRequest(
            f"The broker of {self.folder} belongs to the parent of this forked process: open a bus in this "
            "process, or use multiprocessing's spawn method."
        )
        if isinstance(self._disk, RealDisk):
            self._disk.abandon()


class EmbeddedLink:
    """A client's way to a broker in the same process; it looks like a connection."""

    def __init__(self, node: EmbeddedNode) -> None:
        self.inbox: deque[list[Frame]] = deque()
        self.address = str(node.folder)
        self._woken = False
        self._node = node
        self._number = node.join(self)

    def send(self, frames: list[Frame]) -> None:
        self._node.handle(self._number, (frames,))

    def take(self, frames: list[Frame]) -> None:
        """What the broker sends; called by whichever thread drives it."""
        self.inbox.append(frames)

    def receive(self, timeout_ms: int) -> list[Frame] | None:
        """The next answer or delivery, None when none comes in time or when woken."""
        if not self.inbox and timeout_ms > 0:
            deadline = time.monotonic() + timeout_ms / 1000
            with self._node.changed:
                while not self.inbox and not self._woken and (left := deadline - time.monotonic()) > 0:
                    self._node.changed.wait(left)
        self._woken = False
        return self.inbox.popleft() if self.inbox else None

    def wake(self) -> None:
        """Ends a wait of `receive`; may be called from any thread."""
        self._woken = True
        with self._node.changed:
            self._node.changed.notify_all()

    def sibling(self) -> EmbeddedLink:
        """Another connection to the same broker."""
        with _nodes_lock:
            node, users = _nodes[self._node.folder]
            _nodes[self._node.folder] = (node, users + 1)
        return EmbeddedLink(node)

    def reopen(self, address: str | None = None) -> None:
        """A new connection, to the one broker there is: what was on its way over the old one is lost."""
        self._node.leave(self._number)
        self.inbox.clear()
        self._number = self._node.join(self)

    def close(self) -> None:
        self._node.leave(self._number)
        release(self._node)


LinkT = TypeVar("LinkT", bound=EmbeddedLink)
SettingsT = TypeVar("SettingsT", bound=msgspec.Struct)

_nodes: dict[Path, tuple[EmbeddedNode, int]] = {}
_nodes_lock = threading.Lock()


def link_to(
    folder: str | Path,
    broker: BrokerSettings,
    journal: JournalSettings,
    given: Collection[str] = (),
    clock: Callable[[], int] | None = None,
    kind: Callable[[EmbeddedNode], LinkT] = EmbeddedLink,  # type: ignore[assignment]
) -> LinkT:
    """A link to the broker of a folder, which is started by the first and stopped after the last.

    `given` names the settings that the caller has chosen itself: a broker that is there already must have the same.
    """
    path = Path(folder).resolve()
    with _nodes_lock:
        node, users = _nodes.get(path, (None, 0))
        if node is None:
            if path.exists() and not path.is_dir():
                raise Unavailable(f"{folder} is a file, and a bus needs a folder: name another.")
            node = EmbeddedNode(path, broker, journal, clock=clock)
        else:
            node.check_same(given, (broker, journal), clock)
        _nodes[path] = (node, users + 1)
    return kind(node)


def open_folder(
    folder: str | Path,
    options: dict[str, Any],
    clock: Callable[[], int] | None = None,
    kind: Callable[[EmbeddedNode], LinkT] = EmbeddedLink,  # type: ignore[assignment]
) -> LinkT:
    """The same with the settings that it takes out of a caller's options."""
    broker, journal, given = take_settings(options)
    return link_to(folder, broker, journal, given, clock, kind)


def take_settings(options: dict[str, Any]) -> tuple[BrokerSettings, JournalSettings, list[str]]:
    """The settings of a broker and its journal, taken out of a caller's options; and the names of those given."""
    given: list[str] = []

    def take(kind: type[SettingsT]) -> SettingsT:
        chosen = {name: options.pop(name) for name in kind.__struct_fields__ if name in options}
        given.extend(name for name, value in chosen.items() if value is not None)
        return load(kind, chosen)

    return take(BrokerSettings), take(JournalSettings), given


def release(node: EmbeddedNode) -> None:
    """One user of a broker less; the last one closes it."""
    with _nodes_lock:
        known, users = _nodes.get(node.folder, (None, 0))
        if known is not node:
            return  # It is the one of the process that this one was forked from.
        if users > 1:
            _nodes[node.folder] = (node, users - 1)
        else:
            del _nodes[node.folder]
            node.close()


def _abandon_all() -> None:
    """In the child of a fork there is no broker yet."""
    global _nodes_lock
    _nodes_lock = threading.Lock()
    for node, _ in _nodes.values():
        node.abandon()
    _nodes.clear()


os.register_at_fork(after_in_child=_abandon_all)
