"""Gossip's rules, one event at a time (P3, P12): first those of the paper (Plumtree), then recovery and bounds."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidings.errors import InvalidRequest, LimitReached, MessageTooLarge
from tidings.protocols.gossip import (
    Broadcast,
    Delivered,
    Digest,
    DigestDue,
    Fetch,
    FetchDue,
    Gone,
    Gossip,
    Graft,
    IHave,
    Missed,
    MissingDue,
    Payload,
    Prune,
    Recovered,
    Skip,
    Supply,
)
from tidings.protocols.gossip_memory import Memory, Track
from tidings.protocols.hyparview import NeighborDown, NeighborUp
from tidings.protocols.stack import (
    CancelTimer,
    Effect,
    Event,
    Message,
    Notified,
    Notify,
    Received,
    Request,
    Requested,
    Send,
    SetTimer,
    Timer,
    TimerFired,
)
from tidings.settings import GossipSettings

SETTINGS = GossipSettings(
    body_bytes_max=10, topics_max=2, window=8, kept_max=3, kept_bytes_max=20, announced_max=4, fetch_max=3
)


def node(neighbors: str = "", lazy: str = "", founding: bool = True) -> Gossip:
    """A node with one-letter neighbours; those in `lazy` have pruned the topic t, whose offset 0 has come."""
    layer = Gossip(SETTINGS, random.Random(1), founding)
    for peer in neighbors:
        layer.handle(Notified(0, NeighborUp(peer)))
    if lazy:
        receive(layer, "?", Payload("t", 0, 1, b"zero"))
        for peer in lazy:
            receive(layer, peer, Prune("t"))
        assert layer.lazy("t") == tuple(lazy)
    return layer


def receive(layer: Gossip, peer: str, message: Message) -> list[Effect]:
    return layer.handle(Received(0, peer, message))


def fire(layer: Gossip, timer: Timer) -> list[Effect]:
    return layer.handle(TimerFired(0, timer))


def ask(layer: Gossip, request: Request) -> list[Effect]:
    return layer.handle(Requested(0, request))


class TestTree:
    def test_a_broadcast_is_delivered_here_and_pushed_to_all(self) -> None:
        assert ask(node("ab"), Broadcast("t", 0, b"x")) == [
            Notify(Delivered("t", 0, b"x", hops=0)),
            Send(("a", "b"), Payload("t", 0, 1, b"x")),
        ]

    def test_the_same_broadcast_again_changes_nothing(self) -> None:
        layer = node("ab")
        ask(layer, Broadcast("t", 0, b"x"))
        assert ask(layer, Broadcast("t", 0, b"x")) == []

    def test_news_are_delivered_and_passed_on_but_not_back(self) -> None:
        assert receive(node("abc"), "b", Payload("t", 0, 4, b"x")) == [
            Notify(Delivered("t", 0, b"x", hops=4)),
            Send(("a", "c"), Payload("t", 0, 5, b"x")),
        ]

    def test_pruned_neighbours_get_a_notice(self) -> None:
        assert receive(node("abc", lazy="c"), "a", Payload("t", 1, 4, b"x")) == [
            Notify(Delivered("t", 1, b"x", hops=4)),
            Send(("b",), Payload("t", 1, 5, b"x")),
            Send(("c",), IHave("t", 1, 5)),
        ]

    def test_who_sends_what_is_known_is_pruned_once(self) -> None:
        layer = node("ab")
        receive(layer, "a", Payload("t", 0, 1, b"x"))
        assert receive(layer, "b", Payload("t", 0, 1, b"x")) == [Send(("b",), Prune("t"))]
        assert layer.lazy("t") == ("b",)
        assert receive(layer, "b", Payload("t", 0, 1, b"x")) == []

    def test_a_stranger_is_not_pruned(self) -> None:
        layer = node("a")
        receive(layer, "a", Payload("t", 0, 1, b"x"))
        assert receive(layer, "x", Payload("t", 0, 1, b"x")) == []
        assert layer.lazy("t") == ()

    def test_every_topic_has_its_own_tree(self) -> None:
        layer = node("ab", lazy="a")
        effects = receive(layer, "b", Payload("u", 0, 1, b"x"))
        assert effects[1:] == [Send(("a",), Payload("u", 0, 2, b"x"))]

    def test_a_pruned_neighbour_that_brings_news_is_back_in_the_tree(self) -> None:
        layer = node("ab", lazy="b")
        receive(layer, "b", Payload("t", 1, 1, b"x"))
        assert layer.lazy("t") == ()

    def test_a_notice_of_something_known_is_no_news(self) -> None:
        assert receive(node("ab", lazy="b"), "b", IHave("t", 0, 3)) == []

    def test_a_message_that_was_announced_is_waited_for_and_then_asked_for(self) -> None:
        layer = node("abc", lazy="bc")
        assert receive(layer, "b", IHave("t", 1, 3)) == [SetTimer(MissingDue("t", 1), 1_000)]
        assert receive(layer, "c", IHave("t", 1, 3)) == []
        graft = Graft("t", 1, wanted=True)
        again = SetTimer(MissingDue("t", 1), 250)
        assert fire(layer, MissingDue("t", 1)) == [Send(("b",), graft), again]
        assert layer.lazy("t") == ("c",)
        assert fire(layer, MissingDue("t", 1)) == [Send(("c",), graft), again]
        assert fire(layer, MissingDue("t", 1)) == []

    def test_a_notice_of_a_stranger_is_ignored(self) -> None:
        assert receive(node("a"), "x", IHave("t", 1, 3)) == []

    def test_a_message_that_comes_in_time_is_not_asked_for(self) -> None:
        layer = node("ab", lazy="b")
        receive(layer, "b", IHave("t", 1, 3))
        assert receive(layer, "a", Payload("t", 1, 4, b"x"))[-1] == CancelTimer(MissingDue("t", 1))

    def test_a_neighbour_that_is_gone_is_not_asked(self) -> None:
        layer = node("ab", lazy="b")
        receive(layer, "b", IHave("t", 1, 3))
        layer.handle(Notified(0, NeighborDown("b")))
        assert fire(layer, MissingDue("t", 1)) == []

    def test_a_graft_brings_the_message_and_the_link_into_the_tree(self) -> None:
        layer = node("ab", lazy="b")
        assert receive(layer, "b", Graft("t", 0, wanted=True)) == [Send(("b",), Payload("t", 0, 2, b"zero"))]
        assert layer.lazy("t") == ()

    def test_a_graft_for_the_tree_alone_brings_no_message(self) -> None:
        layer = node("ab", lazy="b")
        assert receive(layer, "b", Graft("t", 0, wanted=False)) == []
        assert layer.lazy("t") == ()

    def test_a_much_shorter_way_takes_the_place_of_a_long_one(self) -> None:
        layer = node("ab", lazy="b")
        receive(layer, "b", IHave("t", 1, 3))
        effects = receive(layer, "a", Payload("t", 1, 7, b"x"))
        assert effects[:2] == [Send(("b",), Graft("t", 1, wanted=False)), Send(("a",), Prune("t"))]
        assert layer.lazy("t") == ("a",)

    def test_a_little_shorter_way_does_not(self) -> None:
        layer = node("ab", lazy="b")
        receive(layer, "b", IHave("t", 1, 4))
        receive(layer, "a", Payload("t", 1, 7, b"x"))
        assert layer.lazy("t") == ("b",)

    def test_a_neighbour_that_comes_back_is_in_the_tree(self) -> None:
        layer = node("ab", lazy="b")
        layer.handle(Notified(0, NeighborDown("b")))
        layer.handle(Notified(0, NeighborUp("b")))
        assert layer.lazy("t") == () and tuple(layer.neighbors) == ("a", "b")


class TestRecovery:
    def test_a_new_neighbour_is_shown_what_we_have(self) -> None:
        layer = node()
        ask(layer, Broadcast("t", 0, b"x"))
        assert layer.handle(Notified(0, NeighborUp("a"))) == [Send(("a",), Digest((("t", 1, 1),)))]

    def test_somebody_is_shown_now_and_then(self) -> None:
        assert fire(node("a"), DigestDue()) == [SetTimer(DigestDue(), 5_000), Send(("a",), Digest(()))]
        assert fire(node(), DigestDue()) == [SetTimer(DigestDue(), 5_000)]

    def test_neighbours_are_shown_by_turns(self) -> None:
        """By lot somebody would wait for a long time now and then, and with it anyone who waits for a message."""
        layer = node("abc")
        shown = [effect.peers for _ in range(6) for effect in fire(layer, DigestDue()) if isinstance(effect, Send)]
        assert shown == [("a",), ("b",), ("c",), ("a",), ("b",), ("c",)]

    def test_a_newcomer_begins_where_its_first_neighbour_is(self) -> None:
        layer = node("a", founding=False)
        assert fire(layer, DigestDue()) == [SetTimer(DigestDue(), 5_000)]
        assert receive(layer, "a", Digest((("t", 7, 7),))) == [Send(("a",), Digest((("t", 7, 7),)))]
        assert receive(layer, "a", Payload("t", 6, 1, b"old")) == [Send(("a",), Prune("t"))]
        assert receive(layer, "a", Payload("t", 7, 1, b"new"))[0] == Notify(Delivered("t", 7, b"new", 1))

    def test_a_newcomer_that_hears_a_message_first_begins_there(self) -> None:
        layer = node("a", founding=False)
        assert receive(layer, "a", Payload("t", 7, 1, b"x"))[0] == Notify(Delivered("t", 7, b"x", 1))
        assert layer.memory.digest() == (("t", 8, 8),)

    def test_what_a_digest_shows_to_be_missing_is_fetched_after_a_while(self) -> None:
        layer = node("ab")
        receive(layer, "a", Payload("t", 1, 1, b"one"))
        assert receive(layer, "b", Digest((("t", 3, 3),))) == [SetTimer(FetchDue("b"), 1_000)]
        assert fire(layer, FetchDue("b")) == [SetTimer(FetchDue("b"), 1_000), Send(("b",), Fetch("t", (0, 2)))]
        assert receive(layer, "b", Recovered("t", 0, 3, b"zero")) == [
            Notify(Delivered("t", 0, b"zero", 3)),
            Send(("a",), Payload("t", 0, 4, b"zero")),
        ]
        assert fire(layer, FetchDue("b"))[1:] == [Send(("b",), Fetch("t", (2,)))]
        # No progress: there is no sense in asking the same again before the next digest.
        assert fire(layer, FetchDue("b")) == []

    def test_more_than_the_window_holds_is_fetched_to_the_end(self) -> None:
        """As it moves on, more comes into sight: that is progress all the same."""
        layer = node("a")
        last = 3 * SETTINGS.window
        receive(layer, "a", Digest((("t", last, last),)))
        while asked := [each.message for each in fire(layer, FetchDue("a")) if isinstance(each, Send)]:
            for fetch in asked:
                assert isinstance(fetch, Fetch)
                for offset in fetch.offsets:
                    receive(layer, "a", Recovered("t", offset, 1, b"x"))
        assert layer.memory.digest() == (("t", last, last),)

    def test_what_comes_by_itself_is_not_fetched(self) -> None:
        layer = node("ab")
        receive(layer, "b", Digest((("t", 1, 1),)))
        receive(layer, "a", Payload("t", 0, 1, b"x"))
        assert fire(layer, FetchDue("b")) == []

    def test_as_much_is_fetched_at_a_time_as_the_limit_allows(self) -> None:
        layer = node("a")
        receive(layer, "a", Digest((("t", 2, 2), ("u", 5, 5))))
        sends = [effect for effect in fire(layer, FetchDue("a")) if isinstance(effect, Send)]
        assert sends == [Send(("a",), Fetch("t", (0, 1))), Send(("a",), Fetch("u", (0,)))]

    def test_a_recovered_message_that_is_known_says_nothing_about_the_tree(self) -> None:
        layer = node("ab", lazy="b")
        assert receive(layer, "a", Recovered("t", 0, 1, b"zero")) == []
        assert layer.lazy("t") == ("b",)

    def test_a_fetch_is_answered_with_what_is_kept(self) -> None:
        layer = node("a")
        for offset in range(5):
            ask(layer, Broadcast("t", offset, b"%d" % offset))
        assert receive(layer, "a", Fetch("t", (1, 4, 9))) == [
            Send(("a",), Recovered("t", 4, 1, b"4")),
            Send(("a",), Gone("t", (1,))),
        ]

    def test_what_nobody_keeps_is_for_the_layer_above(self) -> None:
        """P12: the owner of the topic has it in its journal."""
        layer = node("a")
        receive(layer, "a", Payload("t", 2, 1, b"two"))
        assert receive(layer, "a", Gone("t", (0, 1, 2))) == [Notify(Missed("t", (0, 1)))]
        assert ask(layer, Supply("t", 0, b"zero"))[0] == Notify(Delivered("t", 0, b"zero", 0))
        assert ask(layer, Skip("t", 2)) == []
        assert layer.memory.digest() == (("t", 3, 3),)
        assert receive(layer, "a", Gone("t", (0, 1, 2))) == []

    def test_a_digest_of_a_stranger_is_not_fetched_from(self) -> None:
        assert receive(node("a"), "x", Digest((("t", 3, 3),))) == []

    def test_nothing_is_fetched_from_a_neighbour_that_is_gone(self) -> None:
        layer = node("a")
        receive(layer, "a", Digest((("t", 3, 3),)))
        assert layer.handle(Notified(0, NeighborDown("a"))) == [CancelTimer(FetchDue("a"))]


class TestBounds:
    def test_a_large_message_is_refused(self) -> None:
        with pytest.raises(MessageTooLarge):
            ask(node(), Broadcast("t", 0, b"x" * 11))
        assert receive(node("a"), "a", Payload("t", 0, 1, b"x" * 11)) == []

    def test_one_topic_too_many_is_refused(self) -> None:
        layer = node("a")
        ask(layer, Broadcast("t", 0, b"x"))
        ask(layer, Broadcast("u", 0, b"x"))
        with pytest.raises(LimitReached):
            ask(layer, Broadcast("v", 0, b"x"))
        assert receive(layer, "a", Payload("v", 0, 1, b"x")) == []

    def test_a_message_far_ahead_of_a_gap_is_left_for_later(self) -> None:
        layer = node("a")
        assert receive(layer, "a", Payload("t", 8, 1, b"x")) == []
        assert receive(layer, "a", Payload("t", 7, 1, b"x")) != []

    def test_old_messages_make_room(self) -> None:
        memory = Memory(SETTINGS)
        memory.track("t", 0)
        for offset in range(5):
            memory.add("t", offset, 1, b"x")
        assert memory.kept_count == 3 and memory.kept("t", 1) is None and memory.kept("t", 2) == (1, b"x")
        memory.add("t", 5, 1, b"x" * 10)
        memory.add("t", 6, 1, b"x" * 10)
        assert memory.kept_count == 2

    def test_notices_are_bounded(self) -> None:
        layer = node("a")
        effects = [receive(layer, "a", IHave("t", offset, 1)) for offset in range(6)]
        assert [bool(effect) for effect in effects] == [True] * 4 + [False] * 2

    def test_settings_that_make_no_sense_are_refused(self) -> None:
        with pytest.raises(InvalidRequest):
            GossipSettings(window=0)


@given(st.lists(st.integers(0, 20)))
def test_a_track_knows_what_was_added(offsets: list[int]) -> None:
    track = Track(0)
    for offset in offsets:
        if offset not in track:
            track.add(offset)
    assert [offset in track for offset in range(22)] == [offset in offsets for offset in range(22)]
    assert track.missing(22, 100) == [offset for offset in range(22) if offset not in offsets]
    assert all(offset > track.next_offset for offset in track.ahead)
    assert track.high_offset == max([*offsets, -1]) + 1


PEERS = st.sampled_from("abc")
TOPICS = st.sampled_from("tuv")
OFFSETS = st.integers(0, 12)
MESSAGES: Any = st.one_of(
    st.builds(Payload, TOPICS, OFFSETS, st.integers(0, 9), st.binary(max_size=12)),
    st.builds(IHave, TOPICS, OFFSETS, st.integers(0, 9)),
    st.builds(Graft, TOPICS, OFFSETS, st.booleans()),
    st.builds(Prune, TOPICS),
    st.builds(Digest, st.lists(st.tuples(TOPICS, OFFSETS, OFFSETS), max_size=4).map(tuple)),
    st.builds(Fetch, TOPICS, st.lists(OFFSETS, max_size=6).map(tuple)),
    st.builds(Recovered, TOPICS, OFFSETS, st.integers(0, 9), st.binary(max_size=12)),
    st.builds(Gone, TOPICS, st.lists(OFFSETS, max_size=6).map(tuple)),
)
NEWS = st.one_of(st.builds(NeighborUp, PEERS), st.builds(NeighborDown, PEERS))


@given(st.lists(st.one_of(st.tuples(PEERS, MESSAGES), NEWS, st.integers(0, 5)), max_size=60), st.booleans())
def test_whatever_comes_each_message_is_delivered_once_and_memory_is_bounded(steps: list[Any], founding: bool) -> None:
    """P3, P12: timers fire whenever Hypothesis says so, if they are set."""
    layer = Gossip(SETTINGS, random.Random(1), founding)
    timers: dict[Timer, None] = {}
    delivered: dict[tuple[str, int], None] = {}
    for step in steps:
        event: Event
        if isinstance(step, int):
            if not timers:
                continue
            timer = list(timers)[step % len(timers)]
            del timers[timer]
            event = TimerFired(0, timer)
        elif isinstance(step, tuple):
            event = Received(0, *step)
        else:
            event = Notified(0, step)
        for effect in layer.handle(event):
            match effect:
                case SetTimer(timer, _):
                    timers[timer] = None
                case CancelTimer(timer):
                    timers.pop(timer, None)
                case Notify(Delivered(topic, offset)):
                    assert (topic, offset) not in delivered
                    delivered[topic, offset] = None
                case Send(peers, IHave() | Graft() | Prune() | Digest() | Fetch()):
                    assert set(peers) <= set(layer.neighbors)
        assert len(layer.memory.tracks) <= 2 and layer.memory.kept_count <= 3
        assert all(len(track.ahead) <= 8 for track in layer.memory.tracks.values())
        assert len(timers) <= 4 + 3 + 1
        assert all(set(layer.lazy(topic)) <= set(layer.neighbors) for topic in "tuv")
