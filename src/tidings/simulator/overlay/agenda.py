"""What is planned, in the order of its time and, at the same time, in the order in which it was planned.

One heap for everything would be simple, but with a hundred thousand entries each look into it misses the processor's
cache. So entries wait unsorted in slots of about a millisecond, and only the slot whose time has come is made a heap.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Any

SLOT_BITS = 10
"""A slot is 2 to the power of this many microseconds."""

Entry = tuple[int, int, int, Any, Any, Any]
"""Time in microseconds, number, and what the world makes of the rest. Numbers differ, so the rest is never compared."""


class Agenda:
    """Entries by their times.

    >>> agenda = Agenda()
    >>> agenda.add((5_000, 1, 0, "b", None, None))
    >>> agenda.add((70, 2, 0, "a", None, None))
    >>> heap = agenda.next_heap(until_us=1_000)
    >>> heap[0][3], agenda.next_heap(until_us=1_000) is heap
    ('a', True)
    """

    __slots__ = ("_heap", "_order", "_slot", "_slots")

    def __init__(self) -> None:
        self._slots: dict[int, list[Entry]] = {}
        self._order: list[int] = []
        """A heap of the slots that have entries."""
        self._slot = -1
        """The slot that is open: its entries are in the heap."""
        self._heap: list[Entry] = []

    def add(self, entry: Entry) -> None:
        """Plans something that is not earlier than what was last taken."""
        slot = entry[0] >> SLOT_BITS
        if slot <= self._slot:
            heappush(self._heap, entry)
            return
        entries = self._slots.get(slot)
        if entries is not None:
            entries.append(entry)
        else:
            self._slots[slot] = [entry]
            heappush(self._order, slot)

    def next_heap(self, until_us: int) -> list[Entry]:
        """The heap with the next entries, for the caller to pop from; empty if none is due until then.

        What is added for the same slot meanwhile appears in it.
        """
        if not self._heap and self._order and self._order[0] <= until_us >> SLOT_BITS:
            self._slot = heappop(self._order)
            self._heap = self._slots.pop(self._slot)
            heapify(self._heap)
        return self._heap

    def entries(self) -> list[Entry]:
        """Everything that is planned, in its order."""
        return sorted([*self._heap, *(entry for entries in self._slots.values() for entry in entries)], key=_time)


def _time(entry: Entry) -> tuple[int, int]:
    return entry[0], entry[1]
