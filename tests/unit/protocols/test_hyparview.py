"""HyParView's rules, one event at a time (P2). The headings in the names of the classes are the paper's."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidings.errors import InvalidRequest
from tidings.protocols.heartbeat import Unwatch, Watch
from tidings.protocols.hyparview import (
    AnswerDue,
    Disconnect,
    ForwardJoin,
    HyParView,
    Join,
    Neighbor,
    NeighborAnswer,
    NeighborDown,
    NeighborUp,
    RepairDue,
    RotateDue,
    Shuffle,
    ShuffleDue,
    ShuffleReply,
)
from tidings.protocols.stack import (
    Ask,
    CancelTimer,
    Effect,
    Event,
    Message,
    Notify,
    PeerDown,
    Received,
    Send,
    SetTimer,
    Timer,
    TimerFired,
)
from tidings.settings import HyParViewSettings

SETTINGS = HyParViewSettings(active_max=2, passive_max=3, active_walk=6, passive_walk=3, answer_ms=50)


def node(
    active: str = "", passive: str = "", contacts: str = "", settings: HyParViewSettings = SETTINGS, seed: int = 1
) -> HyParView:
    """A node `me` with views of one-letter peers, put there by events alone."""
    layer = HyParView("me", tuple(contacts), settings, random.Random(seed))
    for peer in active:
        receive(layer, peer, Neighbor(urgent=True))
    if passive:
        receive(layer, "?", ShuffleReply(tuple(passive)))
    assert layer.active == tuple(active) and layer.passive == tuple(passive)
    return layer


def receive(layer: HyParView, peer: str, message: Message) -> list[Effect]:
    return layer.handle(Received(0, peer, message))


def fire(layer: HyParView, timer: Timer) -> list[Effect]:
    return layer.handle(TimerFired(0, timer))


def up(peer: str) -> list[Effect]:
    return [Ask(Watch(peer)), Notify(NeighborUp(peer))]


def down(peer: str) -> list[Effect]:
    return [Ask(Unwatch(peer)), Notify(NeighborDown(peer))]


def asks(peer: str, urgent: bool) -> list[Effect]:
    return [Send((peer,), Neighbor(urgent)), SetTimer(AnswerDue(peer), 50)]


def yes(peer: str) -> Effect:
    return Send((peer,), NeighborAnswer(accepted=True))


class TestJoinMechanism:
    def test_a_new_node_asks_its_contact(self) -> None:
        effects = node(contacts="c").start(0)
        assert effects[-2:] == [Send(("c",), Join()), SetTimer(AnswerDue("c"), 50)]

    def test_a_node_without_contacts_waits(self) -> None:
        effects = node().start(0)
        assert [type(effect) for effect in effects] == [SetTimer] * 3

    def test_a_node_is_not_its_own_contact(self) -> None:
        layer = HyParView("me", ("me",), SETTINGS, random.Random(1))
        assert not any(isinstance(effect, Send) for effect in layer.start(0))

    def test_the_contact_takes_the_newcomer_in_and_makes_it_known(self) -> None:
        layer = node(active="a")
        assert receive(layer, "n", Join()) == [*up("n"), yes("n"), Send(("a",), ForwardJoin("n", 6))]

    def test_a_full_contact_puts_somebody_out(self) -> None:
        layer = node(active="ab")
        effects = receive(layer, "n", Join())
        (gone,) = {"a", "b"} - set(layer.active)
        (left,) = {"a", "b"} & set(layer.active)
        assert effects == [
            *down(gone),
            Send((gone,), Disconnect()),
            *up("n"),
            yes("n"),
            Send((left,), ForwardJoin("n", 6)),
        ]
        assert layer.passive == (gone,)

    def test_a_neighbour_that_joins_again_is_a_new_one(self) -> None:
        assert receive(node(active="a"), "a", Join()) == [*down("a"), *up("a"), yes("a")]

    def test_the_newcomer_has_a_neighbour_once_the_contact_answers(self) -> None:
        layer = node(contacts="c")
        layer.start(0)
        effects = receive(layer, "c", NeighborAnswer(accepted=True))
        assert effects == [CancelTimer(AnswerDue("c")), *up("c")]

    def test_a_walk_goes_on_to_another_neighbour(self) -> None:
        layer = node(active="ab")
        assert receive(layer, "a", ForwardJoin("n", 5)) == [Send(("b",), ForwardJoin("n", 4))]
        assert layer.passive == ()

    def test_where_prwl_steps_are_left_the_newcomer_becomes_known(self) -> None:
        layer = node(active="ab")
        assert receive(layer, "a", ForwardJoin("n", 3)) == [Send(("b",), ForwardJoin("n", 2))]
        assert layer.passive == ("n",)

    @pytest.mark.parametrize(("active", "walk_left"), [("ab", 0), ("a", 4)])
    def test_where_the_walk_ends_the_newcomer_gets_a_neighbour(self, active: str, walk_left: int) -> None:
        layer = node(active=active)
        assert receive(layer, "a", ForwardJoin("n", walk_left)) == asks("n", urgent=True)

    def test_a_walk_is_never_longer_than_arwl(self) -> None:
        assert receive(node(active="ab"), "a", ForwardJoin("n", 10**9)) == [Send(("b",), ForwardJoin("n", 5))]

    def test_its_own_walk_is_not_for_the_newcomer(self) -> None:
        assert receive(node(active="a"), "a", ForwardJoin("me", 0)) == []


class TestActiveViewManagement:
    def test_a_failed_neighbour_is_replaced_from_the_passive_view(self) -> None:
        layer = node(active="ab", passive="p")
        assert layer.handle(PeerDown(0, "a")) == [*down("a"), *asks("p", urgent=False)]
        assert (layer.active, layer.passive) == (("b",), ("p",))

    def test_a_node_that_has_nobody_asks_with_high_priority(self) -> None:
        layer = node(active="a", passive="p")
        assert layer.handle(PeerDown(0, "a")) == [*down("a"), *asks("p", urgent=True)]

    def test_one_urgent_request_at_a_time_is_enough(self) -> None:
        layer = node(active="a", passive="pq")
        asked = [effect.message for effect in layer.handle(PeerDown(0, "a")) if isinstance(effect, Send)]
        assert asked == [Neighbor(urgent=True), Neighbor(urgent=False)]

    def test_who_accepts_becomes_a_neighbour(self) -> None:
        layer = node(active="ab", passive="p")
        layer.handle(PeerDown(0, "a"))
        assert receive(layer, "p", NeighborAnswer(accepted=True)) == [CancelTimer(AnswerDue("p")), *up("p")]
        assert (layer.active, layer.passive) == (("b", "p"), ())

    def test_who_refuses_stays_known_and_the_next_is_asked(self) -> None:
        layer = node(active="ab", passive="pq")
        (send, _) = layer.handle(PeerDown(0, "a"))[2:]
        assert isinstance(send, Send)
        first = send.peers[0]
        (second,) = {"p", "q"} - {first}
        refused: list[Effect] = [CancelTimer(AnswerDue(first))]
        assert receive(layer, first, NeighborAnswer(accepted=False)) == [*refused, *asks(second, urgent=False)]
        assert layer.passive == ("p", "q")

    def test_who_cannot_be_reached_is_forgotten_and_the_next_is_asked(self) -> None:
        for failure in (PeerDown(0, "p"), TimerFired(0, AnswerDue("p"))):
            layer = node(active="ab", passive="p")
            layer.handle(PeerDown(0, "a"))
            layer.handle(failure)
            assert layer.passive == ()

    def test_high_priority_is_always_granted(self) -> None:
        layer = node(active="ab")
        effects = receive(layer, "n", Neighbor(urgent=True))
        assert effects[-1] == yes("n") and "n" in layer.active and len(layer.active) == 2

    def test_low_priority_is_granted_only_where_there_is_room(self) -> None:
        refused = Send(("n",), NeighborAnswer(accepted=False))
        assert receive(node(active="ab"), "n", Neighbor(urgent=False)) == [refused]
        assert receive(node(active="a"), "n", Neighbor(urgent=False)) == [*up("n"), yes("n")]

    def test_a_neighbour_that_asks_is_told_so(self) -> None:
        assert receive(node(active="ab"), "a", Neighbor(urgent=False)) == [yes("a")]

    def test_a_disconnected_neighbour_becomes_a_known_one(self) -> None:
        layer = node(active="ab")
        assert receive(layer, "a", Disconnect()) == down("a")
        assert (layer.active, layer.passive) == (("b",), ("a",))

    def test_a_disconnect_of_a_stranger_changes_nothing(self) -> None:
        assert receive(node(active="a"), "x", Disconnect()) == []

    def test_a_late_answer_makes_no_half_link(self) -> None:
        layer = node(active="a")
        assert receive(layer, "x", NeighborAnswer(accepted=True)) == [Send(("x",), Disconnect())]
        assert receive(layer, "x", NeighborAnswer(accepted=False)) == []
        assert layer.active == ("a",)

    def test_requests_that_cross_make_one_link_and_no_half_one_when_it_ends(self) -> None:
        layer = node(active="a", passive="p")
        fire(layer, RepairDue())
        assert receive(layer, "p", Neighbor(urgent=False)) == [CancelTimer(AnswerDue("p")), *up("p"), yes("p")]
        assert receive(layer, "p", Disconnect()) == down("p")
        assert receive(layer, "p", NeighborAnswer(accepted=True)) == [Send(("p",), Disconnect())]
        assert layer.active == ("a",)

    def test_an_answer_that_finds_the_place_taken_is_declined(self) -> None:
        layer = node(active="ab", passive="p")
        layer.handle(PeerDown(0, "a"))
        receive(layer, "x", Neighbor(urgent=True))
        effects = receive(layer, "p", NeighborAnswer(accepted=True))
        assert effects == [CancelTimer(AnswerDue("p")), Send(("p",), Disconnect())]
        assert layer.active == ("b", "x")


class TestBeyondThePaper:
    def test_a_free_place_is_looked_after_again(self) -> None:
        layer = node(active="a", passive="p")
        assert fire(layer, RepairDue()) == [SetTimer(RepairDue(), 2_000), *asks("p", urgent=False)]

    def test_who_could_not_fill_it_for_a_whole_period_asks_urgently(self) -> None:
        layer = node(active="a", passive="p")
        fire(layer, RepairDue())
        receive(layer, "p", NeighborAnswer(accepted=False))
        assert fire(layer, RepairDue()) == [SetTimer(RepairDue(), 2_000), *asks("p", urgent=True)]

    def test_who_knows_nobody_joins_again(self) -> None:
        layer = node(contacts="c")
        assert fire(layer, RepairDue()) == [
            SetTimer(RepairDue(), 2_000),
            Send(("c",), Join()),
            SetTimer(AnswerDue("c"), 50),
        ]

    def test_one_that_has_never_met_a_contact_goes_on_asking_though_its_view_is_full(self) -> None:
        layer = node(active="ab", contacts="c")
        join: list[Effect] = [Send(("c",), Join()), SetTimer(AnswerDue("c"), 50)]
        for _ in range(2):
            assert fire(layer, RepairDue()) == [SetTimer(RepairDue(), 2_000), *join]
            fire(layer, AnswerDue("c"))
        fire(layer, RepairDue())
        receive(layer, "c", NeighborAnswer(accepted=True))
        assert "c" in layer.active
        assert fire(layer, RepairDue()) == [SetTimer(RepairDue(), 2_000)]

    def test_a_content_node_exchanges_a_neighbour_now_and_then(self) -> None:
        layer = node(active="ab", passive="p")
        assert fire(layer, RotateDue()) == [SetTimer(RotateDue(), 300_000), *asks("p", urgent=True)]
        effects = receive(layer, "p", NeighborAnswer(accepted=True))
        assert "p" in layer.active and len(layer.active) == 2
        assert any(isinstance(effect, Send) and effect.message == Disconnect() for effect in effects)


class TestPassiveViewManagement:
    def test_a_shuffle_offers_the_node_itself_and_samples_of_both_views(self) -> None:
        settings = HyParViewSettings(active_max=4, shuffle_active=2, shuffle_passive=3)
        layer = node(active="abcd", passive="pqrst", settings=settings)
        timer, send = fire(layer, ShuffleDue())
        assert timer == SetTimer(ShuffleDue(), 10_000)
        assert isinstance(send, Send) and isinstance(send.message, Shuffle)
        (target,) = send.peers
        nodes = send.message.nodes
        assert (send.message.origin, send.message.walk_left) == ("me", 6)
        assert nodes[0] == "me" and len(set(nodes)) == 6
        assert set(nodes[1:3]) <= set("abcd") - {target} and set(nodes[3:]) <= set("pqrst")

    def test_nobody_to_shuffle_with(self) -> None:
        assert fire(node(), ShuffleDue()) == [SetTimer(ShuffleDue(), 10_000)]

    def test_a_walk_goes_on_while_steps_and_neighbours_are_left(self) -> None:
        layer = node(active="ab")
        assert receive(layer, "a", Shuffle("o", 3, ("o", "x"))) == [Send(("b",), Shuffle("o", 2, ("o", "x")))]
        assert layer.passive == ()

    @pytest.mark.parametrize(("active", "walk_left"), [("ab", 1), ("a", 5)])
    def test_where_it_ends_as_many_nodes_are_sent_back(self, active: str, walk_left: int) -> None:
        layer = node(active=active, passive="pqr")
        (send,) = receive(layer, "a", Shuffle("o", walk_left, ("o", "x")))
        assert isinstance(send, Send) and isinstance(send.message, ShuffleReply)
        assert send.peers == ("o",)
        assert len(send.message.nodes) == 2 and set(send.message.nodes) <= set("pqr")
        assert {"o", "x"} <= set(layer.passive)
        # Those that were sent away made room.
        assert set(layer.passive) == {"o", "x"} | (set("pqr") - set(send.message.nodes))

    def test_its_own_shuffle_is_not_for_the_origin(self) -> None:
        assert receive(node(active="a", passive="p"), "a", Shuffle("me", 1, ("me",))) == []

    def test_a_reply_takes_the_place_of_what_was_offered(self) -> None:
        layer = node(active="a", passive="pqr", settings=HyParViewSettings(active_max=2, passive_max=3))
        fire(layer, ShuffleDue())
        assert receive(layer, "z", ShuffleReply(("x", "y"))) == []
        assert {"x", "y"} <= set(layer.passive) and len(layer.passive) == 3

    def test_a_sample_is_never_longer_than_it_should_be(self) -> None:
        settings = HyParViewSettings(shuffle_active=1, shuffle_passive=1)
        layer = node(settings=settings)
        receive(layer, "z", ShuffleReply(tuple("abcdefgh")))
        assert layer.passive == ("a", "b", "c")


def test_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(InvalidRequest):
        HyParViewSettings(active_walk=2, passive_walk=3)
    with pytest.raises(InvalidRequest):
        HyParViewSettings(active_max=0)


PEERS = st.sampled_from(["me", "a", "b", "c", "d", "e", "f", "g"])
SAMPLES = st.lists(PEERS, max_size=12).map(tuple)
MESSAGES = st.one_of(
    st.just(Join()),
    st.builds(ForwardJoin, PEERS, st.integers(-1, 9)),
    st.builds(Neighbor, st.booleans()),
    st.builds(NeighborAnswer, st.booleans()),
    st.just(Disconnect()),
    st.builds(Shuffle, PEERS, st.integers(-1, 9), SAMPLES),
    st.builds(ShuffleReply, SAMPLES),
)
EVENTS: Any = st.one_of(
    st.builds(Received, st.just(0), PEERS.filter(lambda peer: peer != "me"), MESSAGES),
    st.builds(PeerDown, st.just(0), PEERS),
    st.builds(
        TimerFired,
        st.just(0),
        st.one_of(st.sampled_from([ShuffleDue(), RepairDue(), RotateDue()]), st.builds(AnswerDue, PEERS)),
    ),
)


@given(st.lists(EVENTS, max_size=60), st.integers(0, 1_000))
def test_whatever_comes_the_views_keep_their_rules(events: list[Event], seed: int) -> None:
    """P2: bounds, no node twice, never oneself; and what is told to others agrees with the view."""
    layer = HyParView("me", ("a", "b"), SETTINGS, random.Random(seed))
    neighbors: dict[str, None] = {}
    watched: dict[str, None] = {}
    for event in [None, *events]:
        effects = layer.start(0) if event is None else layer.handle(event)
        for effect in effects:
            match effect:
                case Notify(NeighborUp(peer)):
                    assert peer not in neighbors
                    neighbors[peer] = None
                case Notify(NeighborDown(peer)):
                    del neighbors[peer]
                case Ask(Watch(peer)):
                    watched[peer] = None
                case Ask(Unwatch(peer)):
                    del watched[peer]
                case Send(peers, _):
                    assert "me" not in peers
        assert layer.active == tuple(neighbors) == tuple(watched)
        assert len(layer.active) <= SETTINGS.active_max
        assert len(layer.passive) <= SETTINGS.passive_max
        assert "me" not in layer.active + layer.passive
        assert set(layer.active).isdisjoint(layer.passive)
