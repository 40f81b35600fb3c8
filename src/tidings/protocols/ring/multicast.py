"""Multicast between virtual nodes: one tree for each topic, rooted where Chord finds the topic's point. It is fast and
forgets.

Picture paper boys who keep no copies. A virtual node that wants a topic takes a step towards its root and becomes the
child of whom it meets, as in Scribe; what is published goes to the root, if the publisher is not the root itself, and
down from child to child. Nothing is stored, ordered, confirmed or asked for again: anyone who publishes has the message
in a journal, and anyone who misses one asks there. A message that finds no tree costs nothing.

It guarantees that a subscribed virtual node gets no message twice: messages are numbered by their publisher, and what
is too old to tell whether it came before is dropped. It does not guarantee that a message arrives, nor in which order.
"""

from __future__ import annotations

import msgspec

from tidings.errors import LimitReached, ProtocolError
from tidings.protocols.chord import Delivered, NeighboursChanged, Route, Stepped, identifier
from tidings.protocols.chord.identifiers import to_point, within
from tidings.protocols.pubsub.messages import Letter, Publish, Subscribe, Unsubscribe, arrived, decode, encode
from tidings.protocols.ring.key_ranges import point_of
from tidings.protocols.scribe.messages import (
    Grafted,
    JoinTree,
    Orphaned,
    Pruned,
    Spread,
    TreeBeat,
    TreeBeatTaken,
    TreesDue,
)
from tidings.protocols.scribe.messages import decode as decode_routed
from tidings.protocols.scribe.trees import Tree, Trees
from tidings.protocols.stack import (
    Ask,
    Effect,
    Event,
    NodeId,
    Notified,
    Notify,
    PeerDown,
    Received,
    Requested,
    SetTimer,
    TimerFired,
    UnexpectedEvent,
)
from tidings.settings import ScribeSettings

WINDOW = 1_024
"""How far behind the latest message of a publisher another one may come."""
PUBLISHERS_MAX = 8
"""Publishers of one topic whose numbers are remembered. At a time there is one, the leader of its owner."""


class Numbers(msgspec.Struct):
    """Which messages of one publisher have come: the latest, and of the `WINDOW` before it a bit for each.

    >>> numbers = Numbers()
    >>> [numbers.take(number) for number in (5, 3, 5, 3, 4, 6)]
    [True, True, False, False, True, True]
    >>> numbers.take(6 + WINDOW), numbers.take(6)
    (True, False)
    """

    latest: int = -1
    seen: int = 0

    def take(self, number: int) -> bool:
        """Whether a message is new; from now on it is not."""
        ahead = number - self.latest
        if ahead > 0:
            self.seen = (self.seen << ahead | 1) & ((1 << WINDOW) - 1) if ahead < WINDOW else 1
            self.latest = number
            return True
        if -ahead >= WINDOW or self.seen >> -ahead & 1:
            return False
        self.seen |= 1 << -ahead
        return True


