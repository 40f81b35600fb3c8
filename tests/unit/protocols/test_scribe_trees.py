"""The trees of Scribe (P5): joining, forwarding, leaving, repair (Castro et al. 2002, sections on membership and
repair).
"""

from __future__ import annotations

import pytest

from tests.unit.protocols.circle import sent, told
from tidings.errors import InvalidTopic, LimitReached, MessageTooLarge, NotSubscribed, Overloaded, ProtocolError
from tidings.protocols.chord import Delivered, NeighboursChanged, RouteStep, Stepped, identifier, key_of
from tidings.protocols.scribe import MessageDelivered, Publish, Scribe, ScribeSettings, Subscribe, Unsubscribe
from tidings.protocols.scribe.messages import (
    Accepted,
    Fetch,
    Fetched,
    Grafted,
    Inherit,
    JoinTree,
    NotRoot,
    Orphaned,
    Pruned,
    Spread,
    Submit,
    TreeBeat,
    TreeBeatTaken,
    TreesDue,
    decode,
    encode,
)
from tidings.protocols.stack import (
    Ask,
    Effect,
    Message,
    NodeId,
    Notification,
    Notified,
    PeerDown,
    Received,
    Request,
    Requested,
    TimerFired,
)

TOPIC = "news"
SETTINGS = ScribeSettings(replicas=0, topics_max=3, children_max=3)

# Around the point of the topic: P is before it, R owns it, S and T come behind.
P, R, S, T = (
    *sorted((f"n{index}" for index in range(9)), key=lambda name: (identifier(name) - identifier(TOPIC)) % (1 << 256))[
        -1:
    ],
    *sorted((f"n{index}" for index in range(9)), key=lambda name: (identifier(name) - identifier(TOPIC)) % (1 << 256))[
        :3
    ],
)


class Node:
    """A Scribe layer whose Chord is played by the test."""

    def __init__(self, name: NodeId = "x", settings: ScribeSettings = SETTINGS) -> None:
        self.now_ms = 0
        self.scribe = Scribe(name, settings)
        self.scribe.start(0)

    def ask(self, request: Request) -> list[Effect]:
        return self.scribe.handle(Requested(self.now_ms, request))

    def hear(self, peer: NodeId, message: Message) -> list[Effect]:
        return self.scribe.handle(Received(self.now_ms, peer, message))

    def news(self, notification: Notification) -> list[Effect]:
        return self.scribe.handle(Notified(self.now_ms, notification))

    def stepped(self, sender: NodeId, is_owner: bool = False, topic: str = TOPIC) -> list[Effect]:
        return self.news(Stepped(key_of(topic), encode(JoinTree(topic)), sender, is_owner))

    def beat(self, after_ms: int = 0) -> list[Effect]:
        self.now_ms += after_ms
        return self.scribe.handle(TimerFired(self.now_ms, TreesDue()))

    @property
    def children(self) -> list[NodeId]:
        tree = self.scribe.trees.get(TOPIC)
        return [] if tree is None else list(tree.children)

    @property
    def parent(self) -> NodeId | None:
        tree = self.scribe.trees.get(TOPIC)
        return None if tree is None else tree.parent


def steps(effects: list[Effect]) -> list[bytes]:
    """The keys towards which a step is taken."""
    return [
        effect.request.key for effect in effects if isinstance(effect, Ask) and isinstance(effect.request, RouteStep)
    ]


def subscribed(name: NodeId = "x", parent: NodeId = "up") -> Node:
    node = Node(name)
    node.ask(Subscribe(TOPIC, start=0))
    node.hear(parent, Grafted(TOPIC, None, 0))
    return node


# Joining.


def test_a_subscriber_takes_a_step_towards_the_root() -> None:
    assert steps(Node().ask(Subscribe(TOPIC))) == [key_of(TOPIC)]


def test_anyone_who_is_stepped_on_is_the_parent_and_goes_on() -> None:
    node = Node()
    effects = node.stepped("child")
    assert sent(effects) == [("child", Grafted(TOPIC, None, 0))]
    assert steps(effects) == [key_of(TOPIC)]
    assert node.children == ["child"]


def test_a_node_in_the_tree_takes_more_children_and_goes_no_further() -> None:
    node = Node()
    node.stepped("first")
    node.hear("up", Grafted(TOPIC, R, 7))
    effects = node.stepped("second")
    assert sent(effects) == [("second", Grafted(TOPIC, R, 7))]
    assert steps(effects) == []
    assert node.children == ["first", "second"]


def test_the_owner_is_the_root_and_takes_no_step() -> None:
    node = Node(R)
    assert steps(node.stepped("child", is_owner=True)) == []
    assert node.scribe.trees.trees[TOPIC].is_root


