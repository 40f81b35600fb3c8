"""What no member has yet: offered messages in a pool, and lanes that wait out a delay.

Messages come into the pool in the order of their offsets. They leave it while some member has room: a message
whose lane is bound goes to that member, whether there is room for it or not; the first message of a free
lane goes to the member with the least load among those that have room. When nothing of a lane is left the
lane is forgotten, so idle lanes cost nothing and are free for the member that has the least to do when they wake up.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heappop, heappush, heapreplace

from tidings.protocols.broker.consumer_groups.key_handoff import KeyHandoff
from tidings.protocols.broker.consumer_groups.members import Hold, Lane, Member, OrderingKey

_COMPACT_MIN = 4_096


class Distribution:
    """The pool, and the way out of it."""

    def __init__(self, handoff: KeyHandoff) -> None:
        self._handoff = handoff
        self.spare: list[Lane] = []
        """Lanes that ended, to be used again: making objects is dear where every message begins a lane."""
        self.offsets: list[int] = []
        """The pool, from `head` on."""
        self.keys: list[OrderingKey | None] = []
        self.head = 0
        self.delayed: list[tuple[int, int, Lane, Hold]] = []
        """A heap by time of lanes that wait out a delay."""
        self._delays = 0

    @property
    def pooled(self) -> int:
        """How many messages are in the pool."""
        return len(self.offsets) - self.head

    def add(self, offsets: Iterable[int], keys: Iterable[OrderingKey | None]) -> None:
        """The next messages of the topic."""
        self.offsets.extend(offsets)
        self.keys.extend(keys)

    def find(self, keys: Iterable[OrderingKey | None]) -> dict[OrderingKey | None, dict[int, None]]:
        """The messages in the pool of each of these lanes."""
        found: dict[OrderingKey | None, dict[int, None]] = {key: {} for key in keys}
        for offset, key in zip(self.offsets[self.head :], self.keys[self.head :], strict=True):
            if key in found:
                found[key][offset] = None
        return found

    def remove(self, offsets: dict[int, Lane]) -> None:
        """Takes messages out of the pool."""
        pairs = zip(self.offsets[self.head :], self.keys[self.head :], strict=True)
        kept = [pair for pair in pairs if pair[0] not in offsets]
        self.offsets = [offset for offset, _ in kept]
        self.keys = [key for _, key in kept]
        self.head = 0

    def delay(self, lanes: Iterable[Lane], until_ms: int) -> None:
        """Held lanes wait at least until then."""
        for lane in lanes:
            if lane.hold is not None:
                lane.hold.ready_ms = max(lane.hold.ready_ms, until_ms)
                self._delays += 1
                heappush(self.delayed, (lane.hold.ready_ms, self._delays, lane, lane.hold))

    def distribute(self, now_ms: int) -> None:
        """Binds free lanes and gives bound ones their messages, while any member has room."""
        delayed = self.delayed
        while delayed and delayed[0][0] <= now_ms:
            _, _, lane, hold = heappop(delayed)
            if lane.hold is hold and 0 < hold.ready_ms <= now_ms:
                hold.ready_ms = 0
                if not lane.count or lane.key is None:
                    self._handoff.release(lane)
        while self._handoff.line:
            target = self._least_loaded()
            if target is None:
                return
            self._handoff.bind(self._handoff.line.popleft(), target)
        while self.offsets:
            if not self._distribute_pool():
                return

    def _least_loaded(self) -> Member | None:
        """The member for the next lane: with room, if possible not slow, and of these the least loaded."""
        best, best_rank = None, (False, 0)
        for member in self._handoff.members.values():
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
        shift = len(self._handoff.members).bit_length()
        mask = (1 << shift) - 1
        heapify(swift)
        heap = swift
        weight = self._handoff.weight
        step = (weight + 1) << shift
        lanes, spare = self._handoff.lanes, self.spare
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
        shift = len(self._handoff.members).bit_length()
        total = 0
        for member in self._handoff.members.values():
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
        head = self.head
        until = min(head + count, len(self.offsets))
        if head == 0 and until == len(self.offsets):
            offsets, keys = self.offsets, self.keys
            self.offsets, self.keys = [], []
            return offsets, keys
        offsets, keys = self.offsets[head:until], self.keys[head:until]
        self.head = until
        self._compact_pool()
        return offsets, keys

    def _compact_pool(self) -> None:
        head = self.head
        if head == len(self.offsets):
            self.offsets, self.keys, self.head = [], [], 0
        elif head > _COMPACT_MIN and head * 2 > len(self.offsets):
            del self.offsets[:head], self.keys[:head]
            self.head = 0