class Multicast:
    """One virtual node's part in every tree. It is asked and tells the same as the other roads of publish-subscribe."""

    handles = (
        *(Subscribe, Unsubscribe, Publish),
        *(Grafted, Pruned, Orphaned, TreeBeat, TreeBeatTaken, Spread),
        TreesDue,
    )
    listens = (Delivered, Stepped, NeighboursChanged, PeerDown)

    def __init__(self, node: NodeId, settings: ScribeSettings, life: int) -> None:
        self.node = node
        self._settings = settings
        self._life = life
        """Different for each life of the virtual node, since a new leader numbers its messages again."""
        self._number = 0
        self._now_ms = 0
        self._predecessor: NodeId | None = None
        self._is_alone = True
        self.trees = Trees(node, settings, point_of)
        self._numbers: dict[str, dict[tuple[NodeId, int], Numbers]] = {}
        """For each topic that this virtual node subscribed to."""
        self.malformed = 0
        """Payloads that could not be read."""

    def start(self, now_ms: int) -> list[Effect]:
        return [SetTimer(TreesDue(), self._settings.beat_ms)]

    def handle(self, event: Event) -> list[Effect]:
        self._now_ms = event.now_ms
        match event:
            case Received(_, peer, message):
                return self._on_message(peer, message)
            case TimerFired(_, TreesDue()):
                return self._on_beat()
            case Requested(_, Publish(topic, body)):
                return self._on_publish(topic, body)
            case Requested(_, Subscribe(topic)):
                return self._on_subscribe(topic)
            case Requested(_, Unsubscribe(topic)):
                return self._on_unsubscribe(topic)
            case Notified(_, Stepped(_, payload, sender, is_owner)):
                return self._on_stepped(payload, sender, is_owner)
            case Notified(_, Delivered(_, payload)):
                return self._on_delivered(payload)
            case Notified(_, NeighboursChanged(predecessor, successors)):
                return self._on_neighbours(predecessor, successors)
            case PeerDown(_, peer):
                return self.trees.on_down(self._now_ms, peer)
        raise UnexpectedEvent(event)

    def _on_message(self, peer: NodeId, message: object) -> list[Effect]:
        trees, now_ms = self.trees, self._now_ms
        match message:
            case Spread():
                return self._on_spread(peer, message)
            case TreeBeat():
                return trees.on_tree_beat(now_ms, peer, message)
            case TreeBeatTaken(topics):
                trees.on_tree_beat_taken(now_ms, peer, topics)
                return []
            case Grafted():
                return trees.on_grafted(now_ms, peer, message)
            case Pruned(topic):
                return trees.on_pruned(peer, topic)
            case Orphaned(topic):
                return trees.on_orphaned(now_ms, peer, topic)
        raise UnexpectedEvent(message)

    # What the application asks for.

    def _on_subscribe(self, topic: str) -> list[Effect]:
        tree = self.trees.need(topic)
        if tree is None:
            raise LimitReached(
                f"This virtual node is in {self._settings.topics_max} trees already (topics_max): raise the limit."
            )
        self._numbers.setdefault(topic, {})
        tree.is_wanted = True
        return self.trees.climb(self._now_ms, tree)

    def _on_unsubscribe(self, topic: str) -> list[Effect]:
        self._numbers.pop(topic, None)
        tree = self.trees.get(topic)
        return [] if tree is None else self.trees.leave(tree)

    def _on_publish(self, topic: str, body: bytes) -> list[Effect]:
        letter = Letter(topic, self.node, self._life, self._number, body)
        self._number += 1
        if self._owns(topic):
            return self._spread(letter, encode(letter)) if topic in self.trees.trees else []
        return [Ask(Route(point_of(topic), encode(letter)))]

    # Down the tree.

    def _spread(self, letter: Letter, payload: bytes) -> list[Effect]:
        """Begins at the root, which is this virtual node."""
        tree = self.trees.get(letter.topic)
        if tree is None:
            return []  # Nobody wants it.
        crown = [] if tree.is_root else self.trees.crown(tree)
        spread = Spread(letter.topic, self.node, 0, (payload,))
        return [*crown, *self.trees.pass_on(tree, spread), *self._read(letter)]

    def _on_spread(self, peer: NodeId, spread: Spread) -> list[Effect]:
        effects = self.trees.on_spread(self._now_ms, peer, spread)
        if spread.topic not in self._numbers:
            return effects
        for payload in spread.payloads:
            letter = self._letter(payload)
            if letter is not None and letter.topic == spread.topic:
                effects += self._read(letter)
        return effects

    def _on_delivered(self, payload: bytes) -> list[Effect]:
        """A publisher that is not the root itself has found it: this virtual node."""
        letter = self._letter(payload)
        return [] if letter is None else self._spread(letter, payload)

    def _read(self, letter: Letter) -> list[Effect]:
        publishers = self._numbers.get(letter.topic)
        if publishers is None:
            return []
        publisher = (letter.publisher, letter.life)
        numbers = publishers.get(publisher)
        if numbers is None:
            if len(publishers) >= PUBLISHERS_MAX:
                del publishers[next(iter(publishers))]
            numbers = publishers[publisher] = Numbers()
        return [Notify(arrived(letter, letter.topic))] if numbers.take(letter.number) else []

    def _letter(self, payload: bytes) -> Letter | None:
        try:
            return decode(payload)
        except ProtocolError:
            self.malformed += 1
            return None

    # The tree.

    def _owns(self, topic: str) -> bool:
        """Whether this virtual node is the root, as far as it knows; one that is alone is the root of everything."""
        if self._is_alone:
            return True
        if self._predecessor is None:
            return False
        return within(identifier(self._predecessor), to_point(point_of(topic)), identifier(self.node))

    def _on_stepped(self, payload: bytes, sender: NodeId, is_owner: bool) -> list[Effect]:
        """A child is on its way to the root, and has met us."""
        try:
            routed = decode_routed(payload)
        except ProtocolError:
            self.malformed += 1
            return []
        tree = self.trees.need(routed.topic) if isinstance(routed, JoinTree) else None
        if tree is None:
            return []
        effects = self.trees.crown(tree) if is_owner and not tree.is_root else []
        return effects if sender == self.node else effects + self.trees.on_join(self._now_ms, sender, tree)

    def _on_neighbours(self, predecessor: NodeId | None, successors: tuple[NodeId, ...]) -> list[Effect]:
        self._predecessor, self._is_alone = predecessor, not successors
        effects: list[Effect] = []
        for tree in [tree for tree in self.trees.trees.values() if tree.is_root and not self._may_own(tree)]:
            effects += self.trees.uncrown(self._now_ms, tree)
        return effects

    def _may_own(self, tree: Tree) -> bool:
        return self._predecessor is None or self._owns(tree.topic)

    def _on_beat(self) -> list[Effect]:
        for tree in self.trees.trees.values():
            # A root of a tree that nobody is in keeps nothing, so it need not be one.
            tree.is_root = tree.is_root and (tree.is_wanted or bool(tree.children))
        return [SetTimer(TreesDue(), self._settings.beat_ms), *self.trees.on_beat(self._now_ms)]
