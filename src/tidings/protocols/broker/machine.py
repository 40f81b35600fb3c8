"""The broker's state machine: `apply(command) -> result`, and nothing else changes the state.

It has no clock, no randomness and no I/O: time and addresses come in with the journal record. Anyone who applies
the same records in the same order, a restarted broker or another replica, arrives at the same state and
at the same answers. A command that must be refused raises its error before it has changed anything, so the
journal may hold commands that came to nothing (a repeated put, a fenced session's ack).

Exactly-once rests on three rules here: a batch whose sequence numbers were already taken is answered from
memory, one that leaves a gap is refused, and one of an older epoch is refused.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable
from typing import assert_never

from tidings.errors import Fenced, InvalidRequest, LimitReached, Moved, NoSuchTopic, NotSubscribed
from tidings.protocols.broker import snapshots
from tidings.protocols.broker.bulk import Extent
from tidings.protocols.broker.clients import Client
from tidings.protocols.broker.collecting import collect
from tidings.protocols.broker.commands import (
    Attach,
    Carry,
    Close,
    Collect,
    Command,
    DeadLetter,
    Discard,
    GroupAck,
    Join,
    Leave,
    LimitTopic,
    Open,
    OwnershipCommand,
    Publish,
    Stage,
    Subscribe,
    Trim,
    Unsubscribe,
    Write,
)
from tidings.protocols.broker.consumer_groups.groups import PAUSED, Group, GroupKey
from tidings.protocols.broker.consumer_groups.progress import Progress
from tidings.protocols.broker.messages import Position, Start, Stored
from tidings.protocols.broker.ownership import EVERYTHING, OwnershipPolicy
from tidings.protocols.broker.stages import Stages
from tidings.protocols.broker.subscriptions import Subscription, SubscriptionKey, key_of
from tidings.protocols.broker.topics import Topic
from tidings.protocols.broker.writing import check_acknowledgement, plan, store, store_next
from tidings.settings import BrokerSettings


class Machine:
    """Topics, clients and subscriptions (a `State`, where each table is explained), and the one way they change."""

    def __init__(self, settings: BrokerSettings, ownership: OwnershipPolicy = EVERYTHING) -> None:
        self.settings = settings
        self.topics: dict[str, Topic] = {}
        self.clients: dict[str, Client] = {}
        self.subscriptions: dict[SubscriptionKey, Subscription] = {}
        self.readers: dict[str, dict[SubscriptionKey, Subscription]] = {}
        self.owned: dict[str, dict[SubscriptionKey, Subscription]] = {}
        self.groups: dict[GroupKey, Group] = {}
        self.groups_of: dict[str, dict[GroupKey, Group]] = {}
        self.used_at_ms: dict[str, int] = {}
        self.retired: dict[str, int] = {}
        self.stages = Stages()
        self.ownership = ownership

    def apply(self, command: Command, time_ms: int, body_address: int) -> object:
        """Changes the state by one command and says what came of it; a refusal raises and changes nothing."""
        match command:
            case Write():
                return self._on_write(command, time_ms, body_address)
            case Open():
                return self._on_open(command)
            case Subscribe():
                return self._on_subscribe(command, time_ms)
            case Attach():
                return self._on_attach(command)
            case Join():
                return self._on_join(command, time_ms)
            case GroupAck():
                self._on_group_ack(command)
            case Stage():
                return self._on_stage(command, time_ms, body_address)
            case Publish():
                return self._on_publish(command, time_ms)
            case Discard():
                return self.stages.discard(self, command)
            case Leave():
                self._on_leave(command, time_ms)
            case DeadLetter():
                self._on_dead_letter(command, time_ms, body_address)
            case Collect():
                collect(self, command, time_ms)
            case Unsubscribe():
                self._on_unsubscribe(command, time_ms)
            case Close():
                self._on_close(command, time_ms)
            case Trim():
                self._on_trim(command)
            case Carry():
                self._on_carry(command, body_address)
            case LimitTopic():
                self._on_limit(command, time_ms)
            case OwnershipCommand():
                return self.ownership.apply(self, command, time_ms, body_address)
            case _:
                assert_never(command)
        return None

    # What may be asked without changing anything.

    def owns(self, topic: str) -> bool:
        """Whether a topic is this broker's to serve."""
        return self.ownership.owns_topic(topic)

    def check_session(self, name: str, epoch: int) -> Client:
        """The client of a current session, or Fenced. Moved if it has been forgotten here with what was given away
        while its request was on its way: it brings its epoch when it comes again.
        """
        client = self.clients.get(name)
        if client is None:
            if not self.ownership.owns_home(name):
                raise Moved(f"The name {name!r} is not known here any more: ask again.")
            raise Fenced(f"There is no session of {name!r}: connect again.")
        if client.epoch != epoch:
            raise client.fenced()
        return client

    def find_topic(self, name: str) -> Topic:
        topic = self.topics.get(name)
        if topic is None:
            raise NoSuchTopic(f"There is no topic {name!r}: subscribe or put to it first.")
        return topic

    def find_subscription(self, client: str, topics: tuple[str, ...], whole: tuple[str, ...] = ()) -> Subscription:
        subscription = self.subscriptions.get(key_of(client, topics, whole))
        if subscription is None:
            for name in topics:
                self.find_topic(name)
            raise NotSubscribed(
                f"{client!r} is not subscribed to {', '.join(map(repr, whole or topics))}: subscribe first."
            )
        return subscription

    def check_puttable(self, name: str) -> None:
        """Whether a put may go to this topic, by the topic policy and the limit."""
        if name not in self.topics:
            if self.settings.topics == "on-subscribe":
                raise NoSuchTopic(
                    f"There is no topic {name!r}, and only a subscribe creates one here: subscribe first."
                )
            self.check_topics_limit(1)

    def backlog_max(self, topic: Topic | None) -> int | None:
        """How many messages may wait in a topic: by its own limit, or that of all; without either, any."""
        return self.settings.max_backlog if topic is None or topic.max_backlog is None else topic.max_backlog

    def check_topics_limit(self, more: int) -> None:
        """Whether so many topics more may be made."""
        if len(self.topics) + more > self.settings.topics_max:
            raise LimitReached(f"There are already {self.settings.topics_max} topics (topics_max): raise the limit.")

    def make_topic(self, name: str, time_ms: int) -> Topic:
        """A new topic; one that was collected goes on with the offsets where it had stopped."""
        self.used_at_ms[name] = time_ms
        next_offset = self.retired.pop(name, 0)
        topic = self.topics[name] = Topic(name, next_offset, next_offset)
        return topic

    def _on_limit(self, command: LimitTopic, time_ms: int) -> None:
        self.ownership.check_topics((command.topic,))
        topic = self.topics.get(command.topic)
        if topic is None:
            self.check_topics_limit(1)
            topic = self.make_topic(command.topic, time_ms)
        topic.max_backlog = command.max_backlog

    # Sessions.

    def _on_open(self, command: Open) -> int:
        self.ownership.check_home(command.client)
        client = self.clients.get(command.client)
        if client is None:
            if len(self.clients) >= self.settings.clients_max:
                raise LimitReached(f"{self.settings.clients_max} names are in use (clients_max): raise the limit.")
            client = self.clients[command.client] = Client(command.client, command.token, command.anonymous)
        elif client.token != command.token:
            if client.has_replaced(command.token, command.renews):
                raise client.fenced()
            client.begin_session(command.token)
            client.anonymous = client.anonymous and command.anonymous
        return client.epoch

    def _on_close(self, command: Close, time_ms: int) -> None:
        client = self.check_session(command.client, command.epoch)
        self.ownership.check_free(client.name)
        groups = [group for group in self.groups.values() if self.owns(group.topic)]
        if client.anonymous:
            for subscription in list(self.owned.get(client.name, {}).values()):
                if self.owns(subscription.topics[0]):
                    self._forget_subscription(subscription, time_ms)
            for group in groups:
                self._drop_member(group, client.name, time_ms)
            if self.ownership.is_held(self, client):
                client.tracks = {name: track for name, track in client.tracks.items() if not self.owns(name)}
                return
            self.owned.pop(client.name, None)
            del self.clients[client.name]
            return
        for group in groups:
            if group.members.get(client.name) == client.epoch:
                group.members[client.name] = PAUSED
                group.last_acked.pop(client.name, None)
        for detached in command.detached:
            read = self.subscriptions.get(key_of(client.name, detached.topics, detached.whole))
            if read is not None and read.reader_epoch == client.epoch and self.owns(detached.topics[0]):
                read.reading = False
                read.sent = {position.topic: position.offset for position in detached.sent}

    # Puts and acknowledgements.

    def _on_write(self, command: Write, time_ms: int, body_address: int) -> tuple[tuple[Stored, ...], ...]:
        self.ownership.check_write(command)
        client, batches = self.clients.get(command.client), command.batches
        if client is None or client.epoch != command.epoch:
            client = self.check_session(command.client, command.epoch)  # It says why not.
        if len(batches) == 1 and not command.acknowledgements:
            only = store_next(self, client, batches[0], time_ms, body_address)
            if only is not None:
                return ((only,),)
        for acknowledgement in command.acknowledgements:
            check_acknowledgement(self, client, acknowledgement)
        plans = plan(self, client, batches, time_ms)
        address = body_address
        stored: list[tuple[Stored, ...]] = []
        for batch, targets in zip(batches, plans, strict=True):
            stored.append(store(self, client, batch, targets, time_ms, address))
            address += batch.size_bytes
        for acknowledgement in command.acknowledgements:
            cursors = self.subscriptions[key_of(client.name, acknowledgement.topics, acknowledgement.whole)].cursors
            for position in acknowledgement.positions:
                cursors[position.topic] = max(cursors[position.topic], position.offset)
        return tuple(stored)

    # Stages.

    def _on_stage(self, command: Stage, time_ms: int, body_address: int) -> bool:
        self.ownership.check_topics((command.topic,))
        self.check_session(command.client, command.epoch)
        return self.stages.add(self, command, time_ms, body_address)

    def _on_publish(self, command: Publish, time_ms: int) -> tuple[Extent, ...] | None:
        self.ownership.check_publish(command)
        self.check_session(command.client, command.epoch)
        return self.stages.publish(self, command, time_ms)

    # Subscriptions.

    def _on_subscribe(self, command: Subscribe, time_ms: int) -> tuple[tuple[Position, ...], bool]:
        self.ownership.check_topics(command.topics)
        self.check_session(command.client, command.epoch)
        key = key_of(command.client, command.topics, command.whole)
        subscription = self.subscriptions.get(key)
        created = subscription is None
        if subscription is None:
            new = [name for name in command.topics if name not in self.topics]
            if new and self.settings.topics == "on-publish":
                raise NoSuchTopic(f"There is no topic {new[0]!r}, and only a put creates one here: put to it first.")
            self.check_topics_limit(len(new))
            if len(self.subscriptions) >= self.settings.subscriptions_max:
                raise LimitReached(
                    f"There are already {self.settings.subscriptions_max} subscriptions (subscriptions_max): "
                    "raise the limit or unsubscribe some."
                )
            starts = {name: self._start_offset(name, command.start) for name in command.topics}
            for name in new:
                self.make_topic(name, time_ms)
            subscription = Subscription(command.client, command.topics, dict(starts), starts)
            subscription.created_epoch = command.epoch
            if command.whole:
                subscription.whole = command.whole
                subscription.made = {name: self.topics[name].next_offset for name in command.topics}
            self.remember_subscription(subscription)
        return tuple(Position(name, subscription.cursors[name]) for name in command.topics), created

    def _start_offset(self, name: str, start: Start) -> int:
        topic = self.topics.get(name)
        retired = self.retired.get(name, 0)
        first, following = (topic.first_offset, topic.next_offset) if topic else (retired, retired)
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

    def remember_subscription(self, subscription: Subscription) -> None:
        """A subscription is found by its client and by its topics from now on."""
        key = subscription.key
        self.subscriptions[key] = subscription
        self.owned.setdefault(subscription.client, {})[key] = subscription
        for name in subscription.topics:
            self.readers.setdefault(name, {})[key] = subscription

    def _forget_subscription(self, subscription: Subscription, time_ms: int) -> None:
        key = subscription.key
        del self.subscriptions[key]
        del self.owned[subscription.client][key]
        for name in subscription.topics:
            del self.readers[name][key]
            self.topics[name].leave(subscription.starts.get(name), subscription.cursors[name])
            self.used_at_ms[name] = time_ms

    def _on_unsubscribe(self, command: Unsubscribe, time_ms: int) -> None:
        self.ownership.check_topics(command.topics)
        self.check_session(command.client, command.epoch)
        subscription = self.find_subscription(command.client, command.topics, command.whole)
        self._forget_subscription(subscription, time_ms)

    def _on_attach(self, command: Attach) -> Subscription:
        self.ownership.check_topics(command.topics)
        self.check_session(command.client, command.epoch)
        subscription = self.find_subscription(command.client, command.topics, command.whole)
        subscription.reader_epoch = command.epoch
        subscription.reading = True
        subscription.sent = {position.topic: position.offset for position in command.sent}
        return subscription

    # Groups.

    def find_group(self, name: str, topic: str, client: str, epoch: int | None = None) -> Group:
        """The group that a client is a member of, in this session if one is named, or why not."""
        group = self.groups.get((name, topic))
        if group is None or client not in group.members:
            self.find_topic(topic)
            raise NotSubscribed(f"{client!r} is not a member of the group {name!r} on {topic!r}: subscribe first.")
        if epoch is not None and group.members[client] != epoch:
            raise Fenced(f"A newer session of {client!r} has joined the group {name!r}: let one process use that name.")
        return group

    def _on_join(self, command: Join, time_ms: int) -> bool:
        self.ownership.check_topics((command.topic,))
        self.check_session(command.client, command.epoch)
        group = self.groups.get((command.group, command.topic))
        created = group is None
        if group is None:
            if command.topic not in self.topics:
                if self.settings.topics == "on-publish":
                    raise NoSuchTopic(
                        f"There is no topic {command.topic!r}, and only a put creates one here: put to it first."
                    )
                self.check_topics_limit(1)
            if len(self.groups) >= self.settings.groups_max:
                raise LimitReached(
                    f"There are already {self.settings.groups_max} groups (groups_max): raise the limit."
                )
            start = self._start_offset(command.topic, command.start)
            if command.topic not in self.topics:
                self.make_topic(command.topic, time_ms)
            group = Group(command.group, command.topic, command.lanes, Progress(start), time_ms, start)
            self.remember_group(group)
        elif command.client not in group.members and len(group.members) >= self.settings.members_max:
            raise LimitReached(
                f"The group {command.group!r} already has {self.settings.members_max} members (members_max): raise it."
            )
        group.members[command.client] = command.epoch
        return created

    def remember_group(self, group: Group) -> None:
        """A group is found by its topic from now on."""
        self.groups[group.key] = group
        self.groups_of.setdefault(group.topic, {})[group.key] = group

    def _on_leave(self, command: Leave, time_ms: int) -> None:
        self.ownership.check_topics((command.topic,))
        self.check_session(command.client, command.epoch)
        # Also in another session than the one that joined: the name is the member, and this is its newest session.
        self._drop_member(self.find_group(command.group, command.topic, command.client), command.client, time_ms)

    def _drop_member(self, group: Group, client: str, time_ms: int) -> None:
        group.last_acked.pop(client, None)
        if group.members.pop(client, None) is not None and not group.members:
            group.empty_since_ms = time_ms

    def _on_group_ack(self, command: GroupAck) -> None:
        self.ownership.check_topics((command.topic,))
        self.check_session(command.client, command.epoch)
        group = self.find_group(command.group, command.topic, command.client, command.epoch)
        limit = self.topics[command.topic].next_offset
        group.last_acked[command.client] = (command.ranges, array("Q", command.offsets))
        for start, end in command.ranges:
            group.progress.add(start, min(end, limit))
        offsets = command.offsets
        if offsets and offsets[-1] >= limit:
            offsets = offsets[: bisect_left(offsets, limit)]
        group.progress.add_each(offsets)

    def _on_dead_letter(self, command: DeadLetter, time_ms: int, body_address: int) -> None:
        self.ownership.check_topics((command.topic, command.to_topic))
        group = self.groups.get((command.group, command.topic))
        if group is None or group.progress.done(command.offset):
            return
        topic = self.topics.get(command.to_topic) or self.make_topic(command.to_topic, time_ms)
        topic.append(body_address, command.size_bytes, 1, None, None, time_ms)
        group.progress.add(command.offset, command.offset + 1)

    # Retention.

    def waited_offset(self, topic: Topic) -> int:
        """The first offset that somebody still waits for; without anybody, the first that there is."""
        readers = self.readers.get(topic.name, {})
        groups = self.groups_of.get(topic.name, {})
        waited = [reader.cursors[topic.name] for reader in readers.values()]
        waited += [group.progress.low for group in groups.values()]
        return min(waited, default=topic.first_offset)

    def owed_offset(self, topic: Topic) -> int:
        """Everything from here on is kept: what somebody still waits for, and always the last message."""
        owed = max(topic.first_offset, topic.next_offset - 1)
        if self.readers.get(topic.name) or self.groups_of.get(topic.name):
            return min(owed, self.waited_offset(topic))
        return owed

    def _on_trim(self, command: Trim) -> None:
        for position in command.positions:
            topic = self.topics.get(position.topic)
            if topic is None or not self.owns(position.topic):
                continue
            topic.trim(min(position.offset, self.owed_offset(topic)))
            for client in self.clients.values():
                track = client.tracks.get(position.topic)
                if track is not None:
                    track.trim(topic.first_offset)

    def _on_carry(self, command: Carry, body_address: int) -> None:
        address = body_address
        for batch in command.batches:
            topic = self.topics.get(batch.topic)
            if topic is not None:  # A topic that has been collected meanwhile needs none of it.
                topic.carry(batch.first_offset, address)
            address += batch.size_bytes
        for staged in command.staged:
            self.stages.carry(staged, address)
            address += staged.size_bytes
        self._seal_tracks_again(dict.fromkeys(batch.topic for batch in command.batches))

    def _seal_tracks_again(self, topics: Iterable[str]) -> None:
        """Messages have left their segments, which may go now, with all that their indexes say of publishers."""
        for name in topics:
            for client in self.clients.values():
                if name in client.tracks:
                    client.tracks[name].seal_again()

    def move(self, address: int, size_bytes: int, new_address: int) -> None:
        """What lay in a row of addresses lies in another from now on."""
        end_address = address + size_bytes
        moved: dict[str, None] = {}
        for topic in self.topics.values():
            for entry in topic.entries_within(address, end_address):
                topic.carry(topic.offsets[entry], new_address + topic.addresses[entry] - address)
                moved[topic.name] = None
        self._seal_tracks_again(moved)
        for staged, place in list(self.stages.places()):
            if address <= place.address < end_address:
                self.stages.carry(staged, new_address + place.address - address)

    # Snapshots.

    def seal(self) -> tuple[bytes, bytes]:
        """What the indexes gained since the last seal, and all other state, each as bytes."""
        return snapshots.seal(self, self.stages.state(), self.ownership.seal())

    def mark_sealed(self) -> None:
        """What `seal` returned last is on disk."""
        for topic in self.topics.values():
            topic.mark_sealed()
        for client in self.clients.values():
            client.mark_sealed()

    def restore(self, snapshot: bytes | memoryview, indexes: list[bytes]) -> None:
        """Takes the state from a snapshot and the index pieces of all segments before it."""
        state = snapshots.restore(self, snapshot, indexes)
        self.stages.restore(state.stages)
        self.ownership.restore(memoryview(state.ownership))
        if self.ownership.shares_stages():
            self.stages.split()
