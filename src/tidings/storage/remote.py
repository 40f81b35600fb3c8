"""The broker's end: a `Disk` whose files a storage server has.

Changes and reads go over a connection each, because they come from two threads: the one that writes commits and the
loop. What the server acknowledged is remembered (`_sizes`), so names and sizes need no call. Removals can wait: they
travel in front of the next change.

**A storage server that is away.** In the thread that opened the disk, where a broker starts and recovers, a change
is tried again for a bounded time only. In another, which writes commits, it is tried for as long as it takes: that
thread waits, and the loop goes on. Whenever the connection has broken, the session is opened again
first. Three things may be found then: the server remembers the change as made (only its answer was lost); or it has
been started again and has more of a file than was acknowledged, which is cut off and sent again; or it has less, and
then the process must end, because something acknowledged is gone. A read waits a moment and then is `Unavailable`;
while the server is known to be away, reads are refused at once but for one in a while that looks whether it is
back.
"""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from typing import Protocol

from tidings.errors import Fenced, StorageDamaged, StorageError, TidingsError, Unavailable, from_number
from tidings.journal.disk import Buffer, DiskFull
from tidings.journal.segment import JOURNAL_SUFFIX
from tidings.protocols.storage import (
    CLOSED,
    FENCED,
    FULL,
    VERSION,
    AnyCall,
    AnyStorageAnswer,
    Append,
    Create,
    Done,
    Failed,
    Open,
    Opened,
    Piece,
    Read,
    Remove,
    Replace,
    Sync,
    Truncate,
)
from tidings.settings import MIB, BrokerSettings
from tidings.transport.caller import ConnectionLost
from tidings.wire.codec import Frame
from tidings.wire.storage import decode_storage_answer, frames_of

ANSWER_MS_MAX = 60_000
"""A change without an answer after this long is asked about over a new connection; a slow disk must not be taken for
one that is away."""
KNOCK_MS = 200
"""How long an Open may take before it is tried again: the server is there at once or not at all."""
KNOCK_MS_MAX = 2_000
READ_MS_MAX = 1_000
LOOK_EVERY_MS = 250
BLOCK_BYTES = 2 * MIB
BLOCKS_MAX = 16
PIECE_BYTES = 8 * MIB

NewChange = Callable[[int, int], AnyCall]
"""Makes a change from its number and the session."""


class Line(Protocol):
    """A connection to the server; see `tidings.transport.caller.Caller`."""

    address: str

    def send(self, frames: Sequence[Frame]) -> None: ...
    def receive(self, timeout_ms: int) -> list[Frame] | None: ...
    def reopen(self) -> None: ...
    def close(self) -> None: ...


