"""The settings of replica groups, and of rings of them."""

from __future__ import annotations

from typing import Literal

import msgspec

from tidings.settings.broker import MIB
from tidings.settings.checks import check_above_zero, check_reachable, require
from tidings.settings.overlay import ChordSettings, ScribeSettings

Dissemination = Literal["scribe", "gossip"]


class GroupSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where the members of a replica group are. It matters only until a node knows who it is."""

    group: tuple[str, ...] = ()
    """The founders of a new group, the same list for all of them."""
    join: tuple[str, ...] = ()
    """Members of the group that a new node joins."""
    advertise: str | None = None
    """The address at which others reach this node; None: the one that it binds."""

    def __post_init__(self) -> None:
        for address in (*self.group, *self.join, *([self.advertise] if self.advertise is not None else [])):
            check_reachable(address)
        require(len(set(self.group)) == len(self.group), "A founder is named twice in --group: name each once.")
        require(
            len(self.group) in (0, 1, 3, 5),
            f"A group is founded by 1, 3 or 5 nodes, not by {len(self.group)}: name that many in --group.",
        )


class RingSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the groups of a ring find each other."""

    contacts: tuple[str, ...] = ()
    """Nodes of the ring that a new group joins; none: found a ring. It matters only until the group owns something."""
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
    """How often a leader sends a heartbeat, and repeats what was not answered."""
    election_ms: int = 500
    """A node that has heard no leader for one to two times this long tries to lead."""
    unanswered_beats_max: int = 10
    """A leader that gets no majority for this many heartbeats steps down."""
    fetch_retry_ms: int = 200
    """How long a node that is behind waits for an answer before it asks again."""
    queue_max: int = 10_000
    """Commands that wait for a slot; more are refused."""
    reads_max: int = 10_000
    """Reads that wait for a round; more are refused."""
    batch_values_max: int = 256
    """Values in one accept."""
    batch_bytes_max: int = 4 * MIB
    """Their bytes, except the last value's."""
    batches_open_max: int = 4
    """Accepts under way; beyond that, commands are gathered for the next one."""
    undecided_bytes_max: int = 32 * MIB
    """What a node accepts beyond what it knows to be decided, plus one value: a promise has to report all of it."""
    piece_bytes_max: int = MIB
    """One piece of a file, for a node that is far behind."""
    witness_ms: int = 1_000
    """The shortest interval at which a node tells the others how far it has come, and records how far they have."""
    replica_gone_ms: int | None = None
    """A voter that the leader has not heard for this long is removed, if the rest is a safe majority, and is taken back
    when it speaks again; None: never."""
    replicas_min: int = 3
    """So many voters stay, however many are silent: with 2, a group of 3 goes on as one of 2, which needs both."""

    def __post_init__(self) -> None:
        check_above_zero(self)
        require(
            self.election_ms > self.beat_ms, "election_ms must be above beat_ms, or every heartbeat comes too late."
        )
        require(
            self.replicas_min >= 2, "replicas_min must be 2 or more: a single voter has nobody who could take over."
        )
        require(
            self.replica_gone_ms is None or self.replica_gone_ms > 2 * self.election_ms,
            "replica_gone_ms must be above twice election_ms: a member that restarts is silent for that long.",
        )
