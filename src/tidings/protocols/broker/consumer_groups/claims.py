"""What members still have in flight when a broker comes back.

The lanes of a group are forgotten in a restart; its members are not, and they may be in the middle of work that
the broker sent them in its earlier life. Each says what it has: as far as nobody else has got it meanwhile, and as
far as the order inside the lanes allows, it counts as in flight with that member again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from tidings.protocols.broker.consumer_groups.distribution import Distribution
from tidings.protocols.broker.consumer_groups.key_handoff import KeyHandoff
from tidings.protocols.broker.consumer_groups.members import Flight, Hold, Lane, Member, OrderingKey


class Claims:
    """The one way in which a member gets work that it was not sent by this broker."""

    def __init__(self, handoff: KeyHandoff, pool: Distribution) -> None:
        self._handoff = handoff
        self._pool = pool
        self._next_offset = 0
        self._early: dict[int, None] = {}
        """Offsets claimed before they were offered: the offer leaves them out."""
        self.count = 0
        """How many were, in all."""

    def may_offer(self, offset: int) -> bool:
        """Whether nothing from this offset on was offered before."""
        return offset >= self._next_offset

    def offer(
        self, offsets: Sequence[int], keys: Sequence[OrderingKey | None]
    ) -> tuple[Sequence[int], Sequence[OrderingKey | None]]:
        """What is left of an offer without what was claimed before."""
        self._next_offset = offsets[-1] + 1
        if self._early:
            early = self._early
            pairs = [(offset, key) for offset, key in zip(offsets, keys, strict=True) if offset not in early]
            self._early = {offset: None for offset in early if offset >= self._next_offset}
            offsets = [offset for offset, _ in pairs]
            keys = [key for _, key in pairs]
        return offsets, keys

    def claim(
        self, claimant: Member, offsets: Sequence[int], keys: Sequence[OrderingKey | None], attempt: int
    ) -> dict[int, Lane]:
        """What of these messages the member has again, each with its lane, in the order of their offsets."""
        wanted: dict[OrderingKey | None, list[int]] = {}
        for offset, key in sorted(zip(offsets, keys, strict=True), key=lambda pair: pair[0]):
            wanted.setdefault(key, []).append(offset)
        pooled = self._pool.find(wanted)
        taken: dict[int, Lane] = {}
        for key, claimed in wanted.items():
            if key is not None:
                taken.update(self._claim_lane(claimant, key, claimed, attempt, pooled[key]))
                continue
            for offset in claimed:
                if self._claim_keyless(claimant, offset, attempt, pooled[None]):
                    taken[offset] = claimant.keyless
        if any(offset in taken for found in pooled.values() for offset in found):
            self._pool.remove(taken)
        return dict(sorted(taken.items()))

    def _is_new(self, offset: int) -> bool:
        """Whether this message has not been offered or claimed yet; then it counts from now on."""
        if offset < self._next_offset or offset in self._early:
            return False
        self._early[offset] = None
        self.count += 1
        return True

    def _find_flight(self, offset: int) -> tuple[Member, Flight] | None:
        for member in self._handoff.members.values():
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
        for lane in self._handoff.line:
            if lane.key is None and lane.hold is not None and lane.hold.queue == [offset]:
                self._handoff.line.remove(lane)
                return True
        return False  # Acked, or another member is next to get it.

    def _claim_lane(
        self, claimant: Member, key: OrderingKey, claimed: list[int], attempt: int, pooled: dict[int, None]
    ) -> dict[int, Lane]:
        """The claimed messages of one lane that are at its front, or behind what the claimant has of it."""
        lane = self._handoff.lanes.get(key)
        was_bound = False
        if lane is None:
            lane = self._handoff.lanes[key] = Lane(key, None, 0)
            lane.hold = Hold(None)
        elif lane.member is not None and lane.member is not claimant:
            self._oust(lane, lane.member, claimed, attempt)
            if lane.count:  # It stays there.
                return {}
        elif lane.hold is None:
            was_bound = True
            self._handoff.hold(lane)
            self._handoff.sweep(claimant)
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
                self._handoff.line.remove(lane)
            self._handoff.discharge(hold)
            lane.hold = None
            lane.member = claimant
            queue = [offset for offset in hold.queue if offset not in taken]
            lane.count += len(taken) + len(queue)
            claimant.burden += self._handoff.weight
            self._handoff.push(claimant, lane, queue)
        elif not lane.count:
            self._handoff.release(lane)
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
        self._handoff.hold(lane)
        for offset, flight in flights.items():
            del flight.unacked[offset]
            flight.refused.append(offset)
            # Its owner may be at work on it: that is no failure, but anyone who gets it next has to know of it.
            self._handoff.take_back(owner, flight.attempt + 1, {offset: lane}, touched, failed=False)
        for number in [number for number, flight in owner.flights.items() if not flight.unacked]:
            del owner.flights[number]
        self._handoff.sweep(owner)
        assert lane.hold is not None
        lane.hold.queue.sort()
