"""Routes: a message goes from node to node, each nearer to the owner of its key (Chord, section 4.3).

Routing is recursive: each node hands the message on and is told that it was taken. Repair is iterative: a node that
does not confirm is left out, and the next best one is tried, until none is left. A message may therefore arrive more
than once, if only the confirmation was lost; anyone who is above has to recognise it.

The last hop needs care. The node before a key hands it to its successor as `is_last`. If that one knows a closer
owner (its predecessor has just joined), it hands the message back to it; if its predecessor is dead, it is the owner
itself.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from msgspec.structs import replace

from tidings.protocols.chord.fingers import Fingers
from tidings.protocols.chord.identifiers import identifier, to_point, within
from tidings.protocols.chord.messages import JOIN, STEP, Hop, HopDue, HopTaken, Stepped
from tidings.protocols.chord.ring import Ring
from tidings.protocols.stack import CancelTimer, Effect, NodeId, Notify, Send, SetTimer
from tidings.settings import ChordSettings


class Pending(msgspec.Struct):
    """A hop that has not been confirmed."""

    hop: Hop
    peer: NodeId
    tried: tuple[NodeId, ...]
    """Nodes that did not take it."""
    is_back: bool
    """It went back to our predecessor, which seemed to be the owner."""
    tries: int = 1


class Routing:
    """Carries messages one hop further, and makes sure that somebody took them."""

    def __init__(
        self, ring: Ring, fingers: Fingers, settings: ChordSettings, arrive: Callable[[Hop], list[Effect]]
    ) -> None:
        self._ring = ring
        self._fingers = fingers
        self._settings = settings
        self._arrive = arrive
        """What to do with a message that has come to its owner."""
        self._pending: dict[int, Pending] = {}
        self._number = 0
        self.dropped = 0
        """Messages that nobody took or that went in circles."""

    def begin(self, kind: int, key: bytes, token: int = 0, payload: bytes = b"") -> list[Effect]:
        """Sends a message of this node's own on its way."""
        hop = Hop(0, kind, key, self._ring.node, token, 0, False, payload)
        return self._arrive(hop) if self._ring.owns(to_point(key)) else self._forward(hop)

    def on_hop(self, peer: NodeId, hop: Hop) -> list[Effect]:
        """A message has come this far. A node outside of the ring does not confirm, so that another way is found."""
        if not self._ring.is_member:
            return []
        return [Send((peer,), HopTaken(hop.number)), *self._advance(hop)]

    def _advance(self, hop: Hop) -> list[Effect]:
        ring, point = self._ring, to_point(hop.key)
        if hop.kind == JOIN:
            return self._advance_join(hop, point)
        if ring.owns(point) or (hop.is_last and (ring.predecessor is None or ring.predecessor_is_dead)):
            return self._arrive(hop)
        if hop.is_last:
            # The tree of a layer above must not lead through this node, which is past the key: so no `Stepped`.
            assert ring.predecessor is not None
            return self._send(hop, ring.predecessor, is_last=True, is_back=True)
        if hop.kind == STEP:
            return [Notify(Stepped(hop.key, hop.payload, hop.origin, is_owner=False))]
        return self._forward(hop)

    def _advance_join(self, hop: Hop, point: int) -> list[Effect]:
        """A joiner's place is behind the node whose successor comes after it (or is it, in an earlier life)."""
        if within(self._ring.own, point, identifier(self._ring.successor)):
            return self._ring.place_for(hop.origin)
        return self._forward(hop)

    def _forward(self, hop: Hop, tried: tuple[NodeId, ...] = ()) -> list[Effect]:
        if not self._ring.is_member or hop.hops >= self._settings.hops_max:
            self.dropped += 1
            return []
        point = to_point(hop.key)
        for node in reversed(self._fingers.preceding(point, self._ring.successors)):
            # A joiner that is still known from an earlier life cannot help to find its place.
            if node not in tried and not (hop.kind == JOIN and node == hop.origin):
                return self._send(hop, node, is_last=False, tried=tried)
        for node in self._ring.successors:
            if node not in tried and within(self._ring.own, point, identifier(node)):
                return self._send(hop, node, is_last=True, tried=tried)
        self.dropped += 1
        return []

    def _send(
        self, hop: Hop, peer: NodeId, is_last: bool, tried: tuple[NodeId, ...] = (), is_back: bool = False
    ) -> list[Effect]:
        self._number += 1
        number = self._number
        onward = replace(hop, number=number, hops=hop.hops + 1, is_last=is_last)
        send = Send((peer,), onward)
        if len(self._pending) >= self._settings.pending_max:
            return [send]
        self._pending[number] = Pending(onward, peer, tried, is_back)
        return [send, SetTimer(HopDue(number), self._settings.hop_ms)]

    # Confirmation and repair.

    def on_hop_taken(self, peer: NodeId, number: int) -> list[Effect]:
        pending = self._pending.get(number)
        if pending is None or pending.peer != peer:
            return []
        del self._pending[number]
        return [CancelTimer(HopDue(number))]

    def on_hop_due(self, number: int) -> list[Effect]:
        pending = self._pending.pop(number, None)
        if pending is None:
            return []
        if pending.tries < self._settings.hop_tries:
            pending.tries += 1
            self._pending[number] = pending
            return [Send((pending.peer,), pending.hop), SetTimer(HopDue(number), self._settings.hop_ms)]
        self._fingers.forget(pending.peer)
        return self._repair(pending)

    def on_down(self, peer: NodeId) -> list[Effect]:
        """Whatever waits for a node that is gone goes another way."""
        effects: list[Effect] = []
        for number in [number for number, pending in self._pending.items() if pending.peer == peer]:
            effects += [CancelTimer(HopDue(number)), *self._repair(self._pending.pop(number))]
        return effects

    def _repair(self, pending: Pending) -> list[Effect]:
        hop = replace(pending.hop, hops=pending.hop.hops - 1)
        if pending.is_back:
            return self._arrive(hop)  # Our predecessor is dead: what it owned is ours.
        return self._forward(replace(hop, is_last=False), (*pending.tried, pending.peer))
