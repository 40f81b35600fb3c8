"""The Chord layer: the ring, its fingers and its routes behind one `handle`."""

from __future__ import annotations

import random

from tidings.errors import MessageTooLarge
from tidings.protocols.chord.fingers import Fingers
from tidings.protocols.chord.identifiers import to_key
from tidings.protocols.chord.lookups import Lookups
from tidings.protocols.chord.messages import (
    JOIN,
    LOOKUP,
    ROUTE,
    STEP,
    AskLinks,
    Consider,
    Delivered,
    FindRoot,
    FixFingersDue,
    Found,
    Hop,
    HopDue,
    HopTaken,
    Isolated,
    JoinDue,
    LookupDue,
    NeighboursChanged,
    Place,
    Precede,
    QueryDue,
    RootUnknown,
    Route,
    RouteStep,
    Seek,
    StabiliseDue,
    Stepped,
    TakePlace,
    TellLinks,
)
from tidings.protocols.chord.ring import Links, Ring
from tidings.protocols.chord.routing import Routing
from tidings.protocols.stack import (
    Effect,
    Event,
    NodeId,
    Notify,
    PeerDown,
    Received,
    Requested,
    Send,
    SetTimer,
    TimerFired,
    UnexpectedEvent,
)
from tidings.settings import ChordSettings


