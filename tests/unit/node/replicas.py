"""Replicas without a network or a clock: messages in, messages out, on simulated disks."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TypeVar

from tidings.journal.journal import Journal
from tidings.node.founding import founding
from tidings.node.replica import ReplicaEngine
from tidings.protocols.multipaxos.messages import (
    Accept,
    Accepted,
    AnyMessage,
    ElectionDue,
    PreVoteGranted,
    Propose,
    Received,
)
from tidings.protocols.multipaxos.values import Ballot, Command, Value
from tidings.protocols.stack import Notification, Requested, TimerFired
from tidings.settings import JournalSettings, ReplicaSettings
from tidings.simulator.disk import SimulatedDisk
from tidings_lab.simulated_replicas.row import Row

WINDOW = 4
BALLOT = Ballot(1, 1)
THREE = (1, 2, 3)
Kind = TypeVar("Kind")


def command(number: int, client: str = "ann") -> Command:
    return Command(client, number, f"{client}{number}".encode())


def make_disk(seed: int = 1) -> SimulatedDisk:
    return SimulatedDisk(Random(seed))


def open_engine(
    disk: SimulatedDisk,
    node: int,
    voters: tuple[int, ...] = THREE,
    records_max: int = 1_000,
    settings: ReplicaSettings | None = None,
    blank: bool = False,
    make_state: Callable[[Journal], Row] = Row,
    drops_recall: bool = True,
    life: int = 1,
) -> ReplicaEngine:
    """A process begins; `blank`: a new node of a group that others have founded.

    `drops_recall`: what it asks the others first gets lost.
    """
    journal = Journal.open(disk, JournalSettings(segment_records_max=records_max))
    engine = ReplicaEngine(
        node,
        settings or ReplicaSettings(),
        lambda: make_state(journal),
        journal,
        disk,
        Random(f"life {life} of {node}"),
    )
    engine.recover(0, None if blank else founding(voters, WINDOW))
    if drops_recall:
        engine.outgoing.clear()
    return engine


def write(engine: ReplicaEngine) -> None:
    """One commit."""
    engine.journal.write(engine.begin_commit(0))
    engine.finish_commit(0)


def commit(engine: ReplicaEngine) -> None:
    """All that is staged, and what is staged by that."""
    while engine.has_staged:
        write(engine)


def row(engine: ReplicaEngine) -> list[bytes]:
    assert isinstance(engine.state, Row)
    return engine.state.bodies


def bodies(first: int, last: int) -> list[bytes]:
    return [command(number).body for number in range(first, last + 1)]


def messages(engine: ReplicaEngine) -> list[AnyMessage]:
    outgoing, engine.outgoing = engine.outgoing, []
    return [message for _, message in outgoing]


def told(engine: ReplicaEngine, kind: type[Kind]) -> list[Kind]:
    return [each for each in engine.notifications if isinstance(each, kind) and isinstance(each, Notification)]


def receive(engine: ReplicaEngine, node: int, message: AnyMessage, now_ms: int = 0) -> None:
    engine.handle(Received(now_ms, node, message))


def accept(
    engine: ReplicaEngine, first_slot: int, *values: Value, decided: int = 1, ballot: Ballot = BALLOT, round_: int = 0
) -> None:
    """The leader of a ballot asks, and says how far the log is decided."""
    receive(engine, ballot.node, Accept(ballot, first_slot, values, decided, round_))


def follow(engine: ReplicaEngine, last: int, first: int = 1, ballot: Ballot = BALLOT) -> None:
    """A follower accepts commands, one commit for each, and hears with the next that the one before is decided."""
    for number in range(first, last + 1):
        accept(engine, number, command(number), decided=number, ballot=ballot)
        commit(engine)
    accept(engine, last + 1, decided=last + 1, ballot=ballot)
    commit(engine)


def lead(engine: ReplicaEngine, *granted: int) -> None:
    """Its patience ends; the others support it and promise."""
    commit(engine)
    engine.handle(TimerFired(0, ElectionDue()))
    for node in granted:
        receive(engine, node, PreVoteGranted(1))
    commit(engine)


def propose(engine: ReplicaEngine, number: int) -> None:
    engine.handle(Requested(0, Propose(command(number))))


def accepted(engine: ReplicaEngine, node: int, slot: int, ballot: Ballot = BALLOT) -> None:
    receive(engine, node, Accepted(ballot, slot, 1, 1, 0))
