"""The state of simulated replicas: every command once, and at the address where it lies (P6)."""

from __future__ import annotations

from random import Random

import msgspec

from tidings.journal import REPLICA, Append, Journal
from tidings.protocols.multipaxos.values import Command
from tidings.settings import JournalSettings
from tidings.simulator.disk import SimulatedDisk
from tidings_lab.simulated_replicas.row import COPIED_BEFORE, Carry, Row


def command(number: int, client: str = "ann") -> Command:
    return Command(client, number, f"{client}{number}".encode())


def make_journal() -> Journal:
    journal = Journal.open(SimulatedDisk(Random(1)), JournalSettings())
    list(journal.recover().records)
    return journal


def write(journal: Journal, body: bytes) -> int:
    commit = journal.begin([Append(REPLICA, b"", (body,))])
    journal.write(commit)
    journal.finish(commit)
    return commit.records[0].body_address


def filled(journal: Journal, count: int) -> Row:
    row = Row(journal)
    for number in range(1, count + 1):
        row.apply(command(number), write(journal, command(number).body))
    return row


def test_a_command_is_answered_by_its_place() -> None:
    row = Row(make_journal())
    assert [row.apply(command(number), 0) for number in (1, 2)] == [b"0", b"1"]
    assert row.apply(command(1, "bob"), 0) == b"2"
    assert row.bodies == [b"ann1", b"ann2", b"bob1"]


def test_a_repeated_command_gets_the_old_answer_and_changes_nothing() -> None:
    row = Row(make_journal())
    row.apply(command(1), 0)
    row.apply(command(1, "bob"), 0)
    assert row.apply(command(1), 0) == b"0"
    assert row.bodies == [b"ann1", b"bob1"]


def test_what_is_older_or_leaves_a_gap_is_refused() -> None:
    row = Row(make_journal())
    assert row.apply(command(2), 0) is None
    row.apply(command(1), 0)
    row.apply(command(2), 0)
    assert row.apply(command(1), 0) is None
    assert row.apply(command(4), 0) is None
    assert row.bodies == [b"ann1", b"ann2"]


def test_a_sealed_row_comes_back_with_its_sessions() -> None:
    journal = make_journal()
    row = filled(journal, 20)
    again = Row(journal)
    again.restore(row.seal()[1], [])
    assert again.bodies == row.bodies
    assert again.apply(command(20), 0) == b"19"
    assert again.lowest_address(10**9) == row.lowest_address(10**9)


def test_the_pieces_of_a_body_are_all_of_it() -> None:
    assert b"".join(Row(make_journal()).buffers(b"body")) == b"body"


def test_an_address_that_is_wrong_shows_itself() -> None:
    journal = make_journal()
    row = filled(journal, 3)
    assert row.misplaced() == []
    row.apply_local(msgspec.msgpack.encode(Carry(1)), 0, 0)
    assert row.misplaced() == [b"ann2"]


def test_what_is_copied_forward_is_needed_no_longer_where_it_was() -> None:
    journal = make_journal()
    row = filled(journal, COPIED_BEFORE)
    found = row.to_copy()
    assert found is not None
    before = row.lowest_address(journal.end_address)
    carry, body = found
    row.apply_local(carry, 0, write(journal, body))
    assert row.misplaced() == []
    assert row.lowest_address(journal.end_address) > before


def test_what_was_damaged_lies_elsewhere_from_then_on() -> None:
    journal = make_journal()
    row = filled(journal, 3)
    old, new = row.lowest_address(0), write(journal, b"ann1")
    row.move(old, 4, new)
    assert row.misplaced() == []
    assert row.lowest_address(0) != old
