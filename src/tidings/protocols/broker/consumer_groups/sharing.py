"""Groups at work: members come and go, and what they have done comes back.

What a member acks is journaled before it is confirmed; until then nobody else gets it. How work goes out is in
`coordinators`.

After a restart the lanes are empty and the members are not. Each opens its stream again and says what it still has in
hand; until all have done so, or a lease has passed, nothing new is given out, so that no lane gets two workers.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, pairwise

from tidings.errors import Fenced, InvalidRequest, TidingsError
from tidings.message import Columns, GroupInfo, MemberInfo
from tidings.protocols.broker import commands, messages
from tidings.protocols.broker.consumer_groups.coordinators import (
    AckReply,
    Claim,
    Consumer,
    Coordinators,
    DeadLettering,
    GroupCoordinator,
    Next,
    ordering_keys,
)
from tidings.protocols.broker.consumer_groups.groups import PAUSED, Group
from tidings.protocols.broker.consumer_groups.members import OrderingKey, PendingAck, Stale
from tidings.protocols.broker.consumer_groups.progress import compress
from tidings.protocols.broker.machine import Machine
from tidings.protocols.broker.topics import Place, Topic
from tidings.protocols.broker.withheld import Withheld
from tidings.protocols.effects import Effect, Examine, Peer, Persist, PersistCopy, Send

SPREAD_MAX = 100_000
"""Messages that one request of a member may speak of."""


class Sharing(Coordinators):
    """All groups at work: members come and go, work comes back, time passes."""

    def __init__(self, machine: Machine, withheld: Withheld) -> None:
        super().__init__(machine, withheld)
        self._grace_until_ms: int | None = None

    def recovered(self) -> None:
        """After a restart: every member that the journal knows may have something in flight.

        What none of them claims may have been with somebody before: how often it was sent is not journaled.
        """
        for group in self._machine.groups.values():
            coordinator = self._coordinator(group)
            coordinator.awaited = {client: None for client, epoch in group.members.items() if epoch != PAUSED}
            coordinator.lanes.expect_redelivery(self._given_until(group))
        self._grace_until_ms = None

    def _given_until(self, group: Group) -> int:
        """No offset from here on can have been given out: that happens in order, and so many are unacked at most."""
        until, left = self._machine.topics[group.topic].next_offset, self._settings.window_messages_max
        for start, end in group.progress.gaps(group.progress.low, until):
            if end - start >= left:
                return start + left
            left -= end - start
        return until

    # Members come and go.

    def on_work(self, now_ms: int, peer: Peer, message: messages.Work) -> list[Effect]:
        """A member opens its stream, or has more or less room than before."""
        group = self._machine.find_group(message.group, message.topic, message.client, message.epoch)
        coordinator = self._coordinator(group)
        consumer = coordinator.consumers.get(message.client)
        name = (message.epoch, message.stream)
        if consumer is None or (consumer.epoch, consumer.stream) != name:
            if name <= coordinator.begun.get(message.client, (0, 0)) and (consumer is not None or message.begins):
                return []  # A late one, of a stream that has been replaced or has ended.
            if not message.begins:
                raise Fenced(f"The stream {message.stream} of {message.client!r} is not open: open it again.")
            return self._on_beginning(now_ms, coordinator, peer, message)
        if consumer.peer != peer:  # What was under way on the old connection is lost, and the member does not know it.
            raise Fenced(f"The stream {message.stream} of {message.client!r} was on another connection: open it again.")
        coordinator.lanes.activate(message.client)
        if message.taken:
            coordinator.lanes.take(message.client, spread(message.taken))
        if message.request >= consumer.granted:
            consumer.granted = message.request
            coordinator.lanes.grant(message.client, self._room(message))
        effects = self.pump(now_ms, coordinator)
        error = self._damage_before(coordinator)
        if error is not None:
            raise error
        if message.request:
            effects.append(Send(peer, messages.Working(message.request, message.stream, turn=consumer.turn)))
        return effects

    def _room(self, message: messages.Work) -> int:
        return max(0, min(message.room, self._machine.settings.room_messages_max))

    def _on_beginning(
        self, now_ms: int, coordinator: GroupCoordinator, peer: Peer, message: messages.Work
    ) -> list[Effect]:
        """A stream begins as soon as it is known what the member has in flight, and which lanes that is of."""
        waiting = coordinator.postponed.get(message.client)
        if waiting is not None and (waiting[1].epoch, waiting[1].stream) > (message.epoch, message.stream):
            return []
        error = self._damage_before(coordinator)
        if error is not None and not message.held:
            raise error
        if coordinator.acking.get(message.client):  # What became of it has to be known before the answer.
            coordinator.postponed[message.client] = (peer, message)
            return []
        topic = self._machine.topics[coordinator.group.topic]
        ranges = [each for held in message.held for each in held.ranges]
        spread(ranges)  # Refuses what is too much to be weighed.
        entries = self._entries(topic, ranges)
        if not entries:
            return self._begin(now_ms, coordinator, peer, message, {})
        coordinator.claiming[message.client] = None
        places = tuple(topic.place(entry) for entry in entries)
        firsts = tuple(topic.offsets[entry] for entry in entries)
        return [Examine(places, Claim(coordinator.group.key, peer, message, firsts))]

    def _entries(self, topic: Topic, ranges: list[tuple[int, int]]) -> list[int]:
        """The batches that hold these offsets, as far as they exist."""
        entries: dict[int, None] = {}
        for start, end in ranges:
            offset = max(start, topic.first_offset)
            while offset < min(end, topic.next_offset):
                entry = topic.find(offset)
                entries[entry] = None
                offset = topic.end_of(entry)
        return sorted(entries)

    def _on_claim(self, now_ms: int, claim: Claim, batches: tuple[Columns, ...]) -> list[Effect]:
        group = self._machine.groups.get(claim.key)
        if group is None:
            return []
        coordinator = self._coordinator(group)
        coordinator.claiming.pop(claim.message.client, None)
        topic = self._machine.topics[group.topic]
        keys: dict[int, OrderingKey | None] = {}
        for first, columns in zip(claim.entries, batches, strict=True):
            kept = topic.thinned.get(first)
            rows = kept if kept is not None else range(len(columns.values))
            found = ordering_keys(group, columns, rows)
            keys.update(zip(range(first, first + len(found)), found, strict=True))
        return self._begin(now_ms, coordinator, claim.peer, claim.message, keys)

    def _begin(
        self,
        now_ms: int,
        coordinator: GroupCoordinator,
        peer: Peer,
        message: messages.Work,
        keys: dict[int, OrderingKey | None],
    ) -> list[Effect]:
        """Begins a stream: whatever the member had is taken back and given to it again as far as it has it in flight.

        All in one step, so that nobody, the member itself included, is given any of it in between. `keys` has the
        lane of every message in flight.
        """
        client, progress, before = message.client, coordinator.group.progress, coordinator.consumers.get(message.client)
        handed = dict.fromkeys(spread(message.taken or ()))
        taken: dict[int, int] | None = None
        is_same = before is not None and (before.epoch == message.epoch or bool(message.held))
        if message.taken is not None and is_same:
            taken = {each: held.attempt for held in message.held for each in spread(held.ranges) if each in handed}
        coordinator.lanes.join(client, now_ms, taken, claims=bool(message.held))
        coordinator.consumers[client] = Consumer(peer, message)
        coordinator.begun[client] = (message.epoch, message.stream)
        kept: list[messages.Kept] = []
        for held in message.held:
            claimed = [
                offset
                for offset in spread(held.ranges)
                if offset in keys
                and not progress.done(offset)
                # What it has not handed out is good only if nobody else can have worked on it meanwhile.
                and (message.taken is None or offset in handed or coordinator.lanes.is_first(offset, held.attempt))
            ]
            batch = coordinator.lanes.claim(client, claimed, [keys[offset] for offset in claimed], held.attempt, now_ms)
            if batch is not None:
                kept.append(messages.Kept(batch.number, batch.attempt, tuple(compress(batch.offsets))))
        coordinator.lanes.take(client, list(handed))
        coordinator.lanes.grant(client, self._room(message))
        coordinator.awaited.pop(client, None)
        acked = self._acked_before(coordinator.group, message)
        return [
            Send(peer, messages.Working(message.request, message.stream, tuple(kept), acked)),
            *self.pump(now_ms, coordinator),
        ]

    def _acked_before(self, group: Group, message: messages.Work) -> tuple[tuple[int, int], ...]:
        """What of the messages in flight this very member has acked, without hearing of it."""
        ranges, offsets = group.last_acked.get(message.client, ((), []))
        last = dict.fromkeys([*spread(ranges), *offsets])
        return tuple(compress([offset for held in message.held for offset in spread(held.ranges) if offset in last]))

    def on_left(self, now_ms: int, group: Group, client: str) -> list[Effect]:
        """A member is no longer one: the others go on with its work."""
        coordinator = self._coordinator(group)
        self._end(now_ms, coordinator, client)
        return self.pump(now_ms, coordinator)

    def _end(self, now_ms: int, coordinator: GroupCoordinator, client: str, taken: Sequence[int] | None = None) -> None:
        """A member has gone in good order: it has nothing in flight any more."""
        coordinator.awaited.pop(client, None)
        if coordinator.consumers.pop(client, None) is not None:
            coordinator.lanes.leave(client, now_ms, taken)

    def on_bye(self, now_ms: int, client: str) -> list[Effect]:
        """A client ends its session in good order: nobody has to wait for its lease to run out."""
        effects: list[Effect] = []
        for coordinator in list(self._coordinators.values()):
            self._end(now_ms, coordinator, client)
            effects += self.pump(now_ms, coordinator)
        return effects

    def on_examined(self, now_ms: int, batches: tuple[Columns, ...], origin: Next | Claim) -> list[Effect]:
        """Stored batches have been read, for an offer or for a claim."""
        if isinstance(origin, Claim):
            return self._on_claim(now_ms, origin, batches)
        return self._on_next(now_ms, origin, batches)

    def examine_again(self, now_ms: int, origin: Next | Claim) -> list[Effect]:
        """What was to be examined lies elsewhere by now, or is gone."""
        group = self._machine.groups.get(origin.key)
        if group is None:
            return []
        coordinator = self._coordinator(group)
        if isinstance(origin, Claim):
            coordinator.claiming.pop(origin.message.client, None)
            return self._work_later(now_ms, origin.peer, origin.message)
        coordinator.examining = False
        return self.pump(now_ms, coordinator)

    # Work comes back.

    def on_group_ack(self, now_ms: int, peer: Peer, message: messages.GroupAck) -> list[Effect]:
        coordinator, _ = self._open_coordinator(
            message.group, message.topic, message.client, message.epoch, message.stream
        )
        coordinator.lanes.activate(message.client)
        acks: list[PendingAck] = []
        stale: list[int] = []
        for each in message.acks:
            offsets = spread(each.ranges) if each.ranges else None
            try:
                ack = coordinator.lanes.ack(message.client, each.batch, offsets, now_ms)
            except Stale:
                stale.append(each.batch)
                continue
            if ack.refused:
                stale.append(each.batch)
            acks.append(ack)
        offsets = in_order([ack.offsets for ack in acks])
        origin = AckReply(coordinator.group.key, peer, message, tuple(acks), tuple(dict.fromkeys(stale)))
        if not offsets:
            return self.on_acked(now_ms, origin)
        ranges: tuple[tuple[int, int], ...] = ()
        if offsets[-1] - offsets[0] == len(offsets) - 1:
            ranges, offsets = ((offsets[0], offsets[-1] + 1),), []
        command = commands.GroupAck(message.client, message.epoch, message.group, message.topic, ranges, offsets)
        coordinator.acking[message.client] = coordinator.acking.get(message.client, 0) + 1
        return [Persist(command, origin=origin)]

    def _open_coordinator(
        self, group: str, topic: str, client: str, epoch: int, stream: int
    ) -> tuple[GroupCoordinator, Consumer]:
        found = self._coordinator(self._machine.find_group(group, topic, client, epoch))
        consumer = found.consumers.get(client)
        if consumer is None or consumer.stream != stream or consumer.epoch != epoch:
            raise Fenced(
                f"The stream {stream} of {client!r} is not open: open it again and say what you have in flight."
            )
        return found, consumer

    def on_acked(self, now_ms: int, origin: AckReply) -> list[Effect]:
        """The journal has it."""
        coordinator = self._coordinators.get(origin.key)
        if coordinator is None:
            return [self._ack_done(None, origin)]
        answer = self._ack_done(coordinator.consumers.get(origin.message.client), origin)
        for ack in origin.acks:
            if ack.open:
                coordinator.lanes.confirm(ack)
        return [answer, *self._on_decided(now_ms, coordinator, origin), *self.pump(now_ms, coordinator)]

    def _ack_done(self, consumer: Consumer | None, origin: AckReply) -> Send:
        message = origin.message
        if consumer is None or (consumer.epoch, consumer.stream) != (message.epoch, message.stream):
            # The next stream will be told that it was this member who has acked it.
            gone = Fenced(f"The stream {message.stream} of {message.client!r} has ended: open it again.")
            return Send(origin.peer, messages.Failed(message.request, gone.number, str(gone)))
        consumer.turn += 1
        return Send(origin.peer, messages.GroupAckDone(message.request, origin.stale, consumer.turn))

    def _on_decided(self, now_ms: int, coordinator: GroupCoordinator, origin: AckReply) -> list[Effect]:
        """An ack has been written or refused: a stream that waited for that begins."""
        client = origin.message.client
        if any(ack.offsets for ack in origin.acks):
            coordinator.acking[client] -= 1
        if coordinator.acking.get(client) or client not in coordinator.postponed:
            return []
        peer, message = coordinator.postponed.pop(client)
        return self._work_later(now_ms, peer, message)

    def _work_later(self, now_ms: int, peer: Peer, message: messages.Work) -> list[Effect]:
        """Does what a member asked for a while ago."""
        try:
            self._machine.check_session(message.client, message.epoch)
            return self.on_work(now_ms, peer, message)
        except TidingsError as error:
            return [Send(peer, messages.Failed(message.request, error.number, str(error)))]

    def on_refused(self, now_ms: int, origin: AckReply | DeadLettering) -> list[Effect]:
        """The journal did not take it."""
        coordinator = self._coordinators.get(origin.key)
        if coordinator is None:
            return []
        acks = origin.acks if isinstance(origin, AckReply) else (origin.ack,)
        for ack in acks:
            if ack.open:
                coordinator.lanes.unack(ack)
        if isinstance(origin, AckReply):
            return self._on_decided(now_ms, coordinator, origin)
        return []

    def on_group_nack(self, now_ms: int, peer: Peer, message: messages.GroupNack) -> list[Effect]:
        coordinator, consumer = self._open_coordinator(
            message.group, message.topic, message.client, message.epoch, message.stream
        )
        if message.delay_ms < 0:
            raise InvalidRequest(f"A delay must be 0 or more, not {message.delay_ms} ms.")
        ranges = message.nack.ranges
        offsets = spread(ranges) if ranges else None
        taken = coordinator.lanes.nack(message.client, message.nack.batch, offsets, now_ms, message.delay_ms)
        consumer.turn += 1
        answer = Send(peer, messages.GroupNackDone(message.request, tuple(compress(taken)), consumer.turn))
        return [answer, *self._dead_letter(coordinator), *self.pump(now_ms, coordinator)]

    def on_extend(self, now_ms: int, peer: Peer, message: messages.Extend) -> list[Effect]:
        coordinator, _ = self._open_coordinator(
            message.group, message.topic, message.client, message.epoch, message.stream
        )
        coordinator.lanes.extend(message.client, message.batch, now_ms)
        return [Send(peer, messages.ExtendDone(message.request))]

    def on_group_pause(self, now_ms: int, peer: Peer, message: messages.GroupPause) -> list[Effect]:
        """A member ends its stream in good order."""
        coordinator, _ = self._open_coordinator(
            message.group, message.topic, message.client, message.epoch, message.stream
        )
        self._end(now_ms, coordinator, message.client, None if message.taken is None else spread(message.taken))
        answer = Send(peer, messages.GroupPauseDone(message.request))
        return [answer, *self._dead_letter(coordinator), *self.pump(now_ms, coordinator)]

    def _dead_letter(self, coordinator: GroupCoordinator) -> list[Effect]:
        """Messages that failed too often go to the dead-letter topic, each with its ack in one record."""
        to_topic = self._machine.settings.dead_letter
        ack = coordinator.lanes.exhausted() if to_topic is not None else None
        if ack is None or to_topic is None:
            return []
        group = coordinator.group
        to_topic = self._machine.ownership.beside(group.topic, to_topic)  # Both change in one step.
        topic = self._machine.topics[group.topic]
        effects: list[Effect] = []
        for index, offset in enumerate(ack.offsets):
            entry = topic.find(offset)
            place = topic.place(entry)
            row = offset - topic.offsets[entry]
            single = Place(place.address, place.size_bytes, (place.kept[row] if place.kept else row,))
            alone = PendingAck(None, 0, ack.attempt, [offset], [ack.lanes[index]], [])

            def make(size_bytes: int, offset: int = offset, name: str = to_topic) -> commands.DeadLetter:
                return commands.DeadLetter(group.name, group.topic, offset, name, size_bytes)

            effects.append(PersistCopy(single, make, DeadLettering(group.key, alone)))
        return effects

    def on_dead_lettered(self, now_ms: int, origin: DeadLettering) -> list[Effect]:
        coordinator = self._coordinators.get(origin.key)
        if coordinator is None:
            return []
        coordinator.lanes.confirm(origin.ack)
        return self.pump(now_ms, coordinator)

    # Time.

    def on_tick(self, now_ms: int, heard_at_ms: dict[str, int]) -> list[Effect]:
        """Members whose lease has run out are taken for gone; what waits for an answer is sent again."""
        if self._grace_until_ms is None:
            self._grace_until_ms = now_ms + self._machine.settings.lease_ms
        effects: list[Effect] = []
        for key, coordinator in list(self._coordinators.items()):
            if key not in self._machine.groups:
                del self._coordinators[key]
                continue
            if now_ms >= self._grace_until_ms:
                coordinator.awaited.clear()
            if len(coordinator.begun) > len(coordinator.group.members):
                self._forget_begun(coordinator)
            for client in list(coordinator.consumers):
                if now_ms - heard_at_ms.setdefault(client, now_ms) > self._machine.settings.lease_ms:
                    del coordinator.consumers[client]
                    coordinator.lanes.leave(client, now_ms)
            coordinator.lanes.tick(now_ms)
            effects += self._dead_letter(coordinator)
            effects += self.pump(now_ms, coordinator)
        return effects

    def _forget_begun(self, coordinator: GroupCoordinator) -> None:
        """A stream of a session that is over cannot begin again, whatever arrives late."""
        clients = self._machine.clients
        coordinator.begun = {
            name: (epoch, stream)
            for name, (epoch, stream) in coordinator.begun.items()
            if (client := clients.get(name)) is not None and client.epoch == epoch
        }

    # Questions.

    def streams_of(self, client: str, peer: Peer) -> list[int]:
        """The numbers of the streams that this client has open here."""
        return [
            consumer.stream
            for coordinator in self._coordinators.values()
            if (consumer := coordinator.consumers.get(client)) is not None
            and consumer.peer == peer
            and self._damage_before(coordinator) is None  # Told that it is missing, it opens again, and hears why.
        ]

    def describe(self, topic: str | None) -> tuple[GroupInfo, ...]:
        """What each group looks like from outside."""
        found = []
        for group in self._machine.groups.values():
            if (topic is not None and group.topic != topic) or not self._machine.owns(group.topic):
                continue
            coordinator = self._coordinator(group)
            state = coordinator.lanes.describe()
            working = {each.member: each for each in state.members}
            members = tuple(
                MemberInfo(name, each.lanes, each.in_flight, each.waiting, each.active, each.slow, *each.delays)
                if (each := working.get(name)) is not None
                else MemberInfo(name, 0, 0, 0, False, False)
                for name in group.members
            )
            lag = self._machine.topics[group.topic].next_offset - group.progress.count
            found.append(GroupInfo(group.name, group.topic, state.lanes, lag, state.moved_lanes, members))
        return tuple(found)


def in_order(parts: Sequence[Sequence[int]]) -> list[int]:
    """All offsets of parts that rise, rising. Mostly each part is behind the one before.

    >>> in_order([(1, 4), (), (5, 6)]), in_order([(5, 6), (1, 4)])
    ([1, 4, 5, 6], [1, 4, 5, 6])
    """
    together = list(chain.from_iterable(parts))
    ends = [(part[0], part[-1]) for part in parts if part]
    return together if all(one[1] < other[0] for one, other in pairwise(ends)) else sorted(together)


def spread(ranges: Sequence[tuple[int, int]]) -> list[int]:
    """The offsets in these ranges of a request; more than any member can have are refused."""
    if sum(end - start for start, end in ranges) > SPREAD_MAX or any(start < 0 or end < start for start, end in ranges):
        raise InvalidRequest(f"A member may name at most {SPREAD_MAX} messages at a time, in rising ranges.")
    return [offset for start, end in ranges for offset in range(start, end)]
