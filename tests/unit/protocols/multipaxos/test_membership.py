"""Who votes on which slot (P6: a replica is added and removed by agreement)."""

from __future__ import annotations

import pytest

from tidings.errors import InvalidRequest
from tidings.node.founding import founding
from tidings.protocols.multipaxos.membership import MEMBERS_MAX, NOBODY, History, Membership, Term
from tidings.protocols.multipaxos.values import Add, Change, Promote, Remove

THREE = Membership((1, 2, 3), newest=3)


def history(window: int = 4) -> History:
    return History(window, (Term(1, THREE),))


@pytest.mark.parametrize(
    ("voters", "nodes", "enough"),
    [
        ((1,), (1,), True),
        ((1, 2), (1,), False),
        ((1, 2), (1, 2), True),
        ((1, 2, 3), (3, 1), True),
        ((1, 2, 3, 4), (1, 2), False),
        ((1, 2, 3, 4, 5), (2, 3, 5), True),
        ((1, 2, 3, 4, 5), (2, 3, 7, 8, 9), False),
    ],
)
def test_a_quorum_is_more_than_half_of_the_voters(
    voters: tuple[int, ...], nodes: tuple[int, ...], enough: bool
) -> None:
    assert Membership(voters).has_quorum(nodes) is enough


def test_nobody_is_never_a_quorum() -> None:
    assert not NOBODY.has_quorum((1, 2, 3))


def test_a_node_listens_before_it_votes() -> None:
    listening = THREE.after(Add(4))
    assert listening == Membership((1, 2, 3), (4,), 4)
    assert listening.after(Promote(4)) == Membership((1, 2, 3, 4), (), 4)


@pytest.mark.parametrize("change", [Add(2), Add(3), Promote(2), Promote(9), Remove(9)])
def test_a_change_that_makes_no_sense_comes_to_nothing(change: Change) -> None:
    assert THREE.after(change) is None


def test_a_number_is_never_used_again() -> None:
    """A number stands for a disk; anyone who lost the disk has lost the promises."""
    without = THREE.after(Remove(3))
    assert without is not None
    assert without.after(Add(3)) is None
    assert without.after(Add(4)) is not None


def test_somebody_has_to_decide() -> None:
    assert Membership((1,), (2,), 2).after(Remove(1)) is None


def test_a_group_has_a_bound() -> None:
    full = Membership(tuple(range(1, MEMBERS_MAX + 1)), newest=MEMBERS_MAX)
    assert full.after(Add(MEMBERS_MAX + 1)) is None


def test_a_change_is_in_force_a_window_later() -> None:
    changing = history(window=4)
    assert changing.take(6, Remove(1))
    assert [changing.at(slot).voters for slot in (6, 9, 10)] == [(1, 2, 3), (1, 2, 3), (2, 3)]


def test_only_one_change_is_open_at_a_time() -> None:
    changing = history(window=4)
    assert changing.take(6, Add(4))
    assert not changing.take(9, Remove(1))
    assert changing.take(10, Remove(1))
    assert changing.at(14) == Membership((2, 3), (4,), 4)


def test_a_change_that_comes_to_nothing_leaves_none_open() -> None:
    changing = history()
    assert not changing.take(6, Remove(9))
    assert changing.take(7, Remove(1))


@pytest.mark.parametrize(("voters", "window"), [((), 4), ((1, 1), 4), ((0, 1), 4), ((1, 2), 0)])
def test_a_group_that_makes_no_sense_is_not_founded(voters: tuple[int, ...], window: int) -> None:
    with pytest.raises(InvalidRequest):
        founding(voters, window)
