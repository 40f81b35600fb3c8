"""The Chord ring at rest: how evenly topics are spread over nodes, and how many hops a lookup takes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import msgspec

from tidings_lab.experiments.balance import count_topics, look_up
from tidings_lab.experiments.chord_plans import DOCUMENT_SIZES, LARGE_SIZES, VIRTUAL
from tidings_lab.experiments.experiment import Choice, Experiment, Figure, Line, Question
from tidings_lab.experiments.sweep import Grid, Point

DOCUMENT_TOPICS = 30
TOPICS_FOR_EACH_NODE = 10
"""Beyond the document's sizes."""
RINGS = 20
"""One ring is a matter of luck: these are so many, unless they are large."""
LOOKUPS = 5_000


class OwnerRow(msgspec.Struct, frozen=True):
    """A node, and how many topics it owns."""

    nodes: int
    topics: int
    virtual_nodes: int
    """Its points on the circle; 1: no virtual identifiers."""
    seed: int
    node: str
    owned: int


class LookupRow(msgspec.Struct, frozen=True):
    """One lookup that was answered."""

    nodes: int
    seed: int
    key: str
    hops: int
    is_right: bool
    half_log2: float
    """Half of log2 of the number of nodes."""


def owners(nodes: int, topics: int, virtual_nodes: int, seed: int) -> Iterator[OwnerRow]:
    """Who owns how many topics, in one ring."""
    for node, owned in count_topics(nodes, topics, virtual_nodes, ring=f"{seed}/" if seed else "").items():
        yield OwnerRow(nodes, topics, virtual_nodes, seed, node, owned)


def lookups(nodes: int, seed: int, count: int = LOOKUPS) -> Iterator[LookupRow]:
    """Random keys, asked for from random nodes."""
    for answer in look_up(nodes, count, seed):
        yield LookupRow(nodes, seed, answer.key, answer.hops, answer.is_right, math.log2(nodes) / 2)


def topics_points(choice: Choice) -> Sequence[Point]:
    points: list[Point] = []
    for nodes in choice.sizes((*DOCUMENT_SIZES, *LARGE_SIZES)):
        topics = DOCUMENT_TOPICS if nodes in DOCUMENT_SIZES else nodes * TOPICS_FOR_EACH_NODE
        rings = choice.seeds or (RINGS if nodes <= 100 else 1)
        seeds = range(choice.first_seed, choice.first_seed + rings)
        points += Grid(nodes=[nodes], topics=[topics], virtual_nodes=VIRTUAL, seed=seeds)
    return points


TOPICS = Experiment(
    name="topics",
    title="Topics owned by each node",
    about="how evenly topics are spread over nodes, with and without virtual identifiers",
    setting=(
        "30 topics on 10, 20 and 30 nodes, as in the document, and ten topics for each node beyond; 20 rings of each "
        "size up to 100 nodes, which differ in the names of the nodes, and one of each size above. *Virtual nodes* are "
        "the points on the circle that each node has; 16 and 64 are virtual identifiers (Chord's paper, on load "
        "balance), which are only counted here: no node takes several places yet. *Least* and *most* are means over "
        "the rings."
    ),
    function=owners,
    tables={"owners": OwnerRow},
    points=topics_points,
    questions=(
        Question(
            "topics",
            "Topics of a node",
            """
            with rings as (
                select nodes, topics, virtual_nodes, seed, min(owned) as least, max(owned) as most,
                    percentile(owned, 0.99) as p99, stddev_pop(owned) as deviation,
                    sum(if(owned = 0, 1, 0)) * 100e0 / nodes as without
                from {owners} group by nodes, topics, virtual_nodes, seed)
            select nodes, topics, virtual_nodes, count(*) as rings, topics * 1e0 / nodes as expected,
                avg(least) as least, avg(most) as most, max(most) as most_of_all, avg(p99) as p99,
                avg(deviation) as deviation, avg(deviation) * 100e0 * nodes / topics as relative,
                avg(without) as without
            from rings group by nodes, topics, virtual_nodes order by nodes, topics, virtual_nodes
            """,
            (
                ("nodes", "{nodes:,}"),
                ("topics", "{topics:,}"),
                ("virtual nodes", "{virtual_nodes}"),
                ("rings", "{rings}"),
                ("expected", "{expected:.1f}"),
                ("least", "{least:.1f}"),
                ("most", "{most:.1f}"),
                ("most of all", "{most_of_all}"),
                ("deviation", "{deviation:.1f}"),
                ("nodes without any", "{without:.0f} %"),
            ),
        ),
    ),
    figures=(
        Figure(
            "topics",
            "Topics of a node: least, expected and most (the document's figure 6)",
            question="topics",
            x="nodes",
            x_label="nodes",
            y_label="topics",
            lines=(
                Line("most", "most, 1 virtual node"),
                Line("expected", "expected", is_dashed=True),
                Line("least", "least, 1 virtual node"),
            ),
            where={"virtual_nodes": (1,), "topics": (DOCUMENT_TOPICS,)},
        ),
        Figure(
            "deviation",
            "Standard deviation of the topics of a node, against those expected",
            question="topics",
            x="nodes",
            x_label="nodes",
            y_label="standard deviation (% of the expected)",
            lines=(Line("relative", "{virtual_nodes} virtual nodes"),),
            by="virtual_nodes",
            is_log_x=True,
        ),
    ),
    other_results=(
        "The document (section 7.2.4, figure 6) has 30 topics on 10, 20 and 30 nodes: the expected 3, 1.5 and 1 "
        "topics, nodes that own none, and nodes that own more than expected; the numbers are in a picture. Chord's "
        "paper finds the same spread, and the same cure (on load balance)."
    ),
)


