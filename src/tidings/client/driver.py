"""Runs operations on a link, blocking, for one thread or several.

Whichever thread waits first drives the link; the others wait for what it brings in, and wake it when they
have something to send. Nothing runs in the background here: between calls, only what was put with `put_soon` has a
thread of its own (see `soon`), which waits for it as any other thread would.

An exception may come from outside at any instruction: a KeyboardInterrupt, or what another signal handler raises. While
a call waits it does no harm. In the middle of its work it leaves half a change behind, and anyone who went on from
there might wait for ever. So the bus is unusable then, and every later call says so.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from tidings.client import forks
from tidings.client.link import Link
from tidings.client.operations import Operation, Until, Wait
from tidings.client.session import Session
from tidings.errors import InvalidRequest

T = TypeVar("T")

TAKEN_AT_ONCE_MAX = 64
"""Messages taken from the link in passing, when nobody waits for one."""
UNWOKEN_MS = 50
"""How long a link that cannot be woken is waited for at a stretch."""
LONGEST_MS = 60_000
OUTSIDE = (MemoryError, RecursionError)
"""Exceptions that may come at any instruction too, because of what the caller has used up."""


def _is_from_outside(error: BaseException) -> bool:
    return not isinstance(error, Exception) or isinstance(error, OUTSIDE)


class Driver:
    """The one place that touches the link and the clock."""

    def __init__(self, link: Link, session: Session, clock: Callable[[], int]) -> None:
        self.closed = False
        self.inherited = False
        """Whether this is a copy in the child of a fork."""
        self.broken_off = ""
        """What broke off a call in the middle of its work, if anything did."""
        self._at_rest = False
        """Whether the link is waited for, so that nothing is half done."""
        self.calls = 0
        """How many operations have begun."""
        self._link = link
        self._session = session
        self._clock = clock
        self._looked_ms = -1
        """When the link was last looked at in passing. What nobody waits for has it looked at once a millisecond:
        to look takes as long as to hand over a message."""
        self._make_locks()
        self._wake: Callable[[], None] | None = getattr(link, "wake", None)
        forks.own(self)

    def _make_locks(self) -> None:
        self._lock = threading.RLock()  # Taken directly where it can be: through its condition it takes twice as long.
        self._turn = threading.Condition(self._lock)
        self._driving = False
        self._others = 0

    def perform(self, operation: Operation[T], soon: bool = False) -> T:
        """Runs an operation to its end; `soon` says that what it leads to is not waited for."""
        with self._lock:
            if self.closed or self.broken_off:
                raise self._ended("The bus is closed: connect again.")
            self.calls += 1
            try:
                return self._run(operation, soon)
            except BaseException as error:
                self._note_interruption(error)
                raise

    def _run(self, operation: Operation[T], soon: bool) -> T:
        whole = True  # Or else a call that goes on with what is half done raises an error of its own.
        try:
            wait = next(operation)
            while True:
                wait = operation.send(self._wait(wait))
        except StopIteration as stop:
            result: T = stop.value
            return result
        except BaseException as error:
            whole = self._at_rest or not _is_from_outside(error)
            if not isinstance(error, Exception):
                operation.throw(error)  # It may have something to say about what it leaves behind.
            raise
        finally:
            operation.close()
            if whole and not self.closed:
                self._in_passing(soon)

    def _note_interruption(self, error: BaseException) -> None:
        if not _is_from_outside(error):
            return
        if not self._at_rest:
            self.broken_off = type(error).__name__
            self._turn.notify_all()
        self._at_rest = self._driving = False

    def apply_change(self, change: Callable[[], None]) -> None:
        """Makes a change that waits for nothing, and sends what it leads to."""
        if self.inherited or self.broken_off:
            return
        with self._lock:
            try:
                change()
                if not self.closed:
                    self._in_passing()
            except BaseException as error:
                self._note_interruption(error)
                raise

    def wake(self) -> None:
        """Makes anyone who waits look again. Takes no lock, so that a signal handler may call it."""
        if self._wake is not None:
            self._wake()

    def close(self) -> None:
        """Ends the link."""
        with self._lock:
            self.closed = True
            self._link.close()
            self._turn.notify_all()

    def abandon(self) -> None:
        """This is the child of a fork: nothing more is sent, received or waited for."""
        self.closed = self.inherited = True
        self._wake = None
        self._make_locks()  # Threads that had the old ones are not in this process.

    @property
    def busy(self) -> bool:
        """Whether a call is waiting for something."""
        return self._driving

    def _ended(self, text: str) -> InvalidRequest:
        if self.broken_off:
            text = (
                f"A call of this bus was broken off by {self.broken_off} in the middle of its work, and nobody knows "
                "what became of it: close the bus and connect again."
            )
        return InvalidRequest(forks.INHERITED if self.inherited else text)

    def _wait(self, wait: Wait) -> bool:
        """Drives the link until what is waited for has happened; False when the deadline came first."""
        until, deadline_ms = (wait, wait.deadline_ms) if isinstance(wait, Until) else (None, None)
        if self._session.outgoing and not (self._driving or self.closed):
            self._send()  # Also for a wait that is over already.
        while not (wait.done if until is None else until.ready()):  # type: ignore[union-attr]
            now_ms = self._clock()
            if deadline_ms is not None and now_ms >= deadline_ms:
                return False
            if self.closed or self.broken_off:
                raise self._ended("The bus was closed while this call waited: connect again.")
            if self._driving:
                self._stand_by(None if deadline_ms is None else deadline_ms - now_ms)
            else:
                self._drive(now_ms, deadline_ms)
        return True

    def _stand_by(self, left_ms: int | None) -> None:
        """Another thread drives: have it send what we want to be sent, and wait for what it brings."""
        if self._session.outgoing or self._session.reopen:
            self.wake()
        self._others += 1
        try:
            self._turn.wait(None if left_ms is None else left_ms / 1000)
        finally:
            self._others -= 1

    def _drive(self, now_ms: int, deadline_ms: int | None) -> None:
        """Sends, waits for one message or for time to pass, and takes it in."""
        session = self._session
        if session.outgoing or session.reopen:
            self._send()
        due_ms = session.next_due_ms()
        if due_ms is not None and due_ms <= now_ms:
            # What has come while nobody looked comes first: an answer that lies here is not late.
            self._take_in(TAKEN_AT_ONCE_MAX)
            session.tick(self._clock())
            self._send()
            return
        wait_ms = LONGEST_MS if self._wake is not None else UNWOKEN_MS
        if due_ms is not None and due_ms - now_ms < wait_ms:
            wait_ms = due_ms - now_ms
        if deadline_ms is not None and deadline_ms - now_ms < wait_ms:
            wait_ms = deadline_ms - now_ms
        lock = self._lock
        self._driving = self._at_rest = True
        try:
            lock.release()
            frames = self._link.receive(wait_ms)
        finally:
            lock.acquire()
            self._driving = False
            if self._others:
                self._turn.notify_all()
        self._at_rest = False
        if frames is not None:
            session.receive(self._clock(), frames)

    def _in_passing(self, soon: bool = False) -> None:
        """Sends what an operation left to be sent, and takes in what has come."""
        session = self._session
        if self._driving:
            if session.outgoing or session.reopen:
                self.wake()
            self._turn.notify_all()
            return
        # An answer to what goes out only now cannot be there yet.
        awaited = session.unanswered_count > len(session.outgoing)
        if session.outgoing or session.reopen:
            self._send()
        if awaited and not (soon and session.now_ms == self._looked_ms):
            self._looked_ms = session.now_ms
            self._take_in(TAKEN_AT_ONCE_MAX)
            due_ms = session.next_due_ms()
            now_ms = self._clock()
            if due_ms is not None and due_ms <= now_ms:
                session.tick(now_ms)
            self._send()
        if self._others:
            self._turn.notify_all()

    def _send(self) -> None:
        session, link = self._session, self._link
        if session.reopen:
            session.reopen = False
            link.reopen(session.route.at)
        if session.outgoing:
            outgoing, session.outgoing = session.outgoing, []
            for frames in outgoing:
                link.send(frames)

    def _take_in(self, messages_max: int) -> None:
        for _ in range(messages_max):
            frames = self._link.receive(0)
            if frames is None:
                return
            self._session.receive(self._clock(), frames)
