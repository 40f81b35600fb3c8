"""Gossip brings every message to every node, once.

News travels along a tree that nobody planned. At first everybody tells all neighbours (eager push). Anyone who hears
the same twice tells the second teller to stop (PRUNE): what remains is a tree. Pruned neighbours still get a short
notice of each message (IHAVE, lazy push). Who has a notice but no message after a while asks for it (GRAFT), which also
puts that link into the tree: so the tree mends itself where it broke.

J. Leitao, J. Pereira, L. Rodrigues: Epidemic Broadcast Trees (Plumtree), SRDS 2007.

Differs from the paper: every topic has a tree of its own. A topic is published from one place, and a tree that was
shaped by another publisher's messages leads them on long ways round.

The paper delivers almost always; this delivers always. Messages are numbered (topic and offset, counted by the
topic's publisher), and neighbours exchange digests when they meet and every `digest_ms`: who sees that it is behind
fetches what it missed. What no neighbour keeps any more is announced as `Missed`; the layer above gets it from the
topic's owner and says `Supply`, or gives it up with `Skip`.

A newcomer begins where its first neighbour is: it owes its application nothing older.

Guarantees, as long as the live nodes are connected: each message published after a node has met its first
neighbour is delivered there once. Not guaranteed: the order. All memory is bounded by the settings.
"""

from __future__ import annotations

import random
from typing import ClassVar

from tidings.errors import LimitReached, MessageTooLarge
from tidings.protocols.fields import Name, Number, Several
from tidings.protocols.gossip_memory import Memory
from tidings.protocols.hyparview import NeighborDown, NeighborUp
from tidings.protocols.stack import (
    CancelTimer,
    Effect,
    Message,
    NodeId,
    Notification,
    Notify,
    Request,
    Send,
    SetTimer,
    Table,
    Timer,
)
from tidings.settings import GossipSettings

Key = tuple[str, int]
"""A message's name: topic and offset."""


class Payload(Message, frozen=True):
    """A message in full, eagerly (the paper's GOSSIP). `hops` is how far it has come."""

    topic: Name
    offset: Number
    hops: Number
    body: bytes


class IHave(Message, frozen=True):
    """I have a message: ask if you need it."""

    topic: Name
    offset: Number
    hops: Number


class Graft(Message, frozen=True):
    """Send me all later messages of the topic at once, and this one if it is `wanted`."""

    topic: Name
    offset: Number
    wanted: bool


class Prune(Message, frozen=True):
    """Only tell me what you have of this topic: I hear it sooner from others."""

    topic: Name


class Digest(Message, frozen=True):
    """For each topic: all below the first offset was seen, nothing from the second one on."""

    tracks: Several[tuple[Name, Number, Number]]


class Fetch(Message, frozen=True):
    """Send me these messages, which I missed."""

    topic: Name
    offsets: Several[Number]


class Recovered(Message, frozen=True):
    """A message that was fetched; unlike `Payload` it says nothing about the tree."""

    topic: Name
    offset: Number
    hops: Number
    body: bytes


class Gone(Message, frozen=True):
    """I had these once, and keep them no longer."""

    topic: Name
    offsets: Several[Number]


class Broadcast(Request, frozen=True):
    """Bring a message to everybody. Who publishes to a topic counts its offsets from 0."""

    topic: str
    offset: int
    body: bytes


class Supply(Request, frozen=True):
    """The layer above has got a missed message from elsewhere; it is delivered and passed on like any other."""

    topic: str
    offset: int
    body: bytes


class Skip(Request, frozen=True):
    """The layer above waits for nothing below this offset any more."""

    topic: str
    below_offset: int


class Delivered(Notification, frozen=True):
    """A message has come, for the first time."""

    topic: str
    offset: int
    body: bytes
    hops: int


class Missed(Notification, frozen=True):
    """A neighbour saw these messages and keeps them no longer. Told again until they come from somewhere."""

    topic: str
    offsets: tuple[int, ...]


class MissingDue(Timer, frozen=True):
    """A message that was announced should have come by now."""

    topic: str
    offset: int


class FetchDue(Timer, frozen=True):
    """What a peer's digest showed to be missing should have come by now."""

    peer: NodeId


class DigestDue(Timer, frozen=True):
    """Time to show somebody what we have."""


