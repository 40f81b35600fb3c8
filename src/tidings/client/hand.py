"""The messages that a member has in its hands, and the parcels that they came in.

A member that does well gets parcel after parcel, each of messages behind all that came before, and settles each as a
whole. So the parcels are kept as they came, and a table of single messages is made only of those of which single
messages are spoken: lost, repeated, settled one by one.
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


class Crate:
    """A parcel of which something is in hand."""

    __slots__ = ("attempt", "done", "intact", "left", "number", "since", "size", "stream")

    def __init__(self, stream: int, number: int, attempt: int, left: int) -> None:
        self.stream = stream
        self.number = number
        self.attempt = attempt
        self.since = attempt
        """The attempt at which it came; it has grown when the parcel was sent again."""
        self.size = left
        self.left = left
        """How many of its messages wait or are being worked on; it counts only while the crate is intact."""
        self.done: list[int] = []
        """Dealt with, and to be settled with the next request."""
        self.intact = True
        """Whether nothing was ever taken out of it, but by settling."""


class Hand:
    """Which crate each message in hand is in.

    >>> hand = Hand()
    >>> hand.take(Crate(1, 7, 1, 3), (4, 6, 9))
    >>> hand.crate_of(6).number, 5 in hand, 9 in hand
    (7, False, True)
    >>> hand.drop(6)
    >>> list(hand.spread())
    [4, 9]
    """

    __slots__ = ("_single", "_whole")

    def __init__(self) -> None:
        self._whole: dict[Crate, Sequence[int]] = {}
        """Crates of which all is in hand, as they came: offsets rise within each, and from each to the next."""
        self._single: dict[int, Crate] = {}
        """All other messages."""

    def take(self, crate: Crate, offsets: Sequence[int]) -> None:
        """A crate of messages that rise, all of them behind everything that ever came."""
        self._whole[crate] = offsets

    def get(self, offset: int) -> Crate | None:
        """The crate that a message is in, or None if it is not in hand."""
        crate = self._single.get(offset)
        return self._whole_with(offset) if crate is None else crate

    def crate_of(self, offset: int) -> Crate:
        """The crate of a message that is in hand."""
        crate = self.get(offset)
        assert crate is not None
        return crate

    def __contains__(self, offset: int) -> bool:
        return self.get(offset) is not None

    def __iter__(self) -> Iterator[int]:
        return chain(self._single, *self._whole.values())

    def _whole_with(self, offset: int) -> Crate | None:
        for crate, offsets in self._whole.items():
            if offsets[0] <= offset <= offsets[-1]:
                return crate if offsets[bisect_left(offsets, offset)] == offset else None
        return None

    def drop(self, offset: int) -> None:
        """This message is no longer in hand, if it was."""
        crate = self._whole_with(offset)
        if crate is not None:
            self._single.update(dict.fromkeys(self._whole.pop(crate), crate))
        self._single.pop(offset, None)

    def drop_all(self, crate: Crate, offsets: Sequence[int]) -> None:
        """These messages, which came in this crate, are no longer in hand, whatever crate they are in now."""
        if len(self._whole.get(crate, ())) == len(offsets):
            del self._whole[crate]
            return
        for offset in offsets:
            self.drop(offset)

    def spread(self) -> dict[int, Crate]:
        """All messages, each with its crate, in a table that may be changed; later calls may change it too."""
        for crate, offsets in self._whole.items():
            self._single.update(dict.fromkeys(offsets, crate))
        self._whole.clear()
        return self._single
