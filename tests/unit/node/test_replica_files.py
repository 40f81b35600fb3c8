"""A replica whose files somebody wants while they change (P6)."""

from __future__ import annotations

from random import Random

from tidings.journal.journal import Journal
from tidings.node.founding import founding
from tidings.node.replica import ReplicaEngine
from tidings.protocols.multipaxos.messages import ElectionDue, Fetch, FetchFile, Offer, Propose, Received
from tidings.protocols.multipaxos.values import Command
from tidings.protocols.stack import Requested, TimerFired
from tidings.settings import JournalSettings, ReplicaSettings
from tidings.simulator.disk import SimulatedDisk
from tidings_lab.simulated_replicas.row import Row

NEWCOMER = 2
RECORDS_MAX = 8


def commit(engine: ReplicaEngine) -> None:
    while engine.has_staged:
        engine.journal.write(engine.begin_commit(0))
        engine.finish_commit(0)


def test_what_is_asked_while_a_snapshot_takes_the_place_of_another_is_not_answered() -> None:
    """The older one is gone when the thread that writes has removed it, before the loop knows of the newer one."""
    disk = SimulatedDisk(Random(1))
    journal = Journal.open(disk, JournalSettings(segment_records_max=RECORDS_MAX))
    engine = ReplicaEngine(1, ReplicaSettings(), lambda: Row(journal), journal, disk, Random(1))
    engine.recover(0, founding((1,), window=4))
    commit(engine)
    engine.handle(TimerFired(0, ElectionDue()))
    commit(engine)
    sealings = number = 0
    while sealings < 3:
        number += 1
        engine.handle(Requested(0, Propose(Command("ann", number, b"text"))))
        written = engine.begin_commit(0)
        older = journal.snapshot_name
        journal.write(written)
        if written.roll is not None and older is not None:
            sealings += 1
            engine.outgoing.clear()
            engine.handle(Received(0, NEWCOMER, Fetch(0)))
            engine.handle(Received(0, NEWCOMER, FetchFile(older, 0, 0)))
            assert engine.outgoing == []
            engine.finish_commit(0)
            engine.handle(Received(0, NEWCOMER, Fetch(0)))
            [(nodes, offer)] = engine.outgoing
            assert nodes == (NEWCOMER,)
            assert isinstance(offer, Offer) and offer.files[-1].name == journal.snapshot_name
        else:
            engine.finish_commit(0)
        commit(engine)
