"""Scribe over Chord: messages at each layer, convergence, and whether everything arrives, with and without failures.

The document that asked for the system measured 10 to 30 nodes, all of which publish to and subscribe to a few topics.
Larger rings have one topic to which everybody subscribes, and ten publishers: otherwise deliveries would grow with the
square of the nodes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from tidings.settings import ChordSettings
from tidings_lab.experiments.chord_plans import DOCUMENT_LOADS, DOCUMENT_SIZES, LARGE_SIZES, large_plan
from tidings_lab.experiments.experiment import Choice, Experiment, Figure, Line, Question
from tidings_lab.experiments.sweep import Point
from tidings_lab.simulated_overlay.chord.multicast import Multicast, MulticastPlan
from tidings_lab.simulated_overlay.world import without_collection

DOCUMENT_NODES = 20
DOCUMENT_NODES_MAX = 30
"""Up to here everybody publishes."""


class RunRow(msgspec.Struct, frozen=True):
    """One run. Messages are counted when they are sent, one for each receiver."""

    nodes: int
    seed: int
    topics: int
    messages_per_publisher: int
    failed_share: float
    failed_nodes: int
    loss: float
    published: int
    owed: int
    """Deliveries that had to happen: messages times live subscribers."""
    delivered: int
    """Of those, how many did."""
    scribe_messages: int
    spread_messages: int
    """Of those, how many carried messages down a tree."""
    fetch_messages: int
    chord_messages: int
    duration_ms: int
    depth_mean: float
    depth_max: int
    repair_ms: int
    """From the last failure or publish, whichever was later, until every live subscriber had everything."""
    rule: str | None
    text: str


class MessageRow(msgspec.Struct, frozen=True):
    """One published message."""

    topic: str
    message: str
    is_owed: bool
    """Not if its publisher died before it was told that the message is accepted."""
    published_ms: float
    deliveries: int
    last_ms: float | None
    """From publishing to the last delivery."""


class SentRow(msgspec.Struct, frozen=True):
    """How many messages of one kind were sent."""

    layer: str
    kind: str
    sent: int


TABLES: dict[str, type[msgspec.Struct]] = {"runs": RunRow, "messages": MessageRow, "sent": SentRow}


def plan_of(nodes: int, messages: int, failed_share: float, loss: float, seed: int) -> MulticastPlan:
    """The document's workload for its sizes, one topic and ten publishers beyond."""
    if nodes > DOCUMENT_NODES_MAX:
        return msgspec.structs.replace(large_plan(nodes, failed_share, seed), messages_per_node=messages, loss=loss)
    # Longer lists where nodes fail: no node may lose all its successors.
    chord = ChordSettings(successors_max=12) if failed_share or loss else ChordSettings()
    return MulticastPlan(
        seed=seed, nodes=nodes, messages_per_node=messages, failed_share=failed_share, loss=loss, chord=chord
    )


def multicast(
    nodes: int, messages: int, seed: int, failed_share: float = 0.0, loss: float = 0.0
) -> Iterator[RunRow | MessageRow | SentRow]:
    """One run: subscribe, publish, fail, repair; and what everybody got.

    >>> run, *rest = multicast(nodes=12, messages=2, seed=1)
    >>> run.delivered == run.owed == 24 * 12
    True
    """
    plan = plan_of(nodes, messages, failed_share, loss, seed)
    under_way = Multicast(plan)
    with without_collection():
        row = under_way.run()
    yield RunRow(
        nodes=nodes,
        seed=seed,
        topics=plan.topics,
        messages_per_publisher=messages,
        failed_share=failed_share,
        failed_nodes=row.failed_nodes,
        loss=loss,
        published=row.published,
        owed=row.owed,
        delivered=row.delivered,
        scribe_messages=row.scribe_messages,
        spread_messages=row.spread_messages,
        fetch_messages=row.fetch_messages,
        chord_messages=row.chord_messages,
        duration_ms=row.duration_ms,
        depth_mean=row.depth_mean,
        depth_max=row.depth_max,
        repair_ms=row.repair_ms,
        rule=row.rule,
        text=row.text,
    )
    deliveries = under_way.deliveries
    owed = deliveries.owed()
    for topic, payloads in deliveries.published.items():
        for payload in payloads:
            at_us, count, last_us = deliveries.journeys[payload]
            last_ms = (last_us - at_us) / 1000 if count else None
            yield MessageRow(topic, payload.decode(), payload in owed[topic], at_us / 1000, count, last_ms)
    for kind, sent in under_way.world.sent.items():
        yield SentRow("scribe" if ".scribe." in kind.__module__ else "chord", kind.__name__, sent)


