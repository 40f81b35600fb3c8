"""The invariants of a Chord ring, as Zave (2017) states them, over what the live members know.

A node's *best successor* is the first live member of its list. Following best successors from anywhere ends in a
circle: the ring. Members that are not on it hang on it as appendages, as joiners do for a while.

Always: every member has a live successor; there is one ring and not two; the ring is ordered; every appendage leads
to it; and no list goes backwards or repeats itself. Once nothing changes any more, the ring is ideal: all members are
on it, and every list and predecessor is right.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

from tidings.protocols.chord import Chord, identifier
from tidings.protocols.chord.identifiers import between, distance
from tidings.protocols.chord.ring import Ring
from tidings.protocols.stack import NodeId
from tidings_lab.simulated_overlay.world import World

LIVE = "every member has a live successor"
ONE_RING = "there is at most one ring"
ANY_RING = "there is at least one ring"
ORDERED_RING = "the ring is ordered"
APPENDAGES = "every member leads to the ring"
ORDERED_LISTS = "successor lists are ordered and without repetition"
IDEAL = "a ring that is left alone becomes ideal"

RULES = (LIVE, ONE_RING, ANY_RING, ORDERED_RING, APPENDAGES, ORDERED_LISTS, IDEAL)


class Violation(AssertionError):
    """An invariant does not hold."""

    def __init__(self, rule: str, text: str) -> None:
        super().__init__(f"{rule}: {text}")
        self.rule = rule


Members = Mapping[NodeId, Ring]


def members(world: World) -> dict[NodeId, Ring]:
    """The live nodes that are in the ring, with what they know."""
    found = {}
    for name, node in world.nodes.items():
        if node.alive:
            ring = node.stack.layer(Chord).ring
            if ring.is_member:
                found[name] = ring
    return found


def best_successors(ring: Members) -> dict[NodeId, NodeId]:
    """The first live member of every list."""
    best = {}
    for name, node in ring.items():
        for successor in node.successors:
            if successor in ring:
                best[name] = successor
                break
        else:
            raise Violation(LIVE, f"{name} knows only dead successors: {node.successors}")
    return best


def ring_of(best: Mapping[NodeId, NodeId]) -> list[NodeId]:
    """The nodes of the one ring, in its order from the smallest identifier."""
    colours: dict[NodeId, NodeId] = {}  # From which start a node was met first.
    rings: list[list[NodeId]] = []
    for start in best:
        name = start
        while name not in colours:
            colours[name] = start
            if name not in best:
                raise Violation(APPENDAGES, f"{start} leads to {name}, which leads nowhere")
            name = best[name]
        if colours[name] == start:
            circle = [name]
            while (name := best[name]) != circle[0]:
                circle.append(name)
            rings.append(circle)
    if not rings:
        raise Violation(ANY_RING, "no node leads back to itself")
    if len(rings) > 1:
        raise Violation(ONE_RING, f"there are {len(rings)}: {rings}")
    first = min(range(len(rings[0])), key=lambda index: identifier(rings[0][index]))
    return rings[0][first:] + rings[0][:first]


def check_always(ring: Members) -> None:
    """What holds at every moment, joins and failures included."""
    if not ring:
        return
    for name, node in ring.items():
        away = [distance(node.own, identifier(successor)) for successor in node.successors]
        if away and (away[0] == 0 or any(left >= right for left, right in pairwise(away))):
            raise Violation(ORDERED_LISTS, f"{name} has {node.successors}")
    circle = ring_of(best_successors(ring))
    points = [identifier(name) for name in circle]
    if any(left >= right for left, right in pairwise(points)):
        raise Violation(ORDERED_RING, f"it is {circle}")


def check_ideal(ring: Members) -> None:
    """What holds once joins and failures have stopped for long enough."""
    check_always(ring)
    circle = sorted(ring, key=identifier)
    for index, name in enumerate(circle):
        node = ring[name]
        length = min(node.settings.successors_max, len(circle) - 1)
        wanted = tuple(circle[(index + step) % len(circle)] for step in range(1, length + 1))
        if node.successors != wanted:
            raise Violation(IDEAL, f"the successors of {name} are {node.successors} and should be {wanted}")
        if node.predecessor != circle[index - 1]:
            raise Violation(
                IDEAL, f"the predecessor of {name} is {node.predecessor}, and should be {circle[index - 1]}"
            )


def principals(ring: Members) -> list[NodeId]:
    """The members that no member's list skips (Zave 2017)."""
    skipped: set[NodeId] = set()
    points = {name: identifier(name) for name in ring}
    for name, node in ring.items():
        for left, right in pairwise((name, *node.successors)):
            start, end = identifier(left), identifier(right)
            skipped.update(other for other, point in points.items() if between(start, point, end))
    return [name for name in ring if name not in skipped]
