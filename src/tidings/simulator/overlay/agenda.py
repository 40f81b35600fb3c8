"""What is planned, in the order of its time and, at the same time, in the order in which it was planned.

One heap for everything would be simple, but with a hundred thousand entries each look into it misses the processor's
cache. So entries wait unsorted in slots of about a millisecond, and a slot is sorted when its time has come.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Any

SLOT_BITS = 10
"""A slot is 2 to the power of this many microseconds."""

Entry = tuple[int, int, int, Any, Any, Any]
"""Time in microseconds, number, and what the world makes of the rest. Numbers differ, so the rest is never compared."""


class Agenda:
    """Entries by their times.

    >>> agenda = Agenda()
    >>> agenda.add((5_000, 1, 0, "c", None, None))
    >>> agenda.add((70, 2, 0, "b", None, None))
    >>> agenda.add((70, 3, 0, "a", None, None))
    >>> [entry[3] for entry in agenda.open(until_us=1_000)]
    ['a', 'b']
    """

    __slots__ = ("_open", "_order", "_slot", "_slots")

    def __init__(self) -> None:
        self._slots: dict[int, list[Entry]] = {}
        self._order: list[int] = []
        """A heap of the slots that have entries."""
        self._slot = -1
        """The slot that is open."""
        self._open: list[Entry] = []

    def add(self, entry: Entry) -> None:
        """Plans something that is not earlier than what was last taken."""
        slot = entry[0] >> SLOT_BITS
        if slot <= self._slot:
            self._open.append(entry)
            self._open.sort(reverse=True)  # Rare: nearly everything takes longer than a slot.
            return
        entries = self._slots.get(slot)
        if entries is not None:
            entries.append(entry)
        else:
            self._slots[slot] = [entry]
            heappush(self._order, slot)

    def open(self, until_us: int) -> list[Entry]:
        """The entries of the next slot, the next one last, for the caller to pop; empty if there are none until then.

        What is added for the same slot meanwhile appears in the list.
        """
        if not self._open and self._order and self._order[0] <= until_us >> SLOT_BITS:
            self._slot = heappop(self._order)
            self._open = self._slots.pop(self._slot)
            self._open.sort(reverse=True)
        return self._open

    def entries(self) -> list[Entry]:
        """Everything that is planned, in its order."""
        return sorted([*self._open, *(entry for entries in self._slots.values() for entry in entries)])
