"""Fingers, ROUTE and FIND-ROOT (P4): Chord, section 4.3, and what happens when a hop is dead."""

from __future__ import annotations

from random import Random

import pytest
from msgspec.structs import replace

from tests.unit.protocols.circle import NODES, after, sent, told
from tidings.errors import MessageTooLarge
from tidings.protocols.chord import (
    Chord,
    ChordSettings,
    Delivered,
    FindRoot,
    NeighboursChanged,
    RootFound,
    RootUnknown,
    Route,
    RouteStep,
    Stepped,
    identifier,
    stable_links,
)
from tidings.protocols.chord.fingers import Fingers
from tidings.protocols.chord.identifiers import BITS, distance, to_key
from tidings.protocols.chord.messages import (
    LOOKUP,
    ROUTE,
    STEP,
    FixFingersDue,
    Found,
    Hop,
    HopDue,
    HopTaken,
    LookupDue,
    Precede,
)
from tidings.protocols.stack import CancelTimer, Effect, NodeId, PeerDown, Received, Request, Requested, TimerFired

A, B, C, D, E, F = NODES[:6]
LAST = NODES[-1]
SETTINGS = ChordSettings(successors_max=3, hop_tries=2, lookup_tries=2, hops_max=20)
OWN_KEY = to_key(identifier(A))


def node(name: NodeId = A, settings: ChordSettings = SETTINGS) -> Chord:
    chord = Chord(name, settings, Random(1), links=stable_links(NODES, settings)[name])
    chord.start(0)
    return chord


def ask(chord: Chord, request: Request) -> list[Effect]:
    return chord.handle(Requested(0, request))


def hop(key: bytes, kind: int = ROUTE, origin: NodeId = F, is_last: bool = False, hops: int = 1) -> Hop:
    return Hop(9, kind, key, origin, 4, hops, is_last, b"payload")


def hear(chord: Chord, message: Hop, peer: NodeId = F) -> list[Effect]:
    return chord.handle(Received(0, peer, message))


def test_what_a_node_owns_it_delivers_itself() -> None:
    assert told(ask(node(), Route(OWN_KEY, b"payload"))) == [Delivered(OWN_KEY, b"payload", A, 0)]


def test_a_message_goes_to_the_closest_node_before_its_key() -> None:
    chord = node()
    for target in NODES[2:-1]:
        key = after(target)
        [(peer, message)] = sent(ask(chord, Route(key, b"")), Hop)
        known = {*chord.ring.successors, *(name for _, name in chord.fingers.items())}
        nearest = min(known, key=lambda name, key=key: distance(identifier(name), int.from_bytes(key)))
        assert peer == nearest
        assert not message.is_last


def test_the_node_before_a_key_hands_it_to_its_successor_as_the_last_hop() -> None:
    [(peer, message)] = sent(hear(node(), hop(after(A))), Hop)
    assert (peer, message.is_last, message.hops) == (B, True, 2)


def test_every_hop_is_confirmed_before_it_goes_on() -> None:
    effects = hear(node(), hop(after(D)), peer=LAST)
    assert sent(effects)[0] == (LAST, HopTaken(9))


def test_a_confirmed_hop_is_forgotten() -> None:
    chord = node()
    [(peer, message)] = sent(ask(chord, Route(after(D), b"")), Hop)
    assert chord.handle(Received(0, peer, HopTaken(message.number))) == [CancelTimer(HopDue(message.number))]
    assert chord.handle(TimerFired(0, HopDue(message.number))) == []


def test_a_silent_hop_is_tried_again_and_then_the_next_best() -> None:
    chord = node()
    [(first, message)] = sent(ask(chord, Route(after(E), b"")), Hop)
    [(again, _)] = sent(chord.handle(TimerFired(0, HopDue(message.number))), Hop)
    assert again == first
    [(second, _)] = sent(chord.handle(TimerFired(0, HopDue(message.number))), Hop)
    assert second != first
    assert distance(identifier(A), identifier(second)) < distance(identifier(A), identifier(first))


def test_a_broken_connection_is_repaired_at_once_until_nobody_is_left() -> None:
    chord = node()
    [(peer, _)] = sent(ask(chord, Route(after(B), b"")), Hop)
    tried = [peer]
    for _ in range(5):
        # Without any successor the node asks to be let in again, which is not what this is about.
        hops = [(name, hop) for name, hop in sent(chord.handle(PeerDown(0, peer)), Hop) if hop.kind == ROUTE]
        if not hops:
            break
        [(peer, _)] = hops
        tried.append(peer)
    assert tried == [B, C, D], "the closest before the key, and then the successors behind it"
    assert chord.routing.dropped == 1


def test_the_last_hop_goes_back_to_a_closer_owner() -> None:
    """The predecessor has just joined; the node before it has not heard of it."""
    chord = node(D)
    assert chord.ring.predecessor == C
    [(peer, message)] = sent(hear(chord, hop(after(B), is_last=True)), Hop)
    assert (peer, message.is_last) == (C, True)


def test_if_that_one_is_dead_the_key_is_ours() -> None:
    """And the layers above hear first that it is."""
    chord = node(D)
    hear(chord, hop(after(B), is_last=True))
    change, delivered = told(chord.handle(PeerDown(0, C)))
    assert change == NeighboursChanged(None, chord.ring.successors)
    assert isinstance(delivered, Delivered) and delivered.payload == b"payload"


