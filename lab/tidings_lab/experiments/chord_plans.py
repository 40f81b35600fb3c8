"""The experiments of the ring, as plans that anybody can run one by one, and rows that anybody can put into a table.

Sizes are those of the document that asked for the system (10 to 30 nodes), and 100, 1,000 and 10,000 beyond it. A
plan is data and a run is a function of its plan, so that runs can be spread over processes in any order.
"""

from __future__ import annotations

from tidings.protocols.chord import ChordSettings
from tidings.protocols.scribe import ScribeSettings
from tidings_lab.experiments.balance import HopsRow, TopicsRow, measure_hops, measure_topics
from tidings_lab.simulated_overlay.chord.multicast import MulticastPlan

DOCUMENT_LOADS = (10, 25, 50, 75)
"""Messages that each of 20 nodes publishes."""
DOCUMENT_SIZES = (10, 20, 30)
LARGE_SIZES = (100, 1_000, 10_000)
VIRTUAL = (1, 16, 64)


def load_plans(seed: int = 0) -> list[MulticastPlan]:
    """Messages at the Scribe layer, and convergence time, against messages for each node (figures 3 and 4)."""
    return [MulticastPlan(seed=seed, messages_per_node=load) for load in DOCUMENT_LOADS]


def size_plans(seed: int = 0) -> list[MulticastPlan]:
    """Chord messages against the number of nodes, each of which publishes 20 messages (figure 5)."""
    return [MulticastPlan(seed=seed, nodes=nodes, messages_per_node=20) for nodes in DOCUMENT_SIZES]


def reliability_plans(seed: int = 0) -> list[MulticastPlan]:
    """With and without failures and loss, at the document's size (sections 7.2 and 7.3)."""
    chord = ChordSettings(successors_max=12)
    return [
        MulticastPlan(seed=seed, messages_per_node=20, failed_share=failed, loss=loss, chord=chord)
        for failed in (0.0, 0.1, 0.3)
        for loss in (0.0, 0.02)
    ]


def large_plan(nodes: int, failed_share: float = 0.3, seed: int = 0) -> MulticastPlan:
    """Everybody subscribes to one topic, a few publish, and nearly a third of the nodes fail at once.

    A large ring is kept up more slowly, as it would be in earnest; long lists make it improbable that any node loses
    all its successors (0.3 to the 20th).
    """
    upkeep_ms = 500 if nodes <= 1_000 else 2_000
    return MulticastPlan(
        seed=seed,
        nodes=nodes,
        topics=1,
        messages_per_node=10,
        publishers=10,
        failed_share=failed_share,
        chord=ChordSettings(successors_max=20, stabilise_ms=upkeep_ms, fix_fingers_ms=5 * upkeep_ms),
        scribe=ScribeSettings(replicas=10),
    )


def topic_rows(sizes: tuple[int, ...] = DOCUMENT_SIZES, topics: int = 30) -> list[TopicsRow]:
    """Topics owned for each node, with and without virtual identifiers (figure 6).

    >>> [row.nodes for row in topic_rows()]
    [10, 10, 10, 20, 20, 20, 30, 30, 30]
    """
    return [measure_topics(nodes, topics, virtual) for nodes in sizes for virtual in VIRTUAL]


def large_topic_rows() -> list[TopicsRow]:
    """The same with ten topics for each node."""
    return [measure_topics(nodes, 10 * nodes, virtual) for nodes in LARGE_SIZES for virtual in VIRTUAL]


def hops_rows(sizes: tuple[int, ...] = LARGE_SIZES, lookups: int = 5_000, seed: int = 0) -> list[HopsRow]:
    """Hops of a lookup against half of log2 of the number of nodes."""
    return [measure_hops(nodes, lookups, seed) for nodes in sizes]
