"""The broker's state machine: `apply(command) -> result`, and nothing else changes the state.

It has no clock, no chance and no I/O: time and addresses come in with the journal record. Whoever applies
the same records in the same order, a restarted broker or another replica, arrives at the same state and
at the same answers. A command that must be refused raises its error before it has changed anything, so the
journal may hold commands that came to nothing (a repeated put, a fenced session's ack).

Exactly-once rests on three rules here: a batch whose sequence numbers were already taken is answered from
memory, one that leaves a gap is refused, and one of an older epoch is refused.
"""

from __future__ import annotations

from typing import assert_never

import msgspec

from tidings.errors import (
    Fenced,
    InvalidRequest,
    LimitReached,
    NoSuchTopic,
    NotSubscribed,
    OutOfSequence,
)
from tidings.protocols.broker.clients import Client, Track, TrackIndex
from tidings.protocols.broker.commands import (
    Attach,
    BatchWrite,
    Carry,
    Close,
    Command,
    Open,
    Subscribe,
    Trim,
    Unsubscribe,
    Write,
)
from tidings.protocols.broker.messages import Acknowledgement, Position, Start, Stored, Target
from tidings.protocols.broker.subscriptions import Subscription, SubscriptionKey
from tidings.protocols.broker.topics import Topic, TopicIndex
from tidings.settings import BrokerSettings


class TopicState(msgspec.Struct, frozen=True, array_like=True):
    name: str
    first_offset: int
    next_offset: int
    ids: list[tuple[int, str, int]]


class ClientState(msgspec.Struct, frozen=True, array_like=True):
    name: str
    token: bytes
    anonymous: bool
    epoch: int
    lasts: dict[str, int]
    past_tokens: list[bytes]


class Snapshot(msgspec.Struct, frozen=True, array_like=True):
    """All of the state but the indexes, which lie beside the segments that they describe."""

    version: int
    topics: list[TopicState]
    clients: list[ClientState]
    subscriptions: list[Subscription]


class SegmentIndex(msgspec.Struct, frozen=True, array_like=True):
    """What all indexes gained while one journal segment was written."""

    topics: list[TopicIndex]
    tracks: list[TrackIndex]


class _Plan(msgspec.Struct):
    """What a batch will do to one topic, worked out before anything is changed."""

    topic: str
    sequence: int
    first_offset: int
    count: int
    kept: tuple[int, ...] | None
    repeated: tuple[tuple[int, int | None], ...]
    ids: list[tuple[str, int]]

    @property
    def stored_count(self) -> int:
        return self.count if self.kept is None else len(self.kept)


