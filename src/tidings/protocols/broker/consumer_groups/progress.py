"""Which offsets of a topic a group has dealt with: a low-water mark and the ranges above it.

Members of a group finish in any order, so one cursor is not enough. Everything below `low` is done, and so
is what lies in the ranges above it. Close above the mark, where members are at work, ranges are many and short
lived, so there each offset has a byte that says whether it is done. Only what lies further away, because one
message has been stuck for very long, is kept as intervals: half-open, disjoint, not touching, rising.

Progress is journaled state: it changes only by `add` and `add_each`, and only forward.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence

State = tuple[int, tuple[tuple[int, int], ...]]
"""Progress as plain tuples, for a snapshot: the mark and the intervals above it."""

WINDOW_MAX = 262_144
"""So many offsets from the mark on have a byte each, at most."""

_RUN = re.compile(b"\1+")
_TRIM_MIN = 4_096


class Progress:
    """A growing set of offsets, cheap where they are close to each other.

    >>> progress = Progress()
    >>> progress.add(0, 3), progress.add(5, 7), progress.add(2, 4)
    (3, 2, 1)
    >>> progress
    Progress(4, [(5, 7)])
    >>> progress.done(4), progress.done(5), list(progress.gaps(0, 9))
    (False, True, [(4, 5), (7, 9)])
    >>> progress.add_each([4, 8, 10])
    >>> progress
    Progress(7, [(8, 9), (10, 11)])
    """

    __slots__ = ("_base", "_ends", "_starts", "_window", "_window_max", "low")

    def __init__(self, low: int = 0, window_max: int = WINDOW_MAX) -> None:
        self.low = low
        """Every offset below this one is done, and this one is not."""
        self._base = low
        self._window = bytearray()
        """Of each offset from `_base` on, which is not above the mark: 1 if it is done. The last one always is."""
        self._window_max = window_max
        self._starts: list[int] = []
        self._ends: list[int] = []
        """Intervals from the end of `_window` on."""

    def __repr__(self) -> str:
        return f"Progress({self.low}, {self.ranges})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Progress) and self.encode() == other.encode()

    __hash__ = None  # type: ignore[assignment]

    @property
    def ranges(self) -> list[tuple[int, int]]:
        """What is done above the mark, as half-open intervals that rise."""
        ranges: list[tuple[int, int]] = []
        for start, end in self._acked_ranges(self.low, self.high):
            if ranges and ranges[-1][1] == start:  # One that lies on both sides of where the bytes end.
                start = ranges.pop()[0]
            ranges.append((start, end))
        return ranges

    def _acked_ranges(self, start: int, end: int) -> list[tuple[int, int]]:
        """What is done between two offsets, from the mark on at the earliest; the last interval may end later."""
        base, starts, ends = self._base, self._starts, self._ends
        window = _RUN.finditer(self._window, start - base, max(0, end - base))
        found = [(base + run.start(), base + run.end()) for run in window]
        far = slice(bisect_right(ends, start), bisect_left(starts, end))
        return found + list(zip(starts[far], ends[far], strict=True))

    @property
    def count(self) -> int:
        """How many offsets are done in all, everything below the mark included."""
        return self.low + self._window.count(1, self.low - self._base) + sum(self._ends) - sum(self._starts)

    @property
    def high(self) -> int:
        """No offset from here on is done."""
        return self._ends[-1] if self._ends else self._base + len(self._window) if self._window else self.low

    def add(self, start: int, end: int) -> int:
        """Marks `start` up to but not including `end` as done and says how many of them were not yet."""
        start = max(start, self.low)
        if end <= start:
            return 0
        new = 0
        limit = self.low + self._window_max
        if start < limit:
            window_end = min(end, limit)
            self._reach(window_end)
            base, window, size = self._base, self._window, window_end - start
            new = size - window.count(1, start - base, window_end - base)
            window[start - base : window_end - base] = b"\1" * size
            start = window_end
        if start < end:
            new += self._add_far(start, end)
        self._rise()
        return new

    def add_each(self, offsets: Sequence[int]) -> None:
        """Marks single offsets as done; they rise."""
        if offsets and offsets[0] < self.low:
            offsets = offsets[bisect_left(offsets, self.low) :]
        if not offsets:
            return
        limit = self.low + self._window_max
        if offsets[-1] >= limit:
            cut = bisect_left(offsets, limit)
            for offset in offsets[cut:]:
                self.add(offset, offset + 1)
            offsets = offsets[:cut]
            if not offsets:
                return
        self._reach(offsets[-1] + 1)
        window, base = self._window, self._base
        for offset in offsets:
            window[offset - base] = 1
        self._rise()

    def _reach(self, end: int) -> None:
        """Gives every offset below `end` its byte, and intervals that begin there with it."""
        base, window = self._base, self._window
        if end <= base + len(window):
            return
        window.extend(bytes(end - base - len(window)))
        starts, ends = self._starts, self._ends
        while starts and starts[0] < end:
            inside = min(ends[0], end)
            window[starts[0] - base : inside - base] = b"\1" * (inside - starts[0])
            if inside == ends[0]:
                del starts[0], ends[0]
            else:
                starts[0] = inside

    def _rise(self) -> None:
        """Lifts the mark over what is done, and lets go of the bytes below it."""
        base, window = self._base, self._window
        at = self.low - base
        if at < len(window) and window[at]:
            at = window.find(0, at)
            self.low = base + (at if at >= 0 else len(window))
        if self.low == base + len(window):
            if self._starts and self._starts[0] == self.low:
                self.low = self._ends[0]
                del self._starts[0], self._ends[0]
            self._window, self._base = bytearray(), self.low
        elif self.low - base > max(_TRIM_MIN, len(window) // 2):
            del window[: self.low - base]
            self._base = self.low

    def _add_far(self, start: int, end: int) -> int:
        """The same as `add`, beyond what has bytes: intervals that this one overlaps or touches become one with it."""
        starts, ends = self._starts, self._ends
        first = bisect_left(ends, start)
        last = bisect_right(starts, end, first)
        known = 0
        if first < last:
            known = sum(ends[first:last]) - sum(starts[first:last])
            start, end = min(start, starts[first]), max(end, ends[last - 1])
        starts[first:last] = [start]
        ends[first:last] = [end]
        return end - start - known

    def done(self, offset: int) -> bool:
        """Whether the group has dealt with this offset."""
        if offset < self.low:
            return True
        if offset < self._base + len(self._window):
            return self._window[offset - self._base] == 1
        index = bisect_right(self._starts, offset) - 1
        return index >= 0 and offset < self._ends[index]

    def next_open(self, start: int, end: int) -> int:
        """The first offset from `start` on that is not done; `end` if there is none before it.

        >>> progress = Progress()
        >>> progress.add(2, 5)
        3
        >>> progress.next_open(1, 9), progress.next_open(2, 9), progress.next_open(3, 4)
        (1, 5, 4)
        """
        position = max(start, self.low)
        if position < end and position < self._base + len(self._window):
            found = self._window.find(0, position - self._base)
            position = self._base + (found if found >= 0 else len(self._window))
        index = bisect_right(self._starts, position) - 1
        if index >= 0:
            position = max(position, self._ends[index])
        return min(position, end)

    def gaps(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """The intervals between `start` and `end` that are not done, rising."""
        position = max(start, self.low)
        for run_start, run_end in self._acked_ranges(position, end):
            if run_start > position:
                yield position, run_start
            position = max(position, run_end)
        if position < end:
            yield position, end

    def encode(self) -> State:
        """As plain tuples, for a snapshot."""
        return self.low, tuple(self.ranges)

    @classmethod
    def decode(cls, state: State) -> Progress:
        """From what `encode` gave."""
        low, ranges = state
        progress = cls(low)
        for start, end in ranges:
            assert start > progress.high and end > start, "the intervals of a progress rise and do not touch"
            progress.add(start, end)
        return progress


def compress(offsets: Sequence[int]) -> list[tuple[int, int]]:
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
