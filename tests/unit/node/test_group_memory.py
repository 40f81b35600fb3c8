"""Members of a group that come back with less than they once said: the others can tell, also after a restart (P6)."""

from __future__ import annotations

import pytest

from tests.unit.node.members import Members, Node
from tests.unit.node.test_group import store, values_of
from tidings.errors import StorageDamaged
from tidings.protocols.multipaxos.messages import Accepted, PreVoteGranted, Promise, Recall


def group_with_an_older_folder() -> tuple[Members, Node, Node]:
    """A group of which one member is away, the one that leads, and another whose folder is about to be an older one.

    What was stored last is on the disks of these two alone, so it hangs on the vote that the older folder forgot.
    """
    group = Members()
    store(group, b"first")
    leader, (victim, away) = group.leader(), group.followers()
    group.pass_ms(2_000)
    copy = victim.disk.copied()
    group.cut = {away.identity.number}
    store(group, b"second", sequence=2)
    victim.disk = copy
    return group, leader, victim


def votes(group: Members, node: Node) -> list[object]:
    kinds = PreVoteGranted | Promise | Accepted
    return [each for sender, _, each in group.carried if sender == node.identity.number and isinstance(each, kinds)]


def test_an_older_folder_does_not_vote_and_ends_its_process() -> None:
    group, _, victim = group_with_an_older_folder()
    group.carried.clear()
    victim.restart(group.now_ms)
    with pytest.raises(StorageDamaged, match="give it an empty folder, and let it join again"):
        group.pass_ms(5_000)
    assert votes(group, victim) == []


def test_what_was_remembered_outlives_a_clean_end_of_the_witness() -> None:
    group, leader, victim = group_with_an_older_folder()
    leader.engine.conclude(group.now_ms)
    leader.commit(group.now_ms)
    leader.restart(group.now_ms, power_cut=True)
    victim.restart(group.now_ms)
    with pytest.raises(StorageDamaged):
        group.pass_ms(5_000)


def test_a_folder_that_is_not_older_goes_on() -> None:
    group = Members()
    store(group, b"first")
    for node in list(group.nodes.values()):
        node.restart(group.now_ms, power_cut=True)
        group.pass_ms(3_000)
    store(group, b"second", sequence=2)
    group.pass_ms(3_000)
    assert all(values_of(node) == [b"first", b"second"] for node in group.nodes.values())


def test_all_voters_hear_how_far_each_has_come() -> None:
    """Also those to whom a follower has nothing to say; and all are silent about it once nothing changes."""
    group = Members()
    store(group, b"first")
    group.pass_ms(3_000)
    told = {(sender, receiver) for sender, receiver, each in group.carried if isinstance(each, Recall)}
    assert told == {(one, other) for one in group.nodes for other in group.nodes if one != other}
    group.carried.clear()
    group.pass_ms(5_000)
    assert not any(isinstance(each, Recall) for _, _, each in group.carried)
