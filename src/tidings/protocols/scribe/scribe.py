"""The Scribe layer: publish and subscribe over Chord, behind one `handle`.

Each topic belongs to the owner of its key, the *root*. The root gives every message an offset, keeps it in its log
(`roots.py`) and sends it down the topic's tree (`trees.py`). Subscribers put messages into order by their offsets and
fetch from the root what the tree did not bring (`reader.py`). Publishers send their messages again until the root has
them (`outbox.py`), and the root knows them by their sequence numbers.

So every subscriber that stays gets every message once and in order, as long as the root's log survives: the root and
its k successors must not all be gone at once, and the ring must hold.
"""

from __future__ import annotations

from collections import deque

from tidings.errors import InvalidTopic, LimitReached, MessageTooLarge, NotSubscribed, ProtocolError
from tidings.protocols.chord import Delivered, NeighboursChanged, Route, Stepped, identifier, key_of
from tidings.protocols.chord.identifiers import within
from tidings.protocols.scribe.log import chunks, size_of
from tidings.protocols.scribe.messages import (
    Accepted,
    Entry,
    Fetch,
    Fetched,
    Grafted,
    Inherit,
    JoinTree,
    Legacy,
    NotRoot,
    Orphaned,
    Pruned,
    Publish,
    Published,
    PublishRefused,
    Pull,
    Pulled,
    Refused,
    Replicate,
    Replicated,
    Routed,
    Spread,
    Submit,
    Subscribe,
    TreeBeat,
    TreeBeatTaken,
    TreesDue,
    Unsubscribe,
    decode,
    encode,
)
from tidings.protocols.scribe.outbox import Outbox
from tidings.protocols.scribe.reader import Reader
from tidings.protocols.scribe.roots import Roots
from tidings.protocols.scribe.trees import Tree, Trees
from tidings.protocols.stack import (
    Ask,
    Effect,
    Event,
    Message,
    NodeId,
    Notified,
    Notify,
    PeerDown,
    Received,
    Requested,
    Send,
    SetTimer,
    TimerFired,
    UnexpectedEvent,
)
from tidings.settings import ScribeSettings

TOPIC_CHARACTERS_MAX = 128


