"""What members still have in flight when a broker comes back.

The lanes of a group are forgotten in a restart; its members are not, and they may be in the middle of work that
the broker sent them in its earlier life. Each says what it has: as far as nobody else has got it meanwhile, and as
far as the order inside the lanes allows, it counts as in flight with that member again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from tidings.errors import InvalidRequest
from tidings.protocols.broker.assignment import Assignment
from tidings.protocols.broker.members import Flight, Hold, Lane, LaneSettings, Member, OrderingKey, PickedBatch, Stale


class Claims(Assignment):
    """Adds to the assignment the one way in which a member gets work that it was not sent by this broker."""

    def __init__(self, settings: LaneSettings, first_number: int = 1) -> None:
        super().__init__(settings, first_number)
        self._next_offset = 0
        self._claimed: dict[int, None] = {}
        """Offsets claimed before they were offered: the offer leaves them out."""

    def _member(self, name: str) -> Member:
        member = self._members.get(name)
        if member is None:
            raise Stale(f"{name!r} is not a member of this group, or not any more: join again.")
        return member

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
        wanted: dict[OrderingKey | None, list[int]] = {}
        for offset, key in sorted(zip(offsets, keys, strict=True), key=lambda pair: pair[0]):
            wanted.setdefault(key, []).append(offset)
        pooled = self._find_pooled(wanted)
        taken: dict[int, Lane] = {}
        for key, claimed in wanted.items():
            if key is not None:
                taken.update(self._claim_lane(claimant, key, claimed, attempt, pooled[key]))
                continue
            for offset in claimed:
                if self._claim_keyless(claimant, offset, attempt, pooled[None]):
                    taken[offset] = claimant.keyless
        if not taken:
            return None
        self._drop_pooled(taken, pooled)
        taken = dict(sorted(taken.items()))
        return self._send(claimant, list(taken), list(taken.values()), attempt, now_ms)

    def _find_pooled(self, wanted: dict[OrderingKey | None, list[int]]) -> dict[OrderingKey | None, dict[int, None]]:
        """The messages in the pool of each claimed lane."""
        pooled: dict[OrderingKey | None, dict[int, None]] = {key: {} for key in wanted}
        head = self._pool_head
        for offset, key in zip(self._pool_offsets[head:], self._pool_keys[head:], strict=True):
            if key in pooled:
                pooled[key][offset] = None
        return pooled

    def _drop_pooled(self, taken: dict[int, Lane], pooled: dict[OrderingKey | None, dict[int, None]]) -> None:
        """Takes claimed messages out of the pool."""
        if any(offset in taken for offsets in pooled.values() for offset in offsets):
            head = self._pool_head
            pairs = zip(self._pool_offsets[head:], self._pool_keys[head:], strict=True)
            kept = [pair for pair in pairs if pair[0] not in taken]
            self._pool_offsets = [offset for offset, _ in kept]
            self._pool_keys = [key for _, key in kept]
            self._pool_head = 0

    def _is_new(self, offset: int) -> bool:
        """Whether this message has not been offered or claimed yet; then it counts from now on."""
        if offset < self._next_offset or offset in self._claimed:
            return False
        self._claimed[offset] = None
        self._unacked += 1
        return True

    def _find_flight(self, offset: int) -> tuple[Member, Flight] | None:
        for member in self._members.values():
            for flight in member.flights.values():
                if offset in flight.unacked:
                    return member, flight
        return None

    def _claim_keyless(self, claimant: Member, offset: int, attempt: int, pooled: dict[int, None]) -> bool:
        if offset in pooled or self._is_new(offset):
            return True
        found = self._find_flight(offset)
        if found is not None:
            member, flight = found
            if member is claimant or flight.attempt >= attempt:
                return False
            del flight.unacked[offset]
            flight.refused.append(offset)
            member.in_flight -= 1
            if not flight.unacked:
                del member.flights[flight.number]
            return True
        for lane in self._line:
            if lane.key is None and lane.hold is not None and lane.hold.queue == [offset]:
                self._line.remove(lane)
                return True
        return False  # Acked, or another member is next to get it.

    def _claim_lane(
        self, claimant: Member, key: OrderingKey, claimed: list[int], attempt: int, pooled: dict[int, None]
    ) -> dict[int, Lane]:
        """The claimed messages of one lane that are at its front, or behind what the claimant has of it."""
        lane = self._lanes.get(key)
        was_bound = False
        if lane is None:
            lane = self._lanes[key] = Lane(key, None, 0)
            lane.hold = Hold(None)
        elif lane.member is not None and lane.member is not claimant:
            self._oust(lane, lane.member, claimed, attempt)
            if lane.count:  # It stays there.
                return {}
        elif lane.hold is None:
            was_bound = True
            self._hold(lane)
            self._sweep(claimant)
        hold = lane.hold
        assert hold is not None
        waiting = deque(hold.queue)
        waiting.extend(pooled)
        taken: dict[int, Lane] = {}
        for offset in claimed:
            if waiting and waiting[0] < offset:
                break
            if waiting and waiting[0] == offset:
                waiting.popleft()
                taken[offset] = lane
            elif self._is_new(offset):
                taken[offset] = lane
        if taken or was_bound:
            if hold.lined_up:
                self._line.remove(lane)
            self._discharge(hold)
            lane.hold = None
            lane.member = claimant
            queue = [offset for offset in hold.queue if offset not in taken]
            lane.count += len(taken) + len(queue)
            claimant.burden += self._weight
            self._push(claimant, lane, queue)
        elif not lane.count:
            self._release(lane)
        return taken

    def _oust(self, lane: Lane, owner: Member, claimed: list[int], attempt: int) -> None:
        """Takes a lane from its owner if that has it in flight at lower attempts only, or not at all.

        The lane has nothing under way then, else the owner keeps it.
        """
        flights: dict[int, Flight] = {}
        for flight in owner.flights.values():
            for offset, each in flight.unacked.items():
                if each is lane:
                    flights[offset] = flight
        waiting = sum(1 for _, each in owner.repeats if each is lane)
        waiting += sum(1 for each in owner.lanes[owner.head :] if each is lane)
        if len(flights) + waiting < lane.count:
            return  # Some of it is being acked.
        if flights and (min(flights) not in claimed or any(each.attempt >= attempt for each in flights.values())):
            return
        touched: dict[Lane, None] = {}
        self._hold(lane)
        for offset, flight in flights.items():
            del flight.unacked[offset]
            flight.refused.append(offset)
            # Its owner may be at work on it: that is no failure, but anyone who gets it next has to know of it.
            self._take_back(owner, flight.attempt + 1, {offset: lane}, touched, failed=False)
        for number in [number for number, flight in owner.flights.items() if not flight.unacked]:
            del owner.flights[number]
        self._sweep(owner)
        assert lane.hold is not None
        lane.hold.queue.sort()
