"""The invariants of overlays. Each looks at the world from outside, and raises `Violation` when its rule is broken."""

from __future__ import annotations

from typing import NoReturn

from tidings.protocols.gossip import Delivered, Gossip
from tidings.protocols.hyparview import HyParView
from tidings.protocols.stack import NodeId
from tidings.settings import GossipSettings, HyParViewSettings
from tidings.simulator.checkers.checker import Violation
from tidings_lab.simulated_overlay.world import Node, World

MUTUAL = "active views are mutual"
CONNECTED = "the live nodes are connected"
BOUNDED = "views and memories stay within their bounds"
ONCE = "no message is delivered twice"
UNCHANGED = "what comes is what was published"
EVERYWHERE = "every message comes to every node"
LEAN = "a stable tree sends each message about once"

LOOKS = 10
"""How often links are looked at while they may be one-sided."""


def views(world: World) -> dict[NodeId, HyParView]:
    """The membership layer of each live node."""
    return {name: world.nodes[name].stack.layer(HyParView) for name in world.live}


def components(world: World) -> list[list[NodeId]]:
    """The live nodes, parted into groups that reach each other by active views; the largest first."""
    layers = views(world)
    # An arrow that is not mutual carries messages one way only: it does not connect.
    mutual = {
        name: [peer for peer in layer.active if peer in layers and name in layers[peer].active]
        for name, layer in layers.items()
    }
    found: list[list[NodeId]] = []
    reached: set[NodeId] = set()
    for name in mutual:
        if name in reached:
            continue
        reached.add(name)
        group = [name]
        for member in group:  # The group grows while it is walked through.
            for peer in mutual[member]:
                if peer not in reached:
                    reached.add(peer)
                    group.append(peer)
        found.append(group)
    return sorted(found, key=len, reverse=True)


def one_sided(world: World) -> dict[tuple[NodeId, NodeId], str]:
    """The links of active views that are not mutual, each with what is wrong with it."""
    layers = views(world)
    found = {}
    for name, layer in layers.items():
        for peer in layer.active:
            if peer not in layers:
                found[name, peer] = f"{name} has {peer} in its active view, which is down"
            elif name not in layers[peer].active:
                found[name, peer] = f"{name} has {peer} in its active view, but not the other way round"
    return found


def check_views(world: World, grace_ms: int) -> None:
    """Active views must be mutual and connect the live nodes.

    Links come and go all the time, and while one does, it is one-sided: only what is wrong during the whole grace
    counts. Looking just twice would take a link that was mended and broke again for one that was never mended.
    """
    wrong = one_sided(world)
    apart = len(components(world)) > 1
    for left in range(LOOKS, 0, -1):
        look_ms = grace_ms // left
        grace_ms -= look_ms
        world.run_for(look_ms)
        now = one_sided(world)
        wrong = {link: now[link] for link in wrong if link in now}
    for text in wrong.values():
        raise Violation(MUTUAL, text)
    groups = components(world)
    if apart and len(groups) > 1:
        sizes = ", ".join(str(len(group)) for group in groups[:8])
        raise Violation(CONNECTED, f"they are in {len(groups)} parts, of {sizes} nodes; {groups[-1][0]} is in the last")


def check_bounded(world: World, hyparview: HyParViewSettings, gossip: GossipSettings) -> None:
    for name in world.live:
        stack = world.nodes[name].stack
        _check_view_bounds(name, stack.layer(HyParView), hyparview)
        _check_memory_bounds(name, stack.layer(Gossip), stack.layer(HyParView), gossip)


def _check_view_bounds(name: NodeId, layer: HyParView, settings: HyParViewSettings) -> None:
    active, passive = layer.active, layer.passive
    if len(active) > settings.active_max or len(passive) > settings.passive_max:
        raise Violation(BOUNDED, f"{name} has {len(active)} active and {len(passive)} passive nodes")
    if name in active or name in passive:
        raise Violation(BOUNDED, f"{name} has itself in a view")
    if not set(active).isdisjoint(passive):
        raise Violation(BOUNDED, f"{name} has a node in both views")


