"""The timers of a stack, on a clock that somebody else reads."""

from __future__ import annotations

import heapq

from tidings.protocols.stack import Timer

STALE_MIN = 1_000
"""Entries of timers that were cancelled or set again, before they are swept out."""


class Timers:
    """Timers by their due times. Equal timers are one timer.

    >>> class Tick(Timer, frozen=True):
    ...     pass
    >>> timers = Timers()
    >>> timers.set(Tick(), 100)
    >>> timers.due(99), timers.next_ms, timers.due(100), timers.next_ms
    (None, 100, Tick(), None)
    """

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Timer]] = []
        self._current: dict[Timer, int] = {}
        """The number of the entry that counts for each timer."""
        self._number = 0

    def set(self, timer: Timer, due_ms: int) -> None:
        self._number += 1
        self._current[timer] = self._number
        heapq.heappush(self._heap, (due_ms, self._number, timer))
        if len(self._heap) > STALE_MIN + 2 * len(self._current):
            self._heap = [entry for entry in self._heap if self._current.get(entry[2]) == entry[1]]
            heapq.heapify(self._heap)

    def cancel(self, timer: Timer) -> None:
        self._current.pop(timer, None)

    @property
    def next_ms(self) -> int | None:
        """When the next timer is due."""
        heap = self._heap
        while heap and self._current.get(heap[0][2]) != heap[0][1]:
            heapq.heappop(heap)
        return heap[0][0] if heap else None

    def due(self, now_ms: int) -> Timer | None:
        """The next timer that is due; it is no longer set."""
        next_ms = self.next_ms
        if next_ms is None or next_ms > now_ms:
            return None
        timer = heapq.heappop(self._heap)[2]
        del self._current[timer]
        return timer
