"""One virtual node: what it says, to whom, and with whose descriptors (P9)."""

from __future__ import annotations

import random

import msgspec
import pytest

from tidings.protocols.chord.identifiers import key_of
from tidings.protocols.chord.messages import JOIN, AskLinks, Hop, Place, Precede, TellLinks
from tidings.protocols.ring.directory import Directory
from tidings.protocols.ring.messages import Between, GroupDescriptor
from tidings.protocols.ring.virtual_node import HEAL_MS, PLACE_MS_MAX, SILENT_MS, Dissemination, VirtualNode
from tidings.protocols.stack import Message
from tidings.settings import ChordSettings, ScribeSettings

RING = sorted(
    (GroupDescriptor(bytes([number]), (f"tcp://{number}",)) for number in range(12)),
    key=lambda descriptor: descriptor.point,
)
"""Groups in the order in which they stand on the circle."""
OWN = RING[0]


def make(*known: GroupDescriptor, dissemination: Dissemination = "scribe") -> tuple[VirtualNode, Directory]:
    directory = Directory()
    for descriptor in known:
        directory.learn_descriptor(descriptor)
    virtual_node = VirtualNode(OWN.group, directory, ChordSettings(), ScribeSettings(), random.Random(1), dissemination)
    virtual_node.start(0, OWN)
    return virtual_node, directory


def said(virtual_node: VirtualNode, kind: type[Message]) -> list[tuple[GroupDescriptor, Between, Message]]:
    """What a virtual node said of one kind, with the message inside."""
    told = []
    for descriptor, message in virtual_node.outgoing:
        if msgspec.msgpack.decode(message.message)[0] == kind.__name__:
            told.append((descriptor, message, msgspec.msgpack.decode(message.message, type=kind)))
    return told


def tell(
    virtual_node: VirtualNode, now_ms: int, sender: GroupDescriptor, message: Message, *descriptors: GroupDescriptor
) -> None:
    virtual_node.receive(now_ms, Between(sender, OWN.group, descriptors, msgspec.msgpack.encode(message)))


def run(virtual_node: VirtualNode, until_ms: int, own: GroupDescriptor = OWN) -> None:
    while virtual_node.next_ms <= until_ms:
        virtual_node.tick(virtual_node.next_ms, own)


def test_a_virtual_node_that_knows_no_other_is_the_root_of_every_point() -> None:
    virtual_node, _ = make()
    point = key_of("anything")
    virtual_node.find(0, point)
    run(virtual_node, 5_000)
    assert virtual_node.found == [(point, OWN.group)]
    assert not virtual_node.outgoing
    virtual_node.subscribe("news")
    virtual_node.publish("news", b"one")
    assert virtual_node.arrived == [("news", b"one")]


def test_a_virtual_node_without_a_place_asks_for_one_and_takes_it() -> None:
    virtual_node, directory = make(*RING[1:3])
    asked = said(virtual_node, Hop)
    assert {descriptor.group for descriptor, _, _ in asked} == {descriptor.group for descriptor in RING[1:3]}
    assert all(hop.kind == JOIN and between.sender == OWN for _, between, hop in asked)  # type: ignore[attr-defined]
    place = Place((RING[1].virtual_node, RING[2].virtual_node, RING[5].virtual_node))
    tell(virtual_node, 10, RING[9], place, RING[5])
    assert virtual_node.is_member
    assert virtual_node.predecessor == RING[9].group
    assert virtual_node.successors == (RING[1].group, RING[2].group, RING[5].group)
    assert directory.descriptor(RING[5].group) == RING[5]


def test_a_virtual_node_acks_by_its_directory_when_nobody_has_a_place_for_it() -> None:
    left = msgspec.structs.replace(RING[1], left=True)
    virtual_node, _ = make(left, *RING[2:])
    run(virtual_node, PLACE_MS_MAX - 1)
    assert virtual_node.successors == ()
    run(virtual_node, PLACE_MS_MAX + 600)
    assert virtual_node.predecessor == RING[-1].group
    assert virtual_node.successors == tuple(descriptor.group for descriptor in RING[2:10]), (
        "Who left is not considered."
    )


def placed(*known: GroupDescriptor) -> tuple[VirtualNode, Directory]:
    virtual_node, directory = make(*known)
    tell(virtual_node, 1, RING[9], Place(tuple(descriptor.virtual_node for descriptor in known)))
    assert virtual_node.is_member
    virtual_node.outgoing.clear()
    return virtual_node, directory


def test_those_that_chord_has_skipped_are_asked_in_turn_and_adopted_when_they_answer() -> None:
    virtual_node, directory = placed(RING[6], RING[7])
    for descriptor in (RING[3], RING[5], RING[8]):
        directory.learn_descriptor(descriptor)
    asked: list[GroupDescriptor] = []
    for round_ in range(1, 5):
        virtual_node.outgoing.clear()
        virtual_node.tick(round_ * HEAL_MS, OWN)
        asked += [
            descriptor for descriptor, _, _ in said(virtual_node, AskLinks) if descriptor in (RING[3], RING[5], RING[8])
        ]
        for descriptor, _, query in said(virtual_node, AskLinks):
            if descriptor == RING[6]:
                tell(virtual_node, round_ * HEAL_MS, RING[6], TellLinks(query.query, None, (RING[7].virtual_node,)))  # type: ignore[attr-defined]
    assert asked[:3] == [RING[3], RING[5], RING[3]], "The nearest first, and only those before the successor."
    query = next(query for descriptor, _, query in reversed(said(virtual_node, AskLinks)) if descriptor == asked[-1])
    tell(virtual_node, 4_010, asked[-1], TellLinks(query.query, None, (RING[6].virtual_node,)))  # type: ignore[attr-defined]
    assert virtual_node.successors == (asked[-1].group, RING[6].group)
    assert any(descriptor == asked[-1] for descriptor, _, _ in said(virtual_node, Precede))


