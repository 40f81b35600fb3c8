"""Frozen settings, validated once at the start.

Every queue, view, cache, frame and retry of tidings has its bound here. Values come from arguments,
then from TIDINGS_* variables, then from `tidings.toml`, then from the defaults below.
"""

from __future__ import annotations

import os
import re
import tomllib
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from tidings.errors import InvalidRequest

KIB = 1024
MIB = 1024 * KIB

TopicPolicy = Literal["auto", "on-subscribe", "on-publish"]
Durability = Literal["fsync", "os"]
Overlay = Literal["chord", "hyparview"]
Dissemination = Literal["scribe", "gossip"]


def _require(condition: bool, sentence: str) -> None:
    if not condition:
        raise InvalidRequest(sentence)


def check_reachable(address: str) -> None:
    """InvalidRequest if an address is not one at which others could reach a node."""
    _require(
        len(address) <= 200 and re.fullmatch(r"tcp://[^\s/,*]+:[1-9]\d{0,4}", address) is not None,
        f"The address {address!r} is not one at which a node can be reached: write tcp://HOST:PORT.",
    )


class BrokerSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The limits and policies of the broker's state machine. All replicas of a group share them."""

    topics: TopicPolicy = "auto"
    """auto: a topic exists from its first subscribe or put; on-subscribe, on-publish: only from that."""
    topics_max: int = 100_000
    clients_max: int = 100_000
    """Names whose sequence numbers and epochs are remembered."""
    subscriptions_max: int = 100_000
    topics_per_request_max: int = 64
    """How many topics one put or one subscription may name."""
    message_bytes_max: int = MIB
    batch_bytes_max: int = 8 * MIB
    batch_messages_max: int = 65_536
    ids_max: int = 1_000_000
    """Message ids remembered for each topic."""
    ids_age_ms: int = 7 * 24 * 3600 * 1000
    """For how long an id that a caller gave is remembered."""
    retain_age_ms: int | None = None
    """Messages older than this may go; None keeps them."""
    retain_bytes: int | None = None
    """Once a topic is larger than this its oldest messages may go; None keeps them."""
    drop_acknowledged: bool = False
    """True lets messages go that every subscription of their topic (at least one) has acknowledged."""
    max_backlog: int | None = None
    """Messages of a topic that somebody still waits for; a put beyond is Overloaded. None: no limit but the disk."""
    groups_max: int = 10_000
    members_max: int = 1_000
    """Members of one group."""
    room_messages_max: int = 10_000
    """Messages that one member of a group may have in flight."""
    lease_ms: int = 10_000
    """A member unheard for this long is taken for gone: its work goes on with the others."""
    redelivery_ms: int = 30_000
    """What a member does not answer for this long is sent again; after the third time the others get its work."""
    slow_ack_ms: int = 5_000
    """A settlement later than this after the one before is slow; after three in a minute others get what waits."""
    deliveries_max: int = 10
    """A message of a group that was given out so often without being settled goes to the dead-letter topic."""
    dead_letter: str | None = None
    """The topic for such messages; None gives them out for ever."""
    collect_after_ms: int = 7 * 24 * 3600 * 1000
    """Groups without members and unused topics are forgotten after this long; nothing unsettled ever is."""
    credit_messages_max: int = 1_000_000
    credit_bytes_max: int = 64 * MIB
    read_bytes_max: int = 4 * MIB
    """What one answer to a reader of a range of offsets holds, unless a single batch is larger."""
    stages_max: int = 10_000
    """Attempts to write (one for each task of a Spark job) whose batches are not yet published or dropped."""
    stage_bytes_max: int = 1024 * MIB
    stage_age_ms: int = 24 * 3600 * 1000
    """What was staged and not published goes after this long."""
    queries_max: int = 100_000
    query_age_ms: int = 90 * 24 * 3600 * 1000
    """For how long the last batch of a query that publishes no more is remembered."""
    streams_max: int = 100_000
    session_silence_ms_max: int = 30_000
    """A client unheard for this long loses its streams; its subscriptions stay."""
    admins: tuple[str, ...] = ()
    """Clients that may stop the broker, and whose keys may change its group and its ring."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if isinstance(value, int) and not isinstance(value, bool):
                _require(value > 0, f"The setting {name} must be above 0, and it is {value}.")
        _require(
            self.message_bytes_max <= self.batch_bytes_max,
            f"message_bytes_max ({self.message_bytes_max}) must not be above batch_bytes_max ({self.batch_bytes_max}).",
        )


class JournalSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the journal cuts its segments and when it syncs."""

    durability: Durability = "fsync"
    """fsync: on disk before the answer. os: written, not synced; a power cut may take what was answered."""
    segment_bytes_max: int = 64 * MIB
    segment_records_max: int = 200_000
    """Bounds recovery, which replays at most about one segment."""
    commit_bytes_max: int = 192 * KIB
    """A commit ends once it holds this much, so that its answers leave while the next one is written."""
    mapped_segments_max: int = 2
    recent_bytes_max: int = 16 * MIB
    """Batches just written are kept in memory up to this size, for subscribers that follow closely."""
    scrub_hours: float = 24.0
    """Within this time all that is stored is read once, to see whether the disk still has it; a small journal sooner.
    """

    def __post_init__(self) -> None:
        for name in self.__struct_fields__[1:]:
            _require(getattr(self, name) > 0, f"The setting {name} must be above 0.")


class NodeSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a node runs: its door, its loop and its keys."""

    bind: str = "tcp://127.0.0.1:7400"
    keys: str | None = None
    """A folder made by `tidings keys`; needed to bind anything but loopback."""
    staged_bytes_max: int = 64 * MIB
    """The loop stops reading requests while this much waits for the disk."""
    drained_requests_max: int = 512
    """Requests taken from the socket before the next commit starts."""
    queued_messages_max: int = 10_000
    """ZeroMQ's high-water mark for each client."""
    storage: str | None = None
    """The address of a storage server that keeps the journal; None keeps it in a folder of the broker's own."""
    storage_keys: str | None = None
    """The folder with the key for the storage server, for one that wants keys."""
    storage_name: str = "broker"
    """Whose key that is."""
    storage_wait_ms: int = 10_000
    """How long a broker that starts waits for its storage server."""


class SocketsSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The door for editors and subscribers on plain TCP sockets; it is on loopback, for its protocol has no keys."""

    sockets_port: int | None = None
    """Where the door listens; 0 is any free port, None is no such door."""
    sockets_connections_max: int = 128
    """Requests being read or answered at a time; whoever comes then waits in the system's queue."""
    sockets_request_ms: int = 5_000
    """A request that is not complete after this long is cut off."""
    sockets_subscribers_max: int = 200
    """Each costs the process up to four file descriptors."""
    sockets_topics_max: int = 64
    """Topics of one subscriber."""
    sockets_delivery_ms: int = 5_000
    """How long one try to deliver a message may take."""
    sockets_linger_ms: int = 1_000
    """How long a subscriber that has been sent a message is given to close its end."""
    sockets_retry_ms: int = 50
    sockets_retry_ms_max: int = 2_000
    """The pause before the next try, at first and at most; it doubles in between."""
    sockets_refusal_ms_max: int = 60_000
    """A subscriber that could not be reached for this long is dropped, with what it was owed."""

    def __post_init__(self) -> None:
        port = self.sockets_port
        _require(port is None or 0 <= port < 65_536, f"The setting sockets_port is 0 to 65535, and it is {port}.")
        for name in self.__struct_fields__[1:]:
            _require(getattr(self, name) > 0, f"The setting {name} must be above 0.")
        _require(
            self.sockets_linger_ms < self.sockets_delivery_ms,
            f"sockets_linger_ms ({self.sockets_linger_ms}) must be below sockets_delivery_ms "
            f"({self.sockets_delivery_ms}), or what was delivered would be sent again.",
        )


class ClientSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a client tries, packs and prefetches."""

    timeout_ms: int = 2_500
    retries: int = 3
    batch_bytes: int = 256 * KIB
    """A batch is closed once it holds this many bytes."""
    batch_messages: int = 4_096
    in_flight_max: int = 16
    """Batches sent and not yet answered."""
    waiting_messages_max: int = 1_000_000
    """Messages given to put and not yet sent; one more is Overloaded."""
    credit_messages: int = 65_536
    credit_bytes: int = 8 * MIB
    beat_ms: int = 2_000
    """How often a client that waits for messages asks whether the broker still serves its streams."""
    room_messages: int = 8_000
    """Messages of a group that a member has in flight at most."""
    overload_wait_ms: int = 0
    """For how long a put that is refused as Overloaded is tried again; 0 raises at once."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            least = 0 if name == "overload_wait_ms" else 1
            _require(getattr(self, name) >= least, f"The client setting {name} must be {least} or more.")


class HeartbeatSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How often peers tell each other that they are alive, and when silence means death."""

    beat_ms: int = 1_000
    silence_ms_max: int = 5_000
    watched_max: int = 1_000

    def __post_init__(self) -> None:
        _require(
            0 < self.beat_ms < self.silence_ms_max,
            f"beat_ms ({self.beat_ms}) must be above 0 and below silence_ms_max ({self.silence_ms_max}).",
        )
        _require(self.watched_max > 0, f"watched_max must be above 0, and it is {self.watched_max}.")


class HyParViewSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The views of HyParView and their upkeep; the paper's symbols stand behind the settings."""

    active_max: int = 5
    """Neighbours: the size of the active view (fanout + 1)."""
    passive_max: int = 30
    """Nodes that are only known: the size of the passive view."""
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
    """How often a free place is looked after again."""
    rotate_ms: int = 300_000
    """How often a neighbour is exchanged, so that a network that was cut grows together again."""
    answer_ms: int = 2_000
    """A peer that does not answer in this time is taken for unreachable."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            _require(getattr(self, name) > 0, f"The overlay setting {name} must be above 0.")
        _require(
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
    """Messages that were announced and are waited for."""
    fetch_max: int = 256
    """Messages fetched at a time."""
    missing_ms: int = 1_000
    """How long a message that was announced may take before it is asked for (the paper's first timer)."""
    graft_ms: int = 250
    """How long the next one is given to send it (the paper's second timer)."""
    optimise_hops: int = 4
    """A way that is shorter by this many hops is taken into the tree (the paper's threshold)."""
    digest_ms: int = 5_000
    """How often a node shows a neighbour what it has."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            _require(getattr(self, name) > 0, f"The gossip setting {name} must be above 0.")


class ChordSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a node keeps its place in the ring. All nodes of a ring share `successors_max`."""

    successors_max: int = 8
    """The length of the successor list (r). A ring needs r + 1 founding members, and so many neighbours may die at
    once less one.
    """
    stabilise_ms: int = 500
    """How often the successor is asked for news."""
    fix_fingers_ms: int = 500
    """How often one finger is looked up again."""
    query_ms: int = 500
    """How long an answer is waited for; at least the longest round trip."""
    query_tries: int = 3
    """Questions without an answer before a peer is taken for dead."""
    hop_ms: int = 500
    """How long the next node of a route may take to confirm."""
    hop_tries: int = 2
    """Attempts with one node before the next best is taken."""
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
        for name in self.__struct_fields__:
            _require(getattr(self, name) > 0, f"The Chord setting {name} must be above 0.")
        _require(self.successors_max > 1, "successors_max must be above 1: with 1 the first failure breaks a ring.")


class ScribeSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How trees are kept and how messages are kept until everybody has them."""

    replicas: int = 4
    """To how many successors a root copies its log before a message counts (k). 0: somebody above keeps it safe."""
    beat_ms: int = 1_000
    """How often a parent beats its children, and how often anything overdue is looked for."""
    silence_ms_max: int = 3_500
    """A parent or a child unheard for this long is taken for gone."""
    retry_ms: int = 2_000
    """How long an answer is waited for before the question is asked again."""
    gap_ms: int = 300
    """How long a gap may be a message that was only overtaken."""
    topics_max: int = 10_000
    """Topics in which one node takes part, as a subscriber, forwarder, root or copy."""
    children_max: int = 1_024
    """Children of one node in one tree."""
    publishers_max: int = 10_000
    """Publishers whose sequence numbers a topic remembers."""
    log_messages_max: int = 10_000
    """Messages that a root keeps for those who missed them; the oldest go first."""
    held_messages_max: int = 1_000
    """Messages that a subscriber holds back behind a gap; what is beyond is fetched again."""
    outbox_messages_max: int = 1_000
    """Messages of one publisher and topic that the root has not taken yet."""
    chunk_messages_max: int = 64
    """Messages in one batch, answer or copy."""
    chunk_bytes_max: int = MIB
    """Their bytes; a single message may have more."""
    payload_bytes_max: int = MIB

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            least = 0 if name == "replicas" else 1
            _require(getattr(self, name) >= least, f"The Scribe setting {name} must be at least {least}.")
        _require(self.silence_ms_max > self.beat_ms, "silence_ms_max must be above beat_ms, or everybody looks dead.")


class PeerSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a node of an overlay meets its peers and its clients."""

    bind: str = "tcp://127.0.0.1:7500"
    address: str | None = None
    """What the others call this node; None is where it is bound."""
    overlay: Overlay = "chord"
    """chord: a ring with a tree for each topic (Scribe); hyparview: views of a few neighbours, and gossip."""
    join: tuple[str, ...] = ()
    """Nodes of the overlay to join by; none is the first node."""
    founders: int = 2
    """How many nodes begin a ring together, for the first node of one."""
    keys: str | None = None
    """A folder made by `tidings keys`, with a key named after each node's address; needed beyond loopback."""
    links_max: int = 256
    """Peers to which connections are kept open; beyond, the one that was not used for longest is closed."""
    idle_ms: int = 60_000
    """A connection that was not used for this long is closed."""
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
    """Messages of its own that a node keeps for those who missed them."""
    subscriptions_max: int = 1_000
    stop_ms: int = 5_000
    """How long a node that is told to stop waits until what it published is safe with others."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if isinstance(value, int):
                _require(value > 0, f"The setting {name} must be above 0, and it is {value}.")
        _require(2 <= self.founders <= 256, f"founders is 2 to 256, and it is {self.founders}.")
        _require(
            self.link_beat_ms < self.link_silence_ms_max,
            f"link_beat_ms ({self.link_beat_ms}) must be below link_silence_ms_max ({self.link_silence_ms_max}).",
        )


class GroupSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where the members of a replica group are. It matters only until a node knows who it is."""

    group: tuple[str, ...] = ()
    """The founders of a new group, the same list for all of them."""
    join: tuple[str, ...] = ()
    """Members of the group that a new node asks to be taken in."""
    advertise: str | None = None
    """The address of this node as others reach it; None: the one that it binds."""

    def __post_init__(self) -> None:
        for address in (*self.group, *self.join, *([self.advertise] if self.advertise is not None else [])):
            check_reachable(address)
        _require(len(set(self.group)) == len(self.group), "A founder is named twice in --group: name each once.")
        _require(
            len(self.group) in (0, 1, 3, 5),
            f"A group is founded by 1, 3 or 5 nodes, not by {len(self.group)}: a majority has to be able to decide.",
        )


class RingSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the groups of a ring find each other."""

    contacts: tuple[str, ...] = ()
    """Nodes of the ring that a new group joins; none founds a ring. It matters only until the group owns something."""
    dissemination: Dissemination = "scribe"
    """How bodies reach readers at several nodes: by a tree for each topic, or by gossip. The same for all nodes."""
    chord: ChordSettings = ChordSettings()
    scribe: ScribeSettings = ScribeSettings(replicas=0)

    def __post_init__(self) -> None:
        for address in self.contacts:
            check_reachable(address)


class ReplicaSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a replica of a group keeps time and what it keeps in memory. None of it matters to safety.

    How many slots may be open at once (the window) is not a setting: the members of a group have to agree on it, so
    it is decided when the group is founded.
    """

    beat_ms: int = 100
    """How often a leader is heard, and says again what was not answered."""
    election_ms: int = 500
    """A node that has heard no leader for one to two times this long tries to lead."""
    unanswered_beats_max: int = 10
    """A leader that no majority has answered for so many beats gives up its place."""
    fetch_retry_ms: int = 200
    """How long a node that is behind waits for an answer before it asks again."""
    queue_max: int = 10_000
    """Commands that wait for a slot; more are turned away."""
    reads_max: int = 10_000
    """Reads that wait for a round; more are turned away."""
    batch_values_max: int = 256
    """Values in one accept."""
    batch_bytes_max: int = 4 * MIB
    """Their bytes, but for the last one."""
    batches_open_max: int = 4
    """Accepts under way: while so many are, commands are gathered for the next."""
    undecided_bytes_max: int = 32 * MIB
    """What a node accepts beyond what it knows to be decided, but for one value: a promise has to report all of it."""
    piece_bytes_max: int = MIB
    """One piece of a file, for a node that is far behind."""
    witness_ms: int = 1_000
    """How often at most a node tells the others how far it has come, and writes down how far they have."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            _require(getattr(self, name) >= 1, f"The replica setting {name} must be at least 1.")
        _require(self.election_ms > self.beat_ms, "election_ms must be above beat_ms, or every beat comes too late.")


Settings = TypeVar("Settings", bound=msgspec.Struct)


def load(kind: type[Settings], given: Mapping[str, Any] | None = None, file: str | Path = "tidings.toml") -> Settings:
    """Settings of a kind: from `given`, then TIDINGS_* variables, then the file, then the defaults.

    The table of the file is the kind's name: [broker], [journal], [node], [sockets], [client], [peer] and so on.

    >>> load(BrokerSettings, {"topics": "on-publish"}, file="/nonexistent").topics
    'on-publish'
    """
    table = kind.__name__.removesuffix("Settings").lower()
    values: dict[str, Any] = {}
    path = Path(file)
    if path.is_file():
        try:
            written = tomllib.loads(path.read_text(encoding="utf-8")).get(table, {})
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise InvalidRequest(f"{path} is not valid TOML ({error}): mend it or remove it.") from error
        if not isinstance(written, dict):
            raise InvalidRequest(f"In {path}, {table} is not a table: write [{table}] above its settings.")
        values.update(written)
    hints = typing.get_type_hints(kind)
    for name in kind.__struct_fields__:
        text = os.environ.get(f"TIDINGS_{name.upper()}")
        if text is not None:
            values[name] = text.split(",") if typing.get_origin(hints[name]) is tuple else text
    values.update({name: value for name, value in (given or {}).items() if value is not None})
    try:
        return msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"A setting of [{table}] is wrong: {str(error).removesuffix('.')}.") from error