class RemoteDisk:
    """The `Disk` of a broker on a storage server. Making one opens it, and fences the broker before."""

    remote = True
    salt = 0

    def __init__(
        self,
        connect: Callable[[], Line],
        settings: BrokerSettings,
        wait_ms: int,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._sleep = sleep
        self._settings = settings
        self._wait_ms = wait_ms
        self._token = os.urandom(16)
        self._writer = connect()
        self._reader = connect()
        self._session = 0
        self._epoch = 0
        self._calls = 0
        self._reads = 0
        self._opener = threading.get_ident()
        self._changing = False
        self._sizes: dict[str, int] = {}
        self._durable: dict[str, int] = {}
        self.salt = 0
        self.short_of_room = False
        self._synced: dict[str, int] = {}
        """Of files that were written to without a sync: how much of them is on disk."""
        self._removals: deque[str] = deque()
        self._blocks: OrderedDict[tuple[str, int], memoryview] = OrderedDict()
        self._away_since: float | None = None
        self._looked_at = 0.0
        try:
            opened = self._open(time.monotonic() + wait_ms / 1000)
        except BaseException:
            self.close()
            raise
        self._sizes, self._durable, self.salt = dict(opened.files), opened.durable, opened.salt

    # What the journal asks.

    def names(self) -> list[str]:
        return sorted(self._sizes)

    def size(self, name: str) -> int:
        return self._sizes[name]

    def create(self, name: str) -> None:
        self._change(lambda call, session: Create(call, session, name))
        self._sizes[name] = 0

    def append(self, name: str, buffers: Sequence[Buffer]) -> None:
        self._synced.setdefault(name, self._sizes[name])
        self._append(name, buffers, sync=False)

    def commit(self, name: str, buffers: Sequence[Buffer]) -> None:
        self._append(name, buffers, sync=True)
        self._synced.pop(name, None)

    def sync(self, name: str) -> None:
        self._change(lambda call, session: Sync(call, session, name))
        self._synced.pop(name, None)

    def durable_size(self, name: str) -> int:
        """As it was when the storage was opened: only recovery wants to know."""
        return self._durable.get(name, 0)

    def sync_mark(self) -> None:
        """The storage server does so itself, when it stops."""

    def restock(self) -> None:
        """The storage server looks for room itself, and tells with every change."""

    def seal(self, name: str) -> None:
        self.truncate(name, self._sizes[name])

    def truncate(self, name: str, size: int) -> None:
        self._change(lambda call, session: Truncate(call, session, name, size))
        self._sizes[name] = size

    def replace(self, name: str, buffers: Sequence[Buffer]) -> None:
        self._change(lambda call, session: Replace(call, session, name), buffers)
        self._sizes[name] = sum(map(len, buffers))

    def remove(self, name: str) -> None:
        self._sizes.pop(name)
        self._removals.append(name)

    def read_at(self, name: str, position: int, size: int) -> memoryview:
        """From blocks, so that anyone who reads on finds the next bytes here already."""
        end = position + size
        start = position - position % BLOCK_BYTES
        if end > start + BLOCK_BYTES:
            return self._fetch_all(name, position, size, READ_MS_MAX)
        block = self._blocks.get((name, start))
        if block is None or len(block) < end - start:
            # Never beyond what was acknowledged: that may still be cut off and written differently.
            wanted = min(BLOCK_BYTES, self._sizes[name] - start)
            block = self._blocks[name, start] = self._fetch(name, start, wanted, READ_MS_MAX)
        self._blocks.move_to_end((name, start))
        while len(self._blocks) > BLOCKS_MAX:
            self._blocks.popitem(last=False)
        return block[position - start : end - start]

    def map(self, name: str) -> memoryview:
        return self._fetch_all(name, 0, self._sizes[name], self._wait_ms)

    def file_location(self, name: str) -> None:
        return None

    def tend(self) -> None:
        """Opens a server that was away again, so that it knows what it has to be final; Fenced if it is another's.

        Of a full server it is asked whether there is room again: nobody may write there until then, so no other change
        would take the removals along that free some.
        """
        if self._session and self._is_ours():
            if self.short_of_room:
                self.sync(self._newest())
            return
        try:
            opened = self._open(time.monotonic())
        except Unavailable:
            self._session = 0
            return
        self._repair(opened.files, None)
        if self._session:
            self.sync(self._newest())

    def close(self) -> None:
        if not self._changing:  # Another thread waits at it, and only the end of the process ends that.
            self._writer.close()
        self._reader.close()

    # Changes, in the thread that writes.

    def _append(self, name: str, buffers: Sequence[Buffer], sync: bool) -> None:
        position = self._sizes[name]
        self._change(lambda call, session: Append(call, session, name, position, sync), buffers)
        self._sizes[name] = position + sum(map(len, buffers))

    def _change(self, make: NewChange, buffers: Sequence[Buffer] = ()) -> None:
        self._changing = True
        try:
            if self._removals:
                names = tuple(self._removals)
                self._ask(lambda call, session: Remove(call, session, names), ())
                for _ in names:
                    self._removals.popleft()
            self._ask(make, buffers)
        finally:
            self._changing = False

    def _ask(self, make: NewChange, buffers: Sequence[Buffer]) -> None:
        """Has one change made, however often the server goes away meanwhile."""
        starting = threading.get_ident() == self._opener
        while True:
            self._calls += 1
            number = self._calls
            if self._session and self._try(make(number, self._session), buffers):
                return
            opened = self._open(time.monotonic() + self._wait_ms / 1000 if starting else None)
            if opened.last_change == number:
                return
            self._repair(opened.files, make(number, self._session))

    def _try(self, change: AnyCall, buffers: Sequence[Buffer]) -> bool:
        """Asks once: True when it is done, False when the session must be opened again."""
        try:
            self._writer.send(frames_of(change, buffers))
            answer, _ = self._receive(self._writer, change.call, ANSWER_MS_MAX)
        except ConnectionLost:
            return False
        if isinstance(answer, Done):
            self.short_of_room = answer.short_of_room
            return True
        if answer is None or (isinstance(answer, Failed) and answer.reason == CLOSED):
            return False
        raise _failure(answer)

    def _is_ours(self) -> bool:
        """Whether the server answers and the epoch is still this broker's; Fenced if it is not."""
        self._calls += 1
        try:
            self._writer.send(frames_of(Read(self._calls, self._epoch, self._newest(), 0, 1), ()))
            answer, _ = self._receive(self._writer, self._calls, KNOCK_MS_MAX)
        except ConnectionLost:
            return False
        if isinstance(answer, Failed):
            raise _failure(answer)
        return answer is not None

    def _newest(self) -> str:
        return max(name for name in self._sizes if name.endswith(JOURNAL_SUFFIX))

    def _open(self, deadline: float | None) -> Opened:
        """Opens the session, again and again until the deadline; None waits for ever."""
        knock_ms = KNOCK_MS
        renews = self._epoch > 0
        while True:
            self._writer.reopen()
            self._calls += 1  # A number of its own, so that no late answer is taken for it.
            try:
                self._writer.send(frames_of(Open(self._calls, VERSION, self._token, renews, self._settings), ()))
                answer, _ = self._receive(self._writer, self._calls, knock_ms)
            except ConnectionLost:
                answer = None
                self._sleep(KNOCK_MS / 1000)  # Anyone who refuses connections does so at once.
            if isinstance(answer, Opened):
                self._session, self._epoch = answer.session, answer.epoch
                return answer
            if answer is not None:
                raise _failure(answer)
            if deadline is not None and time.monotonic() > deadline:
                raise Unavailable(
                    f"No storage server answers at {self._writer.address}: "
                    "start it with `tidings storage`, or check the address and the keys."
                )
            knock_ms = min(2 * knock_ms, KNOCK_MS_MAX)

    def _repair(self, files: dict[str, int], pending: AnyCall | None) -> None:
        """After the server was away: what it has beyond the last acknowledgement goes; less there must not be."""
        for name, size in list(self._sizes.items()):
            if isinstance(pending, Replace | Truncate) and pending.name == name:
                continue  # It may have been done, and is done again.
            found = files.get(name)
            if found is not None and self._synced.get(name, size) <= found < size:
                raise StorageError(
                    f"The storage server has lost what it had not synced of {name}: start the broker again."
                )
            if found is None or found < size:
                raise StorageDamaged(
                    f"The storage server has {found or 0} bytes of {name}, and had acknowledged {size}: "
                    "restore its folder from a copy."
                )
            if found > size:
                self._calls += 1
                if not self._try(Truncate(self._calls, self._session, name, size), ()):
                    self._session = 0
                    return

    # Reads, in the loop.

    def _fetch_all(self, name: str, position: int, size: int, wait_ms: int) -> memoryview:
        end = position + size
        pieces = [
            self._fetch(name, start, min(PIECE_BYTES, end - start), wait_ms)
            for start in range(position, end, PIECE_BYTES)
        ]
        return pieces[0] if len(pieces) == 1 else memoryview(b"".join(pieces))

    def _fetch(self, name: str, position: int, size: int, wait_ms: int) -> memoryview:
        now = time.monotonic()
        if self._away_since is not None:
            if now - self._looked_at < LOOK_EVERY_MS / 1000:
                raise self._away()
            wait_ms = min(wait_ms, LOOK_EVERY_MS // 5)
        self._looked_at = now
        deadline = now + wait_ms / 1000
        while True:
            self._reads += 1
            try:
                self._reader.send(frames_of(Read(self._reads, self._epoch, name, position, size), ()))
                left_ms = max(0, round((deadline - time.monotonic()) * 1000))
                answer, frames = self._receive(self._reader, self._reads, left_ms)
            except ConnectionLost:
                answer, frames = None, []
            if isinstance(answer, Piece):
                self._away_since = None
                return memoryview(frames[0]) if frames else memoryview(b"")
            if answer is not None:
                raise _failure(answer)
            self._reader.reopen()
            if time.monotonic() >= deadline:
                self._away_since = self._away_since or now
                raise self._away()
            self._sleep(min(KNOCK_MS / 1000, max(0.0, deadline - time.monotonic())))

    def _away(self) -> Unavailable:
        return Unavailable(f"The storage server at {self._reader.address} does not answer: restart it.")

    def _receive(self, line: Line, call: int, timeout_ms: int) -> tuple[AnyStorageAnswer | None, list[Frame]]:
        """The answer to a call and the frames behind it; answers to earlier calls are passed over."""
        deadline = time.monotonic() + timeout_ms / 1000
        while True:
            frames = line.receive(max(0, round((deadline - time.monotonic()) * 1000)))
            if frames is None:
                return None, []
            answer = decode_storage_answer(frames[0])
            if answer.call == call:
                return answer, frames[1:]


def _failure(answer: AnyStorageAnswer) -> TidingsError:
    if isinstance(answer, Failed):
        if answer.reason == FULL:
            return DiskFull(answer.text)
        return Fenced(answer.text) if answer.reason == FENCED else from_number(answer.number, answer.text)
    return StorageError(
        f"The storage server answered {type(answer).__name__}, which was not asked for: update the older side."
    )
