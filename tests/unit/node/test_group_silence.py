"""Members that fall silent are removed if the rest is a safe majority, and taken back when they speak again."""

from __future__ import annotations

import pytest

from tests.unit.node.members import FOUNDERS, GROUP, Members, Node, address_of
from tests.unit.node.test_group import changes, meet, store, values_of
from tidings.errors import InvalidRequest
from tidings.node.identity import Identity, renumbered
from tidings.protocols.multipaxos.joining import Found, Member
from tidings.protocols.multipaxos.messages import Accepted
from tidings.protocols.multipaxos.values import Add, Promote, Remove
from tidings.settings import ReplicaSettings

GONE_MS = 3_000
FIVE = tuple(Member(number, address_of(number), f"disk {number}".encode()) for number in range(1, 6))


def make(founders: tuple[Member, ...] = FIVE, replicas_min: int = 3, gone_ms: int | None = GONE_MS) -> Members:
    return Members(founders, replica=ReplicaSettings(replica_gone_ms=gone_ms, replicas_min=replicas_min))


def silence(group: Members, count: int) -> list[int]:
    victims = [node.identity.number for node in group.followers()[:count]]
    group.cut = {*group.cut, *victims}
    return victims


def voters(group: Members) -> list[int]:
    return sorted(group.leader().engine.log.voters)


def take_number(group: Members, number: int) -> Node:
    """Once a node has been told its new number, it goes on under that."""
    node = group.nodes[number]
    group.wait(lambda: node.engine.log.becomes, "it is told its new number")
    assert node.engine.log.becomes is not None
    node.identity = node.engine.log.becomes
    node.restart(group.now_ms)
    group.nodes[node.identity.number] = group.nodes.pop(number)
    return node


def test_a_silent_member_goes_and_comes_back_with_its_folder_under_a_new_number() -> None:
    """P6: POSSIBLE-REMOVE-REPLICA of the document."""
    group = make()
    store(group, b"one")
    [victim] = silence(group, 1)
    group.pass_ms(GONE_MS - 500)
    assert victim in voters(group), "not yet"
    group.wait(lambda: victim not in voters(group), "it is removed")
    store(group, b"two", client="bob")
    group.cut.clear()
    node = take_number(group, victim)
    assert (node.identity.number, node.identity.formerly) == (6, (victim,))
    group.wait(lambda: 6 in voters(group), "it votes again")
    disk = FIVE[victim - 1].disk
    assert changes(group) == [Remove(victim, disk), Add(6, address_of(victim), disk), Promote(6)]
    group.pass_ms(300)
    assert values_of(node) == [b"one", b"two"]
    node.restart(group.now_ms)
    group.pass_ms(2 * GONE_MS)
    assert voters(group) == sorted({1, 2, 3, 4, 5, 6} - {victim}), "nobody else goes, and it stays"


@pytest.mark.parametrize(("founders", "replicas_min", "left"), [(FOUNDERS, 3, 3), (FOUNDERS, 2, 2), (FIVE, 3, 4)])
def test_so_many_stay_whoever_is_silent(founders: tuple[Member, ...], replicas_min: int, left: int) -> None:
    """A group of three is left alone unless it is said that it may go on as two."""
    group = make(founders, replicas_min)
    store(group, b"one")
    silence(group, 1)
    group.pass_ms(3 * GONE_MS)
    assert len(voters(group)) == left


def test_two_of_five_go_one_after_the_other() -> None:
    group = make()
    store(group, b"one")
    silence(group, 2)
    group.pass_ms(3 * GONE_MS)
    assert len(voters(group)) == 3
    silence(group, 1)
    group.pass_ms(3 * GONE_MS)
    assert len(voters(group)) == 3, "two would be left, which need each other"


def test_nobody_is_removed_by_a_vote_of_its_own() -> None:
    """The other one dies just before the silent one would go: two are left, each of whom the group needs."""
    group = make(FOUNDERS, replicas_min=2)
    store(group, b"one")
    [victim] = silence(group, 1)
    group.pass_ms(GONE_MS - 100)
    [dead] = [node.identity.number for node in group.followers()]
    group.nodes.pop(dead)
    group.pass_ms(700)
    group.cut.clear()
    store(group, b"two", client="bob")
    group.wait(lambda: dead not in voters(group), "the one that is gone is removed")
    store(group, b"three", client="eve")
    assert victim in voters(group)


def test_to_be_heard_is_not_enough_to_be_counted_on() -> None:
    """A member that has just started speaks to the leader, and does not vote yet."""
    group = make(FOUNDERS, replicas_min=2)
    store(group, b"one")
    [victim] = silence(group, 1)
    group.pass_ms(GONE_MS - 100)
    group.lost = (Accepted,)
    leader, [other] = group.leader(), group.followers()
    for _ in range(7):
        leader.engine.log.changes.on_heard(group.now_ms, other.identity.number)
        group.pass_ms(100)
    assert changes(group) == []
    group.lost = ()
    group.wait(lambda: victim not in voters(group), "the rest is enough again")


def test_a_change_is_not_proposed_while_another_one_is() -> None:
    group = make(FOUNDERS, replicas_min=2)
    store(group, b"one")
    [victim] = silence(group, 1)
    group.pass_ms(2_000)
    group.lost = (Accepted,)
    for _ in range(7):
        meet(group, victim, b"a new disk")
        group.pass_ms(100)
    assert changes(group) == [Remove(victim, b"a new disk")]


def test_nobody_goes_unless_that_is_set() -> None:
    group = make(gone_ms=None)
    store(group, b"one")
    silence(group, 1)
    group.pass_ms(60_000)
    assert voters(group) == [1, 2, 3, 4, 5]


def test_a_leader_that_stood_still_blames_nobody() -> None:
    """What the others said meanwhile is still on its way when it looks for the first time."""
    group = make()
    store(group, b"one")
    leader = group.leader()
    group.pass_ms(2_000)
    group.now_ms += 60_000
    for node in group.followers()[:2]:
        leader.engine.log.changes.on_heard(group.now_ms, node.identity.number)
    leader.engine.tick(group.now_ms)
    group.run_until_quiet()
    assert changes(group) == []


def test_a_new_disk_in_the_place_of_a_silent_member_is_taken_in_too() -> None:
    group = make()
    store(group, b"one")
    [victim] = silence(group, 1)
    group.wait(lambda: victim not in voters(group), "it is removed")
    leader = group.leader()
    assert leader.engine.log.changes._is_welcome(address_of(victim), b"a new disk")
    assert not leader.engine.log.changes._is_welcome("tcp://127.0.0.1:9999", b"a new disk")


OWN = Identity(GROUP, 2, b"disk 2", FOUNDERS, FOUNDERS)


@pytest.mark.parametrize(
    "found",
    [
        Found(b"another group....", 6, (), (Member(6, address_of(2), b"disk 2"),)),
        Found(GROUP, 6, (), (Member(6, address_of(2), b"disk 3"),)),
        Found(GROUP, 2, (), (Member(2, address_of(2), b"disk 2"),)),
        Found(GROUP, 1, (), (Member(1, address_of(2), b"disk 2"),)),
        Found(GROUP, 6, (), ()),
    ],
    ids=["another group", "another disk", "its own number", "a lower number", "nobody"],
)
def test_a_member_takes_no_number_that_is_not_meant_for_it(found: Found) -> None:
    assert renumbered(OWN, found) is None


def test_settings_that_would_remove_whoever_restarts_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="twice election_ms"):
        ReplicaSettings(replica_gone_ms=1_000)
    with pytest.raises(InvalidRequest, match="2 or more"):
        ReplicaSettings(replicas_min=1)
