"""Nodes of a ring (P7, P8, P12): any node serves any client, and the owner of a topic has the last word."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.node.rings import RingNode, Rings, topic_in
from tidings.errors import Fenced
from tidings.message import Columns
from tidings.node.ring.answers import OWN
from tidings.node.ring.engine import RingMember
from tidings.node.ring.leading import LEAVE_NOTICE_MS
from tidings.protocols.broker import messages, operators
from tidings.protocols.multipaxos.messages import Accept, Prepare
from tidings.protocols.multipaxos.values import Ballot
from tidings.protocols.ring.handoff_messages import Nothing
from tidings.protocols.ring.key_ranges import WHOLE, common, joined
from tidings.protocols.ring.messages import Back, Gone, GroupDescriptor, NotOwner, Relay, Word
from tidings.protocols.ring.ownership import Ownership
from tidings.settings import RingSettings
from tidings.wire import codec
from tidings.wire.replication import encode_message as encode_peer
from tidings.wire.ring import Node as ToNode
from tidings.wire.ring import decode_header, encode_message


@pytest.mark.parametrize("size", [1, 3])
def test_every_node_of_one_group_serves(size: int) -> None:
    """P8: a put that comes in anywhere is stored by the leader the owner."""
    ring = Rings(1, size)
    for number, node in enumerate(ring.nodes.values()):
        epoch = ring.hello(node, f"ann{number}")
        assert isinstance(ring.put(node, f"ann{number}", epoch, "news", b"hello"), messages.PutDone)
    assert ring.values("news") == [b"hello"] * size


def test_a_bad_request_is_answered_by_the_node_it_came_to() -> None:
    ring = Rings()
    (node,) = ring.nodes.values()
    node.engine.receive(ring.now_ms, b"fuzzer", [b"\x93\xa3put\x07"])
    ring.run_until_quiet()
    assert [type(answer) for who, answer, _ in node.heard if who == b"fuzzer"] == [messages.Failed]


def follower_of(ring: Rings) -> RingNode:
    return next(node for node in ring.nodes.values() if node is not ring.leader_of(ring.groups[0]))


def read(ring: Rings, node: RingNode, peer: bytes, epoch: int, stream: int = 1) -> Any:
    flow = messages.Flow(10 + stream, "ann", epoch, ("news",), stream, (messages.Position("news", 0),), 100, 100_000)
    return ring.ask(node, flow, peer=peer)


def test_deliveries_come_through_the_node_where_the_reader_is() -> None:
    ring = Rings(1, 3)
    node = follower_of(ring)
    epoch = ring.hello(node, "ann")
    ring.ask(node, messages.Subscribe(3, "ann", epoch, ("news",)))
    assert isinstance(read(ring, node, b"reader", epoch), messages.Flowing)
    ring.put(node, "ann", epoch, "news", b"one", b"two")
    ring.wait(lambda: [1 for who, each, _ in node.heard if who == b"reader" and is_delivery(each)], "a delivery")
    (batches,) = [batches for who, each, batches in node.heard if who == b"reader" and is_delivery(each)]
    assert [batch.values for batch in batches] == [[b"one", b"two"]]


def is_delivery(answer: object) -> bool:
    return isinstance(answer, messages.Delivery)


def test_when_a_leader_dies_its_connections_are_told_to_come_again_and_nothing_overtakes() -> None:
    """Everything that a connection still carries is dropped once its way has changed."""
    ring = Rings(1, 3)
    node, leader = follower_of(ring), ring.leader_of(ring.groups[0])
    assert leader is not None
    epoch = ring.hello(node, "ann")
    ring.ask(node, messages.Subscribe(3, "ann", epoch, ("news",)))
    read(ring, node, b"reader", epoch)
    leader.kill()
    part = messages.Part((messages.Target("news", 1),), 1)
    ring.say(node, b"reader", messages.Put(20, "ann", epoch, part), Columns(1, "ann", [b"lost"]))
    ring.wait(lambda: ring.leader_of(ring.groups[0]), "another leader")
    ring.wait(
        lambda: [1 for who, each, _ in node.heard if who == b"reader" and isinstance(each, messages.NotLeader)],
        "the connection is told",
    )
    second = messages.Part((messages.Target("news", 2),), 1)
    ring.say(node, b"reader", messages.Put(21, "ann", epoch, second), Columns(1, "ann", [b"overtaken"]))
    ring.pass_ms(500)
    assert ring.answer(node, b"reader", 21) == ring.answer(node, b"reader", 0)
    assert isinstance(ring.put(node, "ann", epoch, "news", b"first"), messages.PutDone)
    assert ring.values("news") == [b"first"]


def test_a_descriptor_names_the_ballot_by_which_the_leader_leads() -> None:
    """A ballot that its node only asks for may never be won: under its number the next leader would not be believed."""
    ring = Rings(1, 3)
    node, leader = follower_of(ring), ring.leader_of(ring.groups[0])
    assert leader is not None
    number, replica = leader.identity.number, node.engine.log.replica.replica
    led = replica.leader_ballot
    for each in ring.nodes.values():
        descriptor = each.engine.ring.descriptor()
        assert (descriptor.leader, descriptor.term, descriptor.leader_number) == (leader.address, led.number, led.node)
        assert led.node == number
    next_ballot = Ballot(led.number + 1, number)
    from_leader(ring, node, Prepare(next_ballot, replica.log.decided))
    assert replica.acceptor.promised == next_ballot
    descriptor = node.engine.ring.descriptor()
    assert (descriptor.leader, descriptor.term, descriptor.leader_number) == ("", 0, 0)
    from_leader(ring, node, Accept(next_ballot, replica.log.decided, (), replica.log.decided, 1))
    known = node.engine.ring.directory.descriptor(node.identity.group)
    assert known is not None
    assert (known.leader, known.term, known.leader_number) == (leader.address, next_ballot.number, number)


def from_leader(ring: Rings, node: RingNode, message: Prepare | Accept) -> None:
    header = (node.identity.group, message.ballot.node, node.identity.number)
    node.engine.receive(ring.now_ms, b"node", encode_peer(message, *header))


def test_a_reader_whose_stream_is_unknown_hears_so_with_its_next_beat() -> None:
    ring = Rings(1, 3)
    node = follower_of(ring)
    epoch = ring.hello(node, "ann")
    ring.ask(node, messages.Subscribe(3, "ann", epoch, ("news",)))
    read(ring, node, b"reader", epoch)
    beat = ring.ask(node, messages.Beat(30, "ann", epoch, (1,)), peer=b"reader")
    assert beat == messages.BeatDone(30, ())
    beat = ring.ask(node, messages.Beat(31, "ann", epoch, (1, 7)), peer=b"reader")
    assert beat == messages.BeatDone(31, (7,))


def test_a_name_that_another_session_has_taken_is_fenced_at_its_home() -> None:
    ring = Rings(1, 3)
    node = follower_of(ring)
    old, new = ring.hello(node, "ann", b"one"), ring.hello(node, "ann", b"two")
    assert new > old
    beat = ring.ask(node, messages.Beat(5, "ann", old, ()))
    assert isinstance(beat, messages.Failed) and beat.number == Fenced.number


# Several groups.


def test_a_second_group_takes_its_part_of_the_circle() -> None:
    ring = Rings(3, 1)
    ranges = [
        node.engine.ring.ownership.ranges for node in ring.nodes.values() if node.engine.ring.ownership is not None
    ]
    assert joined(key_range for each in ranges for key_range in each) == (WHOLE,)
    assert not common(ranges[0], ranges[1])


def test_any_node_serves_any_topic() -> None:
    """P8: the owner is found, remembered, and takes what came in elsewhere."""
    ring = Rings(3, 1)
    for owner in list(ring.nodes.values()):
        topic = topic_in(owner)
        for number, node in enumerate(ring.nodes.values()):
            epoch = ring.hello(node, f"ann{number}")
            assert isinstance(ring.put(node, f"ann{number}", epoch, topic, b"hello"), messages.PutDone)
        assert ring.values(topic) == [b"hello"] * 3
    names = ring.ask(node, messages.AskTopics(9))
    assert len(names.topics) == 3


def test_a_newer_session_fences_the_older_where_it_has_spoken() -> None:
    ring = Rings(3, 1)
    one, two, three = ring.nodes.values()
    topic = topic_in(two)
    old = ring.hello(one, "ann", b"one")
    assert isinstance(ring.put(one, "ann", old, topic, b"old"), messages.PutDone)
    new = ring.hello(three, "ann", b"two")
    assert isinstance(ring.put(three, "ann", new, topic, b"new"), messages.PutDone)
    late = ring.put(one, "ann", old, topic, b"late")
    assert isinstance(late, messages.Failed) and late.number == Fenced.number
    assert ring.values(topic) == [b"old", b"new"]


def test_topics_move_to_a_group_that_joins_and_back_when_it_leaves() -> None:
    """P7, P12: what was stored goes with its topic, and a publisher's numbers too."""
    ring = Rings(1, 1)
    (first,) = ring.nodes.values()
    epoch = ring.hello(first, "ann")
    topics = [f"topic-{number}" for number in range(20)]
    for topic in topics:
        ring.put(first, "ann", epoch, topic, b"one")
    (second,) = ring.add_group(1)
    ring.wait(lambda: ring.owns(ring.groups[1]), "the new group owns something")
    owners = {ring.owner_of(topic).address for topic in topics}
    assert owners == {first.address, second.address}
    for topic in topics:
        part = messages.Part((messages.Target(topic, 1),), 1)
        again = ring.ask(second, messages.Put(5, "ann", epoch, part), Columns(1, "ann", [b"one"]))
        assert again == messages.PutDone(5, (messages.Stored(None, ((0, 0),)),))
        ring.put(second, "ann", epoch, topic, b"two")
        assert ring.values(topic) == [b"one", b"two"]
    assert isinstance(ring.ask(second, operators.LeaveRing(6)), operators.RingLeft)
    for topic in topics:
        assert ring.owner_of(topic) is first
        ring.put(second, "ann", epoch, topic, b"three")
        assert ring.values(topic) == [b"one", b"two", b"three"]


