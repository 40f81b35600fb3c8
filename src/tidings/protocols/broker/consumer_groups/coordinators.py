"""Groups at work: the members' streams, and how work goes out to them.

`lanes` decides who works on what; this is where its offers come from and where its batches go. Messages are
offered in the order of the topic, as far as members have room.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Any

import msgspec

from tidings.errors import StorageDamaged
from tidings.message import Columns
from tidings.protocols.broker import messages
from tidings.protocols.broker.consumer_groups.groups import Group, GroupKey
from tidings.protocols.broker.consumer_groups.lanes import Lanes
from tidings.protocols.broker.consumer_groups.members import LaneSettings, OrderingKey, PendingAck
from tidings.protocols.broker.consumer_groups.members import PickedBatch as Picked
from tidings.protocols.broker.machine import Machine
from tidings.protocols.broker.topics import Place, Topic
from tidings.protocols.broker.withheld import Withheld
from tidings.protocols.effects import Effect, Examine, Peer, Share

EXAMINED_BATCHES_MAX = 16


class Next(msgspec.Struct, frozen=True):
    """Batches examined for the next offer: the group, and the offsets from which each is wanted."""

    key: GroupKey
    position: int
    ends: tuple[int, ...]


class Claim(msgspec.Struct, frozen=True):
    """Batches examined because a member says that it has messages of them in flight."""

    key: GroupKey
    peer: Peer
    message: messages.Work
    entries: tuple[int, ...]


class AckReply(msgspec.Struct, frozen=True):
    """Whom to answer when an ack is durable."""

    key: GroupKey
    peer: Peer
    message: messages.GroupAck
    acks: tuple[PendingAck, ...]
    stale: tuple[int, ...]


class DeadLettering(msgspec.Struct, frozen=True):
    """A message that failed too often, on its way to another topic."""

    key: GroupKey
    ack: PendingAck


class Consumer:
    """A member's stream."""

    __slots__ = ("epoch", "granted", "peer", "stream", "turn")

    def __init__(self, peer: Peer, message: messages.Work) -> None:
        self.peer = peer
        self.stream = message.stream
        self.epoch = message.epoch
        self.granted = message.request
        """The request that granted the room; an older one that comes late does not change it."""
        self.turn = 0
        """How many batches and answers to Ack and Release were sent: the member takes them in this order."""


class GroupCoordinator:
    """One group at work."""

    def __init__(self, group: Group, settings: LaneSettings) -> None:
        self.group = group
        self.lanes = Lanes(settings)
        self.consumers: dict[str, Consumer] = {}
        self.position = group.progress.low
        """The next offset to offer."""
        self.awaited: dict[str, None] = {}
        """Members that may still have something in flight from before a restart."""
        self.examining = False
        self.claiming: dict[str, None] = {}
        """Members whose streams are about to begin: until their claims have been weighed, nothing is given out."""
        self.begun: dict[str, tuple[int, int]] = {}
        """The epoch and number of each member's newest stream, also when it has ended: no older one begins again."""
        self.acking: dict[str, int] = {}
        """How many acks of each member are on their way to the journal."""
        self.postponed: dict[str, tuple[Peer, messages.Work]] = {}
        """Streams that begin when these acks have been decided."""


