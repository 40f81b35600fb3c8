"""Who is being sent what: streams, their credit, and which attempt a delivery is.

A stream is the live end of a subscription: it belongs to one connection, stands at a position in each
of its topics, and may be sent messages as long as its credit reaches. Batches go out as they are stored;
several small ones share a delivery. Nothing here is journaled: after a restart the clients open their
streams again, and the subscriptions' cursors say where.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidings.errors import StorageDamaged
from tidings.protocols.broker.machine import Machine
from tidings.protocols.broker.messages import Delivery, Position
from tidings.protocols.broker.subscriptions import Subscription, SubscriptionKey
from tidings.protocols.broker.topics import Place, Topic
from tidings.protocols.broker.withheld import Withheld
from tidings.protocols.effects import Effect, Forward, Peer

DELIVERY_BYTES_MAX = 512 * 1024
DELIVERY_BODIES_MAX = 1024


class Stream:
    """One reader's place in a subscription, and the room it has granted."""

    __slots__ = (
        "bytes_limit",
        "bytes_sent",
        "epoch",
        "messages_limit",
        "messages_sent",
        "number",
        "peer",
        "positions",
        "subscription",
    )

    def __init__(self, number: int, peer: Peer, subscription: Subscription, positions: dict[str, int]) -> None:
        self.number = number
        self.peer = peer
        self.epoch = subscription.reader_epoch
        self.subscription = subscription
        self.positions = positions
        self.messages_limit = 0
        self.messages_sent = 0
        self.bytes_limit = 0
        self.bytes_sent = 0

    @property
    def has_credit(self) -> bool:
        return self.messages_sent < self.messages_limit and self.bytes_sent < self.bytes_limit


class Served:
    """How far a subscription's readers have been served in this broker's life, and how often."""

    __slots__ = ("attempts", "sent")

    def __init__(self) -> None:
        self.sent: dict[str, int] = {}
        self.attempts: dict[str, list[tuple[int, int]]] = {}
        """topic -> (up to this offset, messages were sent so often), rising offsets, falling counts."""

    def end_session(self, topic: str, cursor: int) -> None:
        """Whatever was sent beyond the cursor counts as one attempt more from now on."""
        sent = self.sent.get(topic, 0)
        older = [(until, count) for until, count in self.attempts.get(topic, ()) if until > cursor]
        merged: list[tuple[int, int]] = []
        start = cursor
        for until, count in older:
            if start < sent:
                merged.append((min(until, sent), count + 1))
            if until > sent:
                merged.append((until, count))
            start = until
        if sent > start:
            merged.append((sent, 1))
        self.attempts[topic] = merged
        self.sent[topic] = 0

    def attempt(self, topic: str, offset: int) -> tuple[int, int | None]:
        """Which attempt a delivery from `offset` is, and up to which offset that holds."""
        for until, count in self.attempts.get(topic, ()):
            if offset < until:
                return count + 1, until
        return 1, None