def test_a_group_that_is_to_leave_before_it_has_come_comes_first() -> None:
    """P12: something may be on its way to it, which nobody else would ever get."""
    ring = Rings(1, 1)
    (late,) = ring.add_group(1)
    ring.wait(
        lambda: late.engine.ring.leading is not None and late.engine.ring.ownership is not None,
        "it leads, and owns nothing",
    )
    assert not ring.owns([late])
    ring.say(late, b"operator", operators.LeaveRing(1))
    ring.wait(lambda: ring.answer(late, b"operator", 1) is not None, "an answer")
    assert ring.answer(late, b"operator", 1) == operators.RingLeft(1)
    (first,) = ring.groups[0]
    assert first.engine.ring.ownership is not None and first.engine.ring.ownership.ranges == (WHOLE,)
    assert late.engine.ring.ownership is not None and late.engine.ring.ownership.has_left


def test_an_operator_who_asks_again_is_answered_once() -> None:
    ring = Rings(2, 1)
    _, (leaver,) = ring.groups
    for request in range(1, 6):
        ring.say(leaver, b"operator", operators.LeaveRing(request))
    ring.wait(lambda: ring.answer(leaver, b"operator", 5) is not None, "the last request is answered")
    ring.pass_ms(500)
    assert [answer for who, answer, _ in leaver.heard if who == b"operator"] == [operators.RingLeft(5)]


