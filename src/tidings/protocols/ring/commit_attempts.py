"""What a leader has to know of a request for a commit over several groups until it is answered.

A commit is of one of two kinds: what a client writes and acknowledges (`Writes`), or stages that are to be published
(`Publication`). Each knows how it is shared out among the owners of its topics, and what the client is answered.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from tidings.errors import LimitReached, ProtocolError, TidingsError
from tidings.protocols.broker import bulk, messages
from tidings.protocols.broker.bulk import Extent
from tidings.protocols.broker.machine import Machine
from tidings.protocols.broker.messages import Acknowledgement, Part, Stored
from tidings.protocols.broker.staged import check_named, home_name, miscounted, sink_key
from tidings.protocols.broker.staging import check_batch_of_query
from tidings.protocols.broker.subscriptions import canonical
from tidings.protocols.broker.writing import check_form
from tidings.protocols.chord.identifiers import Key
from tidings.protocols.effects import Peer
from tidings.protocols.events import Received
from tidings.protocols.ring.commit_commands import CommitId, PartWrite, Publishing, StagedPart
from tidings.protocols.ring.commit_messages import PartDone
from tidings.protocols.ring.directory import Directory
from tidings.protocols.ring.key_ranges import LAST, KeyRanges, client_of, point_of, spots
from tidings.protocols.ring.messages import GroupDescriptor

TELL_AGAIN_MS = 200
PERSIST_AGAIN_MS = 2_000

WAITS, BEGINS, PREPARES, DECIDES, HAPPENS, ABORTS = range(6)

Want = Callable[[Key], None]
"""Asks for the owner of a point to be found."""


class Share:
    """What one group has to do for an attempt."""

    def __init__(self, descriptor: GroupDescriptor) -> None:
        self.descriptor = descriptor
        self.numbers: list[int] = []
        """For each batch, the part of the request that it is of."""
        self.batches: list[PartWrite] = []
        self.bodies: list[bytes | memoryview] = []
        self.acknowledgements: list[Acknowledgement] = []
        self.publishing: Publishing | None = None
        self.is_prepared = False
        self.staged: tuple[StagedPart, ...] = ()
        """What the group has of the stages that are to be published."""


Shares = dict[bytes, Share]
Done = dict[bytes, PartDone]


class Writes:
    """What a client puts and acknowledges."""

    publishing = None

    def __init__(self, machine: Machine, received: Received) -> None:
        message, settings = received.message, machine.settings
        parts, acknowledgements = parts_of(message)
        if len(parts) != len(received.bodies):
            raise ProtocolError(f"{len(parts)} batches came with {len(received.bodies)} bodies: send one for each.")
        if len(parts) + len({each.whole or each.topics for each in acknowledgements}) > settings.topics_per_request_max:
            raise LimitReached(
                f"One request may hold {settings.topics_per_request_max} parts (topics_per_request_max): split it."
            )
        self.client: str = message.client
        self.bodies = received.bodies
        self._kind = type(message)
        self._batches = tuple(
            check_form(settings, message.client, part, body, contents)
            for part, body, contents in zip(parts, received.bodies, received.batches, strict=True)
        )
        self._acknowledgements = tuple(
            msgspec.structs.replace(each, topics=canonical(each.topics, each.whole)) for each in acknowledgements
        )

    def contents(self) -> Any:
        """What two requests for the same have in common."""
        return self._kind, self._batches, self._acknowledgements

    def share_out(self, directory: Directory, want: Want) -> Shares | None:
        """Divides it among the owners of its topics; None if not all are known."""
        shares: Shares = {}
        for number, (batch, body) in enumerate(zip(self._batches, self.bodies, strict=True)):
            targets: dict[bytes, list[Any]] = {}
            for target in batch.targets:
                share = _share_of(shares, directory, want, target.topic)
                if share is None:
                    return None
                targets.setdefault(share.descriptor.group, []).append(target)
            for group, some in targets.items():
                shares[group].numbers.append(number)
                other_topics = tuple(target.topic for target in batch.targets if target not in some)
                own = PartWrite(tuple(some), batch.count, batch.size_bytes, batch.ids, other_topics)
                shares[group].batches.append(own)
                shares[group].bodies.append(body)
        for acknowledgement in self._acknowledgements:
            share = _share_of(shares, directory, want, acknowledgement.topics[0])
            if share is None:
                return None
            share.acknowledgements.append(acknowledgement)
        return shares

    def check_held(self, shares: Shares) -> None:
        """Raises what speaks against it when all parts are held: each group has checked its own."""

    def topics(self, shares: Shares) -> tuple[str, ...]:
        """What is remembered of it with the decision."""
        return ()

    def answer(self, request: int, shares: Shares, done: Done) -> Any:
        """The answer to the client, when all groups have carried out their shares."""
        places: dict[tuple[int, str], Stored] = {}
        for group, share in shares.items():
            stored = done[group].stored
            if stored is None:
                return send_away(request)  # It asks again, and is told by the owners what they have.
            for number, batch, each in zip(share.numbers, share.batches, stored, strict=True):
                for target, place in zip(batch.targets, each, strict=True):
                    places[number, target.topic] = place
        both = tuple(
            tuple(places[number, target.topic] for target in batch.targets)
            for number, batch in enumerate(self._batches)
        )
        if self._kind is messages.Put:
            return messages.PutDone(request, both[0])
        return messages.AckDone(request) if self._kind is messages.Ack else messages.CommitDone(request, both)


class Publication:
    """Stages of a query's batch, which lie with several owners."""

    bodies: tuple[bytes | memoryview, ...] = ()

    def __init__(self, machine: Machine, message: bulk.Publish) -> None:
        stages_max = machine.settings.stages_max
        if len(message.stages) > stages_max:
            raise LimitReached(f"One request may name {stages_max} stages (stages_max): name fewer.")
        check_batch_of_query(message)
        written = tuple(named for named in message.stages if named.count)
        times = Counter(named.name for named in written)
        twice = next((named for named in written if times[named.name] > 1), None)
        if twice is not None:
            raise miscounted(twice, twice.count)
        self.client = client_of(sink_key(message.query, message.sink))
        fields = (message.client, message.query, message.batch, message.sink, message.once)
        self.publishing = Publishing(*fields, written)

    def contents(self) -> Any:
        """What two requests for the same have in common."""
        return self.publishing

    def share_out(self, directory: Directory, want: Want) -> Shares | None:
        """Asks the owners of the topics for what they have of the stages; all groups, if these are not all named."""
        stages = self.publishing.stages
        shares: Shares = {}
        if not all(named.topics for named in stages):
            gap = directory.gap(LAST)
            if gap is not None:
                want(gap.end)
                return None
            for descriptor in directory.descriptors():
                ranges = directory.pieces_of(descriptor.group)
                if ranges:
                    self._ask(shares.setdefault(descriptor.group, Share(descriptor)), stages, ranges)
            return shares
        of: dict[bytes, dict[str, None]] = {}
        for topic in self.publishing.topics or (home_name(self.client[1:]),):
            share = _share_of(shares, directory, want, topic)
            if share is None:
                return None
            of.setdefault(share.descriptor.group, {})[topic] = None
        for group, topics in of.items():
            some = tuple(named for named in stages if any(topic in topics for topic in named.topics))
            self._ask(shares[group], some, spots(map(point_of, topics)))
        return shares

    def _ask(self, share: Share, stages: Sequence[bulk.StageName], ranges: KeyRanges) -> None:
        each = self.publishing
        fields = (each.client, each.query, each.batch, each.sink, each.once)
        share.publishing = Publishing(*fields, tuple(stages), ranges)

    def check_held(self, shares: Shares) -> None:
        """Raises unless all messages of all stages are held."""
        counts: dict[str, int] = {}
        for share in shares.values():
            for part in share.staged:
                if part.topics:
                    counts[part.name] = counts.get(part.name, 0) + part.count
        for named in self.publishing.stages:
            count = counts.get(named.name)
            check_named(named, self.publishing.query, self.publishing.batch, count or 0, count is not None)

    def topics(self, shares: Shares) -> tuple[str, ...]:
        """Where it goes, in the order in which the stages are named."""
        held = {topic: None for share in shares.values() for part in share.staged for topic in part.topics}
        return tuple(dict.fromkeys((*(topic for topic in self.publishing.topics if topic in held), *held)))

    def answer(self, request: int, shares: Shares, done: Done) -> Any:
        """The answer to the client, when all groups have carried out their shares."""
        extents: dict[str, Extent] = {}
        for group in shares:
            if done[group].stored is None:
                return send_away(request)  # It asks again, and is told that this batch has been published.
            extents.update({extent.topic: extent for extent in done[group].extents})
        topics = self.topics(shares)
        return bulk.PublishDone(request, False, tuple(extents[topic] for topic in topics if topic in extents))