class Dispatcher:
    """All streams of a broker, found by subscription and by topic."""

    def __init__(self, machine: Machine, withheld: Withheld) -> None:
        self._machine = machine
        self._withheld = withheld
        self.streams: dict[SubscriptionKey, Stream] = {}
        self._by_topic: dict[str, dict[SubscriptionKey, Stream]] = {}
        self._served: dict[SubscriptionKey, Served] = {}

    def recovered(self) -> None:
        """After a restart: what the last reader was sent is what it said, or at worst everything.

        What was written down when that reader began is what readers before it had been sent.
        """
        for subscription in self._machine.subscriptions.values():
            for name in subscription.topics:
                cursor, earlier = subscription.cursors[name], subscription.sent.get(name, 0)
                until = self._machine.topics[name].next_offset if subscription.reading else earlier
                if until > cursor:
                    self.served(subscription).sent[name] = until
                if subscription.reading and earlier > cursor:
                    self.served(subscription).attempts[name] = [(earlier, 1)]

    def served(self, subscription: Subscription) -> Served:
        """How far the readers of a subscription have been served."""
        served = self._served.get(subscription.key)
        if served is None:
            served = self._served[subscription.key] = Served()
        return served

    def sent_positions(self, subscription: Subscription) -> tuple[Position, ...]:
        """How far readers may have been served so far, counting earlier sessions."""
        served = self.served(subscription)
        positions = []
        for name in subscription.topics:
            attempts = served.attempts.get(name)
            until = max(served.sent.get(name, 0), attempts[-1][0] if attempts else 0)
            if until > subscription.cursors[name]:
                positions.append(Position(name, until))
        return tuple(positions)

    def begin_session(self, subscription: Subscription) -> None:
        """A new session reads: what the last one was sent without acknowledging it is sent again."""
        self.close(subscription.key)
        served = self.served(subscription)
        for name in subscription.topics:
            served.end_session(name, subscription.cursors[name])

    def open(self, number: int, peer: Peer, subscription: Subscription, positions: tuple[Position, ...]) -> Stream:
        """Starts a subscription's stream again; there is one for each subscription."""
        self.close(subscription.key)
        stream = Stream(number, peer, subscription, dict(subscription.cursors))
        for position in positions:
            if position.topic in stream.positions:
                limit = self._machine.topics[position.topic].next_offset
                at_least = subscription.cursors[position.topic]
                stream.positions[position.topic] = min(max(position.offset, at_least), limit)
        self.streams[subscription.key] = stream
        for name in subscription.topics:
            self._by_topic.setdefault(name, {})[subscription.key] = stream
        return stream

    def close(self, key: SubscriptionKey) -> None:
        stream = self.streams.pop(key, None)
        if stream is not None:
            for name in stream.subscription.topics:
                del self._by_topic[name][key]

    def forget(self, key: SubscriptionKey) -> None:
        """The subscription is gone."""
        self.close(key)
        self._served.pop(key, None)

    def pump_topics(self, topics: dict[str, None]) -> list[Effect]:
        """Sends what has come to these topics to every stream with credit."""
        effects: list[Effect] = []
        seen: dict[SubscriptionKey, None] = {}
        for name in topics:
            for key, stream in self._by_topic.get(name, {}).items():
                if key not in seen and stream.has_credit:
                    seen[key] = None
                    effects += self.pump(stream)
        return effects

    def pump(self, stream: Stream) -> list[Effect]:
        """Sends a stream what its credit reaches for."""
        effects: list[Effect] = []
        while stream.has_credit:
            topic = self._next_topic(stream)
            if topic is None:
                break
            delivery = self._fill(stream, topic)
            if delivery is not None:
                effects.append(delivery)
        return effects

    def damage_before(self, stream: Stream) -> StorageDamaged | None:
        """What to tell a stream that stands at a batch that cannot be read."""
        for name, position in stream.positions.items():
            topic = self._machine.topics[name]
            if position < topic.next_offset and self._withheld.holds(topic, position):
                return self._withheld.error(topic, position)
        return None

    def _next_topic(self, stream: Stream) -> Topic | None:
        """The topic whose next batch was stored first, None when the stream has everything."""
        topics = self._machine.topics
        if len(stream.positions) == 1:
            [(name, position)] = stream.positions.items()
            topic = topics[name]
            return topic if position < topic.next_offset and not self._withheld.holds(topic, position) else None
        best, best_address = None, 0
        for name, position in stream.positions.items():
            topic = topics[name]
            if position < topic.next_offset and not self._withheld.holds(topic, position):
                address = topic.addresses[topic.find(max(position, topic.first_offset))]
                if best is None or address < best_address:
                    best, best_address = topic, address
        return best

    def _fill(self, stream: Stream, topic: Topic) -> Forward | None:
        """One delivery from the stream's position in a topic; None if that batch is not for this stream."""
        name = topic.name
        since = stream.positions[name]
        entry = topic.find(max(since, topic.first_offset))
        several = len(stream.positions) > 1
        shares = several or bool(stream.subscription.whole)
        if shares and topic.offsets[entry] in topic.shared:
            return self._fill_shared(stream, topic, entry)
        served = self.served(stream.subscription)
        attempt, attempt_until = served.attempt(name, since)
        first_offset = topic.offsets[entry]
        places: list[Place] = []
        size_bytes = 0
        messages_room = stream.messages_limit - stream.messages_sent
        bytes_room = min(stream.bytes_limit - stream.bytes_sent, DELIVERY_BYTES_MAX)
        last = min(len(topic.offsets), entry + (1 if several else DELIVERY_BODIES_MAX))
        following = since
        offsets, addresses, sizes, thinned = topic.offsets, topic.addresses, topic.sizes, topic.thinned
        withheld = self._withheld.reasons
        while True:
            size = sizes[entry]
            places.append(Place(addresses[entry], size, thinned.get(offsets[entry]) if thinned else None))
            size_bytes += size
            entry += 1
            following = offsets[entry] if entry < len(offsets) else topic.next_offset
            if (
                entry >= last
                or following - since >= messages_room
                or size_bytes + sizes[entry] > bytes_room
                or (attempt_until is not None and following >= attempt_until)
                or (withheld and addresses[entry] in withheld)
                or (shares and offsets[entry] in topic.shared)
            ):
                break
        stream.positions[name] = following
        stream.messages_sent += following - since
        stream.bytes_sent += size_bytes
        served.sent[name] = max(served.sent.get(name, 0), following)
        return Forward(
            stream.peer, Delivery(stream.number, name, since, first_offset, following, attempt), tuple(places)
        )

    def _fill_shared(self, stream: Stream, topic: Topic, entry: int) -> Forward:
        """One delivery, or a step over what is not for this stream, from a batch that went to several topics."""
        name, since = topic.name, stream.positions[topic.name]
        first, end = topic.offsets[entry], topic.end_of(entry)
        own = self._own_ranks(stream, topic, entry)
        start = since - first
        stop = start
        while stop < end - first and own[stop] == own[start]:
            stop += 1
        stream.positions[name] = following = first + stop
        if not own[start]:
            return Forward(stream.peer, Delivery(stream.number, name, since, following, following, 1), ())
        served = self.served(stream.subscription)
        attempt, _ = served.attempt(name, since)
        place = topic.place(entry)
        if stop - start < end - first:
            rows = place.kept if place.kept is not None else range(end - first)
            place = Place(place.address, place.size_bytes, tuple(rows[start:stop]))
        stream.messages_sent += stop - start
        stream.bytes_sent += place.size_bytes
        served.sent[name] = max(served.sent.get(name, 0), following)
        return Forward(stream.peer, Delivery(stream.number, name, since, since, following, attempt), (place,))

    def _own_ranks(self, stream: Stream, topic: Topic, entry: int) -> list[bool]:
        """For each message of a batch that went to several topics: does it reach the stream through this one?

        Of the subscription's topics that the message went to, the first one delivers it in which the
        subscription had already begun. What comes through an earlier part of the subscription is none of this one's.
        """
        first = topic.offsets[entry]
        starts = stream.subscription.starts
        if stream.subscription.leaves(topic.name, first, (place.topic for place in topic.shared[first])):
            return [False] * (topic.end_of(entry) - first)
        rows = self._rows(topic, first, topic.end_of(entry) - first)
        seen: dict[int, None] = {}
        for position in topic.shared[first]:
            if position.topic == topic.name:
                break
            if position.topic in starts:
                begun = max(0, starts[position.topic] - position.offset)
                other = self._rows(self._machine.topics[position.topic], position.offset, rows[-1] + 1)
                seen.update(dict.fromkeys(other[begun:]))
        return [row not in seen for row in rows]

    def _rows(self, topic: Topic, first: int, count: int) -> Sequence[int]:
        """Which messages of its body a topic has of a batch."""
        kept = topic.thinned.get(first)
        return kept if kept is not None else range(count)

    def one(self, subscription: Subscription) -> tuple[int, int, Place] | None:
        """The message at the cursor of a one-topic subscription: its offset, the attempt, its place."""
        [name] = subscription.topics
        topic = self._machine.topics[name]
        offset = max(subscription.cursors[name], topic.first_offset)
        if offset >= topic.next_offset:
            return None
        served = self.served(subscription)
        attempt, _ = served.attempt(name, offset)
        served.sent[name] = max(served.sent.get(name, 0), offset + 1)
        entry = topic.find(offset)
        place = topic.place(entry)
        index = offset - topic.offsets[entry]
        return offset, attempt, Place(place.address, place.size_bytes, (place.kept[index] if place.kept else index,))
