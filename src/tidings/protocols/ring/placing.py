"""Where on the circle a group that joins is to stand, so that all groups own about the same.

A group stands at the hash of its id, and the id is drawn at random when the group is founded. So a group chooses its
place by drawing many ids, and keeping the one whose hash lies nearest to where it is wanted.

It is wanted in the largest range, which it divides not in half but a little unevenly: of a range that is the share L of
the circle, log2((1 + 2**L) / 2) stays with its owner. Halves would leave ranges of two sizes, one twice the other; this
way the ranges of n groups that came one after the other are log2((k + 1) / k) for k = n to 2n - 1, so the largest is
never more than 1 / ln 2 = 1.44 times the mean (de Bruijn and Erdős, 1949). A group still has one place and one range.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from tidings.protocols.chord.identifiers import SIZE, Key, key_of, to_key, to_point
from tidings.protocols.ring.key_ranges import WHOLE, KeyRange
from tidings.protocols.ring.messages import virtual_node_of

DRAWS = 1 << 14
"""Ids that are drawn: the best one lies within about a sixteen-thousandth of the circle of where it is wanted."""


def draw_group(owned: Iterable[tuple[bytes, KeyRange]], draw: Callable[[], bytes]) -> bytes:
    """The id of a new group, given what each group of its ring owns; any id, if nothing is known."""
    wanted = wanted_place(owned)
    if wanted is None:
        return draw()
    target = to_point(wanted)
    return min((draw() for _ in range(DRAWS)), key=lambda group: _apart(to_point(place_of(group)), target))


def place_of(group: bytes) -> Key:
    """Where a group stands."""
    return key_of(virtual_node_of(group))


def wanted_place(owned: Iterable[tuple[bytes, KeyRange]]) -> Key | None:
    """Where a new group should stand; None if no group owns the points up to its own.

    >>> group = bytes(16)
    >>> wanted = wanted_place([(group, WHOLE)])
    >>> round((to_point(wanted) - to_point(place_of(group))) % SIZE / SIZE, 3)
    0.415
    """
    largest, start = 0, None
    for group, key_range in owned:
        place = place_of(group)
        begin = place if key_range == WHOLE else key_range.start
        size = (to_point(place) - to_point(begin)) % SIZE or SIZE
        if (key_range == WHOLE or key_range.end == place) and size > largest:
            largest, start = size, begin
    if start is None:
        return None
    share = largest / SIZE
    taken = share - math.log2((1 + 2**share) / 2)
    return to_key((to_point(start) + int(taken * SIZE)) % SIZE)


def _apart(one: int, other: int) -> int:
    return min((one - other) % SIZE, (other - one) % SIZE)
