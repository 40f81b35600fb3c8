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
from pathlib import Path

from tidings.errors import InvalidRequest, StorageError, TidingsError, Unavailable
from tidings.journal.disk import Disk, DiskFull, RealDisk, lone_disk
from tidings.journal.journal import Journal
from tidings.node.clock import Clock
from tidings.node.engines import lone_engine
from tidings.settings import BrokerSettings, JournalSettings
from tidings.wire.codec import Frame


class EmbeddedNode:
    """A broker that is driven by its clients' calls."""

    def __init__(
        self, folder: Path, broker: BrokerSettings, journal: JournalSettings, disk: Disk | None = None
    ) -> None:
        self.folder = folder
        self._disk = disk if disk is not None else lone_disk(folder)
        self._engine = lone_engine(broker, Journal.open(self._disk, journal))
        self._clock = Clock()
        self._tick_at_ms = 0
        self._failed: TidingsError | None = None
        self.changed = threading.Condition()
        self.links: dict[int, EmbeddedLink] = {}
        self._last_link = 0
        try:
            self._engine.recover()
        except BaseException:
            self._disk.close()
            raise

    def join(self, link: EmbeddedLink) -> int:
        with self.changed:
            self._last_link += 1
            self.links[self._last_link] = link
            return self._last_link

    def leave(self, number: int) -> None:
        with self.changed:
            self.links.pop(number, None)

    def handle(self, number: int, frames: list[Frame]) -> None:
        """Runs one request to its end, and whatever it sets off for other clients."""
        with self.changed:
            if self._failed is not None:
                raise self._failed
            try:
                self._run(number, frames)
            except BaseException as error:
                if self._failed is None:  # An interrupt, say: what is half done can be neither undone nor gone on with.
                    self._failed = StorageError(
                        f"The broker of {self.folder} in this process was broken off by {type(error).__name__} in the "
                        "middle of its work: close every bus on it, then open it again."
                    )
                raise
            self.changed.notify_all()

    def _run(self, number: int, frames: list[Frame]) -> None:
        now_ms = self._clock()
        engine = self._engine
        if now_ms >= self._tick_at_ms:
            self._tick_at_ms = now_ms + self._engine.tick_ms
            engine.tick(now_ms)
        engine.receive(now_ms, number, frames)
        while engine.has_staged:
            self._commit(now_ms)
        outgoing, engine.outgoing = engine.outgoing, []
        for peer, answer in outgoing:
            link = self.links.get(peer)
            if link is not None:
                link.inbox.append(answer)

    def _commit(self, now_ms: int) -> None:
        engine = self._engine
        commit = engine.begin_commit(now_ms)
        try:
            engine.journal.write(commit)
        except DiskFull as error:
            engine.refuse_commit(now_ms, error)
        except Exception as error:
            # What the disk has lost cannot be known: nothing more is answered from this state.
            self._failed = StorageError(f"The journal in {self.folder} could not be written ({error}): open it again.")
            raise self._failed from error
        else:
            engine.finish_commit(now_ms)

    def close(self) -> None:
        try:
            if self._failed is None:
                self._engine.journal.sync_mark()
        finally:
            self._disk.close()

    def abandon(self) -> None:
        """This is the child of a fork: the journal is the parent's."""
        self.changed = threading.Condition()  # The one who had the old one is not in this process.
        self._failed = InvalidRequest(
            f"The broker of {self.folder} belongs to the process that this one was forked from: open a bus in this "
            "process, or start processes by multiprocessing's spawn method."
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
        self._node.handle(self._number, frames)

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


_nodes: dict[Path, tuple[EmbeddedNode, int]] = {}
_nodes_lock = threading.Lock()


def link_to(folder: str | Path, broker: BrokerSettings, journal: JournalSettings) -> EmbeddedLink:
    """A link to the broker of a folder, which is started by the first and stopped after the last."""
    path = Path(folder).resolve()
    with _nodes_lock:
        node, users = _nodes.get(path, (None, 0))
        if node is None:
            if path.exists() and not path.is_dir():
                raise Unavailable(f"{folder} is a file, and a bus needs a folder: name another.")
            node = EmbeddedNode(path, broker, journal)
        _nodes[path] = (node, users + 1)
    return EmbeddedLink(node)


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
