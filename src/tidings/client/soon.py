"""Puts that nobody waits for: sent while the program does other things, or nothing, and never dropped without a word.

Calls on the bus take along what was put with `put_soon`. When none has come for a moment and something is left, a
thread waits for it as a call would, and so sends it, sends it again and takes in the answers; it steps back when the
program calls again. It ends when nothing has been left for a while.

What could not be stored is said by the put's own `result()`, or else by the next `flush`, by `close` and the end of a
`with` block, or at the end of the program: that waits for what is left, as a call would, and writes one sentence to
standard error if some of it was not stored. The exit code stays what the program made it. A process that is killed, or
ends by `os._exit`, says nothing: what it has no receipt for may not be stored.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, Generic, TypeVar

from tidings.client import operations
from tidings.client.driver import Driver
from tidings.client.operations import Core, Operation, Until
from tidings.client.puts import Record
from tidings.client.rows import Value
from tidings.errors import LimitReached, TidingsError

T = TypeVar("T")

GAP_SECONDS = 0.005
"""The program idles when no call has begun for so long."""
GAP_SECONDS_MAX = 0.08
"""A program that keeps calling is looked at ever less often, down to this: each look takes the interpreter from it."""
GAPS_MAX = 50
"""The thread ends when nothing was left in so many gaps; to start one for every put would cost more."""
FAILED_MAX = 10_000
"""Failed puts that are kept for anyone who asks; then no more are taken."""


class Soon(Generic[T]):
    """A put that is under way: `done`, and `result()` once it is wanted."""

    __slots__ = ("_core", "_record", "_single", "seen")

    def __init__(self, core: Core, record: Record, single: bool) -> None:
        self._core = core
        self._record = record
        self._single = single
        self.seen = False
        """Whether somebody has asked for the result."""

    @property
    def done(self) -> bool:
        """Whether the result is there."""
        return self._record.future.done

    @property
    def failed(self) -> bool:
        """Whether it has ended in an error."""
        return self._record.future.error is not None

    def result(self) -> T:
        """Waits for the receipt, or raises what went wrong."""
        try:
            found = self._core.run(operations.receipts(self._core, self._record))
        except TidingsError:
            self.seen = True
            raise
        self.seen = True
        return found[0] if self._single else found  # type: ignore[no-any-return]


class Soons:
    """Everything that a bus has put with `put_soon` and that is not over. Its state is touched under the bus's lock."""

    def __init__(self, driver: Driver, core: Core) -> None:
        self._driver = driver
        self._core = core
        self._waiting: deque[Soon[Any]] = deque()
        self._failed: list[Soon[Any]] = []
        """Over, but for an error that nobody has asked for."""
        self._thread: threading.Thread | None = None
        self._stopped = threading.Event()

    def put(
        self,
        topic: str | Iterable[str],
        value: Value,
        key: Value | None,
        headers: Mapping[str, Value] | None,
        id: str | None,
    ) -> Operation[Soon[Any]]:
        """Hands over one message, and sees to it that it is sent."""
        self._drop_over()
        if len(self._failed) >= FAILED_MAX:
            raise LimitReached(
                f"{FAILED_MAX} messages that were put with put_soon are not stored, and nobody has asked why: "
                "call flush, or ask each for its result."
            )
        core = self._core
        outbox = core.session.main.outbox
        if not outbox.has_room:
            yield Until(lambda: outbox.has_room)
        record = operations.give(core, operations.make_record(core, topic, value, key, headers, id))
        soon: Soon[Any] = Soon(core, record, isinstance(topic, str))
        self._waiting.append(soon)
        if self._thread is None:
            _unfinished[self] = None
            self._thread = threading.Thread(target=self._tend, name="tidings-soon", daemon=True)
            try:
                self._thread.start()
            except RuntimeError:  # The system has no thread for us: calls and the end of the program send it.
                self._thread = None
        return soon

    def flush(self) -> None:
        """Waits for everything; raises the first error that nobody has seen."""
        errors = self._wait_for(self._driver.perform(self._left()))
        if len(errors) > 1:
            errors[0].add_note(f"So ended {len(errors)} of the messages that were put with put_soon.")
        if errors:
            raise errors[0]

    def stop(self) -> None:
        """Ends the thread; the bus is about to be closed."""
        self._stopped.set()
        thread = self._thread
        if thread is not None and thread.is_alive() and thread is not threading.current_thread():
            self._driver.wake()
            thread.join()
        _unfinished.pop(self, None)

    def _left(self) -> Operation[list[Soon[Any]]]:
        """Everything whose end nobody has seen."""
        yield from ()  # Nothing to wait for; but every operation is a generator.
        self._drop_over()
        return [soon for soon in (*self._failed, *self._waiting) if not soon.seen]

    def _wait_for(self, left: list[Soon[Any]]) -> list[TidingsError]:
        errors: list[TidingsError] = []
        for soon in left:
            try:
                soon.result()
            except TidingsError as error:
                errors.append(error)
        return errors

    def _drop_over(self) -> None:
        """Forgets those at the head that are over; one whose error nobody has seen is kept aside."""
        waiting, failed = self._waiting, self._failed
        while waiting and waiting[0].done:
            soon = waiting.popleft()
            if soon.failed and not soon.seen:
                failed.append(soon)
        if failed and failed[0].seen:
            self._failed = [soon for soon in failed if not soon.seen]

    # The thread.

    def _tend(self) -> None:
        """Sends what is left whenever the program idles."""
        driver, gaps, gap = self._driver, 0, GAP_SECONDS
        try:
            while not self._stopped.is_set():
                calls = driver.calls
                self._stopped.wait(gap)
                if driver.calls != calls or driver.busy:
                    gaps, gap = 0, min(2 * gap, GAP_SECONDS_MAX)
                    continue
                gap = GAP_SECONDS
                if self._waiting or gaps == GAPS_MAX:
                    try:
                        if driver.perform(self._send_rest(gaps == GAPS_MAX)):
                            return
                    except TidingsError:
                        if driver.closed or driver.broken_off:
                            return
                        # The broker in this process has failed, say: it is tried again as by a call, and then given up.
                    gaps = 0
                else:
                    gaps += 1
        finally:
            if self._thread is threading.current_thread():
                self._thread = None

    def _send_rest(self, last: bool) -> Operation[bool]:
        """Waits until nothing is left or the program calls again; True if the thread may end."""
        driver, outbox = self._driver, self._core.session.main.outbox
        calls = driver.calls
        yield Until(lambda: outbox.idle or driver.calls != calls or self._stopped.is_set())
        self._drop_over()
        if not last or self._waiting:
            return False
        self._thread = None
        if not self._failed:
            _unfinished.pop(self, None)
        return True

    # The end of the program.

    def finish(self) -> None:
        """Waits for what is left, and says what was not stored: nobody is there any more to be told otherwise."""
        if self._driver.closed:
            return
        # A bus that was broken off says so, for each that is left.
        left = [soon for soon in (*self._failed, *self._waiting) if not soon.seen]
        errors: list[TidingsError] = []
        try:
            errors = self._wait_for(left)
        finally:
            lost = sum(soon.failed or not soon.done for soon in left)
            if lost:
                reason = errors[0] if errors else "the wait for the answers was broken off."
                what = "message that was" if lost == 1 else "messages that were"
                print(f"tidings: {lost} {what} put with put_soon may not be stored: {reason}", file=sys.stderr)
            self.stop()


_unfinished: dict[Soons, None] = {}
"""Buses with something left. Held here, so that what was put is sent even if the bus itself has gone out of sight."""


def _finish_all() -> None:
    for soons in list(_unfinished):
        soons.finish()


atexit.register(_finish_all)
if hasattr(os, "register_at_fork"):  # Windows has no forks.
    os.register_at_fork(after_in_child=_unfinished.clear)
