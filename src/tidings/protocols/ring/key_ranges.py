"""The circle of SHA-256, cut into ranges, and where topics and names lie on it.

A range is half open, as a range of Chord is: it has every point after `start`, up to and with `end`; with both the same
it is the whole circle. Points travel as 32 bytes, because msgpack has no integers of that size, and bytes of one
length compare as the numbers do.

A topic lies at SHA-256 of its name. Topics whose names hold the same tag in braces lie together, at SHA-256 of the tag:
`{shop}orders` and `{shop}refunds` always have the same owner, and may be used in one transaction.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable
from itertools import pairwise
from operator import attrgetter

import msgspec

from tidings.protocols.broker.staged import home_name
from tidings.protocols.chord.identifiers import SIZE, Key, key_of, to_key, to_point
from tidings.protocols.fields import Several

LAST = b"\xff" * 32
"""The last point of the circle; the first one, all zeros, follows it."""


def tag_of(topic: str) -> str:
    """What decides where a topic lies: what stands in its first braces, or else its name.

    >>> tag_of("{shop}orders"), tag_of("orders"), tag_of("{}orders"), tag_of("orders}{")
    ('shop', 'orders', '{}orders', 'orders}{')
    """
    opens = topic.find("{")
    closes = topic.find("}", opens + 2) if opens >= 0 else -1
    return topic[opens + 1 : closes] if closes > 0 else topic


def point_of(topic: str) -> Key:
    """Where a topic lies.

    >>> point_of("{shop}orders") == point_of("{shop}refunds") == point_of("shop")
    True
    """
    return key_of(tag_of(topic))


def home_of(client: str) -> Key:
    """Where a client's name lies: its owner gives the epochs. No topic's name has a control character.

    A query's sink has a home too, under a name that no client has: where a topic of the name of the sink lies, or of
    the query if the sink has none.

    >>> home_of(client_of("{shop}import")) == home_of(client_of("import\\n{shop}")) == point_of("shop")
    True
    """
    return point_of(home_name(client[1:])) if client.startswith("\n") else key_of(f"\0client\0{client}")


def client_of(key: str) -> str:
    """The name under which a query's sink has its commits."""
    return f"\n{key}"


class KeyRange(msgspec.Struct, frozen=True, array_like=True, order=True):
    """The points after `start`, up to and with `end`."""

    start: Key
    end: Key

    def __contains__(self, point: Key) -> bool:
        """
        >>> key_range = KeyRange(b"c", b"e")
        >>> b"c" in key_range, b"d" in key_range, b"e" in key_range, b"f" in key_range
        (False, True, True, False)
        >>> b"a" in KeyRange(b"x", b"b"), b"m" in KeyRange(b"x", b"b"), b"x" in KeyRange(b"x", b"x")
        (True, False, True)
        """
        if self.start < self.end:
            return self.start < point <= self.end
        return point > self.start or point <= self.end


WHOLE = KeyRange(LAST, LAST)

KeyRanges = Several[KeyRange]
"""Ranges that do not touch each other, in the order of the circle: what `joined` returns."""


def owns(ranges: KeyRanges, point: Key) -> bool:
    """Whether a point is in one of some ranges."""
    return any(point in key_range for key_range in ranges)


def finder(ranges: KeyRanges) -> Callable[[Key], bool]:
    """Says of any point whether it is in one of these ranges, also when they are many.

    >>> is_in = finder((KeyRange(b"a", b"c"), KeyRange(b"k", b"m"), KeyRange(b"x", b"a")))
    >>> [is_in(point) for point in (b"a", b"b", b"c", b"d", b"k", b"l", b"x", b"y")]
    [True, True, True, False, False, True, False, True]
    """
    starts = [key_range.start for key_range in ranges]

    def is_in(point: Key) -> bool:
        # The last range that starts before the point; for a point before all of them, the one that crosses the end.
        return bool(ranges) and point in ranges[bisect_left(starts, point) - 1]

    return is_in


def spot(point: Key) -> KeyRange:
    """The range of a single point.

    >>> spot(bytes(32)).start == LAST, bytes(32) in spot(bytes(32)), LAST in spot(bytes(32))
    (True, True, False)
    """
    return KeyRange(to_key((to_point(point) - 1) % SIZE), point)


def spots(points: Iterable[Key]) -> KeyRanges:
    """These points, and no others."""
    return joined(map(spot, points))


def joined(ranges: Iterable[KeyRange]) -> KeyRanges:
    """The same points in as few ranges as possible, in their order.

    >>> joined([KeyRange(b"a", b"c"), KeyRange(b"x", b"a"), KeyRange(b"b", b"d")])
    (KeyRange(start=b'x', end=b'd'),)
    >>> joined([KeyRange(b"a", b"m"), KeyRange(b"m", b"a")]) == (WHOLE,)
    True
    >>> joined([KeyRange(b"m", b"p"), KeyRange(b"a", b"c")])
    (KeyRange(start=b'a', end=b'c'), KeyRange(start=b'm', end=b'p'))
    """
    pieces = sorted(piece for key_range in ranges for piece in cut(key_range))
    merged: list[tuple[Key, Key]] = []
    for start, end in pieces:
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    if not merged:
        return ()
    if merged == [(b"", LAST)]:
        return (WHOLE,)
    if len(merged) > 1 and merged[0][0] == b"" and merged[-1][1] == LAST:
        _, end = merged.pop(0)
        start, _ = merged.pop()
        merged.append((start, end))
    return tuple(sorted((KeyRange(start or LAST, end) for start, end in merged), key=attrgetter("start")))


def common(some: Iterable[KeyRange], others: Iterable[KeyRange]) -> KeyRanges:
    """The points that are in both.

    >>> common([KeyRange(b"a", b"m")], [KeyRange(b"k", b"c")])
    (KeyRange(start=b'a', end=b'c'), KeyRange(start=b'k', end=b'm'))
    """
    theirs = [piece for other in others for piece in cut(other)]
    found = []
    for start, end in (piece for key_range in some for piece in cut(key_range)):
        for other_start, other_end in theirs:
            low, high = max(start, other_start), min(end, other_end)
            if low < high:
                found.append(KeyRange(low or LAST, high))
    return joined(found)


def without(some: Iterable[KeyRange], others: Iterable[KeyRange]) -> KeyRanges:
    """The points that are in some, and not in the others.

    >>> without([WHOLE], [KeyRange(b"a", b"c")])
    (KeyRange(start=b'c', end=b'a'),)
    >>> without([KeyRange(b"a", b"c")], [WHOLE])
    ()
    """
    return common(some, _rest(joined(others)))


def cut(key_range: KeyRange) -> list[tuple[Key, Key]]:
    """A range as one or two intervals that do not cross the end of the circle; b"" stands before its first point."""
    start = b"" if key_range.start == LAST else key_range.start
    if key_range.end > start:
        return [(start, key_range.end)] if start or key_range.end != LAST else [(b"", LAST)]
    return [(b"", key_range.end), (start, LAST)]


def _rest(ranges: KeyRanges) -> KeyRanges:
    """All points that are not in some ranges, which are joined."""
    if not ranges:
        return (WHOLE,)
    if ranges == (WHOLE,):
        return ()
    return joined(KeyRange(one.end, other.start) for one, other in pairwise((*ranges, ranges[0])))
