"""The loop of a broker process: one thread owns all state, one thread writes the journal.

A plain poll loop. It takes the requests that are ready, lets the engine stage what must be durable, and writes
the commit, which is never larger than a few batches. As long as the disk answers fast it does so itself: two
thread switches would cost more than they save (a sixth of all processor time with 32 publishers of single
messages), and what comes meanwhile waits in ZeroMQ's own thread. On a slow disk the writing thread does it, and
while that waits (without the GIL) the loop reads the next requests. So it does when the disk is a storage server's,
which may be away: then the thread waits, and the loop goes on.

Doors for other protocols run beside the loop in threads of their own and reach it as clients do, over links from
inside the process. They close first, while the loop still answers them.
"""

from __future__ import annotations

import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from types import FrameType
from typing import NoReturn, Protocol

from tidings.errors import Unavailable
from tidings.journal.disk import DiskFull
from tidings.journal.journal import Commit, Journal
from tidings.node.engine import AnyEngine
from tidings.settings import NodeSettings
from tidings.transport.router import Router
from tidings.transport.zeromq import DealerLink

LINGER_MS = 1_000
IDLE_MS = 1_000
"""A moment without a commit after which a mark is left that everything is on disk."""
INLINE_NS_MAX = 2_000_000
"""Commits are written in the loop as long as the last ones took less than this on the average."""
STOP_SECONDS_MAX = 5.0
TEND_SECONDS = 1.0
"""A broker without work notices this late that its storage server was away, or belongs to another."""
GARBAGE_MIN = 20_000
"""The collector of cycles, of which a broker makes few, runs this seldom: it walks through every batch in memory."""
EXIT_STORAGE_FAILED = 74
"""The exit code after a write or sync that failed: EX_IOERR of sysexits.h."""

_SYNC_MARK = "sync mark"
_STOP = "stop"


class Committer:
    """The thread that writes commits. It ends the process when the disk fails: there is no safe way on."""

    def __init__(self, journal: Journal, wake: Callable[[], None]) -> None:
        self._journal = journal
        self._wake = wake
        self._work: queue.SimpleQueue[Commit | str] = queue.SimpleQueue()
        self.writing = threading.Lock()
        """Held by anyone who writes: the loop, or the thread."""
        self.finished: queue.SimpleQueue[DiskFull | None] = queue.SimpleQueue()
        self.usual_ns = 0
        """How long a write and its sync take: a moving average."""
        self._thread = threading.Thread(target=self._run, name="tidings-commit", daemon=True)
        self._thread.start()

    def submit(self, commit: Commit) -> None:
        self._work.put(commit)

    def sync_mark(self) -> None:
        """Has a mark left that everything is on disk, in the thread."""
        self._work.put(_SYNC_MARK)

    def write(self, commit: Commit) -> DiskFull | None:
        """Writes a commit; a full disk is returned, any other failure ends the process."""
        began_ns = time.monotonic_ns()
        try:
            with self.writing:
                self._journal.write(commit)
        except DiskFull as error:
            return error
        except BaseException as error:  # noqa: BLE001 - whatever it is, no answer may follow it
            _end_without_answer(error)
        self.usual_ns += (time.monotonic_ns() - began_ns - self.usual_ns) // 8
        return None

    def _run(self) -> None:
        while (work := self._next()) != _STOP:
            if isinstance(work, Commit):
                self.finished.put(self.write(work))
                self._wake()
            else:
                self._look_after(self._journal.sync_mark)

    def _next(self) -> Commit | str:
        """What to do next; a remote disk is looked after meanwhile."""
        while True:
            try:
                return self._work.get(timeout=TEND_SECONDS if self._journal.remote else None)
            except queue.Empty:
                self._look_after(self._journal.tend)

    def _look_after(self, what: Callable[[], None]) -> None:
        try:
            with self.writing:
                what()
        except BaseException as error:  # noqa: BLE001 - as after a failed write
            _end_without_answer(error)

    def stop(self) -> None:
        """Ends the thread; all that was written is on disk then, and a mark says so."""
        self._work.put(_SYNC_MARK)
        self._work.put(_STOP)
        self._thread.join()


def _end_without_answer(error: BaseException) -> NoReturn:
    sys.stderr.write(f"tidings: the journal could not be written ({error}); stopping without an answer.\n")
    sys.stderr.flush()
    os._exit(EXIT_STORAGE_FAILED)


class Door(Protocol):
    """Another way in, which a thread of its own looks after."""

    def name_after(self, node: str) -> None:
        """Before the start, in a group or a ring: other nodes have such doors too, and this is the address of ours."""

    def start(self, link: Callable[[], DealerLink], on_closed: Callable[[], None]) -> None:
        """Starts the thread. It calls `on_closed` as the last thing that it does, with all links closed."""

    def stop(self) -> None:
        """Asks the door to close, and does not wait for it; closing takes seconds at most."""

    @property
    def closed(self) -> bool:
        """Whether the thread has done its last."""

    def check(self) -> None:
        """Raises what the door could not go on after, if it was that which closed it."""


