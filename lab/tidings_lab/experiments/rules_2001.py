"""The ring as Stoica et al. (2001) keep it, sections 4.4 and 5.1: only to show that the checkers see it break.

Zave, "Using lightweight modeling to understand Chord" (2012), found that none of the claimed invariants holds under
these rules. No node outside of the simulator can be built with them.
"""

from __future__ import annotations

from tidings.protocols.chord.identifiers import between, identifier
from tidings.protocols.chord.messages import Place, Precede
from tidings.protocols.chord.ring import PREDECESSOR, Links, Ring
from tidings.protocols.stack import Effect, NodeId, Send


class Ring2001(Ring):
    """The first published rules."""

    def on_place(self, peer: NodeId, place: Place) -> list[Effect]:
        """join: the successor is known, and nobody else: no predecessor, no list."""
        if self.is_member or not place.successors or place.successors[0] == self.node:
            return []
        self.take_place(Links(peer, place.successors[:1]))
        self.predecessor = None
        return self.stabilise()

    def _on_better_candidate(self, candidate: NodeId) -> list[Effect]:
        """stabilize: the successor's predecessor is adopted unasked."""
        self.successors = self._ordered((candidate, *self.successors))
        return [Send((candidate,), Precede())]

    def on_precede(self, peer: NodeId) -> list[Effect]:
        """notify: only a closer one, or the first that comes when there is none."""
        if not self.is_member or peer == self.node:
            return []
        if self.predecessor is None or between(identifier(self.predecessor), identifier(peer), self.own):
            self._take_predecessor(peer)
            return []
        # check_predecessor: one that does not answer is forgotten.
        return self._ask(PREDECESSOR, self.predecessor)

    def _on_dead_predecessor(self, peer: NodeId) -> list[Effect]:
        if peer == self.predecessor:
            self.predecessor = None
        return []

    def on_down(self, peer: NodeId) -> list[Effect]:
        effects = super().on_down(peer)
        if peer == self.predecessor:
            self.predecessor, self.predecessor_is_dead = None, False
        return effects
