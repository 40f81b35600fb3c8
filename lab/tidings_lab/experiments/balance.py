"""Figures of the ring: hops of a lookup, and how evenly topics are spread over nodes."""

from __future__ import annotations

import math
from bisect import bisect_left
from random import Random

import msgspec

from tidings.protocols.chord import Chord, ChordSettings, FindRoot, RootFound, identifier, key_of, stable_links
from tidings.protocols.chord.identifiers import SIZE, to_key, to_point
from tidings.protocols.ring.key_ranges import WHOLE, KeyRange
from tidings.protocols.ring.placing import draw_group, place_of
from tidings.protocols.stack import NodeId, Stack
from tidings_lab.simulated_overlay.world import World

LOOKUPS_AT_ONCE = 500


class HopsRow(msgspec.Struct, frozen=True):
    """How many hops lookups took in one ring. A hop is one message on the way from the asker to the owner."""

    nodes: int
    lookups: int
    answered: int
    right: int
    """Answers that named the true owner."""
    hops_mean: float
    hops_p50: int
    hops_p99: int
    hops_max: int
    half_log2: float
    """Half of log2 of the number of nodes: what the Chord paper finds."""
    ratio: float


class Lookup(msgspec.Struct, frozen=True):
    """One lookup that was answered."""

    key: str
    hops: int
    is_right: bool
    """Whether the answer named the true owner."""


def look_up(nodes: int, lookups: int = 5_000, seed: int = 0, successors_max: int = 8) -> list[Lookup]:
    """Asks for random keys from random nodes of a ring that is at rest.

    >>> answers = look_up(64, lookups=200)
    >>> len(answers), all(answer.is_right for answer in answers)
    (200, True)
    """
    rng = Random(seed)
    # At rest nothing changes, so that nothing has to be kept up.
    settings = ChordSettings(successors_max=successors_max, stabilise_ms=10**9, fix_fingers_ms=10**9)
    names = [f"node-{index}" for index in range(nodes)]
    world = World(seed)
    for name, links in stable_links(names, settings).items():
        world.start(name, Stack([Chord(name, settings, Random(rng.getrandbits(64)), links=links)]))
    found: list[RootFound] = []
    world.observe(RootFound, lambda _us, _node, news: found.append(news))
    keys = {key_of(f"key-{index}"): f"key-{index}" for index in range(lookups)}
    for index, key in enumerate(keys):
        world.request(rng.choice(names), FindRoot(key))
        if index % LOOKUPS_AT_ONCE == 0:
            world.run_for(1_000)
    world.run_for(30_000)
    owners = owners_of(list(keys.values()), names)
    return [Lookup(keys[answer.key], answer.hops, owners[keys[answer.key]] == answer.root) for answer in found]


def measure_hops(nodes: int, lookups: int = 5_000, seed: int = 0, successors_max: int = 8) -> HopsRow:
    """The figures of many lookups.

    >>> row = measure_hops(64, lookups=200)
    >>> row.answered == row.right == 200 and row.hops_mean < 6
    True
    """
    found = look_up(nodes, lookups, seed, successors_max)
    hops = sorted(answer.hops for answer in found)
    half_log2 = math.log2(nodes) / 2
    mean = sum(hops) / len(hops)
    return HopsRow(
        nodes=nodes,
        lookups=lookups,
        answered=len(found),
        right=sum(answer.is_right for answer in found),
        hops_mean=round(mean, 3),
        hops_p50=hops[len(hops) // 2],
        hops_p99=hops[len(hops) * 99 // 100],
        hops_max=hops[-1],
        half_log2=round(half_log2, 3),
        ratio=round(mean / half_log2, 3),
    )


class TopicsRow(msgspec.Struct, frozen=True):
    """How many topics each node owns."""

    nodes: int
    topics: int
    virtual: int
    """Points on the circle for each node; 1: no virtual identifiers."""
    expected: float
    owned_min: int
    owned_max: int
    owned_p99: int
    deviation: float
    """The standard deviation."""
    without: int
    """Nodes that own nothing."""


def measure_topics(nodes: int, topics: int, virtual: int = 1) -> TopicsRow:
    """Counts the topics that each node owns, with so many virtual identifiers for each (Chord, section 6.1).

    >>> measure_topics(10, 30).expected
    3.0
    """
    owned = sorted(count_topics(nodes, topics, virtual).values())
    expected = topics / nodes
    return TopicsRow(
        nodes=nodes,
        topics=topics,
        virtual=virtual,
        expected=round(expected, 3),
        owned_min=owned[0],
        owned_max=owned[-1],
        owned_p99=owned[nodes * 99 // 100],
        deviation=round(math.sqrt(sum((count - expected) ** 2 for count in owned) / nodes), 3),
        without=owned.count(0),
    )


def count_topics(nodes: int, topics: int, virtual: int = 1, ring: str = "") -> dict[NodeId, int]:
    """How many topics each node owns. Rings of other names have nodes at other places.

    >>> sum(count_topics(10, 30).values())
    30
    """
    names = [f"{ring}node-{index}" for index in range(nodes)]
    points = [f"{name}#{index}" for name in names for index in range(virtual)] if virtual > 1 else names
    owners = owners_of([f"topic-{index}" for index in range(topics)], points)
    counts = dict.fromkeys(names, 0)
    for owner in owners.values():
        counts[owner.partition("#")[0]] += 1
    return counts


def owners_of(names: list[str], nodes: list[NodeId]) -> dict[str, NodeId]:
    """The first node at or after the point of each name."""
    ring = sorted(nodes, key=identifier)
    points = [identifier(node) for node in ring]
    return {name: ring[bisect_left(points, identifier(name)) % len(ring)] for name in names}


class SharesRow(msgspec.Struct, frozen=True):
    """What groups own of the circle that joined one after the other."""

    groups: int
    largest: float
    """Times the mean."""
    smallest: float


def measure_shares(groups: int, seed: int = 0, chosen: bool = True) -> SharesRow:
    """The shares of groups that choose their places as those of a ring do; if not `chosen`, they take any.

    >>> measure_shares(2).largest < 1.2
    True
    """
    rng = Random(seed)
    places: list[tuple[int, bytes]] = []
    for _ in range(groups):
        owned = [(group, _range_of(places, index)) for index, (_, group) in enumerate(places)]
        group = draw_group(owned if chosen else (), lambda: rng.randbytes(16))
        places = sorted([*places, (to_point(place_of(group)), group)])
    sizes = [(place - places[index - 1][0]) % SIZE or SIZE for index, (place, _) in enumerate(places)]
    return SharesRow(groups, round(max(sizes) / SIZE * groups, 3), round(min(sizes) / SIZE * groups, 3))


def _range_of(places: list[tuple[int, bytes]], index: int) -> KeyRange:
    if len(places) == 1:
        return WHOLE
    return KeyRange(to_key(places[index - 1][0]), to_key(places[index][0]))
