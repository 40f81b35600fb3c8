"""HyParView and gossip when many nodes fail at once: the experiment of the HyParView paper, with recovery.

One call is one simulation and returns one row, so that a sweep can be spread as tasks.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import msgspec

from tidings.experiments.sweep import Grid, Sweep
from tidings.simulator.overlay import scenario
from tidings.simulator.overlay.checkers import components, one_sided
from tidings.simulator.overlay.run import Row, Run
from tidings.simulator.overlay.scenario import Scenario
from tidings.simulator.overlay.world import without_collection

JOIN_MS_MAX = 10_000
"""All nodes have started by then."""
SHARES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


class FailureRow(msgspec.Struct, frozen=True):
    """What a share of the nodes failing at once leads to. Shares of reached nodes are of the live ones."""

    nodes: int
    failed_share: float
    seed: int
    live: int
    parts: int
    """Groups of live nodes that do not reach each other, after healing: 1 is a connected overlay."""
    largest_part: float
    """The share of the live nodes in the largest group."""
    one_sided: int
    """Links that are not mutual, at the moment of looking."""
    reached_at_once: float
    """Of messages published in the second after the failure, the share of live nodes reached two seconds later."""
    reached_healed: float
    """Of messages published once the views had healed."""
    reached_at_last: float
    """Of all messages, at the end: recovery included."""
    hops_mean: float
    hops_max: int
    last_ms_mean: float
    """From publishing to the last delivery, in the healed overlay."""
    redundancy: float
    """Payloads received twice for each delivery, in the stable overlay before the failure."""
    messages_per_node: float
    """For each message published in the healed overlay, of all kinds, membership included."""
    delivered: int
    """Messages between nodes, in the whole simulation."""
    cpu_seconds: float

    @property
    def speed(self) -> float:
        """Messages that the simulator delivered in a second of one core."""
        return self.delivered / max(self.cpu_seconds, 0.01)


def failure(nodes: int, share: float, seed: int) -> FailureRow:
    """One simulation: join, publish, fail, publish at once, heal, publish again.

    >>> row = failure(nodes=60, share=0.5, seed=1)
    >>> row.live, row.parts, row.reached_at_last
    (30, 1, 1.0)
    """
    plan = failure_scenario(nodes, share)
    began = time.process_time()
    with without_collection():
        under_way = Run(plan, seed)
        under_way.run()
        cpu_seconds = time.process_time() - began
        world, deliveries = under_way.world, under_way.deliveries
        groups = components(world)
        rows = {row.label: row for row in under_way.rows}
        reached = [
            1 - len(deliveries.waiting(post)) / max(sum(node.alive for node in post.owed), 1)
            for post in deliveries.posts.values()
        ]
    before, at_once, healed = rows["before"], rows["at once"], rows["healed"]
    return FailureRow(
        nodes=nodes,
        failed_share=share,
        seed=seed,
        live=healed.live,
        parts=len(groups),
        largest_part=round(len(groups[0]) / healed.live, 6),
        one_sided=len(one_sided(world)),
        reached_at_once=at_once.reached_mean,
        reached_healed=healed.reached_mean,
        reached_at_last=round(sum(reached) / len(reached), 6),
        hops_mean=healed.hops_mean,
        hops_max=healed.hops_max,
        last_ms_mean=healed.last_ms_mean,
        redundancy=redundancy(before),
        messages_per_node=healed.messages_per_node,
        delivered=world.delivered,
        cpu_seconds=round(cpu_seconds, 2),
    )


def failure_rows(nodes: int, share: float, seed: int) -> Iterator[FailureRow]:
    """The same for sweeps."""
    yield failure(nodes, share, seed)


def failures_sweep(nodes: int, shares: Sequence[float], seed: int) -> Sweep:
    """A simulation for each share of failing nodes."""
    return Sweep("hyparview", failure_rows, {"runs": FailureRow}, Grid(nodes=[nodes], share=shares, seed=[seed]))


def failure_scenario(nodes: int, share: float) -> Scenario:
    """The steps of the experiment, as data."""
    return Scenario(
        name="hyparview-failure",
        nodes=nodes,
        join_every_us=min(1_000, JOIN_MS_MAX * 1_000 // nodes),
        steps=(
            scenario.Wait(40_000),
            scenario.Publish("before", warm_up=30, count=20),
            scenario.Crash(share),
            scenario.Publish("at once", count=10, every_ms=100, drain_ms=1_000),
            scenario.Wait(30_000),
            scenario.Publish("healed", warm_up=10, count=20),
            scenario.Wait(15_000),
        ),
    )


def redundancy(row: Row) -> float:
    return round(row.payloads_per_delivery - 1, 4)
