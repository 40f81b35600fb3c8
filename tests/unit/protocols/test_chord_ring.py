"""The rules that keep the ring (P4): one test for each, after Zave (2017), beside what Stoica et al. (2001) did."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.protocols.circle import NODES, sent, timers, told
from tidings.errors import InvalidRequest
from tidings.protocols.chord import (
    Chord,
    ChordSettings,
    Isolated,
    Links,
    NeighboursChanged,
    TakePlace,
    identifier,
    stable_links,
)
from tidings.protocols.chord.identifiers import SIZE, between, distance, within
from tidings.protocols.chord.messages import (
    JOIN,
    AskLinks,
    Hop,
    JoinDue,
    Place,
    Precede,
    QueryDue,
    StabiliseDue,
    TellLinks,
)
from tidings.protocols.chord.ring import Ring
from tidings.protocols.stack import Effect, Event, Message, NodeId, PeerDown, Received, Requested, TimerFired
from tidings_lab.experiments.rules_2001 import Ring2001

A, B, C, D, E, F = NODES[:6]
SETTINGS = ChordSettings(successors_max=3, query_tries=2)

points = st.integers(0, SIZE - 1)


class Node:
    """A Chord node in a ring A, B, ..., with whom a test speaks."""

    def __init__(self, name: NodeId, ring: tuple[NodeId, ...] = (), contacts: tuple[NodeId, ...] = ()) -> None:
        links = stable_links(ring, SETTINGS)[name] if ring else None
        self.chord = Chord(name, SETTINGS, Random(1), links=links, contacts=contacts)
        self.started = self.chord.start(0)

    def hear(self, peer: NodeId, message: Message) -> list[Effect]:
        return self.chord.handle(Received(0, peer, message))

    def tell(self, event: Event) -> list[Effect]:
        return self.chord.handle(event)

    def stabilise(self) -> tuple[NodeId, int]:
        """Begins a round; says who was asked, and the number of the question."""
        [(peer, ask)] = sent(self.tell(TimerFired(0, StabiliseDue())), AskLinks)
        return peer, ask.query

    def silence(self, query: int) -> list[Effect]:
        """Nobody answers, however often the question is asked."""
        effects: list[Effect] = []
        for _ in range(SETTINGS.query_tries):
            effects = self.tell(TimerFired(0, QueryDue(query)))
            query += 1
        return effects

    @property
    def successors(self) -> tuple[NodeId, ...]:
        return self.chord.ring.successors

    @property
    def predecessor(self) -> NodeId | None:
        return self.chord.ring.predecessor


# The circle (Chord, section 4.2).


@given(points, points, points)
def test_exactly_one_way_round_meets_a_point(start: int, point: int, end: int) -> None:
    if len({start, point, end}) == 3:
        assert between(start, point, end) != between(end, point, start)


@given(points, points)
def test_a_point_is_owned_by_its_own_node_and_not_by_the_one_before(start: int, end: int) -> None:
    assert within(start, end, end)
    if start != end:
        assert not within(start, start, end)


def test_identifiers_are_sha_256() -> None:
    assert identifier("") == 0xE3B0C44298FC1C149AFBF4C8996FB92427AE41E4649B934CA495991B7852B855


# Founding.


def test_a_founded_ring_is_complete() -> None:
    links = stable_links((C, A, D, B), SETTINGS)
    assert links[A] == Links(D, (B, C, D), links[A].fingers)
    assert links[D].successors == (A, B, C)


def test_a_ring_needs_one_member_more_than_its_lists_are_long() -> None:
    with pytest.raises(AssertionError, match="4 founding members"):
        stable_links((A, B, C), SETTINGS)


def test_fingers_are_the_first_nodes_behind_powers_of_two() -> None:
    for name, links in stable_links(NODES, SETTINGS).items():
        for k, finger in links.fingers:
            point = (identifier(name) + (1 << k)) % SIZE
            assert finger == min(NODES, key=lambda node, point=point: distance(point, identifier(node)))


@pytest.mark.parametrize(("name", "value"), [("successors_max", 1), ("hop_tries", 0)])
def test_senseless_settings_are_refused(name: str, value: int) -> None:
    with pytest.raises(InvalidRequest, match=name):
        ChordSettings(**{name: value})


# Joining.


def test_a_joiner_asks_a_contact_for_its_place() -> None:
    node = Node(B, contacts=(D, E))
    [(peer, hop)] = sent(node.started, Hop)
    assert (peer, hop.kind, hop.origin) == (D, JOIN, B)


def test_a_joiner_asks_the_next_contact_when_the_first_is_silent() -> None:
    node = Node(B, contacts=(D, E))
    assert [peer for peer, _ in sent(node.tell(TimerFired(0, JoinDue())), Hop)] == [E]


def test_a_joiner_adopts_the_whole_list_of_the_node_before_it() -> None:
    """2001: it would know one successor, and no predecessor."""
    node = Node(B, contacts=(D,))
    effects = node.hear(A, Place((C, D, E)))
    assert (node.predecessor, node.successors) == (A, (C, D, E))
    assert sent(effects, AskLinks)[0][0] == C
    assert told(effects) == [NeighboursChanged(A, (C, D, E))]


def test_a_place_that_is_not_ours_is_not_taken() -> None:
    node = Node(B, contacts=(D,))
    node.hear(C, Place((D, E, F)))
    assert not node.chord.ring.is_member


def test_the_node_before_a_joiner_gives_its_list() -> None:
    node = Node(A, (A, C, D, E))
    effects = node.hear(C, Hop(7, JOIN, identifier(B).to_bytes(32), B, 0, 1, False, b""))
    assert sent(effects, Place) == [(B, Place((C, D, E)))]
    assert node.successors == (C, D, E), "it finds the joiner by stabilising, not before"


def test_a_joiner_that_died_and_came_back_is_not_its_own_successor() -> None:
    node = Node(A, (A, B, C, D))
    effects = node.hear(C, Hop(7, JOIN, identifier(B).to_bytes(32), B, 0, 1, False, b""))
    assert sent(effects, Place) == [(B, Place((C, D, A)))]


def test_a_ring_of_two_survives_a_request_to_join_that_is_older_than_it() -> None:
    """The founding member asked before it had heard of the ring: both are in it, and must not put each other out."""
    nodes = {A: Node(A), B: Node(B, contacts=(A,))}
    for name, other in ((A, B), (B, A)):
        nodes[name].tell(Requested(0, TakePlace(other, (other,))))
    for name, other in ((A, B), (B, A)):
        effects = nodes[name].hear(other, Hop(7, JOIN, identifier(other).to_bytes(32), other, 0, 1, False, b""))
        assert sent(effects, Place) == [(other, Place((name,)))]
        assert (nodes[name].predecessor, nodes[name].successors) == (other, (other,))
        assert told(effects) == []


def test_the_other_node_of_a_ring_of_two_may_come_back() -> None:
    node, again = Node(A), Node(B, contacts=(A,))
    node.tell(Requested(0, TakePlace(B, (B,))))
    [(_, place)] = sent(node.hear(B, Hop(7, JOIN, identifier(B).to_bytes(32), B, 0, 1, False, b"")), Place)
    again.hear(A, place)
    assert (again.predecessor, again.successors, node.successors) == (A, (A,), (B,))


def test_a_joiner_finds_the_only_live_node_behind_a_dead_one() -> None:
    """In a ring of three of which one is dead, no matter who lost its place would be given the dead one alone, again
    and again: the two would never be a ring.
    """
    before = Node(A, contacts=(C,))
    before.hear(C, Place((B, C)))
    [(_, place)] = sent(before.hear(B, Hop(7, JOIN, identifier(B).to_bytes(32), B, 0, 1, False, b"")), Place)
    joiner = Node(B, contacts=(A,))
    [(asked, ask)] = sent(joiner.hear(A, place), AskLinks)
    joiner.silence(ask.query)
    assert (asked, joiner.successors) == (C, (A,))


def test_a_node_outside_of_the_ring_does_not_answer() -> None:
    node = Node(B, contacts=(D,))
    assert node.hear(A, AskLinks(1)) == []
    assert node.hear(A, Precede()) == []


# Stabilising.


def test_the_list_is_the_successor_and_its_list() -> None:
    node = Node(A, (A, B, D, E))
    peer, query = node.stabilise()
    effects = node.hear(peer, TellLinks(query, A, (C, D, E)))
    assert node.successors == (B, C, D)
    assert sent(effects, Precede) == [(B, Precede())]


def test_a_list_never_runs_past_its_own_node() -> None:
    node = Node(A, (A, B, C, D))
    peer, query = node.stabilise()
    node.hear(peer, TellLinks(query, A, (C, A, B)))
    assert node.successors == (B, C)


def test_a_better_successor_is_asked_before_it_is_adopted() -> None:
    """2001: it is adopted at once, and may be dead."""
    node = Node(A, (A, C, D, E))
    peer, query = node.stabilise()
    effects = node.hear(peer, TellLinks(query, B, (D, E, A)))
    [(candidate, ask)] = sent(effects, AskLinks)
    assert candidate == B
    assert node.successors == (C, D, E)
    effects = node.hear(B, TellLinks(ask.query, A, (C, D, E)))
    assert node.successors == (B, C, D)
    assert sent(effects, Precede) == [(B, Precede())]


def test_a_dead_candidate_changes_nothing() -> None:
    node = Node(A, (A, C, D, E))
    peer, query = node.stabilise()
    [(_, ask)] = sent(node.hear(peer, TellLinks(query, B, (D, E, A))), AskLinks)
    effects = node.silence(ask.query)
    assert node.successors == (C, D, E)
    assert sent(effects, Precede) == [(C, Precede())]


def test_the_rules_of_2001_adopt_a_candidate_unasked() -> None:
    chord = Chord(A, SETTINGS, Random(1), links=stable_links((A, C, D, E), SETTINGS)[A], ring=Ring2001)
    chord.start(0)
    [(peer, ask)] = sent(chord.handle(TimerFired(0, StabiliseDue())), AskLinks)
    chord.handle(Received(0, peer, TellLinks(ask.query, B, (D, E, A))))
    assert chord.ring.successors == (B, C, D)


def test_a_silent_successor_is_asked_again_and_then_replaced() -> None:
    node = Node(A, (A, B, C, D))
    _, query = node.stabilise()
    effects = node.tell(TimerFired(0, QueryDue(query)))
    assert [peer for peer, _ in sent(effects, AskLinks)] == [B], "one lost message is no death"
    effects = node.tell(TimerFired(0, QueryDue(query + 1)))
    assert node.successors == (C, D)
    assert [peer for peer, _ in sent(effects, AskLinks)] == [C]


def test_a_broken_connection_replaces_a_successor_at_once() -> None:
    node = Node(A, (A, B, C, D))
    node.stabilise()
    effects = node.tell(PeerDown(0, B))
    assert node.successors == (C, D)
    assert [peer for peer, _ in sent(effects, AskLinks)] == [C]


def test_a_late_answer_of_a_replaced_successor_is_ignored() -> None:
    node = Node(A, (A, B, C, D))
    _, query = node.stabilise()
    node.silence(query)
    node.hear(B, TellLinks(query, A, (C, D, E)))
    assert node.successors == (C, D)


def test_one_round_at_a_time() -> None:
    node = Node(A, (A, B, C, D))
    node.stabilise()
    assert sent(node.tell(TimerFired(0, StabiliseDue()))) == []


def test_without_any_successor_a_node_asks_to_be_let_in_again() -> None:
    node = Node(A, (A, B, C, D))
    node.tell(PeerDown(0, B))
    node.tell(PeerDown(0, C))
    effects = node.tell(PeerDown(0, D))
    assert told(effects) == [NeighboursChanged(None, ()), Isolated()]
    assert [hop.kind for _, hop in sent(effects, Hop)] == [JOIN]
    assert JoinDue() in timers(effects)


# Rectifying.


def test_a_closer_predecessor_is_taken() -> None:
    node = Node(D, (A, B, D, E))
    assert node.predecessor == B
    node.hear(C, Precede())
    assert node.predecessor == C


def test_a_farther_one_is_taken_only_when_the_predecessor_is_dead() -> None:
    """2001: the predecessor is forgotten when a check fails, and then the first that comes is taken."""
    node = Node(D, (A, C, D, E))
    [(peer, ask)] = sent(node.hear(B, Precede()), AskLinks)
    assert (peer, node.predecessor) == (C, C)
    node.silence(ask.query)
    assert node.predecessor == B


def test_a_live_predecessor_stays() -> None:
    node = Node(D, (A, C, D, E))
    [(peer, ask)] = sent(node.hear(B, Precede()), AskLinks)
    node.hear(peer, TellLinks(ask.query, B, (D, E, A)))
    assert node.predecessor == C
    node.silence(ask.query)
    assert node.predecessor == C


def test_of_several_claimants_the_closest_takes_the_place() -> None:
    node = Node(E, (A, D, E, F))
    [(_, ask)] = sent(node.hear(B, Precede()), AskLinks)
    node.hear(C, Precede())
    node.hear(A, Precede())
    node.silence(ask.query)
    assert node.predecessor == C


def test_a_predecessor_that_is_known_to_be_dead_is_not_recommended() -> None:
    node = Node(D, (A, C, D, E))
    node.tell(PeerDown(0, C))
    assert sent(node.hear(B, AskLinks(5))) == [(B, TellLinks(5, None, (E, A)))]
    node.hear(B, Precede())
    assert node.predecessor == B


def test_the_layers_above_hear_of_every_change_once() -> None:
    node = Node(D, (A, B, D, E))
    assert told(node.hear(C, Precede())) == [NeighboursChanged(C, (E, A, B))]
    assert told(node.hear(C, Precede())) == []


@given(st.lists(st.sampled_from(NODES), max_size=8))
def test_no_answer_disorders_a_list(names: list[NodeId]) -> None:
    ring = Ring(A, SETTINGS)
    ring.take_place(stable_links((A, B, C, D), SETTINGS)[A])
    [(peer, ask)] = sent(ring.stabilise(), AskLinks)
    ring.on_links(peer, TellLinks(ask.query, A, tuple(names)))
    away = [distance(ring.own, identifier(name)) for name in ring.successors]
    assert away == sorted(set(away))
    assert 0 not in away
    assert len(away) <= SETTINGS.successors_max
