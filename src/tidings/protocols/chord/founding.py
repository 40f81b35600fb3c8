"""Founding a ring: the first nodes wait for each other and begin together.

A ring that survives failures begins with several members that know each other (Zave 2017: r + 1 of them). One node,
the host, has no contact. All others tell their contact that they are there (`Attend`); who is not in a ring itself
passes it on to its own contact, so it comes to the host. Once enough of them are there the host names the founding
members (`Begin`), and each of them knows its neighbours from the names alone.

Anyone who misses the beginning joins like everybody who comes later, by a route to its place: that is Chord's own work,
and goes on all the time. So nothing here has to be repeated or confirmed.

Not guaranteed: a host that is started again without a contact does not know that its ring exists, and waits to found
another one. Give it a contact.
"""

from __future__ import annotations

from collections.abc import Iterable

from tidings.protocols.chord.identifiers import identifier
from tidings.protocols.chord.messages import NeighboursChanged, TakePlace
from tidings.protocols.fields import Number, Several
from tidings.protocols.stack import (
    Ask,
    CancelTimer,
    Effect,
    Event,
    Message,
    NodeId,
    Notification,
    Notified,
    Notify,
    Received,
    Send,
    SetTimer,
    Timer,
    TimerFired,
    UnexpectedEvent,
)

ATTEND_MS = 500
"""How often a node says again that it is there."""
ATTENDING_MS_MAX = 5_000
"""Who was not heard for this long is not there any more."""
STEPS_MAX = 16
FOUNDERS_MAX = 256


class Attend(Message, frozen=True):
    """Somebody is there and would like to be in the ring."""

    newcomer: NodeId
    steps: Number
    """How often it has been passed on."""


class Begin(Message, frozen=True):
    """The ring begins, with these members."""

    members: Several[NodeId]


class Founded(Notification, frozen=True):
    """This node is a founding member of a ring."""

    members: tuple[NodeId, ...]


class AttendDue(Timer, frozen=True):
    pass


def founding_links(node: NodeId, members: Iterable[NodeId], successors_max: int) -> TakePlace:
    """The neighbours of one of the founding members.

    >>> founding_links("a", ["a", "b", "c"], 8)
    TakePlace(predecessor='b', successors=('c', 'b'))
    """
    ring = sorted(members, key=identifier)
    index, count = ring.index(node), len(ring)
    length = min(successors_max, count - 1)
    return TakePlace(ring[index - 1], tuple(ring[(index + step) % count] for step in range(1, length + 1)))


class Founding:
    """The beginning of one node: it attends, or it is the host (without `contacts`) and counts who does."""

    handles = (Attend, Begin, AttendDue)
    listens = (NeighboursChanged,)

    def __init__(self, node: NodeId, contacts: tuple[NodeId, ...], founders: int, successors_max: int) -> None:
        assert 2 <= founders <= FOUNDERS_MAX, "A ring has at least two members."
        self._node = node
        self._contacts = contacts
        self._founders = founders
        self._successors_max = successors_max
        self._heard_ms: dict[NodeId, int] = {}
        self.in_ring = False

    @property
    def missing(self) -> int:
        """How many founding members the host still waits for."""
        return 0 if self.in_ring or self._contacts else self._founders - 1 - len(self._heard_ms)

    def start(self, now_ms: int) -> list[Effect]:
        return self._attend() if self._contacts else []

    def handle(self, event: Event) -> list[Effect]:
        match event:
            case Received(now_ms, _, Attend(newcomer, steps)):
                return self._on_attend(now_ms, newcomer, steps)
            case Received(_, _, Begin(members)):
                return self._begin(members)
            case TimerFired(_, AttendDue()):
                return [] if self.in_ring else self._attend()
            case Notified(_, NeighboursChanged(_, successors)):
                return self._on_neighbours(successors)
        raise UnexpectedEvent(event)

    def _attend(self) -> list[Effect]:
        return [Send(self._contacts[:1], Attend(self._node, 0)), SetTimer(AttendDue(), ATTEND_MS)]

    def _on_attend(self, now_ms: int, newcomer: NodeId, steps: int) -> list[Effect]:
        if self.in_ring or newcomer == self._node:
            return []  # It asks to join as well, and that is answered.
        if self._contacts:
            onward = [contact for contact in self._contacts if contact != newcomer][:1]
            return [Send(tuple(onward), Attend(newcomer, steps + 1))] if onward and 0 <= steps < STEPS_MAX else []
        self._heard_ms[newcomer] = now_ms
        earliest_ms = now_ms - ATTENDING_MS_MAX
        self._heard_ms = {node: heard_ms for node, heard_ms in self._heard_ms.items() if heard_ms >= earliest_ms}
        if len(self._heard_ms) + 1 < self._founders:
            return []
        members = (self._node, *self._heard_ms)
        return [Send(tuple(self._heard_ms), Begin(members)), *self._begin(members)]

    def _begin(self, members: tuple[NodeId, ...]) -> list[Effect]:
        members = tuple(dict.fromkeys(members))
        if self.in_ring or self._node not in members or not 2 <= len(members) <= FOUNDERS_MAX:
            return []
        take_place = founding_links(self._node, members, self._successors_max)
        return [Ask(take_place), Notify(Founded(members))]

    def _on_neighbours(self, successors: tuple[NodeId, ...]) -> list[Effect]:
        """In the ring for the first time: from now on Chord alone takes care of the place."""
        if self.in_ring or not successors:
            return []
        self.in_ring = True
        self._heard_ms.clear()
        return [CancelTimer(AttendDue())]
