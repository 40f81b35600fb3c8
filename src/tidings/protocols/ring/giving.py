"""The giving end of a hand-over, at the leader of the group that owns something now.

As long as nothing is given, it only reads: whoever wants some of our arcs may load what they hold. When the taker says
that it has nearly everything, the arcs are given by one journaled command. From then on they are frozen, and the
answers go through the list of the gift's facts. All that has to be remembered is in the journal; a new leader goes on.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from itertools import islice

import msgspec

from tidings.errors import StorageDamaged, Unavailable
from tidings.protocols.broker.commands import encode_command
from tidings.protocols.broker.machine import Machine
from tidings.protocols.broker.topics import Place, Topic
from tidings.protocols.effects import Effect, Persist
from tidings.protocols.ring.arcs import Arcs, common, owns, point_of
from tidings.protocols.ring.commands import Drop, Facts, Give, LoadedBatch, LoadedTopic
from tidings.protocols.ring.facts import CLIENTS, END, TOPICS, Fact, Mark
from tidings.protocols.ring.gift import Gift
from tidings.protocols.ring.handover_messages import Bequest, Clash, Given, Nothing, Piece, Pull, Ready, Taken, ToGroup
from tidings.protocols.ring.limits import Limits
from tidings.protocols.ring.messages import Card, Word
from tidings.protocols.ring.ownership import Giving, Ownership
from tidings.protocols.ring.patience import Patience
from tidings.protocols.ring.transfer import topics_in

BATCH_BYTES = 128
"""Counted for each batch beside its body, so that small ones have a bound too."""

CLASHES_MAX = 64
"""Topics in the way that a taker is told of at once."""

Read = Callable[[Place], bytes | memoryview]
FindCard = Callable[[bytes], Card | None]


class Parcel:
    """Batches of some topics, as many as fit into a piece; one always does."""

    def __init__(self, read: Read, bytes_max: int) -> None:
        self._read = read
        self._bytes_max = bytes_max
        self._size = 0
        self.topics: list[LoadedTopic] = []
        self.bodies: list[bytes | memoryview] = []

    def add(self, topic: Topic, have: int) -> bool:
        """Packs what a topic holds from an offset on; whether all of that has found room."""
        offset = max(have, topic.first_offset)
        if offset >= topic.next_offset:
            return True
        batches: list[LoadedBatch] = []
        entry, is_whole = topic.find(offset), True
        while entry < len(topic.offsets):
            if self.bodies and self._size + topic.sizes[entry] + BATCH_BYTES > self._bytes_max:
                is_whole = False
                break
            first = topic.offsets[entry]
            body = self._read(topic.place(entry))
            count = topic.end_of(entry) - first
            batches.append(LoadedBatch(first, count, len(body), topic.times[entry], topic.shared.get(first)))
            self.bodies.append(body)
            self._size += len(body) + BATCH_BYTES
            entry += 1
        if batches:
            self.topics.append(LoadedTopic(topic.name, topic.first_offset, tuple(batches)))
        return is_whole


class Giver:
    """Answers those who want our arcs, and reminds the one who got them."""

    def __init__(self, machine: Machine, read: Read, find_card: FindCard, limits: Limits) -> None:
        self._machine = machine
        self._limits = limits
        self._read = read
        self._find_card = find_card
        self._patience = Patience()
        self._remind_at_ms = 0
        self._heir: Card | None = None
        self._offer: tuple[Card, Arcs] | None = None
        self._names: tuple[Arcs, list[str]] = ((), [])
        """The topics in some arcs, as they were when somebody began to load them."""
        self._gift: tuple[int, Gift] | None = None

    @property
    def is_leaving(self) -> bool:
        return self._heir is not None

    def leave(self, heir: Card) -> None:
        """Everything is to go to another group."""
        self._heir = heir

    def offer(self, heir: Card, arcs: Arcs) -> None:
        """These arcs, which were brought, are to go to another group."""
        self._offer = (heir, arcs)

    def tick(self, now_ms: int, ring: Ownership, card: Card) -> list[Effect]:
        """Reminds whoever was given something, or is to be."""
        if not ring.arcs and ring.giving is None:
            self._heir = None
        if now_ms < self._remind_at_ms or (ring.giving is None and self._heir is None and self._offer is None):
            return []
        self._remind_at_ms = now_ms + self._limits.remind_every_ms
        if ring.giving is not None:
            taker = self._find_card(ring.giving.taker.group) or ring.giving.taker
            return [ToGroup(taker, Given(card, ring.giving.number, ring.giving.arcs))]
        if self._heir is not None:
            heir, arcs = self._heir, ring.arcs
        else:
            assert self._offer is not None
            heir, arcs = self._offer[0], common(ring.brought, self._offer[1])
        if not arcs:
            self._offer = None
            return []
        return [ToGroup(self._find_card(heir.group) or heir, Bequest(card, arcs))]

    def on_pull(self, ring: Ownership, card: Card, pull: Pull) -> list[Effect]:
        """Gives whoever asks the next piece of what it does not have."""
        giving = ring.giving
        try:
            if giving is not None and giving.taker.group == pull.taker.group:
                piece, bodies = self._frozen_piece(card, giving, pull)
            elif arcs := common(ring.arcs, pull.arcs):
                if clash := self._clashes(arcs, pull.vacant):
                    return [ToGroup(pull.taker, Clash(pull.number, card.group, clash))]
                piece, bodies = self._growing_piece(card, arcs, pull)
            else:
                return [ToGroup(pull.taker, Nothing(pull.number, Word(card, ring.arcs, ring.gone, ring.settled)))]
        except (Unavailable, StorageDamaged):
            # The storage server is away, or something is damaged here and has to come from a member of our own group
            # first; the taker will ask again.
            return []
        return [ToGroup(pull.taker, piece, bodies)]

    def on_ready(self, now_ms: int, ring: Ownership, ready: Ready) -> list[Effect]:
        """Gives what is left of what somebody has loaded."""
        known = self._find_card(ready.taker.group)
        if known is not None and known.left and known.slot >= ready.taker.slot:
            return []  # An old word of a group that has left since: nobody would ever take it.
        arcs = common(ring.arcs, ready.arcs)
        if ring.giving is not None or not arcs or self._patience.is_waiting(now_ms):
            return []
        if self._clashes(arcs, ready.vacant):
            return []  # The question that follows is answered with that.
        self._patience.wait(now_ms, lambda: ring.giving is not None)
        return [Persist(Give(arcs, ready.taker, ready.vacant))]

    def _clashes(self, arcs: Arcs, vacant: Arcs) -> tuple[str, ...]:
        """Topics that are in the way of what a group brings."""
        return tuple(islice(topics_in(self._machine, common(arcs, vacant)), CLASHES_MAX)) if vacant else ()

    def on_taken(self, now_ms: int, ring: Ownership, taken: Taken) -> list[Effect]:
        """Forgets what somebody else owns now."""
        giving = ring.giving
        if giving is None or (giving.taker.group, giving.number) != (taken.taker.group, taken.number):
            return []
        if self._patience.is_waiting(now_ms):
            return []
        self._patience.wait(now_ms, lambda: ring.giving is None or ring.giving.number != taken.number)
        return [Persist(Drop(taken.number))]

    # Pieces.

    def _growing_piece(self, card: Card, arcs: Arcs, pull: Pull) -> tuple[Piece, tuple[bytes, bytes]]:
        """Of topics that are still used here; new ones are found when the taker begins again."""
        if not pull.start or self._names[0] != arcs:
            self._names = (arcs, sorted(name for name in self._machine.topics if owns(arcs, point_of(name))))
        names, have, parcel = self._names[1], dict(pull.have), Parcel(self._read, self._limits.piece_bytes_max)
        following = ""
        for name in names[bisect_left(names, pull.start) :]:
            topic = self._machine.topics.get(name)
            if topic is None:
                continue
            if (pull.until and name > pull.until) or not parcel.add(topic, have.get(name, 0)):
                following = name
                break
        piece = Piece(card, pull.number, arcs, 0, tuple(parcel.topics), following)
        return piece, (b"".join(parcel.bodies), b"")

    def _frozen_piece(self, card: Card, giving: Giving, pull: Pull) -> tuple[Piece, tuple[bytes, bytes]]:
        """Of each topic the rest of its batches, then its facts; then those of the clients' homes."""
        if self._gift is None or self._gift[0] != giving.number:
            self._gift = (giving.number, Gift(self._machine, giving.arcs, self._limits.records_max))
        gift, have = self._gift[1], dict(pull.have)
        parcel, listing = (
            Parcel(self._read, self._limits.piece_bytes_max),
            Listing(pull.mark, self._limits.facts_bytes_max),
        )
        if pull.mark.kind == TOPICS:
            names = gift.topics_from(pull.mark.name)
            for name, after in zip(names, [*names[1:], ""], strict=False):
                if pull.until and name > pull.until:
                    break
                topic = self._machine.topics.get(name)
                if topic is not None and not parcel.add(topic, have.get(name, 0)):
                    break
                following = Mark(TOPICS, after, 0) if after else Mark(CLIENTS, "", 0)
                if not listing.add(TOPICS, name, list(gift.facts_of_topic(name)), following):
                    break
            if not names:
                listing.end = Mark(CLIENTS, "", 0)
        if listing.end.kind == CLIENTS:
            names = gift.clients_from(listing.end.name)
            for name, after in zip(names, [*names[1:], ""], strict=False):
                following = Mark(CLIENTS, after, 0) if after else END
                if not listing.add(CLIENTS, name, list(gift.facts_of_client(name)), following):
                    break
            if not names:
                listing.end = END
        facts = b""
        if listing.end != pull.mark:
            facts = encode_command(Facts(card.group, giving.number, pull.mark, listing.end, tuple(listing.facts)))
        piece = Piece(card, pull.number, giving.arcs, giving.number, tuple(parcel.topics), "")
        return piece, (b"".join(parcel.bodies), facts)


class Listing:
    """Facts from one place of their list on, as many as fit into a piece; one always does."""

    def __init__(self, start: Mark, bytes_max: int) -> None:
        self.end = start
        self._bytes_max = bytes_max
        self.facts: list[Fact] = []
        self._size = 0

    def add(self, kind: int, name: str, facts: list[Fact], following: Mark) -> bool:
        """Adds what is left of the facts of one topic or client; whether all of it has found room."""
        start = self.end.index if (self.end.kind, self.end.name) == (kind, name) else 0
        for index in range(start, len(facts)):
            if self._size >= self._bytes_max:
                self.end = Mark(kind, name, index)
                return False
            self.facts.append(facts[index])
            self._size += len(msgspec.msgpack.encode(facts[index]))
        self.end = following
        return True
