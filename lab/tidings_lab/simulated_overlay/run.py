"""Runs one scenario with one seed, and returns what was measured as plain rows.

    outcome = run(load("mass-failure"), seed=7)

A run is a function of its scenario and its seed, so runs can be spread over processes or machines as tasks.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import msgspec

from tidings.protocols.gossip import Broadcast, Gossip, Graft, IHave, Missed, Payload, Prune, Recovered, Supply
from tidings.protocols.heartbeat import Heartbeat
from tidings.protocols.hyparview import HyParView
from tidings.protocols.stack import Layer, Message, NodeId, Stack
from tidings.simulator.checkers.checker import Violation
from tidings_lab.simulated_overlay import checkers, scenario
from tidings_lab.simulated_overlay.checkers import Deliveries, Post
from tidings_lab.simulated_overlay.scenario import Scenario
from tidings_lab.simulated_overlay.world import WATCHING, Node, World, without_collection

GRACE_MS = 2_000
"""How long a link may be one-sided beyond the silence by which it is found out."""

OWNER_MS = 100
"""How long the owner of a topic takes to supply a message."""


class Row(msgspec.Struct, frozen=True):
    """The figures of one `Publish` step. Shares are of the live nodes that a message was owed to."""

    scenario: str
    seed: int
    label: str
    nodes: int
    live: int
    messages: int
    reached_mean: float
    reached_min: float
    complete: int
    """Messages that came to every node they were owed to."""
    hops_mean: float
    hops_max: int
    last_ms_mean: float
    """From publishing to the last delivery."""
    payloads_per_delivery: float
    """Messages in full that were sent for each delivery: 1.0 is a perfect tree."""
    notices_per_delivery: float
    messages_per_node: float
    """Messages of all kinds that a live node sent for each message published, membership included."""


class Outcome(msgspec.Struct, frozen=True):
    """What came of a run. `rule` is None when every invariant held."""

    scenario: str
    seed: int
    rows: tuple[Row, ...]
    delivered: int
    """Messages between nodes."""
    virtual_ms: int
    sent: dict[str, int]
    rule: str | None = None
    text: str = ""
    trace_hash: str = ""


class Run:
    """A scenario under way."""

    def __init__(self, plan: Scenario, seed: int, trace: bool = False) -> None:
        self.plan = plan
        self.seed = seed
        self.world = World(seed, plan.network, trace)
        self.deliveries = Deliveries(self.world)
        self.rows: list[Row] = []
        self._named = 0
        self._offsets: dict[str, int] = {f"topic-{index}": 0 for index in range(plan.topics)}
        self._publishers: dict[str, NodeId] = {}
        self.world.observe(Missed, self._on_missed)

    def run(self) -> None:
        """Everything, from the first node to the last step; raises `Violation` when an invariant breaks."""
        plan = self.plan
        for index in range(plan.nodes):
            self.world.after_us(index * plan.join_every_us, self._join)
        self.world.run_for(plan.nodes * plan.join_every_us // 1000 + 1)
        for step in plan.steps:
            self._take(step)
        self._check_bounded()

    def _take(self, step: scenario.AnyStep) -> None:
        world = self.world
        match step:
            case scenario.Wait(ms):
                world.run_for(ms)
            case scenario.Publish():
                self._publish(step)
            case scenario.Crash(share):
                for name in self._draw(world.live, share):
                    world.crash(name)
            case scenario.Restart(share):
                down = [name for name, node in world.nodes.items() if not node.alive]
                for name in self._draw(down, share):
                    world.start(name, self.make_stack(name))
            case scenario.Cut(share):
                world.cut(dict.fromkeys(self._draw(list(world.nodes), share), 1))
            case scenario.Heal():
                world.heal()
            case scenario.Churn(for_ms, crash_every_ms, join_every_ms):
                self._repeat(world.now_ms + for_ms, crash_every_ms, self._crash_one)
                self._repeat(world.now_ms + for_ms, join_every_ms, self._join)
            case scenario.CheckViews(grace_ms):
                checkers.check_views(world, grace_ms or self.plan.network.silence_ms + GRACE_MS)
                self._check_bounded()
            case scenario.CheckDelivery():
                self.deliveries.check_everywhere()

    # Nodes come and go.

    def make_stack(self, name: NodeId) -> Stack:
        """The stack of a node that joins by some of those that are up."""
        plan, rng = self.plan, self.world.random
        contacts = self.world.draw_live(plan.contacts)
        layers: list[Layer] = [
            Gossip(plan.gossip, rng, founding=not contacts),
            HyParView(name, contacts, plan.hyparview, rng),
        ]
        if plan.detector == "heartbeat":
            return Stack([*layers, Heartbeat(plan.heartbeat)])
        return Stack(layers, outside=WATCHING)

    def _join(self) -> None:
        self._named += 1
        name = f"n{self._named:05}"
        self.world.start(name, self.make_stack(name))

    def _crash_one(self) -> None:
        for name in self.world.draw_live(1):
            self.world.crash(name)

    def _repeat(self, until_ms: int, every_ms: int, what: Callable[[], None]) -> None:
        def again() -> None:
            what()
            if self.world.now_ms + every_ms <= until_ms:
                self.world.after(every_ms, again)

        self.world.after(every_ms, again)

    def _draw(self, names: list[NodeId], share: float) -> list[NodeId]:
        return self.world.random.sample(names, round(len(names) * share))

    def _check_bounded(self) -> None:
        checkers.check_bounded(self.world, self.plan.hyparview, self.plan.gossip)

    # Messages.

    def _publish(self, step: scenario.Publish) -> None:
        for _ in range(step.warm_up):
            self._publish_one()
            self.world.run_for(step.every_ms)
        if step.warm_up:
            self.world.run_for(step.drain_ms)
        sent_before = dict(self.world.sent)
        posts = []
        for _ in range(step.count):
            posts.append(self._publish_one())
            self.world.run_for(step.every_ms)
        self.world.run_for(step.drain_ms)
        sent = {kind: count - sent_before.get(kind, 0) for kind, count in self.world.sent.items()}
        row = self._measure(step.label, posts, sent)
        self.rows.append(row)
        checkers.check_lean(row.payloads_per_delivery, step.payloads_max)

    def _publish_one(self) -> Post:
        """A message to a topic drawn by lot. Its publisher stays the same as long as it is up."""
        world = self.world
        topic = world.random.choice(list(self._offsets))
        publisher = self._publishers.get(topic)
        if publisher is None or not world.nodes[publisher].alive:
            ready = [name for name in world.live if world.nodes[name].stack.layer(Gossip).knows_beginning]
            publisher = self._publishers[topic] = world.random.choice(ready)
        offset = self._offsets[topic]
        self._offsets[topic] += 1
        body = f"{topic} {offset}".encode()
        self.deliveries.on_published(topic, offset, body)
        world.request(publisher, Broadcast(topic, offset, body))
        return self.deliveries.posts[topic, offset]

    def _on_missed(self, _: int, node: Node, news: Missed) -> None:
        """Plays the owner of the topics, who has everything in its journal and sends what a node asks for."""
        for offset in news.offsets:
            supply = Supply(news.topic, offset, self.deliveries.posts[news.topic, offset].body)
            self.world.after(OWNER_MS, partial(self._supply, node, supply))

    def _supply(self, node: Node, supply: Supply) -> None:
        if node.alive:
            self.world.request(node.name, supply)

    def _measure(self, label: str, posts: list[Post], sent: dict[type[Message], int]) -> Row:
        shares = []
        for post in posts:
            live = [node for node in post.owed if node.alive]
            shares.append(sum(node.number in post.reached for node in live) / len(live) if live else 1.0)
        deliveries = sum(len(post.reached) for post in posts)
        hops = sum(post.hops_sum for post in posts)
        live_count = len(self.world.live)
        payloads = sum(sent.get(kind, 0) for kind in (Payload, Recovered))
        return Row(
            scenario=self.plan.name,
            seed=self.seed,
            label=label,
            nodes=len(self.world.nodes),
            live=live_count,
            messages=len(posts),
            reached_mean=round(sum(shares) / len(shares), 6),
            reached_min=round(min(shares), 6),
            complete=sum(share == 1.0 for share in shares),
            hops_mean=round(hops / deliveries, 3),
            hops_max=max(post.hops_max for post in posts),
            last_ms_mean=round(sum(post.last_us - post.published_us for post in posts) / len(posts) / 1000, 1),
            payloads_per_delivery=round(payloads / max(deliveries - len(posts), 1), 4),
            notices_per_delivery=round(sum(sent.get(kind, 0) for kind in (IHave, Graft, Prune)) / deliveries, 4),
            messages_per_node=round(sum(sent.values()) / live_count / len(posts), 3),
        )


def run(plan: Scenario, seed: int, trace: bool = False) -> Outcome:
    """Runs a scenario to its end, or to the first broken invariant."""
    under_way = Run(plan, seed, trace)
    rule, text = None, ""
    try:
        with without_collection():
            under_way.run()
    except Violation as violation:
        rule, text = violation.invariant, violation.text
    world = under_way.world
    return Outcome(
        scenario=plan.name,
        seed=seed,
        rows=tuple(under_way.rows),
        delivered=world.delivered,
        virtual_ms=world.now_ms,
        sent={kind.__name__: count for kind, count in world.sent.items()},
        rule=rule,
        text=text,
        trace_hash=world.trace.hash if world.trace is not None else "",
    )
