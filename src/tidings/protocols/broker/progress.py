"""Which offsets of a topic a group has dealt with: a low-water mark and the islands above it.

Members of a group finish in any order, so one cursor is not enough. Everything below `low` is done, and so
is what lies in the intervals above it; they are half-open, disjoint, do not touch each other and rise. In
good order there are none of them, or a few, however long the topic is.

Progress is journaled state: it changes only by `add`, and only forward.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

State = tuple[int, tuple[tuple[int, int], ...]]
"""Progress as plain tuples, for a snapshot: the mark and the intervals above it."""


class Progress:
    """A growing set of offsets, cheap where they come in order.

    >>> progress = Progress()
    >>> progress.add(0, 3), progress.add(5, 7), progress.add(2, 4)
    (3, 2, 1)
    >>> progress
    Progress(4, [(5, 7)])
    >>> progress.done(4), progress.done(5), list(progress.gaps(0, 9))
    (False, True, [(4, 5), (7, 9)])
    """

    __slots__ = ("_above", "_ends", "_starts", "low")

    def __init__(self, low: int = 0) -> None:
        self.low = low
        """Every offset below this one is done, and this one is not."""
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._above = 0

    def __repr__(self) -> str:
        return f"Progress({self.low}, {self.ranges})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Progress) and self.encode() == other.encode()

    __hash__ = None  # type: ignore[assignment]

    @property
    def ranges(self) -> list[tuple[int, int]]:
        """What is done above the mark, as half-open intervals that rise."""
        return list(zip(self._starts, self._ends, strict=True))

    @property
    def count(self) -> int:
        """How many offsets are done in all, everything below the mark included."""
        return self.low + self._above

    @property
    def high(self) -> int:
        """No offset from here on is done."""
        return self._ends[-1] if self._ends else self.low

    def add(self, start: int, end: int) -> int:
        """Marks `start` up to but not including `end` as done and says how many of them were not yet."""
        low = self.low
        if start < low:
            start = low
        if end <= start:
            return 0
        starts, ends = self._starts, self._ends
        if not starts or start > ends[-1]:
            if start == low:
                self.low = end
            else:
                starts.append(start)
                ends.append(end)
                self._above += end - start
            return end - start
        # The intervals that this one overlaps or touches become one with it.
        first = bisect_left(ends, start)
        last = bisect_right(starts, end, first)
        known = 0
        if first < last:
            known = sum(ends[first:last]) - sum(starts[first:last])
            merged_start, merged_end = min(start, starts[first]), max(end, ends[last - 1])
        else:
            merged_start, merged_end = start, end
        size = merged_end - merged_start
        if merged_start == low:  # Then `first` is 0: the islands that touch the mark are below it now.
            del starts[:last], ends[:last]
            self.low = merged_end
            self._above -= known
        else:
            starts[first:last] = [merged_start]
            ends[first:last] = [merged_end]
            self._above += size - known
        return size - known

    def add_all(self, ranges: Iterable[tuple[int, int]]) -> int:
        """Adds several intervals and says how many offsets were new."""
        return sum([self.add(start, end) for start, end in ranges])

    def done(self, offset: int) -> bool:
        """Whether the group has dealt with this offset."""
        if offset < self.low:
            return True
        index = bisect_right(self._starts, offset) - 1
        return index >= 0 and offset < self._ends[index]

    def gaps(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """The intervals between `start` and `end` that are not done, rising."""
        position = max(start, self.low)
        starts, ends = self._starts, self._ends
        index = bisect_right(ends, position)
        while position < end:
            if index == len(starts) or starts[index] >= end:
                yield position, end
                return
            if starts[index] > position:
                yield position, starts[index]
            position = ends[index]
            index += 1

    def encode(self) -> State:
        """As plain tuples, for a snapshot."""
        return self.low, tuple(zip(self._starts, self._ends, strict=True))

    @classmethod
    def decode(cls, state: State) -> Progress:
        """From what `encode` gave."""
        low, ranges = state
        progress = cls(low)
        for start, end in ranges:
            assert start > progress.high and end > start, "the intervals of a progress rise and do not touch"
            progress.add(start, end)
        return progress


def compress(offsets: list[int]) -> list[tuple[int, int]]:
    """Offsets, in any order and perhaps repeated, as half-open intervals that rise.

    >>> compress([4, 1, 2, 3, 9, 3])
    [(1, 5), (9, 10)]
    """
    if not offsets:
        return []
    offsets = sorted(offsets)
    ranges: list[tuple[int, int]] = []
    start = offsets[0]
    end = start + 1
    for offset in offsets:
        if offset > end:
            ranges.append((start, end))
            start = offset
        elif offset < end:
            continue
        end = offset + 1
    ranges.append((start, end))
    return ranges
