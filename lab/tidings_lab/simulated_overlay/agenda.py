"""What is planned, in the order of its time and, at the same time, in the order in which it was planned.

One heap for everything would be simple, but with a hundred thousand entries each look into it misses the processor's
cache. So an agenda has a page for every millisecond: entries wait there unsorted, and a page is sorted when its
time has come.
"""

from __future__ import annotations

from bisect import insort_left
from heapq import heappop, heappush
from operator import itemgetter
from typing import Any

Entry = tuple[int, int, Any, Any, Any]
"""Time in microseconds, and what the world makes of the rest, which is never compared."""


class OpenPage(list[Entry]):
    """The page that is being worked off, the next entry last: what is added goes to its place."""

    __slots__ = ()

    def __init__(self, entries: list[Entry]) -> None:
        entries.sort(key=itemgetter(0))  # Stable: what was planned first stays first.
        super().__init__(reversed(entries))

    def append(self, entry: Entry, /) -> None:
        # Rare: nearly everything takes longer than a millisecond. It was planned after all of its time: left of them.
        insort_left(self, entry, key=_backwards)


def _backwards(entry: Entry) -> int:
    return -entry[0]


class Agenda(dict[int, list[Entry]]):
    """Pages by their milliseconds; a page appears when it is first asked for.

    Entries are put straight into the pages, for all messages go this way, and a method would cost each of them a call.

    >>> agenda = Agenda()
    >>> agenda[5].append((5_000, 0, "c", None, None))
    >>> agenda[0].append((70, 0, "a", None, None))
    >>> agenda[0].append((70, 0, "b", None, None))
    >>> [entry[2] for entry in agenda.open(until_us=1_000)]
    ['b', 'a']
    """

    __slots__ = ("_open", "_open_ms", "_order")

    def __init__(self) -> None:
        self._order: list[int] = []
        """A heap of the pages that wait."""
        self._open: list[Entry] = []
        self._open_ms = -1

    def __missing__(self, ms: int) -> list[Entry]:
        page = self[ms] = []
        heappush(self._order, ms)
        return page

    def open(self, until_us: int) -> list[Entry]:
        """The entries of the next page, the next one last, for the caller to pop; empty if none is due until then.

        What is added for the same millisecond meanwhile appears in the list.
        """
        if not self._open and self._order and self._order[0] * 1000 <= until_us:
            self.pop(self._open_ms, None)
            self._open_ms = heappop(self._order)
            self._open = self[self._open_ms] = OpenPage(self[self._open_ms])
        return self._open if self._open and self._open[-1][0] <= until_us else []

    def put_back(self, entry: Entry) -> None:
        """The entry that was popped last is not due yet."""
        self._open.insert(len(self._open), entry)

    def entries(self) -> list[Entry]:
        """Everything that is planned, in its order."""
        waiting = [entry for ms in sorted(self._order) for entry in sorted(self[ms], key=itemgetter(0))]
        return [*reversed(self._open), *waiting]
