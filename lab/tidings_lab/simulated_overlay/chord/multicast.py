"""One run of Scribe over Chord: subscribe, publish, let nodes die, and see what everybody got."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random

import msgspec

from tidings.protocols.chord import Chord, ChordSettings, identifier, stable_links
from tidings.protocols.scribe import Publish, Scribe, ScribeSettings, Subscribe
from tidings.protocols.stack import NodeId, Stack
from tidings_lab.simulated_overlay.chord.checkers import Violation
from tidings_lab.simulated_overlay.chord.tree_checkers import (
    COMPLETE,
    COVERED,
    Deliveries,
    check_acyclic,
    check_covered,
    reach,
)
from tidings_lab.simulated_overlay.latency import Constant, Latency, LongTail, Uniform
from tidings_lab.simulated_overlay.scenario import read_as
from tidings_lab.simulated_overlay.world import NetworkModel, World

FOLDER = Path(__file__).with_name("scenarios")
STEP_MS = 250
GROW_MS_MAX = 60_000
REPAIR_MS_MAX = 90_000


class MulticastPlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A workload and its faults, as data."""

    seed: int = 0
    nodes: int = 20
    topics: int = 5
    subscribed_share: float = 1.0
    """The chance that a node subscribes to a topic."""
    messages_per_node: int = 10
    publish_every_ms: int = 100
    publishers: int | None = None
    """How many nodes publish; None: all."""
    failed_share: float = 0.0
    """The share of the nodes that fail at once, in the middle of the publishing."""
    joins: int = 0
    """Nodes that join while messages flow."""
    restarts: int = 0
    """Nodes that die while messages flow and come back under the same name, knowing nothing."""
    down_ms: int = 300
    """For how long."""
    loss: float = 0.0
    latency: Latency = Uniform()
    jitter_ms: float = 20.0
    chord: ChordSettings = ChordSettings()
    scribe: ScribeSettings = ScribeSettings()
    encode: bool = False


def load(name: str) -> MulticastPlan:
    """A plan that comes with the lab, by its name.

    >>> load("calm").nodes
    20
    """
    return read(FOLDER / f"{name}.toml")


def read(path: str | Path) -> MulticastPlan:
    """A plan from a file."""
    return read_as(MulticastPlan, Path(path), FOLDER)


def draw_multicast(seed: int) -> MulticastPlan:
    """A small world with some of everything that can go wrong, drawn from a seed."""
    rng = Random(seed)
    return MulticastPlan(
        seed=seed,
        nodes=rng.choice((14, 20, 30)),
        topics=rng.choice((1, 3, 8)),
        subscribed_share=rng.choice((0.3, 0.7, 1.0)),
        messages_per_node=rng.choice((6, 12)),
        publish_every_ms=rng.choice((20, 200, 1500)),
        failed_share=rng.choice((0.0, 0.1, 0.3)),
        joins=rng.choice((0, 2, 5)),
        restarts=rng.choice((0, 0, 2)),
        down_ms=rng.choice((50, 500, 5_000)),
        loss=rng.choice((0.0, 0.0, 0.01, 0.05)),
        latency=rng.choice((Constant(20.0), Uniform(1.0, 100.0), LongTail(20.0, 120.0))),
        jitter_ms=rng.choice((1.0, 30.0, 100.0)),
        chord=ChordSettings(successors_max=12),
        scribe=ScribeSettings(replicas=rng.choice((4, 6))),
        encode=seed % 8 == 0,
    )


class MulticastRow(msgspec.Struct, frozen=True):
    """What a run came to. Messages are counted when they are sent, one for each receiver."""

    seed: int
    nodes: int
    topics: int
    messages_per_node: int
    failed_nodes: int
    joined_nodes: int
    loss: float
    published: int
    owed: int
    """Deliveries that had to happen: messages times live subscribers."""
    delivered: int
    """Of those, how many did."""
    reliability: float
    scribe_messages: int
    spread_messages: int
    fetch_messages: int
    chord_messages: int
    duration_ms: int
    """The whole run: Chord keeps the ring up all the time, so its messages grow with it."""
    depth_mean: float
    depth_max: int
    convergence_ms: int
    """From the first publish to the last delivery."""
    repair_ms: int
    """From the last failure or publish, whichever was later, until every live subscriber had everything."""
    rule: str | None
    text: str
    trace_hash: str


