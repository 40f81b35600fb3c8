"""One seat: what it says, to whom, and with whose cards (P9)."""

from __future__ import annotations

import random

import msgspec
import pytest

from tidings.protocols.chord.identifiers import key_of
from tidings.protocols.chord.messages import JOIN, AskLinks, Hop, Place, Precede, TellLinks
from tidings.protocols.ring.directory import Directory
from tidings.protocols.ring.messages import Between, Card
from tidings.protocols.ring.seat import HEAL_MS, SETTLE_MS, SILENT_MS, Dissemination, Seat
from tidings.protocols.stack import Message
from tidings.settings import ChordSettings, ScribeSettings

RING = sorted((Card(bytes([number]), (f"tcp://{number}",)) for number in range(12)), key=lambda card: card.point)
"""Groups in the order in which they stand on the circle."""
OWN = RING[0]


def make(*known: Card, dissemination: Dissemination = "scribe") -> tuple[Seat, Directory]:
    directory = Directory()
    for card in known:
        directory.learn_card(card)
    seat = Seat(OWN.group, directory, ChordSettings(), ScribeSettings(), random.Random(1), dissemination)
    seat.start(0, OWN)
    return seat, directory


def said(seat: Seat, kind: type[Message]) -> list[tuple[Card, Between, Message]]:
    """What a seat said of one kind, with the message inside."""
    told = []
    for card, message in seat.outgoing:
        if msgspec.msgpack.decode(message.message)[0] == kind.__name__:
            told.append((card, message, msgspec.msgpack.decode(message.message, type=kind)))
    return told


def tell(seat: Seat, now_ms: int, sender: Card, message: Message, *cards: Card) -> None:
    seat.receive(now_ms, Between(sender, OWN.group, cards, msgspec.msgpack.encode(message)))


def run(seat: Seat, until_ms: int, own: Card = OWN) -> None:
    while seat.next_ms <= until_ms:
        seat.tick(seat.next_ms, own)


def test_a_seat_that_knows_no_other_is_the_root_of_every_point() -> None:
    seat, _ = make()
    point = key_of("anything")
    seat.find(0, point)
    run(seat, 5_000)
    assert seat.found == [(point, OWN.group)]
    assert not seat.outgoing
    seat.subscribe("news")
    seat.publish("news", b"one")
    assert seat.arrived == [("news", b"one")]


def test_a_seat_without_a_place_asks_for_one_and_takes_it() -> None:
    seat, directory = make(*RING[1:3])
    asked = said(seat, Hop)
    assert {card.group for card, _, _ in asked} == {card.group for card in RING[1:3]}
    assert all(hop.kind == JOIN and between.sender == OWN for _, between, hop in asked)  # type: ignore[attr-defined]
    place = Place((RING[1].seat, RING[2].seat, RING[5].seat))
    tell(seat, 10, RING[9], place, RING[5])
    assert seat.is_member
    assert seat.predecessor == RING[9].group
    assert seat.successors == (RING[1].group, RING[2].group, RING[5].group)
    assert directory.card(RING[5].group) == RING[5]


def test_a_seat_settles_by_its_directory_when_nobody_has_a_place_for_it() -> None:
    left = msgspec.structs.replace(RING[1], left=True)
    seat, _ = make(left, *RING[2:])
    run(seat, SETTLE_MS - 1)
    assert seat.successors == ()
    run(seat, SETTLE_MS + 600)
    assert seat.predecessor == RING[-1].group
    assert seat.successors == tuple(card.group for card in RING[2:10]), "Who left is not considered."


def settled(*known: Card) -> tuple[Seat, Directory]:
    seat, directory = make(*known)
    tell(seat, 1, RING[9], Place(tuple(card.seat for card in known)))
    assert seat.is_member
    seat.outgoing.clear()
    return seat, directory


def test_those_that_chord_has_skipped_are_asked_in_turn_and_adopted_when_they_answer() -> None:
    seat, directory = settled(RING[6], RING[7])
    for card in (RING[3], RING[5], RING[8]):
        directory.learn_card(card)
    asked: list[Card] = []
    for round_ in range(1, 5):
        seat.outgoing.clear()
        seat.tick(round_ * HEAL_MS, OWN)
        asked += [card for card, _, _ in said(seat, AskLinks) if card in (RING[3], RING[5], RING[8])]
        for card, _, query in said(seat, AskLinks):
            if card == RING[6]:
                tell(seat, round_ * HEAL_MS, RING[6], TellLinks(query.query, None, (RING[7].seat,)))  # type: ignore[attr-defined]
    assert asked[:3] == [RING[3], RING[5], RING[3]], "The nearest first, and only those before the successor."
    query = next(query for card, _, query in reversed(said(seat, AskLinks)) if card == asked[-1])
    tell(seat, 4_010, asked[-1], TellLinks(query.query, None, (RING[6].seat,)))  # type: ignore[attr-defined]
    assert seat.successors == (asked[-1].group, RING[6].group)
    assert any(card == asked[-1] for card, _, _ in said(seat, Precede))