class Coordinators:
    """All groups at work, and what is given out to their members."""

    def __init__(self, machine: Machine, withheld: Withheld) -> None:
        self._machine = machine
        self._withheld = withheld
        self._coordinators: dict[GroupKey, GroupCoordinator] = {}
        limits = machine.settings
        self._settings = LaneSettings(
            redelivery_ms=limits.redelivery_ms,
            delayed_ack_ms=limits.delayed_ack_ms,
            slow_ack_ms=limits.slow_ack_ms,
            attempts_max=limits.deliveries_max if limits.dead_letter else None,
        )

    def _coordinator(self, group: Group) -> GroupCoordinator:
        coordinator = self._coordinators.get(group.key)
        if coordinator is None or coordinator.group is not group:
            coordinator = self._coordinators[group.key] = GroupCoordinator(group, self._settings)
        return coordinator

    def pump_topics(self, now_ms: int, topics: dict[str, None]) -> list[Effect]:
        """Gives out what has come to these topics."""
        effects: list[Effect] = []
        for name in topics:
            for group in self._machine.groups_of.get(name, {}).values():
                if group.members:
                    effects += self.pump(now_ms, self._coordinator(group))
        return effects

    def pump(self, now_ms: int, coordinator: GroupCoordinator) -> list[Effect]:
        """Gives a group's members what they have room for."""
        if coordinator.awaited or coordinator.examining or coordinator.claiming:
            return []
        topic = self._machine.topics[coordinator.group.topic]
        if coordinator.position < topic.next_offset and (credit := coordinator.lanes.credit()) > 0:
            # Batches of which everything is done are not read again.
            start = max(coordinator.position, topic.first_offset)
            coordinator.position = coordinator.group.progress.next_open(start, topic.next_offset)
            if coordinator.position < topic.next_offset and not self._withheld.holds(topic, coordinator.position):
                return [self._examine(coordinator, topic, credit)]
        return [self._share(coordinator, topic, picked) for picked in coordinator.lanes.pick(now_ms)]

    def _damage_before(self, coordinator: GroupCoordinator) -> StorageDamaged | None:
        """What to tell the members when all is done that comes before a batch that cannot be read."""
        topic = self._machine.topics[coordinator.group.topic]
        if coordinator.lanes.unacked or coordinator.position >= topic.next_offset:
            return None
        if not self._withheld.holds(topic, coordinator.position):
            return None
        return self._withheld.error(topic, coordinator.position)

    def _examine(self, coordinator: GroupCoordinator, topic: Topic, credit: int) -> Examine:
        entry = topic.find(coordinator.position)
        places: list[Place] = []
        ends: list[int] = []
        while entry < len(topic.offsets) and len(places) < EXAMINED_BATCHES_MAX:
            if places and topic.addresses[entry] in self._withheld.reasons:
                break
            places.append(topic.place(entry))
            ends.append(topic.end_of(entry))
            if ends[-1] - coordinator.position >= credit:
                break
            entry += 1
        coordinator.examining = True
        return Examine(tuple(places), Next(coordinator.group.key, coordinator.position, tuple(ends)))

    def _on_next(self, now_ms: int, origin: Next, batches: tuple[Columns, ...]) -> list[Effect]:
        """Stored batches have been read for an offer."""
        group = self._machine.groups.get(origin.key)
        if group is None:
            return []
        coordinator = self._coordinator(group)
        coordinator.examining = False
        if coordinator.position == origin.position:
            topic = self._machine.topics[group.topic]
            for columns, end in zip(batches, origin.ends, strict=True):
                room = coordinator.lanes.credit()
                if room <= 0:
                    break
                self._offer(coordinator, topic, columns, min(end, coordinator.position + room))
                if coordinator.position < end:  # The next columns are of the next batch.
                    break
        return self.pump(now_ms, coordinator)

    def _offer(self, coordinator: GroupCoordinator, topic: Topic, columns: Columns, end: int) -> None:
        """Offers the messages of one batch from the coordinator's position to `end`."""
        start = coordinator.position
        first = topic.offsets[topic.find(start)]
        kept = topic.thinned.get(first)
        rows = range(start - first, end - first) if kept is None else kept[start - first : end - first]
        keys = ordering_keys(coordinator.group, columns, rows)
        progress = coordinator.group.progress
        if progress.high <= start:
            coordinator.lanes.offer(start, keys)
        else:
            for gap_start, gap_end in progress.gaps(start, end):
                coordinator.lanes.offer(gap_start, keys[gap_start - start : gap_end - start])
        coordinator.position = end

    def _share(self, coordinator: GroupCoordinator, topic: Topic, picked: Picked) -> Share:
        """The frames of a batch: which rows of which stored batches."""
        offsets = picked.offsets
        picks: list[tuple[Place, tuple[int, ...]]] = []
        index = 0
        while index < len(offsets):
            entry = topic.find(offsets[index])
            until = bisect_left(offsets, topic.end_of(entry), index)
            first = topic.offsets[entry]
            place = topic.place(entry)
            rows = tuple([offset - first for offset in offsets[index:until]])
            if place.kept is not None:
                rows = tuple([place.kept[row] for row in rows])
            picks.append((Place(place.address, place.size_bytes), rows))
            index = until
        consumer = coordinator.consumers[picked.member]
        consumer.turn += 1
        message = messages.GroupBatch(consumer.stream, consumer.turn, picked.number, picked.attempt, tuple(offsets))
        return Share(consumer.peer, message, tuple(picks))


def ordering_keys(group: Group, columns: Columns, rows: Any) -> list[OrderingKey | None]:
    """The lane of each of these rows."""
    keys = columns.keys
    if keys is None:
        return [None] * len(rows)
    chosen = keys if len(rows) == len(keys) else [keys[row] for row in rows]
    if group.lanes == "publisher":
        return [None if key is None else (columns.publisher, key) for key in chosen]
    return list(chosen)