def test_virtual_nodes_that_left_are_let_go_of() -> None:
    virtual_node, directory = placed(RING[2], RING[3])
    directory.learn_descriptor(msgspec.structs.replace(RING[2], left=True, slot=1))
    virtual_node.tick(HEAL_MS, OWN)
    assert virtual_node.successors == (RING[3].group,)
    virtual_node.outgoing.clear()
    tell(virtual_node, HEAL_MS, RING[2], AskLinks(7))
    assert not said(virtual_node, TellLinks), "It is not answered either."


def test_messages_bring_the_descriptors_of_all_whom_they_name_and_of_who_stands_behind_the_receiver() -> None:
    virtual_node, directory = placed(RING[2], RING[3])
    directory.learn_descriptor(RING[8])
    directory.learn_descriptor(RING[7])
    tell(virtual_node, 20, RING[6], AskLinks(5))
    [(descriptor, between, answer)] = said(virtual_node, TellLinks)
    assert descriptor == RING[6]
    assert between.receiver == RING[6].group
    assert answer == TellLinks(5, RING[9].virtual_node, (RING[2].virtual_node, RING[3].virtual_node))
    assert between.descriptors == (RING[9], RING[2], RING[3], RING[7])


def test_every_message_brings_the_descriptor_of_the_group_as_it_is_now() -> None:
    virtual_node, _ = placed(RING[2])
    newer = msgspec.structs.replace(OWN, leader="tcp://elsewhere", term=3)
    virtual_node.tick(2_000, newer)
    assert virtual_node.outgoing
    assert all(between.sender == newer for _, between in virtual_node.outgoing)


@pytest.mark.parametrize("junk", [b"", b"\xff", b"\x93\xa8AskLinks", msgspec.msgpack.encode(["Nothing", 1])])
def test_what_cannot_be_read_is_dropped(junk: bytes) -> None:
    virtual_node, _ = placed(RING[2])
    virtual_node.receive(5, Between(RING[2], OWN.group, (), junk))
    assert virtual_node.dropped == 1
    assert not virtual_node.outgoing


def test_messages_for_another_group_are_not_taken() -> None:
    virtual_node, directory = placed(RING[2])
    virtual_node.receive(5, Between(RING[4], RING[5].group, (), msgspec.msgpack.encode(AskLinks(1))))
    assert not virtual_node.outgoing
    assert directory.descriptor(RING[4].group) == RING[4], "Its descriptor is worth knowing all the same."


def test_names_that_are_no_virtual_nodes_do_no_harm() -> None:
    virtual_node, _ = placed(RING[2])
    tell(virtual_node, 5, RING[2], Hop(1, JOIN, RING[1].point, "seat:nonsense", 0, 0, False, b""))
    run(virtual_node, 3_000)
    assert virtual_node.dropped


@pytest.mark.parametrize("dissemination", ["scribe", "gossip"])
def test_subscribing_and_unsubscribing_again_changes_nothing(dissemination: Dissemination) -> None:
    virtual_node, _ = make(dissemination=dissemination)
    virtual_node.unsubscribe("news")
    assert virtual_node.subscribe("news")
    assert virtual_node.subscribe("news")
    virtual_node.publish("news", b"one")
    virtual_node.unsubscribe("news")
    virtual_node.unsubscribe("news")
    virtual_node.publish("news", b"two")
    assert virtual_node.arrived == [("news", b"one")]
    assert not virtual_node.publish("news", bytes(2_000_000)), "That is too large for this road."


def test_before_its_start_a_virtual_node_only_learns() -> None:
    directory = Directory()
    virtual_node = VirtualNode(OWN.group, directory, ChordSettings(), ScribeSettings(), random.Random(1))
    tell(virtual_node, 1, RING[4], AskLinks(1), RING[5])
    assert directory.descriptor(RING[5].group) == RING[5]
    assert not virtual_node.is_member
    assert virtual_node.subscribe("news")
    assert not virtual_node.publish("news", b"too early")
    virtual_node.find(2, RING[4].point)
    assert not virtual_node.outgoing
    assert virtual_node.found == [(RING[4].point, RING[4].group)]
    virtual_node.start(3, OWN)
    assert virtual_node.publish("news", b"one")
    assert virtual_node.arrived == [("news", b"one")], "What was subscribed to before counts from the start."


def test_a_group_that_does_not_answer_is_asked_by_its_members_too() -> None:
    led = msgspec.structs.replace(RING[2], leader="tcp://gone", term=1)
    virtual_node, _ = placed(led)
    run(virtual_node, SILENT_MS - 100)
    assert {descriptor.leader for descriptor, _, _ in said(virtual_node, AskLinks)} == {"tcp://gone"}
    run(virtual_node, 4 * SILENT_MS)
    assert {descriptor.leader for descriptor, _, _ in said(virtual_node, AskLinks)} == {"tcp://gone", ""}