Work = Writes | Publication


class Attempt:
    """One client's request for a commit, until it is answered."""

    def __init__(self, commit: CommitId, received: Received, work: Work) -> None:
        self.commit = commit
        self.work = work
        self.client = work.client
        """Whose commits are begun one after the other: the client's, or those of the query's sink."""
        self.epoch: int = received.message.epoch
        self.size_bytes = sum(map(len, work.bodies))
        self.askers: dict[tuple[Peer, int], None] = {(received.peer, received.message.request): None}
        self.since_ms = received.now_ms
        self.state = WAITS
        self.shares: Shares = {}
        self.error: TidingsError | None = None
        """Why it is aborted, for the client."""
        self.sent_ms = 0
        self.pause_ms = TELL_AGAIN_MS

    def is_same(self, epoch: int, work: Work) -> bool:
        """Whether another request asks for just this."""
        return self.epoch == epoch and self.work.contents() == work.contents()

    def hold(self, message_group: bytes, staged: tuple[StagedPart, ...]) -> bool:
        """A group holds its share; whether all do."""
        self.shares[message_group].is_prepared = True
        self.shares[message_group].staged = staged
        return all(share.is_prepared for share in self.shares.values())


class Telling:
    """A decision that is being told to all groups with a part, and what they have said."""

    def __init__(self, client: str, groups: Sequence[GroupDescriptor]) -> None:
        self.client = client
        self.groups = {descriptor.group: descriptor for descriptor in groups}
        self.done: Done = {}
        self.sent_ms = self.ended_ms = -PERSIST_AGAIN_MS

    def owing(self) -> list[bytes]:
        """The groups that have not said that they have carried out their part."""
        return [group for group in self.groups if group not in self.done]


def _share_of(shares: Shares, directory: Directory, want: Want, topic: str) -> Share | None:
    point = point_of(topic)
    owner = directory.find(point)
    if owner is None:
        want(point)
        return None
    return shares.setdefault(owner.group, Share(owner))


def send_away(request: int) -> messages.NotLeader:
    """The client has to ask again, over a new connection."""
    return messages.NotLeader(request, "")


def parts_of(message: Any) -> tuple[tuple[Part, ...], tuple[Acknowledgement, ...]]:
    """What a request puts and acknowledges."""
    match message:
        case messages.Put(part=part):
            return (part,), ()
        case messages.Ack(acknowledgement=acknowledgement):
            return (), (acknowledgement,)
    return message.parts, message.acknowledgements
