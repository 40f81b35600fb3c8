"""The broker: takes requests and returns effects.

A request that changes something becomes a command for the journal and is answered only when the command is
durable and applied; one that only asks is answered from the applied state at once. What can be refused
without the journal is refused before it gets there. `handle` is the table of contents.
"""

from __future__ import annotations

from typing import Any

import msgspec

from tidings.errors import LimitReached, ProtocolError, TidingsError
from tidings.message import check_name, check_topic
from tidings.protocols.broker import bulk, commands, damage, messages, questions, ranges, staging
from tidings.protocols.broker.collecting import collect_due
from tidings.protocols.broker.consumer_groups.coordinators import AckReply, DeadLettering
from tidings.protocols.broker.consumer_groups.sharing import Sharing
from tidings.protocols.broker.delivery import Dispatcher
from tidings.protocols.broker.machine import Machine
from tidings.protocols.broker.origins import Adopting, Origin, Reporting
from tidings.protocols.broker.ownership import Grown
from tidings.protocols.broker.retention import Segment, trim_due
from tidings.protocols.broker.rights import check_right
from tidings.protocols.broker.subscriptions import Subscription, canonical, key_of
from tidings.protocols.broker.withheld import Withheld
from tidings.protocols.broker.writing import check_part
from tidings.protocols.effects import Effect, Examine, Forward, Peer, Persist, PersistCopy, Report, Send, Stop
from tidings.protocols.events import Damaged, Event, Examined, Moved, Persisted, Received, Refused, Ticked
from tidings.settings import BrokerSettings

ANONYMOUS_SILENCE_MS_MAX = 24 * 3600 * 1000
"""An anonymous client that vanished without a word is forgotten after this long."""


SWEEP_EVERY_MS = 1_000