class Loop:
    """A broker at its door."""

    def __init__(
        self,
        engine: AnyEngine,
        router: Router,
        settings: NodeSettings,
        clock: Callable[[], int],
        doors: Sequence[Door] = (),
        grow: Callable[[AnyEngine, int], AnyEngine] | None = None,
    ) -> None:
        self._doors = doors
        self._grow = grow
        """Makes the engine that goes on in place of one that is outgrown, on the same journal."""
        self._engine = engine
        self._router = router
        self._settings = settings
        self._clock = clock
        self._committer = Committer(engine.journal, router.wake)
        self._sync_mark_at_ms: int | None = clock() + IDLE_MS
        self._stop = False

    def stop(self) -> None:
        """Asks the loop to end in good order; may be called from any thread or signal handler."""
        self._stop = True
        self._router.wake()

    def run(self) -> None:
        """Serves until somebody stops it, or a door closes that should not have."""
        router = self._router
        for door in self._doors:
            door.start(router.link, router.wake)
        tick_at_ms = self._clock()
        while not self._ended():
            if self._engine.outgrown:
                self._exchange_engine()
            engine, now_ms = self._engine, self._clock()
            if now_ms >= tick_at_ms:
                engine.tick(now_ms)
                tick_at_ms = now_ms + engine.tick_ms
                self._sync_mark(now_ms)
            reading = engine.staged_bytes < self._settings.staged_bytes_max
            if engine.gather(now_ms):
                self._flush()
            self._start_commit()
            self._flush()
            if router.wait(max(0, tick_at_ms - self._clock()), reading):
                now_ms = self._clock()
                for peer, frames, user in router.receive(self._settings.drained_requests_max):
                    engine.receive(now_ms, peer, frames, user)
            self._take_finished()
        self._finish()

    def _sync_mark(self, now_ms: int) -> None:
        if self._sync_mark_at_ms is not None and now_ms >= self._sync_mark_at_ms and not self._engine.committing:
            self._sync_mark_at_ms = None
            self._committer.sync_mark()

    def _ended(self) -> bool:
        """Whether to serve no longer: somebody wants the end, and every door has closed."""
        if self._stop or self._engine.stopping or any(door.closed for door in self._doors):
            for door in self._doors:
                door.stop()
            return all(door.closed for door in self._doors)
        return False

    def _start_commit(self) -> None:
        engine, committer = self._engine, self._committer
        while engine.has_staged and not engine.committing:
            inline = committer.usual_ns <= INLINE_NS_MAX and not engine.journal.remote
            commit = engine.begin_commit(self._clock())
            if not inline:
                committer.submit(commit)
                return
            self._end_commit(committer.write(commit))
            self._flush()

    def _take_finished(self) -> None:
        if self._engine.committing and not self._committer.finished.empty():
            self._end_commit(self._committer.finished.get())

    def _end_commit(self, full: DiskFull | None) -> None:
        now_ms = self._clock()
        self._sync_mark_at_ms = now_ms + IDLE_MS
        if full is None:
            self._engine.finish_commit(now_ms)
        else:
            self._engine.refuse_commit(now_ms, full)

    def _last_commit(self) -> DiskFull | None:
        """The commit that is under way at the end; a storage server that is away then is not waited for."""
        try:
            return self._committer.finished.get(timeout=STOP_SECONDS_MAX if self._engine.journal.remote else None)
        except queue.Empty as error:
            raise Unavailable(
                "The storage server does not answer, so what was not acknowledged is not stored: restart it."
            ) from error

    def _flush(self) -> None:
        engine = self._engine
        if engine.outgoing:
            outgoing, engine.outgoing = engine.outgoing, []
            self._router.send_all(outgoing)

    def _exchange_engine(self) -> None:
        """Another engine goes on: what this one has taken in is written and answered first."""
        assert self._grow is not None, "only what can grow is ever outgrown"
        self._drain()
        self._engine.retire()
        self._flush()
        with self._committer.writing:
            self._engine = self._grow(self._engine, self._clock())
        self._flush()

    def _drain(self) -> None:
        engine = self._engine
        while engine.committing or engine.has_staged:
            if engine.committing:
                self._end_commit(self._last_commit())
            else:
                self._start_commit()
        self._flush()

    def _finish(self) -> None:
        """Everything taken in is written and answered before the door closes."""
        self._engine.conclude(self._clock())
        self._drain()
        self._committer.stop()
        self._router.close(LINGER_MS)


def stop_on_signals(loop: Loop, wake_descriptor: int) -> None:
    """SIGTERM and SIGINT end a loop that runs in the main thread in good order."""
    if threading.current_thread() is not threading.main_thread():
        return

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        loop.stop()

    signal.signal(signal.SIGTERM, on_signal)
    signal.signal(signal.SIGINT, on_signal)
    signal.set_wakeup_fd(wake_descriptor, warn_on_full_buffer=False)
