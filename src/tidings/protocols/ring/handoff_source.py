"""The giving end of a handoff, at the leader of the group that owns something now.

As long as nothing is given, it only reads: anyone who wants some of our ranges may load what they hold. When the target
says that it has nearly everything, the ranges are given by one journaled command. From then on they are frozen, and the
answers go through the list of the transfer's facts. All that has to be remembered is in the journal; a new leader goes
on.
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
from tidings.protocols.ring.commands import Drop, Facts, HandOff, LoadedBatch, LoadedTopic
from tidings.protocols.ring.facts import CLIENTS, END, TOPICS, Fact, Mark, Staged
from tidings.protocols.ring.handoff_messages import (
    Clash,
    HandedOff,
    Nothing,
    Piece,
    Pull,
    Ready,
    TakenOver,
    ToGroup,
    TransferOffer,
)
from tidings.protocols.ring.key_ranges import KeyRanges, common, owns, point_of
from tidings.protocols.ring.limits import Limits
from tidings.protocols.ring.messages import GroupDescriptor, Word
from tidings.protocols.ring.ownership import HandingOff, Ownership
from tidings.protocols.ring.patience import Patience
from tidings.protocols.ring.transfer import topics_in
from tidings.protocols.ring.transfer_facts import Transfer

BATCH_BYTES = 128
"""Counted for each batch beside its body, so that small ones have a bound too."""

CLASHES_MAX = 64
"""Topics in the way that a target is told of at once."""

CLOSING_MS = 3_000
"""How long commits have to come to their end when something is to be given: longer than the target's next word."""

Read = Callable[[Place], bytes | memoryview]
FindDescriptor = Callable[[bytes], GroupDescriptor | None]


class PieceBuilder:
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
            place, shared = topic.place(entry), topic.shared.get(first)
            kept = place.kept if shared is not None else None  # What several topics have stays whole.
            body = self._read(place if kept is None else Place(place.address, place.size_bytes))
            count = topic.end_of(entry) - first
            batches.append(LoadedBatch(first, count, len(body), topic.times[entry], shared, kept))
            self.bodies.append(body)
            self._size += len(body) + BATCH_BYTES
            entry += 1
        if batches:
            self.topics.append(LoadedTopic(topic.name, topic.first_offset, tuple(batches)))
        return is_whole


