"""A replica on a journal: what is said and applied waits for the disk, and comes back from it (P6, P7)."""

from __future__ import annotations

import msgspec
import pytest

from tests.unit.node.replicas import (
    BALLOT,
    accept,
    accepted,
    bodies,
    command,
    commit,
    follow,
    lead,
    make_disk,
    messages,
    open_engine,
    propose,
    receive,
    row,
    told,
)
from tidings.errors import InvalidRequest, StorageDamaged
from tidings.journal import segment as files
from tidings.journal.journal import Journal
from tidings.node.founding import founding
from tidings.node.replica import ReplicaEngine
from tidings.node.state import Applied
from tidings.protocols.multipaxos.messages import (
    Accepted,
    Chosen,
    Decided,
    ElectionDue,
    Fetch,
    Offer,
    Promise,
    Read,
    ReadReady,
)
from tidings.protocols.multipaxos.values import Add, Ballot, Change, Command, Entry, Noop, Promote
from tidings.protocols.stack import Requested, TimerFired
from tidings.settings import ReplicaSettings
from tidings.simulator.disk import SimulatedDisk
from tidings_lab.simulated_replicas.row import Carry, Row

HIGHER = Ballot(2, 3)


def journal_names(disk: SimulatedDisk) -> list[str]:
    return [name for name in disk.names() if name.endswith(".journal")]


# What is said waits for the disk.


def test_an_answer_leaves_when_its_records_are_on_disk() -> None:
    engine = open_engine(make_disk(), 2)
    commit(engine)
    accept(engine, 1, command(1))
    written = engine.begin_commit(0)
    accept(engine, 1, command(1))  # The same again: its answer speaks of what is not on disk either.
    assert messages(engine) == []
    engine.journal.write(written)
    engine.finish_commit(0)
    assert messages(engine) == [Accepted(BALLOT, 1, 1, 1, 0)] * 2


def test_any_number_of_answers_may_wait_for_one_write() -> None:
    engine = open_engine(make_disk(), 2)
    commit(engine)
    accept(engine, 1, command(1))
    written = engine.begin_commit(0)
    for round_ in range(3_000):
        accept(engine, 2, round_=round_)
    engine.journal.write(written)
    engine.finish_commit(0)
    rounds = [message.round for message in messages(engine) if isinstance(message, Accepted)]
    assert rounds == [0, *range(3_000)]


def test_answers_leave_in_the_order_in_which_they_were_wanted() -> None:
    engine = open_engine(make_disk(), 2)
    commit(engine)
    accept(engine, 1, command(1))
    accept(engine, 2, command(2))
    written = engine.begin_commit(0)
    accept(engine, 3, round_=7)
    engine.journal.write(written)
    engine.finish_commit(0)
    rounds = [(message.first_slot, message.round) for message in messages(engine) if isinstance(message, Accepted)]
    assert rounds == [(1, 0), (2, 0), (3, 7)]


# What is decided and on this disk is applied.


def test_what_is_on_disk_is_applied_when_it_is_decided() -> None:
    engine = open_engine(make_disk(), 2)
    accept(engine, 1, command(1))
    commit(engine)
    assert (engine.applied, row(engine)) == (1, [])
    accept(engine, 2, decided=2)
    assert (engine.applied, row(engine)) == (2, [b"ann1"])
    assert told(engine, Applied) == [Applied(1, command(1), b"0")]
    assert told(engine, Decided) == [], "anyone who drives it hears only of what is applied"


def test_what_is_decided_is_applied_when_it_is_on_disk() -> None:
    engine = open_engine(make_disk(), 2)
    accept(engine, 1, command(1), command(2), decided=3)
    written = engine.begin_commit(0)
    assert engine.replica.log.decided == 3
    assert (engine.applied, row(engine)) == (1, [])
    engine.journal.write(written)
    assert row(engine) == [], "it is on disk, and nobody has said so yet"
    engine.finish_commit(0)
    assert row(engine) == [b"ann1", b"ann2"]


def test_a_leader_whose_followers_were_faster_than_its_own_disk_waits_for_it() -> None:
    engine = open_engine(make_disk(), 1)
    lead(engine, 2)
    receive(engine, 2, Promise(BALLOT, (), 1))
    commit(engine)
    propose(engine, 1)
    written = engine.begin_commit(0)
    for node in (2, 3):
        accepted(engine, node, 1)
    assert engine.replica.log.decided == 2
    assert row(engine) == []
    engine.journal.write(written)
    engine.finish_commit(0)
    assert row(engine) == [b"ann1"]