class Scribe:
    """One node of every tree it has a part in."""

    handles = (
        *(Subscribe, Unsubscribe, Publish),
        *(Submit, Fetch, Accepted, Refused, Fetched, NotRoot),
        *(Grafted, Pruned, Orphaned, TreeBeat, TreeBeatTaken, Spread),
        *(Replicate, Replicated, Inherit, Legacy, Pull, Pulled),
        TreesDue,
    )
    listens = (Delivered, Stepped, NeighboursChanged, PeerDown)

    def __init__(self, node: NodeId, settings: ScribeSettings) -> None:
        self.node = node
        self._settings = settings
        self._now_ms = 0
        self._life = 0
        self._predecessor: NodeId | None = None
        self.trees = Trees(node, settings)
        self.roots = Roots(node, settings, self._to, self._on_committed)
        self.readers: dict[str, Reader] = {}
        self.outboxes: dict[str, Outbox] = {}
        self._known_roots: dict[str, NodeId] = {}
        """Where messages of a topic are sent directly; learnt from answers, forgotten when wrong."""
        self._heirs: dict[str, NodeId] = {}
        """Owners in front of this node that Chord has not told us about yet."""
        self._to_self: deque[Message] = deque()
        self.malformed = 0
        """Payloads that came by a route and could not be read."""

    def start(self, now_ms: int) -> list[Effect]:
        self._life = now_ms
        return [SetTimer(TreesDue(), self._settings.beat_ms)]

    def handle(self, event: Event) -> list[Effect]:
        self._now_ms = event.now_ms
        effects = self._on_event(event)
        while self._to_self:
            effects = effects + self._on_message(self.node, self._to_self.popleft())
        return effects

    def _on_event(self, event: Event) -> list[Effect]:
        match event:
            case Received(_, peer, message):
                return self._on_message(peer, message)
            case TimerFired(_, TreesDue()):
                return self._on_beat()
            case Requested(_, Publish(topic, payload, also)):
                return self._on_publish((topic, *also), payload)
            case Requested(_, Subscribe(topic, start)):
                return self._on_subscribe(topic, start)
            case Requested(_, Unsubscribe(topic)):
                return self._on_unsubscribe(topic)
            case Notified(_, Stepped(_, payload, sender, is_owner)):
                return self._on_stepped(self._routed(payload), sender, is_owner)
            case Notified(_, Delivered(_, payload)):
                return self._on_delivered(self._routed(payload))
            case Notified(_, NeighboursChanged(predecessor, successors)):
                return self._on_neighbours(predecessor, successors)
            case PeerDown(_, peer):
                return self._on_down(peer)
        raise UnexpectedEvent(event)

    def _on_message(self, peer: NodeId, message: object) -> list[Effect]:
        trees, roots, now_ms = self.trees, self.roots, self._now_ms
        match message:
            case Spread():
                return [*trees.on_spread(now_ms, peer, message), *self._read(message)]
            case TreeBeat():
                return [*trees.on_tree_beat(now_ms, peer, message), *self._look_for_gaps()]
            case TreeBeatTaken(topics):
                trees.on_tree_beat_taken(now_ms, peer, topics)
                return []
            case Submit() | Fetch():
                return self._on_direct(peer, message)
            case Accepted():
                return self._on_accepted(peer, message)
            case Refused():
                return self._on_refused(message)
            case Fetched():
                return self._on_fetched(peer, message)
            case NotRoot(topic):
                return self._on_not_root(peer, topic)
            case Grafted():
                return trees.on_grafted(now_ms, peer, message)
            case Pruned(topic):
                return trees.on_pruned(peer, topic)
            case Orphaned(topic):
                return trees.on_orphaned(now_ms, peer, topic)
        match message:
            case Replicate():
                return [*self._yield_to(peer, message), *roots.on_replicate(peer, message)]
            case Replicated():
                return roots.on_replicated(peer, message)
            case Inherit():
                return self._on_inherit(peer, message)
            case Legacy():
                return roots.on_legacy(peer, message)
            case Pull():
                return roots.on_pull(peer, message)
            case Pulled():
                return roots.on_pulled(peer, message)
        raise UnexpectedEvent(message)

    def _to(self, peer: NodeId, message: Message) -> list[Effect]:
        """Sends a message; one to ourselves needs no network.

        It is taken when this event has been handled: one may lead to the next for as long as there is something to say.
        """
        if peer != self.node:
            return [Send((peer,), message)]
        self._to_self.append(message)
        return []

    # What the application asks for.

    def _on_subscribe(self, topic: str, start: int) -> list[Effect]:
        self._check_topic(topic)
        tree = self.trees.need(topic)
        if tree is None:
            raise LimitReached(f"This node has a part in {self._settings.topics_max} topics: raise topics_max.")
        if topic not in self.readers:
            self.readers[topic] = Reader(topic, start, self._settings.held_messages_max)
        tree.is_wanted = True
        return [*self.trees.climb(self._now_ms, tree), *self._fetch(topic, self.readers[topic])]

    def _on_unsubscribe(self, topic: str) -> list[Effect]:
        if self.readers.pop(topic, None) is None:
            raise NotSubscribed(f"This node has not subscribed to {topic!r}: subscribe first.")
        tree = self.trees.get(topic)
        return [] if tree is None else self.trees.leave(tree)

    def _on_publish(self, topics: tuple[str, ...], payload: bytes) -> list[Effect]:
        if len(payload) > self._settings.payload_bytes_max:
            raise MessageTooLarge(
                f"A message of {len(payload)} bytes is above the limit of {self._settings.payload_bytes_max}: "
                "send less or raise payload_bytes_max."
            )
        new = 0
        for topic in topics:  # All are asked before any of them takes it.
            self._check_topic(topic)
            known = self.outboxes.get(topic)
            new += known is None
            if known is not None:
                known.check_room()
        if len(self.outboxes) + new > self._settings.topics_max:
            raise LimitReached(f"This node publishes to {len(self.outboxes)} topics: raise topics_max.")
        effects: list[Effect] = []
        for topic in topics:
            outbox = self.outboxes.get(topic)
            if outbox is None:
                outbox = self.outboxes[topic] = Outbox(topic, self.node, self._life, self._settings.outbox_messages_max)
            outbox.put(payload)
            if outbox.sent_ms is None:
                effects += self._submit(topic, outbox)
        return effects

    @staticmethod
    def _check_topic(topic: str) -> None:
        if not 0 < len(topic) <= TOPIC_CHARACTERS_MAX:
            raise InvalidTopic(f"A topic's name has 1 to {TOPIC_CHARACTERS_MAX} characters, and this one {len(topic)}.")

    # Publishing.

    def _submit(self, topic: str, outbox: Outbox) -> list[Effect]:
        settings = self._settings
        submit = outbox.submit(self._now_ms, settings.chunk_messages_max, settings.chunk_bytes_max)
        return self._to_root(topic, submit)

    def _to_root(self, topic: str, message: Submit | Fetch) -> list[Effect]:
        """Directly if the root is known, else by a route."""
        root = self._known_roots.get(topic)
        return self._to(root, message) if root is not None else [Ask(Route(key_of(topic), encode(message)))]

    def _on_accepted(self, peer: NodeId, accepted: Accepted) -> list[Effect]:
        outbox = self.outboxes.get(accepted.topic)
        if outbox is None or outbox.life != accepted.life:
            return []
        self._learn_root(accepted.topic, peer)
        if not outbox.on_accepted(accepted.sequence_end):
            return []
        news = Notify(Published(accepted.topic, accepted.sequence_end))
        return [news, *(self._submit(accepted.topic, outbox) if len(outbox) else [])]

    def _on_refused(self, refused: Refused) -> list[Effect]:
        outbox = self.outboxes.get(refused.topic)
        if outbox is None or outbox.life != refused.life or not len(outbox):
            return []
        outbox.drop()
        return [Notify(PublishRefused(refused.topic, refused.reason))]

    def _learn_root(self, topic: str, root: NodeId) -> None:
        if topic in self._known_roots or len(self._known_roots) < self._settings.topics_max:
            self._known_roots[topic] = root

    def _on_not_root(self, peer: NodeId, topic: str) -> list[Effect]:
        return self._lose_root(topic) if self._known_roots.get(topic) == peer else []

    def _lose_root(self, topic: str) -> list[Effect]:
        """What was sent to a root that is none, or is gone, goes by a route, which leads to the new one."""
        del self._known_roots[topic]
        outbox, reader = self.outboxes.get(topic), self.readers.get(topic)
        effects: list[Effect] = []
        if outbox is not None and outbox.sent_ms is not None:
            effects += self._submit(topic, outbox)
        if reader is not None and reader.asked_ms is not None:
            reader.asked_ms = None
            effects += self._fetch(topic, reader)
        return effects

    # Reading.

    def _read(self, spread: Spread) -> list[Effect]:
        reader = self.readers.get(spread.topic)
        return [] if reader is None else reader.on_messages(self._now_ms, spread.first_offset, spread.payloads)

    def _look_for_gaps(self) -> list[Effect]:
        effects: list[Effect] = []
        for topic, reader in self.readers.items():
            tree = self.trees.get(topic)
            if tree is not None:
                reader.learn_end(self._now_ms, tree.end)
            effects += self._fetch(topic, reader)
        return effects

    def _fetch(self, topic: str, reader: Reader) -> list[Effect]:
        first = reader.wants(self._now_ms, self._settings.gap_ms, self._settings.retry_ms)
        if first is None:
            return []
        if reader.asked_ms is not None:
            self._known_roots.pop(topic, None)  # It did not answer the last time.
        reader.asked_ms = self._now_ms
        return self._to_root(topic, Fetch(topic, self.node, first))

    def _on_fetched(self, peer: NodeId, fetched: Fetched) -> list[Effect]:
        reader = self.readers.get(fetched.topic)
        if reader is None or reader.asked_ms is None:
            return []
        self._learn_root(fetched.topic, peer)
        effects = reader.on_fetched(self._now_ms, fetched.first_offset, fetched.payloads, fetched.end)
        if fetched.payloads and reader.next_offset is not None and reader.next_offset < fetched.end:
            reader.asked_ms = self._now_ms  # A long gap is fetched piece by piece.
            effects += self._to_root(fetched.topic, Fetch(fetched.topic, self.node, reader.next_offset))
        return effects

    # Being the root.

    def _owns(self, topic: str) -> bool | None:
        """Whether the topic is ours; None while the predecessor is not known."""
        if self._heirs.get(topic) is not None:
            return False
        if self._predecessor is None:
            return None
        return within(identifier(self._predecessor), identifier(topic), identifier(self.node))

    def _reign(self, topic: str) -> list[Effect]:
        tree = self.trees.need(topic)
        if tree is None or tree.is_root:
            return []
        return [*self.trees.crown(tree), *self.roots.begin(topic)]

    def _abdicate(self, topic: str) -> list[Effect]:
        self.roots.end(topic)
        if self._known_roots.get(topic) == self.node:
            del self._known_roots[topic]
        tree = self.trees.get(topic)
        return [] if tree is None or not tree.is_root else self.trees.uncrown(self._now_ms, tree)

    def _routed(self, payload: bytes) -> Routed | None:
        """What came by a route. Anybody may have sent it, and it may arrive after a timer: bad bytes end here."""
        try:
            return decode(payload)
        except ProtocolError:
            self.malformed += 1
            return None

    def _on_stepped(self, routed: Routed | None, sender: NodeId, is_owner: bool) -> list[Effect]:
        if not isinstance(routed, JoinTree):
            return []
        if is_owner and self._owns(routed.topic) is False:
            return []  # Somebody in front of us is the root: only a root may have children that are before the topic.
        effects = self._reign(routed.topic) if is_owner else []
        tree = self.trees.need(routed.topic)
        if tree is None or sender == self.node:
            return effects
        return effects + self.trees.on_join(self._now_ms, sender, tree)

    def _on_delivered(self, routed: Routed | None) -> list[Effect]:
        """A route has ended here. That our predecessor did not take a message does not make us the root: its answers
        may be lost. Nobody would end such a reign, and there would be two roots. If it is dead, we are told so.
        """
        if not isinstance(routed, Submit | Fetch) or self._owns(routed.topic) is False:
            return []
        return [*self._reign(routed.topic), *self._serve(routed)]

    def _on_direct(self, peer: NodeId, message: Submit | Fetch) -> list[Effect]:
        """Somebody remembers this node as the root."""
        owns = self._owns(message.topic)
        if message.topic in self.roots.reigns and owns is not False:
            return self._serve(message)
        return [*self._reign(message.topic), *self._serve(message)] if owns else self._to(peer, NotRoot(message.topic))

    def _serve(self, message: Submit | Fetch) -> list[Effect]:
        if message.topic not in self.roots.reigns:
            return []  # There are too many topics here to own another one.
        return self.roots.on_submit(message) if isinstance(message, Submit) else self.roots.on_fetch(message)

    def _on_committed(self, topic: str, first_offset: int, entries: tuple[Entry, ...]) -> list[Effect]:
        """Messages that count go down the tree, and to our own subscriber."""
        tree = self.trees.trees[topic]
        effects: list[Effect] = []
        settings = self._settings
        for chunk in chunks(entries, size_of, settings.chunk_messages_max, settings.chunk_bytes_max):
            spread = Spread(topic, self.node, first_offset, tuple(entry.payload for entry in chunk))
            effects += [*self.trees.pass_on(tree, spread), *self._read(spread)]
            first_offset += len(chunk)
        return effects

    def _on_inherit(self, peer: NodeId, inherit: Inherit) -> list[Effect]:
        """Somebody begins to reign. If it is in front of us, the topic is not ours any more, even if Chord is
        behind.
        """
        topic = inherit.topic
        effects: list[Effect] = []
        if self.roots.is_closer(peer, topic) and self._owns(topic) is not False:
            effects = self._abdicate(topic)
            if len(self._heirs) < self._settings.topics_max:
                self._heirs[topic] = peer
        return effects + self.roots.on_inherit(peer, inherit)

    def _yield_to(self, peer: NodeId, copy: Replicate) -> list[Effect]:
        """A copy from another root: the later reign is the right one."""
        log = self.roots.logs.get(copy.topic)
        later = log is not None and (copy.epoch > log.epoch or self.roots.is_closer(peer, copy.topic))
        return self._abdicate(copy.topic) if copy.topic in self.roots.reigns and later else []

    def _on_neighbours(self, predecessor: NodeId | None, successors: tuple[NodeId, ...]) -> list[Effect]:
        if predecessor != self._predecessor:
            self._heirs.clear()
        self._predecessor = predecessor
        effects: list[Effect] = []
        for topic in [topic for topic in self.roots.reigns if self._owns(topic) is False]:
            effects += self._abdicate(topic)
        effects += self.roots.on_successors(successors)
        # A copy of a topic that is ours now: the owner before us is gone.
        for topic in [topic for topic in self.roots.logs if topic not in self.roots.reigns and self._owns(topic)]:
            effects += self._reign(topic)
        return effects

    # Time and silence.

    def _on_beat(self) -> list[Effect]:
        effects: list[Effect] = [SetTimer(TreesDue(), self._settings.beat_ms)]
        for topic in self.roots.reigns:
            tree: Tree = self.trees.trees[topic]
            tree.end = max(tree.end, self.roots.logs[topic].committed)
        effects += [*self.trees.on_beat(self._now_ms), *self.roots.on_beat(), *self._look_for_gaps()]
        for topic, outbox in self.outboxes.items():
            if outbox.sent_ms is not None and self._now_ms - outbox.sent_ms >= self._settings.retry_ms:
                self._known_roots.pop(topic, None)
                effects += self._submit(topic, outbox)
        return effects

    def _on_down(self, peer: NodeId) -> list[Effect]:
        for topic in [topic for topic, heir in self._heirs.items() if heir == peer]:
            del self._heirs[topic]
        effects = self.trees.on_down(self._now_ms, peer)
        for topic in [topic for topic, root in self._known_roots.items() if root == peer]:
            effects += self._lose_root(topic)
        return effects
