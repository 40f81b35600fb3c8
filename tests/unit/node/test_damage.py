"""What is damaged on a replica's disk: what is decided comes from others, what may be open is never guessed (P6)."""

from __future__ import annotations

import msgspec
import pytest

from tests.unit.node.replicas import (
    THREE,
    WINDOW,
    accept,
    bodies,
    command,
    commit,
    follow,
    make_disk,
    messages,
    open_engine,
    receive,
    row,
)
from tidings.errors import StorageDamaged
from tidings.journal import segment as files
from tidings.journal.record import Record
from tidings.journal.segment import SEGMENT_HEADER_SIZE
from tidings.node.replica import ReplicaEngine
from tidings.protocols.multipaxos.acceptor import REACH_WINDOWS
from tidings.protocols.multipaxos.messages import Chosen, Fetch, FetchCopy
from tidings.protocols.multipaxos.values import Ballot
from tidings.simulator.disk import SimulatedDisk
from tidings_lab.simulated_replicas.row import Carry, Row

REACH = REACH_WINDOWS * WINDOW


def damage(disk: SimulatedDisk, engine: ReplicaEngine, address: int) -> None:
    """Flips a bit of the record that begins at an address."""
    bases = {each.first_slot: each.base_address for each in engine.journal.segments}
    first_slot = max((slot for slot, base in bases.items() if base <= address), default=0)
    if address >= engine.journal.segment_address:
        first_slot = max(files.slots_of(disk.names(), files.JOURNAL_SUFFIX))
        bases[first_slot] = engine.journal.segment_address
    disk.flip_bit(files.journal_name(first_slot), address - bases[first_slot] + 60)


def misplaced(engine: ReplicaEngine) -> list[bytes]:
    assert isinstance(engine.state, Row)
    return engine.state.misplaced()


def record_of(engine: ReplicaEngine, slot: int) -> Record:
    found = engine.journal.record_at(engine.places.record_address(slot))
    assert found is not None
    return found[0]


# In the segment that is being written.


def test_who_is_behind_gets_what_is_damaged_here_once_the_others_have_sent_it() -> None:
    """No file that could be offered holds it, and nothing that happens need ever seal the segment."""
    disk = make_disk()
    engine = open_engine(disk, 2)
    follow(engine, 5)
    damage(disk, engine, engine.places.record_address(3))
    receive(engine, 4, Fetch(3))
    assert [(nodes, message) for nodes, message in engine.outgoing if isinstance(message, Fetch)] == [
        ((1, 3), Fetch(3))
    ]
    commit(engine)
    messages(engine)
    receive(engine, 4, Fetch(3))
    assert not any(isinstance(message, Fetch) for message in messages(engine)), "once is enough"
    receive(engine, 1, Chosen(3, (command(3),), 6))
    commit(engine)
    receive(engine, 4, Fetch(3))
    [chosen] = [message for message in messages(engine) if isinstance(message, Chosen)]
    assert chosen.first_slot == 3
    assert chosen.values[0] == command(3)


def test_a_decided_slot_that_is_lost_is_fetched_from_the_others() -> None:
    disk = make_disk()
    engine = open_engine(disk, 2)
    last = REACH + 10
    follow(engine, last)
    damage(disk, engine, engine.places.record_address(3))
    disk.kill()
    again = open_engine(disk, 2)
    # What is known to be chosen counts; slot 2 may have been accepted again in the record that is lost.
    assert (again.applied, row(again)) == (2, bodies(1, 1))
    assert again.replica.acceptor.promised == engine.replica.acceptor.promised
    accept(again, last + 1, decided=last + 1)
    assert Fetch(2) in messages(again)
    receive(again, 1, Chosen(2, (command(2), command(3)), last + 1))
    commit(again)
    assert row(again) == bodies(1, last - 1), "what lies behind the gap need not come again"
    accept(again, last + 1, decided=last + 1)
    commit(again)
    assert row(again) == bodies(1, last)
    assert misplaced(again) == []
    disk.crash()
    once_more = open_engine(disk, 2)
    assert row(once_more) == bodies(1, once_more.applied - 1)
    assert once_more.applied >= last


def test_what_may_be_undecided_is_never_guessed() -> None:
    disk = make_disk()
    engine = open_engine(disk, 2)
    follow(engine, 5)
    damage(disk, engine, engine.places.record_address(4))
    disk.kill()
    with pytest.raises(StorageDamaged, match="no longer knows what it has accepted"):
        open_engine(disk, 2)


def test_a_lost_promise_is_found_in_the_records_behind_it() -> None:
    disk = make_disk()
    engine = open_engine(disk, 2)
    follow(engine, 3)
    higher = Ballot(9, 3)
    address = engine.journal.end_address
    accept(engine, 4, ballot=higher, decided=4)
    commit(engine)
    follow(engine, REACH + 10, first=4, ballot=higher)
    damage(disk, engine, address)
    disk.kill()
    assert open_engine(disk, 2).replica.acceptor.promised == higher