def test_a_read_waits_until_what_it_has_to_see_is_applied() -> None:
    engine = open_engine(make_disk(), 1)
    lead(engine, 2)
    receive(engine, 2, Promise(BALLOT, (), 1))
    commit(engine)
    propose(engine, 1)
    for node in (2, 3):
        accepted(engine, node, 1)
    engine.handle(Requested(0, Read(7)))
    for node in (2, 3):
        receive(engine, node, Accepted(BALLOT, 2, 0, 1, 2))
    assert (engine.replica.log.decided, told(engine, ReadReady)) == (2, [])
    commit(engine)
    assert told(engine, ReadReady) == [ReadReady(7, 2)]


def test_only_the_value_that_was_chosen_is_applied() -> None:
    """Another one may be on disk for the same slot, accepted under an older ballot."""
    engine = open_engine(make_disk(), 2)
    accept(engine, 1, command(9))
    commit(engine)
    accept(engine, 1, command(1), decided=2, ballot=HIGHER)
    assert engine.replica.log.decided == 2
    assert row(engine) == []
    commit(engine)
    assert row(engine) == [b"ann1"]


def test_what_is_applied_is_no_longer_in_memory() -> None:
    engine = open_engine(make_disk(), 2)
    follow(engine, 5)
    assert engine.replica.log.entries == {}


def test_a_group_of_one_decides_and_comes_back() -> None:
    disk = make_disk()
    engine = open_engine(disk, 1, (1,), records_max=8)
    commit(engine)
    engine.handle(TimerFired(0, ElectionDue()))
    commit(engine)
    for number in range(1, 31):
        propose(engine, number)
        commit(engine)
    assert [each.result for each in told(engine, Applied)] == [str(number).encode() for number in range(30)]
    disk.crash()
    again = open_engine(disk, 1, (1,), records_max=8)
    assert again.replica.acceptor.promised == BALLOT
    assert again.applied >= 30
    again.handle(TimerFired(0, ElectionDue()))
    commit(again)
    assert (again.applied, row(again)) == (31, bodies(1, 30))
    assert told(again, Applied)[0].slot >= 30, "what was applied in an earlier life is not told again"


def test_a_folder_belongs_to_one_node() -> None:
    disk = make_disk()
    commit(open_engine(disk, 2))
    disk.kill()
    with pytest.raises(InvalidRequest, match="belongs to node 2, not to 3"):
        open_engine(disk, 3)


def test_a_folder_belongs_to_one_node_also_when_its_first_segment_is_gone() -> None:
    disk = make_disk()
    engine = open_engine(disk, 2, records_max=4)
    follow(engine, 40)
    assert journal_names(disk)[0] != files.journal_name(0)
    disk.kill()
    with pytest.raises(InvalidRequest, match="belongs to node 2, not to 3"):
        open_engine(disk, 3)


def test_founding_is_forgotten_once_there_is_anything() -> None:
    disk = make_disk()
    commit(open_engine(disk, 2))
    disk.kill()
    engine = open_engine(disk, 2, (2,))
    assert engine.replica.log.history.at(1).voters == (1, 2, 3)


def test_a_founding_of_which_a_power_cut_left_the_name_alone_is_made_whole() -> None:
    """P6: name and founding are one commit of two records, and the first of them may survive without the second."""
    disk = make_disk()
    commit(open_engine(disk, 1, blank=True))
    for _ in range(2):
        disk.crash()
        engine = open_engine(disk, 1, (1,))
        commit(engine)
        engine.handle(TimerFired(0, ElectionDue()))
        commit(engine)
        propose(engine, 1)
        commit(engine)
        assert engine.replica.log.history.at(1).voters == (1,)
    assert row(engine) == bodies(1, 1)


@pytest.mark.parametrize(("voters", "window"), [((), 4), ((1, 1), 4), ((0, 1), 4), ((1,), 0)])
def test_a_group_needs_different_voters_and_a_window(voters: tuple[int, ...], window: int) -> None:
    with pytest.raises(InvalidRequest, match="different numbers from 1 on"):
        founding(voters, window)


# Full segments.


def roll(engine: ReplicaEngine) -> None:
    """Has a commit seal the segment, as it would if that were full."""
    engine._roll_wanted = True
    accept(engine, 1, ballot=Ballot(engine.replica.acceptor.promised.number + 1, 1))
    commit(engine)


def test_what_is_accepted_and_undecided_is_held_when_a_segment_is_sealed() -> None:
    disk = make_disk()
    engine = open_engine(disk, 2)
    follow(engine, 3)
    accept(engine, 4, command(4), command(5), decided=4)
    commit(engine)
    roll(engine)
    assert len(journal_names(disk)) == 2
    disk.crash()
    again = open_engine(disk, 2)
    assert (again.applied, row(again)) == (4, bodies(1, 3))
    assert [(entry.slot, entry.value) for entry in again.replica.log.undecided(0)] == [(4, command(4)), (5, command(5))]
    assert again.replica.acceptor.promised == engine.replica.acceptor.promised > BALLOT
    receive(again, 3, Chosen(4, (command(4), command(5)), 6))
    assert row(again) == bodies(1, 5), "they are applied from where they lie, in the segment before"


