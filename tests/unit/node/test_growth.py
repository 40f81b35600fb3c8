"""What a broker alone has stored is the beginning of its group's state, whatever happens on the way (Z11, P6, P7)."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.unit.node.desk import Desk
from tests.unit.node.members import GROUP, Members, Node, address_of, put
from tests.unit.node.test_group import values_of
from tests.unit.node.test_group_damage import flip, heard_values, read
from tidings.errors import InvalidRequest, StorageDamaged
from tidings.journal import segment as files
from tidings.node.growth import MEET_SILENCE_MS_MAX, MEETS_MAX, Growth, unfit_for_ring
from tidings.node.identity import Identity
from tidings.node.process import obstacle
from tidings.protocols.broker import bulk, messages, operators
from tidings.protocols.multipaxos.joining import Known, Meet, Member
from tidings.protocols.multipaxos.messages import FetchCopy, Offer
from tidings.settings import BrokerSettings, JournalSettings
from tidings.simulator.disk import SimulatedDisk
from tidings.wire import codec
from tidings.wire.replication import REPLICA_PEER_NAME, ReplicaPeer, decode_message, encode_message

JOURNAL = JournalSettings(segment_records_max=10, recent_bytes_max=1)
FIRST = Member(1, address_of(1), b"disk 1")


def values(count: int) -> list[bytes]:
    return [b"value %02d " % number * 5 for number in range(count)]


def alone(count: int) -> Desk:
    """A broker that has stored so many messages, and has a subscriber that got three of them."""
    desk = Desk(journal=JOURNAL, disk=SimulatedDisk(random.Random(1)))
    desk.hello("ann")
    desk.hello("bob")
    desk.subscribe("bob", "news", start="earliest")
    for number, value in enumerate(values(count), 1):
        desk.put("ann", "news", number, value)
    if count:
        desk.ack("bob", "news", min(3, count))
    return desk


def grown(desk: Desk) -> Members:
    """The same broker as a group of one; others can come."""
    end = desk.engine.journal.end_address
    group = Members((), journal=JOURNAL, disks={1: desk.disk})
    group.start(Identity(GROUP, 1, FIRST.disk, (FIRST,), (FIRST,), (), end), FIRST.address)
    return group


def put_more(group: Members, first: int, count: int) -> None:
    leader = group.leader()
    epoch = group.hello(leader, "ann")
    for number, value in list(enumerate(values(first + count), 1))[first:]:
        request, columns = put("ann", epoch, number, value)
        done = group.ask(leader, request, columns, peer="ann")
        assert isinstance(done, messages.PutDone) and done.stored[0].first_offset == number - 1


def take_in(group: Members, number: int) -> Node:
    """Another member, with an empty disk; it has what the group has when this returns."""
    leader, member = group.leader(), Member(number, address_of(number), f"disk {number}".encode())
    group.say(leader, operators.AddMember(7, member.address), peer="operator")
    leader.engine.receive(group.now_ms, b"replica", encode_message(Meet(member.address, member.disk, ())))
    group.say(leader, operators.AddMember(7, member.address), peer="operator")
    group.wait(lambda: number in leader.engine.log.replica.history.newest.membership.nodes, "it is taken in")
    group.start(Identity(GROUP, number, member.disk, (), (FIRST, member)), member.address)
    group.wait(lambda: number in leader.engine.log.voters, "it votes")
    group.pass_ms(500)
    return group.nodes[number]


@pytest.mark.parametrize("count", [0, 1, 5, 9, 10, 11, 35])
def test_everything_is_there_and_goes_on(count: int) -> None:
    group = grown(alone(count))
    put_more(group, count, 15)
    leader = group.leader()
    assert values_of(leader) == values(count + 15)
    machine = leader.engine.broker.machine
    assert machine.subscriptions["bob", ("news",)].cursors == {"news": min(3, count)}
    for power_cut in (False, True):
        leader.restart(group.now_ms, power_cut)
        leader = group.leader()
        assert values_of(leader) == values(count + 15)


@pytest.mark.parametrize("count", [5, 35])
def test_it_may_end_at_any_time_after_it_has_become_a_group(count: int) -> None:
    """Before and after each of its first commits, with what was written and with what a power cut leaves."""
    for step in range(6):
        for power_cut in (False, True):
            group = grown(alone(count))
            node = group.nodes[1]
            for _ in range(step):
                node.engine.tick(group.now_ms)
                if node.engine.has_staged:
                    engine = node.engine
                    commit = engine.begin_commit(group.now_ms)
                    engine.journal.write(commit)
                    engine.finish_commit(group.now_ms)
            node.restart(group.now_ms, power_cut)
            put_more(group, count, 3)
            assert values_of(group.leader()) == values(count + 3), (step, power_cut)


@pytest.mark.parametrize("count", [5, 35])
def test_others_get_what_was_stored_before_them(count: int) -> None:
    group = grown(alone(count))
    second = take_in(group, 2)
    assert any(isinstance(message, Offer) for _, _, message in group.carried), "as files"
    assert values_of(second) == values(count)
    third = take_in(group, 3)
    put_more(group, count, 12)
    group.pass_ms(500)
    assert values_of(second) == values_of(third) == values(count + 12)
    _, other = group.change_leader()
    group.cut = set()
    assert values_of(other) == values(count + 12)
    for node in group.nodes.values():
        node.restart(group.now_ms, power_cut=True)
    group.pass_ms(2_000)
    assert values_of(group.leader()) == values(count + 12)


def test_what_was_stored_before_and_is_damaged_comes_from_another() -> None:
    group = grown(alone(35))
    take_in(group, 2)
    take_in(group, 3)
    leader = group.leader()
    for offset in (0, 12, 34):
        flip(leader, offset)
        assert isinstance(read(group, leader, 0, 35), bulk.ReadDone)
        assert heard_values(leader, "peer") == values(35)
    assert any(isinstance(message, FetchCopy) for _, _, message in group.carried)


def test_damage_to_what_has_not_been_sealed_stops_the_start() -> None:
    """Nobody else can have it yet, and no slot says that it was decided."""
    desk = alone(5)
    end = desk.engine.journal.end_address
    address = desk.engine.broker.machine.topics["news"].addresses[2]
    desk.disk.flip_bit(files.journal_name(0), address, 1)
    identity = Identity(GROUP, 1, FIRST.disk, (FIRST,), (FIRST,), (), end)
    with pytest.raises(StorageDamaged, match="before this node had a group"):
        Node(identity, FIRST.address, BrokerSettings(), JOURNAL, Members((), journal=JOURNAL)._settings[2], desk.disk)


# A broker alone, and those who would make it a group.


def growing(obstacle: str = "") -> Desk:
    desk = Desk(BrokerSettings(admins=("root",)))
    desk.engine.log.growth = Growth(FIRST.address, obstacle)
    return desk


def meet(number: int) -> list[bytes]:
    return list(encode_message(Meet(address_of(number), b"disk", ())))


def test_a_broker_alone_lists_itself() -> None:
    answer = growing().ask(operators.AskMembers(1))
    assert answer.group == "" and answer.members == (operators.MemberInfo(1, FIRST.address, "alone", True),)


def test_who_asks_to_join_is_answered_and_may_be_added() -> None:
    desk = growing()
    failed = desk.ask(operators.AddMember(1, address_of(2)))
    assert f"start it with `tidings serve --data DIR --bind {address_of(2)} --into {FIRST.address}`" in failed.text
    desk.say(meet(2), peer="replica")
    [(to, frames)] = desk.engine.outgoing
    assert to == ReplicaPeer(address_of(2)) and decode_message(frames).message == Known((FIRST.address,))
    desk.engine.outgoing.clear()
    desk.hello("ann")
    assert not desk.engine.outgrown
    desk.say([codec.encode(operators.AddMember(9, address_of(2)))], peer="operator")
    assert desk.engine.outgrown and not desk.engine.outgoing, "it waits for the group"
    desk.engine.retire()
    told = {(peer, answer.request, answer.members) for peer, answer, _ in desk.heard()}
    assert told == {
        ("operator", 9, (FIRST.address,)),
        ("operator", 0, (FIRST.address,)),
        ("peer", 0, (FIRST.address,)),
    }


def test_what_keeps_it_from_growing_is_said() -> None:
    desk = growing("It cannot.")
    desk.say(meet(2), peer="replica")
    desk.engine.outgoing.clear()
    assert desk.ask(operators.AddMember(1, address_of(2))).text == "It cannot."
    assert not desk.engine.outgrown


@pytest.mark.parametrize(
    ("data", "address", "unfit", "has_key", "words"),
    [
        (None, FIRST.address, "", True, "serve it with --data"),
        (Path("a"), "tcp://0.0.0.0:7400", "", True, "start it with --advertise"),
        (Path("a"), "tcp://[::]:7400", "", True, "start it with --advertise"),
        (Path("a"), FIRST.address, "There is no key.", True, "There is no key."),
        (Path("a"), FIRST.address, "", False, "`tidings keys DIR --client replica`"),
        (Path("a"), FIRST.address, "", True, ""),
    ],
)
def test_obstacles(data: Path | None, address: str, unfit: str, has_key: bool, words: str) -> None:
    said = obstacle(data, address, unfit, has_key)
    assert words in said and bool(said) == bool(words)


def test_with_keys_only_members_join_and_only_administrators_add_them() -> None:
    desk = growing()
    desk.say(meet(2), peer="replica", user="ann")
    assert not desk.engine.outgoing
    desk.say(meet(2), peer="replica", user=REPLICA_PEER_NAME)
    desk.engine.outgoing.clear()
    assert "may not take members into this group" in desk.ask(operators.AddMember(1, address_of(2)), user="ann").text
    assert not desk.engine.outgrown
    desk.say([codec.encode(operators.AddMember(1, address_of(2)))], user="root")
    assert desk.engine.outgrown


def test_those_who_ask_to_join_are_bounded_and_nonsense_is_dropped() -> None:
    desk = growing()
    for number in range(2, MEETS_MAX + 10):
        desk.say(meet(number), peer="replica")
    assert desk.engine.log.growth is not None and len(desk.engine.log.growth.meets()) == MEETS_MAX
    desk.now_ms += MEET_SILENCE_MS_MAX
    desk.say(meet(1_000), peer="replica")
    assert desk.engine.log.growth.meets() == [meet(1_000)], "those who are gone do not keep others out"
    for frames in (meet(2)[:1], [meet(2)[0], b"nonsense"], list(encode_message(Known(())))):
        desk.engine.outgoing.clear()
        desk.say(frames, peer="replica")
        assert not desk.engine.outgoing


def test_who_asked_to_join_and_has_gone_is_not_added() -> None:
    """A broker that grew for it would be a group for good, and wait for a member that is not there."""
    desk = growing()
    desk.say(meet(2), peer="replica")
    desk.now_ms += MEET_SILENCE_MS_MAX
    desk.engine.outgoing.clear()
    assert f"Nobody at {address_of(2)} asks to join" in desk.ask(operators.AddMember(1, address_of(2))).text
    assert not desk.engine.outgrown


def test_a_broker_is_not_added_to_itself() -> None:
    failed = growing().ask(operators.AddMember(1, FIRST.address))
    assert failed.text.endswith("is the broker that you ask: give the address of the node that is to join it.")


def test_a_subscription_to_topics_that_may_come_apart_fits_no_ring() -> None:
    desk = Desk()
    desk.hello("ann")
    desk.subscribe("ann", "{a}one", "{a}two")
    assert unfit_for_ring(desk.engine.broker.machine) == ""
    desk.subscribe("ann", "one", "two")
    assert "'ann' is subscribed to 'one', 'two' as one" in unfit_for_ring(desk.engine.broker.machine)


def test_an_unheard_of_request_is_refused_as_ever() -> None:
    desk = growing()
    assert "a single broker without members" in desk.ask(operators.RemoveMember(1, "1")).text
    with pytest.raises(InvalidRequest):
        desk.engine.log.growth.answer(desk.now_ms, "peer", operators.AddMember(1, "tcp://nowhere:1"), 0)  # type: ignore[union-attr]
