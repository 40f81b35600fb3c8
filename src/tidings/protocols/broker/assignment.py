"""Who has which lane: binding lanes to members, holding them, and handing them over.

Messages come into a pool in the order of their offsets. They leave it while some member has room: a message
whose lane is bound goes to that member, whether there is room for it or not; the first message of a free
lane goes to the member with the least load among those that have room. When nothing of a lane is left the
lane is forgotten, so idle lanes cost nothing and are free for the member that has the least to do when they wake up.

A lane passes from one member to another only through a hold: nobody is sent more of it, what is in flight or
being written to the journal ends first (or is taken back), and then its waiting messages, in the order of their
offsets, go on as a whole. Lanes that stay where they are never notice.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from heapq import heapify, heappop, heapreplace

from tidings.protocols.broker.members import (
    ENDLESS,
    Flight,
    Hold,
    Lane,
    LaneSettings,
    LanesMoved,
    Member,
    MemberSlow,
    Notice,
    OrderingKey,
    PickedBatch,
    no_offsets,
)

_COMPACT_MIN = 4_096


class Assignment:
    """The lanes, the members, and the moves between them that keep every lane in order with one owner."""

    def __init__(self, settings: LaneSettings, first_number: int = 1) -> None:
        """Batches are numbered from `first_number`: let it be above any number of an earlier life."""
        self.settings = settings
        self._moved_lanes = 0
        self._evened_lanes = 0
        self._unacked = 0
        self._next_number = first_number
        self._weight = settings.lane_weight
        self._members: dict[str, Member] = {}
        self._lanes: dict[OrderingKey, Lane] = {}
        self._spare: list[Lane] = []
        """Lanes that ended, to be used again: making objects is dear where every message begins a lane."""
        self._pool_offsets: list[int] = []
        self._pool_keys: list[OrderingKey | None] = []
        self._pool_head = 0
        self._line: deque[Lane] = deque()
        """Lanes with a hold that wait for any member with room, before the pool."""
        self._delayed: list[tuple[int, int, Lane, Hold]] = []
        """A heap by time of lanes that wait out a delay."""
        self._delays = 0
        self._attempts: dict[int, int] = {}
        """How many attempts a message has behind it, if it was taken back since it was first sent."""
        self._suspected: dict[int, None] = {}
        """Messages of which one of these attempts is a guess: who had it then has died without a word."""
        self._suspected_until = 0
        self._taken: dict[int, None] = {}
        """Messages in flight, not at their first attempt, of which the member has said that it hands them out."""
        self._spent: dict[int, Lane] = {}
        """Messages that failed too often; their lanes wait for them as if they were in flight."""
        self._keyless = Lane(None, None, ENDLESS)
        self._notices: list[Notice] = []

    # Handing out.

    def _distribute(self, now_ms: int) -> None:
        """Binds free lanes and gives bound ones their messages, while any member has room."""
        delayed = self._delayed
        while delayed and delayed[0][0] <= now_ms:
            _, _, lane, hold = heappop(delayed)
            if lane.hold is hold and 0 < hold.ready_ms <= now_ms:
                hold.ready_ms = 0
                if not lane.count or lane.key is None:
                    self._release(lane)
        while self._line:
            target = self._least_loaded()
            if target is None:
                return
            self._bind(self._line.popleft(), target)
        while self._pool_offsets:
            if not self._distribute_pool():
                return

    def _least_loaded(self) -> Member | None:
        """The member for the next lane: with room, if possible not slow, and of these the least loaded."""
        best, best_rank = None, (False, 0)
        for member in self._members.values():
            if member.active and member.free > 0:
                rank = (member.slow, member.load)
                if best is None or rank < best_rank:
                    best, best_rank = member, rank
        return best

    def _distribute_pool(self) -> bool:
        """As many messages from the pool as there is room for; False when there is none.

        This is the hot path, hence one long loop on local names. A heap of load and index in one number finds
        the least loaded; loads only grow here, so an entry that is too low is put right when it comes up.
        """
        order, swift, slow, total = self._rank_members()
        if not order:
            return False
        offsets, keys = self._take_from_pool(total)
        shift = len(self._members).bit_length()
        mask = (1 << shift) - 1
        heapify(swift)
        heap = swift
        weight = self._weight
        step = (weight + 1) << shift
        lanes, spare = self._lanes, self._spare
        grown = False  # Whether any load may have grown without its entry.
        # Each lane is looked up when its turn comes: a message before may have begun it.
        found = map(lanes.get, keys)  # type: ignore[arg-type]
        for offset, key, lane in zip(offsets, keys, found, strict=True):
            if lane is not None:
                if lane.hold is None:
                    grown = True
                    lane.count += 1
                    owner: Member = lane.member  # type: ignore[assignment]
                    owner.offsets.append(offset)
                    owner.lanes.append(lane)
                else:
                    lane.hold.queue.append(offset)
                continue
            while True:
                if not heap:  # No more messages come here than there is room for: one of the slow has some.
                    heapify(slow)
                    heap = slow
                entry = heap[0]
                index = entry & mask
                member = order[index]
                waiting = len(member.offsets)
                if waiting >= member.space:
                    heappop(heap)
                    continue
                if grown and (load := member.burden + member.fixed + waiting) > entry >> shift:
                    heapreplace(heap, load << shift | index)
                    continue
                break
            if key is None:
                member.lanes.append(member.keyless)
                heapreplace(heap, entry + (1 << shift))
            else:
                lane = spare.pop() if spare else Lane(key, member, 1)
                lane.key = key
                lane.member = member
                lane.count = 1
                lanes[key] = lane
                member.lanes.append(lane)
                member.burden += weight
                heapreplace(heap, entry + step)
            member.offsets.append(offset)
        return True

    def _rank_members(self) -> tuple[list[Member], list[int], list[int], int]:
        """Members with room; their entries of load and index, of the swift and of the slow; and all the room."""
        order: list[Member] = []
        swift: list[int] = []
        slow: list[int] = []
        shift = len(self._members).bit_length()
        total = 0
        for member in self._members.values():
            if member.active:
                free = member.free
                if free > 0:
                    total += free
                    member.fixed = member.in_flight + len(member.repeats) - member.head
                    member.space = member.room - member.fixed
                    (slow if member.slow else swift).append(member.load << shift | len(order))
                    order.append(member)
        return order, swift, slow, total

    def _take_from_pool(self, count: int) -> tuple[list[int], list[OrderingKey | None]]:
        """The first messages of the pool, at most so many."""
        head = self._pool_head
        until = min(head + count, len(self._pool_offsets))
        if head == 0 and until == len(self._pool_offsets):
            offsets, keys = self._pool_offsets, self._pool_keys
            self._pool_offsets, self._pool_keys = [], []
            return offsets, keys
        offsets, keys = self._pool_offsets[head:until], self._pool_keys[head:until]
        self._pool_head = until
        self._compact_pool()
        return offsets, keys

    def _compact_pool(self) -> None:
        head = self._pool_head
        if head == len(self._pool_offsets):
            self._pool_offsets, self._pool_keys, self._pool_head = [], [], 0
        elif head > _COMPACT_MIN and head * 2 > len(self._pool_offsets):
            del self._pool_offsets[:head], self._pool_keys[:head]
            self._pool_head = 0

    def _bind(self, lane: Lane, member: Member) -> None:
        """Gives a held lane to a member, with all that waits in it."""
        hold = lane.hold
        assert hold is not None and hold.queue
        lane.hold = None
        if lane.key is None:
            self._push(member, member.keyless, hold.queue)
            return
        assert lane.count == 0, "a lane changes hands only when nothing of it is under way"
        if hold.source is not None and hold.source != member.name:
            self._moved_lanes += 1
            self._evened_lanes += hold.target is member
        lane.member = member
        lane.count = len(hold.queue)
        if hold.target is not member:
            self._discharge(hold)
            member.burden += self._weight
        self._push(member, lane, hold.queue)

    def _push(self, member: Member, lane: Lane, queue: list[int]) -> None:
        """Lets messages of a lane, of which this member has none waiting, wait for its room."""
        attempts = self._attempts
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

    def _send(
        self, member: Member, offsets: Sequence[int], lanes: list[Lane], attempt: int, now_ms: int
    ) -> PickedBatch:
        number = self._next_number
        self._next_number = number + 1
        member.flights[number] = Flight(number, attempt, offsets, lanes, now_ms)
        member.in_flight += len(offsets)
        return PickedBatch(number, member.name, offsets, attempt)

    # Holding.

    def _hold(self, lane: Lane) -> Hold:
        """From now on nobody is sent more of this lane; what its member has waiting must be swept out next."""
        hold = lane.hold
        if hold is None:
            member = lane.member
            assert member is not None and lane.key is not None
            hold = lane.hold = Hold(member.name)
            member.burden -= self._weight
        return hold

    def _discharge(self, hold: Hold) -> None:
        if hold.target is not None:
            hold.target.burden -= self._weight
            hold.target = None

    def _release(self, lane: Lane) -> None:
        """Nothing of a held lane is under way any more: on with what waits in it, or an end of it."""
        hold = lane.hold
        assert hold is not None and lane.count in (0, ENDLESS)
        if hold.ready_ms or hold.lined_up:
            return
        lane.member = None
        target = hold.target
        if not hold.queue:
            self._discharge(hold)
            lane.hold = None
            if lane.key is not None:
                del self._lanes[lane.key]
        elif target is not None and target.active and target.free > 0:
            self._bind(lane, target)
        else:
            self._discharge(hold)
            hold.lined_up = True
            self._line.append(lane)

    def _sweep(self, member: Member) -> None:
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

    def _sort_holds(self, lanes: dict[Lane, None]) -> None:
        """After messages came back into these held lanes: order inside each, and on with those that may go."""
        for lane in lanes:
            assert lane.hold is not None
            lane.hold.queue.sort()
        for lane in lanes:
            if lane.count == 0 or lane.key is None:
                self._release(lane)

    def _loose(self, offset: int, source: str | None) -> Lane:
        """A held lane for one message without a key."""
        lane = Lane(None, None, ENDLESS)
        lane.hold = Hold(source)
        lane.hold.queue.append(offset)
        return lane

    # Taking back.

    def _take_back(
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

        Anyone who calls this sweeps the member and acks the holds of the touched lanes. Without `final` none of them is
        spent by it: the member may yet say that it is at work on them.
        """
        made = attempt if failed else attempt - 1
        limit = self.settings.attempts_max if final else None
        member.in_flight -= len(messages)
        for offset, lane in messages.items():
            if made:
                self._attempts[offset] = made
            else:
                self._attempts.pop(offset, None)
            self._taken.pop(offset, None)
            guessed = offset in self._suspected or offset < self._suspected_until
            spent = failed and limit is not None and made - guessed >= limit
            if lane.key is None:
                if spent:
                    self._spent[offset] = self._keyless
                else:
                    touched[self._loose(offset, member.name)] = None
                continue
            hold = self._hold(lane)
            if spent:
                self._spent[offset] = lane
            else:
                lane.count -= 1
                hold.queue.append(offset)
            touched[lane] = None

    def _disown(self, member: Member, taken: Mapping[int, int] | None = None, *, final: bool = True) -> None:
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
                self._suspected.update(dict.fromkeys(left))
            else:
                failed = {offset: lane for offset, lane in left.items() if offset in self._taken}
            idle = {offset: lane for offset, lane in left.items() if offset not in failed}
            self._take_back(member, flight.attempt, failed, touched, failed=True, final=final)
            self._take_back(member, flight.attempt, idle, touched, failed=False)
        member.flights = {}
        member.resend = {}
        for ack in member.acks:  # Their lanes must not go on before the journal has answered.
            for lane in ack.lanes:
                if lane.key is not None:
                    self._hold(lane)
                    touched[lane] = None
        self._empty(member, touched)
        self._sort_holds(touched)
        assert not member.in_flight and not member.waiting

    def _empty(self, member: Member, touched: dict[Lane, None]) -> None:
        """Takes everything from a member that it has not been sent yet."""
        waiting = member.repeats + list(zip(member.offsets[member.head :], member.lanes[member.head :], strict=True))
        for offset, lane in waiting:
            if lane.key is None:
                touched[self._loose(offset, member.name)] = None
            else:
                self._hold(lane)
                touched[lane] = None
        self._sweep(member)  # What it leaves are the messages without a key, and those are loose now.
        member.repeats, member.offsets, member.lanes = [], no_offsets(), []

    # Evening out.

    def _even_out(self, target: Member, *, waiting_only: bool) -> None:
        """Gives a member lanes of the busiest others, as few as make the loads even.

        First the lanes of which nothing is in flight, then those that must drain. A lane moves only if its
        source stays at least as loaded as its target will be.
        """
        weight = self._weight
        sources: list[tuple[int, int, list[tuple[Lane, int, int]]]] = []
        for number, member in enumerate(self._members.values()):
            if member is not target and member.active and member.load > target.load + 2 * weight:
                candidates = self._movable(member, waiting_only)
                if candidates:
                    sources.append((-member.load, number, candidates))
        heapify(sources)
        members = list(self._members.values())
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
                    hold = self._hold(lane)
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
            self._sweep(member)
        self._sort_holds(chosen)
        if chosen:
            self._notices.append(LanesMoved(target.name, at_once, drained_first))

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

    def _offload(self, member: Member) -> None:
        """A slow member's waiting lanes go to the others, at once or when they have drained."""
        if not any(each.active and not each.slow for each in self._members.values() if each is not member):
            return  # Nobody could do it faster.
        self._notices.append(MemberSlow(member.name, self._give_away(member)))

    def _give_away(self, member: Member) -> int:
        """What waits with a member is free for any with room, at once or when its lane has drained."""
        touched: dict[Lane, None] = {}
        self._empty(member, touched)
        self._sort_holds(touched)
        return len(touched)