def test_what_is_held_is_applied_by_records_behind_it() -> None:
    disk = make_disk()
    engine = open_engine(disk, 2)
    accept(engine, 1, command(1), command(2))
    commit(engine)
    roll(engine)
    receive(engine, 3, Chosen(1, (command(1), command(2), command(3)), 4))
    commit(engine)
    disk.crash()
    again = open_engine(disk, 2)
    assert (again.applied, row(again)) == (4, bodies(1, 3))


def test_what_is_held_stays_held_over_several_segments() -> None:
    disk = make_disk()
    engine = open_engine(disk, 2)
    accept(engine, 1, command(1))
    commit(engine)
    for _ in range(3):
        roll(engine)
    assert len(journal_names(disk)) == 4, "the one with the record has to stay"
    disk.crash()
    again = open_engine(disk, 2)
    assert again.replica.log.undecided(0) == (Entry(1, BALLOT, command(1)),)


def test_a_held_record_that_is_damaged_ends_the_start() -> None:
    disk = make_disk()
    engine = open_engine(disk, 2)
    accept(engine, 1, command(1))
    commit(engine)
    address = engine._kept[1].record_address
    roll(engine)
    disk.kill()
    disk.flip_bit(journal_names(disk)[0], address + 20)
    with pytest.raises(StorageDamaged, match="records that may be undecided"):
        open_engine(disk, 2)


class IndexedRow(Row):
    """A state whose indexes say what was gained for each, as the broker's do."""

    def __init__(self, journal: Journal) -> None:
        super().__init__(journal)
        self.unsealed: list[int] = []
        self.sealed: list[int] = []
        self._in_index: list[int] = []

    def apply(self, command: Command, address: int) -> bytes | None:
        self.unsealed.append(command.sequence)
        return super().apply(command, address)

    def seal(self) -> tuple[bytes, bytes]:
        self._in_index = list(self.unsealed)
        return super().seal()

    def mark_sealed(self) -> None:
        assert self.unsealed == self._in_index, "something was gained since, and is in no index"
        self.sealed += self.unsealed
        self.unsealed = []


def test_what_is_applied_while_a_segment_is_being_sealed_goes_into_the_next_index() -> None:
    """Or nobody would know after a restart where it lies."""
    disk = make_disk()
    engine = open_engine(disk, 2, make_state=IndexedRow)
    state = engine.state
    assert isinstance(state, IndexedRow)
    accept(engine, 1, command(1), command(2))
    commit(engine)
    engine._roll_wanted = True
    accept(engine, 3, command(3))
    written = engine.begin_commit(0)
    accept(engine, 4, decided=3)  # Meanwhile the first two are decided; both are on disk.
    engine.journal.write(written)
    engine.finish_commit(0)
    assert row(engine) == bodies(1, 2)
    assert (state.sealed, state.unsealed) == ([], [1, 2])
    roll(engine)
    assert state.sealed == [1, 2]
    disk.crash()
    again = open_engine(disk, 2)
    receive(again, 3, Fetch(1))
    assert messages(again) == [Chosen(1, (command(1), command(2)), 3)]


# What a replica does for itself.


def carry(engine: ReplicaEngine, number: int) -> None:
    body = row(engine)[number]
    engine.stage_local(msgspec.msgpack.encode(Carry(number)), (body[:1], body[1:]))


def test_its_own_commands_are_applied_when_they_are_on_disk() -> None:
    engine = open_engine(make_disk(), 2)
    follow(engine, 2)
    before = engine.state.lowest_address(engine.journal.end_address)
    carry(engine, 0)
    written = engine.begin_commit(0)
    assert engine.state.lowest_address(engine.journal.end_address) == before
    engine.journal.write(written)
    engine.finish_commit(0)
    assert engine.state.lowest_address(engine.journal.end_address) > before


@pytest.mark.parametrize("rolled", [False, True])
def test_its_own_commands_come_back_behind_what_they_speak_of(rolled: bool) -> None:
    """What they speak of is decided, and the word of that may not be on disk yet."""
    disk = make_disk()
    engine = open_engine(disk, 2)
    accept(engine, 1, command(1), command(2))
    commit(engine)
    if rolled:
        roll(engine)
    receive(engine, 3, Chosen(1, (command(1), command(2)), 3))
    assert row(engine) == bodies(1, 2)
    carry(engine, 1)
    commit(engine)
    expected = engine.state.seal()[1]
    disk.crash()
    again = open_engine(disk, 2)
    assert row(again) == bodies(1, 2)
    assert again.state.seal()[1] == expected


# Those who are behind.


