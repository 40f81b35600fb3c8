"""Arcs of the circle, against plain sets of points."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from tidings.protocols.ring.arcs import LAST, WHOLE, Arc, Arcs, common, joined, owns, without

POINTS = [bytes(31) + bytes([number]) for number in range(6)] + [
    b"\xff" * 31 + bytes([250 + number]) for number in range(6)
]
"""Some at the beginning of the circle and some at its end, where arcs go over into each other."""

arcs = st.builds(Arc, st.sampled_from(POINTS), st.sampled_from(POINTS))
several = st.lists(arcs, max_size=5)


def points(some: list[Arc] | Arcs) -> set[bytes]:
    """Walks each arc from point to point, as one would on paper."""
    found = set()
    for arc in some:
        at = POINTS.index(arc.start)
        while True:
            at = (at + 1) % len(POINTS)
            found.add(POINTS[at])
            if POINTS[at] == arc.end:
                break
    return found


@given(several)
def test_a_point_is_owned_if_one_of_the_arcs_has_it(some: list[Arc]) -> None:
    assert {point for point in POINTS if owns(tuple(some), point)} == points(some)


@given(several)
def test_joined_has_the_same_points_in_arcs_that_do_not_touch(some: list[Arc]) -> None:
    found = joined(some)
    assert points_of(found) == points(some)
    assert found == joined(found) == joined(reversed(some))
    assert list(found) == sorted(found)
    if found != (WHOLE,):
        assert all(one.end != other.start for one, other in pairwise((*found, *found[:1])) if len(found) > 1)


@given(several, several)
def test_common_and_without_are_those_of_sets(some: list[Arc], others: list[Arc]) -> None:
    assert points_of(common(some, others)) == points(some) & points(others)
    assert points_of(without(some, others)) == points(some) - points(others)
    assert common(some, others) == common(others, some) == joined(common(some, others))
    assert joined((*common(some, others), *without(some, others))) == joined(some)


def points_of(found: Arcs) -> set[bytes]:
    return {point for point in POINTS if owns(found, point)}


def test_the_whole_circle_has_one_name() -> None:
    assert joined([Arc(POINTS[0], POINTS[7]), Arc(POINTS[7], POINTS[0])]) == (WHOLE,)
    assert joined([Arc(POINTS[3], POINTS[3])]) == (WHOLE,)
    assert LAST in WHOLE and bytes(32) in WHOLE
    assert without([WHOLE], [WHOLE]) == () and without([WHOLE], []) == (WHOLE,)