class Chord:
    """One node of the ring. It begins as a founding member with `links`, or joins by one of its `contacts`; without
    either it waits to be told its neighbours (`TakePlace`).
    """

    handles = (
        *(AskLinks, TellLinks, Precede, Place, Hop, HopTaken, Found),
        *(Route, RouteStep, FindRoot, TakePlace, Seek, Consider),
        *(StabiliseDue, FixFingersDue, JoinDue, QueryDue, HopDue, LookupDue),
    )
    listens = (PeerDown,)

    def __init__(
        self,
        node: NodeId,
        settings: ChordSettings,
        rng: random.Random,
        links: Links | None = None,
        contacts: tuple[NodeId, ...] = (),
        ring: type[Ring] = Ring,
    ) -> None:
        self.node = node
        self.ring = ring(node, settings)
        self.fingers = Fingers(self.ring.own)
        self.routing = Routing(self.ring, self.fingers, settings, self._on_arrival)
        self._lookups = Lookups(settings, self.routing.begin, self._on_finger)
        self._settings = settings
        self._random = rng
        self._links = links
        self._contacts = contacts or (links.successors if links is not None else ())
        self._next_contact = 0
        self._told: tuple[NodeId | None, tuple[NodeId, ...]] = (None, ())

    def start(self, now_ms: int) -> list[Effect]:
        # Spread over the period, so that not all nodes speak at once.
        effects: list[Effect] = [
            SetTimer(StabiliseDue(), self._random.randrange(self._settings.stabilise_ms) + 1),
            SetTimer(FixFingersDue(), self._random.randrange(self._settings.fix_fingers_ms) + 1),
        ]
        if self._links is None:
            return [*effects, *self._join()]
        self.ring.take_place(self._links)
        self.fingers.load(self._links.fingers)
        return [*effects, *self._news()]

    def handle(self, event: Event) -> list[Effect]:
        effects = self._react(event)
        ring = self.ring
        if self._told[1] is not ring.successors or self._told[0] != self._live_predecessor():
            # First the news: what ends here because a neighbour is gone is for somebody who knows that.
            effects = self._news() + effects
        return effects

    def _react(self, event: Event) -> list[Effect]:
        match event:
            case Received(_, peer, message):
                return self._on_message(peer, message)
            case TimerFired(_, timer):
                return self._on_timer(timer)
            case Requested(_, Route(key, payload)):
                return self._on_route(ROUTE, key, payload)
            case Requested(_, RouteStep(key, payload)):
                return self._on_route(STEP, key, payload)
            case Requested(_, FindRoot(key)):
                return self._lookups.find(key) if self.ring.is_member else [Notify(RootUnknown(key))]
            case Requested(_, TakePlace(predecessor, successors)):
                return self._on_take_place(Links(predecessor, successors))
            case Requested(_, Seek(contacts)):
                return [] if self.ring.is_member else [Send(contacts, self._wanted())]
            case Requested(_, Consider(peer)):
                return self.ring.consider(peer)
            case PeerDown(_, peer):
                return self._on_down(peer)
        raise UnexpectedEvent(event)

    def _on_message(self, peer: NodeId, message: object) -> list[Effect]:
        match message:
            case Hop():
                return self.routing.on_hop(peer, message)
            case HopTaken(number):
                return self.routing.on_hop_taken(peer, number)
            case AskLinks(query):
                return self.ring.on_ask(peer, query)
            case TellLinks():
                return self.ring.on_links(peer, message)
            case Precede():
                return self.ring.on_precede(peer)
            case Found(token, hops):
                return self._lookups.on_found(peer, token, hops)
            case Place():
                return self.ring.on_place(peer, message)
        raise UnexpectedEvent(message)

    def _on_timer(self, timer: object) -> list[Effect]:
        match timer:
            case StabiliseDue():
                return [SetTimer(timer, self._settings.stabilise_ms), *self.ring.stabilise()]
            case FixFingersDue():
                return [SetTimer(timer, self._settings.fix_fingers_ms), *self._fix_finger()]
            case QueryDue(query):
                return self.ring.on_query_due(query)
            case HopDue(number):
                return self.routing.on_hop_due(number)
            case LookupDue(token):
                return self._lookups.on_due(token)
            case JoinDue():
                return self._join()
        raise UnexpectedEvent(timer)

    # Joining and leaving.

    def _join(self) -> list[Effect]:
        """Asks a contact to find our place; the next one if no answer came."""
        if self.ring.is_member or not self._contacts:
            return []
        contact = self._contacts[self._next_contact % len(self._contacts)]
        self._next_contact += 1
        return [Send((contact,), self._wanted()), SetTimer(JoinDue(), self._settings.join_ms)]

    def _wanted(self) -> Hop:
        return Hop(0, JOIN, to_key(self.ring.own), self.node, 0, 0, False, b"")

    def _on_take_place(self, links: Links) -> list[Effect]:
        """The ring is being founded, and this node is one of the founding members."""
        if not self.ring.is_member:
            self.ring.take_place(links)
            self._contacts = self._contacts or links.successors
        return []

    def _on_down(self, peer: NodeId) -> list[Effect]:
        self.fingers.forget(peer)
        return [*self.ring.on_down(peer), *self.routing.on_down(peer)]

    def _live_predecessor(self) -> NodeId | None:
        return None if self.ring.predecessor_is_dead else self.ring.predecessor

    def _news(self) -> list[Effect]:
        """Tells the layers above when the neighbours are others than they were."""
        before, self._told = self._told, (self._live_predecessor(), self.ring.successors)
        if before == self._told:
            return []
        news: list[Effect] = [Notify(NeighboursChanged(*self._told))]
        if before[1] and not self.ring.is_member:
            self.fingers.clear()
            news += [Notify(Isolated()), *self._join()]
        return news

    # Fingers.

    def _fix_finger(self) -> list[Effect]:
        if not self.ring.is_member:
            return []
        k = self.fingers.next_to_fix(self.ring.successor)
        return [] if k is None else self._lookups.find_finger(k, to_key(self.fingers.point_of(k)))

    def _on_finger(self, k: int, node: NodeId) -> None:
        if node == self.node:
            self.fingers.skip(k)
        else:
            self.fingers.put(k, node)

    # Routes.

    def _on_route(self, kind: int, key: bytes, payload: bytes) -> list[Effect]:
        if len(payload) > self._settings.payload_bytes_max:
            raise MessageTooLarge(
                f"A routed payload of {len(payload)} bytes is above the limit of {self._settings.payload_bytes_max}: "
                "send less at once or raise payload_bytes_max."
            )
        return self.routing.begin(kind, key, payload=payload)

    def _on_arrival(self, hop: Hop) -> list[Effect]:
        if hop.kind == ROUTE:
            return [Notify(Delivered(hop.key, hop.payload, hop.origin, hop.hops))]
        if hop.kind == STEP:
            return [Notify(Stepped(hop.key, hop.payload, hop.origin, is_owner=True))]
        assert hop.kind == LOOKUP
        if hop.origin == self.node:
            return self._lookups.on_found(self.node, hop.token, hop.hops)
        return [Send((hop.origin,), Found(hop.token, hop.hops))]
