"""Both ends of handoffs, as the leader of a group runs them: it gives some ranges, and takes others.

What has been given and what is being taken is in the journal (`ownership`). A `Handoff` only keeps what it would be
slow to do without, so a new leader begins with an empty one and goes on where the journal is. Nothing is believed to
have happened because it was asked for: a command is done when it can be seen in the state.

Only `HandOff` takes ownership away and only `TakeOver` makes it, each in one group's journal; a `TakeOver` needs every
fact of the transfer in order, and those exist only behind the `HandOff`. So at every time each point has one owner at
most, and what was accepted before the `HandOff` is with the target when it answers its first request.
"""

from __future__ import annotations

from tidings.protocols.broker.machine import Machine
from tidings.protocols.effects import Effect
from tidings.protocols.ring.handoff_messages import (
    Clash,
    HandedOff,
    HandoffMessage,
    Nothing,
    Piece,
    Pull,
    Ready,
    TakenOver,
    ToGroup,
    TransferOffer,
)
from tidings.protocols.ring.handoff_source import FindDescriptor, HandoffSource, Read
from tidings.protocols.ring.handoff_target import HandoffTarget
from tidings.protocols.ring.key_ranges import KeyRanges
from tidings.protocols.ring.limits import Limits
from tidings.protocols.ring.messages import GroupDescriptor
from tidings.protocols.ring.policy import ring_of

__all__ = ["Handoff", "ToGroup"]

LIMITS = Limits()


class Handoff:
    """Gives and takes ranges for a group, as long as one node leads it."""

    def __init__(self, machine: Machine, read: Read, find_descriptor: FindDescriptor, limits: Limits = LIMITS) -> None:
        self._machine = machine
        self._source = HandoffSource(machine, read, find_descriptor, limits)
        self._target = HandoffTarget(machine, find_descriptor, limits)
        self._descriptor: GroupDescriptor | None = None

    @property
    def busy(self) -> bool:
        """Whether something is given or taken, or about to be."""
        ring = ring_of(self._machine)
        on_its_way = ring is not None and (ring.handing_off is not None or ring.taking_over is not None)
        return on_its_way or self._target.has_wish or self._target.is_seeking

    @property
    def idle(self) -> bool:
        return not self.busy

    def is_closing(self, now_ms: int) -> bool:
        """Whether something is to be given as soon as no commit over several groups concerns it."""
        return now_ms < self._source.closing_until_ms

    def wish(self, ranges: KeyRanges, source: GroupDescriptor) -> None:
        """These ranges are wanted of that group. Nothing happens if others are wanted already."""
        self._target.wish(ranges, source)

    def leave(self, target: GroupDescriptor) -> None:
        """Everything that is owned is offered to another group, until it has been taken."""
        self._source.leave(target)

    def stay(self) -> None:
        """Nothing is offered any more."""
        self._source.leave(None)

    def offer(self, target: GroupDescriptor, ranges: KeyRanges) -> None:
        """Some of what is owned is offered to another group."""
        self._source.offer(target, ranges)

    def take_clashes(self) -> list[str]:
        """The topics that were in the way of what this group brings, since this was last asked."""
        clashes, self._target.clashes = self._target.clashes, []
        return clashes

    def tick(self, now_ms: int, descriptor: GroupDescriptor) -> list[Effect]:
        """What is due; `descriptor` is our own. To be called often: progress is only seen here."""
        self._descriptor = descriptor
        ring = ring_of(self._machine)
        if ring is None:
            return []
        return [*self._source.tick(now_ms, ring, descriptor), *self._target.tick(now_ms, ring, descriptor)]

    def receive(
        self, now_ms: int, message: HandoffMessage, bodies: tuple[bytes | memoryview, ...] = ()
    ) -> list[Effect]:
        """What another group says; it is not answered before the first `tick` has said who we are."""
        ring, descriptor = ring_of(self._machine), self._descriptor
        if ring is None or descriptor is None:
            return []
        match message:
            case Pull() if message.source == descriptor.group:
                return self._source.on_pull(ring, descriptor, message)
            case Ready() if message.source == descriptor.group:
                return self._source.on_ready(now_ms, ring, message)
            case TakenOver() if message.source == descriptor.group:
                return self._source.on_taken_over(now_ms, ring, message)
            case Piece():
                return self._target.on_piece(now_ms, ring, message, bodies)
            case Nothing():
                return self._target.on_nothing(now_ms, ring, message)
            case Clash():
                return self._target.on_clash(now_ms, ring, message)
            case HandedOff():
                return self._target.on_handed_off(now_ms, ring, descriptor, message)
            case TransferOffer():
                # Of two that are to leave, the one with the lower id takes what the other has, and leaves after it.
                takes = not self._source.is_leaving or descriptor.group < message.source.group
                if ring.ranges and takes and not ring.strays_in(message.ranges):
                    self._target.wish(message.ranges, message.source)
        return []
