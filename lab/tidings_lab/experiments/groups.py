"""A ring of groups at rest: hops of a lookup, the trees of topics, and the topics of the busiest owner.

One call is one ring, simulated as the virtual nodes of its groups, and leaves a row for each lookup, for each message
that went down a tree, and for each way of spreading topics over the groups.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence

import msgspec

from tidings_lab.experiments.experiment import Choice, Experiment, Figure, Line, Question
from tidings_lab.experiments.sweep import Point
from tidings_lab.simulated_overlay.world import without_collection
from tidings_lab.simulated_service.groups import LOOKUPS, MESSAGES, TREES, Groups, busiest, half_log2

SIZES = (10, 100, 1_000)
SHARES = (1.0, 0.1)
"""Of the groups, those that subscribe to a topic."""
TOPICS_FOR_EACH_GROUP = 10
RINGS = 20
"""Ways of spreading topics: one ring is a matter of luck."""


class RingRow(msgspec.Struct, frozen=True):
    """One ring."""

    groups: int
    seed: int
    upkeep_messages: float
    """Sent by a virtual node in a second while nobody asks for anything."""
    upkeep_bytes: float
    delivered: int
    cpu_seconds: float


class GroupLookupRow(msgspec.Struct, frozen=True):
    """One lookup that was answered."""

    groups: int
    seed: int
    hops: int
    is_right: bool
    half_log2: float
    """Half of log2 of the number of groups."""


class TreeRow(msgspec.Struct, frozen=True):
    """One message that went down the tree of its topic."""

    groups: int
    seed: int
    share: float
    """Of the groups, those that subscribed."""
    topic: str
    subscribers: int
    delivered: int
    sent: int
    """Messages from virtual node to virtual node that carried it."""
    root_sent: int
    """Those that the root sent itself."""
    depth_mean: float
    depth_max: int


class SpreadRow(msgspec.Struct, frozen=True):
    """How topics are spread over the groups of one ring."""

    groups: int
    ring: int
    topics: int
    most: int
    """Topics of the busiest owner."""
    without: int
    """Groups that own none."""
    ln_mean: float
    """The natural logarithm of the number of groups, times the topics that a group owns on average."""


def groups_rows(groups: int, seed: int) -> Iterator[RingRow | GroupLookupRow | TreeRow | SpreadRow]:
    """Everything about rings of one size.

    >>> rows = list(groups_rows(groups=12, seed=1))
    >>> all(row.is_right for row in rows if isinstance(row, GroupLookupRow))
    True
    """
    began = time.process_time()
    with without_collection():
        ring = Groups(groups, seed)
        upkeep = ring.upkeep()
        for found in ring.look_up():
            yield GroupLookupRow(groups, seed, found.hops, found.is_right, half_log2(groups))
        for use in ring.multicast(SHARES):
            yield TreeRow(
                groups=groups,
                seed=seed,
                share=use.share,
                topic=use.topic,
                subscribers=use.subscribers,
                delivered=use.delivered,
                sent=use.sent,
                root_sent=use.root_sent,
                depth_mean=round(use.depth_mean, 4),
                depth_max=use.depth_max,
            )
    yield RingRow(
        groups,
        seed,
        round(upkeep.messages, 3),
        round(upkeep.size_bytes, 1),
        ring.world.delivered,
        round(time.process_time() - began, 2),
    )
    topics = [f"topic-{number}" for number in range(groups * TOPICS_FOR_EACH_GROUP)]
    for luck in range(seed * RINGS, (seed + 1) * RINGS):
        most, without = busiest(groups, luck, topics)
        yield SpreadRow(groups, luck, len(topics), most, without, math.log(groups) * TOPICS_FOR_EACH_GROUP)


def groups_points(choice: Choice) -> Sequence[Point]:
    sizes = choice.sizes(SIZES)
    return [{"groups": groups, "seed": seed} for groups in sizes for seed in choice.seeds_for(groups)]


GROUPS = Experiment(
    name="groups",
    title="A ring of groups",
    about="up to 1,000 groups: hops of a lookup, depth and cost of the trees, topics of the busiest owner",
    setting=(
        "Each group is simulated as its virtual node in the overlay, at rest, with latencies of 1 to 40 ms, successor "
        "lists of 8, and every message encoded as between nodes. "
        f"*Lookups*: {LOOKUPS:,} random points, asked for by random groups. *Trees*: {TREES} topics to which every "
        f"group subscribes and {TREES} to which a tenth does; the owner of each publishes {MESSAGES} messages. "
        f"*Topics*: {TOPICS_FOR_EACH_GROUP} topics for each group, spread over {RINGS} rings for each seed, which "
        "differ in where the groups stand. *Upkeep* is what a virtual node sends while nobody asks for anything, with "
        "a round every 2 s and a finger every second."
    ),
    function=groups_rows,
    tables={"runs": RingRow, "lookups": GroupLookupRow, "trees": TreeRow, "owners": SpreadRow},
    points=groups_points,
    questions=(
        Question(
            "hops",
            "Hops of a lookup",
            """
            with upkeep as (
                select groups, avg(upkeep_messages) as upkeep, avg(upkeep_bytes) as upkeep_bytes,
                    sum(delivered) / sum(cpu_seconds) as speed
                from {runs} group by groups),
            full_trees as (
                select groups, avg(depth_mean) as depth_mean, max(depth_max) as depth_max
                from {trees} where share = 1 group by groups)
            select groups, count(*) as answered, sum(if(is_right, 1, 0)) as right_answers, avg(hops) as hops_mean,
                percentile(hops, 0.99) as hops_p99, max(hops) as hops_max, max(half_log2) as half_log2,
                avg(hops) / max(half_log2) as ratio, max(upkeep) as upkeep, max(upkeep_bytes) as upkeep_bytes,
                max(speed) as speed, max(depth_mean) as depth_mean, max(depth_max) as depth_max
            from {lookups} join upkeep using (groups) join full_trees using (groups) group by groups order by groups
            """,
            (
                ("groups", "{groups:,}"),
                ("answers", "{answered:,}"),
                ("right", "{right_answers:,}"),
                ("hops, mean", "{hops_mean:.2f}"),
                ("p99", "{hops_p99:.0f}"),
                ("max", "{hops_max}"),
                ("half of log2 n", "{half_log2:.2f}"),
                ("ratio", "{ratio:.2f}"),
                ("upkeep of a virtual node", "{upkeep:.1f}/s"),
                ("bytes", "{upkeep_bytes:,.0f}/s"),
                ("simulated", "{speed:,.0f}/s"),
            ),
        ),
        Question(
            "trees",
            "Trees",
            """
            with theory as (select groups, max(half_log2) as half_log2 from {lookups} group by groups)
            select groups, share, count(*) as messages, sum(subscribers) as owed, sum(delivered) as delivered,
                avg(depth_mean) as depth_mean, max(depth_max) as depth_max, max(half_log2) as half_log2,
                avg(sent * 1e0 / groups) as for_each_node, sum(sent) * 1e0 / sum(delivered) as for_each_delivery,
                avg(subscribers * 1e0 / groups) as least_for_each_node, avg(root_sent) as root_sent,
                avg(subscribers) as subscribers
            from {trees} join theory using (groups) group by groups, share order by share desc, groups
            """,
            (
                ("groups", "{groups:,}"),
                ("subscribed", "{share:.0%}"),
                ("owed", "{owed:,}"),
                ("delivered", "{delivered:,}"),
                ("depth, mean", "{depth_mean:.2f}"),
                ("max", "{depth_max}"),
                ("half of log2 n", "{half_log2:.2f}"),
                ("messages a delivery", "{for_each_delivery:.2f}"),
                ("messages a group", "{for_each_node:.2f}"),
                ("sent by the root", "{root_sent:.1f}"),
            ),
        ),
        Question(
            "busiest",
            "Topics of the busiest owner",
            """
            select groups, max(topics) as topics, count(*) as rings, max(topics) * 1e0 / groups as expected,
                avg(most) as most, max(most) as most_of_all, max(ln_mean) as ln_mean,
                avg(without) * 100e0 / groups as without
            from {owners} group by groups order by groups
            """,
            (
                ("groups", "{groups:,}"),
                ("topics", "{topics:,}"),
                ("rings", "{rings}"),
                ("mean", "{expected:.0f}"),
                ("busiest", "{most:.1f}"),
                ("busiest of all", "{most_of_all}"),
                ("ln n times the mean", "{ln_mean:.1f}"),
                ("groups without any", "{without:.0f} %"),
            ),
        ),
    ),
    figures=(
        Figure(
            "hops",
            "Hops between groups: a lookup, and a message down a tree to all groups",
            question="hops",
            x="groups",
            x_label="groups",
            y_label="hops",
            lines=(
                Line("depth_max", "deepest of all trees"),
                Line("hops_mean", "lookup, mean"),
                Line("depth_mean", "depth in a tree, mean"),
                Line("half_log2", "half of log2 n", is_dashed=True),
            ),
            is_log_x=True,
            y_range=(0, 10),
        ),
        Figure(
            "busiest",
            "Topics of the busiest owner, with ten topics for each group",
            question="busiest",
            x="groups",
            x_label="groups",
            y_label="topics",
            lines=(
                Line("most", "busiest owner, mean of the rings"),
                Line("ln_mean", "ln n times the mean", is_dashed=True),
                Line("expected", "mean"),
            ),
            is_log_x=True,
        ),
    ),
    other_results=(
        "Stoica et al. (2001), section 6.3: the mean path of a lookup is about half of log2 n. The longest of n ranges "
        "cut by lot is about ln n times the mean one, and so are its topics. A tree to which everybody has subscribed "
        "needs one message for each delivery but the root's own; one with few subscribers is made of the paths of "
        "their lookups, so about half of log2 n for each is the most it needs."
    ),
    broken="select groups || ' groups, seed ' || seed as what, 'some lookups were wrong' as text "
    "from {lookups} where not is_right group by groups, seed union all "
    "select groups || ' groups, seed ' || seed as what, 'some of ' || topic || ' did not arrive' as text "
    "from {trees} where delivered < subscribers group by groups, seed, topic",
)
