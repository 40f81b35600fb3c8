"""The whole service: rings of replica groups with clients at all nodes, as engines in virtual time.

The document's section 7 once more, on everything at once: puts that are agreed on, topics that lie on a ring, bodies
that go down trees, and clients at any node. `service_processes.py` has the same with real processes; the rows of both
are asked the same questions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import cast

import msgspec

from tidings.settings import Dissemination
from tidings_lab.experiments.chord_plans import DOCUMENT_LOADS, DOCUMENT_SIZES
from tidings_lab.experiments.experiment import Choice, Experiment, Figure, Line, Question
from tidings_lab.experiments.sweep import Point
from tidings_lab.simulated_service.load import DOCUMENT_TOPICS, SUBSCRIPTIONS_EACH, ServiceAccount
from tidings_lab.simulated_service.run import LATENCY_MS_MAX, GroupState, ServicePlan, run_service

LOAD_SIZE = 20
"""Nodes with which the document changes the load, and not the size."""
SIZE_LOAD = 20
"""Messages of each node with which it changes the size."""

OTHER_RESULTS = (
    "The document that asked for the system has no numbers in the text of its section 7: its figures 3 to 6 are "
    "pictures whose axes it does not repeat in words. What it does say, beside what was measured here:\n\n"
    "| section | the document | here |\n"
    "|---|---|---|\n"
    '| 7.2 | reliability "almost 100% every time" without failures, 20 nodes | *reliability* and *lost* above |\n'
    "| 7.2.1 | total messages at the Scribe layer against 10, 25, 50, 75 messages of each of 20 nodes (figure 3): no "
    "numbers given | counted in `service-simulated` |\n"
    "| 7.2.2 | convergence against the same loads (figure 4): no numbers given | *converged* above |\n"
    "| 7.2.3 | Chord messages of 10, 20, 30 nodes with 20 messages each (figure 5): no numbers given | counted in "
    "`service-simulated` |\n"
    '| 7.2.4 | 30 topics on 10, 20, 30 nodes: expected 3, 1.5 and 1 of a node; "there are nodes that do not own a '
    'topic" and nodes "that own more topics than expected"; more nodes, more balanced (figure 6) | *topics of a group* '
    "above |\n"
    '| 7.3 | "near 100% of reliability in all tests" with "small levels of failures", which are not said | one node '
    "of every group killed half-way |\n"
    '| 7.4 | "all the replicas received the same information in the ordering of messages": "good correctness '
    'results", no numbers | *agree*: replicas that have applied as much as the foremost and own the same; '
    "*out of order*: topics whose subscribers saw different orders |\n"
    '| 7.5 | "much less" messages than in its first phase; convergence "more or less equal" | *scribe* and '
    "*gossip* in `service-simulated` |"
)


class ServiceRow(msgspec.Struct, frozen=True):
    """One load on one ring. Times are in milliseconds; virtual ones, if it was simulated."""

    nodes: int
    groups: int
    replicas: int
    dissemination: str
    seed: int
    messages: int
    """Of each client; one is at every node."""
    killed: int
    """Nodes that were killed half-way, one of every group; 0 without failures."""
    topics: int
    published: int
    owed: int
    delivered: int
    lost: int
    doubled: int
    """Deliveries that came again, or that nobody had asked for."""
    disordered: int
    """Topics whose subscribers have not all seen the same in the same order."""
    reliability: float
    p50_ms: float | None
    """From a put to a delivery."""
    p99_ms: float | None
    convergence_ms: float
    """From the first put to the last delivery."""
    tail_ms: float
    """From the last acknowledgement to the last delivery; 0 if that came first."""
    start_ms: float | None
    """Until the ring was whole; for its first load only."""
    replicas_up: int
    agreeing: int
    """Replicas that had applied as much as the foremost of their group in the end, and owned the same."""
    topics_mean: float
    """Topics of a group."""
    topics_most: int
    without: int
    """Groups that own none of the topics."""


class ServiceGroupRow(msgspec.Struct, frozen=True):
    """A group after one load."""

    nodes: int
    groups: int
    seed: int
    messages: int
    killed: int
    group: str
    replicas: int
    agreeing: int
    applied: int
    topics: int


class ServiceSentRow(msgspec.Struct, frozen=True):
    """Messages of one kind from node to node, in one phase of a run."""

    nodes: int
    groups: int
    replicas: int
    dissemination: str
    seed: int
    messages: int
    killed: int
    phase: str
    layer: str
    kind: str
    sent_count: int
    size_bytes: int
    lasted_ms: int
    delivered: int


def service_row(
    account: ServiceAccount,
    states: Sequence[GroupState],
    dissemination: str,
    seed: int,
    killed: int,
    start_ms: float | None = None,
) -> ServiceRow:
    """What is told of a load when it is over."""
    topics = [state.topics for state in states]
    p50_ms, p99_ms = account.percentile_ms(0.5), account.percentile_ms(0.99)
    return ServiceRow(
        nodes=sum(state.replicas for state in states),
        groups=len(states),
        replicas=states[0].replicas,
        dissemination=dissemination,
        seed=seed,
        messages=len(account.load.puts[0]),
        killed=killed,
        topics=len(account.load.topics),
        published=account.acknowledged,
        owed=account.owed,
        delivered=account.delivered,
        lost=account.lost,
        doubled=account.doubled + account.strange,
        disordered=account.disordered,
        reliability=account.delivered / account.owed if account.owed else 1.0,
        p50_ms=None if p50_ms is None else round(p50_ms, 1),
        p99_ms=None if p99_ms is None else round(p99_ms, 1),
        convergence_ms=round(account.last_delivered_ms - account.first_put_ms, 1),
        tail_ms=round(max(0.0, account.last_delivered_ms - account.last_acknowledged_ms), 1),
        start_ms=start_ms,
        replicas_up=sum(state.replicas for state in states),
        agreeing=sum(state.agreeing for state in states),
        topics_mean=sum(topics) / len(topics),
        topics_most=max(topics),
        without=topics.count(0),
    )


def group_rows(row: ServiceRow, states: Iterable[GroupState]) -> Iterator[ServiceGroupRow]:
    for state in states:
        yield ServiceGroupRow(
            *(row.nodes, row.groups, row.seed, row.messages, row.killed),
            *(state.group, state.replicas, state.agreeing, state.applied, state.topics),
        )


def simulated_rows(
    nodes: int, replicas: int, messages: int, failures: bool, dissemination: str, seed: int
) -> Iterator[ServiceRow | ServiceGroupRow | ServiceSentRow]:
    """One load on one ring, in virtual time.

    >>> row, *others = simulated_rows(nodes=4, replicas=1, messages=3, failures=False, dissemination="scribe", seed=1)
    >>> row.published, row.lost, row.doubled, row.agreeing
    (12, 0, 0, 4)
    """
    spread = cast(Dissemination, dissemination)
    result = run_service(ServicePlan(nodes // replicas, replicas, messages, failures, spread, seed))
    row = service_row(result.account, result.groups, dissemination, seed, result.killed)
    yield row
    yield from group_rows(row, result.groups)
    for sent in result.sent:
        yield ServiceSentRow(
            *(row.nodes, row.groups, replicas, dissemination, seed, messages, row.killed),
            *(sent.phase, sent.layer, sent.kind, sent.count, sent.size_bytes, sent.lasted_ms, row.delivered),
        )


def simulated_points(choice: Choice) -> Sequence[Point]:
    points: list[Point] = []
    for size in choice.sizes(DOCUMENT_SIZES):
        usual = sorted((*DOCUMENT_LOADS, SIZE_LOAD)) if size == LOAD_SIZE else [SIZE_LOAD]
        loads = choice.loads(usual)
        kinds = [(1, False, "scribe", load) for load in loads]
        kinds += [(3, failures, "scribe", load) for failures in (False, True) for load in loads]
        kinds += [(replicas, False, "gossip", loads[-1]) for replicas in (1, 3)] if size == LOAD_SIZE else []
        for replicas, failures, dissemination, load in kinds:
            points += [
                {
                    "nodes": size // replicas * replicas,
                    "replicas": replicas,
                    "messages": load,
                    "failures": failures,
                    "dissemination": dissemination,
                    "seed": seed,
                }
                for seed in range(choice.first_seed, choice.first_seed + (choice.seeds or 1))
            ]
    return points


LINE = (
    "nodes || ' nodes, groups of ' || replicas || if(killed > 0, ', failures', '') || "
    "if(dissemination = 'gossip', ', gossip', '')"
)
"""What a line of a figure is called."""
HAS_LOADS = "if(count(*) over (partition by dissemination, replicas, nodes, killed) > 1, 1, 0)"
"""Whether there are several loads, and so a line to draw."""

LOADS = Question(
    "service",
    "Reliability, convergence and agreement",
    f"""
    select dissemination, replicas, nodes, groups, messages, killed, sum(published) as published,
        sum(owed) as owed, sum(delivered) as delivered, sum(lost) as lost, sum(doubled) as doubled,
        sum(disordered) as disordered, sum(delivered) * 100e0 / sum(owed) as reliability, avg(p50_ms) as p50_ms,
        max(p99_ms) as p99_ms, avg(convergence_ms) as convergence_ms, avg(convergence_ms) / 1e3 as convergence,
        avg(tail_ms) as tail_ms, sum(agreeing) as agreeing, sum(replicas_up) as replicas_up,
        {LINE} as line, {HAS_LOADS} as has_loads
    from {{runs}} group by dissemination, replicas, nodes, groups, messages, killed
    order by dissemination desc, replicas, nodes, killed, messages
    """,
    (
        ("nodes", "{nodes}"),
        ("groups", "{groups}"),
        ("spread by", "{dissemination}"),
        ("killed", "{killed}"),
        ("messages of a node", "{messages}"),
        ("put", "{published:,}"),
        ("owed", "{owed:,}"),
        ("delivered", "{delivered:,}"),
        ("lost", "{lost}"),
        ("doubled", "{doubled}"),
        ("out of order", "{disordered}"),
        ("reliability", "{reliability:.2f} %"),
        ("p50 ms", "{p50_ms:,.0f}"),
        ("p99 ms", "{p99_ms:,.0f}"),
        ("converged s", "{convergence:.1f}"),
        ("after the last put ms", "{tail_ms:,.0f}"),
        ("agree", "{agreeing} of {replicas_up}"),
    ),
)
TOPICS_OF_GROUPS = Question(
    "topics",
    "Topics of a group",
    """
    select nodes, groups, max(topics) as topics, avg(topics_mean) as expected, avg(topics_most) as most,
        max(topics_most) as most_of_all, avg(without) as without, count(*) as loads
    from {runs} group by nodes, groups order by groups, nodes
    """,
    (
        ("nodes", "{nodes}"),
        ("groups", "{groups}"),
        ("topics", "{topics}"),
        ("rings and loads", "{loads}"),
        ("mean", "{expected:.1f}"),
        ("most", "{most:.1f}"),
        ("most of all", "{most_of_all}"),
        ("groups without any", "{without:.1f}"),
    ),
)
BROKEN = (
    "select nodes || ' nodes, ' || messages || ' messages, seed ' || seed as what, lost || ' lost, ' || doubled || "
    "' doubled, ' || disordered || ' topics out of order, ' || agreeing || ' of ' || replicas_up || ' agree' as text "
    "from {runs} where lost > 0 or doubled > 0 or disordered > 0 or agreeing < replicas_up"
)
CONVERGENCE = Figure(
    "convergence",
    "From the first put to the last delivery (the document's figure 4)",
    question="service",
    x="messages",
    x_label="messages of each node",
    y_label="seconds",
    lines=(Line("convergence", "{line}"),),
    by="line",
    where={"has_loads": (1,), "dissemination": ("scribe",)},
)

SERVICE_SIMULATED = Experiment(
    name="service-simulated",
    title="The whole service in virtual time",
    about="rings of 10 to 30 nodes, alone and in groups of 3: reliability, convergence, messages by kind, agreement",
    setting=(
        "Every node is the engine of a real one on a simulated disk, with groups of 1 (every node by itself) and of 3; "
        f"messages between nodes are encoded, take 1 to {LATENCY_MS_MAX} ms and stay in order, a commit takes 1 ms. At "
        f"every node is one client, which subscribes to {SUBSCRIPTIONS_EACH} of {DOCUMENT_TOPICS} topics and puts its "
        "messages one after another, each to a topic drawn by lot. *Killed*: one node of every group, drawn by lot, is "
        "killed when half of the messages have been acknowledged, and started again in the end. Where the document has "
        "10 and 20 nodes, groups of 3 have 9 and 18. *Converged* is from the first put to the last delivery; all "
        "clients put at the same time, as fast as they are acknowledged. *Agree* compares in the end, for each "
        "replica, how much it has applied, what it owns, and where the log of each topic begins and ends. Messages are "
        "counted when they are sent, from the first put to the last delivery; those at rest are of 5 s before, in "
        "which every client has its subscriptions and nobody puts."
    ),
    function=simulated_rows,
    tables={"runs": ServiceRow, "groups": ServiceGroupRow, "sent": ServiceSentRow},
    points=simulated_points,
    questions=(
        LOADS,
        Question(
            "sent",
            "Messages between nodes",
            f"""
            with sums as (
                select point, nodes, groups, replicas, dissemination, messages, killed,
                    if(max(delivered) > 0, max(delivered), 1) as delivered,
                    sum(if(phase = 'load', sent_count, 0)) as total,
                    sum(if(phase = 'load' and layer in ('relay', 'bodies'), sent_count, 0)) as carried,
                    sum(if(phase = 'load' and layer = 'paxos', sent_count, 0)) as paxos,
                    sum(if(phase = 'load' and layer = 'chord', sent_count, 0)) as chord,
                    sum(if(phase = 'load' and layer = 'scribe', sent_count, 0)) as scribe,
                    sum(if(phase = 'load' and layer in ('gossip', 'hyparview', 'heartbeat'), sent_count, 0)) as gossip,
                    sum(if(phase = 'load' and layer = 'finding', sent_count, 0)) as finding,
                    sum(if(phase = 'rest', sent_count * 1e3 / lasted_ms / nodes, 0e0)) as at_rest
                from {{sent}} group by point, nodes, groups, replicas, dissemination, messages, killed)
            select dissemination, replicas, nodes, groups, messages, killed, {LINE} as line, {HAS_LOADS} as has_loads,
                avg(total) as total,
                avg(carried) as carried, avg(paxos) as paxos, avg(chord) as chord, avg(scribe) as scribe,
                avg(gossip) as gossip, avg(finding) as finding, avg(total * 1e0 / delivered) as for_each_delivery,
                avg(at_rest) as at_rest
            from sums group by dissemination, replicas, nodes, groups, messages, killed
            order by dissemination desc, replicas, nodes, killed, messages
            """,
            (
                ("nodes", "{nodes}"),
                ("groups", "{groups}"),
                ("spread by", "{dissemination}"),
                ("killed", "{killed}"),
                ("messages of a node", "{messages}"),
                ("all", "{total:,.0f}"),
                ("for clients", "{carried:,.0f}"),
                ("paxos", "{paxos:,.0f}"),
                ("scribe", "{scribe:,.0f}"),
                ("gossip", "{gossip:,.0f}"),
                ("chord", "{chord:,.0f}"),
                ("finding", "{finding:,.0f}"),
                ("for each delivery", "{for_each_delivery:.1f}"),
                ("at rest, a node", "{at_rest:.0f}/s"),
            ),
        ),
        TOPICS_OF_GROUPS,
    ),
    figures=(
        CONVERGENCE,
        Figure(
            "scribe",
            "Messages at the Scribe layer (the document's figure 3)",
            question="sent",
            x="messages",
            x_label="messages of each node",
            y_label="messages from node to node",
            lines=(Line("scribe", "{line}"),),
            by="line",
            where={"has_loads": (1,), "dissemination": ("scribe",)},
        ),
        Figure(
            "chord",
            f"Chord messages, with {SIZE_LOAD} messages of each node (the document's figure 5)",
            question="sent",
            x="nodes",
            x_label="nodes",
            y_label="messages from node to node",
            lines=(Line("chord", "groups of {replicas}"),),
            by="replicas",
            where={"messages": (SIZE_LOAD,), "killed": (0,), "dissemination": ("scribe",)},
        ),
        Figure(
            "delivery",
            "Messages between nodes for each delivery",
            question="sent",
            x="messages",
            x_label="messages of each node",
            y_label="messages from node to node",
            lines=(Line("for_each_delivery", "{line}"),),
            by="line",
            where={"has_loads": (1,), "dissemination": ("scribe",)},
        ),
        Figure(
            "topics",
            f"Topics of a group, of {DOCUMENT_TOPICS} (the document's figure 6)",
            question="topics",
            x="groups",
            x_label="groups",
            y_label="topics",
            lines=(Line("most", "most"), Line("expected", "mean"), Line("without", "groups without any")),
        ),
    ),
    other_results=OTHER_RESULTS,
    broken=BROKEN,
)