BROKEN = """
select nodes || ' nodes, seed ' || seed as what, text
from {runs} where rule is not null order by point
"""

# Messages and convergence against messages of each publisher (the document's figures 3 and 4).


def load_points(choice: Choice) -> Sequence[Point]:
    points: list[Point] = []
    for nodes in choice.sizes((DOCUMENT_NODES, *LARGE_SIZES)):
        for messages in DOCUMENT_LOADS if nodes <= 1_000 else DOCUMENT_LOADS[:1]:
            points += ({"nodes": nodes, "messages": messages, "seed": seed} for seed in choice.seeds_for(nodes))
    return points


LOAD = Experiment(
    name="load",
    title="Messages at the Scribe layer, and convergence",
    about="messages at the Scribe layer and convergence time, against messages of each publisher",
    setting=(
        "20 nodes with 5 topics, as in the document: everybody subscribes to everything and publishes a message every"
        " 100 ms, to a topic drawn by lot. From 100 nodes on: one topic, everybody subscribes, ten nodes publish. "
        "Latencies of 10 to 100 ms, and up to 20 ms more by lot. *Convergence* is the time from the first publish to "
        "the last delivery anywhere; most of it is the time that publishing takes, which *last delivery* leaves out: "
        "from the publishing of a message to its last delivery."
    ),
    function=multicast,
    tables=TABLES,
    points=load_points,
    questions=(
        Question(
            "load",
            "Messages and convergence",
            """
            with spans as (
                select point, max(published_ms + last_ms) - min(published_ms) as convergence_ms,
                    percentile(last_ms, 0.5) as last_p50_ms, percentile(last_ms, 0.99) as last_p99_ms
                from {messages} group by point)
            select nodes, messages_per_publisher, count(*) as runs, avg(published) as published,
                sum(delivered) as delivered, sum(owed) as owed, avg(scribe_messages) as scribe_messages,
                avg(spread_messages) as spread_messages, avg(scribe_messages * 1e0 / delivered) as for_each_delivery,
                avg(convergence_ms) / 1000 as convergence_s, avg(last_p50_ms) as last_p50_ms,
                avg(last_p99_ms) as last_p99_ms
            from {runs} join spans using (point)
            group by nodes, messages_per_publisher order by nodes, messages_per_publisher
            """,
            (
                ("nodes", "{nodes:,}"),
                ("messages of each publisher", "{messages_per_publisher}"),
                ("runs", "{runs}"),
                ("published", "{published:,.0f}"),
                ("deliveries, of all owed", "{delivered:,} of {owed:,}"),
                ("Scribe messages", "{scribe_messages:,.0f}"),
                ("of those down the tree", "{spread_messages:,.0f}"),
                ("Scribe messages for each delivery", "{for_each_delivery:.2f}"),
                ("convergence", "{convergence_s:.1f} s"),
                ("last delivery, p50", "{last_p50_ms:.0f} ms"),
                ("p99", "{last_p99_ms:.0f} ms"),
            ),
        ),
    ),
    figures=(
        Figure(
            "messages",
            "Messages at the Scribe layer (the document's figure 3)",
            question="load",
            x="messages_per_publisher",
            x_label="messages of each publisher",
            y_label="messages of the Scribe layer",
            lines=(
                Line("scribe_messages", "all, {nodes} nodes"),
                Line("spread_messages", "down the tree, {nodes} nodes"),
            ),
            where={"nodes": (DOCUMENT_NODES,)},
        ),
        Figure(
            "convergence",
            "Convergence (the document's figure 4)",
            question="load",
            x="messages_per_publisher",
            x_label="messages of each publisher",
            y_label="first publish to last delivery (s)",
            lines=(Line("convergence_s", "{nodes:,} nodes"),),
            by="nodes",
        ),
        Figure(
            "delivery",
            "From publishing a message to its last delivery",
            question="load",
            x="nodes",
            x_label="nodes",
            y_label="last delivery (ms)",
            lines=(
                Line("last_p99_ms", "99 of 100 messages within"),
                Line("last_p50_ms", "half of the messages within"),
            ),
            is_log_x=True,
            where={"messages_per_publisher": DOCUMENT_LOADS[:1]},
        ),
    ),
    other_results=(
        "The document (sections 7.2.1 and 7.2.2, figures 3 and 4) used 20 nodes with 10, 25, 50 and 75 messages each."
        " Its figures are pictures without numbers; in its words reliability was almost 100 % every time. Here it is "
        "100 %."
    ),
    broken=BROKEN,
)