def test_seats_that_left_are_let_go_of() -> None:
    seat, directory = settled(RING[2], RING[3])
    directory.learn_card(msgspec.structs.replace(RING[2], left=True, slot=1))
    seat.tick(HEAL_MS, OWN)
    assert seat.successors == (RING[3].group,)
    seat.outgoing.clear()
    tell(seat, HEAL_MS, RING[2], AskLinks(7))
    assert not said(seat, TellLinks), "It is not answered either."


def test_messages_bring_the_cards_of_all_whom_they_name_and_of_who_stands_behind_the_receiver() -> None:
    seat, directory = settled(RING[2], RING[3])
    directory.learn_card(RING[8])
    directory.learn_card(RING[7])
    tell(seat, 20, RING[6], AskLinks(5))
    [(card, between, answer)] = said(seat, TellLinks)
    assert card == RING[6]
    assert between.receiver == RING[6].group
    assert answer == TellLinks(5, RING[9].seat, (RING[2].seat, RING[3].seat))
    assert between.cards == (RING[9], RING[2], RING[3], RING[7])


def test_every_message_brings_the_card_of_the_group_as_it_is_now() -> None:
    seat, _ = settled(RING[2])
    newer = msgspec.structs.replace(OWN, leader="tcp://elsewhere", term=3)
    seat.tick(2_000, newer)
    assert seat.outgoing
    assert all(between.sender == newer for _, between in seat.outgoing)


@pytest.mark.parametrize("junk", [b"", b"\xff", b"\x93\xa8AskLinks", msgspec.msgpack.encode(["Nothing", 1])])
def test_what_cannot_be_read_is_dropped(junk: bytes) -> None:
    seat, _ = settled(RING[2])
    seat.receive(5, Between(RING[2], OWN.group, (), junk))
    assert seat.dropped == 1
    assert not seat.outgoing


def test_messages_for_another_group_are_not_taken() -> None:
    seat, directory = settled(RING[2])
    seat.receive(5, Between(RING[4], RING[5].group, (), msgspec.msgpack.encode(AskLinks(1))))
    assert not seat.outgoing
    assert directory.card(RING[4].group) == RING[4], "Its card is worth knowing all the same."


def test_names_that_are_no_seats_do_no_harm() -> None:
    seat, _ = settled(RING[2])
    tell(seat, 5, RING[2], Hop(1, JOIN, RING[1].point, "seat:nonsense", 0, 0, False, b""))
    run(seat, 3_000)
    assert seat.dropped


@pytest.mark.parametrize("dissemination", ["scribe", "gossip"])
def test_subscribing_and_unsubscribing_again_changes_nothing(dissemination: Dissemination) -> None:
    seat, _ = make(dissemination=dissemination)
    seat.unsubscribe("news")
    assert seat.subscribe("news")
    assert seat.subscribe("news")
    seat.publish("news", b"one")
    seat.unsubscribe("news")
    seat.unsubscribe("news")
    seat.publish("news", b"two")
    assert seat.arrived == [("news", b"one")]
    assert not seat.publish("news", bytes(2_000_000)), "That is too large for this road."


def test_before_its_start_a_seat_only_learns() -> None:
    directory = Directory()
    seat = Seat(OWN.group, directory, ChordSettings(), ScribeSettings(), random.Random(1))
    tell(seat, 1, RING[4], AskLinks(1), RING[5])
    assert directory.card(RING[5].group) == RING[5]
    assert not seat.is_member
    assert seat.subscribe("news")
    assert not seat.publish("news", b"too early")
    seat.find(2, RING[4].point)
    assert not seat.outgoing
    assert seat.found == [(RING[4].point, RING[4].group)]
    seat.start(3, OWN)
    assert seat.publish("news", b"one")
    assert seat.arrived == [("news", b"one")], "What was subscribed to before counts from the start."


def test_a_group_that_does_not_answer_is_asked_by_its_members_too() -> None:
    led = msgspec.structs.replace(RING[2], leader="tcp://gone", term=1)
    seat, _ = settled(led)
    run(seat, SILENT_MS - 100)
    assert {card.leader for card, _, _ in said(seat, AskLinks)} == {"tcp://gone"}
    run(seat, 4 * SILENT_MS)
    assert {card.leader for card, _, _ in said(seat, AskLinks)} == {"tcp://gone", ""}
