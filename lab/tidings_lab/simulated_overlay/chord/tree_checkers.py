"""What must be true of multicast trees and of what subscribers are handed."""

from __future__ import annotations

from tidings.protocols.scribe import MessageDelivered, MessagesMissed, Published, Scribe
from tidings.protocols.stack import NodeId
from tidings_lab.simulated_overlay.chord.checkers import Violation
from tidings_lab.simulated_overlay.world import Node, World

ACYCLIC = "trees have no circles"
COVERED = "a tree that is left alone reaches every live subscriber"
ONCE = "every subscriber gets each message once and in order"
SAME = "an offset is the same message everywhere"
ONLY_SUBSCRIBERS = "only subscribers deliver"
COMPLETE = "every live subscriber has every message"

RULES = (ACYCLIC, COVERED, ONCE, SAME, ONLY_SUBSCRIBERS, COMPLETE)


def scribes(world: World) -> dict[NodeId, Scribe]:
    return {name: world.nodes[name].stack.layer(Scribe) for name in world.live}


def check_acyclic(world: World, topics: list[str]) -> None:
    """At every moment: nobody is its own descendant by the children's tables, which messages follow."""
    nodes = scribes(world)
    for topic in topics:
        parents: dict[NodeId, list[NodeId]] = {}
        for name, scribe in nodes.items():
            tree = scribe.trees.get(topic)
            for child in tree.children if tree is not None else ():
                if child in nodes and (part := nodes[child].trees.get(topic)) is not None and part.parent == name:
                    parents.setdefault(child, []).append(name)
        for start in parents:
            name, steps = start, 0
            while name in parents:
                name, steps = parents[name][0], steps + 1
                if name == start or steps > len(nodes):
                    raise Violation(ACYCLIC, f"{start} is its own descendant in the tree of {topic!r}")


def reach(world: World, topic: str) -> dict[NodeId, int]:
    """Every live node that a message from the root would get to, with its depth; empty without one root."""
    nodes = scribes(world)
    roots = [name for name, scribe in nodes.items() if (tree := scribe.trees.get(topic)) and tree.is_root]
    if len(roots) != 1:
        return {}
    depths = {roots[0]: 0}
    waiting = [roots[0]]
    for name in waiting:  # It grows while it is walked: the tree level by level.
        tree = nodes[name].trees.get(topic)
        for child in tree.children if tree is not None else ():
            part = nodes[child].trees.get(topic) if child in nodes else None
            if part is not None and part.parent == name and child not in depths:
                depths[child] = depths[name] + 1
                waiting.append(child)
    return depths


def check_covered(world: World, topics: list[str]) -> None:
    """After repair: from the one root of each topic every live subscriber is reached."""
    nodes = scribes(world)
    for topic in topics:
        reached = reach(world, topic)
        missing = [name for name, scribe in nodes.items() if topic in scribe.readers and name not in reached]
        if missing:
            raise Violation(COVERED, f"the tree of {topic!r} does not reach {missing[:5]} ({len(missing)} in all)")


class Deliveries:
    """Watches everything that every node delivers."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._next: dict[tuple[NodeId, int, str], int] = {}
        self._had: dict[tuple[NodeId, int, str], set[bytes]] = {}
        self.log: dict[str, dict[int, bytes]] = {}
        """What each offset of each topic turned out to be."""
        self.last_us = 0
        """When something was last delivered."""
        self.count = 0
        self.published: dict[str, dict[bytes, NodeId]] = {}
        """What has been published, and by whom."""
        self.journeys: dict[bytes, tuple[int, int, int]] = {}
        """Of each message when it was published, how often it was delivered, and when last, in microseconds."""
        self.accepted: dict[tuple[NodeId, int, str], int] = {}
        """How many of its messages each publisher knows to be taken."""
        self.sent: dict[tuple[NodeId, int, str], list[bytes]] = {}
        self.violation: Violation | None = None
        world.observe(MessageDelivered, self._on_delivered)
        world.observe(Published, self._on_published)
        world.observe(MessagesMissed, self._on_missed)

    def note_publish(self, name: NodeId, topic: str, payload: bytes) -> None:
        self.published.setdefault(topic, {})[payload] = name
        self.journeys[payload] = (self._world.now_us, 0, 0)
        self.sent.setdefault((name, self._life(name), topic), []).append(payload)

    def _life(self, name: NodeId) -> int:
        return self._world.nodes[name].started_us

    def _on_delivered(self, now_us: int, node: Node, news: MessageDelivered) -> None:
        if self.violation is None:
            self.count += 1
            self.last_us = now_us
            if news.payload in self.journeys:
                at_us, count, _ = self.journeys[news.payload]
                self.journeys[news.payload] = (at_us, count + 1, now_us)
            try:
                self._check(node, news)
            except Violation as violation:
                self.violation = violation

    def _on_published(self, _: int, node: Node, news: Published) -> None:
        self.accepted[node.name, node.started_us, news.topic] = news.sequence_end

    def _on_missed(self, _: int, node: Node, news: MessagesMissed) -> None:
        if self.violation is None:
            self.violation = Violation(COMPLETE, f"{node.name} missed {news}")

    def _check(self, node: Node, news: MessageDelivered) -> None:
        name = node.name
        key = (name, node.started_us, news.topic)
        wanted = self._next.get(key, news.offset)
        if news.offset != wanted:
            raise Violation(ONCE, f"{name} delivers {news.topic!r} {news.offset} and should deliver {wanted}")
        self._next[key] = news.offset + 1
        had = self._had.setdefault(key, set())
        if news.payload in had:
            raise Violation(ONCE, f"{name} delivers {news.payload!r} of {news.topic!r} again at {news.offset}")
        had.add(news.payload)
        known = self.log.setdefault(news.topic, {}).setdefault(news.offset, news.payload)
        if known != news.payload:
            raise Violation(SAME, f"{news.topic!r} {news.offset} is {news.payload!r} at {name} and {known!r} elsewhere")
        if news.topic not in node.stack.layer(Scribe).readers:
            raise Violation(ONLY_SUBSCRIBERS, f"{name} delivers {news.topic!r} and has not subscribed to it")

    def delivered_to(self, name: NodeId, topic: str) -> set[bytes]:
        """What a live node has had of a topic."""
        return self._had.get((name, self._life(name), topic), set())

    def owed(self) -> dict[str, set[bytes]]:
        """What has to arrive: all from publishers that live, and what the others know to have been taken."""
        owed: dict[str, set[bytes]] = {}
        for (name, life, topic), payloads in self.sent.items():
            node = self._world.nodes[name]
            lives = node.alive and node.started_us == life
            count = len(payloads) if lives else self.accepted.get((name, life, topic), 0)
            owed.setdefault(topic, set()).update(payloads[:count])
        return owed

    def missing(self) -> list[tuple[NodeId, str, int]]:
        """(node, topic, how many messages it still lacks) for every live subscriber that lacks any."""
        owed = self.owed()
        found = []
        for name, scribe in scribes(self._world).items():
            for topic in scribe.readers:
                lacks = len(owed.get(topic, set()) - self.delivered_to(name, topic))
                if lacks:
                    found.append((name, topic, lacks))
        return found
