"""The circle of identifiers and its arithmetic (Chord, section 4.2).

All comparisons on a circle are made of one function: how far is it clockwise from here to there?
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import sha256

BITS = 256
SIZE = 1 << BITS
KEY_BYTES = BITS // 8

Key = bytes
"""An identifier as it travels: 32 bytes, because msgpack has no integers of that size."""


@lru_cache(maxsize=1 << 16)
def identifier(name: str) -> int:
    """The point on the circle of a node or of a topic.

    >>> identifier("news") == identifier("news") != identifier("sport")
    True
    >>> 0 <= identifier("news") < 2**256
    True
    """
    return int.from_bytes(sha256(name.encode()).digest())


def key_of(name: str) -> Key:
    """The same point as 32 bytes."""
    return to_key(identifier(name))


def to_key(point: int) -> Key:
    return point.to_bytes(KEY_BYTES)


def to_point(key: Key) -> int:
    return int.from_bytes(key)


def distance(start: int, end: int) -> int:
    """How far it is clockwise.

    >>> distance(3, 10), distance(10, 3) == 2**256 - 7
    (7, True)
    """
    return (end - start) % SIZE


def between(start: int, point: int, end: int) -> bool:
    """Whether one meets `point` on the way from `start` to `end`, both left out; from a point to itself is all the
    way round.

    >>> between(1, 5, 9), between(9, 5, 1), between(9, 0, 1), between(1, 1, 9), between(4, 5, 4)
    (True, False, True, False, True)
    """
    return 0 < distance(start, point) < (distance(start, end) or SIZE)


def within(start: int, point: int, end: int) -> bool:
    """Whether `point` is in the half-open range that `end` is responsible for when `start` is its predecessor.

    >>> within(1, 9, 9), within(1, 1, 9), within(4, 4, 4)
    (True, False, True)
    """
    return point == end or between(start, point, end)