def test_a_last_hop_is_owned_while_the_predecessor_is_dead() -> None:
    chord = node(D)
    chord.handle(PeerDown(0, C))
    assert told(hear(chord, hop(after(B), is_last=True)), Delivered)


def test_a_message_that_goes_in_circles_ends() -> None:
    chord = node()
    assert sent(hear(chord, hop(after(E), hops=20)), Hop) == []
    assert chord.routing.dropped == 1


def test_a_node_outside_of_the_ring_takes_no_hop() -> None:
    chord = Chord(A, SETTINGS, Random(1), contacts=(B,))
    chord.start(0)
    assert hear(chord, hop(after(D))) == []


def test_a_step_ends_at_the_next_node() -> None:
    chord = node()
    [(_, message)] = sent(ask(chord, RouteStep(after(E), b"tree")), Hop)
    assert (message.kind, message.origin) == (STEP, A)
    effects = hear(node(B), hop(after(E), kind=STEP, origin=A), peer=A)
    assert told(effects) == [Stepped(after(E), b"payload", A, is_owner=False)]
    assert sent(effects, Hop) == []


def test_a_step_to_the_owner_says_so() -> None:
    effects = hear(node(B), hop(after(A), kind=STEP, origin=A, is_last=True), peer=A)
    assert told(effects) == [Stepped(after(A), b"payload", A, is_owner=True)]


def test_a_step_is_not_seen_by_a_node_that_only_hands_it_back() -> None:
    effects = hear(node(D), hop(after(B), kind=STEP, origin=B, is_last=True))
    assert told(effects) == []
    assert [message.origin for _, message in sent(effects, Hop)] == [B]


def test_a_payload_that_is_too_large_is_refused() -> None:
    chord = node(settings=replace(SETTINGS, payload_bytes_max=10))
    with pytest.raises(MessageTooLarge, match="above the limit of 10"):
        ask(chord, Route(after(D), b"x" * 11))


def test_beyond_the_limit_a_hop_is_sent_without_waiting() -> None:
    chord = node(settings=replace(SETTINGS, pending_max=1))
    ask(chord, Route(after(D), b""))
    effects = ask(chord, Route(after(D), b""))
    assert len(effects) == 1 and sent(effects, Hop)


# FIND-ROOT.


def test_the_owner_answers_a_lookup() -> None:
    effects = hear(node(B), hop(after(A), kind=LOOKUP, origin=F, hops=3))
    assert sent(effects, Found) == [(F, Found(4, 3))]


def test_a_lookup_is_answered_once() -> None:
    chord = node()
    [(_, message)] = sent(ask(chord, FindRoot(after(D))), Hop)
    found = Received(0, E, Found(message.token, 2))
    assert told(chord.handle(found)) == [RootFound(after(D), E, 2)]
    assert told(chord.handle(found)) == []


def test_a_lookup_of_an_own_key_needs_nobody() -> None:
    assert told(ask(node(), FindRoot(OWN_KEY))) == [RootFound(OWN_KEY, A, 0)]


def test_a_lookup_without_an_answer_is_repeated_and_then_given_up() -> None:
    chord = node()
    [(_, first)] = sent(ask(chord, FindRoot(after(D))), Hop)
    [(_, second)] = sent(chord.handle(TimerFired(0, LookupDue(first.token))), Hop)
    assert told(chord.handle(TimerFired(0, LookupDue(second.token)))) == [RootUnknown(after(D))]


# Fingers.


def test_fixing_goes_round_and_skips_what_must_be_the_same() -> None:
    fingers = Fingers(identifier(A))
    first = fingers.next_to_fix(B)
    assert first == distance(identifier(A), identifier(B)).bit_length()
    fingers.put(first, D)
    assert fingers.next_to_fix(B) == distance(identifier(A), identifier(D)).bit_length()
    fingers.put(BITS - 1, LAST)
    assert fingers.next_to_fix(B) == first


def test_a_finger_is_looked_up_and_kept() -> None:
    chord = node()
    chord.fingers.clear()
    [(_, message)] = sent(chord.handle(TimerFired(0, FixFingersDue())), Hop)
    assert message.kind == LOOKUP
    owner = min(NODES, key=lambda name: distance(int.from_bytes(message.key), identifier(name)))
    chord.handle(Received(0, owner, Found(message.token, 1)))
    assert owner in dict(chord.fingers.items()).values()


def test_a_dead_finger_is_forgotten() -> None:
    chord = node()
    far = dict(chord.fingers.items())[BITS - 1]
    chord.handle(PeerDown(0, far))
    assert far not in dict(chord.fingers.items()).values()


def test_hops_halve_the_distance() -> None:
    """Section 4.3: with right fingers every hop covers at least half of what is left."""
    chord = node()
    for target in NODES[2:-1]:
        key = after(target)
        [(peer, _)] = sent(ask(chord, Route(key, b"")), Hop)
        left = distance(identifier(A), int.from_bytes(key))
        assert distance(identifier(peer), int.from_bytes(key)) <= left / 2 or peer == NODES[NODES.index(target)]


def test_claims_of_others_do_not_move_what_a_node_owns_backwards() -> None:
    chord = node(D)
    chord.handle(Received(0, B, Precede()))
    assert chord.ring.owns(int.from_bytes(after(C)))
    assert not chord.ring.owns(int.from_bytes(after(B)))
