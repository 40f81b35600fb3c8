"""A virtual node: one group's place in the overlay of groups, whichever of its nodes leads.

The leader runs the virtual node. Another leader makes a new one with the same name, knowing what its directory knows;
to the others the virtual node was merely silent for a while. Messages go from virtual node to virtual node (`Between`)
with the descriptors of every virtual node that they speak of, so that who hears of a virtual node can reach it.

Groups are durable, and Chord, made for nodes that are gone when they are silent, is helped in two ways:

- A virtual node without a place in the ring asks some virtual nodes that it knows to find its place. If none has
  answered after `PLACE_MS_MAX`, for instance because all of them began at the same time, it finds a place by its
  directory alone.
- Every `HEAL_MS` it looks whether Chord has skipped virtual nodes that it knows, between itself and its successor, and
  asks one of them as a candidate, the nearest first. Messages that keep the ring also bring the descriptor of the
  virtual node that stands right behind the receiver, as far as the sender knows, and all messages bring a few
  descriptors that were news to the sender. So two rings grow together once one virtual node knows one of the other
  ring, like the two sides of a zip.

A group that does not answer may have another leader: every second message to it then goes to any of its members, which
says who leads or hands it on (`outgoing` then has the descriptor without its leader).

Virtual nodes of groups that left are taken for dead. A virtual node that knows no other is a ring of one, and the root
of every point.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator
from functools import cache
from itertools import takewhile
from typing import Any, Literal, NamedTuple, Union

import msgspec

from tidings.errors import LimitReached, MessageTooLarge
from tidings.protocols.chord import Chord, Consider, FindRoot, RootFound, RootUnknown, Seek
from tidings.protocols.chord.founding import founding_links
from tidings.protocols.chord.identifiers import Key, between, to_point
from tidings.protocols.chord.messages import AskLinks, Hop, Precede, TellLinks
from tidings.protocols.gossip import Gossip
from tidings.protocols.heartbeat import Heartbeat
from tidings.protocols.hyparview import HyParView
from tidings.protocols.pubsub import Arrived, OverGossip, Publish, Subscribe, Unsubscribe
from tidings.protocols.ring.directory import Directory
from tidings.protocols.ring.messages import VIRTUAL_NODE, Between, GroupDescriptor, virtual_node_of
from tidings.protocols.ring.multicast import Multicast
from tidings.protocols.stack import (
    CancelTimer,
    Effect,
    Event,
    Message,
    NodeId,
    Notification,
    Notify,
    PeerDown,
    Request,
    Requested,
    Send,
    SetTimer,
    Stack,
)
from tidings.protocols.timers import Timers
from tidings.settings import ChordSettings, GossipSettings, HeartbeatSettings, HyParViewSettings, ScribeSettings

Dissemination = Literal["scribe", "gossip"]
"""scribe: a tree for each topic; gossip: every message to every virtual node, over views of a few neighbours."""

SEEK_MS = 500
"""How often a virtual node without a place asks for one."""
SEEK_COUNT = 3
"""How many it asks at a time."""
PLACE_MS_MAX = 1_000
"""How long it waits for a place before it finds a place by its directory."""
HEAL_MS = 1_000
"""How often a virtual node looks for others that Chord has skipped."""
SILENT_MS = 1_000
"""A group that has not answered for this long may have another leader than its descriptor says."""
NEWS_COUNT = 2
"""Descriptors that were news to this node and that a message takes along."""
CONTACTS_MAX = 64
"""Virtual nodes by which a new virtual node joins the views of gossip."""
SUBSCRIPTIONS_MAX = 100_000


class GossipLayers(NamedTuple):
    """The settings of the layers under gossip."""

    hyparview: HyParViewSettings = HyParViewSettings()
    gossip: GossipSettings = GossipSettings()
    heartbeat: HeartbeatSettings = HeartbeatSettings()


class VirtualNode:
    """The virtual node of one group. What it wants sent is in `outgoing`, what it found in `found`, and messages of
    topics in `arrived`: the runtime takes them out after every call.
    """

    def __init__(
        self,
        group: bytes,
        directory: Directory,
        settings: ChordSettings,
        scribe: ScribeSettings,
        rng: random.Random,
        dissemination: Dissemination = "scribe",
        gossip: GossipLayers = GossipLayers(),  # noqa: B008 - it is frozen.
    ) -> None:
        self.group = group
        self.name: NodeId = virtual_node_of(group)
        self.found: list[tuple[Key, bytes]] = []
        """A point, and the group that is its root; of the same point there may be several answers."""
        self.outgoing: list[tuple[GroupDescriptor, Between]] = []
        """To whom, and what."""
        self.arrived: list[tuple[str, bytes]] = []
        """A topic, and a message of it."""
        self.topics: dict[str, None] = {}
        """What is subscribed to."""
        self.dropped = 0
        """Messages that could not be read, or whose receiver is not known."""
        self._directory = directory
        self._settings = settings
        self._scribe = scribe
        self._rng = rng
        self._dissemination = dissemination
        self._gossip = gossip
        self._chord = Chord(self.name, settings, rng)
        self._stack: Stack | None = None
        """None before the start."""
        self._timers = Timers()
        self._now_ms = 0
        self._alone_since_ms: int | None = None
        self._seek_ms = 0
        self._heal_ms = 0
        self._skipped: tuple[NodeId, int] = ("", 0)
        """The successor at the last look, and whose turn it is of those that Chord has skipped."""
        self._asked_ms: dict[bytes, int] = {}
        """Since when a group owes an answer."""
        self._detours = 0
        """Messages to groups that do not answer."""

    # The life of a virtual node.

    def start(self, now_ms: int, own_descriptor: GroupDescriptor) -> None:
        """Begins, once. Before that a virtual node has no place, and only learns from what it receives."""
        assert own_descriptor.group == self.group
        assert self._stack is None, "A virtual node begins only once."
        self._now_ms = now_ms
        self._own = own_descriptor
        self._directory.learn_descriptor(own_descriptor)
        self._stack = Stack([*self._upper_layers(), self._chord])
        self._heal_ms = now_ms + self._rng.randrange(HEAL_MS) + 1
        self._apply(self._stack.start(now_ms))
        self._keep_place()
        for topic in self.topics:
            self._ask(Subscribe(topic))

    def _upper_layers(self) -> list[Any]:
        if self._dissemination == "scribe":
            return [Multicast(self.name, self._scribe, self._rng.getrandbits(53))]
        others = [descriptor.virtual_node for descriptor in self._others()]
        contacts = self._rng.sample(others, min(len(others), CONTACTS_MAX))
        hyparview, gossip, heartbeat = self._gossip
        return [
            OverGossip(self.name, gossip.kept_max, SUBSCRIPTIONS_MAX, gossip.body_bytes_max),
            Gossip(gossip, self._rng, founding=not contacts),
            HyParView(self.name, contacts, hyparview, self._rng),
            Heartbeat(heartbeat),
        ]

    def tick(self, now_ms: int, own_descriptor: GroupDescriptor) -> None:
        """Does what is due. `own_descriptor` is the group's descriptor as its leader knows it now."""
        assert own_descriptor.group == self.group
        assert self._stack is not None, "A virtual node has to begin first."
        self._now_ms = now_ms
        self._own = own_descriptor
        self._directory.learn_descriptor(own_descriptor)
        while (timer := self._timers.due(now_ms)) is not None:
            self._apply(self._stack.fire(now_ms, timer))
        self._keep_place()
        if now_ms >= self._heal_ms:
            self._heal_ms = now_ms + HEAL_MS
            self._heal()

    @property
    def next_ms(self) -> int:
        """When something is due."""
        due = [self._heal_ms]
        if (next_ms := self._timers.next_ms) is not None:
            due.append(next_ms)
        if self._alone_since_ms is not None:
            due.append(self._seek_ms)
        return min(due)

    def receive(self, now_ms: int, message: Between) -> None:
        """Takes a message of another virtual node, and the descriptors that came with it."""
        self._now_ms = now_ms
        for descriptor in (message.sender, *message.descriptors):
            if descriptor.group != self.group:
                self._directory.learn_descriptor(descriptor)
        sender = self._directory.descriptor(message.sender.group)
        if message.receiver != self.group or sender is None or sender.left or sender.group == self.group:
            return
        if self._stack is None:
            return
        self._asked_ms.pop(sender.group, None)
        try:
            inner = _decoder_of(self._stack.messages).decode(message.message)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            self.dropped += 1
            return
        self._apply(self._stack.receive(now_ms, sender.virtual_node, inner))

    # What is asked of it.

    def find(self, now_ms: int, point: Key) -> None:
        """Looks for the root of a point; the answer comes in `found`."""
        self._now_ms = now_ms
        if self._chord.ring.is_member:
            self._ask(FindRoot(point))
        else:
            self._guess(point)

    def subscribe(self, topic: str) -> bool:
        """Messages of a topic are to come here, from now on; False if there are too many topics."""
        try:
            if self._stack is not None:
                self._ask(Subscribe(topic))
        except LimitReached:
            return False
        self.topics[topic] = None
        return True

    def unsubscribe(self, topic: str) -> None:
        if topic in self.topics:
            del self.topics[topic]
            if self._stack is not None:
                self._ask(Unsubscribe(topic))

    def publish(self, topic: str, body: bytes) -> bool:
        """Sends a message to the virtual nodes that have subscribed; False if it is too large for that, or too
        early."""
        if len(body) > self._scribe.payload_bytes_max or self._stack is None:
            return False
        try:
            self._ask(Publish(topic, body))
        except MessageTooLarge:
            return False
        return True

    @property
    def is_member(self) -> bool:
        """Whether it has a place in a ring of several."""
        return self._chord.ring.is_member

    @property
    def predecessor(self) -> bytes | None:
        """The group before this one, as Chord has it."""
        ring = self._chord.ring
        return None if ring.predecessor is None or ring.predecessor_is_dead else group_of(ring.predecessor)

    @property
    def successors(self) -> tuple[bytes, ...]:
        """The groups behind this one, as Chord has them."""
        return tuple(group for name in self._chord.ring.successors if (group := group_of(name)) is not None)

    # Keeping the place in the ring.

    def _others(self) -> list[GroupDescriptor]:
        return [
            descriptor for descriptor in self._directory.following(self._own.point) if descriptor.group != self.group
        ]

    def _keep_place(self) -> None:
        """Looks for a place, if there is none and others are known."""
        if self._chord.ring.is_member or self._own.left:
            self._alone_since_ms = None
            return
        others = [descriptor.virtual_node for descriptor in self._others()] if self._is_seek_due() else []
        if not others:
            return
        if self._alone_since_ms is None:
            self._alone_since_ms = self._now_ms
        self._seek_ms = self._now_ms + SEEK_MS
        if self._now_ms - self._alone_since_ms < PLACE_MS_MAX:
            self._ask(Seek(tuple(self._rng.sample(others, min(len(others), SEEK_COUNT)))))
        else:
            self._ask(founding_links(self.name, (self.name, *others), self._settings.successors_max))
            self._alone_since_ms = None

    def _is_seek_due(self) -> bool:
        return self._alone_since_ms is None or self._now_ms >= self._seek_ms

    def _heal(self) -> None:
        """Lets go of virtual nodes that left, and asks one of those that Chord has skipped."""
        ring, fingers = self._chord.ring, self._chord.fingers
        known = dict.fromkeys((ring.predecessor, *ring.successors, *(name for _, name in fingers.items())))
        for name in known:
            descriptor = None if name is None else self._descriptor_of(name)
            if name is not None and descriptor is not None and descriptor.left:
                self._handle(PeerDown(self._now_ms, name))
        if not ring.is_member:
            return
        skipped = self._skipped_by_chord()
        before, turn = self._skipped
        turn = turn + 1 if before == ring.successor else 0
        self._skipped = (ring.successor, turn)
        if skipped:
            self._ask(Consider(skipped[turn % len(skipped)]))

    def _skipped_by_chord(self) -> list[NodeId]:
        """The virtual nodes between this one and its successor, the nearest first."""
        successor = self._descriptor_of(self._chord.ring.successor)
        if successor is None:
            return []
        own, end = to_point(self._own.point), to_point(successor.point)

        def is_between(descriptor: GroupDescriptor) -> bool:
            return between(own, to_point(descriptor.point), end)

        return [
            descriptor.virtual_node for descriptor in takewhile(is_between, self._directory.following(self._own.point))
        ]

    # What comes of it.

    def _ask(self, request: Request) -> None:
        self._handle(Requested(self._now_ms, request))

    def _handle(self, event: Event) -> None:
        assert self._stack is not None
        self._apply(self._stack.handle(event))

    def _apply(self, effects: list[Effect]) -> None:
        assert self._stack is not None
        waiting = deque(effects)
        while waiting:
            match waiting.popleft():
                case Send(peers, message):
                    if self.name in peers:
                        waiting.extend(self._stack.receive(self._now_ms, self.name, message))
                    self._send([peer for peer in peers if peer != self.name], message)
                case SetTimer(timer, delay_ms):
                    self._timers.set(timer, self._now_ms + delay_ms)
                case CancelTimer(timer):
                    self._timers.cancel(timer)
                case Notify(notification):
                    self._on_news(notification)

    def _on_news(self, news: Notification) -> None:
        match news:
            case RootFound(key, root):
                group = group_of(root)
                if group is not None:
                    self.found.append((key, group))
            case RootUnknown(key):
                self._guess(key)
            case Arrived(topic, _, _, _, body):
                self.arrived.append((topic, body))

    def _guess(self, point: Key) -> None:
        """Nobody else can be asked, so the directory is."""
        descriptor = self._directory.first_at(point)
        self.found.append((point, self.group if descriptor is None else descriptor.group))

    def _send(self, peers: list[NodeId], message: Message) -> None:
        if not peers:
            return
        encoded = msgspec.msgpack.encode(message)
        mentioned = {
            name: descriptor
            for name in virtual_nodes_in(message)
            if (descriptor := self._descriptor_of(name)) is not None
        }
        for peer in peers:
            descriptor = self._descriptor_of(peer)
            if descriptor is None or descriptor.left:
                self.dropped += 1
                continue
            descriptors = dict(mentioned)
            if isinstance(message, AskLinks | TellLinks | Precede):
                behind = next(self._directory.following(descriptor.point))
                descriptors[behind.virtual_node] = behind
            descriptors |= {news.virtual_node: news for news in self._directory.tell_news(NEWS_COUNT)}
            told = tuple(each for name, each in descriptors.items() if name not in (peer, self.name))
            if isinstance(message, AskLinks | Hop):
                descriptor = self._detoured(descriptor)
            self.outgoing.append((descriptor, Between(self._own, descriptor.group, told, encoded)))

    def _detoured(self, descriptor: GroupDescriptor) -> GroupDescriptor:
        """The descriptor of a group that is asked something: without its leader, if that one has not answered and it is
        time to try another way.
        """
        asked_ms = self._asked_ms.setdefault(descriptor.group, self._now_ms)
        if self._now_ms - asked_ms < SILENT_MS:
            return descriptor
        self._detours += 1
        return descriptor if self._detours % 2 else msgspec.structs.replace(descriptor, leader="")

    def _descriptor_of(self, name: NodeId) -> GroupDescriptor | None:
        group = group_of(name)
        return None if group is None else self._directory.descriptor(group)


