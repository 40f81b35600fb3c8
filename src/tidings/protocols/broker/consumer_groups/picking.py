"""What a member is sent next: batches out of what waits for its room, each under a number of its own."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Sequence

from tidings.protocols.broker.consumer_groups.key_handoff import KeyHandoff
from tidings.protocols.broker.consumer_groups.members import (
    Flight,
    Lane,
    LaneSettings,
    Member,
    PickedBatch,
    no_offsets,
)

_COMPACT_MIN = 4_096


class Picking:
    """Numbers batches, and puts them in flight."""

    def __init__(self, handoff: KeyHandoff, settings: LaneSettings, first_number: int) -> None:
        self._handoff = handoff
        self._settings = settings
        self._next_number = first_number

    def send(self, member: Member, offsets: Sequence[int], lanes: list[Lane], attempt: int, now_ms: int) -> PickedBatch:
        number = self._next_number
        self._next_number = number + 1
        member.flights[number] = Flight(number, attempt, offsets, lanes, now_ms)
        member.in_flight += len(offsets)
        return PickedBatch(number, member.name, offsets, attempt)

    def pick_new(self, member: Member, room: int, now_ms: int, batches: list[PickedBatch]) -> None:
        """Messages that go out for the first time."""
        if member.waiting_mixed:
            waiting = dict(zip(member.offsets[member.head :], member.lanes[member.head :], strict=True))
            member.offsets = array("Q", sorted(waiting))
            member.lanes = [waiting[offset] for offset in member.offsets]
            member.head = 0
            member.waiting_mixed = False
        largest = self._settings.batch_messages_max
        end = len(member.offsets)
        while room > 0 and member.head < end:
            head = member.head
            size = min(room, largest, end - head)
            attempt = 1
            if member.offsets[head] < self._handoff.suspected_until:
                attempt = 2
                size = min(size, bisect_left(member.offsets, self._handoff.suspected_until, head) - head)
            if size == end:
                offsets, lanes = member.offsets, member.lanes
            else:
                offsets, lanes = member.offsets[head : head + size], member.lanes[head : head + size]
            batches.append(self.send(member, offsets, lanes, attempt, now_ms))
            room -= size
            member.head += size
        if member.head == end:
            member.offsets, member.lanes, member.head = no_offsets(), [], 0
        elif member.head > _COMPACT_MIN and member.head * 2 > end:
            del member.offsets[: member.head], member.lanes[: member.head]
            member.head = 0

    def pick_repeats(self, member: Member, room: int, now_ms: int, batches: list[PickedBatch]) -> int:
        """Messages that were sent before; how much room is left then."""
        repeats = member.repeats
        if member.repeats_mixed:
            repeats.sort(key=lambda pair: pair[0])
            member.repeats_mixed = False
        largest = self._settings.batch_messages_max
        attempts = self._handoff.attempts
        position = 0
        while room > 0 and position < len(repeats):
            attempt = attempts.get(repeats[position][0], 0)
            limit = min(position + min(room, largest), len(repeats))
            end = position + 1
            while end < limit and attempts.get(repeats[end][0], 0) == attempt:
                end += 1
            batch = repeats[position:end]
            offsets = [offset for offset, _ in batch]
            batches.append(self.send(member, offsets, [lane for _, lane in batch], attempt + 1, now_ms))
            room -= end - position
            position = end
        member.repeats = repeats[position:]
        return room if not member.repeats else 0
