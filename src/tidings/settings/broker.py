"""The settings of a broker, its journal, its doors, and of its clients."""

from __future__ import annotations

from typing import Literal

import msgspec

from tidings.settings.checks import check_above_zero, check_door, require

KIB = 1024
MIB = 1024 * KIB

SOCKETS_NAME = "tidings.sockets"
"""The client name of the gateway for plain sockets; its subscribers' names lie below it."""

TopicPolicy = Literal["auto", "on-subscribe", "on-publish"]
Durability = Literal["fsync", "os"]


class BrokerSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The limits and policies of the broker's state machine. All replicas of a group share them."""

    topics: TopicPolicy = "auto"
    """auto: a topic exists from its first subscribe or put; on-subscribe, on-publish: only from the one named."""
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
    """How long a caller's id is remembered; a repeated id within that time is ignored."""
    retain_age_ms: int | None = None
    """Messages older than this may be removed; None keeps them."""
    retain_bytes: int | None = None
    """Once a topic is larger than this, its oldest messages may be removed; None keeps them."""
    drop_acknowledged: bool = False
    """True: messages that every subscription of their topic (at least one) has acknowledged may be removed."""
    max_backlog: int | None = None
    """Messages of a topic that some subscription has not acked; a put beyond that is Overloaded. None: no limit, except
    for topics that have one of their own (`Bus.limit_topic`)."""
    groups_max: int = 10_000
    members_max: int = 1_000
    """Members of one group."""
    room_messages_max: int = 10_000
    """Messages that one member of a group may have in flight."""
    lease_ms: int = 10_000
    """A member that is silent for this long is presumed dead: its work goes to other members."""
    redelivery_ms: int = 30_000
    """What a member does not answer for this long is sent again; after the third time other members get its work."""
    delayed_ack_ms: int = 300
    """An ack later than this after the one before is counted as delayed in `tidings groups --delays`; no more."""
    slow_ack_ms: int = 5_000
    """An ack later than this after the one before is slow; after three in a minute others get what waits."""
    deliveries_max: int = 10
    """A message of a group that was tried this often without an ack goes to the dead-letter topic."""
    dead_letter: str | None = None
    """The topic for such messages; None retries them forever."""
    collect_after_ms: int = 7 * 24 * 3600 * 1000
    """Groups without members and empty topics that nobody uses are deleted after this long, if nothing is owed."""
    topic_idle_ms: int | None = None
    """A topic that nobody has put or subscribed to for this long goes with its messages, if all are acked or older than
    retain_age_ms; None keeps it."""
    credit_messages_max: int = 1_000_000
    credit_bytes_max: int = 64 * MIB
    read_bytes_max: int = 4 * MIB
    """How much one answer to a reader of a range of offsets holds, unless a single batch is larger."""
    stages_max: int = 10_000
    """Attempts to write (one for each task of a Spark job) whose batches are not yet published or dropped."""
    stage_bytes_max: int = 1024 * MIB
    stage_age_ms: int = 24 * 3600 * 1000
    """Staged messages that were not published are dropped after this long."""
    commits_max: int = 1_000
    """Commits over several groups of a ring that are not decided, of a group that coordinates them or has a part."""
    queries_max: int = 100_000
    query_age_ms: int = 90 * 24 * 3600 * 1000
    """How long the last batch of a query that no longer publishes is remembered."""
    streams_max: int = 100_000
    session_silence_ms_max: int = 30_000
    """A client that is silent for this long loses its streams; its subscriptions stay."""
    admins: tuple[str, ...] = ()
    """Clients that may stop the broker, and whose keys may change its group and its ring."""

    def __post_init__(self) -> None:
        check_above_zero(self)
        require(
            self.message_bytes_max <= self.batch_bytes_max,
            f"message_bytes_max ({self.message_bytes_max}) must not be above batch_bytes_max ({self.batch_bytes_max}).",
        )


PRESETS: dict[str, dict[str, int]] = {"channels": {"max_backlog": 1_000, "delayed_ack_ms": 300}}
"""Settings that go together, by name. channels: as the document on competing consumers has them; its members keep the
order of publisher and key (`lanes="publisher"`)."""


class JournalSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the journal cuts its segments and when it syncs."""

    durability: Durability = "fsync"
    """fsync: on disk before the answer. os: written, not synced; a power cut may lose acknowledged messages."""
    segment_bytes_max: int = 64 * MIB
    segment_records_max: int = 200_000
    """Bounds recovery, which replays at most about one segment."""
    commit_bytes_max: int = 192 * KIB
    """A commit closes once it holds this much, so that its answers leave while the next one is written."""
    mapped_segments_max: int = 2
    recent_bytes_max: int = 16 * MIB
    """Recent batches are kept in memory up to this size, for subscribers that follow closely."""
    scrub_hours: float = 24.0
    """Within this time everything stored is read once, to check that the disk still has it; a small journal sooner."""

    def __post_init__(self) -> None:
        check_above_zero(self)


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
    """The folder with the key for the storage server, if that has keys."""
    storage_name: str = "broker"
    """Whose key that is."""
    storage_wait_ms: int = 10_000
    """How long a broker that starts waits for its storage server."""


class SocketsSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The gateway for editors and subscribers on plain TCP sockets. Its protocol has no keys: beyond loopback it serves
    only the networks that are named."""

    sockets_host: str = "127.0.0.1"
    """The IPv4 address to listen on; any but loopback needs `sockets_allow`."""
    sockets_port: int | None = None
    """The port to listen on; 0 is any free port, None turns plain sockets off."""
    sockets_allow: tuple[str, ...] = ()
    """Networks, such as 10.0.0.0/24, that may send requests and get deliveries; this machine always may."""
    sockets_connections_max: int = 128
    """Requests being read or answered at a time; further ones wait in the system's queue."""
    sockets_request_ms: int = 5_000
    """A request that is incomplete after this long is cut off."""
    sockets_subscribers_max: int = 200
    """Each costs the process up to four file descriptors."""
    sockets_topics_max: int = 64
    """Topics of one subscriber."""
    sockets_delivery_ms: int = 5_000
    """How long one try to deliver a message may take."""
    sockets_linger_ms: int = 1_000
    """How long a subscriber may take to close its end after a delivery."""
    sockets_retry_ms: int = 50
    sockets_retry_ms_max: int = 2_000
    """The pause before the next try, at first and at most; it doubles in between."""
    sockets_refusal_ms_max: int = 60_000
    """A subscriber that could not be reached for this long is dropped, with its waiting messages."""

    def __post_init__(self) -> None:
        port = self.sockets_port
        require(port is None or 0 <= port < 65_536, f"The setting sockets_port must be 0 to 65535: it is {port}.")
        check_above_zero(self, or_zero=("sockets_port",))
        check_door("--sockets", self.sockets_host, self.sockets_allow, "--sockets-allow")
        require(
            self.sockets_linger_ms < self.sockets_delivery_ms,
            f"sockets_linger_ms ({self.sockets_linger_ms}) must be below sockets_delivery_ms "
            f"({self.sockets_delivery_ms}), or delivered messages would be sent again.",
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
    """The most messages that a member of a group has in flight."""
    overload_wait_ms: int = 0
    """How long a put that is refused as Overloaded is retried; 0 raises at once."""

    def __post_init__(self) -> None:
        check_above_zero(self, or_zero=("overload_wait_ms",))