class Broker:
    """The state machine, the streams of its readers, and who was heard when."""

    def __init__(self, settings: BrokerSettings, machine: Machine | None = None) -> None:
        self.settings = settings
        self.machine = machine if machine is not None else Machine(settings)
        self.withheld = Withheld()
        self.dispatcher = Dispatcher(self.machine, self.withheld)
        self.sharing = Sharing(self.machine, self.withheld)
        self.damaged: tuple[str, ...] = ()
        """Where the journal is known to be damaged, for anyone who asks how the broker is."""
        self.members: tuple[str, ...] = ()
        """The addresses of the replica group that this broker leads, if it is one of several."""
        self._heard_at_ms: dict[str, int] = {}
        self._swept_at_ms = 0
        self._touched: dict[str, None] = {}
        """Topics that have grown since the streams were last served."""

    def handle(self, event: Event) -> list[Effect]:
        """What an event leads to. Never raises for what a client did: that is answered with the error."""
        match event:
            case Received():
                return self._on_received(event)
            case Persisted():
                return self._on_persisted(event)
            case Examined(now_ms, batches, origin):
                return self.sharing.on_examined(now_ms, batches, origin)
            case Damaged():
                return damage.on_damaged(self, event)
            case Moved(now_ms, Examine(_, origin)):
                return self.sharing.examine_again(now_ms, origin)
            case Moved(now_ms, PersistCopy(_, _, DeadLettering() as dead_lettering)):
                return self.sharing.on_refused(now_ms, dead_lettering)
            case Refused(_, _, Origin(peer, message), error):
                return self._failed(peer, message, error)
            case Refused(now_ms, _, AckReply() as acking, error):
                failed = self._failed(acking.peer, acking.message, error)
                return failed + self.sharing.on_refused(now_ms, acking)
            case Refused(_, _, Reporting(about), error):
                return [Report(about, None, error)]
            case Refused(now_ms, _, DeadLettering() as dead_lettering, _):
                return self.sharing.on_refused(now_ms, dead_lettering)
            case Ticked(now_ms):
                return self._on_tick(now_ms)
        return []

    def recovered(self) -> None:
        """The state has been rebuilt from the journal; readers and members will come back."""
        self.dispatcher.recovered()
        self.sharing.recovered()

    def serve_streams(self, now_ms: int) -> list[Effect]:
        """Sends out what has been stored since the last call; once for each commit, not for each record."""
        if not self._touched:
            return []
        touched, self._touched = self._touched, {}
        return self.dispatcher.pump_topics(touched) + self.sharing.pump_topics(now_ms, touched)

    def mended(self) -> None:
        """Something that was damaged has come from another member: anyone who waits for it is served with the rest."""
        self.withheld.forget()
        self._touched.update(dict.fromkeys(self.machine.topics))

    # Requests.

    def _on_received(self, event: Received) -> list[Effect]:
        message, peer = event.message, event.peer
        try:
            check_right(self.settings.admins, event.user, message)
            self.machine.ownership.check_request(message)
            match message:
                case messages.Put():
                    return self._on_put(event, message)
                case messages.Ack(_, client, epoch, acknowledgement):
                    return self._on_commit(event, client, epoch, (), (acknowledgement,))
                case messages.Commit(_, client, epoch, parts, acknowledgements):
                    return self._on_commit(event, client, epoch, parts, acknowledgements)
                case messages.Flow():
                    return self._on_flow(event.now_ms, peer, message)
                case _ if isinstance(message, messages.GroupRequest):
                    return self._on_group_work(event.now_ms, peer, message)
                case messages.Join() | messages.Leave():
                    return self._on_join(event.now_ms, peer, message)
                case messages.Get():
                    return self._on_get(event.now_ms, peer, message)
                case bulk.Read():
                    return [ranges.read(self.machine, peer, message)]
                case bulk.Stage() | bulk.Publish() | bulk.Discard():
                    return self._on_staging(event, message)
                case messages.Hello():
                    return self._on_hello(event.now_ms, peer, message)
                case messages.Subscribe() | messages.Unsubscribe():
                    return self._on_subscribe(event.now_ms, peer, message)
                case messages.Beat():
                    return self._on_beat(event.now_ms, peer, message)
                case messages.Bye():
                    return self._on_bye(event.now_ms, peer, message)
                case messages.Shutdown():
                    return self._on_shutdown(event, message)
                case messages.LimitTopic(_, topic, max_backlog):
                    return [Persist(commands.LimitTopic(check_topic(topic), max_backlog), origin=Origin(peer, message))]
                case _:
                    asked = questions.answer(self.machine, self.sharing, self.dispatcher, self.damaged, message)
                    return [Send(peer, asked)]
        except TidingsError as error:
            return self._failed(peer, message, error)

    def _failed(self, peer: Peer, message: Any, error: Exception) -> list[Effect]:
        number = error.number if isinstance(error, TidingsError) else 0
        return [Send(peer, messages.Failed(message.request, number, str(error)))]

    def _on_hello(self, now_ms: int, peer: Peer, message: messages.Hello) -> list[Effect]:
        if message.version != messages.VERSION:
            raise ProtocolError(
                f"The client speaks version {message.version}, this broker {messages.VERSION}: update the older one."
            )
        check_name(message.client)
        if not 1 <= len(message.token) <= 64:
            raise ProtocolError("A session's token has 1 to 64 bytes: send 16 random ones.")
        self._heard_at_ms[message.client] = now_ms
        client = self.machine.clients.get(message.client)
        if client is not None and client.token == message.token:
            return [Send(peer, self._welcome(message, client.epoch))]
        if client is not None and client.has_replaced(message.token, message.renews):
            raise client.fenced()
        return [
            Persist(
                commands.Open(message.client, message.token, message.anonymous, message.renews),
                origin=Origin(peer, message),
            )
        ]

    def _welcome(self, message: messages.Hello, epoch: int) -> messages.Welcome:
        settings, client = self.settings, self.machine.clients[message.client]
        return messages.Welcome(
            message.request,
            epoch,
            messages.VERSION,
            settings.message_bytes_max,
            settings.batch_bytes_max,
            settings.batch_messages_max,
            self.members,
            self.machine.ownership.noted(client),
        )

    def _on_put(self, event: Received, message: messages.Put) -> list[Effect]:
        """The one part of most commits, without the detours of several."""
        client, epoch, bodies = message.client, message.epoch, event.bodies
        self.machine.check_session(client, epoch)
        self._heard_at_ms[client] = event.now_ms
        if len(bodies) != 1:
            raise ProtocolError(f"1 batch came with {len(bodies)} bodies: send one for each.")
        batch = check_part(self.machine, client, message.part, bodies[0], event.batches[0])
        return [Persist(commands.Write(client, epoch, (batch,)), bodies, Origin(event.peer, message))]

    def _on_commit(
        self,
        event: Received,
        client: str,
        epoch: int,
        parts: tuple[messages.Part, ...],
        acknowledgements: tuple[messages.Acknowledgement, ...],
    ) -> list[Effect]:
        """Puts and acknowledgements: checked as far as the applied state can tell, then journaled."""
        self.machine.check_session(client, epoch)
        self._heard_at_ms[client] = event.now_ms
        if len(parts) != len(event.bodies):
            raise ProtocolError(f"{len(parts)} batches came with {len(event.bodies)} bodies: send one for each.")
        if (
            len(parts) + len({each.whole or each.topics for each in acknowledgements})
            > self.settings.topics_per_request_max
        ):
            raise LimitReached(
                f"One request may hold {self.settings.topics_per_request_max} parts (topics_per_request_max): split it."
            )
        batches = tuple(
            check_part(self.machine, client, part, body, contents)
            for part, body, contents in zip(parts, event.bodies, event.batches, strict=True)
        )
        acknowledged = tuple(
            msgspec.structs.replace(each, topics=canonical(each.topics, each.whole)) for each in acknowledgements
        )
        for each in acknowledged:
            self.machine.find_subscription(client, each.topics, each.whole).check_created(each.created_epoch)
        return [
            Persist(
                commands.Write(client, epoch, batches, acknowledged), event.bodies, Origin(event.peer, event.message)
            )
        ]

    def _on_staging(self, event: Received, message: bulk.Stage | bulk.Publish | bulk.Discard) -> list[Effect]:
        self.machine.check_session(message.client, message.epoch)
        self._heard_at_ms[message.client] = event.now_ms
        origin = Origin(event.peer, message)
        if isinstance(message, bulk.Stage):
            return staging.on_stage(self.machine, event, message, origin)
        return staging.on_publish(self.machine, event.peer, message, origin)

    def _on_subscribe(
        self, now_ms: int, peer: Peer, message: messages.Subscribe | messages.Unsubscribe
    ) -> list[Effect]:
        self.machine.check_session(message.client, message.epoch)
        self._heard_at_ms[message.client] = now_ms
        topics, whole = canonical(message.topics, message.whole), message.whole
        if max(len(topics), len(whole)) > self.settings.topics_per_request_max:
            raise LimitReached(
                f"A subscription may name {self.settings.topics_per_request_max} topics (topics_per_request_max): "
                "make several."
            )
        for name in topics:
            check_topic(name)
        command: commands.Command
        if isinstance(message, messages.Subscribe):
            known = self.machine.subscriptions.get(key_of(message.client, topics, whole))
            if known is not None:  # Idempotent, and no reason to write.
                return [Send(peer, self._subscribed(message, known, False))]
            command = commands.Subscribe(message.client, message.epoch, topics, message.start, whole)
        else:
            self.machine.find_subscription(message.client, topics, whole)
            command = commands.Unsubscribe(message.client, message.epoch, topics, whole)
        return [Persist(command, origin=Origin(peer, message))]

    def _subscribed(
        self, message: messages.Subscribe, subscription: Subscription, created: bool
    ) -> messages.SubscribeDone:
        positions = tuple(messages.Position(name, offset) for name, offset in subscription.cursors.items())
        return messages.SubscribeDone(message.request, positions, created)

    def _on_join(self, now_ms: int, peer: Peer, message: messages.Join | messages.Leave) -> list[Effect]:
        self.machine.check_session(message.client, message.epoch)
        self._heard_at_ms[message.client] = now_ms
        check_topic(message.topic)
        check_name(message.group)
        command: commands.Command
        if isinstance(message, messages.Join):
            command = commands.Join(
                message.client, message.epoch, message.group, message.topic, message.start, message.lanes
            )
        else:
            self.machine.find_group(message.group, message.topic, message.client)
            command = commands.Leave(message.client, message.epoch, message.group, message.topic)
        return [Persist(command, origin=Origin(peer, message))]

    def _on_group_work(self, now_ms: int, peer: Peer, message: Any) -> list[Effect]:
        self.machine.check_session(message.client, message.epoch)
        self._heard_at_ms[message.client] = now_ms
        match message:
            case messages.Work():
                return self.sharing.on_work(now_ms, peer, message)
            case messages.GroupAck():
                return self.sharing.on_group_ack(now_ms, peer, message)
            case messages.GroupNack():
                return self.sharing.on_group_nack(now_ms, peer, message)
            case messages.Extend():
                return self.sharing.on_extend(now_ms, peer, message)
            case _:
                return self.sharing.on_group_pause(now_ms, peer, message)

    # Reading.

    def _on_flow(self, now_ms: int, peer: Peer, message: messages.Flow) -> list[Effect]:
        self.machine.check_session(message.client, message.epoch)
        self._heard_at_ms[message.client] = now_ms
        topics = canonical(message.topics, message.whole)
        subscription = self.machine.find_subscription(message.client, topics, message.whole)
        if subscription.reader_epoch != message.epoch:
            return [self._attach(peer, message, subscription, message.epoch)]
        stream = self.dispatcher.streams.get(subscription.key)
        if stream is None or stream.epoch != message.epoch or message.stream > stream.number:
            if stream is None and len(self.dispatcher.streams) >= self.settings.streams_max:
                raise LimitReached(f"{self.settings.streams_max} streams are open (streams_max): raise the limit.")
            stream = self.dispatcher.open(message.stream, peer, subscription, message.positions)
        elif message.stream < stream.number:
            return []  # A late one, of a stream that has been replaced.
        stream.peer = peer
        stream.messages_limit = max(
            stream.messages_limit, min(message.messages, stream.messages_sent + self.settings.credit_messages_max)
        )
        stream.bytes_limit = max(
            stream.bytes_limit, min(message.size_bytes, stream.bytes_sent + self.settings.credit_bytes_max)
        )
        effects = self.dispatcher.pump(stream)
        error = self.dispatcher.damage_before(stream)
        if message.request and error is not None:
            effects += self._failed(peer, message, error)
        elif message.request:
            sent = tuple(messages.Position(name, offset) for name, offset in stream.positions.items())
            effects.append(
                Send(peer, messages.Flowing(message.request, stream.number, sent, subscription.created_epoch))
            )
        return effects

    def _attach(self, peer: Peer, message: Any, subscription: Subscription, epoch: int) -> Persist:
        """A session reads for the first time: that goes into the journal, the reading after it."""
        sent = self.dispatcher.sent_positions(subscription)
        command = commands.Attach(subscription.client, epoch, subscription.topics, sent, subscription.whole)
        return Persist(command, origin=Origin(peer, message))

    def _on_get(self, now_ms: int, peer: Peer, message: messages.Get) -> list[Effect]:
        self.machine.check_session(message.client, message.epoch)
        self._heard_at_ms[message.client] = now_ms
        subscription = self.machine.find_subscription(message.client, (check_topic(message.topic),))
        if subscription.reader_epoch != message.epoch:
            return [self._attach(peer, message, subscription, message.epoch)]
        found = self.dispatcher.one(subscription)
        if found is None:
            return [Send(peer, messages.Empty(message.request, message.topic))]
        offset, attempt, place = found
        return [Forward(peer, messages.Article(message.request, message.topic, offset, attempt), (place,))]

    def _on_beat(self, now_ms: int, peer: Peer, message: messages.Beat) -> list[Effect]:
        self.machine.check_session(message.client, message.epoch)
        self._heard_at_ms[message.client] = now_ms
        served: dict[int, None] = {}
        for key in self.machine.owned.get(message.client, {}):
            stream = self.dispatcher.streams.get(key)
            if stream is not None and stream.epoch == message.epoch and stream.peer == peer:
                served[stream.number] = None
        served.update(dict.fromkeys(self.sharing.streams_of(message.client, peer)))
        missing = tuple(number for number in message.streams if number not in served)
        return [Send(peer, messages.BeatDone(message.request, missing))]

    # Endings.

    def _on_bye(self, now_ms: int, peer: Peer, message: messages.Bye) -> list[Effect]:
        client = self.machine.check_session(message.client, message.epoch)
        detached = []
        for key, subscription in self.machine.owned.get(client.name, {}).items():
            self.dispatcher.close(key)
            if subscription.reading and subscription.reader_epoch == client.epoch:
                sent = self.dispatcher.sent_positions(subscription)
                detached.append(commands.Detach(subscription.topics, sent, subscription.whole))
        self._heard_at_ms.pop(client.name, None)
        works = any(group.members.get(client.name) == client.epoch for group in self.machine.groups.values())
        left = self.sharing.on_bye(now_ms, client.name)
        if not (detached or works or client.anonymous):  # Nothing that a restart would have to know.
            return [Send(peer, messages.ByeDone(message.request)), *left]
        return [
            *left,
            Persist(commands.Close(client.name, client.epoch, tuple(detached)), origin=Origin(peer, message)),
        ]

    def _on_shutdown(self, event: Received, message: messages.Shutdown) -> list[Effect]:
        self.machine.check_session(message.client, message.epoch)
        return [Send(event.peer, messages.ShutdownDone(message.request)), Stop()]

    # What has become durable.

    def apply(self, command: commands.Command, time_ms: int, body_address: int) -> object:
        """Changes the state by a durable command, and the streams as far as it concerns them."""
        if isinstance(command, commands.Write):
            stored = self.machine.apply(command, time_ms, body_address)
            for batch in command.batches:
                for target in batch.targets:
                    self._touched[target.topic] = None
            return stored
        leaving = list(self.machine.owned.get(command.client, ())) if isinstance(command, commands.Close) else []
        result = self.machine.apply(command, time_ms, body_address)
        match command:
            case commands.Open(client) | commands.Adopt(client):
                for key in self.machine.owned.get(client, {}):
                    stream = self.dispatcher.streams.get(key)
                    if stream is not None and stream.epoch != result:
                        self.dispatcher.close(key)
            case commands.Publish() if result is not None:
                extents: tuple[bulk.Extent, ...] = result  # type: ignore[assignment]
                self._touched.update(dict.fromkeys(extent.topic for extent in extents))
            case commands.OwnershipCommand() if isinstance(result, Grown):
                self._touched.update(dict.fromkeys(result.topics))
            case commands.Attach(client, _, topics, _, whole):
                self.dispatcher.begin_session(self.machine.subscriptions[key_of(client, topics, whole)])
            case commands.Unsubscribe(client, _, topics, whole):
                self.dispatcher.forget(key_of(client, topics, whole))
            case commands.Close(client) if client not in self.machine.clients:
                for key in leaving:
                    self.dispatcher.forget(key)
        return result

    def _on_persisted(self, event: Persisted) -> list[Effect]:
        origin = event.origin
        try:
            result = self.apply(event.command, event.time_ms, event.body_address)
        except TidingsError as error:
            asked = isinstance(origin, Origin | AckReply | Adopting)
            failed = self._failed(origin.peer, origin.message, error) if asked else []
            if isinstance(origin, AckReply | DeadLettering):
                failed += self.sharing.on_refused(event.now_ms, origin)
            return [Report(origin.about, None, error)] if isinstance(origin, Reporting) else failed
        match origin:
            case Origin():
                return self._answer(event, origin.peer, origin.message, result)
            case AckReply():
                return self.sharing.on_acked(event.now_ms, origin)
            case DeadLettering():
                return self.sharing.on_dead_lettered(event.now_ms, origin)
            case Reporting(about):
                return [Report(about, result, None)]
            case Adopting(received):
                return self._on_received(msgspec.structs.replace(received, now_ms=event.now_ms))
        return []

    def _answer(self, event: Persisted, peer: Peer, message: Any, result: Any) -> list[Effect]:
        match message:
            case messages.Put():
                return [Send(peer, messages.PutDone(message.request, result[0]))]
            case messages.Ack(request):
                return [Send(peer, messages.AckDone(request))] if request else []
            case messages.Commit(request):
                return [Send(peer, messages.CommitDone(request, result))]
            case messages.Hello():
                return [Send(peer, self._welcome(message, result))]
            case messages.Subscribe(request):
                positions, created = result
                return [Send(peer, messages.SubscribeDone(request, positions, created))]
            case messages.Unsubscribe(request):
                return [Send(peer, messages.UnsubscribeDone(request))]
            case messages.Join(request):
                return [Send(peer, messages.JoinDone(request, result))]
            case messages.Leave(request, client, _, group, topic):
                left = self.sharing.on_left(event.now_ms, self.machine.groups[group, topic], client)
                return [Send(peer, messages.LeaveDone(request)), *left]
            case messages.Flow() | messages.Get():
                return self._on_received(Received(event.now_ms, peer, message))
            case messages.Bye(request, client):  # A stream may have begun before this was durable.
                return [Send(peer, messages.ByeDone(request)), *self.sharing.on_bye(event.now_ms, client)]
            case messages.LimitTopic(request, topic):
                return [Send(peer, messages.Topics(request, (questions.topic_info(self.machine, topic),)))]
            case bulk.Stage() | bulk.Publish() | bulk.Discard():
                return [Send(peer, staging.answer(self.machine, message, result))]
        return []

    # Time.

    def _on_tick(self, now_ms: int) -> list[Effect]:
        """Leases that have run out, and now and then what has gone silent."""
        effects = self.sharing.on_tick(now_ms, self._heard_at_ms)
        if now_ms - self._swept_at_ms >= SWEEP_EVERY_MS:
            self._swept_at_ms = now_ms
            effects += self._sweep(now_ms)
        return effects

    def _sweep(self, now_ms: int) -> list[Effect]:
        """Clients that have gone silent lose their streams; anonymous ones are forgotten after a day."""
        effects: list[Effect] = []
        for key, stream in list(self.dispatcher.streams.items()):
            heard_at_ms = self._heard_at_ms.setdefault(stream.subscription.client, now_ms)
            if now_ms - heard_at_ms > self.settings.session_silence_ms_max:
                self.dispatcher.close(key)
        for client in self.machine.clients.values():
            if client.anonymous:
                heard_at_ms = self._heard_at_ms.setdefault(client.name, now_ms)
                if now_ms - heard_at_ms > ANONYMOUS_SILENCE_MS_MAX:
                    effects.append(Persist(commands.Close(client.name, client.epoch, ())))
        return effects

    def retain(self, now_ms: int, segments: list[Segment]) -> list[Effect]:
        """What the retention settings let go, as a command, given the sealed segments of the journal."""
        due = (trim_due(self.machine, now_ms, segments), collect_due(self.machine, now_ms))
        old = self.machine.stages.discard_due(self.machine, now_ms)
        return [Persist(command) for command in (*due, *old) if command is not None]
