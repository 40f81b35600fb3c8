"""A key changes hands: its lane goes from one consumer of a group to another.

It does so only through a hold: nobody is sent more of it, what is in flight or being written to the journal ends first
(or is taken back), and then its waiting messages, in the order of their offsets, go on as a whole. Lanes that stay
where they are never notice.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from heapq import heapify, heappop, heapreplace

from tidings.protocols.broker.consumer_groups.members import (
    ENDLESS,
    Hold,
    Lane,
    LaneSettings,
    LanesMoved,
    Member,
    MemberSlow,
    Notice,
    OrderingKey,
    no_offsets,
)


class KeyHandoff:
    """The members, their lanes, and the moves between them that keep every lane in order with one owner."""

    def __init__(self, settings: LaneSettings) -> None:
        self._settings = settings
        self.weight = settings.lane_weight
        self.members: dict[str, Member] = {}
        self.lanes: dict[OrderingKey, Lane] = {}
        self.line: deque[Lane] = deque()
        """Lanes with a hold that wait for any member with room, before the pool."""
        self.attempts: dict[int, int] = {}
        """How many attempts a message has behind it, if it was taken back since it was first sent."""
        self.suspected: dict[int, None] = {}
        """Messages of which one of these attempts is a guess: who had it then has died without a word."""
        self.suspected_until = 0
        self.taken: dict[int, None] = {}
        """Messages in flight, not at their first attempt, of which the member has said that it hands them out."""
        self.spent: dict[int, Lane] = {}
        """Messages that failed too often; their lanes wait for them as if they were in flight."""
        self.notices: list[Notice] = []
        self.moved_lanes = 0
        self.evened_lanes = 0
        self._keyless = Lane(None, None, ENDLESS)

    # Giving.

    def bind(self, lane: Lane, member: Member) -> None:
        """Gives a held lane to a member, with all that waits in it."""
        hold = lane.hold
        assert hold is not None and hold.queue
        lane.hold = None
        if lane.key is None:
            self.push(member, member.keyless, hold.queue)
            return
        assert lane.count == 0, "a lane changes hands only when nothing of it is under way"
        if hold.source is not None and hold.source != member.name:
            self.moved_lanes += 1
            self.evened_lanes += hold.target is member
        lane.member = member
        lane.count = len(hold.queue)
        if hold.target is not member:
            self.discharge(hold)
            member.burden += self.weight
        self.push(member, lane, hold.queue)

    def push(self, member: Member, lane: Lane, queue: list[int]) -> None:
        """Lets messages of a lane, of which this member has none waiting, wait for its room."""
        attempts = self.attempts
        first_new = len(queue)
        while first_new and queue[first_new - 1] not in attempts:
            first_new -= 1
        if first_new:
            member.repeats += [(offset, lane) for offset in queue[:first_new]]
            member.repeats_mixed = True
        if first_new < len(queue):
            member.offsets.extend(queue[first_new:])
            member.lanes += [lane] * (len(queue) - first_new)
            member.waiting_mixed = True

    # Holding.

    def hold(self, lane: Lane) -> Hold:
        """From now on nobody is sent more of this lane; what its member has waiting must be swept out next."""
        hold = lane.hold
        if hold is None:
            member = lane.member
            assert member is not None and lane.key is not None
            hold = lane.hold = Hold(member.name)
            member.burden -= self.weight
        return hold

    def discharge(self, hold: Hold) -> None:
        if hold.target is not None:
            hold.target.burden -= self.weight
            hold.target = None

    def release(self, lane: Lane) -> None:
        """Nothing of a held lane is under way any more: on with what waits in it, or an end of it."""
        hold = lane.hold
        assert hold is not None and lane.count in (0, ENDLESS)
        if hold.ready_ms or hold.lined_up:
            return
        lane.member = None
        target = hold.target
        if not hold.queue:
            self.discharge(hold)
            lane.hold = None
            if lane.key is not None:
                del self.lanes[lane.key]
        elif target is not None and target.active and target.free > 0:
            self.bind(lane, target)
        else:
            self.discharge(hold)
            hold.lined_up = True
            self.line.append(lane)

    def sweep(self, member: Member) -> None:
        """Moves what waits with a member into the holds of its lanes, for those that have one."""
        kept_repeats = []
        for offset, lane in member.repeats:
            if lane.hold is None:
                kept_repeats.append((offset, lane))
            else:
                lane.hold.queue.append(offset)
                lane.count -= 1
        offsets, lanes = no_offsets(), []
        for offset, lane in zip(member.offsets[member.head :], member.lanes[member.head :], strict=True):
            if lane.hold is None:
                offsets.append(offset)
                lanes.append(lane)
            else:
                lane.hold.queue.append(offset)
                lane.count -= 1
        member.repeats, member.offsets, member.lanes, member.head = kept_repeats, offsets, lanes, 0

    def sort_holds(self, lanes: dict[Lane, None]) -> None:
        """After messages came back into these held lanes: order inside each, and on with those that may go."""
        for lane in lanes:
            assert lane.hold is not None
            lane.hold.queue.sort()
        for lane in lanes:
            if lane.count == 0 or lane.key is None:
                self.release(lane)

    def loose(self, offset: int, source: str | None) -> Lane:
        """A held lane for one message without a key."""
        lane = Lane(None, None, ENDLESS)
        lane.hold = Hold(source)
        lane.hold.queue.append(offset)
        return lane

    # Taking back.

    def take_back(
        self,
        member: Member,
        attempt: int,
        messages: dict[int, Lane],
        touched: dict[Lane, None],
        *,
        failed: bool,
        final: bool = True,
    ) -> None:
        """Messages in flight (already out of it) return to their lanes; `failed` counts against their attempts.

        Anyone who calls this sweeps the member and ends the holds of the touched lanes. Without `final` none of them is
        spent by it: the member may yet say that it is at work on them.
        """
        made = attempt if failed else attempt - 1
        limit = self._settings.attempts_max if final else None
        member.in_flight -= len(messages)
        for offset, lane in messages.items():
            if made:
                self.attempts[offset] = made
            else:
                self.attempts.pop(offset, None)
            self.taken.pop(offset, None)
            guessed = offset in self.suspected or offset < self.suspected_until
            spent = failed and limit is not None and made - guessed >= limit
            if lane.key is None:
                if spent:
                    self.spent[offset] = self._keyless
                else:
                    touched[self.loose(offset, member.name)] = None
                continue
            hold = self.hold(lane)
            if spent:
                self.spent[offset] = lane
            else:
                lane.count -= 1
                hold.queue.append(offset)
            touched[lane] = None

    def disown(self, member: Member, taken: Mapping[int, int] | None = None, *, final: bool = True) -> None:
        """Takes everything from a member that is not being acked already.

        What it has handed out, at this attempt, was one, and the rest was none. If it cannot be asked, all that it had
        for the first time may have been handed out: that comes as another attempt, which does not count. Of anything
        else it has said so before it did it.
        """
        touched: dict[Lane, None] = {}
        for flight in member.flights.values():
            left, attempt = flight.unacked, flight.attempt
            if taken is not None:
                failed = {offset: lane for offset, lane in left.items() if taken.get(offset, 0) >= attempt}
            elif attempt == 1:
                failed = left
                self.suspected.update(dict.fromkeys(left))
            else:
                failed = {offset: lane for offset, lane in left.items() if offset in self.taken}
            idle = {offset: lane for offset, lane in left.items() if offset not in failed}
            self.take_back(member, flight.attempt, failed, touched, failed=True, final=final)
            self.take_back(member, flight.attempt, idle, touched, failed=False)
        member.flights = {}
        member.resend = {}
        for ack in member.acks:  # Their lanes must not go on before the journal has answered.
            for lane in ack.lanes:
                if lane.key is not None:
                    self.hold(lane)
                    touched[lane] = None
        self._empty(member, touched)
        self.sort_holds(touched)
        assert not member.in_flight and not member.waiting

    def _empty(self, member: Member, touched: dict[Lane, None]) -> None:
        """Takes everything from a member that it has not been sent yet."""
        waiting = member.repeats + list(zip(member.offsets[member.head :], member.lanes[member.head :], strict=True))
        for offset, lane in waiting:
            if lane.key is None:
                touched[self.loose(offset, member.name)] = None
            else:
                self.hold(lane)
                touched[lane] = None
        self.sweep(member)  # What it leaves are the messages without a key, and those are loose now.
        member.repeats, member.offsets, member.lanes = [], no_offsets(), []

    # Evening out.

    def even_out(self, target: Member, *, waiting_only: bool) -> None:
        """Gives a member lanes of the busiest others, as few as make the loads even.

        First the lanes of which nothing is in flight, then those that must drain. A lane moves only if its
        source stays at least as loaded as its target will be.
        """
        weight = self.weight
        sources: list[tuple[int, int, list[tuple[Lane, int, int]]]] = []
        for number, member in enumerate(self.members.values()):
            if member is not target and member.active and member.load > target.load + 2 * weight:
                candidates = self._movable(member, waiting_only)
                if candidates:
                    sources.append((-member.load, number, candidates))
        heapify(sources)
        members = list(self.members.values())
        load = target.load
        free = target.free
        at_once = drained_first = 0
        swept: dict[Member, None] = {}
        chosen: dict[Lane, None] = {}
        while sources and free > 0:
            negative, number, candidates = sources[0]
            moved = 0
            while candidates and not moved:
                lane, waiting, under_way = candidates.pop()
                cost = weight + waiting + under_way
                if -negative - cost >= load + cost:
                    hold = self.hold(lane)
                    hold.target = target
                    target.burden += weight
                    chosen[lane] = None
                    swept[members[number]] = None
                    load += cost
                    free -= waiting
                    moved = cost
                    if under_way:
                        drained_first += 1
                    else:
                        at_once += 1
            if moved:
                heapreplace(sources, (negative + moved, number, candidates))
            else:
                heappop(sources)
        for member in swept:
            self.sweep(member)
        self.sort_holds(chosen)
        if chosen:
            self.notices.append(LanesMoved(target.name, at_once, drained_first))

    def _movable(self, member: Member, waiting_only: bool) -> list[tuple[Lane, int, int]]:
        """A member's lanes as (lane, messages waiting, messages under way), those to move first at the end."""
        waiting: dict[Lane, int] = {}
        for _, lane in member.repeats:
            waiting[lane] = waiting.get(lane, 0) + 1
        for lane in member.lanes[member.head :]:
            waiting[lane] = waiting.get(lane, 0) + 1
        waiting.pop(member.keyless, None)
        found = [(lane, count, lane.count - count) for lane, count in waiting.items()]
        idle = [each for each in found if not each[2]]
        draining = [each for each in found if each[2]]
        flying: list[tuple[Lane, int, int]] = []
        if not waiting_only:
            seen: dict[Lane, None] = {}
            for flight in member.flights.values():
                for lane in flight.unacked.values() if flight.left is not None else flight.lanes:
                    if lane.key is not None and lane.hold is None and lane not in waiting:
                        seen[lane] = None
            flying = [(lane, 0, lane.count) for lane in seen]
        return [*reversed(flying), *reversed(draining), *reversed(idle)]

    def offload(self, member: Member) -> None:
        """A slow member's waiting lanes go to the others, at once or when they have drained."""
        if not any(each.active and not each.slow for each in self.members.values() if each is not member):
            return  # Nobody could do it faster.
        self.notices.append(MemberSlow(member.name, self.give_away(member)))

    def give_away(self, member: Member) -> int:
        """What waits with a member is free for any with room, at once or when its lane has drained."""
        touched: dict[Lane, None] = {}
        self._empty(member, touched)
        self.sort_holds(touched)
        return len(touched)

    def balance(self) -> None:
        """Members with nothing to wait for take lanes from those that have more than they can be sent."""
        if self.line or not any(member.waiting for member in self.members.values()):
            return
        for member in self.members.values():
            if member.active and not member.slow and not member.waiting and member.free * 2 > member.room:
                self.even_out(member, waiting_only=True)

    def on_slow(self, member: Member, now_ms: int) -> None:
        """An ack took too long: if that happens often, others get what waits with the member."""
        member.slow_acks.append(now_ms)
        self.forget_slow(member, now_ms)
        if member.slow:
            self.offload(member)

    def forget_slow(self, member: Member, now_ms: int) -> None:
        """Only slow acks of the last while count."""
        since_ms = now_ms - self._settings.slow_window_ms
        member.slow_acks = [at_ms for at_ms in member.slow_acks if at_ms > since_ms][-self._settings.slow_acks_max :]
        member.slow = len(member.slow_acks) >= self._settings.slow_acks_max