def test_its_own_commands_do_not_say_that_less_is_decided_than_was() -> None:
    """Or a value that was accepted far beyond would be taken for decided too early, and be forgotten."""
    disk = make_disk()
    engine = open_engine(disk, 2)
    follow(engine, 1)
    accept(engine, 2, *map(command, range(2, 10)), decided=10)
    accept(engine, 20, command(20), decided=10)  # Within reach of what is decided, and not of what is applied.
    assert (engine.replica.log.decided, engine.applied) == (10, 2)
    engine.stage_local(msgspec.msgpack.encode(Carry(0)), (b"ann1",))
    commit(engine)
    follow(engine, 18, first=10)
    damage(disk, engine, engine._kept[20].record_address)
    disk.kill()
    with pytest.raises(StorageDamaged, match="no longer knows what it has accepted"):
        open_engine(disk, 2)


def test_nothing_is_known_of_a_group_whose_founding_is_lost() -> None:
    disk = make_disk()
    engine = open_engine(disk, 2)
    commit(engine)
    follow(engine, REACH + 10)
    named = engine.journal.record_at(SEGMENT_HEADER_SIZE)
    assert named is not None
    damage(disk, engine, named[0].end_address)
    disk.kill()
    with pytest.raises(StorageDamaged, match="Give it an empty folder"):
        open_engine(disk, 2)


def test_what_a_lost_record_may_have_overruled_is_not_taken_for_decided() -> None:
    """A value of an older ballot stands before the damage, and the one that was chosen in its place is lost."""
    disk = make_disk()
    engine = open_engine(disk, 2)
    follow(engine, 3)
    accept(engine, 4, command(4, "old"), decided=4)
    commit(engine)
    higher = Ballot(9, 3)
    last = REACH + 10
    follow(engine, last, first=4, ballot=higher)
    assert row(engine) == bodies(1, last)
    damage(disk, engine, engine.places.record_address(4))
    disk.kill()
    again = open_engine(disk, 2)
    assert row(again) == bodies(1, 3)
    assert again.replica.log.known >= last
    receive(again, 1, Chosen(4, (command(4),), last + 1))
    commit(again)
    assert row(again)[:4] == bodies(1, 4)


def test_a_second_damage_counts_from_all_that_was_ever_decided() -> None:
    """A life that fetches again what was lost decides less than the one before, and must not set the measure."""
    disk = make_disk()
    engine = open_engine(disk, 2)
    last = REACH + 10
    follow(engine, last)
    accept(engine, last + 1, command(last + 1), decided=last + 1)
    commit(engine)  # Accepted, undecided.
    damage(disk, engine, engine.places.record_address(3))
    disk.kill()
    again = open_engine(disk, 2)
    lost = again.journal.end_address
    for number in (2, 3):
        higher = Ballot(8 + number, 3)
        accept(again, 1, decided=1, ballot=higher)
        commit(again)
        again.stage_local(msgspec.msgpack.encode(Carry(0)), (b"ann1",))
        commit(again)
    damage(disk, again, lost)
    disk.kill()
    with pytest.raises(StorageDamaged, match="no longer knows what it has accepted"):
        open_engine(disk, 2)


def broken_at(slot: int, last: int, records_max: int = 1_000) -> tuple[SimulatedDisk, ReplicaEngine]:
    """A follower that has come back after damage to a decided slot, of which nothing has come again so far."""
    disk = make_disk()
    engine = open_engine(disk, 2, records_max=records_max)
    follow(engine, last)
    damage(disk, engine, engine.places.record_address(slot))
    disk.kill()
    return disk, open_engine(disk, 2, records_max=records_max)


def test_an_old_leader_cannot_put_anything_in_the_place_of_what_is_decided() -> None:
    """Behind the gap: there its value is known. In the gap: it is accepted, and never taken for the decided one."""
    last = REACH + 10
    disk, engine = broken_at(3, last)
    accept(engine, 3, command(3, "old"), command(4, "old"), decided=2)
    commit(engine)
    assert row(engine) == bodies(1, 1)
    disk.kill()
    again = open_engine(disk, 2)
    assert row(again) == bodies(1, 1)
    receive(again, 1, Chosen(2, (command(2), command(3)), last + 1))
    commit(again)
    assert row(again) == bodies(1, last - 1)


def test_that_more_is_decided_than_is_here_is_known_also_when_the_segment_is_sealed() -> None:
    """Otherwise a restart forgets it, and a leader may put something else there."""
    last = REACH + 10
    disk, engine = broken_at(3, last)
    known = engine.replica.log.known
    assert known > 3
    engine._roll_wanted = True
    accept(engine, 1, decided=1, ballot=Ballot(9, 3))
    commit(engine)
    assert engine.journal.segments
    for _ in range(2):
        disk.crash()
        engine = open_engine(disk, 2)
        assert (engine.replica.log.decided, engine.replica.log.known) == (2, known)
    receive(engine, 1, Chosen(2, (command(2), command(3)), last + 1))
    commit(engine)
    assert row(engine) == bodies(1, last - 1)