def ask(engine: ReplicaEngine, first_slot: int) -> list[object]:
    messages(engine)
    receive(engine, 3, Fetch(first_slot))
    return list(messages(engine))


def test_values_are_served_a_batch_at_a_time() -> None:
    engine = open_engine(make_disk(), 2, settings=ReplicaSettings(batch_values_max=3))
    follow(engine, 5)
    assert ask(engine, 2) == [Chosen(2, (command(2), command(3), command(4)), 6)]
    assert ask(engine, 5) == [Chosen(5, (command(5),), 6)]
    assert ask(engine, 6) == []


def test_values_are_bounded_in_bytes_too_but_for_the_first() -> None:
    engine = open_engine(make_disk(), 2, settings=ReplicaSettings(batch_bytes_max=80))
    follow(engine, 5)
    assert ask(engine, 1) == [Chosen(1, (command(1), command(2)), 6)]
    small = open_engine(make_disk(), 2, settings=ReplicaSettings(batch_bytes_max=1))
    follow(small, 5)
    assert ask(small, 4) == [Chosen(4, (command(4),), 6)]


def test_undecided_values_are_not_served() -> None:
    engine = open_engine(make_disk(), 2)
    accept(engine, 1, command(1), command(2), command(3))
    commit(engine)
    assert ask(engine, 1) == []
    accept(engine, 4, decided=3)
    assert ask(engine, 2) == [Chosen(2, (command(2),), 3)]


def test_changes_and_fillers_are_served_like_commands() -> None:
    engine = open_engine(make_disk(), 2)
    values = (Add(4, "tcp://d:1", b"disk"), Noop(), command(1))
    accept(engine, 1, *values, decided=4)
    commit(engine)
    assert ask(engine, 1) == [Chosen(1, values, 4)]


def test_values_are_served_from_several_segments_also_after_a_restart() -> None:
    disk = make_disk()
    engine = open_engine(disk, 2, records_max=6)
    follow(engine, 10)
    assert len(engine.journal.segments) > 2
    everything = [Chosen(1, tuple(map(command, range(1, 11))), 11)]
    assert ask(engine, 1) == everything
    disk.crash()
    again = open_engine(disk, 2, records_max=6)
    known = Chosen(1, tuple(map(command, range(1, again.applied))), again.applied)
    assert again.applied >= 10
    assert ask(again, 1) == [known]


def test_the_places_of_a_segment_go_with_it() -> None:
    disk = make_disk()
    engine = open_engine(disk, 2, records_max=6)
    follow(engine, 40)
    oldest = engine.journal.segments[0].base_address
    assert oldest > 0
    for each in (engine, None):
        if each is None:
            disk.crash()
            each = open_engine(disk, 2, records_max=6)
        (offer,) = ask(each, 1)
        assert isinstance(offer, Offer)
        first = each.places.first_slot
        (chosen,) = ask(each, first)
        assert isinstance(chosen, Chosen)
        assert chosen.values[0] == command(first)
        assert len(each.places) == each.applied - first
        assert each.places.record_address(first) >= oldest


def test_a_damaged_record_is_not_served() -> None:
    disk = make_disk()
    engine = open_engine(disk, 2, records_max=6)
    follow(engine, 10)
    place = engine.places.record_address(3)
    segment = next(each for each in engine.journal.segments if each.base_address <= place < each.end_address)
    disk.flip_bit(files.journal_name(segment.first_slot), place - segment.base_address + 70)
    again = open_engine(disk, 2, records_max=6)
    assert ask(again, 1) == [Chosen(1, (command(1), command(2)), again.applied)]
    asked, offer = ask(again, 3)
    assert isinstance(offer, Offer)
    assert asked == Fetch(3), "it wants it for itself too"


def test_who_has_sealed_nothing_yet_does_so_when_its_files_are_wanted() -> None:
    engine = open_engine(make_disk(), 2)
    follow(engine, 3)
    assert ask(engine, 0) == []
    commit(engine)
    (offer,) = ask(engine, 0)
    assert isinstance(offer, Offer)
    assert offer.next_slot == 4


def test_a_listener_and_a_vote_are_told_to_the_state_once_and_only_if_they_count() -> None:
    seen: list[Change] = []

    class Watching(Row):
        def apply_change(self, change: Change) -> None:
            seen.append(change)

    engine = open_engine(make_disk(), 2, make_state=Watching)
    values = (Add(4), Add(5), Noop(), Noop(), Noop(), Promote(4))
    accept(engine, 1, *values[:4], decided=5)
    commit(engine)
    accept(engine, 5, *values[4:], decided=7)
    commit(engine)
    assert seen == [Add(4), Promote(4)], "a second change while one is open counts for nothing"
    assert engine.history.newest.membership.voters == (1, 2, 3, 4)