# Chord messages against nodes (figure 5).


def chord_points(choice: Choice) -> Sequence[Point]:
    sizes = choice.sizes((*DOCUMENT_SIZES, *LARGE_SIZES))
    return [{"nodes": nodes, "messages": 20, "seed": seed} for nodes in sizes for seed in choice.seeds_for(nodes)]


CHORD = Experiment(
    name="chord",
    title="Chord messages against nodes",
    about="Chord messages against the number of nodes",
    setting=(
        "10, 20 and 30 nodes that publish 20 messages each to 5 topics, as in the document; from 100 nodes on ten "
        "publishers and one topic. Nearly all Chord messages are upkeep (looking up fingers included), which grows "
        "with the time and not with what is published: compare the messages of one node in one second. Up to 30 nodes"
        " stabilise and fix a finger every 500 ms; 100 and 1,000 nodes fix one every 2.5 s; 10,000 nodes stabilise "
        "every 2 s and fix a finger every 10 s."
    ),
    function=multicast,
    tables=TABLES,
    points=chord_points,
    questions=(
        Question(
            "chord",
            "Chord messages",
            """
            select nodes, count(*) as runs, avg(published) as published, avg(chord_messages) as chord_messages,
                avg(duration_ms) / 1000 as seconds,
                avg(chord_messages * 1000e0 / duration_ms / nodes) as for_each_node_and_second
            from {runs} group by nodes order by nodes
            """,
            (
                ("nodes", "{nodes:,}"),
                ("runs", "{runs}"),
                ("published", "{published:,.0f}"),
                ("Chord messages", "{chord_messages:,.0f}"),
                ("in", "{seconds:.1f} s"),
                ("for each node and second", "{for_each_node_and_second:.1f}"),
            ),
        ),
        Question(
            "kinds",
            "What they are",
            """
            select kind, sum(sent) as sent,
                sum(sent) * 100e0 / (select sum(sent) from {sent} where layer = 'chord') as share
            from {sent} where layer = 'chord' group by kind order by sent desc, kind
            """,
            (("kind", "{kind}"), ("messages in all runs", "{sent:,}"), ("share", "{share:.1f} %")),
        ),
    ),
    figures=(
        Figure(
            "messages",
            "Chord messages (the document's figure 5)",
            question="chord",
            x="nodes",
            x_label="nodes",
            y_label="Chord messages",
            lines=(Line("chord_messages", "in the whole run"),),
            where={"nodes": DOCUMENT_SIZES},
        ),
        Figure(
            "upkeep",
            "Chord messages of a node in a second",
            question="chord",
            x="nodes",
            x_label="nodes",
            y_label="messages",
            lines=(Line("for_each_node_and_second", "a node in a second"),),
            is_log_x=True,
        ),
    ),
    other_results=(
        "The document (section 7.2.3, figure 5) used 10, 20 and 30 nodes with 20 messages each; its figure is a "
        "picture without numbers."
    ),
    broken=BROKEN,
)