def test_what_waits_behind_a_gap_is_taken_along_when_files_are_exchanged() -> None:
    last = REACH + 10
    disk, engine = broken_at(3, last)
    other = open_engine(make_disk(3), 3)
    follow(other, last - 3)
    receive(other, 2, Fetch(0))
    commit(other)
    receive(other, 2, Fetch(0))
    while answers := messages(other):
        for answer in answers:
            receive(engine, 3, answer)
        commit(engine)
        for question in messages(engine):
            receive(other, 2, question)
        commit(other)
    assert engine.applied == last, "what the files lack was here, and known to be chosen"
    assert row(engine) == bodies(1, last - 1)
    disk.crash()
    assert row(open_engine(disk, 2)) == bodies(1, last - 1)


# In sealed segments.


def repaired(engine: ReplicaEngine, slot: int, others: ReplicaEngine) -> None:
    """Carries the question to another replica and its answer back."""
    questions = [each for each in messages(engine) if isinstance(each, Fetch)]
    assert Fetch(slot) in questions
    for question in questions:
        receive(others, engine.replica.node, question)
    for answer in messages(others):
        receive(engine, others.replica.node, answer)
    commit(engine)


def check_all(engine: ReplicaEngine) -> int:
    engine.journal.forget_checks()
    address = 0
    for _ in range(len(engine.journal.segments) + 1):
        address, damaged = engine.journal.scrub(address, engine.journal.size_bytes)
        for each in damaged:
            engine.mend(each.span)
    return sum(isinstance(each, Fetch) for each in engine.repairs.left(engine.state))


def test_a_sealed_slot_that_is_damaged_is_fetched_and_found_at_its_new_place() -> None:
    disk = make_disk()
    engine, other = open_engine(disk, 2, records_max=12), open_engine(make_disk(3), 3)
    for each in (engine, other):
        follow(each, 16)
    assert check_all(engine) == 0
    messages(engine)
    slot = 8
    address = engine.places.record_address(slot)
    assert any(each.base_address <= address < each.end_address for each in engine.journal.segments)
    damage(disk, engine, address)
    assert check_all(engine) == 1
    repaired(engine, slot, other)
    assert record_of(engine, slot).address > address
    assert (check_all(engine), misplaced(engine)) == (0, [])
    messages(engine)
    receive(engine, 1, Fetch(slot))
    (chosen,) = messages(engine)
    assert isinstance(chosen, Chosen)
    assert chosen.values[0] == command(slot)
    disk.crash()
    again = open_engine(disk, 2, records_max=12)
    assert misplaced(again) == []
    assert again.places.record_address(slot) > address


def test_a_restart_before_it_has_come_again_knows_that_it_is_decided() -> None:
    """The slot was open when its segment was sealed, and nothing was written since it is decided."""
    disk = make_disk()
    engine = open_engine(disk, 2)
    follow(engine, 4)
    accept(engine, 5, command(5), decided=5)
    commit(engine)
    engine._roll_wanted = True
    accept(engine, 6, command(6), decided=5)
    commit(engine)
    accept(engine, 7, decided=7)  # A beat: nothing to write.
    assert (engine.applied, engine.has_staged) == (7, False)
    damage(disk, engine, engine.places.record_address(5))
    assert check_all(engine) == 1
    commit(engine)
    disk.crash()
    again = open_engine(disk, 2)
    assert (again.applied, again.replica.log.known) == (5, 7)
    receive(again, 1, Chosen(5, (command(5),), 7))
    commit(again)
    assert row(again) == bodies(1, 6)


def test_what_was_repaired_is_found_also_when_that_is_sealed() -> None:
    disk = make_disk()
    engine, other = open_engine(disk, 2, records_max=12), open_engine(make_disk(3), 3)
    for each in (engine, other):
        follow(each, 16)
    damage(disk, engine, engine.places.record_address(8))
    check_all(engine)
    repaired(engine, 8, other)
    place = engine.places.record_address(8)
    follow(engine, 19, first=17)
    assert engine.journal.segment_address > place
    disk.crash()
    again = open_engine(disk, 2, records_max=12)
    assert row(again) == bodies(1, again.applied - 1)
    assert misplaced(again) == []
    assert again.places.record_address(8) == place
    assert check_all(again) == 0, "nobody needs the old place any more"


def test_what_is_damaged_is_asked_for_until_it_comes_or_is_needed_no_longer() -> None:
    disk = make_disk()
    engine = open_engine(disk, 2, records_max=12)
    follow(engine, 16)
    damage(disk, engine, engine.places.record_address(8))
    check_all(engine)
    messages(engine)
    engine.ask_again()
    assert messages(engine) == [Fetch(8), FetchCopy(msgspec.msgpack.encode(Carry(7)))], "as its slot, or as a copy"
    follow(engine, 60, first=17)
    assert 8 not in engine.places
    messages(engine)
    assert engine.ask_again() == 0
    assert messages(engine) == []


def test_others_are_asked_and_not_the_node_itself() -> None:
    disk = make_disk()
    engine = open_engine(disk, 2, records_max=12)
    follow(engine, 16)
    damage(disk, engine, engine.places.record_address(8))
    messages(engine)
    check_all(engine)
    assert {nodes for nodes, message in engine.outgoing if isinstance(message, Fetch)} == {
        tuple(node for node in THREE if node != 2)
    }