def lookups_points(choice: Choice) -> Sequence[Point]:
    sizes = choice.sizes(LARGE_SIZES)
    return [{"nodes": nodes, "seed": seed} for nodes in sizes for seed in choice.seeds_for(nodes)]


LOOKUPS_EXPERIMENT = Experiment(
    name="lookups",
    title="Hops of a Chord lookup",
    about="hops of a Chord lookup, against half of log2 of the number of nodes",
    setting=(
        f"{LOOKUPS:,} lookups of random keys from random nodes of a ring at rest, with successor lists of 8. A hop is "
        "one message on the way from the asker to the owner, the last one included."
    ),
    function=lookups,
    tables={"lookups": LookupRow},
    points=lookups_points,
    questions=(
        Question(
            "hops",
            "Hops",
            """
            select nodes, count(*) as answered, sum(if(is_right, 1, 0)) as right_answers, avg(hops) as hops_mean,
                percentile(hops, 0.5) as hops_p50, percentile(hops, 0.99) as hops_p99, max(hops) as hops_max,
                max(half_log2) as half_log2, avg(hops) / max(half_log2) as ratio
            from {lookups} group by nodes order by nodes
            """,
            (
                ("nodes", "{nodes:,}"),
                ("answers", "{answered:,}"),
                ("right", "{right_answers:,}"),
                ("hops, mean", "{hops_mean:.2f}"),
                ("p50", "{hops_p50:.0f}"),
                ("p99", "{hops_p99:.0f}"),
                ("max", "{hops_max}"),
                ("half of log2 n", "{half_log2:.2f}"),
                ("ratio", "{ratio:.2f}"),
            ),
        ),
        Question(
            "distribution",
            "Share of the lookups by hops",
            """
            with sizes as (select nodes, count(*) as answered from {lookups} group by nodes)
            select nodes, hops, count(*) * 100e0 / max(answered) as share
            from {lookups} join sizes using (nodes) group by nodes, hops order by nodes, hops
            """,
            (("nodes", "{nodes:,}"), ("hops", "{hops}"), ("share", "{share:.1f} %")),
            is_for_figures=True,
        ),
    ),
    figures=(
        Figure(
            "hops",
            "Hops of a lookup",
            question="hops",
            x="nodes",
            x_label="nodes",
            y_label="hops",
            lines=(
                Line("hops_p99", "99 of 100 lookups take at most"),
                Line("hops_mean", "mean"),
                Line("half_log2", "half of log2 n (Chord, section 6.3)", is_dashed=True),
            ),
            is_log_x=True,
            y_range=(0, 12),
        ),
        Figure(
            "distribution",
            "Share of the lookups by hops",
            question="distribution",
            x="hops",
            x_label="hops",
            y_label="lookups (%)",
            lines=(Line("share", "{nodes:,} nodes"),),
            by="nodes",
        ),
    ),
    other_results="Stoica et al. (2001), section 6.3: the mean path length of a lookup is about half of log2 n.",
    broken="select nodes || ' nodes, seed ' || seed as what, 'the answer for ' || key || ' is wrong' as text "
    "from {lookups} where not is_right order by point",
)