class Machine:
    """Topics, clients and subscriptions, and the one way in which they change."""

    def __init__(self, settings: BrokerSettings) -> None:
        self.settings = settings
        self.topics: dict[str, Topic] = {}
        self.clients: dict[str, Client] = {}
        self.subscriptions: dict[SubscriptionKey, Subscription] = {}
        self.readers: dict[str, dict[SubscriptionKey, Subscription]] = {}
        """topic -> its subscriptions."""
        self.owned: dict[str, dict[SubscriptionKey, Subscription]] = {}
        """client -> its subscriptions."""

    def apply(self, command: Command, time_ms: int, body_address: int) -> object:
        """Changes the state by one command and says what came of it; a refusal raises and changes nothing."""
        match command:
            case Write():
                return self._on_write(command, time_ms, body_address)
            case Open():
                return self._on_open(command)
            case Subscribe():
                return self._on_subscribe(command)
            case Attach():
                return self._on_attach(command)
            case Unsubscribe():
                self._on_unsubscribe(command)
            case Close():
                self._on_close(command)
            case Trim():
                self._on_trim(command)
            case Carry():
                self._on_carry(command, body_address)
            case _:
                assert_never(command)
        return None

    # What may be asked without changing anything.

    def check_session(self, name: str, epoch: int) -> Client:
        """The client of a current session, or Fenced."""
        client = self.clients.get(name)
        if client is None:
            raise Fenced(f"There is no session of {name!r}: connect again.")
        if client.epoch != epoch:
            raise Fenced(f"A newer session of {name!r} has taken over: let one process at a time use that name.")
        return client

    def check_token(self, name: str, token: bytes) -> None:
        """Fenced for the Hello of a session that was replaced: it was on its way for too long."""
        client = self.clients.get(name)
        if client is not None and token in client.past_tokens:
            raise Fenced(f"A newer session of {name!r} has taken over: let one process at a time use that name.")

    def find_topic(self, name: str) -> Topic:
        topic = self.topics.get(name)
        if topic is None:
            raise NoSuchTopic(f"There is no topic {name!r}: subscribe or put to it first.")
        return topic

    def find_subscription(self, client: str, topics: tuple[str, ...]) -> Subscription:
        subscription = self.subscriptions.get((client, topics))
        if subscription is None:
            for name in topics:
                self.find_topic(name)
            raise NotSubscribed(f"{client!r} is not subscribed to {', '.join(map(repr, topics))}: subscribe first.")
        return subscription

    def check_puttable(self, name: str) -> None:
        """Whether a put may go to this topic, by the topic policy and the limit."""
        if name not in self.topics:
            if self.settings.topics == "on-subscribe":
                raise NoSuchTopic(f"There is no topic {name!r}, and here only a subscribe makes one: subscribe first.")
            self._check_topics_limit(1)

    def _check_topics_limit(self, more: int) -> None:
        if len(self.topics) + more > self.settings.topics_max:
            raise LimitReached(f"There are already {self.settings.topics_max} topics (topics_max): raise the limit.")

    # Sessions.

    def _on_open(self, command: Open) -> int:
        client = self.clients.get(command.client)
        if client is None:
            if len(self.clients) >= self.settings.clients_max:
                raise LimitReached(f"{self.settings.clients_max} names are in use (clients_max): raise the limit.")
            client = self.clients[command.client] = Client(command.client, command.token, command.anonymous)
        elif client.token != command.token:
            self.check_token(command.client, command.token)
            client.begin_session(command.token)
            client.anonymous = client.anonymous and command.anonymous
        return client.epoch

    def _on_close(self, command: Close) -> None:
        client = self.check_session(command.client, command.epoch)
        if client.anonymous:
            for owned in list(self.owned.get(client.name, {}).values()):
                self._forget_subscription(owned)
            self.owned.pop(client.name, None)
            del self.clients[client.name]
            return
        for detached in command.detached:
            subscription = self.subscriptions.get((client.name, detached.topics))
            if subscription is not None and subscription.reader_epoch == client.epoch:
                subscription.reading = False
                subscription.sent = {position.topic: position.offset for position in detached.sent}

    # Puts and acknowledgements.

    def _on_write(self, command: Write, time_ms: int, body_address: int) -> tuple[tuple[Stored, ...], ...]:
        client = self.check_session(command.client, command.epoch)
        for acknowledgement in command.acknowledgements:
            self._check_acknowledgement(client, acknowledgement)
        plans = self._plan(client, command.batches, time_ms)
        address = body_address
        stored: list[tuple[Stored, ...]] = []
        for batch, targets in zip(command.batches, plans, strict=True):
            stored.append(self._store(client, batch, targets, time_ms, address))
            address += batch.size_bytes
        for acknowledgement in command.acknowledgements:
            cursors = self.subscriptions[client.name, acknowledgement.topics].cursors
            for position in acknowledgement.positions:
                cursors[position.topic] = max(cursors[position.topic], position.offset)
        return tuple(stored)

    def _check_acknowledgement(self, client: Client, acknowledgement: Acknowledgement) -> None:
        subscription = self.find_subscription(client.name, acknowledgement.topics)
        for position in acknowledgement.positions:
            if position.topic not in subscription.cursors:
                raise NotSubscribed(f"The subscription has no topic {position.topic!r}: acknowledge its own.")
            if position.offset > self.topics[position.topic].next_offset:
                raise InvalidRequest(
                    f"Offset {position.offset} of {position.topic!r} cannot be acknowledged: it does not exist yet."
                )

    def _plan(self, client: Client, batches: tuple[BatchWrite, ...], time_ms: int) -> list[list[_Plan]]:
        """What each batch will do to each of its topics; raises if any of it is refused."""
        if len(batches) == 1 and len(batches[0].targets) == 1:  # The common case needs no picture of the future.
            target = batches[0].targets[0]
            return [[self._plan_one(client, batches[0], target, time_ms, {}, {}, {})]]
        lasts: dict[str, int] = {}
        nexts: dict[str, int] = {}
        ids: dict[tuple[str, str], int] = {}
        new = {target.topic: None for batch in batches for target in batch.targets if target.topic not in self.topics}
        self._check_topics_limit(len(new))
        return [
            [self._plan_one(client, batch, target, time_ms, lasts, nexts, ids) for target in batch.targets]
            for batch in batches
        ]

    def _plan_one(
        self,
        client: Client,
        batch: BatchWrite,
        target: Target,
        time_ms: int,
        lasts: dict[str, int],
        nexts: dict[str, int],
        fresh: dict[tuple[str, str], int],
    ) -> _Plan:
        """`lasts`, `nexts` and `fresh` are what earlier batches of the same command will have changed."""
        name = target.topic
        self.check_puttable(name)
        topic = self.topics.get(name)
        track = client.tracks.get(name)
        last = lasts.get(name, track.last if track else 0)
        if target.sequence > last + 1:
            raise OutOfSequence(
                f"{client.name!r} sent number {target.sequence} to {name!r}, and {last + 1} is the next: "
                "ask for the last sequence number and go on from there."
            )
        first_offset = nexts.get(name, topic.next_offset if topic else 0)
        taken = min(batch.count, last - target.sequence + 1)
        repeated: list[tuple[int, int | None]] = []
        if taken > 0:
            # Numbers above the track's last were taken by an earlier batch of this very command.
            before = track.last if track else 0
            kept_from = topic.first_offset if topic else 0
            repeated = [
                (index, track.find(number, kept_from) if track and number <= before else None)
                for index, number in enumerate(range(target.sequence, target.sequence + taken))
            ]
        kept: tuple[int, ...] | None = tuple(range(taken, batch.count)) if taken > 0 else None
        taken_ids: list[tuple[str, int]] = []
        if batch.ids is not None:
            kept, taken_ids = self._plan_ids(name, topic, batch, max(taken, 0), first_offset, time_ms, fresh, repeated)
        plan = _Plan(name, target.sequence, first_offset, batch.count, kept, tuple(repeated), taken_ids)
        lasts[name] = max(last, target.sequence + batch.count - 1)
        nexts[name] = first_offset + plan.stored_count
        return plan

    def _plan_ids(
        self,
        name: str,
        topic: Topic | None,
        batch: BatchWrite,
        skip: int,
        first_offset: int,
        time_ms: int,
        fresh: dict[tuple[str, str], int],
        repeated: list[tuple[int, int | None]],
    ) -> tuple[tuple[int, ...] | None, list[tuple[str, int]]]:
        """Leaves out messages whose id the topic has already taken."""
        assert batch.ids is not None
        known: dict[str, int] = {}
        if topic is not None:
            topic.forget_ids(time_ms - self.settings.ids_age_ms)
            known = topic.ids
        kept: list[int] = []
        taken: list[tuple[str, int]] = []
        for index in range(skip, batch.count):
            name_of_message = batch.ids[index]
            if name_of_message is not None:
                earlier = known.get(name_of_message)
                if earlier is None:
                    earlier = fresh.get((name, name_of_message))
                if earlier is not None:
                    repeated.append((index, earlier))
                    continue
                offset = first_offset + len(kept)
                fresh[name, name_of_message] = offset
                taken.append((name_of_message, offset))
            kept.append(index)
        if len(known) + len(taken) > self.settings.ids_max:
            raise LimitReached(
                f"The topic {name!r} already remembers {self.settings.ids_max} ids (ids_max): "
                "raise the limit or remember them for a shorter time (ids_age_ms)."
            )
        return (None if len(kept) == batch.count else tuple(kept)), taken

    def _store(
        self, client: Client, batch: BatchWrite, plans: list[_Plan], time_ms: int, address: int
    ) -> tuple[Stored, ...]:
        shared = None
        if len(plans) > 1:
            shared = tuple(Position(plan.topic, plan.first_offset) for plan in plans if plan.stored_count)
        stored: list[Stored] = []
        for plan in plans:
            topic = self.topics.get(plan.topic)
            if topic is None:
                topic = self.topics[plan.topic] = Topic(plan.topic)
            track = client.tracks.get(plan.topic)
            if track is None:
                track = client.tracks[plan.topic] = Track()
            if plan.kept is None:
                topic.append(address, batch.size_bytes, plan.count, None, shared)
                track.take(plan.sequence, plan.first_offset, plan.count)
            else:
                self._store_thinned(topic, track, plan, batch, address, shared)
            if plan.ids:
                topic.remember_ids(plan.ids, time_ms)
            stored.append(Stored(plan.first_offset if plan.stored_count else None, plan.repeated))
        return tuple(stored)

    def _store_thinned(
        self,
        topic: Topic,
        track: Track,
        plan: _Plan,
        batch: BatchWrite,
        address: int,
        shared: tuple[Position, ...] | None,
    ) -> None:
        """Some messages of this batch are repeated: the body stays whole, the index says which ones count."""
        assert plan.kept is not None
        if plan.kept:
            topic.append(address, batch.size_bytes, len(plan.kept), plan.kept, shared)
        places: dict[int, int | None] = dict(plan.repeated)
        places.update({index: plan.first_offset + rank for rank, index in enumerate(plan.kept)})
        for index in range(plan.count):
            place = places[index]
            if plan.sequence + index > track.last and place is not None:
                track.take(plan.sequence + index, place, 1)

    # Subscriptions.

    def _on_subscribe(self, command: Subscribe) -> tuple[tuple[Position, ...], bool]:
        self.check_session(command.client, command.epoch)
        key = (command.client, command.topics)
        subscription = self.subscriptions.get(key)
        created = subscription is None
        if subscription is None:
            new = [name for name in command.topics if name not in self.topics]
            if new and self.settings.topics == "on-publish":
                raise NoSuchTopic(f"There is no topic {new[0]!r}, and here only a put makes one: put to it first.")
            self._check_topics_limit(len(new))
            if len(self.subscriptions) >= self.settings.subscriptions_max:
                raise LimitReached(
                    f"There are already {self.settings.subscriptions_max} subscriptions (subscriptions_max): "
                    "raise the limit or unsubscribe some."
                )
            starts = {name: self._start_offset(name, command.start) for name in command.topics}
            for name in new:
                self.topics[name] = Topic(name)
            subscription = Subscription(command.client, command.topics, dict(starts), starts)
            self._remember_subscription(subscription)
        return tuple(Position(name, subscription.cursors[name]) for name in command.topics), created

    def _start_offset(self, name: str, start: Start) -> int:
        topic = self.topics.get(name)
        first, following = (topic.first_offset, topic.next_offset) if topic else (0, 0)
        if start == "now":
            return following
        if start == "earliest":
            return first
        if start == "last":
            return max(first, following - 1)
        if not first <= start <= following:
            raise InvalidRequest(
                f"A subscription to {name!r} cannot start at {start}: it holds the offsets {first} to {following}."
            )
        return start

    def _remember_subscription(self, subscription: Subscription) -> None:
        key = subscription.key
        self.subscriptions[key] = subscription
        self.owned.setdefault(subscription.client, {})[key] = subscription
        for name in subscription.topics:
            self.readers.setdefault(name, {})[key] = subscription

    def _forget_subscription(self, subscription: Subscription) -> None:
        key = subscription.key
        del self.subscriptions[key]
        del self.owned[subscription.client][key]
        for name in subscription.topics:
            del self.readers[name][key]

    def _on_unsubscribe(self, command: Unsubscribe) -> None:
        self.check_session(command.client, command.epoch)
        self._forget_subscription(self.find_subscription(command.client, command.topics))

    def _on_attach(self, command: Attach) -> Subscription:
        self.check_session(command.client, command.epoch)
        subscription = self.find_subscription(command.client, command.topics)
        subscription.reader_epoch = command.epoch
        subscription.reading = True
        subscription.sent = {position.topic: position.offset for position in command.sent}
        return subscription

    # Retention.

    def owed_offset(self, topic: Topic) -> int:
        """The first offset that some subscription still waits for; the last message is always kept."""
        readers = self.readers.get(topic.name)
        owed = max(topic.first_offset, topic.next_offset - 1)
        return min([owed, *(reader.cursors[topic.name] for reader in readers.values())]) if readers else owed

    def _on_trim(self, command: Trim) -> None:
        for position in command.positions:
            topic = self.topics.get(position.topic)
            if topic is None:
                continue
            topic.trim(min(position.offset, self.owed_offset(topic)))
            for client in self.clients.values():
                track = client.tracks.get(position.topic)
                if track is not None:
                    track.trim(topic.first_offset)

    def _on_carry(self, command: Carry, body_address: int) -> None:
        address = body_address
        for batch in command.batches:
            self.topics[batch.topic].carry(batch.first_offset, address)
            address += batch.size_bytes
        for name in dict.fromkeys(batch.topic for batch in command.batches):
            for client in self.clients.values():
                if name in client.tracks:
                    client.tracks[name].seal_again()

    # Snapshots.

    def seal(self) -> tuple[bytes, bytes]:
        """What the indexes gained since the last seal, and all other state, each as bytes."""
        pieces = [piece for topic in self.topics.values() if (piece := topic.seal()) is not None]
        runs = [run for client in self.clients.values() for run in client.seal()]
        snapshot = Snapshot(
            1,
            [
                TopicState(
                    topic.name,
                    topic.first_offset,
                    topic.next_offset,
                    [(at_ms, name, topic.ids[name]) for at_ms, name in topic.id_times],
                )
                for topic in self.topics.values()
            ],
            [
                ClientState(
                    client.name,
                    client.token,
                    client.anonymous,
                    client.epoch,
                    {name: track.last for name, track in client.tracks.items()},
                    list(client.past_tokens),
                )
                for client in self.clients.values()
            ],
            list(self.subscriptions.values()),
        )
        return msgspec.msgpack.encode(SegmentIndex(pieces, runs)), msgspec.msgpack.encode(snapshot)

    def mark_sealed(self) -> None:
        """What `seal` returned last is on disk."""
        for topic in self.topics.values():
            topic.mark_sealed()
        for client in self.clients.values():
            client.mark_sealed()

    def restore(self, snapshot: bytes | memoryview, indexes: list[bytes]) -> None:
        """Takes the state from a snapshot and the index pieces of all segments before it."""
        state = msgspec.msgpack.decode(snapshot, type=Snapshot)
        for topic in state.topics:
            kept = self.topics[topic.name] = Topic(topic.name, topic.first_offset, topic.next_offset)
            for at_ms, name, offset in topic.ids:
                kept.remember_ids([(name, offset)], at_ms)
        for known in state.clients:
            client = self.clients[known.name] = Client(known.name, known.token, known.anonymous, known.epoch)
            client.past_tokens.extend(known.past_tokens)
            client.tracks = {name: Track(last) for name, last in known.lasts.items()}
        for subscription in state.subscriptions:
            self._remember_subscription(subscription)
        for data in indexes:
            piece = msgspec.msgpack.decode(data, type=SegmentIndex)
            for topic_piece in piece.topics:
                if topic_piece.topic in self.topics:
                    self.topics[topic_piece.topic].load(topic_piece)
            for run in piece.tracks:
                if run.client in self.clients and run.topic in self.clients[run.client].tracks:
                    self.clients[run.client].tracks[run.topic].load(run)
        for loaded in self.topics.values():
            loaded.finish_loading()
        for client in self.clients.values():
            for name, track in client.tracks.items():
                if name in self.topics:
                    track.trim(self.topics[name].first_offset)
