"""Groups at work: members come and go, and what they have done comes back.

What a member settles is journaled before it is confirmed; until then nobody else gets it. How work goes out is in
`workshops`.

After a restart the lanes are empty and the members are not. Each opens its stream again and says what it still has in
hand; until all have done so, or a lease has passed, nothing new is given out, so that no lane gets two workers.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, pairwise

from tidings.errors import Fenced, InvalidRequest, TidingsError
from tidings.message import Columns, GroupInfo, MemberInfo
from tidings.protocols.broker import commands, messages
from tidings.protocols.broker.groups import RESTING, Group
from tidings.protocols.broker.machine import Machine
from tidings.protocols.broker.members import LaneKey, Settlement, Stale
from tidings.protocols.broker.progress import compress
from tidings.protocols.broker.topics import Place, Topic
from tidings.protocols.broker.withheld import Withheld
from tidings.protocols.broker.workshops import Burying, Claim, Next, Settling, Station, Workshop, Workshops, lane_keys
from tidings.protocols.effects import Effect, Examine, Peer, Persist, PersistCopy, Send

SPREAD_MAX = 100_000
"""Messages that one request of a member may speak of."""


class Sharing(Workshops):
    """All groups at work: members come and go, work comes back, time passes."""

    def __init__(self, machine: Machine, withheld: Withheld) -> None:
        super().__init__(machine, withheld)
        self._grace_until_ms: int | None = None

    def recovered(self) -> None:
        """After a restart: every member that the journal knows may have something in hand.

        What none of them claims may have been with somebody before: how often it was sent is not journaled.
        """
        for group in self._machine.groups.values():
            workshop = self._workshop(group)
            workshop.awaited = {client: None for client, epoch in group.members.items() if epoch != RESTING}
            workshop.lanes.doubt(self._given_until(group))
        self._grace_until_ms = None

    def _given_until(self, group: Group) -> int:
        """No offset from here on can have been given out: that happens in order, and so many are unsettled at most."""
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
        workshop = self._workshop(group)
        station = workshop.stations.get(message.client)
        name = (message.epoch, message.stream)
        if station is None or (station.epoch, station.stream) != name:
            if name <= workshop.begun.get(message.client, (0, 0)) and (station is not None or message.begins):
                return []  # A late one, of a stream that has been replaced or has ended.
            if not message.begins:
                raise Fenced(f"The stream {message.stream} of {message.client!r} is not open: open it again.")
            return self._on_beginning(now_ms, workshop, peer, message)
        if station.peer != peer:  # What was under way on the old connection is lost, and the member does not know it.
            raise Fenced(f"The stream {message.stream} of {message.client!r} was on another connection: open it again.")
        workshop.lanes.activate(message.client)
        if message.taken:
            workshop.lanes.take(message.client, spread(message.taken))
        if message.request >= station.granted:
            station.granted = message.request
            workshop.lanes.grant(message.client, self._room(message))
        effects = self.pump(now_ms, workshop)
        error = self._damage_before(workshop)
        if error is not None:
            raise error
        if message.request:
            effects.append(Send(peer, messages.Working(message.request, message.stream, turn=station.turn)))
        return effects

    def _room(self, message: messages.Work) -> int:
        return max(0, min(message.room, self._machine.settings.room_messages_max))

    def _on_beginning(self, now_ms: int, workshop: Workshop, peer: Peer, message: messages.Work) -> list[Effect]:
        """A stream begins as soon as it is known what the member has in hand, and which lanes that is of."""
        waiting = workshop.postponed.get(message.client)
        if waiting is not None and (waiting[1].epoch, waiting[1].stream) > (message.epoch, message.stream):
            return []
        error = self._damage_before(workshop)
        if error is not None and not message.held:
            raise error
        if workshop.settling.get(message.client):  # What became of it has to be known before the answer.
            workshop.postponed[message.client] = (peer, message)
            return []
        topic = self._machine.topics[workshop.group.topic]
        ranges = [each for held in message.held for each in held.ranges]
        spread(ranges)  # Refuses what is too much to be weighed.
        entries = self._entries(topic, ranges)
        if not entries:
            return self._begin(now_ms, workshop, peer, message, {})
        workshop.claiming[message.client] = None
        places = tuple(topic.place(entry) for entry in entries)
        firsts = tuple(topic.offsets[entry] for entry in entries)
        return [Examine(places, Claim(workshop.group.key, peer, message, firsts))]

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
        workshop = self._workshop(group)
        workshop.claiming.pop(claim.message.client, None)
        topic = self._machine.topics[group.topic]
        keys: dict[int, LaneKey | None] = {}
        for first, columns in zip(claim.entries, batches, strict=True):
            kept = topic.thinned.get(first)
            rows = kept if kept is not None else range(len(columns.values))
            found = lane_keys(group, columns, rows)
            keys.update(zip(range(first, first + len(found)), found, strict=True))
        return self._begin(now_ms, workshop, claim.peer, claim.message, keys)

    def _begin(
        self,
        now_ms: int,
        workshop: Workshop,
        peer: Peer,
        message: messages.Work,
        keys: dict[int, LaneKey | None],
    ) -> list[Effect]:
        """Begins a stream: whatever the member had is taken back and given to it again as far as it has it in hand.

        All in one step, so that nobody, the member itself included, is given any of it in between. `keys` has the
        lane of every message in hand.
        """
        client, progress, before = message.client, workshop.group.progress, workshop.stations.get(message.client)
        handed = dict.fromkeys(spread(message.taken or ()))
        taken: dict[int, int] | None = None
        is_same = before is not None and (before.epoch == message.epoch or bool(message.held))
        if message.taken is not None and is_same:
            taken = {each: held.attempt for held in message.held for each in spread(held.ranges) if each in handed}
        workshop.lanes.join(client, now_ms, taken, claims=bool(message.held))
        workshop.stations[client] = Station(peer, message)
        workshop.begun[client] = (message.epoch, message.stream)
        kept: list[messages.Kept] = []
        for held in message.held:
            claimed = [
                offset
                for offset in spread(held.ranges)
                if offset in keys
                and not progress.done(offset)
                # What it has not handed out is good only if nobody else can have worked on it meanwhile.
                and (message.taken is None or offset in handed or workshop.lanes.is_first(offset, held.attempt))
            ]
            parcel = workshop.lanes.claim(client, claimed, [keys[offset] for offset in claimed], held.attempt, now_ms)
            if parcel is not None:
                kept.append(messages.Kept(parcel.number, parcel.attempt, tuple(compress(parcel.offsets))))
        workshop.lanes.take(client, list(handed))
        workshop.lanes.grant(client, self._room(message))
        workshop.awaited.pop(client, None)
        settled = self._settled_before(workshop.group, message)
        return [
            Send(peer, messages.Working(message.request, message.stream, tuple(kept), settled)),
            *self.pump(now_ms, workshop),
        ]

    def _settled_before(self, group: Group, message: messages.Work) -> tuple[tuple[int, int], ...]:
        """What of the messages in hand this very member has settled, without hearing of it."""
        ranges, offsets = group.last_settled.get(message.client, ((), []))
        last = dict.fromkeys([*spread(ranges), *offsets])
        return tuple(compress([offset for held in message.held for offset in spread(held.ranges) if offset in last]))

    def on_left(self, now_ms: int, group: Group, client: str) -> list[Effect]:
        """A member is no longer one: the others go on with its work."""
        workshop = self._workshop(group)
        self._end(now_ms, workshop, client)
        return self.pump(now_ms, workshop)

    def _end(self, now_ms: int, workshop: Workshop, client: str, taken: Sequence[int] | None = None) -> None:
        """A member has gone in good order: it has nothing in hand any more."""
        workshop.awaited.pop(client, None)
        if workshop.stations.pop(client, None) is not None:
            workshop.lanes.leave(client, now_ms, taken)

    def on_bye(self, now_ms: int, client: str) -> list[Effect]:
        """A client ends its session in good order: nobody has to wait for its lease to run out."""
        effects: list[Effect] = []
        for workshop in list(self._workshops.values()):
            self._end(now_ms, workshop, client)
            effects += self.pump(now_ms, workshop)
        return effects

    def on_examined(self, now_ms: int, batches: tuple[Columns, ...], origin: Next | Claim) -> list[Effect]:
        """Stored batches have been read, for an offer or for a claim."""
        if isinstance(origin, Claim):
            return self._on_claim(now_ms, origin, batches)
        return self._on_next(now_ms, origin, batches)

    # Work comes back.

    def on_settle(self, now_ms: int, peer: Peer, message: messages.Settle) -> list[Effect]:
        workshop, _ = self._open_workshop(message.group, message.topic, message.client, message.epoch, message.stream)
        workshop.lanes.activate(message.client)
        settlements: list[Settlement] = []
        stale: list[int] = []
        for each in message.settlements:
            offsets = spread(each.ranges) if each.ranges else None
            try:
                settlement = workshop.lanes.settle(message.client, each.parcel, offsets, now_ms)
            except Stale:
                stale.append(each.parcel)
                continue
            if settlement.refused:
                stale.append(each.parcel)
            settlements.append(settlement)
        offsets = in_order([settlement.offsets for settlement in settlements])
        origin = Settling(workshop.group.key, peer, message, tuple(settlements), tuple(dict.fromkeys(stale)))
        if not offsets:
            return self.on_settled(now_ms, origin)
        ranges: tuple[tuple[int, int], ...] = ()
        if offsets[-1] - offsets[0] == len(offsets) - 1:
            ranges, offsets = ((offsets[0], offsets[-1] + 1),), []
        command = commands.Settle(message.client, message.epoch, message.group, message.topic, ranges, offsets)
        workshop.settling[message.client] = workshop.settling.get(message.client, 0) + 1
        return [Persist(command, origin=origin)]

    def _open_workshop(self, group: str, topic: str, client: str, epoch: int, stream: int) -> tuple[Workshop, Station]:
        found = self._workshop(self._machine.find_group(group, topic, client, epoch))
        station = found.stations.get(client)
        if station is None or station.stream != stream or station.epoch != epoch:
            raise Fenced(f"The stream {stream} of {client!r} is not open: open it again and say what you have in hand.")
        return found, station

    def on_settled(self, now_ms: int, origin: Settling) -> list[Effect]:
        """The journal has it."""
        workshop = self._workshops.get(origin.key)
        if workshop is None:
            return [self._settle_done(None, origin)]
        answer = self._settle_done(workshop.stations.get(origin.message.client), origin)
        for settlement in origin.settlements:
            if settlement.open:
                workshop.lanes.confirm(settlement)
        return [answer, *self._on_decided(now_ms, workshop, origin), *self.pump(now_ms, workshop)]

    def _settle_done(self, station: Station | None, origin: Settling) -> Send:
        message = origin.message
        if station is None or (station.epoch, station.stream) != (message.epoch, message.stream):
            # The next stream will be told that it was this member who has settled it.
            gone = Fenced(f"The stream {message.stream} of {message.client!r} has ended meanwhile: open it again.")
            return Send(origin.peer, messages.Failed(message.request, gone.number, str(gone)))
        station.turn += 1
        return Send(origin.peer, messages.SettleDone(message.request, origin.stale, station.turn))

    def _on_decided(self, now_ms: int, workshop: Workshop, origin: Settling) -> list[Effect]:
        """A settlement has been written or refused: a stream that waited for that begins."""
        client = origin.message.client
        if any(settlement.offsets for settlement in origin.settlements):
            workshop.settling[client] -= 1
        if workshop.settling.get(client) or client not in workshop.postponed:
            return []
        peer, message = workshop.postponed.pop(client)
        try:
            self._machine.check_session(message.client, message.epoch)
            return self.on_work(now_ms, peer, message)
        except TidingsError as error:
            return [Send(peer, messages.Failed(message.request, error.number, str(error)))]

    def on_refused(self, now_ms: int, origin: Settling | Burying) -> list[Effect]:
        """The journal did not take it."""
        workshop = self._workshops.get(origin.key)
        if workshop is None:
            return []
        settlements = origin.settlements if isinstance(origin, Settling) else (origin.settlement,)
        for settlement in settlements:
            if settlement.open:
                workshop.lanes.unsettle(settlement)
        if isinstance(origin, Settling):
            return self._on_decided(now_ms, workshop, origin)
        return []

    def on_release(self, now_ms: int, peer: Peer, message: messages.Release) -> list[Effect]:
        workshop, station = self._open_workshop(
            message.group, message.topic, message.client, message.epoch, message.stream
        )
        if message.delay_ms < 0:
            raise InvalidRequest(f"A delay is 0 or more, and this is {message.delay_ms} ms.")
        ranges = message.settlement.ranges
        offsets = spread(ranges) if ranges else None
        taken = workshop.lanes.nack(message.client, message.settlement.parcel, offsets, now_ms, message.delay_ms)
        station.turn += 1
        answer = Send(peer, messages.ReleaseDone(message.request, tuple(compress(taken)), station.turn))
        return [answer, *self._bury(workshop), *self.pump(now_ms, workshop)]

    def on_extend(self, now_ms: int, peer: Peer, message: messages.Extend) -> list[Effect]:
        workshop, _ = self._open_workshop(message.group, message.topic, message.client, message.epoch, message.stream)
        workshop.lanes.extend(message.client, message.parcel, now_ms)
        return [Send(peer, messages.ExtendDone(message.request))]

    def on_rest(self, now_ms: int, peer: Peer, message: messages.Rest) -> list[Effect]:
        """A member ends its stream in good order."""
        workshop, _ = self._open_workshop(message.group, message.topic, message.client, message.epoch, message.stream)
        self._end(now_ms, workshop, message.client, None if message.taken is None else spread(message.taken))
        answer = Send(peer, messages.RestDone(message.request))
        return [answer, *self._bury(workshop), *self.pump(now_ms, workshop)]

    def _bury(self, workshop: Workshop) -> list[Effect]:
        """Messages that failed too often go to the dead-letter topic, each with its settlement in one record."""
        to_topic = self._machine.settings.dead_letter
        settlement = workshop.lanes.exhausted() if to_topic is not None else None
        if settlement is None or to_topic is None:
            return []
        group = workshop.group
        to_topic = self._machine.ownership.beside(group.topic, to_topic)  # Both change in one step.
        topic = self._machine.topics[group.topic]
        effects: list[Effect] = []
        for index, offset in enumerate(settlement.offsets):
            entry = topic.find(offset)
            place = topic.place(entry)
            row = offset - topic.offsets[entry]
            single = Place(place.address, place.size_bytes, (place.kept[row] if place.kept else row,))
            alone = Settlement(None, 0, settlement.attempt, [offset], [settlement.lanes[index]], [])

            def make(size_bytes: int, offset: int = offset, name: str = to_topic) -> commands.DeadLetter:
                return commands.DeadLetter(group.name, group.topic, offset, name, size_bytes)

            effects.append(PersistCopy(single, make, Burying(group.key, alone)))
        return effects

    def on_buried(self, now_ms: int, origin: Burying) -> list[Effect]:
        workshop = self._workshops.get(origin.key)
        if workshop is None:
            return []
        workshop.lanes.confirm(origin.settlement)
        return self.pump(now_ms, workshop)

    # Time.

    def on_tick(self, now_ms: int, heard_at_ms: dict[str, int]) -> list[Effect]:
        """Members whose lease has run out are taken for gone; what waits for an answer is sent again."""
        if self._grace_until_ms is None:
            self._grace_until_ms = now_ms + self._machine.settings.lease_ms
        effects: list[Effect] = []
        for key, workshop in list(self._workshops.items()):
            if key not in self._machine.groups:
                del self._workshops[key]
                continue
            if now_ms >= self._grace_until_ms:
                workshop.awaited.clear()
            if len(workshop.begun) > len(workshop.group.members):
                self._forget_begun(workshop)
            for client in list(workshop.stations):
                if now_ms - heard_at_ms.setdefault(client, now_ms) > self._machine.settings.lease_ms:
                    del workshop.stations[client]
                    workshop.lanes.leave(client, now_ms)
            workshop.lanes.tick(now_ms)
            effects += self._bury(workshop)
            effects += self.pump(now_ms, workshop)
        return effects

    def _forget_begun(self, workshop: Workshop) -> None:
        """A stream of a session that is over cannot begin again, whatever arrives late."""
        clients = self._machine.clients
        workshop.begun = {
            name: (epoch, stream)
            for name, (epoch, stream) in workshop.begun.items()
            if (client := clients.get(name)) is not None and client.epoch == epoch
        }

    # Questions.

    def streams_of(self, client: str, peer: Peer) -> list[int]:
        """The numbers of the streams that this client has open here."""
        return [
            station.stream
            for workshop in self._workshops.values()
            if (station := workshop.stations.get(client)) is not None
            and station.peer == peer
            and self._damage_before(workshop) is None  # Told that it is missing, it opens again, and hears why.
        ]

    def describe(self, topic: str | None) -> tuple[GroupInfo, ...]:
        """What each group looks like from outside."""
        found = []
        for group in self._machine.groups.values():
            if (topic is not None and group.topic != topic) or not self._machine.owns(group.topic):
                continue
            workshop = self._workshop(group)
            state = workshop.lanes.describe()
            working = {each.member: each for each in state.members}
            members = tuple(
                MemberInfo(name, each.lanes, each.in_flight, each.waiting, each.active, each.slow)
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
        raise InvalidRequest(f"A member speaks of at most {SPREAD_MAX} messages at a time, in ranges that rise.")
    return [offset for start, end in ranges for offset in range(start, end)]