def test_a_group_goes_on_leaving_when_another_leads() -> None:
    """P12: the intention is in the journal, so nobody has to ask again."""
    ring = Rings(2, 3)
    group = ring.groups[1]
    leader = next(node for node in group if node.engine.log.serving)
    ring.say(leader, b"operator", operators.LeaveRing(1))
    ring.wait(lambda: leader.engine.ring.ownership is not None and leader.engine.ring.ownership.departs, "it is agreed")
    assert ring.owns(group)
    leader.kill()
    others = [node for node in group if node is not leader]
    ring.wait(
        lambda: any(node.engine.ring.ownership is not None and node.engine.ring.ownership.has_left for node in others),
        "the next leader has given everything away",
    )


def test_of_two_groups_that_are_to_leave_the_last_one_stays() -> None:
    ring = Rings(2, 1)
    nodes = list(ring.nodes.values())
    for node in nodes:
        ring.say(node, b"operator", operators.LeaveRing(1))

    def stays(ownership: Ownership | None) -> bool:
        return ownership is not None and ownership.ranges == (WHOLE,) and not ownership.departs

    ring.wait(lambda: any(stays(node.engine.ring.ownership) for node in nodes), "one has all of it, and is to stay")
    ring.pass_ms(3_000)
    assert any(stays(node.engine.ring.ownership) for node in nodes)