def test_a_subscriber_that_owns_the_topic_is_its_own_root() -> None:
    node = Node(R)
    node.ask(Subscribe(TOPIC))
    node.stepped(R, is_owner=True)
    assert node.scribe.trees.trees[TOPIC].is_root
    assert node.children == []


def test_a_step_without_an_answer_is_taken_again() -> None:
    node = Node()
    node.ask(Subscribe(TOPIC))
    assert steps(node.beat(after_ms=500)) == []
    assert steps(node.beat(after_ms=SETTINGS.retry_ms)) == [key_of(TOPIC)]


def test_children_are_bounded() -> None:
    node = Node()
    for index in range(4):
        node.stepped(f"child-{index}")
    assert len(node.children) == 3
    assert node.scribe.trees.refused == 1


def test_topics_are_bounded() -> None:
    node = Node()
    for index in range(3):
        node.ask(Subscribe(f"t{index}"))
    with pytest.raises(LimitReached, match="raise topics_max"):
        node.ask(Subscribe("t3"))
    assert node.stepped("child", topic="t4") == []


# Dissemination.


def test_a_forwarder_passes_on_and_does_not_deliver() -> None:
    node = Node()
    node.stepped("left")
    node.stepped("right")
    node.hear("up", Grafted(TOPIC, None, 0))
    spread = Spread(TOPIC, R, 0, (b"one",))
    effects = node.hear("up", spread)
    assert sent(effects) == [("left", spread), ("right", spread)]
    assert told(effects) == []


def test_a_subscriber_delivers_and_passes_on() -> None:
    node = subscribed()
    node.stepped("child")
    effects = node.hear("up", Spread(TOPIC, R, 0, (b"one", b"two")))
    assert told(effects) == [MessageDelivered(TOPIC, 0, b"one"), MessageDelivered(TOPIC, 1, b"two")]
    assert [peer for peer, _ in sent(effects, Spread)] == ["child"]


def test_what_comes_from_a_former_parent_is_read_but_goes_no_further() -> None:
    node = subscribed()
    node.stepped("child")
    effects = node.hear("former", Spread(TOPIC, R, 0, (b"one",)))
    assert told(effects) == [MessageDelivered(TOPIC, 0, b"one")]
    assert sent(effects) == [("former", Pruned(TOPIC))]


# Leaving.


def test_an_unsubscriber_without_children_leaves_its_parent() -> None:
    node = subscribed()
    assert sent(node.ask(Unsubscribe(TOPIC))) == [("up", Pruned(TOPIC))]
    assert node.scribe.trees.trees == {}


def test_an_unsubscriber_with_children_forwards_without_delivering() -> None:
    node = subscribed()
    node.stepped("child")
    assert node.ask(Unsubscribe(TOPIC)) == []
    effects = node.hear("up", Spread(TOPIC, R, 0, (b"one",)))
    assert (told(effects), len(sent(effects, Spread))) == ([], 1)


def test_a_forwarder_leaves_with_its_last_child() -> None:
    node = Node()
    node.stepped("left")
    node.stepped("right")
    node.hear("up", Grafted(TOPIC, None, 0))
    assert node.hear("left", Pruned(TOPIC)) == []
    assert sent(node.hear("right", Pruned(TOPIC))) == [("up", Pruned(TOPIC))]


def test_the_root_stays_without_children() -> None:
    node = Node(R)
    node.stepped("child", is_owner=True)
    node.hear("child", Pruned(TOPIC))
    assert node.scribe.trees.trees[TOPIC].is_root


def test_a_late_grafting_is_declined() -> None:
    node = Node()
    node.ask(Subscribe(TOPIC))
    node.ask(Unsubscribe(TOPIC))
    assert sent(node.hear("up", Grafted(TOPIC, None, 0))) == [("up", Pruned(TOPIC))]


def test_only_a_subscriber_can_unsubscribe() -> None:
    with pytest.raises(NotSubscribed):
        Node().ask(Unsubscribe(TOPIC))


# Beats and repair.


def test_a_parent_beats_its_children_once_for_all_their_topics() -> None:
    node = Node()
    for topic in ("a", "b"):
        node.stepped("child", topic=topic)
    assert sent(node.beat(), TreeBeat) == [("child", TreeBeat((("a", None, 0), ("b", None, 0))))]


def test_a_child_confirms_only_its_parent() -> None:
    node = subscribed()
    assert sent(node.hear("up", TreeBeat(((TOPIC, R, 0), ("other", R, 0))))) == [("up", TreeBeatTaken((TOPIC,)))]
    assert sent(node.hear("stranger", TreeBeat(((TOPIC, R, 0),)))) == [("stranger", TreeBeatTaken(()))]