def group_of(name: NodeId) -> bytes | None:
    """The group whose virtual node has a name; None if it is no virtual node's name.

    >>> group_of("seat:0a0b"), group_of("seat:joke"), group_of("tcp://127.0.0.1:7500")
    (b'\\n\\x0b', None, None)
    """
    if not name.startswith(VIRTUAL_NODE):
        return None
    try:
        return bytes.fromhex(name.removeprefix(VIRTUAL_NODE))
    except ValueError:
        return None


def virtual_nodes_in(message: object) -> Iterator[NodeId]:
    """The names of virtual nodes anywhere in a message; in the name of a stream of gossip, the virtual node comes
    first.

    >>> list(virtual_nodes_in(TellLinks(1, "seat:0a", ("seat:0b", "other"))))
    ['seat:0a', 'seat:0b']
    """
    if isinstance(message, str):
        if message.startswith(VIRTUAL_NODE):
            yield message.partition(" ")[0]
    elif isinstance(message, tuple | list):
        for item in message:
            yield from virtual_nodes_in(item)
    elif isinstance(message, msgspec.Struct):
        for field in message.__struct_fields__:
            yield from virtual_nodes_in(getattr(message, field))


@cache
def _decoder_of(messages: tuple[type[Message], ...]) -> msgspec.msgpack.Decoder[Any]:
    return msgspec.msgpack.Decoder(Union[messages])  # noqa: UP007 - the types are only known here.
