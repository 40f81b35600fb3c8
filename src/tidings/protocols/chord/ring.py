"""The ring itself: predecessor, successor list, and the rules that keep them right.

The rules are those of Zave, "Reasoning about identifier spaces: how to make Chord correct" (2017). What is different
from Stoica et al. (2001), and why:

- A joiner takes over the whole successor list of the node before it, and that node as its predecessor. In 2001 it had
  one successor and nobody else, and was cut off when that one died.
- A better successor is asked for its own list before it is adopted. In 2001 it was adopted unasked, and if it was dead
  it pushed a live one out of the list.
- A predecessor is given up only for a closer one, or when it does not answer. In 2001 it was forgotten first and then
  replaced by the one that came.
- A ring begins with r + 1 members that know each other, not with one.

These hold as long as no failure leaves a member without a live successor, and failures are told from slowness. A
ring that is cut in two for longer than `query_tries` questions becomes two rings: nothing here joins them again, unless
somebody above who still knows the other half names it (`consider`).

Differs from the paper: a list from which a dead node was taken is shorter for a while, where the paper fills it up with
a simulated identifier; and a list is cut where it would run past this node or backwards, because answers are old
by the time they arrive. And anyone who has a short list and gives it to a joiner puts itself at its end.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from tidings.protocols.chord.identifiers import between, distance, identifier, within
from tidings.protocols.chord.messages import AskLinks, Place, Precede, QueryDue, TellLinks
from tidings.protocols.stack import CancelTimer, Effect, NodeId, Send, SetTimer
from tidings.settings import ChordSettings


class Links(msgspec.Struct, frozen=True):
    """What a node knows of its ring."""

    predecessor: NodeId
    successors: tuple[NodeId, ...]
    fingers: tuple[tuple[int, NodeId], ...] = ()
    """(k, first node at or after this node's point + 2^k), for the k that lead beyond the first successor."""


def stable_links(names: Iterable[NodeId], settings: ChordSettings, fingers: bool = True) -> dict[NodeId, Links]:
    """What each node of a ring knows when nothing has changed for long: how a ring is founded.

    >>> links = stable_links(["a", "b", "c"], ChordSettings(successors_max=2))
    >>> links["a"].predecessor, links["a"].successors
    ('b', ('c', 'b'))
    """
    ring = sorted(names, key=identifier)
    count, length = len(ring), settings.successors_max
    assert count > length, f"A ring with lists of {length} needs {length + 1} founding members and has {count}."
    found = {}
    for index, name in enumerate(ring):
        successors = tuple(ring[(index + step) % count] for step in range(1, length + 1))
        table = _stable_fingers(ring, index) if fingers else ()
        found[name] = Links(ring[index - 1], successors, table)
    return found


def _stable_fingers(ring: Sequence[NodeId], index: int) -> tuple[tuple[int, NodeId], ...]:
    own, count = identifier(ring[index]), len(ring)
    table = []
    nearest = 1  # Steps to the first node that is far enough; it only grows with k.
    for k in range(distance(own, identifier(ring[(index + 1) % count])).bit_length(), 256):
        low, high = nearest, count
        while low < high:
            middle = (low + high) // 2
            if distance(own, identifier(ring[(index + middle) % count])) >= 1 << k:
                high = middle
            else:
                low = middle + 1
        nearest = low
        if nearest < count:
            table.append((k, ring[(index + nearest) % count]))
    return tuple(table)


STABILISE, CANDIDATE, PREDECESSOR, CONSIDERED = range(4)


class Query(msgspec.Struct):
    """A question that has not been answered yet."""

    purpose: int
    peer: NodeId
    tries: int = 1


class Ring:
    """The place of one node. Methods return what to send; `links` is the outcome."""

    def __init__(self, node: NodeId, settings: ChordSettings) -> None:
        self.node = node
        self.own = identifier(node)
        self.settings = settings
        self.is_member = False
        self.predecessor: NodeId | None = None
        self.predecessor_is_dead = False
        self.successors: tuple[NodeId, ...] = ()
        self._queries: dict[int, Query] = {}
        self._query_number = 0
        self._claimant: NodeId | None = None
        """Who takes the predecessor's place if that one turns out to be dead."""

    @property
    def successor(self) -> NodeId:
        return self.successors[0]

    def owns(self, point: int) -> bool:
        """Whether this node is responsible for a point, as far as it knows."""
        return self.predecessor is not None and within(identifier(self.predecessor), point, self.own)

    # Joining.

    def take_place(self, links: Links) -> None:
        """Begins as a member that knows its neighbours."""
        self.predecessor, self.predecessor_is_dead = links.predecessor, False
        self.successors = self._ordered(links.successors)
        assert self.successors, "A member needs a successor."
        self.is_member = True

    def on_place(self, peer: NodeId, place: Place) -> list[Effect]:
        """The node before us has been found: its list becomes ours, and it our predecessor."""
        successors = self._ordered(place.successors)
        if self.is_member or not successors or not between(identifier(peer), self.own, identifier(successors[0])):
            return []
        self.take_place(Links(peer, successors))
        return self.stabilise()

    def place_for(self, joiner: NodeId) -> list[Effect]:
        """Answers a joiner whose place is right behind this node.

        A joiner that is still in our list has died and come back: it must not be told to be its own successor. Or it
        is slow: it asked before it heard that it is a founding member. So the last successor stays, as without it this
        node would be out of the ring; of a ring of two both would be out, and neither could let the other in. Where
        the list is short we come last ourselves: in a small ring all others in it may be dead, and the joiner would
        find nobody and come again for ever.
        """
        if not self.is_member:
            return []
        others = tuple(name for name in self.successors if name != joiner)
        if others:
            self.forget(joiner)
        return [Send((joiner,), Place((*others, self.node)[: self.settings.successors_max]))]

    # Stabilising.

    def stabilise(self) -> list[Effect]:
        """Asks the successor for news, unless a round is still going on."""
        if not self.is_member or any(query.purpose in (STABILISE, CANDIDATE) for query in self._queries.values()):
            return []
        return self._ask(STABILISE, self.successor)

    def on_links(self, peer: NodeId, answer: TellLinks) -> list[Effect]:
        query = self._queries.get(answer.query)
        if query is None or query.peer != peer:
            return []
        del self._queries[answer.query]
        effects: list[Effect] = [CancelTimer(QueryDue(answer.query))]
        if query.purpose == STABILISE:
            effects += self._on_links_of_successor(peer, answer)
        elif query.purpose in (CANDIDATE, CONSIDERED):
            effects += self._on_links_of_candidate(peer, answer)
        else:
            self._claimant = None  # The predecessor lives, and nobody takes its place.
        return effects

    def _on_links_of_successor(self, peer: NodeId, answer: TellLinks) -> list[Effect]:
        if not self.successors or peer != self.successor:
            return []  # It was replaced while the answer was under way; the next round asks the new one.
        self.successors = self._ordered((peer, *answer.successors))
        candidate = answer.predecessor
        if candidate is not None and between(self.own, identifier(candidate), identifier(peer)):
            return self._on_better_candidate(candidate)
        return [Send((self.successor,), Precede())]

    def _on_better_candidate(self, candidate: NodeId) -> list[Effect]:
        """Somebody seems to stand between this node and its successor: only its own answer proves it."""
        return self._ask(CANDIDATE, candidate)

    def _on_links_of_candidate(self, peer: NodeId, answer: TellLinks) -> list[Effect]:
        if not self.successors:
            return []
        if between(self.own, identifier(peer), identifier(self.successor)):
            self.successors = self._ordered((peer, *answer.successors))
        return [Send((self.successor,), Precede())]

    def consider(self, peer: NodeId) -> list[Effect]:
        """Asks somebody of whom our successor has not told, as any candidate is asked. It is often dead: one question
        has to do, and stabilising does not wait for it.
        """
        if not self.is_member or not between(self.own, identifier(peer), identifier(self.successor)):
            return []
        if any(query.purpose == CONSIDERED for query in self._queries.values()):
            return []
        return self._ask(CONSIDERED, peer)

    # Rectifying.

    def on_precede(self, peer: NodeId) -> list[Effect]:
        """Somebody takes us for its successor. It is our predecessor if it is closer, or if the one we have is dead."""
        if not self.is_member or peer == self.node:
            return []
        if self.predecessor is None or self.predecessor_is_dead or self._is_closer_predecessor(peer):
            self._take_predecessor(peer)
            return []
        if peer == self.predecessor:
            return []
        claimant = self._claimant
        if claimant is None or between(identifier(claimant), identifier(peer), self.own):
            self._claimant = peer
        if any(query.purpose == PREDECESSOR for query in self._queries.values()):
            return []
        return self._ask(PREDECESSOR, self.predecessor)

    def _is_closer_predecessor(self, peer: NodeId) -> bool:
        assert self.predecessor is not None
        return between(identifier(self.predecessor), identifier(peer), self.own)

    def _take_predecessor(self, peer: NodeId) -> None:
        self.predecessor, self.predecessor_is_dead = peer, False

    # Questions, answers and silence.

    def on_ask(self, peer: NodeId, query: int) -> list[Effect]:
        """A node that is not in the ring does not answer: anyone who asks has to look further."""
        if not self.is_member:
            return []
        predecessor = None if self.predecessor_is_dead else self.predecessor
        return [Send((peer,), TellLinks(query, predecessor, self.successors))]

    def on_query_due(self, number: int) -> list[Effect]:
        """No answer: asks again, and then takes the peer for dead."""
        query = self._queries.pop(number, None)
        if query is None:
            return []
        if query.purpose == CONSIDERED:
            return []
        if query.tries < self.settings.query_tries:
            return self._ask(query.purpose, query.peer, query.tries + 1)
        return self._on_dead(query)

    def on_down(self, peer: NodeId) -> list[Effect]:
        """The transport says that a peer is gone."""
        effects: list[Effect] = []
        if peer == self.predecessor:
            self.predecessor_is_dead = True
        asked = [(number, query) for number, query in self._queries.items() if query.peer == peer]
        self.forget(peer)
        for number, query in asked:
            self._queries.pop(number, None)
            effects += [CancelTimer(QueryDue(number)), *self._on_dead(query)]
        return effects

    def forget(self, peer: NodeId) -> None:
        """Takes a dead node out of the list; without any successor left this node is out of the ring."""
        if peer not in self.successors:
            return
        self.successors = tuple(name for name in self.successors if name != peer)
        if not self.successors:
            self.leave()

    def leave(self) -> None:
        self.is_member = False
        self.predecessor, self.predecessor_is_dead, self.successors = None, False, ()
        self._queries.clear()
        self._claimant = None

    def _on_dead(self, query: Query) -> list[Effect]:
        if query.purpose == PREDECESSOR:
            return self._on_dead_predecessor(query.peer)
        self.forget(query.peer)
        if not self.is_member:
            return []
        if query.purpose == STABILISE:
            return self.stabilise()
        return [Send((self.successor,), Precede())]

    def _on_dead_predecessor(self, peer: NodeId) -> list[Effect]:
        claimant, self._claimant = self._claimant, None
        if peer == self.predecessor:
            self.predecessor_is_dead = True
            if claimant is not None:
                self._take_predecessor(claimant)
        return []

    def _ask(self, purpose: int, peer: NodeId, tries: int = 1) -> list[Effect]:
        self._query_number += 1
        number = self._query_number
        self._queries[number] = Query(purpose, peer, tries)
        return [Send((peer,), AskLinks(number)), SetTimer(QueryDue(number), self.settings.query_ms)]

    def _ordered(self, names: Sequence[NodeId]) -> tuple[NodeId, ...]:
        """As many names as a list may have, cut where they would not get further from this node."""
        kept: list[NodeId] = []
        reached = 0
        for name in names[: self.settings.successors_max]:
            away = distance(self.own, identifier(name))
            if away <= reached:
                break
            kept.append(name)
            reached = away
        return tuple(kept)