class HandoffSource:
    """Answers those who want our ranges, and reminds the one who got them."""

    def __init__(self, machine: Machine, read: Read, find_descriptor: FindDescriptor, limits: Limits) -> None:
        self._machine = machine
        self._limits = limits
        self._read = read
        self._find_descriptor = find_descriptor
        self._patience = Patience()
        self._remind_at_ms = 0
        self.closing_until_ms = 0
        """Until then no commit over several groups may begin here, so that ranges can be given."""
        self._heir: GroupDescriptor | None = None
        self._offer: tuple[GroupDescriptor, KeyRanges] | None = None
        self._names: tuple[KeyRanges, list[str]] = ((), [])
        """The topics in some ranges, as they were when somebody began to load them."""
        self._transfer: tuple[int, Transfer] | None = None

    @property
    def is_leaving(self) -> bool:
        return self._heir is not None

    def leave(self, heir: GroupDescriptor | None) -> None:
        """Everything is to go to another group, or to nobody."""
        self._heir = heir

    def offer(self, heir: GroupDescriptor, ranges: KeyRanges) -> None:
        """These ranges, which were brought, are to go to another group."""
        self._offer = (heir, ranges)

    def tick(self, now_ms: int, ring: Ownership, descriptor: GroupDescriptor) -> list[Effect]:
        """Reminds the one who was given something, or is to be."""
        if not ring.ranges and ring.handing_off is None:
            self._heir = None
        if now_ms < self._remind_at_ms or (ring.handing_off is None and self._heir is None and self._offer is None):
            return []
        self._remind_at_ms = now_ms + self._limits.remind_every_ms
        if ring.handing_off is not None:
            target = self._find_descriptor(ring.handing_off.target.group) or ring.handing_off.target
            return [ToGroup(target, HandedOff(descriptor, ring.handing_off.number, ring.handing_off.ranges))]
        if self._heir is not None:
            heir, ranges = self._heir, ring.ranges
        else:
            assert self._offer is not None
            heir, ranges = self._offer[0], common(ring.brought, self._offer[1])
        if not ranges:
            self._offer = None
            return []
        return [ToGroup(self._find_descriptor(heir.group) or heir, TransferOffer(descriptor, ranges))]

    def on_pull(self, ring: Ownership, descriptor: GroupDescriptor, pull: Pull) -> list[Effect]:
        """Gives anyone who asks the next piece of what it does not have."""
        handing_off = ring.handing_off
        try:
            if handing_off is not None and handing_off.target.group == pull.target.group:
                piece, bodies = self._frozen_piece(descriptor, handing_off, pull)
            elif ranges := common(ring.ranges, pull.ranges):
                if clash := self._clashes(ranges, pull.vacant):
                    return [ToGroup(pull.target, Clash(pull.number, descriptor.group, clash))]
                piece, bodies = self._growing_piece(descriptor, ranges, pull)
            else:
                return [
                    ToGroup(pull.target, Nothing(pull.number, Word(descriptor, ring.ranges, ring.gone, ring.confirmed)))
                ]
        except (Unavailable, StorageDamaged):
            # The storage server is away, or something is damaged here and has to come from a member of our own group
            # first; the target will ask again.
            return []
        return [ToGroup(pull.target, piece, bodies)]

    def on_ready(self, now_ms: int, ring: Ownership, ready: Ready) -> list[Effect]:
        """Gives what is left of what somebody has loaded."""
        known = self._find_descriptor(ready.target.group)
        if known is not None and known.left and known.slot >= ready.target.slot:
            return []  # An old word of a group that has left since: nobody would ever take it.
        ranges = common(ring.ranges, ready.ranges)
        if ring.handing_off is not None or not ranges or self._patience.is_waiting(now_ms):
            return []
        if ring.commits.is_busy(ranges):
            self.closing_until_ms = now_ms + CLOSING_MS
            return []  # It is said again, and in the meantime no commit begins.
        if self._clashes(ranges, ready.vacant):
            return []  # The question that follows is answered with that.
        self._patience.wait(now_ms, lambda: ring.handing_off is not None)
        return [Persist(HandOff(ranges, ready.target, ready.vacant))]

    def _clashes(self, ranges: KeyRanges, vacant: KeyRanges) -> tuple[str, ...]:
        """Topics that are in the way of what a group brings."""
        return tuple(islice(topics_in(self._machine, common(ranges, vacant)), CLASHES_MAX)) if vacant else ()

    def on_taken_over(self, now_ms: int, ring: Ownership, taken: TakenOver) -> list[Effect]:
        """Forgets what somebody else owns now."""
        handing_off = ring.handing_off
        if handing_off is None or (handing_off.target.group, handing_off.number) != (taken.target.group, taken.number):
            return []
        if self._patience.is_waiting(now_ms):
            return []
        self._patience.wait(now_ms, lambda: ring.handing_off is None or ring.handing_off.number != taken.number)
        return [Persist(Drop(taken.number))]

    # Pieces.

    def _growing_piece(
        self, descriptor: GroupDescriptor, ranges: KeyRanges, pull: Pull
    ) -> tuple[Piece, tuple[bytes, ...]]:
        """Of topics that are still used here; new ones are found when the target begins again."""
        if not pull.start or self._names[0] != ranges:
            self._names = (ranges, sorted(name for name in self._machine.topics if owns(ranges, point_of(name))))
        names, have, builder = self._names[1], dict(pull.have), PieceBuilder(self._read, self._limits.piece_bytes_max)
        following = ""
        for name in names[bisect_left(names, pull.start) :]:
            topic = self._machine.topics.get(name)
            if topic is None:
                continue
            if (pull.until and name > pull.until) or not builder.add(topic, have.get(name, 0)):
                following = name
                break
        piece = Piece(descriptor, pull.number, ranges, 0, tuple(builder.topics), following)
        return piece, (b"".join(builder.bodies), b"")

    def _frozen_piece(
        self, descriptor: GroupDescriptor, handing_off: HandingOff, pull: Pull
    ) -> tuple[Piece, tuple[bytes, ...]]:
        """Of each topic the rest of its batches, then its facts; then those of the clients' homes."""
        if self._transfer is None or self._transfer[0] != handing_off.number:
            self._transfer = (handing_off.number, Transfer(self._machine, handing_off.ranges, self._limits.records_max))
        transfer, have = self._transfer[1], dict(pull.have)
        builder, listing = (
            PieceBuilder(self._read, self._limits.piece_bytes_max),
            Listing(pull.mark, self._limits.facts_bytes_max),
        )
        if pull.mark.kind == TOPICS:
            names = transfer.topics_from(pull.mark.name)
            for name, after in zip(names, [*names[1:], ""], strict=False):
                if pull.until and name > pull.until:
                    break
                topic = self._machine.topics.get(name)
                if topic is not None and not builder.add(topic, have.get(name, 0)):
                    break
                following = Mark(TOPICS, after, 0) if after else Mark(CLIENTS, "", 0)
                if not listing.add(TOPICS, name, list(transfer.facts_of_topic(name)), following):
                    break
            if not names:
                listing.end = Mark(CLIENTS, "", 0)
        if listing.end.kind == CLIENTS:
            names = transfer.clients_from(listing.end.name)
            for name, after in zip(names, [*names[1:], ""], strict=False):
                following = Mark(CLIENTS, after, 0) if after else END
                if not listing.add(CLIENTS, name, list(transfer.facts_of_client(name)), following):
                    break
            if not names:
                listing.end = END
        facts, staged = b"", b""
        if listing.end != pull.mark:
            facts = encode_command(
                Facts(descriptor.group, handing_off.number, pull.mark, listing.end, tuple(listing.facts))
            )
            staged = b"".join(self._read(transfer.place_of(fact)) for fact in listing.facts if isinstance(fact, Staged))
        piece = Piece(descriptor, pull.number, handing_off.ranges, handing_off.number, tuple(builder.topics), "")
        return piece, (b"".join(builder.bodies), facts, *((staged,) if staged else ()))


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
            if isinstance(fact := facts[index], Staged):
                self._size += fact.size_bytes
        self.end = following
        return True
