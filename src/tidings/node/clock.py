"""The clock of a process that runs for long, and one for tests."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable

from tidings.errors import InvalidRequest


class Clock:
    """Milliseconds since 1970 that never go back and never stand still, whatever is done to the machine's clock."""

    def __init__(self) -> None:
        self._began_ns = time.time_ns() - time.monotonic_ns()

    def __call__(self) -> int:
        return (self._began_ns + time.monotonic_ns()) // 1_000_000


class ManualClock:
    """Milliseconds since 1970 that pass only when a test says so.

    A broker that has it does at once what is due after `advance`: delays, leases, ages. It governs nothing else: how
    long a client waits for an answer or a message is real time.

    >>> clock = ManualClock()
    >>> before = clock()
    >>> clock.advance(2.5)
    >>> clock() - before
    2500
    """

    def __init__(self, start_ms: int | None = None) -> None:
        self._now_ms = time.time_ns() // 1_000_000 if start_ms is None else start_ms
        self._watchers: list[weakref.WeakMethod[Callable[[], None]]] = []

    def __call__(self) -> int:
        return self._now_ms

    def advance(self, seconds: float) -> None:
        """Lets so many seconds pass; returns when all brokers in this process have done what is due then."""
        if not isinstance(seconds, (int, float)) or not seconds >= 0:
            raise InvalidRequest(f"A clock advances by 0 or more seconds, and this is {seconds!r}.")
        self._now_ms += round(seconds * 1000)
        for watcher in list(self._watchers):
            notice = watcher()
            if notice is None:
                self._watchers.remove(watcher)
            else:
                notice()

    def watch(self, notice: Callable[[], None]) -> None:
        """Calls a method back after every advance, for as long as its object is there."""
        self._watchers.append(weakref.WeakMethod(notice))
