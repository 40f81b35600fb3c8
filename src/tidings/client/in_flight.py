"""The messages that a member has in flight, and the batches that they came in.

A member that does well gets batch after batch, each of messages behind all that came before, and acks each as a
whole. So the batches are kept as they came, and a table of single messages is made only of those of which single
messages are spoken: lost, repeated, acked one by one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

Ranges = tuple[tuple[int, int], ...]


def ranges_of(offsets: Iterable[int]) -> Ranges:
    """Offsets as half-open ranges that rise.

    >>> ranges_of([4, 1, 2, 3, 9])
    ((1, 5), (9, 10))
    """
    ranges: list[tuple[int, int]] = []
    start = end = -1
    for offset in sorted(offsets):
        if offset != end:
            if end > start:
                ranges.append((start, end))
            start = offset
        end = offset + 1
    if end > start:
        ranges.append((start, end))
    return tuple(ranges)


class InFlightBatch:
    """A batch of which something is in flight."""

    __slots__ = ("attempt", "done", "intact", "left", "number", "since", "size", "stream")

    def __init__(self, stream: int, number: int, attempt: int, left: int) -> None:
        self.stream = stream
        self.number = number
        self.attempt = attempt
        self.since = attempt
        """The attempt at which it came; it has grown when the batch was sent again."""
        self.size = left
        self.left = left
        """How many of its messages wait or are being worked on; it counts only while the batch is intact."""
        self.done: list[int] = []
        """Dealt with, and to be acked with the next request."""
        self.intact = True
        """Whether nothing was ever taken out of it, but by acking."""


class InFlightSet:
    """Which batch each message in flight is in.

    >>> in_flight = InFlightSet()
    >>> in_flight.take(InFlightBatch(1, 7, 1, 3), (4, 6, 9))
    >>> in_flight.batch_of(6).number, 5 in in_flight, 9 in in_flight
    (7, False, True)
    >>> in_flight.drop(6)
    >>> list(in_flight.spread())
    [4, 9]
    """

    __slots__ = ("_single", "_whole")

    def __init__(self) -> None:
        self._whole: dict[InFlightBatch, Sequence[int]] = {}
        """Batches of which all is in flight, as they came: offsets rise within each, and from each to the next."""
        self._single: dict[int, InFlightBatch] = {}
        """All other messages."""

    def take(self, batch: InFlightBatch, offsets: Sequence[int]) -> None:
        """A batch of messages that rise, all of them behind everything that ever came."""
        self._whole[batch] = offsets

    def get(self, offset: int) -> InFlightBatch | None:
        """The batch that a message is in, or None if it is not in flight."""
        batch = self._single.get(offset)
        return self._whole_with(offset) if batch is None else batch

    def batch_of(self, offset: int) -> InFlightBatch:
        """The batch of a message that is in flight."""
        batch = self.get(offset)
        assert batch is not None
        return batch

    def __contains__(self, offset: int) -> bool:
        return self.get(offset) is not None

    def __iter__(self) -> Iterator[int]:
        return chain(self._single, *self._whole.values())

    def _whole_with(self, offset: int) -> InFlightBatch | None:
        for batch, offsets in self._whole.items():
            if offsets[0] <= offset <= offsets[-1]:
                return batch if offsets[bisect_left(offsets, offset)] == offset else None
        return None

    def drop(self, offset: int) -> None:
        """This message is no longer in flight, if it was."""
        batch = self._whole_with(offset)
        if batch is not None:
            self._single.update(dict.fromkeys(self._whole.pop(batch), batch))
        self._single.pop(offset, None)

    def drop_all(self, batch: InFlightBatch, offsets: Sequence[int]) -> None:
        """These messages, which came in this batch, are no longer in flight, whatever batch they are in now."""
        if len(self._whole.get(batch, ())) == len(offsets):
            del self._whole[batch]
            return
        for offset in offsets:
            self.drop(offset)

    def spread(self) -> dict[int, InFlightBatch]:
        """All messages, each with its batch, in a table that may be changed; later calls may change it too."""
        for batch, offsets in self._whole.items():
            self._single.update(dict.fromkeys(offsets, batch))
        self._whole.clear()
        return self._single
