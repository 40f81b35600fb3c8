"""A replica on a journal: what is said waits for the disk, and comes back from it (P6)."""

from __future__ import annotations

from random import Random

import pytest

from tidings.errors import InvalidRequest
from tidings.journal.journal import Journal
from tidings.node.replica import ReplicaEngine, founding
from tidings.protocols.multipaxos.messages import Accept, Accepted, AnyMessage, Applied, ElectionDue, Propose, Received
from tidings.protocols.multipaxos.values import Ballot, Command
from tidings.protocols.stack import Requested, TimerFired
from tidings.settings import JournalSettings, ReplicaSettings
from tidings.simulator.disk import SimulatedDisk
from tidings.simulator.paxos.node import Row
from tidings.wire.replication import decode_message

BALLOT = Ballot(1, 1)


def command(number: int) -> Command:
    return Command("ann", number, f"ann{number}".encode())


def open_engine(disk: SimulatedDisk, node: int, voters: tuple[int, ...], records_max: int = 1_000) -> ReplicaEngine:
    journal = Journal.open(disk, JournalSettings(segment_records_max=records_max))
    engine = ReplicaEngine(node, ReplicaSettings(snapshot_every_slots=10, kept_slots=2), Row(), journal, Random(1))
    engine.recover(0, founding(voters, window=4))
    return engine


def commit(engine: ReplicaEngine) -> None:
    while engine.has_staged:
        engine.journal.write(engine.begin_commit(0))
        engine.finish_commit(0)


def messages(engine: ReplicaEngine) -> list[AnyMessage]:
    outgoing, engine.outgoing = engine.outgoing, []
    return [decode_message(data) for _, data in outgoing]


def accept(number: int, ballot: Ballot = BALLOT) -> Received:
    return Received(0, ballot.node, Accept(ballot, number, (command(number),), 1, 0))


def test_an_answer_leaves_when_its_records_are_on_disk() -> None:
    engine = open_engine(SimulatedDisk(Random(1)), 2, (1, 2, 3))
    commit(engine)
    engine.handle(accept(1))
    written = engine.begin_commit(0)
    engine.handle(accept(1))  # The same again: its answer speaks of what is not on disk either.
    assert messages(engine) == []
    engine.journal.write(written)
    engine.finish_commit(0)
    assert messages(engine) == [Accepted(BALLOT, 1, 1, 1, 0)] * 2


def test_answers_leave_in_the_order_in_which_they_were_wanted() -> None:
    engine = open_engine(SimulatedDisk(Random(1)), 2, (1, 2, 3))
    commit(engine)
    engine.handle(accept(1))
    engine.handle(accept(2))
    written = engine.begin_commit(0)
    engine.handle(Received(0, 1, Accept(BALLOT, 3, (), 1, 7)))
    engine.journal.write(written)
    engine.finish_commit(0)
    rounds = [(message.first_slot, message.round) for message in messages(engine) if isinstance(message, Accepted)]
    assert rounds == [(1, 0), (2, 0), (3, 7)]


def test_a_group_of_one_decides_and_comes_back() -> None:
    disk = SimulatedDisk(Random(1))
    engine = open_engine(disk, 1, (1,), records_max=8)
    commit(engine)
    engine.handle(TimerFired(0, ElectionDue()))
    commit(engine)
    for number in range(1, 31):
        engine.handle(Requested(0, Propose(command(number))))
        commit(engine)
    applied = [each for each in engine.notifications if isinstance(each, Applied)]
    assert [each.result for each in applied] == [str(number).encode() for number in range(30)]
    assert len([name for name in disk.names() if name.endswith(".journal")]) == 1, "sealed segments go at once"
    disk.crash()
    again = open_engine(disk, 1, (1,), records_max=8)
    assert again.replica.acceptor.promised == BALLOT
    assert again.replica.log.decided >= 30
    again.handle(TimerFired(0, ElectionDue()))
    commit(again)
    assert again.replica.log.decided == 31


def test_a_folder_belongs_to_one_node() -> None:
    disk = SimulatedDisk(Random(1))
    commit(open_engine(disk, 2, (1, 2, 3)))
    disk.kill()
    with pytest.raises(InvalidRequest, match="belongs to node 2, not to 3"):
        open_engine(disk, 3, (1, 2, 3))


def test_founding_is_forgotten_once_there_is_anything() -> None:
    disk = SimulatedDisk(Random(1))
    commit(open_engine(disk, 2, (1, 2, 3)))
    disk.kill()
    engine = open_engine(disk, 2, (2,))
    assert engine.replica.log.history.at(1).voters == (1, 2, 3)