class Gossip(Table):
    """The broadcast of one node. A `founding` node has nobody to learn from: it begins with every first message."""

    __slots__ = (
        "_announcers",
        "_behind",
        "_lazy",
        "_rng",
        "_settings",
        "_tracks",
        "knows_beginning",
        "memory",
        "neighbors",
    )

    def __init__(self, settings: GossipSettings, rng: random.Random, founding: bool = False) -> None:
        self._settings = settings
        self._rng = rng
        self.memory = Memory(settings)
        self._tracks = self.memory.tracks
        self.neighbors: dict[NodeId, None] = {}
        self._lazy: dict[str, dict[NodeId, None]] = {}
        """For each topic, the neighbours that get notices. All the others get its messages at once."""
        self.knows_beginning = founding
        """False until a neighbour's digest has told where the topics are."""
        self._announcers: dict[Key, dict[NodeId, int]] = {}
        """Who has a message that was announced and has not come, and how far it had travelled there."""
        self._behind: dict[NodeId, tuple[Digest, int]] = {}
        """A peer's digest that shows something missing, and how much was missing when it was last looked at."""

    def lazy(self, topic: str) -> tuple[NodeId, ...]:
        """The neighbours that get only notices of a topic."""
        return tuple(self._lazy.get(topic, ()))

    def start(self, now_ms: int) -> list[Effect]:
        return [SetTimer(DigestDue(), self._rng.randint(1, self._settings.digest_ms))]

    # The tree.

    def _on_broadcast(self, request: Broadcast) -> list[Effect]:
        topic, offset, body = request.topic, request.offset, request.body
        if len(body) > self._settings.body_bytes_max:
            raise MessageTooLarge(
                f"A message of {len(body)} bytes is above the limit of {self._settings.body_bytes_max} for gossip: "
                "split it or raise body_bytes_max."
            )
        if not self.memory.track(topic, begin_offset=offset):
            raise LimitReached(f"{self._settings.topics_max} topics are in use already: raise topics_max.")
        if self.memory.has_seen(topic, offset):
            return []
        return self._take(None, topic, offset, 0, body)

    def _on_payload(self, peer: NodeId, message: Payload) -> list[Effect]:
        topic, offset, hops, body = message.topic, message.offset, message.hops, message.body
        if self.memory.has_seen(topic, offset):
            if not self._make_lazy(peer, topic):
                return []
            return [Send((peer,), Prune(topic))]
        if not self._is_welcome(topic, offset, body):
            return []
        self._make_eager(peer, topic)
        if not self._announcers:
            return self._take(peer, topic, offset, hops, body)
        return self._optimise(peer, (topic, offset), hops) + self._take(peer, topic, offset, hops, body)

    def _optimise(self, peer: NodeId, key: Key, hops: int) -> list[Effect]:
        """Takes a much shorter way into the tree in place of the one by which a message came, if one was announced."""
        topic, offset = key
        for other, other_hops in self._announcers.get(key, {}).items():
            if hops - other_hops >= self._settings.optimise_hops and self._make_eager(other, topic):
                self._make_lazy(peer, topic)
                return [Send((other,), Graft(topic, offset, wanted=False)), Send((peer,), Prune(topic))]
        return []

    def _is_welcome(self, topic: str, offset: int, body: bytes) -> bool:
        """Whether an unseen message is within the bounds; one that is not is asked for later, or never was ours."""
        begin_offset = 0 if self.knows_beginning else offset
        return (
            offset >= 0
            and len(body) <= self._settings.body_bytes_max
            and self.memory.track(topic, begin_offset)
            and self.memory.has_room(topic, offset)
        )

    def _take(self, peer: NodeId | None, topic: str, offset: int, hops: int, body: bytes) -> list[Effect]:
        """A message is new here: it is delivered and passed on."""
        self.memory.add(topic, offset, hops, body)
        effects: list[Effect] = [Notify(Delivered(topic, offset, body, hops))]
        pruned = self._lazy.get(topic, {})
        eager: list[NodeId] = []
        lazy: list[NodeId] = []
        for other in self.neighbors:
            if other != peer:
                (lazy if other in pruned else eager).append(other)
        if eager:
            effects.append(Send(tuple(eager), Payload(topic, offset, hops + 1, body)))
        if lazy:
            effects.append(Send(tuple(lazy), IHave(topic, offset, hops + 1)))
        if self._announcers and self._announcers.pop((topic, offset), None) is not None:
            effects.append(CancelTimer(MissingDue(topic, offset)))
        return effects

    def _on_ihave(self, peer: NodeId, message: IHave) -> list[Effect]:
        topic, offset, hops = message.topic, message.offset, message.hops
        track = self._tracks.get(topic)  # Not `has_seen`: most messages are notices of what is known.
        if track is not None and offset < track.next_offset:
            return []
        if self.memory.has_seen(topic, offset) or peer not in self.neighbors:
            return []
        announcers = self._announcers.get((topic, offset))
        if announcers is not None:
            announcers[peer] = hops
            return []
        if len(self._announcers) >= self._settings.announced_max:  # The next digest will tell of it again.
            return []
        self._announcers[topic, offset] = {peer: hops}
        return [SetTimer(MissingDue(topic, offset), self._settings.missing_ms)]

    def _on_missing_due(self, timer: MissingDue) -> list[Effect]:
        topic, offset = timer.topic, timer.offset
        announcers = self._announcers[topic, offset]
        while announcers and not self.memory.has_seen(topic, offset):
            peer = next(iter(announcers))
            del announcers[peer]
            if peer in self.neighbors:
                self._make_eager(peer, topic)
                return [
                    Send((peer,), Graft(topic, offset, wanted=True)),
                    SetTimer(MissingDue(topic, offset), self._settings.graft_ms),
                ]
        # Everybody was asked, or it was skipped. A digest tells again of what is still missing.
        del self._announcers[topic, offset]
        return []

    def _on_graft(self, peer: NodeId, message: Graft) -> list[Effect]:
        topic, offset = message.topic, message.offset
        self._make_eager(peer, topic)
        kept = self.memory.kept(topic, offset) if message.wanted else None
        if kept is None:
            return []
        hops, body = kept
        return [Send((peer,), Payload(topic, offset, hops + 1, body))]

    def _on_prune(self, peer: NodeId, message: Prune) -> list[Effect]:
        self._make_lazy(peer, message.topic)
        return []

    def _make_eager(self, peer: NodeId, topic: str) -> bool:
        """Whether that changed anything."""
        lazy = self._lazy.get(topic)
        if lazy is None or peer not in lazy:
            return False
        del lazy[peer]
        return True

    def _make_lazy(self, peer: NodeId, topic: str) -> bool:
        """Whether that changed anything."""
        if peer not in self.neighbors or topic not in self.memory.tracks:
            return False
        lazy = self._lazy.setdefault(topic, {})
        if peer in lazy:
            return False
        lazy[peer] = None
        return True

    def _on_neighbor_up(self, news: NeighborUp) -> list[Effect]:
        self.neighbors[news.peer] = None
        return self._show((news.peer,))

    def _on_neighbor_down(self, news: NeighborDown) -> list[Effect]:
        peer = news.peer
        self.neighbors.pop(peer, None)
        for lazy in self._lazy.values():
            lazy.pop(peer, None)
        return [CancelTimer(FetchDue(peer))] if self._behind.pop(peer, None) is not None else []

    # Recovery.

    def _show(self, peers: tuple[NodeId, ...]) -> list[Effect]:
        """Shows what we have, unless we do not know yet where the topics are."""
        if not self.knows_beginning or not peers:
            return []
        return [Send(peers, Digest(self.memory.digest()))]

    def _on_digest_due(self, _: DigestDue) -> list[Effect]:
        effects: list[Effect] = [SetTimer(DigestDue(), self._settings.digest_ms)]
        if self.neighbors:
            # By turns and not by lot, so that nobody waits longer than it takes to show it to all.
            peer = next(iter(self.neighbors))
            self.neighbors[peer] = self.neighbors.pop(peer)
            effects += self._show((peer,))
        return effects

    def _on_digest(self, peer: NodeId, digest: Digest) -> list[Effect]:
        effects: list[Effect] = []
        if len(digest.tracks) > self._settings.topics_max:
            digest = Digest(digest.tracks[: self._settings.topics_max])
        if not self.knows_beginning:
            self.knows_beginning = True
            for topic, next_offset, _ in digest.tracks:
                self.memory.track(topic, next_offset)
            effects += self._show(tuple(self.neighbors))
        if peer not in self.neighbors:
            return effects
        missing = self._count_missing(digest)
        if missing:
            # Most of it is just on its way: what has not come after a while is fetched.
            self._behind[peer] = (digest, missing + 1)
            effects.append(SetTimer(FetchDue(peer), self._settings.missing_ms))
        return effects

    def _on_fetch_due(self, timer: FetchDue) -> list[Effect]:
        """Fetches what is still missing, and looks again, as long as there is progress."""
        peer = timer.peer
        digest, missing_before = self._behind.pop(peer)
        missing = self._count_missing(digest)
        if not missing or missing >= missing_before:
            return []
        self._behind[peer] = (digest, missing)
        effects: list[Effect] = [SetTimer(FetchDue(peer), self._settings.missing_ms)]
        room = self._settings.fetch_max
        for topic, _, high_offset in digest.tracks:
            offsets = self._missing(topic, high_offset, room)
            if offsets:
                room -= len(offsets)
                effects.append(Send((peer,), Fetch(topic, tuple(offsets))))
            if not room:
                break
        return effects

    def _missing(self, topic: str, high_offset: int, count_max: int) -> list[int]:
        if not self.memory.track(topic, begin_offset=0):
            return []
        track = self.memory.tracks[topic]
        return track.missing(min(high_offset, track.next_offset + self._settings.window), count_max)

    def _count_missing(self, digest: Digest) -> int:
        """How many messages of a digest were not seen, also those that the window has no room for yet: otherwise
        it would rise as the window moves on, and progress would be taken for none.
        """
        missing = 0
        for topic, _, high_offset in digest.tracks:
            track = self._tracks.get(topic)
            if track is not None and track.next_offset >= high_offset:  # All of it was seen, as nearly always.
                continue
            if self.memory.track(topic, begin_offset=0):
                missing += self._tracks[topic].count_missing(high_offset)
        return missing

    def _on_fetch(self, peer: NodeId, message: Fetch) -> list[Effect]:
        topic = message.topic
        effects: list[Effect] = []
        gone: list[int] = []
        for offset in message.offsets[: self._settings.fetch_max]:
            kept = self.memory.kept(topic, offset)
            if kept is not None:
                hops, body = kept
                effects.append(Send((peer,), Recovered(topic, offset, hops + 1, body)))
            elif self.memory.has_seen(topic, offset):
                gone.append(offset)
        if gone:
            effects.append(Send((peer,), Gone(topic, tuple(gone))))
        return effects

    def _on_recovered(self, peer: NodeId, message: Recovered) -> list[Effect]:
        topic, offset, hops, body = message.topic, message.offset, message.hops, message.body
        if self.memory.has_seen(topic, offset) or not self._is_welcome(topic, offset, body):
            return []
        # Neighbours may have missed it as well, so it is passed on like any other news.
        return self._take(peer, topic, offset, hops, body)

    def _on_gone(self, _: NodeId, message: Gone) -> list[Effect]:
        offsets = message.offsets[: self._settings.fetch_max]
        missed = tuple(offset for offset in offsets if not self.memory.has_seen(message.topic, offset))
        return [Notify(Missed(message.topic, missed))] if missed else []

    def _on_supply(self, request: Supply) -> list[Effect]:
        topic, offset, body = request.topic, request.offset, request.body
        if not self.memory.has_seen(topic, offset) and self._is_welcome(topic, offset, body):
            return self._take(None, topic, offset, 0, body)
        return []

    def _on_skip(self, request: Skip) -> list[Effect]:
        if self.memory.track(request.topic, request.below_offset):
            self.memory.tracks[request.topic].skip(request.below_offset)
        return []

    on: ClassVar = {
        Payload: _on_payload,
        IHave: _on_ihave,
        Graft: _on_graft,
        Prune: _on_prune,
        Digest: _on_digest,
        Fetch: _on_fetch,
        Recovered: _on_recovered,
        Gone: _on_gone,
        Broadcast: _on_broadcast,
        Supply: _on_supply,
        Skip: _on_skip,
        MissingDue: _on_missing_due,
        FetchDue: _on_fetch_due,
        DigestDue: _on_digest_due,
        NeighborUp: _on_neighbor_up,
        NeighborDown: _on_neighbor_down,
    }