def test_a_silent_child_is_dropped_and_a_confirming_one_is_not() -> None:
    node = Node()
    node.stepped("loud")
    node.stepped("silent")
    node.now_ms = SETTINGS.silence_ms_max
    node.hear("loud", TreeBeatTaken((TOPIC,)))
    node.beat(after_ms=1)
    assert node.children == ["loud"]


def test_a_child_of_a_silent_parent_takes_a_new_step() -> None:
    node = subscribed()
    assert steps(node.beat(after_ms=SETTINGS.silence_ms_max)) == []
    assert steps(node.beat(after_ms=1)) == [key_of(TOPIC)]


def test_messages_count_as_beats() -> None:
    node = subscribed()
    node.now_ms = SETTINGS.silence_ms_max
    node.hear("up", Spread(TOPIC, R, 0, (b"one",)))
    assert steps(node.beat(after_ms=SETTINGS.silence_ms_max)) == []


def test_a_child_of_a_dead_parent_takes_a_new_step_at_once() -> None:
    node = subscribed()
    assert steps(node.scribe.handle(PeerDown(0, "up"))) == [key_of(TOPIC)]
    assert node.parent is None


def test_a_dead_child_is_dropped_at_once() -> None:
    node = Node()
    node.stepped("child")
    node.scribe.handle(PeerDown(0, "child"))
    assert node.scribe.trees.trees == {}


def test_a_new_parent_replaces_the_old_one() -> None:
    node = subscribed()
    assert sent(node.hear("new", Grafted(TOPIC, None, 0))) == [("up", Pruned(TOPIC))]
    assert node.parent == "new"


# The root changes.


def test_a_root_that_loses_the_topic_lets_its_children_go() -> None:
    """Else one of them could become its ancestor."""
    node = Node(S)
    node.news(NeighboursChanged(P, (T,)))
    node.stepped("child", is_owner=True)
    effects = node.news(NeighboursChanged(R, (T,)))
    assert sent(effects) == [("child", Orphaned(TOPIC))]
    assert TOPIC not in node.scribe.roots.reigns


def test_an_orphan_takes_a_new_step() -> None:
    node = subscribed()
    assert steps(node.hear("up", Orphaned(TOPIC))) == [key_of(TOPIC)]
    assert node.hear("stranger", Orphaned(TOPIC)) == []


def test_a_new_root_leaves_its_parent() -> None:
    node = Node(S)
    node.stepped("child")
    node.hear("up", Grafted(TOPIC, R, 0))
    assert ("up", Pruned(TOPIC)) in sent(node.stepped("other", is_owner=True))


def test_a_root_yields_to_an_heir_in_front_of_it_before_chord_says_so() -> None:
    node = Node(S)
    node.news(NeighboursChanged(P, (T,)))
    node.stepped("child", is_owner=True)
    effects = node.hear(R, Inherit(TOPIC, 1 << 40))
    assert ("child", Orphaned(TOPIC)) in sent(effects)
    assert node.stepped("child", is_owner=True) == [], "it takes no children until Chord has decided"
    assert node.hear("x", Fetch(TOPIC, "x", 0)) == node.hear("x", Fetch(TOPIC, "x", 0))
    assert [message for _, message in sent(node.hear("x", Fetch(TOPIC, "x", 0)))] == [NotRoot(TOPIC)]


def test_a_route_that_ends_behind_a_known_owner_makes_no_root() -> None:
    """The owner may be alive: all that is known is that it did not confirm a hop, and confirmations get lost."""
    node = Node(S)
    node.news(NeighboursChanged(R, (T,)))
    fetch = Delivered(key_of(TOPIC), encode(Fetch(TOPIC, "x", 0)), "x", 3)
    assert node.stepped("child", is_owner=True) == node.news(fetch) == []
    assert TOPIC not in node.scribe.roots.reigns
    node.news(NeighboursChanged(None, (T,)))
    assert sent(node.news(fetch), Fetched)
    assert node.scribe.trees.trees[TOPIC].is_root


def test_a_root_does_not_yield_to_somebody_behind_it() -> None:
    node = Node(S)
    node.news(NeighboursChanged(P, (T,)))
    node.stepped("child", is_owner=True)
    assert not sent(node.hear(T, Inherit(TOPIC, 1 << 40)), Orphaned)


# Publishing.


def test_a_publisher_finds_the_root_by_a_route_and_remembers_it() -> None:
    node = Node()
    [effect] = node.ask(Publish(TOPIC, b"one"))
    assert isinstance(effect, Ask)
    node.ask(Publish(TOPIC, b"two"))
    effects = node.hear(R, Accepted(TOPIC, 0, 1))
    assert sent(effects, Submit) == [(R, Submit(TOPIC, "x", 0, 1, (b"two",)))]


