"""Many groups at rest: hops of a lookup, the trees of topics, and what the busiest owner owns.

All virtual nodes know all groups from the beginning, as after a restart of everything, so one directory serves them
all; they take their places, find their fingers, and are then asked.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from tidings.protocols.chord import RootFound
from tidings.protocols.chord.identifiers import Key, key_of
from tidings.protocols.ring.directory import Directory
from tidings.protocols.ring.key_ranges import point_of
from tidings.protocols.ring.messages import Between, GroupDescriptor
from tidings.protocols.ring.virtual_node import VirtualNode, group_of
from tidings.protocols.scribe.messages import Spread
from tidings.protocols.stack import Notification
from tidings.settings import ChordSettings, ScribeSettings
from tidings_lab.simulated_service.virtual_nodes import MEMBERS, Group, VirtualNodeWorld, group_name

CHORD = ChordSettings(stabilise_ms=2_000, fix_fingers_ms=1_000)
PLACE_MS_MAX = 25_000
"""Enough for every finger to be found."""
LOOKUPS = 2_000
LOOKUPS_AT_ONCE = 200
TREES = 5
"""Topics for each share of the virtual nodes that subscribes."""
MESSAGES = 3
GROW_MS = 6_000
SPREAD_MS = 2_000
UPKEEP_MS = 5_000

_SPREAD = msgspec.msgpack.encode(Spread.__name__)


class FoundRoot(msgspec.Struct, frozen=True):
    """One lookup that was answered."""

    hops: int
    is_right: bool


class TreeUse(msgspec.Struct, frozen=True):
    """One message on its way down the tree of its topic."""

    topic: str
    share: float
    """Of the virtual nodes, those that were to subscribe."""
    subscribers: int
    delivered: int
    """Virtual nodes that wanted it and got it; the root is one of them if it subscribed."""
    sent: int
    """Messages that carried it from virtual node to virtual node."""
    depth_mean: float
    """Hops from the root to a virtual node that wanted it."""
    depth_max: int
    root_sent: int
    """Of those messages, how many the root sent itself."""


class Upkeep(msgspec.Struct, frozen=True):
    """What the ring costs while nobody asks for anything."""

    messages: float
    """Sent by a virtual node in a second."""
    size_bytes: float


class Asker(VirtualNode):
    """A virtual node that counts the hops of its lookups."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.lookups: list[RootFound] = []

    def _on_news(self, news: Notification) -> None:
        if isinstance(news, RootFound):
            self.lookups.append(news)
        super()._on_news(news)


class Groups:
    """A ring of so many groups at rest."""

    def __init__(self, groups: int, seed: int) -> None:
        names = [group_name(number, seed) for number in range(groups)]
        self._ring = sorted((GroupDescriptor(name, ()).point, name) for name in names)
        self.world = VirtualNodeWorld(seed, CHORD, ScribeSettings(), make=Asker)
        directory = Directory()
        for name in names:
            members = tuple(f"tcp://{name.hex()}.{number}" for number in range(MEMBERS))
            directory.learn_descriptor(GroupDescriptor(name, members))
        for name in names:
            self.world.add(name, (), directory).side = 0
        self.world.run(PLACE_MS_MAX)

    def root_of(self, point: Key) -> bytes:
        """The group that stands first at or after a point."""
        return self._ring[bisect_left(self._ring, (point, b"")) % len(self._ring)][1]

    def upkeep(self) -> Upkeep:
        world = self.world
        sent, size_bytes = sum(group.sent for group in world.live), world.size_bytes
        world.run(UPKEEP_MS)
        share = 1_000 / UPKEEP_MS / len(world.live)
        return Upkeep((sum(group.sent for group in world.live) - sent) * share, (world.size_bytes - size_bytes) * share)

    def look_up(self, count: int = LOOKUPS) -> Iterator[FoundRoot]:
        """Random points, asked for by random virtual nodes. What is not answered is missing."""
        world = self.world
        for number in range(count):
            world.ask(world.rng.choice(world.live), key_of(f"key {number}"))
            if number % LOOKUPS_AT_ONCE == 0:
                world.run(1_000)
        world.run(3_000)
        for group in world.live:
            assert isinstance(group.virtual_node, Asker)
            for found in group.virtual_node.lookups:
                yield FoundRoot(found.hops, group_of(found.root) == self.root_of(found.key))

    def multicast(self, shares: Iterable[float], trees: int = TREES, messages: int = MESSAGES) -> Iterator[TreeUse]:
        """For each share, some topics to which so many of the virtual nodes subscribe; the owner of each publishes."""
        world = self.world
        live = world.live
        wanted: dict[str, tuple[float, int]] = {}
        for share in shares:
            for number in range(trees):
                subscribers = world.rng.sample(live, max(1, round(len(live) * share)))
                wanted[f"topic {share} {number}"] = share, len(subscribers)
                for group in subscribers:
                    world.subscribe(group, f"topic {share} {number}")
        world.run(GROW_MS)
        for _ in range(messages):
            yield from self._publish(wanted)

    def _publish(self, wanted: dict[str, tuple[float, int]]) -> Iterator[TreeUse]:
        """One message to each topic, all at the same time."""
        world = self.world
        owners = {topic: world.groups[self.root_of(point_of(topic))] for topic in wanted}
        depths = {topic: {owner.name: 0} for topic, owner in owners.items()}
        sent = dict.fromkeys(wanted, 0)
        root_sent = dict.fromkeys(wanted, 0)

        def watch(sender: Group, receiver: Group, message: Between) -> None:
            if _SPREAD in message.message[:16]:
                topic = msgspec.msgpack.decode(message.message, type=Spread).topic
                sent[topic] += 1
                root_sent[topic] += sender is owners[topic]
                depths[topic].setdefault(receiver.name, depths[topic][sender.name] + 1)

        world.arrived.clear()
        world.on_delivery = watch
        for topic, owner in owners.items():
            world.publish(owner, topic, b"news")
        world.run(SPREAD_MS)
        world.on_delivery = None
        assert len(set(world.arrived)) == len(world.arrived), "A virtual node got a message twice."
        for topic, (share, subscribers) in wanted.items():
            hops = [depths[topic][name] for name, arrived, _ in world.arrived if arrived == topic]
            yield TreeUse(
                topic=topic,
                share=share,
                subscribers=subscribers,
                delivered=len(hops),
                sent=sent[topic],
                depth_mean=sum(hops) / max(len(hops), 1),
                depth_max=max(hops, default=0),
                root_sent=root_sent[topic],
            )


def busiest(groups: int, ring: int, topics: Iterable[str]) -> tuple[int, int]:
    """The topics that the busiest owner of a ring owns, and how many groups own none."""
    points = sorted(GroupDescriptor(group_name(number, ring), ()).point for number in range(groups))
    owned = [0] * groups
    for topic in topics:
        owned[bisect_left(points, point_of(topic)) % groups] += 1
    return max(owned), owned.count(0)


def half_log2(groups: int) -> float:
    return math.log2(groups) / 2
