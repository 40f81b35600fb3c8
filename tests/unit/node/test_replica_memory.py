"""What a replica claims is on its disk, and what it remembers of others survives restarts, seals and exchanges (P6)."""

from __future__ import annotations

import msgspec
import pytest

from tests.unit.node.replicas import (
    BALLOT,
    accept,
    command,
    commit,
    follow,
    make_disk,
    messages,
    open_engine,
    receive,
)
from tests.unit.node.test_file_copy import make_behind, make_source, offered, talk
from tidings.errors import StorageDamaged
from tidings.node.founding import founding
from tidings.node.replica import ReplicaEngine
from tidings.node.snapshot_header import SnapshotHeader, decode_snapshot_header, encode
from tidings.protocols.multipaxos.claims import Claim, Extent, Memory
from tidings.protocols.multipaxos.messages import Fetch, PreVote, Recall, Received, Remembered
from tidings.protocols.multipaxos.values import ZERO, Ballot
from tidings.simulator.disk import SimulatedDisk

MUCH = Extent(Ballot(7, 3), 90)
LITTLE = Extent(Ballot(6, 3), 80)


def say(engine: ReplicaEngine, node: int, life: int, began: Extent) -> None:
    engine.handle(Received(0, node, PreVote(1, 1), Claim(life, began, began)))


def remembers(engine: ReplicaEngine, node: int, extent: Extent) -> bool:
    """Whether a later life of a node that began with nothing would be told of this."""
    engine.outgoing.clear()
    engine.handle(Received(0, node, Recall(), Claim(999, Extent(ZERO, 1), Extent(ZERO, 1))))
    return messages(engine) == [Remembered(999, extent)]


def test_what_is_staged_is_not_claimed() -> None:
    engine = open_engine(make_disk(), 2)
    commit(engine)
    accept(engine, 1, command(1))
    assert engine.witness.claim(1).now == Extent(ZERO, 1)
    commit(engine)
    assert engine.witness.claim(1).now == Extent(BALLOT, 2)


def test_a_life_begins_with_what_the_last_one_has_claimed() -> None:
    disk = make_disk()
    engine = open_engine(disk, 2, records_max=6)
    follow(engine, 12)
    accept(engine, 14, command(14), decided=13)
    commit(engine)
    claimed = engine.witness.claim(1).now
    assert claimed == Extent(BALLOT, 15)
    disk.crash()
    assert open_engine(disk, 2, records_max=6).witness.claim(1).began == claimed


def test_who_starts_asks_the_others_first() -> None:
    assert messages(open_engine(make_disk(), 2, drops_recall=False)) == [Recall()]


@pytest.mark.parametrize("lost", ["newest", "all"])
def test_an_older_folder_is_found_out(lost: str) -> None:
    """Another member tells what this one once said: it ends, and does not vote."""
    disk = make_disk()
    witness, engine = open_engine(make_disk(), 1), open_engine(disk, 2)
    copy = disk.copied() if lost == "newest" else make_disk()
    follow(engine, 3)
    witness.handle(Received(0, 2, Fetch(1), engine.witness.claim(1)))
    older = open_engine(copy, 2, drops_recall=False, life=2)
    witness.outgoing.clear()
    for message in messages(older):
        witness.handle(Received(0, 2, message, older.witness.claim(1)))
    [told] = messages(witness)
    with pytest.raises(StorageDamaged, match="knows less than member 2 of the group once promised"):
        receive(older, 1, told)


def test_a_folder_that_has_lost_nothing_is_not() -> None:
    disk = make_disk()
    witness, engine = open_engine(make_disk(), 1), open_engine(disk, 2)
    follow(engine, 3)
    witness.handle(Received(0, 2, Fetch(1), engine.witness.claim(1)))
    disk.crash()
    again = open_engine(disk, 2, drops_recall=False, life=2)
    witness.outgoing.clear()
    for message in messages(again):
        witness.handle(Received(0, 2, message, again.witness.claim(1)))
    for told in messages(witness):
        receive(again, 1, told)


def heard(disk: SimulatedDisk, records_max: int = 1_000) -> ReplicaEngine:
    engine = open_engine(disk, 1, records_max=records_max)
    commit(engine)
    say(engine, 3, 1, MUCH)
    engine.write_memories(0)
    commit(engine)
    return engine


def test_memory_survives_a_restart() -> None:
    disk = make_disk()
    heard(disk)
    disk.crash()
    assert remembers(open_engine(disk, 1), 3, MUCH)


def test_memory_survives_a_seal() -> None:
    """The records that have it are behind the snapshot then."""
    disk = make_disk()
    engine = heard(disk, records_max=6)
    follow(engine, 20, ballot=Ballot(1, 2))
    assert engine.journal.snapshot_name is not None
    disk.crash()
    assert remembers(open_engine(disk, 1, records_max=6), 3, MUCH)


def test_who_takes_over_files_keeps_its_own_memory_and_claims_no_less() -> None:
    _, source = make_source()
    say(source, 1, 1, LITTLE)
    disk = make_disk(2)
    target = make_behind(disk)
    say(target, 1, 1, MUCH)
    claimed = target.witness.claim(2).now
    receive(target, 2, offered(source, 3))
    talk(source, target)
    assert target.applied > claimed.reach
    assert target.witness.claim(2).now.covers(Extent(claimed.promised, target.applied))
    assert remembers(target, 1, MUCH)
    disk.crash()
    again = open_engine(disk, 3, life=2)
    assert remembers(again, 1, MUCH)
    assert again.witness.claim(2).began.covers(target.witness.claim(2).now)


def test_a_head_of_an_older_version_is_read() -> None:
    header = SnapshotHeader(
        2, BALLOT, founding((1, 2, 3), 4), (), b"state", (), reach=7, memories=(Memory(3, 1, MUCH),)
    )
    older = msgspec.msgpack.encode(msgspec.msgpack.decode(encode(header))[:6])
    assert decode_snapshot_header(encode(header)) == header
    assert decode_snapshot_header(older) == msgspec.structs.replace(header, reach=0, memories=())