def test_what_piles_up_goes_as_one_batch() -> None:
    node = Node()
    node.ask(Publish(TOPIC, b"one"))
    assert node.ask(Publish(TOPIC, b"two")) == node.ask(Publish(TOPIC, b"three")) == []
    [(_, submit)] = sent(node.hear(R, Accepted(TOPIC, 0, 1)), Submit)
    assert (submit.first_sequence, submit.payloads) == (1, (b"two", b"three"))


def test_several_topics_take_a_message_or_none_does() -> None:
    """P13: whatever speaks against one of them is found before any of them has it."""
    full, other = "full", "sport"
    node = Node(settings=ScribeSettings(outbox_messages_max=1, topics_max=3))
    assert len(node.ask(Publish(TOPIC, b"one", (full,)))) == 2, "one submission for each"
    node.hear(R, Accepted(TOPIC, 0, 1))
    for topics, error in (((other, full), Overloaded), ((other, "more"), LimitReached), ((other, ""), InvalidTopic)):
        with pytest.raises(error):
            node.ask(Publish(TOPIC, b"two", topics))
        assert {name: len(outbox) for name, outbox in node.scribe.outboxes.items()} == {TOPIC: 0, full: 1}
    node.ask(Publish(TOPIC, b"two", (other,)))
    assert {name: len(outbox) for name, outbox in node.scribe.outboxes.items()} == {TOPIC: 1, full: 1, other: 1}


def test_a_publisher_sends_again_by_a_route() -> None:
    node = Node()
    node.ask(Publish(TOPIC, b"one"))
    node.hear(R, Accepted(TOPIC, 0, 1))
    node.ask(Publish(TOPIC, b"two"))
    effects = node.beat(after_ms=SETTINGS.retry_ms)
    assert any(isinstance(effect, Ask) for effect in effects)


def test_a_publisher_whose_root_is_gone_sends_again_at_once() -> None:
    node = Node()
    node.ask(Publish(TOPIC, b"one"))
    node.hear(R, Accepted(TOPIC, 0, 1))
    node.ask(Publish(TOPIC, b"two"))
    assert [type(effect) for effect in node.scribe.handle(PeerDown(0, R))] == [Ask]


def test_somebody_who_is_not_the_root_says_so() -> None:
    node = Node(S)
    node.news(NeighboursChanged(R, (T,)))
    assert sent(node.hear("x", Submit(TOPIC, "x", 0, 0, (b"one",)))) == [("x", NotRoot(TOPIC))]


@pytest.mark.parametrize("topic", ["", "x" * 129])
def test_senseless_topics_are_refused(topic: str) -> None:
    for request in (Subscribe(topic), Publish(topic, b"")):
        with pytest.raises(InvalidTopic):
            Node().ask(request)


def test_a_message_that_is_too_large_is_refused() -> None:
    with pytest.raises(MessageTooLarge):
        Node(settings=ScribeSettings(payload_bytes_max=3)).ask(Publish(TOPIC, b"four"))


def test_bytes_that_are_not_ours_are_dropped_and_counted() -> None:
    """Anybody may route them here, and a node must not end by them."""
    node = Node()
    assert node.news(Delivered(key_of(TOPIC), b"\xc1", "x", 1)) == []
    assert node.news(Stepped(key_of(TOPIC), b"\xc1", "x", is_owner=True)) == []
    assert node.scribe.malformed == 2
    assert node.news(Delivered(key_of(TOPIC), encode(JoinTree(TOPIC)), "x", 1)) == []  # No step, though it is ours.
    assert node.news(Stepped(key_of(TOPIC), encode(Fetch(TOPIC, "x", 0)), "x", is_owner=True)) == []
    with pytest.raises(ProtocolError, match="same version"):
        decode(b"\xc1")


def test_a_long_outbox_is_worked_off_by_a_node_that_turns_out_to_be_the_root() -> None:
    """Each answer to ourselves lets the next message out, for as many as there are."""
    count = 900
    node = Node(R, ScribeSettings(replicas=0, chunk_messages_max=1))
    for number in range(count):
        node.ask(Publish(TOPIC, str(number).encode()))
    node.ask(Subscribe(TOPIC, start=0))
    node.news(NeighboursChanged(P, ()))
    submit = node.scribe.outboxes[TOPIC].submit(0, 1, 1_000)
    effects = node.news(Delivered(key_of(TOPIC), encode(submit), R, 0))
    assert [message.payload for message in told(effects, MessageDelivered)] == [
        str(number).encode() for number in range(count)
    ]