# Reliability with and without failures (sections 7.2 and 7.3).


def reliability_points(choice: Choice) -> Sequence[Point]:
    points: list[Point] = []
    for nodes in choice.sizes((DOCUMENT_NODES, *LARGE_SIZES)):
        is_large = nodes > DOCUMENT_NODES_MAX
        for failed_share in choice.shares or ((0.0, 0.3) if is_large else (0.0, 0.1, 0.3)):
            for loss in (0.0,) if is_large else (0.0, 0.02):
                faults: Point = {"messages": 10 if is_large else 20, "failed_share": failed_share, "loss": loss}
                points += ({"nodes": nodes, "seed": seed, **faults} for seed in choice.seeds_for(nodes))
    return points


RELIABILITY = Experiment(
    name="reliability",
    title="Reliability with and without failures",
    about="whether every message comes to every live subscriber, with and without failures and loss",
    setting=(
        "A share of the nodes fails at once in the middle of the publishing, and where it says so two messages in a "
        "hundred are lost. *Owed* is every message whose publisher lives or was told that it is accepted, to every "
        "live subscriber; of every log one copy at least is spared. *Repaired* is the time from the last failure or "
        "publish, whichever was later, until everybody had everything; it is looked at every 250 ms."
    ),
    function=multicast,
    tables=TABLES,
    points=reliability_points,
    questions=(
        Question(
            "reliability",
            "Deliveries owed and made",
            """
            select nodes, failed_share, loss, count(*) as runs, sum(failed_nodes) as failed,
                sum(published) as published, sum(owed) as owed, sum(delivered) as delivered,
                sum(delivered) * 100e0 / sum(owed) as reliability,
                avg(repair_ms) / 1000 as repair_s, max(repair_ms) / 1000e0 as repair_max_s,
                sum(fetch_messages) as fetches
            from {runs} group by nodes, failed_share, loss order by nodes, failed_share, loss
            """,
            (
                ("nodes", "{nodes:,}"),
                ("fail at once", "{failed_share:.0%}"),
                ("loss", "{loss:.0%}"),
                ("runs", "{runs}"),
                ("published", "{published:,}"),
                ("owed", "{owed:,}"),
                ("delivered", "{delivered:,}"),
                ("reliability", "{reliability:.4f} %"),
                ("repaired after, mean", "{repair_s:.1f} s"),
                ("max", "{repair_max_s:.1f} s"),
                ("fetches", "{fetches:,}"),
            ),
        ),
    ),
    figures=(
        Figure(
            "reliability",
            "Deliveries made, of those owed",
            question="reliability",
            x="failed_share",
            x_factor=100,
            x_label="nodes that fail at once (%)",
            y_label="deliveries made, of those owed (%)",
            lines=(Line("reliability", "{nodes:,} nodes"),),
            by="nodes",
            y_range=(0, 103),
            where={"loss": (0.0,)},
        ),
        Figure(
            "repair",
            "Time until everybody has everything",
            question="reliability",
            x="nodes",
            x_label="nodes",
            y_label="after the last failure or publish (s)",
            lines=(Line("repair_s", "{failed_share:.0%} fail"),),
            by="failed_share",
            is_log_x=True,
            where={"loss": (0.0,)},
        ),
    ),
    other_results=(
        "The document reports *almost 100 %* without failures (section 7.2) and *near 100 %* under small levels of "
        "failures (section 7.3), both in words, and expects larger networks to do as well."
    ),
    broken=BROKEN,
)
