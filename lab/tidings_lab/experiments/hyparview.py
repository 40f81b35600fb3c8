"""HyParView and gossip when many nodes fail at once: the experiment of the HyParView paper, with recovery.

One call is one simulation and returns one row, so that a sweep can be spread as tasks.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import msgspec

from tidings_lab.experiments.experiment import Beside, Choice, Experiment, Figure, Line, Question
from tidings_lab.experiments.sweep import Grid, Point
from tidings_lab.simulated_overlay import scenario
from tidings_lab.simulated_overlay.checkers import components, one_sided
from tidings_lab.simulated_overlay.run import Row, Run
from tidings_lab.simulated_overlay.scenario import Scenario
from tidings_lab.simulated_overlay.world import without_collection

JOIN_MS_MAX = 10_000
"""All nodes have started by then."""
NODES = 1_000
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


class PostRow(msgspec.Struct, frozen=True):
    """One published message, as it was at the end of the simulation."""

    phase: str
    """The label of the step that published it, or "warm-up"."""
    number: int
    published_ms: float
    owed: int
    """Live nodes that it is owed to."""
    reached: int
    """Of those, how many have it."""
    hops_max: int
    last_ms: float
    """From publishing to the last delivery."""


TABLES: dict[str, type[msgspec.Struct]] = {"runs": FailureRow, "posts": PostRow}


def failure(nodes: int, share: float, seed: int) -> FailureRow:
    """One simulation: join, publish, fail, publish at once, heal, publish again.

    >>> row = failure(nodes=60, share=0.5, seed=1)
    >>> row.live, row.parts, row.reached_at_last
    (30, 1, 1.0)
    """
    row, *_ = failure_rows(nodes, share, seed)
    assert isinstance(row, FailureRow)
    return row


def failure_rows(nodes: int, share: float, seed: int) -> Iterator[FailureRow | PostRow]:
    """The same, and a row for each message that was published."""
    plan = failure_scenario(nodes, share)
    began = time.process_time()
    with without_collection():
        under_way = Run(plan, seed)
        under_way.run()
        cpu_seconds = time.process_time() - began
        world, deliveries = under_way.world, under_way.deliveries
        groups = components(world)
        rows = {row.label: row for row in under_way.rows}
        posts = list(_post_rows(under_way))
        reached = [
            1 - len(deliveries.waiting(post)) / max(sum(node.alive for node in post.owed), 1)
            for post in deliveries.posts.values()
        ]
    before, at_once, healed = rows["before"], rows["at once"], rows["healed"]
    yield FailureRow(
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
    yield from posts


def _post_rows(under_way: Run) -> Iterator[PostRow]:
    phases: list[str] = []
    for step in under_way.plan.steps:
        if isinstance(step, scenario.Publish):
            phases += ["warm-up"] * step.warm_up + [step.label] * step.count
    for number, (phase, post) in enumerate(zip(phases, under_way.deliveries.posts.values(), strict=True)):
        live = [node for node in post.owed if node.alive]
        yield PostRow(
            phase=phase,
            number=number,
            published_ms=post.published_us / 1000,
            owed=len(live),
            reached=sum(node.number in post.reached for node in live),
            hops_max=post.hops_max,
            last_ms=(post.last_us - post.published_us) / 1000,
        )


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


def hyparview_points(choice: Choice) -> Sequence[Point]:
    points: list[Point] = []
    for nodes in choice.sizes((NODES,)):
        seeds = range(choice.first_seed, choice.first_seed + (choice.seeds or 1))
        points += Grid(nodes=[nodes], share=choice.shares or SHARES, seed=seeds)
    return points


HYPARVIEW = Experiment(
    name="hyparview",
    title="HyParView and gossip when many nodes fail at once",
    about="a share of the nodes fails at once: whom do messages reach, before and after the views have healed?",
    setting=(
        "Active views of 5 and passive views of 30, latencies of 10 to 100 ms. *At once*: published in the second "
        "after the failure, looked at two seconds after the failure. *Healed*: published half a minute later. *At "
        "last*: all messages of the simulation, at its end, with what was recovered. *Parts*: groups of live nodes "
        "that do not reach each other at the end. *Messages a node*: sent by each for one message published in the "
        "healed overlay, of all kinds, membership included. *Simulated*: messages that the simulator delivered in a "
        "second of one core."
    ),
    function=failure_rows,
    tables=TABLES,
    points=hyparview_points,
    questions=(
        Question(
            "failures",
            "Live nodes that a message reaches",
            """
            with healed as (
                select point, percentile(last_ms, 0.5) as last_p50_ms, max(last_ms) as last_max_ms
                from {posts} where phase = 'healed' group by point)
            select nodes, failed_share, count(*) as runs, round(avg(live)) as live, max(parts) as parts,
                avg(reached_at_once) as reached_at_once, avg(reached_healed) as reached_healed,
                avg(reached_at_last) as reached_at_last, avg(hops_mean) as hops_mean, max(hops_max) as hops_max,
                avg(last_p50_ms) as last_p50_ms, max(last_max_ms) as last_max_ms, avg(redundancy) as redundancy,
                avg(messages_per_node) as messages_per_node, sum(delivered) / sum(cpu_seconds) as speed
            from {runs} join healed using (point) group by nodes, failed_share order by nodes, failed_share
            """,
            (
                ("nodes", "{nodes:,}"),
                ("fail at once", "{failed_share:.0%}"),
                ("live", "{live:,.0f}"),
                ("parts", "{parts}"),
                ("at once", "{reached_at_once:.1%}"),
                ("healed", "{reached_healed:.2%}"),
                ("at last", "{reached_at_last:.2%}"),
                ("hops, mean (max)", "{hops_mean:.1f} ({hops_max})"),
                ("last delivery, p50", "{last_p50_ms:,.0f} ms"),
                ("max", "{last_max_ms:,.0f} ms"),
                ("redundancy", "{redundancy:.3f}"),
                ("messages a node", "{messages_per_node:.2f}"),
                ("simulated", "{speed:,.0f}/s"),
            ),
        ),
    ),
    figures=(
        Figure(
            "failures",
            "Live nodes that a message reaches, after many have failed at once",
            question="failures",
            x="failed_share",
            x_factor=100,
            x_label="nodes that fail at once (%)",
            y_label="live nodes reached (%)",
            lines=(
                Line("reached_at_last", "{nodes:,} nodes, all messages, after recovery", 100),
                Line("reached_healed", "{nodes:,} nodes, published once the views have healed", 100),
                Line("reached_at_once", "{nodes:,} nodes, published in the second after the failure", 100),
            ),
            by="nodes",
            y_range=(70, 101.5),
            beside=(
                Beside(
                    "HyParView's paper, 10,000 nodes, approximately",
                    (10, 20, 30, 40, 50, 60, 70, 80, 95),
                    (100, 100, 100, 100, 100, 100, 100, 100, 90),
                ),
            ),
        ),
    ),
    other_results=(
        "Leitão, Pereira, Rodrigues (DSN 2007), 10,000 nodes and the same views: messages sent after the"
        " failure reach practically all live nodes as long as fewer than 90 % fail, and about 90 % of them when 95 % "
        "fail. These values are approximate: they are the paper's words about a figure without a table. Its "
        "*reliability* is that of messages sent while the views heal; ours is given for messages sent at once, once "
        "healed, and after recovery, which the paper has not."
    ),
)
