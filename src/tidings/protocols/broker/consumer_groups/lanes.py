"""Who of a group's members works on what: offers come in, batches go out, acks come back.

A group shares the messages of one topic. Messages of one key, a lane, are worked on in order and by one member
at a time; messages without a key go wherever there is least to do. The caller

1. asks `credit` and offers the next messages of the topic (`offer`), those left out that are already done;
2. sends what `pick` returns;
3. on a member's answer calls `ack`, writes the accepted offsets to the journal, and then says `confirm`, or
   `unack` if the journal refused them.

Nothing here is journaled, and nothing here knows the time or draws lots. After a restart a new `Lanes` is
offered everything that the group's `Progress` does not have; members may first `claim` what they still hold.

What holds at all times, whatever members do:
- a message is in flight with one member at most, and once its ack is confirmed it is never sent again;
- a message is sent only when every earlier one of its lane is acked, or is in flight with the same member;
- a lane is acked for good before it changes hands: until the journal has answered it stays where it is;
- nothing is dropped: what a member loses goes back to the front of its lanes.

What may have been worked on before, a member is told: the attempt of a batch counts how often its messages were handed
to an application, as far as members say so. What a member that says nothing any more had for the first time counts as
handed out once, but never against its tries. What a member has lost in the meantime it cannot ack: that is `Stale`,
or is named in `PendingAck.refused`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tidings.errors import InvalidRequest, LimitReached
from tidings.protocols.broker.consumer_groups.claims import Claims
from tidings.protocols.broker.consumer_groups.distribution import Distribution
from tidings.protocols.broker.consumer_groups.key_handoff import KeyHandoff
from tidings.protocols.broker.consumer_groups.members import (
    ENDLESS,
    Flight,
    GroupState,
    Lane,
    LaneSettings,
    Member,
    MemberInactive,
    MemberState,
    Notice,
    OrderingKey,
    PendingAck,
    PickedBatch,
    Stale,
)
from tidings.protocols.broker.consumer_groups.picking import Picking

_COMPACT_MIN = 4_096
_SPARE_MAX = 65_536


class Lanes:
    """The work of one group on one topic.

    >>> lanes = Lanes(LaneSettings())
    >>> lanes.join("ada", 0)
    >>> lanes.grant("ada", 10)
    >>> lanes.offer(0, [b"red", b"blue", b"red"])
    >>> [batch] = lanes.pick(0)
    >>> batch.number, batch.member, list(batch.offsets), batch.attempt
    (1, 'ada', [0, 1, 2], 1)
    >>> done = lanes.ack("ada", 1, None, 5)
    >>> list(done.offsets)
    [0, 1, 2]
    >>> lanes.confirm(done)
    """

    def __init__(self, settings: LaneSettings, first_number: int = 1) -> None:
        """Batches are numbered from `first_number`: let it be above any number of an earlier life."""
        self.settings = settings
        self._handoff = KeyHandoff(settings)
        self._pool = Distribution(self._handoff)
        self._claims = Claims(self._handoff, self._pool)
        self._unacked = 0
        self._picking = Picking(self._handoff, settings, first_number)
        self._finished: dict[int, tuple[str, list[int]]] = {}
        """Batches of which nothing is left: whose they were, and what of them was refused."""

    # Members.

    def join(self, member: str, now_ms: int, taken: Mapping[int, int] | None = None, *, claims: bool = False) -> None:
        """A new member, without room yet. One that is there already begins again: it has nothing in flight.

        `taken` is what it has handed out and at which attempt, if it is still the same process; None if it cannot say.
        One that `claims` is at work on messages which it had before.
        """
        if member in self._handoff.members:
            self._part(member, taken, final=not claims)
        self._handoff.members[member] = newcomer = Member(member)
        newcomer.acked_ms = now_ms

    def leave(self, member: str, now_ms: int, taken: Sequence[int] | None = None) -> None:
        """A member goes, in good order or not: what it has not acked goes back to the front of its lanes.

        Only what it has handed out counts as an attempt; None if it cannot say what that is.
        """
        self._part(member, None if taken is None else dict.fromkeys(taken, ENDLESS), final=True)

    def _part(self, member: str, taken: Mapping[int, int] | None, *, final: bool) -> None:
        leaving = self._member(member)
        leaving.active = False
        self._handoff.disown(leaving, taken, final=final)
        del self._handoff.members[member]

    def take(self, member: str, offsets: Sequence[int]) -> None:
        """A member hands these out now. It need not say so of what it has for the first time."""
        for flight in self._member(member).flights.values():
            if flight.attempt > 1:
                left = flight.unacked
                self._handoff.taken.update(dict.fromkeys(offset for offset in offsets if offset in left))

    def members(self) -> list[str]:
        return list(self._handoff.members)

    def __contains__(self, member: str) -> bool:
        return member in self._handoff.members

    def is_active(self, member: str) -> bool:
        return self._member(member).active

    def activate(self, member: str) -> None:
        """An inactive member has shown life and gets work again."""
        found = self._member(member)
        if not found.active:
            found.active = True
            found.newcomer = True
            found.slow = False
            found.slow_acks = []

    def grant(self, member: str, room: int) -> None:
        """The member may have so many messages in flight, in all. Without any, its waiting lanes go to others."""
        found = self._member(member)
        found.room = room
        if not room and found.waiting:
            self._handoff.give_away(found)

    def expect_redelivery(self, until: int) -> None:
        """Messages below this offset may have been handed out in an earlier life: they go out as repeated."""
        self._handoff.suspected_until = until

    def is_first(self, offset: int, attempt: int) -> bool:
        """Whether nobody can have worked on a message at this attempt, or a later one, that is not in flight."""
        return offset >= self._handoff.suspected_until and self._handoff.attempts.get(offset, 0) < attempt

    # Messages in.

    def credit(self) -> int:
        """How many more messages can be used now: 0 when no active member has room or the window is full."""
        free = 0
        for member in self._handoff.members.values():
            if member.active:
                room = member.free
                if room > 0:
                    free += room
        if free:
            free -= self._pool.pooled
            for lane in self._handoff.line:
                assert lane.hold is not None
                free -= len(lane.hold.queue)
        return max(0, min(free, self.settings.window_messages_max - self._unacked))

    def offer(self, first_offset: int, keys: Sequence[OrderingKey | None]) -> None:
        """The next messages of the topic, none of which is done."""
        self.offer_some(range(first_offset, first_offset + len(keys)), keys)

    def offer_some(self, offsets: Sequence[int], keys: Sequence[OrderingKey | None]) -> None:
        """The next messages of the topic without those that are done; offsets rise."""
        if not offsets:
            return
        if not self._claims.may_offer(offsets[0]) or len(offsets) != len(keys):
            raise InvalidRequest(f"Offset {offsets[0]} was offered already, or a key is missing: offer what is next.")
        if self._unacked + len(offsets) > self.settings.window_messages_max:
            raise LimitReached(
                f"{self._unacked} messages are unacked and {len(offsets)} more were offered, above "
                f"window_messages_max ({self.settings.window_messages_max}): offer what `credit` asks for."
            )
        offsets, keys = self._claims.offer(offsets, keys)
        self._unacked += len(offsets)
        self._pool.add(offsets, keys)

    def claim(
        self, member: str, offsets: Sequence[int], keys: Sequence[OrderingKey | None], attempt: int, now_ms: int
    ) -> PickedBatch | None:
        """What of these messages, none of them done, counts as in flight with this member, as a new batch.

        A message in flight with somebody else is won by the higher attempt. A message is not given if another
        one before it in its lane is neither acked nor in this member's hands. What is not in the batch,
        the member must drop.
        """
        claimant = self._member(member)
        if not claimant.active or len(offsets) != len(keys):
            raise InvalidRequest(f"{member!r} must be active and give a key, or None, with each offset to claim it.")
        before = self._claims.count
        taken = self._claims.claim(claimant, offsets, keys, attempt)
        self._unacked += self._claims.count - before
        return self._picking.send(claimant, list(taken), list(taken.values()), attempt, now_ms) if taken else None

    # Batches out.

    def pick(self, now_ms: int) -> list[PickedBatch]:
        """What to send now. A batch whose number went out before replaces that one."""
        self._pool.distribute(now_ms)
        for member in self._handoff.members.values():
            if member.newcomer and member.room:
                member.newcomer = False
                if member.active and member.free > 0:
                    self._handoff.even_out(member, waiting_only=False)
        batches: list[PickedBatch] = []
        for member in self._handoff.members.values():
            if member.resend:
                for number in member.resend:
                    flight = member.flights.get(number)
                    if flight is not None:
                        batches.append(PickedBatch(number, member.name, flight.unacked_offsets, flight.attempt))
                member.resend = {}
            if member.active:
                room = member.room - member.in_flight
                if room > 0 and member.repeats:
                    room = self._picking.pick_repeats(member, room, now_ms, batches)
                if room > 0 and member.offsets:
                    self._picking.pick_new(member, room, now_ms, batches)
        return batches

    # Answers.

    def ack(self, member: str, number: int, offsets: Sequence[int] | None, now_ms: int) -> PendingAck:
        """A member has finished messages of a batch, or all that are left of it.

        They leave its room at once, and nobody else gets them; their lanes stay with it until `confirm`. A
        ack repeated, because its answer was lost, comes back with nothing accepted and nothing refused.
        """
        found, flight = self._flight(member, number)
        if flight is None:
            lost = self._finished[number][1]
            if offsets is not None:
                lost = [offset for offset in offsets if offset in lost]
            return PendingAck(found, number, 1, [], [], lost)
        took_ms = now_ms - found.last_sign_ms(flight)
        if took_ms > self.settings.delayed_ack_ms:
            found.delayed_acks += 1
        found.longest_ms = max(found.longest_ms, took_ms)
        if took_ms > self.settings.slow_ack_ms:
            self._handoff.on_slow(found, now_ms)
        found.acked_number = number
        found.acked_ms = now_ms
        flight.deliveries = 1
        if offsets is None and flight.left is None:
            acked, lanes = flight.offsets, flight.lanes
        else:
            left = flight.unacked
            acked = list(left) if offsets is None else [offset for offset in dict.fromkeys(offsets) if offset in left]
            lanes = [left.pop(offset) for offset in acked]
        refused = flight.refused
        if refused and offsets is not None:
            refused = [offset for offset in offsets if offset in refused]
        if not flight.left:
            self._finish(found, flight)
        found.in_flight -= len(acked)
        ack = PendingAck(found, number, flight.attempt, acked, lanes, refused)
        found.acks[ack] = None
        return ack

    def _member(self, name: str) -> Member:
        member = self._handoff.members.get(name)
        if member is None:
            raise Stale(f"{name!r} is not, or no longer, a member of this group: join again.")
        return member

    def _flight(self, name: str, number: int) -> tuple[Member, Flight | None]:
        """A member's batch; None when nothing is left of it."""
        member = self._handoff.members.get(name)
        flight = member.flights.get(number) if member is not None else None
        if member is None or (flight is None and self._finished.get(number, ("",))[0] != name):
            raise Stale(f"Batch {number} of {name!r} was given to another member: drop the result.")
        return member, flight

    def _finish(self, member: Member, flight: Flight) -> None:
        del member.flights[flight.number]
        member.resend.pop(flight.number, None)
        finished = self._finished
        finished[flight.number] = (member.name, flight.refused)
        if len(finished) > self.settings.finished_max:
            del finished[next(iter(finished))]

    def confirm(self, ack: PendingAck) -> None:
        """The journal has it: these messages are history, and lanes without others are free."""
        self._close(ack)
        weight = self._handoff.weight
        lanes = self._handoff.lanes
        spare = self._pool.spare
        self._unacked -= len(ack.offsets)
        for lane in ack.lanes:
            count = lane.count - 1
            lane.count = count
            if not count:
                if lane.hold is None:
                    del lanes[lane.key]  # type: ignore[arg-type]
                    lane.member.burden -= weight  # type: ignore[union-attr]
                    spare.append(lane)
                else:
                    self._handoff.release(lane)
        del spare[_SPARE_MAX:]
        for known in (self._handoff.attempts, self._handoff.suspected, self._handoff.taken):
            if known:
                for offset in ack.offsets:
                    known.pop(offset, None)

    def _close(self, ack: PendingAck) -> None:
        assert ack.open, "an ack ends once"
        ack.open = False
        if ack.holder is not None:
            ack.holder.acks.pop(ack, None)

    def unack(self, ack: PendingAck) -> list[int]:
        """The journal refused it. Returns which messages are in flight with their member again, if it is still there.

        All of them, but for those that stand behind others in their lane that were taken back meanwhile.
        """
        self._close(ack)
        if not ack.offsets:
            return []
        messages = dict(sorted(zip(ack.offsets, ack.lanes, strict=True), key=lambda pair: pair[0]))
        holder = ack.holder
        if holder is None:
            self._handoff.spent.update(messages)
            return []
        holder.in_flight += len(messages)
        touched: dict[Lane, None] = {}
        if not holder.active or self._handoff.members.get(holder.name) is not holder:
            if ack.number in self._finished:  # It was taken for acked: it counts as taken back instead.
                name, refused = self._finished[ack.number]
                self._finished[ack.number] = (name, [*refused, *messages])
            self._handoff.take_back(holder, ack.attempt, messages, touched, failed=True)
            self._handoff.sort_holds(touched)
            return []
        behind = {
            offset: lane
            for offset, lane in messages.items()
            if lane.hold is not None and lane.hold.queue and lane.hold.queue[0] < offset
        }
        if behind:
            messages = {offset: lane for offset, lane in messages.items() if offset not in behind}
            self._handoff.take_back(holder, ack.attempt, behind, touched, failed=False)
            self._handoff.sort_holds(touched)
        if messages:
            flight = holder.flights.get(ack.number)
            if flight is None:
                self._finished.pop(ack.number, None)
                flight = Flight(ack.number, ack.attempt, [], [], holder.acked_ms)
                flight.refused = ack.refused
                holder.flights[ack.number] = flight
            flight.left = dict(sorted((flight.unacked | messages).items(), key=lambda pair: pair[0]))
        return list(messages)

    def nack(self, member: str, number: int, offsets: Sequence[int] | None, now_ms: int, delay_ms: int) -> list[int]:
        """A member could not do these: they go back to the front of their lanes, which wait out the delay.

        So that the order holds, what the member has of the same lanes behind them is taken back as well; that
        does not count as an attempt. Returns everything taken back, rising: the member must drop it.
        """
        found, flight = self._flight(member, number)
        if flight is None:
            return []
        found.acked_number = number
        found.acked_ms = now_ms
        flight.deliveries = 1
        left = flight.unacked
        wanted = list(left) if offsets is None else [offset for offset in dict.fromkeys(offsets) if offset in left]
        messages = {offset: left.pop(offset) for offset in wanted}
        firsts: dict[Lane, int] = {}
        for offset, lane in messages.items():
            if lane.key is not None:
                firsts[lane] = min(offset, firsts.get(lane, offset))
        flight.refused += wanted
        touched: dict[Lane, None] = {}
        self._handoff.take_back(found, flight.attempt, messages, touched, failed=True)
        taken = wanted
        if any(lane.count for lane in firsts):
            taken = wanted + self._take_followers(found, firsts, touched)
            self._handoff.sweep(found)
        if not left and number in found.flights:
            self._finish(found, flight)
        if delay_ms > 0:
            self._pool.delay(touched, now_ms + delay_ms)
        self._handoff.sort_holds(touched)
        return sorted(taken)

    def _take_followers(self, member: Member, firsts: dict[Lane, int], touched: dict[Lane, None]) -> list[int]:
        """Takes from a member what it has in flight of these lanes behind these offsets."""
        taken: list[int] = []
        for flight in list(member.flights.values()):
            followers = {
                offset: lane for offset, lane in flight.unacked.items() if lane in firsts and offset > firsts[lane]
            }
            if followers:
                for offset in followers:
                    del flight.unacked[offset]
                flight.refused += followers
                self._handoff.take_back(member, flight.attempt, followers, touched, failed=False)
                taken += followers
                if not flight.unacked:
                    self._finish(member, flight)
        return taken

    def extend(self, member: str, number: int, now_ms: int) -> None:
        """A member is still at it: the batch's time begins again."""
        _, flight = self._flight(member, number)
        if flight is not None:
            flight.since_ms = now_ms
            flight.deliveries = 1

    # Messages that failed too often.

    def attempts(self, offset: int) -> int:
        """The attempt of an unacked message in flight; of any other, how many it has behind it."""
        for member in self._handoff.members.values():
            for flight in member.flights.values():
                if offset in flight.unacked:
                    return flight.attempt
        return self._handoff.attempts.get(offset, 0)

    def exhausted(self) -> PendingAck | None:
        """Messages that failed `attempts_max` times, to be moved elsewhere; then `confirm` or `unack`.

        Nobody gets them, and their lanes wait, until that is decided.
        """
        if not self._handoff.spent:
            return None
        spent = dict(sorted(self._handoff.spent.items()))
        self._handoff.spent = {}
        return PendingAck(None, 0, self.settings.attempts_max or 0, list(spent), list(spent.values()), [])

    # Time.

    def tick(self, now_ms: int) -> list[Notice]:
        """Sends again what got no answer, gives up members that never answer, evens out what is uneven."""
        settings = self.settings
        for member in list(self._handoff.members.values()):
            if not member.active:
                continue
            for number, flight in member.flights.items():
                if now_ms - member.last_sign_ms(flight) >= settings.redelivery_ms:
                    if flight.deliveries >= settings.deliveries_max:
                        self._give_up(member, flight)
                        break
                    flight.since_ms = now_ms
                    if number not in member.resend:
                        member.resend[number] = None
                        flight.deliveries += 1
            if member.slow_acks:
                self._handoff.forget_slow(member, now_ms)
            if not member.room and member.waiting:
                self._handoff.give_away(member)
        self._pool.distribute(now_ms)
        if not self._pool.offsets:
            self._handoff.balance()
        notices, self._handoff.notices = self._handoff.notices, []
        return notices

    def _give_up(self, member: Member, flight: Flight) -> None:
        member.active = False
        self._handoff.notices.append(
            MemberInactive(member.name, f"batch {flight.number} was sent {flight.deliveries} times without an answer")
        )
        self._handoff.disown(member)

    # To be looked at.

    @property
    def unacked(self) -> int:
        """Messages offered or claimed and not acked for good."""
        return self._unacked

    def describe(self) -> GroupState:
        members = [
            MemberState(
                member.name,
                member.active,
                member.slow,
                member.room,
                member.burden // self._handoff.weight,
                member.in_flight,
                member.waiting,
                (member.delayed_acks, len(member.slow_acks), member.longest_ms),
            )
            for member in self._handoff.members.values()
        ]
        unbound = self._pool.pooled
        unbound += sum(len(lane.hold.queue) for lane in self._handoff.line if lane.hold is not None)
        moving = sum(1 for lane in self._handoff.lanes.values() if lane.hold is not None and not lane.hold.lined_up)
        handoff = self._handoff
        return GroupState(
            members, len(handoff.lanes), moving, unbound, self._unacked, handoff.moved_lanes, handoff.evened_lanes
        )
