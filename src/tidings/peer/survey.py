"""A walk from node to node: who is there, and is the overlay as it should be once nothing changes any more?

What is asked while nodes come and go is the truth of different moments, so a problem that is found then may be none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import islice

import msgspec

from tidings.errors import TidingsError
from tidings.peer.caller import NodeCaller
from tidings.protocols.chord import identifier
from tidings.transport.curve import ClientOptions
from tidings.wire.door import NodeView

AT_ONCE_MAX = 32
NODES_MAX = 10_000
PROBLEMS_MAX = 20
LOOK_SECONDS = 2.0


class Survey(msgspec.Struct, frozen=True):
    """What all nodes that could be found see."""

    nodes: tuple[NodeView, ...]
    """In the order of their identifiers: for a ring, its own."""
    silent: tuple[str, ...]
    """Nodes that somebody knows of and that do not answer."""
    problems: tuple[str, ...]
    """Why the overlay is not whole; none if it is."""

    @property
    def whole(self) -> bool:
        return not self.problems


def walk(start: str, curve: ClientOptions | None = None, timeout: float = LOOK_SECONDS) -> Survey:
    """Asks a node what it sees, then every node that it knows of, and so on."""

    def look(address: str) -> NodeView | None:
        try:
            with NodeCaller(address, curve, timeout) as caller:
                return caller.look()
        except TidingsError:
            return None

    with ThreadPoolExecutor(AT_ONCE_MAX) as pool:
        found, silent = spread(start, lambda addresses: pool.map(look, addresses))
    nodes = tuple(found[address] for address in sorted(found, key=identifier))
    return Survey(nodes, tuple(silent), tuple(islice(problems(found), PROBLEMS_MAX)))


Look = Callable[[Iterable[str]], Iterable[NodeView | None]]
"""Asks several nodes at once; None stands for one that does not answer."""


def spread(start: str, look: Look) -> tuple[dict[str, NodeView], list[str]]:
    """Every node that can be reached from the first, in waves; and those that do not answer."""
    found: dict[str, NodeView] = {}
    silent: list[str] = []
    wave = [start]
    while wave and len(found) < NODES_MAX:
        for address, view in zip(wave, look(wave), strict=True):
            if view is None:
                silent.append(address)
            else:
                found[address] = view
        known = dict.fromkeys(other for view in found.values() for other in view.others())
        wave = [address for address in known if address not in found and address not in silent]
    return found, silent


Nodes = Mapping[str, NodeView]


def problems(nodes: Nodes) -> Iterator[str]:
    """What is not as it should be."""
    overlays = {view.overlay for view in nodes.values()}
    if len(overlays) != 1:
        yield f"the nodes are of {len(overlays)} kinds of overlay" if overlays else "no node answers"
        return
    for view in nodes.values():
        if not view.joined:
            yield f"{view.address} has not joined"
    members = {address: view for address, view in nodes.items() if view.joined}
    if overlays == {"chord"}:
        yield from ring_problems(members)
        yield from tree_problems(members)
    else:
        yield from view_problems(members)


def ring_problems(members: Nodes) -> Iterator[str]:
    """The ring is one and ordered if everybody's neighbours are exactly those that follow from the identifiers."""
    ring = sorted(members, key=identifier)
    for index, address in enumerate(ring):
        links = members[address].ring
        assert links is not None
        length = min(links.successors_max, len(ring) - 1)
        wanted = tuple(ring[(index + step) % len(ring)] for step in range(1, length + 1))
        if links.successors != wanted:
            yield f"the successors of {address} are {_names(links.successors)} and should be {_names(wanted)}"
        if links.predecessor != ring[index - 1]:
            yield f"the predecessor of {address} is {links.predecessor} and should be {ring[index - 1]}"


def tree_problems(members: Nodes) -> Iterator[str]:
    """Each topic with subscribers has one root, and from it every subscriber is reached."""
    trees = {(tree.topic, address): tree for address, view in members.items() for tree in view.trees}
    for topic in dict.fromkeys(topic for view in members.values() for topic in view.subscriptions):
        roots = [address for address in members if (topic, address) in trees and trees[topic, address].is_root]
        if len(roots) != 1:
            yield f"the topic {topic!r} has {len(roots)} roots"
            continue
        reached = dict.fromkeys(roots)
        for address in (waiting := list(roots)):  # It grows while it is walked: the tree level by level.
            for child in trees[topic, address].children:
                part = trees.get((topic, child))
                if part is not None and part.parent == address and child not in reached:
                    reached[child] = None
                    waiting.append(child)
        for address, view in members.items():
            if topic in view.subscriptions and address not in reached:
                yield f"the tree of {topic!r} does not reach {address}"


def view_problems(members: Nodes) -> Iterator[str]:
    """Active views are mutual, and connect all nodes."""
    active = {address: view.views.active if view.views is not None else () for address, view in members.items()}
    for address, view in active.items():
        for peer in view:
            if peer not in active:
                yield f"{address} has {peer} in its active view, which does not answer"
            elif address not in active[peer]:
                yield f"{address} has {peer} in its active view, but not the other way round"
    reached = dict.fromkeys(islice(active, 1))
    for address in (waiting := list(reached)):
        for peer in active[address]:
            if peer in active and peer not in reached:
                reached[peer] = None
                waiting.append(peer)
    if len(reached) < len(active):
        yield f"only {len(reached)} of {len(active)} nodes are connected to {waiting[0]}"


def _names(nodes: tuple[str, ...]) -> str:
    return ", ".join(nodes) or "nobody"
