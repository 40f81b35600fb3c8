"""Ranges of the circle, against plain sets of points."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from tidings.protocols.ring.key_ranges import LAST, WHOLE, KeyRange, KeyRanges, common, joined, owns, without

POINTS = [bytes(31) + bytes([number]) for number in range(6)] + [
    b"\xff" * 31 + bytes([250 + number]) for number in range(6)
]
"""Some at the beginning of the circle and some at its end, where ranges go over into each other."""

ranges = st.builds(KeyRange, st.sampled_from(POINTS), st.sampled_from(POINTS))
several = st.lists(ranges, max_size=5)


def points(some: list[KeyRange] | KeyRanges) -> set[bytes]:
    """Walks each range from point to point, as one would on paper."""
    found = set()
    for key_range in some:
        at = POINTS.index(key_range.start)
        while True:
            at = (at + 1) % len(POINTS)
            found.add(POINTS[at])
            if POINTS[at] == key_range.end:
                break
    return found


@given(several)
def test_a_point_is_owned_if_one_of_the_ranges_has_it(some: list[KeyRange]) -> None:
    assert {point for point in POINTS if owns(tuple(some), point)} == points(some)


@given(several)
def test_joined_has_the_same_points_in_ranges_that_do_not_touch(some: list[KeyRange]) -> None:
    found = joined(some)
    assert points_of(found) == points(some)
    assert found == joined(found) == joined(reversed(some))
    assert list(found) == sorted(found)
    if found != (WHOLE,):
        assert all(one.end != other.start for one, other in pairwise((*found, *found[:1])) if len(found) > 1)


@given(several, several)
def test_common_and_without_are_those_of_sets(some: list[KeyRange], others: list[KeyRange]) -> None:
    assert points_of(common(some, others)) == points(some) & points(others)
    assert points_of(without(some, others)) == points(some) - points(others)
    assert common(some, others) == common(others, some) == joined(common(some, others))
    assert joined((*common(some, others), *without(some, others))) == joined(some)


def points_of(found: KeyRanges) -> set[bytes]:
    return {point for point in POINTS if owns(found, point)}


def test_the_whole_circle_has_one_name() -> None:
    assert joined([KeyRange(POINTS[0], POINTS[7]), KeyRange(POINTS[7], POINTS[0])]) == (WHOLE,)
    assert joined([KeyRange(POINTS[3], POINTS[3])]) == (WHOLE,)
    assert LAST in WHOLE and bytes(32) in WHOLE
    assert without([WHOLE], [WHOLE]) == () and without([WHOLE], []) == (WHOLE,)
