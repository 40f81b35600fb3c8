"""Puts that nobody waits for: sent while the program does other things, or nothing, and never dropped without a word.

Calls on the bus take along what was put with `put_soon`. When none has come for a moment and something is left, a
thread waits for it as a call would, and so sends it, sends it again and takes in the answers; it steps back when the
program calls again. It ends when nothing has been left for a while. The awaiting bus needs no thread: its event loop
does all of that.

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
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, Protocol, TypeVar

from tidings.client import operations
from tidings.client.driver import Driver
from tidings.client.operations import Core, Operation, Until
from tidings.client.puts import Record
from tidings.client.request import Identity
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


class UnderWay(Generic[T]):
    """A put that is under way, as both buses know it."""

    __slots__ = ("_core", "_identity", "_record", "_single", "seen")

    def __init__(self, core: Core, record: Record, single: bool, identity: Identity | None) -> None:
        self._core = core
        self._record = record
        self._single = single
        self._identity = identity
        self.seen = False
        """Whether somebody has asked for the result."""

    @property
    def done(self) -> bool:
        """Whether the result is there."""
        return self._record.future.done

    @property
    def _is_known(self) -> bool:
        """Whether the result is there, and this process may have it: the child of a fork may not."""
        return self._record.future.done and not self._core.inherited

    @property
    def failed(self) -> bool:
        """Whether it has ended in an error."""
        return self._record.future.error is not None

    def _is_of(self, identity: Identity | None) -> bool:
        """Whether it was put under this name."""
        return self._identity is identity

    def _known(self) -> T:
        """The result that is there, also of a bus that is closed by now."""
        try:
            next(self._end())
        except StopIteration as stop:
            result: T = stop.value
            return result
        raise AssertionError("The result is asked for before it is there.")

    def _end(self) -> Operation[T]:
        """Waits for the receipt, or raises what went wrong."""
        try:
            found: Any = yield from operations.receipts(self._core, self._record, self._identity)
        except TidingsError:
            self.seen = True
            raise
        self.seen = True
        result: T = found[0] if self._single else found
        return result


class Soon(UnderWay[T]):
    """What `put_soon` returns: `done`, and `result()` once it is wanted."""

    __slots__ = ()

    def result(self) -> T:
        """Waits for the receipt, or raises what went wrong."""
        found: T = self._known() if self._is_known else self._core.run(self._end())
        return found


class AsyncSoon(UnderWay[T]):
    """What `put_soon` of the awaiting bus returns: `done`, and `await soon.result()` once it is wanted."""

    __slots__ = ()

    async def result(self) -> T:
        """Waits for the receipt, or raises what went wrong."""
        found: T = self._known() if self._is_known else await self._core.run(self._end())
        return found


S = TypeVar("S", bound=UnderWay[Any])


class Soons(Generic[S]):
    """Everything that a bus has put with `put_soon` and that is not over."""

    def __init__(self, core: Core, kind: Callable[[Core, Record, bool, Identity | None], S]) -> None:
        self._core = core
        self._kind = kind
        self.waiting: deque[S] = deque()
        self.failed: list[S] = []
        """Over, but for an error that nobody has asked for."""

    def put(
        self,
        identity: Identity | None,
        topic: str | Iterable[str],
        value: Value,
        key: Value | None,
        headers: Mapping[str, Value] | None,
        id: str | None,
        sequence: int | None = None,
    ) -> Operation[S]:
        """Hands over one message; waits only for room."""
        self.drop_over()
        if len(self.failed) >= FAILED_MAX:
            raise LimitReached(
                f"{FAILED_MAX} messages of put_soon were not stored, and nobody has read their errors: "
                "call flush, or read the result of each."
            )
        core = self._core
        outbox = core.session.main.outbox if identity is None else identity.outbox
        while not outbox.has_room:  # Of several that waited, one has it.
            yield Until(lambda: outbox.has_room)
        record = operations.make_record(core, topic, value, key, headers, id, sequence)
        soon = self._kind(core, operations.give(core, record, identity), isinstance(topic, str), identity)
        self.waiting.append(soon)
        return soon

    def left(self, *identities: Identity | None) -> Operation[list[S]]:
        """Everything whose end nobody has seen; of these names if some are given."""
        yield from ()  # Nothing to wait for; but every operation is a generator.
        self.drop_over()
        left = [soon for soon in (*self.failed, *self.waiting) if not soon.seen]
        return [soon for soon in left if any(map(soon._is_of, identities))] if identities else left

    def drop_over(self) -> None:
        """Forgets those at the head that are over; one whose error nobody has seen is kept aside."""
        waiting, failed = self.waiting, self.failed
        while waiting and waiting[0].done:
            soon = waiting.popleft()
            if soon.failed and not soon.seen:
                failed.append(soon)
        if failed and failed[0].seen:
            self.failed = [soon for soon in failed if not soon.seen]

    def is_over(self) -> bool:
        """Whether nothing is left."""
        self.drop_over()
        return not self.waiting


def raise_first(errors: list[TidingsError]) -> None:
    """Raises the first of several errors that nobody has seen, if there is any."""
    if len(errors) > 1:
        errors[0].add_note(f"{len(errors)} messages of put_soon ended like this.")
    if errors:
        raise errors[0]


def say_or_note(unsent: TidingsError, error: BaseException | None) -> None:
    """At the end of a block: raises what became of its puts, or notes it on the error that has ended the block."""
    if error is None:
        raise unsent
    error.add_note(f"Nor could it be closed in good order: {unsent}")


def _ends(perform: Callable[[Operation[Any]], Any], left: Iterable[UnderWay[Any]]) -> list[TidingsError]:
    """Waits for all of them; the errors that some ended in."""
    errors: list[TidingsError] = []
    for soon in left:
        try:
            perform(soon._end())
        except TidingsError as error:
            errors.append(error)
    return errors


def say_what_is_lost(perform: Callable[[Operation[Any]], Any], soons: Soons[Any]) -> None:
    """The program ends: waits for what is left, and says what was not stored."""
    # A bus that was broken off says so, for each that is left.
    left = [soon for soon in (*soons.failed, *soons.waiting) if not soon.seen]
    errors: list[TidingsError] = []
    try:
        errors = _ends(perform, left)
    finally:
        lost = sum(soon.failed or not soon.done for soon in left)
        if lost:
            reason = errors[0] if errors else "the wait for the answers was broken off."
            what = "message that was" if lost == 1 else "messages that were"
            print(f"tidings: {lost} {what} put with put_soon may not be stored: {reason}", file=sys.stderr)


class Finishes(Protocol):
    """What has puts left for which nobody waits."""

    def finish(self) -> None:
        """The program ends."""


class Background:
    """What sends the puts of a blocking bus. Its state is touched under the bus's lock."""

    def __init__(self, driver: Driver, core: Core) -> None:
        self._driver = driver
        self.perform = driver.perform
        self.soons: Soons[Soon[Any]] = Soons(core, Soon)
        self.tending: threading.Thread | None = None
        """The thread that sends."""
        self._stopped = threading.Event()

    def begin(self) -> None:
        """Something has been put: sees to it that it is sent. Not needed while `tending`."""
        self._driver.perform(self._begin())

    def _begin(self) -> Operation[None]:
        yield from ()  # Nothing to wait for; but every operation is a generator.
        if self.tending is None:
            unfinished[self] = None
            self.tending = threading.Thread(target=self._tend, name="tidings-soon", daemon=True)
            try:
                self.tending.start()
            except RuntimeError:  # The system has no thread for us: calls and the end of the program send it.
                self.tending = None

    def flush(self, *identities: Identity | None) -> None:
        """Waits for everything, or for what these names have put; raises the first error that nobody has seen."""
        raise_first(_ends(self._driver.perform, self._driver.perform(self.soons.left(*identities))))

    def stop(self) -> None:
        """Ends the thread; the bus is about to be closed."""
        self._stopped.set()
        thread = self.tending
        if thread is not None and thread.is_alive() and thread is not threading.current_thread():
            self._driver.wake()
            thread.join()
        unfinished.pop(self, None)

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
                if self.soons.waiting or gaps == GAPS_MAX:
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
            if self.tending is threading.current_thread():
                self.tending = None

    def _send_rest(self, last: bool) -> Operation[bool]:
        """Waits until nothing is left or the program calls again; True if the thread may end."""
        driver, soons = self._driver, self.soons
        calls = driver.calls
        yield Until(lambda: soons.is_over() or driver.calls != calls or self._stopped.is_set())
        soons.drop_over()
        if not last or soons.waiting:
            return False
        self.tending = None
        if not soons.failed:
            unfinished.pop(self, None)
        return True

    # The end of the program.

    def finish(self) -> None:
        """Waits for what is left, and says what was not stored: nobody is there any more to be told otherwise."""
        if self._driver.closed:
            return
        try:
            say_what_is_lost(self._driver.perform, self.soons)
        finally:
            self.stop()


unfinished: dict[Finishes, None] = {}
"""Buses with something left. Held here, so that what was put is sent even if the bus itself has gone out of sight."""


def _finish_all() -> None:
    for background in list(unfinished):
        background.finish()


atexit.register(_finish_all)
if hasattr(os, "register_at_fork"):  # Windows has no forks.
    os.register_at_fork(after_in_child=unfinished.clear)
