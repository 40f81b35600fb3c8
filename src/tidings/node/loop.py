"""The loop of a broker process: one thread owns all state, one thread writes the journal.

A plain poll loop. It takes the requests that are ready, lets the engine stage what must be durable, and
hands the commit to the writing thread; while that waits for the disk (without the GIL) the loop reads the
next requests. A lone request is written in the loop itself: two thread switches would cost it more than
they save.
"""

from __future__ import annotations

import gc
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from tidings.journal.disk import Disk, DiskFull, RealDisk
from tidings.journal.journal import Commit, Journal
from tidings.node.engine import Engine
from tidings.settings import BrokerSettings, JournalSettings, NodeSettings
from tidings.transport.router import Router

TICK_MS = 100
"""How often the engine looks at the time: a lost lease is noticed this late at most."""
LINGER_MS = 1_000
GARBAGE_MIN = 20_000
"""The collector of cycles, of which a broker makes few, runs this seldom: it walks through every batch in memory."""
EXIT_STORAGE_FAILED = 74
"""The exit code after a write or sync that failed: EX_IOERR of sysexits.h."""


class Clock:
    """Milliseconds since 1970 that never go back and never stand still, whatever is done to the machine's clock."""

    def __init__(self) -> None:
        self._began_ns = time.time_ns() - time.monotonic_ns()

    def __call__(self) -> int:
        return (self._began_ns + time.monotonic_ns()) // 1_000_000


class Committer:
    """The thread that writes commits. It ends the process when the disk fails: there is no safe way on."""

    def __init__(self, journal: Journal, wake: Callable[[], None]) -> None:
        self._journal = journal
        self._wake = wake
        self._work: queue.SimpleQueue[Commit | None] = queue.SimpleQueue()
        self.finished: queue.SimpleQueue[DiskFull | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="tidings-commit", daemon=True)
        self._thread.start()

    def submit(self, commit: Commit) -> None:
        self._work.put(commit)

    def write(self, commit: Commit) -> DiskFull | None:
        """Writes a commit; a full disk is returned, any other failure ends the process."""
        try:
            self._journal.write(commit)
        except DiskFull as error:
            return error
        except BaseException as error:  # noqa: BLE001 - whatever it is, no answer may follow it
            sys.stderr.write(f"tidings: the journal could not be written ({error}); stopping without an answer.\n")
            sys.stderr.flush()
            os._exit(EXIT_STORAGE_FAILED)
        return None

    def _run(self) -> None:
        while (commit := self._work.get()) is not None:
            self.finished.put(self.write(commit))
            self._wake()

    def stop(self) -> None:
        self._work.put(None)
        self._thread.join()


class Loop:
    """A broker at its door."""

    def __init__(self, engine: Engine, router: Router, settings: NodeSettings, clock: Callable[[], int]) -> None:
        self._engine = engine
        self._router = router
        self._settings = settings
        self._clock = clock
        self._committer = Committer(engine.journal, router.wake)
        self._stop = False

    def stop(self) -> None:
        """Asks the loop to end in good order; may be called from any thread or signal handler."""
        self._stop = True
        self._router.wake()

    def run(self) -> None:
        """Serves until somebody stops it."""
        engine, router = self._engine, self._router
        tick_at_ms = self._clock()
        while not (self._stop or engine.stopping):
            now_ms = self._clock()
            if now_ms >= tick_at_ms:
                engine.tick(now_ms)
                tick_at_ms = now_ms + TICK_MS
            reading = engine.staged_bytes < self._settings.staged_bytes_max
            self._start_commit()
            self._flush()
            if router.wait(max(0, tick_at_ms - self._clock()), reading):
                now_ms = self._clock()
                for peer, frames, user in router.receive(self._settings.drained_requests_max):
                    engine.receive(now_ms, peer, frames, user)
            self._take_finished()
        self._finish()

    def _start_commit(self) -> None:
        engine = self._engine
        if engine.committing or not engine.has_staged:
            return
        alone = engine.staged_count == 1
        commit = engine.begin_commit(self._clock())
        if alone:
            self._end_commit(self._committer.write(commit))
        else:
            self._committer.submit(commit)

    def _take_finished(self) -> None:
        if self._engine.committing and not self._committer.finished.empty():
            self._end_commit(self._committer.finished.get())

    def _end_commit(self, full: DiskFull | None) -> None:
        if full is None:
            self._engine.finish_commit(self._clock())
        else:
            self._engine.refuse_commit(self._clock(), full)

    def _flush(self) -> None:
        engine = self._engine
        if engine.outgoing:
            outgoing, engine.outgoing = engine.outgoing, []
            self._router.send_all(outgoing)

    def _finish(self) -> None:
        """Everything taken in is written and answered before the door closes."""
        engine = self._engine
        while engine.committing or engine.has_staged:
            if engine.committing:
                self._end_commit(self._committer.finished.get())
            else:
                self._start_commit()
        self._flush()
        self._committer.stop()
        self._router.close(LINGER_MS)


def serve(
    data: Path,
    broker: BrokerSettings,
    journal: JournalSettings,
    node: NodeSettings,
    on_ready: Callable[[str], None],
    disk: Disk | None = None,
) -> None:
    """Runs a broker on a folder until SIGTERM, SIGINT or an authorised shutdown. `on_ready` gets the address."""
    disk = disk if disk is not None else RealDisk(data)
    try:
        engine = Engine(broker, Journal.open(disk, journal))
        engine.recover()
        router = Router(node, broker.batch_bytes_max)
        loop = Loop(engine, router, node, Clock())
        _stop_on_signals(loop, router.wake_descriptor)
        gc.freeze()
        gc.set_threshold(GARBAGE_MIN)
        on_ready(router.address)
        loop.run()
    finally:
        disk.close()


def _stop_on_signals(loop: Loop, wake_descriptor: int) -> None:
    if threading.current_thread() is not threading.main_thread():
        return

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        loop.stop()

    signal.signal(signal.SIGTERM, on_signal)
    signal.signal(signal.SIGINT, on_signal)
    signal.set_wakeup_fd(wake_descriptor, warn_on_full_buffer=False)
