"""What the leader of a group does for the ring: it sits in the group's seat, takes arcs, gives them, and leaves.

A group that brings topics takes the points where they lie, those in its own arc with that, then hands on what belongs
to others. While it does, it serves them to its own clients. A topic of somebody else at such a point is in the way:
that point is left where it is, and asked for again from time to time.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from itertools import islice
from random import Random
from typing import TYPE_CHECKING, Any

from tidings.errors import InvalidRequest
from tidings.journal.disk import Buffer
from tidings.node.ring.interest import Interests
from tidings.protocols.broker import operators
from tidings.protocols.broker.topics import Place
from tidings.protocols.chord.identifiers import SIZE, Key, to_key, to_point
from tidings.protocols.effects import Effect, Persist
from tidings.protocols.ring.arcs import WHOLE, Arc, common, point_of, spots, without
from tidings.protocols.ring.commands import Claim, Know
from tidings.protocols.ring.handover import Handover
from tidings.protocols.ring.messages import Between, Card
from tidings.protocols.ring.ownership import Ownership, newest
from tidings.protocols.ring.policy import ring_of
from tidings.protocols.ring.seat import Seat

if TYPE_CHECKING:
    from tidings.node.ring.engine import RingMember

_log = logging.getLogger(__name__)

CLAIM_AGAIN_MS = 2_000
ASK_MS = 200
"""How long an owner has to say what it owns, before something of it is wished for."""
WISH_AGAIN_MS = 800
BRING_MAX = 64
"""Points that are taken or handed on at once: as many as there are hints to where they went."""
CLASH_AGAIN_MS = 30_000
"""How long a point is left alone at which somebody else has a topic."""
KNOW_EVERY_MS = 5_000
CLASHES_TOLD_MAX = 1_000
LEAVERS_MAX = 64
FAREWELL_EVERY_MS = 300
FAREWELLS_MAX = 64
"""Groups that are told that ours has left; they tell the others."""
FAREWELL_MS = 3_000
"""After this long it is enough that one of them has heard it."""


def after(point: Key) -> Key:
    """The point that follows another on the circle."""
    return to_key((to_point(point) + 1) % SIZE)


def wanted_of(arc: Arc, owner: Key, point: Key) -> Arc:
    """What a group at a point wants of an arc: what lies before it, but not its owner's own point.

    So every group owns the points up to its own, and Chord, for which that is so, finds who owns a point.

    >>> wanted_of(Arc(b"a", b"m"), b"m", b"e")
    Arc(start=b'a', end=b'e')
    >>> wanted_of(WHOLE, b"c", b"e"), wanted_of(WHOLE, b"m", b"e")
    (Arc(start=b'c', end=b'e'), Arc(start=b'm', end=b'e'))
    """
    is_behind = arc == WHOLE or owner in Arc(arc.start, point)
    return Arc(owner if is_behind else arc.start, point)


class Leading:
    """One time of leading; whoever leads next begins with what is in the journal."""

    def __init__(self, node: RingMember, now_ms: int) -> None:
        self._node = node
        self.machine = node.engine.broker.machine
        settings = node.settings
        self.handover = Handover(self.machine, self._read, node.directory.card)
        self.seat = Seat(
            node.card().group,
            node.directory,
            settings.chord,
            settings.scribe,
            Random(node.address + str(now_ms)),
            settings.dissemination,
        )
        self.interests = Interests()
        """What the nodes of the group want to get by way of the seat."""
        self._is_seated = False
        self._arcs = self.ring.arcs if self.ring is not None else None
        self._claimed_at_ms = now_ms - CLAIM_AGAIN_MS
        self._known_at_ms = now_ms
        self.heir: bytes | None = None
        """To whom everything is offered, if the group is to leave."""
        self._wish_at_ms = 0
        self._has_asked = False
        self._clashes: dict[Key, int] = {}
        """Points of what is brought where somebody else has a topic, and until when they are left alone."""
        self._told: dict[str, None] = {}
        self._leavers: dict[Any, int] = {}
        """Operators who want the group to leave and wait until it has, each with the number of its last request."""
        self._left_at_ms: int | None = None
        self._farewell_at_ms = 0
        self._heard: dict[bytes, None] = {}
        """Groups that have heard that ours has left."""

    @property
    def ring(self) -> Ownership | None:
        """What the group owns, None before it has claimed anything."""
        return ring_of(self.machine)

    def _read(self, place: Place) -> Buffer:
        return self._node.engine.batches.body(place)

    def ownership_moved(self) -> bool:
        """Whether other arcs are owned than when this was last asked; the very first claim is no move."""
        ring = self.ring
        arcs = None if ring is None else ring.arcs
        before, self._arcs = self._arcs, arcs
        return before is not None and before != arcs

    def partners(self) -> Iterator[bytes]:
        """The groups with which something is being handed over, or is to be."""
        ring = self.ring
        if ring is not None and ring.taking is not None:
            yield ring.taking.giver
        if self._leavers and self.heir is not None:
            yield self.heir
        if self._left_at_ms is not None:
            yield from self._waiting()

    def find(self, now_ms: int, point: Key) -> bool:
        """Has Chord look for the owner of a point; False if there is no ring to look in yet."""
        if not self._is_seated or not self.seat.is_member:
            return False
        self.seat.find(now_ms, point)
        return True

    def learn_interest(self, now_ms: int, front: str, topics: tuple[str, ...]) -> None:
        """Clients of a node of our group read these topics."""
        self.interests.learn(now_ms, front, topics)
        self._sync(now_ms)

    def _sync(self, now_ms: int) -> None:
        ring = self.ring
        if self._is_seated and ring is not None:
            self.interests.sync(now_ms, self.seat, ring.owns_topic)

    def publish(self, topic: str, payload: bytes) -> bool:
        """Sends a payload to the seats that want a topic; False if there is nobody to send it to."""
        return self._is_seated and self.seat.is_member and self.seat.publish(topic, payload)

    def receive(self, now_ms: int, between: Between) -> None:
        """A message for the seat; before that is taken, only the card of its sender counts."""
        if self._is_seated:
            self.seat.receive(now_ms, between)
        else:
            self._node.directory.learn_card(between.sender)

    def leave(self, peer: Any, request: int) -> None:
        """The group is to give away all that it owns; whoever asked hears when that is done."""
        ring = self.ring
        if ring is None or ring.arcs == (WHOLE,):
            raise InvalidRequest("The last group of a ring cannot leave it: there is nobody to take its topics.")
        if ring.strays:
            raise InvalidRequest(
                "This group still brings topics of its own into the ring: ask again when all are there."
            )
        if len(self._leavers) < LEAVERS_MAX or peer in self._leavers:
            self._leavers[peer] = request

    def tick(self, now_ms: int) -> list[Effect]:
        """What is due, as effects for the engine; the seat's messages lie in its `outgoing`."""
        node, ring = self._node, self.ring
        card = node.card()
        if ring is None:
            return list(self._claim(now_ms))
        if ring.arcs and not self._is_seated:
            self._is_seated = True
            self.seat.start(now_ms, card)
        if self._is_seated:
            self.seat.tick(now_ms, card)
            self._sync(now_ms)
        if not ring.arcs and not ring.has_left:
            # Also if it is to leave: somebody may be giving it something by now, and it would be missed for ever.
            self._come(now_ms, card)
        elif self._leavers:
            self._go(now_ms)
        elif ring.strays:
            self._bring(now_ms, ring)
        elif ring.brought:
            self._hand_on(now_ms, ring)
        self._note_clashes(now_ms, ring)
        return [*self.handover.tick(now_ms, card), *self._remember(now_ms, card)]

    def _claim(self, now_ms: int) -> Iterator[Effect]:
        """The first group of a ring owns all of it; every other one begins with nothing."""
        if now_ms - self._claimed_at_ms >= CLAIM_AGAIN_MS:
            self._claimed_at_ms = now_ms
            yield Persist(Claim(() if self._node.settings.contacts else (WHOLE,)))

    def _come(self, now_ms: int, card: Card) -> None:
        """A group that owns nothing wants the points up to its own, from whoever has them."""
        node = self._node
        owner = node.directory.find(card.point)
        if owner is None or not owner.leader:
            node.seek(now_ms, card.point)
        elif self.handover.idle and owner.group != card.group and now_ms >= self._wish_at_ms:
            # What is known may be old, and whoever has given the point away has nothing to give: so ask first.
            if not self._has_asked:
                self._has_asked, self._wish_at_ms = True, now_ms + ASK_MS
                node.doubt(owner.group)
                return
            self._has_asked, self._wish_at_ms = False, now_ms + WISH_AGAIN_MS
            for arc in node.directory.arcs_of(owner.group):
                if card.point in arc:
                    wanted = (wanted_of(arc, owner.point, card.point),)
                    self.handover.wish(without(wanted, spots(self._clashes)), owner)

    def _bring(self, now_ms: int, ring: Ownership) -> None:
        """Takes some points of what the group had before it joined, of one of their owners after the other."""
        node = self._node
        if not self.handover.idle or now_ms < self._wish_at_ms:
            return
        self._wish_at_ms = now_ms + ASK_MS
        of: dict[Card, list[Key]] = {}
        for point in ring.strays:
            owner = node.directory.find(point)
            if owner is None or not owner.leader:
                node.seek(now_ms, point)
            elif point not in self._clashes and owner.group != node.card().group:
                of.setdefault(owner, []).append(point)
        for owner, points in islice(of.items(), 1):
            self._wish_at_ms = now_ms + ASK_MS
            node.doubt(owner.group)
            self.handover.wish(spots(points[:BRING_MAX]), owner)

    def _hand_on(self, now_ms: int, ring: Ownership) -> None:
        """Offers what was brought to those who own what lies around it."""
        node = self._node
        if now_ms < self._wish_at_ms or ring.giving is not None:
            return
        self._wish_at_ms = now_ms + WISH_AGAIN_MS
        of: dict[Card, list[Arc]] = {}
        for arc in common(ring.brought, ring.arcs):
            point = after(arc.end)
            heir = node.directory.find(point)
            if heir is None or not heir.leader:
                node.seek(now_ms, point)
            elif heir.group != node.card().group:
                of.setdefault(heir, []).append(arc)
        for heir, arcs in islice(of.items(), 1):
            self.handover.offer(heir, tuple(arcs[:BRING_MAX]))

    def _note_clashes(self, now_ms: int, ring: Ownership) -> None:
        """Leaves points alone at which there is a topic of somebody else, and says so once for each."""
        self._clashes = {
            point: until_ms for point, until_ms in self._clashes.items() if now_ms < until_ms and point in ring.strays
        }
        for name in self.handover.take_clashes():
            self._clashes[point_of(name)] = now_ms + CLASH_AGAIN_MS
            if name not in self._told and len(self._told) < CLASHES_TOLD_MAX:
                self._told[name] = None
                _log.warning(
                    "tidings: The ring has a topic %r, and this group has one in the same place, which stays out of "
                    "the ring: it is served at the nodes of this group alone until the ring's is gone.",
                    name,
                )

    def _go(self, now_ms: int) -> None:
        """A group that leaves gives everything to whoever owns the points behind its own."""
        node, ring = self._node, self.ring
        assert ring is not None
        if ring.arcs:
            point = after(ring.arcs[-1].end)
            taker = node.directory.find(point)
            if taker is None or not taker.leader:
                node.seek(now_ms, point)
            else:
                self.heir = taker.group
                self.handover.leave(taker)
        elif ring.has_left and self._is_let_go(now_ms):
            leavers, self._leavers = self._leavers, {}
            for peer, request in leavers.items():
                node.engine.reply(peer, operators.RingLeft(request))

    def _is_let_go(self, now_ms: int) -> bool:
        """Whether nobody needs this group any more: once the operator knows that it has left, it is switched off.

        Who gave us something has to know that it was taken, for nobody else can tell. And somebody has to know that we
        have left, or else we would be waited for.
        """
        if self._left_at_ms is None:
            self._left_at_ms = now_ms
        directory, own = self._node.directory, self._node.card().group
        others = [card for card in directory.cards() if card.group != own and not card.left][-FAREWELLS_MAX:]
        deaf = [card for card in others if card.group not in self._heard]
        if deaf and now_ms >= self._farewell_at_ms:
            self._farewell_at_ms = now_ms + FAREWELL_EVERY_MS
            self._node.send_farewells(deaf)
        is_known = not deaf or (self._heard and now_ms - self._left_at_ms >= FAREWELL_MS)
        return bool(is_known) and not any(self._waiting())

    def _waiting(self) -> Iterator[bytes]:
        """The groups that gave us something, and may not know that we have it."""
        ring = self.ring
        assert ring is not None
        waits = self._node.directory.waits_for_taker
        return (giver for giver, number in ring.taken.items() if waits(giver, number))

    def on_heard(self, group: bytes) -> None:
        """A group knows that ours has left."""
        if self._left_at_ms is not None:
            self._heard[group] = None

    def remember_soon(self) -> None:
        """What is known of groups is to be written down now."""
        self._known_at_ms = 0

    def _remember(self, now_ms: int, card: Card) -> Iterator[Effect]:
        """Writes down which groups there are, so that this one finds its ring again after all nodes were down, and
        which have left, so that it waits for none of them.
        """
        ring = self.ring
        assert ring is not None
        if now_ms - self._known_at_ms < KNOW_EVERY_MS:
            return
        self._known_at_ms = now_ms
        cards = newest(each for each in self._node.directory.cards() if each.group != card.group)
        if _gist(cards) != _gist(ring.contacts):
            yield Persist(Know(cards))


def _gist(cards: tuple[Card, ...]) -> dict[bytes, tuple[object, ...]]:
    """What is worth writing down: not who leads at the moment."""
    return {card.group: (card.members, card.left) for card in cards}
