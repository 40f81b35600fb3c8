"""Both ends of hand-overs, as the leader of a group runs them: it gives some arcs, and takes others.

What has been given and what is being taken is in the journal (`ownership`). A `Handover` only keeps what it would be
slow to do without, so a new leader begins with an empty one and goes on where the journal is. Nothing is believed to
have happened because it was asked for: a command is done when it can be seen in the state.

Only `Give` takes ownership away and only `Take` makes it, each in one group's journal; a `Take` needs every fact of
the gift in order, and those exist only behind the `Give`. So at every time each point has one owner at most, and what
was accepted before the `Give` is with the taker when it answers its first request.
"""

from __future__ import annotations

from tidings.protocols.broker.machine import Machine
from tidings.protocols.effects import Effect
from tidings.protocols.ring.arcs import Arcs
from tidings.protocols.ring.giving import FindCard, Giver, Read
from tidings.protocols.ring.handover_messages import (
    Bequest,
    Clash,
    Given,
    HandoverMessage,
    Nothing,
    Piece,
    Pull,
    Ready,
    Taken,
    ToGroup,
)
from tidings.protocols.ring.limits import Limits
from tidings.protocols.ring.messages import Card
from tidings.protocols.ring.policy import ring_of
from tidings.protocols.ring.taking import Taker

__all__ = ["Handover", "ToGroup"]

LIMITS = Limits()


class Handover:
    """Gives and takes arcs for a group, as long as one node leads it."""

    def __init__(self, machine: Machine, read: Read, find_card: FindCard, limits: Limits = LIMITS) -> None:
        self._machine = machine
        self._giver = Giver(machine, read, find_card, limits)
        self._taker = Taker(machine, find_card, limits)
        self._card: Card | None = None

    @property
    def busy(self) -> bool:
        """Whether something is given or taken, or about to be."""
        ring = ring_of(self._machine)
        on_its_way = ring is not None and (ring.giving is not None or ring.taking is not None)
        return on_its_way or self._taker.has_wish or self._taker.is_seeking

    @property
    def idle(self) -> bool:
        return not self.busy

    def wish(self, arcs: Arcs, giver: Card) -> None:
        """These arcs are wanted of that group. Nothing happens if others are wanted already."""
        self._taker.wish(arcs, giver)

    def leave(self, taker: Card) -> None:
        """Everything that is owned is offered to another group, until it has been taken."""
        self._giver.leave(taker)

    def offer(self, taker: Card, arcs: Arcs) -> None:
        """Some of what is owned is offered to another group."""
        self._giver.offer(taker, arcs)

    def take_clashes(self) -> list[str]:
        """The topics that were in the way of what this group brings, since this was last asked."""
        clashes, self._taker.clashes = self._taker.clashes, []
        return clashes

    def tick(self, now_ms: int, card: Card) -> list[Effect]:
        """What is due; `card` is our own. To be called often: progress is only seen here."""
        self._card = card
        ring = ring_of(self._machine)
        if ring is None:
            return []
        return [*self._giver.tick(now_ms, ring, card), *self._taker.tick(now_ms, ring, card)]

    def receive(
        self, now_ms: int, message: HandoverMessage, bodies: tuple[bytes | memoryview, ...] = ()
    ) -> list[Effect]:
        """What another group says; it is not answered before the first `tick` has said who we are."""
        ring, card = ring_of(self._machine), self._card
        if ring is None or card is None:
            return []
        match message:
            case Pull() if message.giver == card.group:
                return self._giver.on_pull(ring, card, message)
            case Ready() if message.giver == card.group:
                return self._giver.on_ready(now_ms, ring, message)
            case Taken() if message.giver == card.group:
                return self._giver.on_taken(now_ms, ring, message)
            case Piece():
                return self._taker.on_piece(now_ms, ring, message, bodies)
            case Nothing():
                return self._taker.on_nothing(now_ms, ring, message)
            case Clash():
                return self._taker.on_clash(now_ms, ring, message)
            case Given():
                return self._taker.on_given(now_ms, ring, card, message)
            case Bequest():
                if ring.arcs and not self._giver.is_leaving and not ring.strays_in(message.arcs):
                    self._taker.wish(message.arcs, message.giver)
        return []