@pytest.mark.parametrize(
    ("where", "what", "planted"),
    [
        (RingMember, "_on_leave_notice", lambda *_: None),
        (Ownership, "confirmed", property(lambda _: 0)),
    ],
    ids=["nobody has heard that it left", "its source may wait for it"],
)
def test_a_group_is_needed_until_others_know_that_it_has_left(
    where: type, what: str, planted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P12: the operator is told, and may switch it off, when nobody can wait for it any more."""
    ring = Rings(2, 1)
    _, (leaver,) = ring.groups
    with monkeypatch.context() as patched:
        patched.setattr(where, what, planted)
        ring.say(leaver, b"operator", operators.LeaveRing(1))
        ring.wait(
            lambda: leaver.engine.ring.ownership is not None and leaver.engine.ring.ownership.has_left,
            "everything is given away",
        )
        ring.pass_ms(2 * LEAVE_NOTICE_MS)
        assert ring.answer(leaver, b"operator", 1) is None
    ring.wait(lambda: ring.answer(leaver, b"operator", 1) is not None, "the operator is told")
    assert ring.answer(leaver, b"operator", 1) == operators.RingLeft(1)


def test_a_group_that_nobody_can_reach_does_not_keep_another_from_leaving() -> None:
    """P12: it may be down for long. One that has heard tells the others."""
    ring = Rings(3, 1)
    (first,), (second,), (third,) = ring.groups
    given = third.engine.ring.ownership.taken_over if third.engine.ring.ownership is not None else {}
    for node in (first, second):
        if node.engine.ring.descriptor().group not in given:
            node.kill()
            break
    assert isinstance(ring.ask(third, operators.LeaveRing(1)), operators.RingLeft)


def test_a_target_learns_from_a_source_that_owns_nothing_who_does() -> None:
    """Or it would ask again and again for what was true once."""
    ring = Rings(1, 1)
    (node,) = ring.nodes.values()
    other, owner = (
        GroupDescriptor(b"other", ("tcp://127.0.0.1:1",), slot=9),
        GroupDescriptor(b"owner", ("tcp://127.0.0.1:2",)),
    )
    word = Word(other, (), (Gone(WHOLE, owner),))
    node.engine.receive(ring.now_ms, b"node", encode_message("tcp://127.0.0.1:1", Nothing(1, word)))
    assert node.engine.ring.directory.descriptor(b"owner") == owner


def test_a_question_to_every_group_leaves_nothing_out() -> None:
    """P9: a group that does not own any more what it is asked for says so, instead of answering for the rest."""
    ring = Rings(2, 1)
    one, two = ring.nodes.values()
    asked = messages.AskTopics(7)
    for ranges, answer in ((one.engine.ring.ownership.ranges, Back), ((WHOLE,), NotOwner)):  # type: ignore[union-attr]
        ring.run_until_quiet()
        relay = encode_message(two.address, Relay(5, one.identity.group, None, ranges), [codec.encode(asked)])
        one.engine.receive(ring.now_ms, b"node", relay)
        while not (headers := [decode_header(frames) for to, frames in outgoing_of(ring, one) if to == two.address]):
            ring.step()
        assert [type(header.message) for header in headers] == [answer]


def outgoing_of(ring: Rings, node: RingNode) -> list[tuple[str, list[Any]]]:
    """What a node wants to send to other nodes as an owner, before it is sent."""
    node.engine.gather(ring.now_ms)
    node.commit(ring.now_ms)
    return [
        (peer.address, frames)
        for peer, frames in node.engine.outgoing
        if isinstance(peer, ToNode) and isinstance(decode_header(frames).message, Back | NotOwner)
    ]


def test_many_groups_that_join_at_once_all_get_their_part() -> None:
    """The one who has just given something away is asked again what it owns, before more is wished for of it."""
    ring = Rings(8, 1)
    ranges = [
        node.engine.ring.ownership.ranges for node in ring.nodes.values() if node.engine.ring.ownership is not None
    ]
    assert joined(key_range for each in ranges for key_range in each) == (WHOLE,)
    assert sum(len(each) for each in ranges) == 8


def test_a_group_joins_by_whichever_of_its_contacts_is_there() -> None:
    ring = Rings(1, 1)
    (first,) = ring.nodes.values()
    (late,) = ring.add_group(1)
    gone = tuple(f"tcp://127.0.0.1:{port}" for port in range(1, 9))
    late.engine.ring_settings = RingSettings(contacts=(*gone, first.address))
    ring.wait(lambda: ring.owns([late]), "it owns something")


def test_a_newer_session_fences_the_older_with_every_owner_that_knows_it() -> None:
    """Before it has said anything there: its hello is told to all that know the name."""
    ring = Rings(3, 1)
    one, two, three = ring.nodes.values()
    topic, not_leader = topic_in(two), one.engine.ring.ownership
    assert not_leader is not None
    name = next(name for number in range(100) if not_leader.owns_home(name := f"ann{number}"))
    old = ring.hello(one, name, b"one")
    assert isinstance(ring.put(one, name, old, topic, b"old"), messages.PutDone)
    ring.hello(three, name, b"two")
    late = ring.put(one, name, old, topic, b"late")
    assert isinstance(late, messages.Failed) and late.number == Fenced.number


def test_beats_of_a_second_connection_reach_the_group_that_a_member_works_for() -> None:
    """A handler that takes long keeps its lease, wherever its topic lies."""
    ring = Rings(3, 1)
    one, two, three = ring.nodes.values()
    topic = topic_in(two)
    epoch = ring.hello(one, "ann")
    assert isinstance(ring.ask(one, messages.Join(3, "ann", epoch, "workers", topic)), messages.JoinDone)
    before = two.engine.broker._heard_at_ms["ann"]
    ring.pass_ms(1_000)
    assert two.engine.broker._heard_at_ms["ann"] == before
    ring.ask(three, messages.Beat(4, "ann", epoch, ()))
    assert two.engine.broker._heard_at_ms["ann"] > before


def test_a_question_about_everything_leaves_out_no_group_that_has_just_joined() -> None:
    ring = Rings(1, 1)
    (first,) = ring.nodes.values()
    epoch = ring.hello(first, "ann")
    topics = sorted(f"topic-{number}" for number in range(20))
    for topic in topics:
        ring.put(first, "ann", epoch, topic, b"one")
    ring.add_group(1)
    while not ring.owns(ring.groups[1]):
        ring.step()
        told = ring.ask(first, messages.AskTopics(9))
        assert sorted(each.name for each in told.topics) == topics


def test_a_node_hears_what_was_not_taken_of_its_own_requests() -> None:
    """P9: a proxy's own requests have larger numbers than those of clients, and what they ask may have moved."""
    ring = Rings()
    (node,) = ring.nodes.values()
    not_owner = NotOwner(1, OWN + 7, node.engine.ring.word())
    assert decode_header([bytes(frame) for frame in encode_message(node.address, not_owner)]).message == not_owner