def _check_memory_bounds(name: NodeId, layer: Gossip, membership: HyParView, settings: GossipSettings) -> None:
    if set(layer.neighbors) != set(membership.active):
        raise Violation(BOUNDED, f"the neighbours that {name} gossips with are not its active view")
    tracks = layer.memory.tracks
    if len(tracks) > settings.topics_max or layer.memory.kept_count > settings.kept_max:
        raise Violation(BOUNDED, f"{name} follows {len(tracks)} topics and keeps {layer.memory.kept_count} messages")
    for topic, track in tracks.items():
        if len(track.ahead) > settings.window:
            raise Violation(BOUNDED, f"{name} has {len(track.ahead)} offsets of {topic} ahead of a gap")
        if not set(layer.lazy(topic)) <= set(membership.active):
            raise Violation(BOUNDED, f"{name} sends notices of {topic} to others than its neighbours")


def check_lean(payloads_per_delivery: float, payloads_max: float | None) -> None:
    if payloads_max is not None and payloads_per_delivery > payloads_max:
        raise Violation(LEAN, f"{payloads_per_delivery} payloads were sent for each delivery, above {payloads_max}")


class Post:
    """One published message, and where it has come."""

    __slots__ = ("body", "hops_max", "hops_sum", "last_us", "owed", "published_us", "reached")

    def __init__(self, published_us: int, body: bytes, owed: list[Node]) -> None:
        self.published_us = published_us
        self.body = body
        self.owed = owed
        self.reached: set[int] = set()
        """The numbers of the lives of nodes."""
        self.hops_max = 0
        self.hops_sum = 0
        self.last_us = published_us


class Deliveries:
    """Who got what: sees every delivery, and owes each message to every node that takes part when it is published."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._lives = 0
        """How many lives of nodes there were when somebody last looked."""
        self._ready: list[Node] = []
        """The live nodes that take part: they know where the topics are, and never forget it."""
        self._unready: list[Node] = []
        self.posts: dict[tuple[str, int], Post] = {}
        world.observe(Delivered, self.on_delivered)

    def on_published(self, topic: str, offset: int, body: bytes) -> None:
        """Must be told just before the message is handed to its publisher."""
        self.posts[topic, offset] = Post(self._world.now_us, body, self._taking_part())

    def _taking_part(self) -> list[Node]:
        """The live nodes that know where the topics are; only those that did not at the last look are asked."""
        world, unready = self._world, self._unready
        if world.lives > self._lives:
            unready += [node for node in world.nodes.values() if node.number > self._lives]
            self._lives = world.lives
        self._ready = [node for node in self._ready if node.alive]
        self._unready = []
        for node in unready:
            if node.alive:
                knows = node.stack.layer(Gossip).knows_beginning
                (self._ready if knows else self._unready).append(node)
        return self._ready

    def on_delivered(self, now_us: int, node: Node, news: Delivered) -> None:
        post = self.posts.get((news.topic, news.offset))
        if post is None or post.body != news.body:
            raise Violation(UNCHANGED, f"{node.name} got {news!r}, which nobody published")
        reached, hops = post.reached, news.hops
        if node.number in reached:
            raise Violation(ONCE, f"{node.name} got offset {news.offset} of {news.topic} twice")
        reached.add(node.number)
        post.hops_sum += hops
        if hops > post.hops_max:
            post.hops_max = hops
        post.last_us = now_us

    def waiting(self, post: Post) -> list[NodeId]:
        """The live nodes that a message is owed to and has not reached.

        What died with its publisher, before anybody alive had it, is owed to nobody: no protocol could bring it.
        """
        if not any(node.number in post.reached for node in self._world.nodes.values() if node.alive):
            return []
        return [node.name for node in post.owed if node.alive and node.number not in post.reached]

    def check_everywhere(self) -> None:
        for (topic, offset), post in self.posts.items():
            waiting = self.waiting(post)
            if waiting:
                self._broken(topic, offset, waiting)

    def _broken(self, topic: str, offset: int, waiting: list[NodeId]) -> NoReturn:
        some = ", ".join(waiting[:5])
        raise Violation(EVERYWHERE, f"offset {offset} of {topic} has not come to {len(waiting)} nodes, such as {some}")
