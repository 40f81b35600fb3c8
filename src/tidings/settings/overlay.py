"""The settings of the overlays: their protocols, and the nodes that run them."""

from __future__ import annotations

from typing import Literal

import msgspec

from tidings.settings.broker import KIB, MIB
from tidings.settings.checks import check_above_zero, require

Overlay = Literal["chord", "hyparview"]


class HeartbeatSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How often peers tell each other that they are alive, and when silence means death."""

    beat_ms: int = 1_000
    silence_ms_max: int = 5_000
    watched_max: int = 1_000

    def __post_init__(self) -> None:
        require(
            0 < self.beat_ms < self.silence_ms_max,
            f"beat_ms ({self.beat_ms}) must be above 0 and below silence_ms_max ({self.silence_ms_max}).",
        )
        require(self.watched_max > 0, f"watched_max must be above 0: it is {self.watched_max}.")


class HyParViewSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The views of HyParView and their upkeep; the paper's symbols stand behind the settings."""

    active_max: int = 5
    """Neighbours: the size of the active view (fanout + 1)."""
    passive_max: int = 30
    """Nodes that are known but not neighbours: the size of the passive view."""
    active_walk: int = 6
    """Steps of a newcomer's walk, and of a shuffle's (ARWL)."""
    passive_walk: int = 3
    """Steps left in that walk where the newcomer becomes known (PRWL)."""
    shuffle_active: int = 3
    """Neighbours in a shuffle's sample (ka)."""
    shuffle_passive: int = 4
    """Known nodes in a shuffle's sample (kp)."""
    shuffle_ms: int = 10_000
    repair_ms: int = 2_000
    """How often a node tries again to fill a free place."""
    rotate_ms: int = 300_000
    """How often a neighbour is exchanged, so that the halves of a network that was cut rejoin."""
    answer_ms: int = 2_000
    """A peer that does not answer in this time counts as unreachable."""

    def __post_init__(self) -> None:
        check_above_zero(self)
        require(
            self.passive_walk <= self.active_walk,
            f"passive_walk ({self.passive_walk}) must not be above active_walk ({self.active_walk}).",
        )

    @property
    def shuffle_max(self) -> int:
        """The largest sample: the origin, ka and kp."""
        return 1 + self.shuffle_active + self.shuffle_passive

    @property
    def asked_max(self) -> int:
        """Requests under way at once: the free places, and walks that end here."""
        return 4 * self.active_max


class GossipSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The limits and delays of gossip."""

    body_bytes_max: int = 64 * KIB
    topics_max: int = 1_000
    window: int = 4_096
    """How far ahead of a gap the messages of a topic are taken."""
    kept_max: int = 4_096
    """Messages kept for neighbours that missed them."""
    kept_bytes_max: int = 16 * MIB
    announced_max: int = 4_096
    """Messages that were announced and have not arrived yet."""
    fetch_max: int = 256
    """Messages fetched at a time."""
    missing_ms: int = 1_000
    """How long an announced message may take before the node asks for it (the paper's first timer)."""
    graft_ms: int = 250
    """How long the next neighbour may take to send it (the paper's second timer)."""
    optimise_hops: int = 4
    """A path that is shorter by this many hops joins the tree (the paper's threshold)."""
    digest_ms: int = 5_000
    """How often a node shows a neighbour what it has."""

    def __post_init__(self) -> None:
        check_above_zero(self)


class ChordSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a node keeps its place in the ring. All nodes of a ring share `successors_max`."""

    successors_max: int = 8
    """The length of the successor list (r). A ring needs r + 1 founding members, and so many neighbours may die at
    once less one.
    """
    stabilise_ms: int = 500
    """How often the successor is asked for changes."""
    fix_fingers_ms: int = 500
    """How often one finger is looked up again."""
    query_ms: int = 500
    """How long to wait for an answer; at least the longest round trip."""
    query_tries: int = 3
    """Unanswered queries before a peer counts as dead."""
    hop_ms: int = 500
    """How long the next node of a route may take to confirm."""
    hop_tries: int = 2
    """Attempts with one node before the next best is tried."""
    hops_max: int = 256
    """A message that has come this far is going in circles and is dropped."""
    lookup_ms: int = 5_000
    lookup_tries: int = 4
    """Attempts of FIND-ROOT before `RootUnknown`."""
    join_ms: int = 3_000
    """How long a joiner waits before it asks the next contact."""
    pending_max: int = 10_000
    """Hops, and lookups, that are waited for at once. A hop beyond is sent without waiting; a lookup beyond fails at
    once.
    """
    payload_bytes_max: int = MIB + 4 * KIB

    def __post_init__(self) -> None:
        check_above_zero(self)
        require(self.successors_max > 1, "successors_max must be above 1: with 1 the first failure breaks a ring.")


class ScribeSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How trees are kept and how messages are kept until everybody has them."""

    replicas: int = 4
    """To how many successors a root copies its log before a message counts (k). 0: the layer above keeps it safe."""
    beat_ms: int = 1_000
    """How often a parent sends its children a heartbeat, and checks for anything overdue."""
    silence_ms_max: int = 3_500
    """A parent or a child that is silent for this long counts as gone."""
    retry_ms: int = 2_000
    """How long to wait for an answer before asking again."""
    gap_ms: int = 300
    """How long to wait for a message that may only have been overtaken."""
    topics_max: int = 10_000
    """Topics in which one node takes part, as a subscriber, forwarder, root or copy."""
    children_max: int = 1_024
    """Children of one node in one tree."""
    publishers_max: int = 10_000
    """Publishers whose sequence numbers a topic remembers."""
    log_messages_max: int = 10_000
    """Messages that a root keeps for nodes that missed them; the oldest go first."""
    held_messages_max: int = 1_000
    """Messages that a subscriber holds back behind a gap; any beyond that are fetched again."""
    outbox_messages_max: int = 1_000
    """Messages of one publisher and topic that the root has not taken yet."""
    chunk_messages_max: int = 64
    """Messages in one batch, answer or copy."""
    chunk_bytes_max: int = MIB
    """Their bytes; a single message may have more."""
    payload_bytes_max: int = MIB

    def __post_init__(self) -> None:
        check_above_zero(self, or_zero=("replicas",))
        require(self.silence_ms_max > self.beat_ms, "silence_ms_max must be above beat_ms, or every node looks dead.")


class PeerSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a node of an overlay meets its peers and its clients."""

    bind: str = "tcp://127.0.0.1:7500"
    address: str | None = None
    """The address that other nodes use for this node; None: the one that it binds."""
    overlay: Overlay = "chord"
    """chord: a ring with a tree for each topic (Scribe); hyparview: views of a few neighbours, and gossip."""
    join: tuple[str, ...] = ()
    """Nodes of the overlay to join by; none: this is the first node."""
    founders: int = 2
    """For the first node of a ring: how many nodes begin it together."""
    keys: str | None = None
    """A folder made by `tidings keys`, with a key named after each node's address; needed beyond loopback."""
    links_max: int = 256
    """Open connections to peers; beyond that, the least recently used one is closed."""
    idle_ms: int = 60_000
    """A connection that is unused for this long is closed."""
    connect_ms: int = 5_000
    """A peer to which no connection can be made in this time is gone."""
    link_beat_ms: int = 2_000
    link_silence_ms_max: int = 10_000
    """A connection over which nothing comes back for this long is broken."""
    frame_bytes_max: int = 4 * MIB
    queued_messages_max: int = 10_000
    """ZeroMQ's high-water mark for each peer; what does not fit is lost, and the protocols send it again."""
    drained_messages_max: int = 256
    """Messages taken from the socket before timers are looked at."""
    senders_max: int = 4_096
    """Connections and senders that are remembered, to tell lives and liars apart."""
    text_bytes_max: int = 48 * KIB
    """The largest message that a client may publish."""
    inbox_messages_max: int = 10_000
    """Messages that arrived and are kept for clients; the oldest go first."""
    inbox_bytes_max: int = 16 * MIB
    kept_max: int = 10_000
    """Messages of its own that a node keeps for nodes that missed them."""
    subscriptions_max: int = 1_000
    stop_ms: int = 5_000
    """How long a node that is told to stop waits until other nodes have what it published."""

    def __post_init__(self) -> None:
        check_above_zero(self)
        require(2 <= self.founders <= 256, f"founders must be 2 to 256: it is {self.founders}.")
        require(
            self.link_beat_ms < self.link_silence_ms_max,
            f"link_beat_ms ({self.link_beat_ms}) must be below link_silence_ms_max ({self.link_silence_ms_max}).",
        )