class Multicast:
    """A world of Scribe nodes in which a plan is carried out."""

    def __init__(self, plan: MulticastPlan, trace: bool = False) -> None:
        self.plan = plan
        self.random = Random(plan.seed)
        network = NetworkModel(plan.latency, plan.jitter_ms, plan.loss, encode=plan.encode)
        self.world = World(plan.seed, network, trace=trace)
        self.deliveries = Deliveries(self.world)
        self.topics = [f"topic-{index}" for index in range(plan.topics)]
        self.names = [f"node-{index}" for index in range(plan.nodes)]
        for name, links in stable_links(self.names, plan.chord).items():
            self.start(name, Chord(name, plan.chord, self._rng(), links=links))
        self.failed: list[NodeId] = []
        self.depths: list[int] = []
        self._published = 0
        self._first_publish_ms = self._last_change_ms = 0

    def start(self, name: NodeId, chord: Chord) -> None:
        self.world.start(name, Stack([Scribe(name, self.plan.scribe), chord]))

    def _rng(self) -> Random:
        return Random(self.random.getrandbits(64))

    def subscribe(self) -> None:
        """Everybody subscribes, and the trees grow until they reach everybody."""
        for name in self.names:
            for topic in self.topics:
                if self.random.random() < self.plan.subscribed_share:
                    self.world.request(name, Subscribe(topic, start=0))
        self._run_until(self._is_covered, GROW_MS_MAX, COVERED)
        for topic in self.topics:
            self.depths += reach(self.world, topic).values()

    def publish(self) -> None:
        """Nodes publish in turns, to topics drawn at random; in the middle some of them fail, and others join."""
        plan, world = self.plan, self.world
        self._first_publish_ms = world.now_ms
        publishers = self.random.sample(self.names, plan.publishers or len(self.names))
        joining = [f"late-{index}" for index in range(plan.joins)]
        restarting = self.random.sample(self.names, plan.restarts)
        for turn in range(plan.messages_per_node):
            if turn == plan.messages_per_node // 2 and plan.failed_share:
                self.fail()
            if joining and turn % 2:
                self._join(joining.pop())
            if restarting and turn % 2 == 0:
                self._restart(restarting.pop())
            for name in publishers:
                if world.nodes[name].alive:
                    self._publish(name, self.random.choice(self.topics))
            self._last_change_ms = world.now_ms
            self._run_for(plan.publish_every_ms)

    def _publish(self, name: NodeId, topic: str) -> None:
        payload = f"{topic} {name} {self._published}".encode()
        self._published += 1
        self.deliveries.note_publish(name, topic, payload)
        self.world.request(name, Publish(topic, payload))

    def fail(self) -> None:
        """A share of the nodes is gone at once. As the promise has it, of every log one copy at least is spared."""
        up = [name for name in self.names if self.world.nodes[name].alive]
        keepers = self._keepers()
        for name in self.random.sample(up, round(len(up) * self.plan.failed_share)):
            if not any(kept == {name} for kept in keepers):
                for kept in keepers:
                    kept.discard(name)
                self.world.crash(name)
                self.failed.append(name)

    def _restart(self, name: NodeId) -> None:
        if self.world.nodes[name].alive and not any(kept == {name} for kept in self._keepers()):
            self.world.crash(name)
            self.world.after(self.plan.down_ms, partial(self._join, name))

    def _keepers(self) -> list[set[NodeId]]:
        """For each topic, its owner and those who should have copies; who came later may not have had the time to."""
        ring = sorted(self.world.live, key=identifier)
        points = [identifier(name) for name in ring]
        found = []
        for topic in self.topics:
            first = bisect_left(points, identifier(topic))
            names = [ring[(first + step) % len(ring)] for step in range(self.plan.scribe.replicas + 1)]
            found.append({name for name in names if self.world.nodes[name].started_us == 0})
        return found

    def _join(self, name: NodeId) -> None:
        contacts = tuple(
            self.random.sample(self.world.live, min(8, len(self.world.live)))
        )  # One of them will be alive when it is asked.
        self.start(name, Chord(name, self.plan.chord, self._rng(), contacts=contacts))
        for topic in self.topics:
            self.world.request(name, Subscribe(topic, start=0))

    def wait_until_quiet(self) -> None:
        """Lets repair come to its end: everything has arrived, and every tree is whole."""
        self._run_until(lambda: not self.deliveries.missing(), REPAIR_MS_MAX, COMPLETE)
        repaired_ms = self.world.now_ms
        self._run_until(self._is_covered, REPAIR_MS_MAX, COVERED)
        self.repair_ms = repaired_ms - self._last_change_ms

    repair_ms = -1

    def _is_covered(self) -> bool:
        try:
            check_covered(self.world, self.topics)
        except Violation:
            return False
        return True

    def _run_until(self, condition: Callable[[], bool], span_ms_max: int, rule: str) -> None:
        until_ms = self.world.now_ms + span_ms_max
        while not condition():
            if self.world.now_ms >= until_ms:
                lacking = self.deliveries.missing()[:5]
                raise Violation(rule, f"not within {span_ms_max} ms; lacking are {lacking}")
            self._run_for(STEP_MS)

    def _run_for(self, span_ms: int) -> None:
        self.world.run_for(span_ms)
        if self.deliveries.violation is not None:
            raise self.deliveries.violation
        check_acyclic(self.world, self.topics)

    def run(self) -> MulticastRow:
        rule, text = None, ""
        try:
            self.subscribe()
            self.publish()
            self.wait_until_quiet()
        except Violation as violation:
            rule, text = violation.rule, f"{violation} (at {self.world.now_ms} ms)"
        return self._row(rule, text)

    def _row(self, rule: str | None, text: str) -> MulticastRow:
        plan, world = self.plan, self.world
        owed = self.deliveries.owed()
        subscribed = {
            topic: sum(topic in world.nodes[name].stack.layer(Scribe).readers for name in world.live)
            for topic in self.topics
        }
        owed_count = sum(len(payloads) * subscribed[topic] for topic, payloads in owed.items())
        lacking = sum(count for _, _, count in self.deliveries.missing())
        sent: dict[str, int] = {}
        by_layer = {"chord": 0, "scribe": 0}
        for kind, count in world.sent.items():
            sent[kind.__name__] = count
            by_layer["scribe" if ".scribe." in kind.__module__ else "chord"] += count
        return MulticastRow(
            seed=plan.seed,
            nodes=plan.nodes,
            topics=plan.topics,
            messages_per_node=plan.messages_per_node,
            failed_nodes=len(self.failed),
            joined_nodes=plan.joins,
            loss=plan.loss,
            published=self._published,
            owed=owed_count,
            delivered=owed_count - lacking,
            reliability=1.0 if not owed_count else (owed_count - lacking) / owed_count,
            scribe_messages=by_layer["scribe"],
            spread_messages=sent.get("Spread", 0),
            fetch_messages=sent.get("Fetch", 0),
            chord_messages=by_layer["chord"],
            duration_ms=world.now_ms,
            depth_mean=sum(self.depths) / len(self.depths) if self.depths else 0.0,
            depth_max=max(self.depths, default=0),
            convergence_ms=self.deliveries.last_us // 1000 - self._first_publish_ms,
            repair_ms=self.repair_ms,
            rule=rule,
            text=text,
            trace_hash=world.trace.hash if world.trace is not None else "",
        )


def run_multicast(plan: MulticastPlan, trace: bool = False) -> MulticastRow:
    """Carries out a plan; the same plan gives the same row.

    >>> row = run_multicast(MulticastPlan(seed=1, messages_per_node=2, topics=1))
    >>> row.rule is None, row.reliability
    (True, 1.0)
    """
    return Multicast(plan, trace).run()
