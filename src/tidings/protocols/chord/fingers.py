"""Fingers: nodes far away, so that a message halves its distance with every hop (Chord, section 4.3).

Finger k is the first node at or after this node's point + 2^k. Of the 256 only those that lead beyond the first
successor are kept and looked up: about log2 of the number of nodes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence

from tidings.protocols.chord.identifiers import BITS, SIZE, distance, identifier
from tidings.protocols.stack import NodeId


class Fingers:
    """The finger table of one node."""

    def __init__(self, own: int) -> None:
        self._own = own
        self._table: dict[int, NodeId] = {}
        self._next = BITS
        self._sorted: tuple[tuple[NodeId, ...], list[int], list[NodeId]] | None = None
        """For which successor list; the distances of all known nodes; and the nodes, nearest first."""

    def __len__(self) -> int:
        return len(self._table)

    def items(self) -> Iterable[tuple[int, NodeId]]:
        return self._table.items()

    def put(self, k: int, node: NodeId) -> None:
        """Finger k has been found. The fingers in between that must be the same node are set with it."""
        away = distance(self._own, identifier(node))
        while k < BITS:
            self._table[k] = node
            k += 1
            if away < 1 << k:
                break
        self._next = k
        self._sorted = None

    def load(self, table: Iterable[tuple[int, NodeId]]) -> None:
        self._table = dict(table)
        self._sorted = None

    def forget(self, node: NodeId) -> None:
        """A dead node is no finger."""
        dead = [k for k, name in self._table.items() if name == node]
        for k in dead:
            del self._table[k]
        if dead:
            self._sorted = None

    def clear(self) -> None:
        self.load(())

    def next_to_fix(self, successor: NodeId) -> int | None:
        """The finger whose turn it is; after the last one comes the first that leads beyond the successor."""
        first = distance(self._own, identifier(successor)).bit_length()
        for k in [k for k in self._table if k < first]:
            del self._table[k]
            self._sorted = None
        if self._next >= BITS or self._next < first:
            self._next = first
        return self._next if self._next < BITS else None

    def skip(self, k: int) -> None:
        """Finger k leads all the way round to this node: there is no such finger, nor one behind it."""
        for far in [far for far in self._table if far >= k]:
            del self._table[far]
            self._sorted = None
        self._next = BITS

    def point_of(self, k: int) -> int:
        return (self._own + (1 << k)) % SIZE

    def preceding(self, point: int, successors: tuple[NodeId, ...]) -> Sequence[NodeId]:
        """Every known node strictly before a point, the nearest first: the last one is the closest to the point."""
        distances, nodes = self._known(successors)
        return nodes[: bisect_left(distances, distance(self._own, point) or SIZE)]

    def _known(self, successors: tuple[NodeId, ...]) -> tuple[list[int], list[NodeId]]:
        if self._sorted is None or self._sorted[0] != successors:
            known = {name: distance(self._own, identifier(name)) for name in (*successors, *self._table.values())}
            nodes = sorted(known, key=known.__getitem__)
            self._sorted = (successors, [known[name] for name in nodes], nodes)
        return self._sorted[1], self._sorted[2]
