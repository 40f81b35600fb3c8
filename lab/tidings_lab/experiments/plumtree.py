"""Gossip along a tree that grows by itself (Plumtree): redundancy, last hop and last delivery, message by message."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from tidings_lab.experiments.experiment import Choice, Experiment, Figure, Line, Question
from tidings_lab.experiments.hyparview import JOIN_MS_MAX, redundancy
from tidings_lab.experiments.sweep import Point
from tidings_lab.simulated_overlay import scenario
from tidings_lab.simulated_overlay.run import Run
from tidings_lab.simulated_overlay.scenario import Scenario
from tidings_lab.simulated_overlay.world import without_collection

SIZES = (100, 1_000, 10_000)
MESSAGES = 30
STABLE_FROM = 11
"""The first message of those that count as sent along a stable tree."""


class RoundRow(msgspec.Struct, frozen=True):
    """One message, published after everything before it had arrived."""

    nodes: int
    seed: int
    number: int
    """From 1; the first one meets no tree yet."""
    reached: float
    """The share of the nodes that it came to."""
    redundancy: float
    """Payloads sent for each node, less the one that it needs; the paper's RMR."""
    notices: float
    """Notices, grafts and prunes for each delivery."""
    hops_mean: float
    hops_max: int
    """The paper's LDH, last delivery hop."""
    last_ms: float


def rounds(nodes: int, seed: int, messages: int = MESSAGES) -> Iterator[RoundRow]:
    """One simulation: join, then one message after the other from one publisher.

    >>> rows = list(rounds(nodes=50, seed=1, messages=5))
    >>> [row.reached for row in rows], rows[0].redundancy > 1, rows[-1].redundancy < 0.2
    ([1.0, 1.0, 1.0, 1.0, 1.0], True, True)
    """
    plan = Scenario(
        name="plumtree",
        nodes=nodes,
        topics=1,
        join_every_us=min(1_000, JOIN_MS_MAX * 1_000 // nodes),
        steps=(
            scenario.Wait(40_000),
            *(scenario.Publish(str(number), count=1, drain_ms=3_000) for number in range(1, messages + 1)),
        ),
    )
    with without_collection():
        under_way = Run(plan, seed)
        under_way.run()
    for row in under_way.rows:
        yield RoundRow(
            nodes=nodes,
            seed=seed,
            number=int(row.label),
            reached=row.reached_mean,
            redundancy=redundancy(row),
            notices=row.notices_per_delivery,
            hops_mean=row.hops_mean,
            hops_max=row.hops_max,
            last_ms=row.last_ms_mean,
        )


def plumtree_points(choice: Choice) -> Sequence[Point]:
    return [{"nodes": nodes, "seed": seed} for nodes in choice.sizes(SIZES) for seed in choice.seeds_for(nodes)]


PLUMTREE = Experiment(
    name="plumtree",
    title="Gossip along a tree: redundancy, last hop and last delivery",
    about="redundancy, last delivery hop and time of gossip, while its tree grows",
    setting=(
        f"One publisher, {MESSAGES} messages, each published after the one before has arrived; active views of 5, "
        "latencies of 10 to 100 ms, no failures. The first message is pushed to all neighbours, because there is no "
        "tree yet; what comes twice makes the tree. *Redundancy* is how many payloads were sent for each node beyond "
        "the one that it needs (the paper's RMR), *last hop* the hops of the last delivery (LDH). *Stable* is from "
        f"message {STABLE_FROM} on."
    ),
    function=rounds,
    tables={"rounds": RoundRow},
    points=plumtree_points,
    questions=(
        Question(
            "tree",
            "The first message and the stable tree",
            f"""
            select nodes, count(distinct seed) as runs, min(reached) as reached_min,
                avg(if(number = 1, redundancy, null)) as first_redundancy,
                avg(if(number = 1, hops_max, null)) as first_hops, avg(if(number = 1, last_ms, null)) as first_last_ms,
                avg(if(number >= {STABLE_FROM}, redundancy, null)) as redundancy,
                avg(if(number >= {STABLE_FROM}, notices, null)) as notices,
                avg(if(number >= {STABLE_FROM}, hops_mean, null)) as hops_mean,
                percentile(if(number >= {STABLE_FROM}, hops_max, null), 0.5) as hops_p50,
                max(if(number >= {STABLE_FROM}, hops_max, null)) as hops_most,
                percentile(if(number >= {STABLE_FROM}, last_ms, null), 0.5) as last_p50_ms,
                percentile(if(number >= {STABLE_FROM}, last_ms, null), 0.99) as last_p99_ms
            from {{rounds}} group by nodes order by nodes
            """,
            (
                ("nodes", "{nodes:,}"),
                ("runs", "{runs}"),
                ("reached, at least", "{reached_min:.2%}"),
                ("first message: redundancy", "{first_redundancy:.2f}"),
                ("last hop", "{first_hops:.1f}"),
                ("last delivery", "{first_last_ms:.0f} ms"),
                ("stable: redundancy", "{redundancy:.4f}"),
                ("notices for each delivery", "{notices:.2f}"),
                ("hops, mean", "{hops_mean:.1f}"),
                ("last hop, p50 (max)", "{hops_p50:.0f} ({hops_most})"),
                ("last delivery, p50", "{last_p50_ms:.0f} ms"),
                ("p99", "{last_p99_ms:.0f} ms"),
            ),
        ),
        Question(
            "rounds",
            "Message by message",
            """
            select nodes, number, avg(redundancy) as redundancy, avg(hops_max) as hops_max, avg(last_ms) as last_ms
            from {rounds} group by nodes, number order by nodes, number
            """,
            (
                ("nodes", "{nodes:,}"),
                ("message", "{number}"),
                ("redundancy", "{redundancy:.3f}"),
                ("last hop", "{hops_max:.1f}"),
                ("last delivery", "{last_ms:.0f} ms"),
            ),
            is_for_figures=True,
        ),
    ),
    figures=(
        Figure(
            "redundancy",
            "Payloads beyond the one that a node needs",
            question="rounds",
            x="number",
            x_label="message",
            y_label="redundant payloads for each node",
            lines=(Line("redundancy", "{nodes:,} nodes"),),
            by="nodes",
        ),
        Figure(
            "hops",
            "Hops of the last delivery",
            question="rounds",
            x="number",
            x_label="message",
            y_label="hops",
            lines=(Line("hops_max", "{nodes:,} nodes"),),
            by="nodes",
        ),
        Figure(
            "time",
            "Time of the last delivery",
            question="rounds",
            x="number",
            x_label="message",
            y_label="after publishing (ms)",
            lines=(Line("last_ms", "{nodes:,} nodes"),),
            by="nodes",
        ),
    ),
    other_results=(
        "Leitão, Pereira, Rodrigues: *Epidemic Broadcast Trees* (SRDS 2007) define both measures and report, for "
        "10,000 nodes in a stable tree, a redundancy near 0, where plain gossip with the same fanout sends several "
        "payloads for each node. We quote no numbers of its figures. In the document the second phase's Scribe stands"
        " against the first phase's gossip, in words: far fewer messages, about the same convergence."
    ),
    broken="select nodes || ' nodes, seed ' || seed as what, 'message ' || number || ' did not reach all' as text "
    "from {rounds} where reached < 1.0 order by point, number",
)
