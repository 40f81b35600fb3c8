"""What is decided, applied and kept (P6: decided notifications in order; a lagging replica catches up)."""

from __future__ import annotations

import pytest

from tests.unit.protocols.multipaxos.parts import command, make_log
from tidings.errors import StorageDamaged
from tidings.node.replica import founding
from tidings.protocols.multipaxos.log import Log
from tidings.protocols.multipaxos.records import (
    Installed,
    Known,
    Promised,
    Snapshot,
    Stored,
    Whole,
    decode_whole,
    encode,
)
from tidings.protocols.multipaxos.sessions import Outcome, Sessions
from tidings.protocols.multipaxos.values import CHOSEN, ZERO, Add, Ballot, Command, Entry, Noop
from tidings.simulator.paxos.node import Row

LOW, HIGH = Ballot(1, 1), Ballot(2, 2)


def bodies(log: Log) -> list[bytes]:
    assert isinstance(log.sessions.machine, Row)
    return log.sessions.machine.bodies


def test_only_what_came_under_the_leaders_ballot_is_taken_for_decided() -> None:
    log = make_log()
    log.store(Entry(1, LOW, command(1)))
    assert log.decide_through(2, HIGH) == []
    log.store(Entry(1, HIGH, command(2)))
    assert [applied.value for applied in log.decide_through(2, HIGH)] == [command(2)]


def test_slots_are_applied_in_order_without_a_gap() -> None:
    log = make_log()
    log.store(Entry(2, LOW, command(2)))
    assert log.decide_through(3, LOW) == []
    log.store(Entry(1, LOW, command(1)))
    assert [applied.slot for applied in log.decide_through(3, LOW)] == [1, 2]
    assert bodies(log) == [b"ann1", b"ann2"]


def test_a_command_that_was_chosen_twice_is_applied_once() -> None:
    log = make_log()
    _, applied = log.learn(1, (command(1), Noop(), command(1), command(2)))
    assert [(each.result, each.repeated) for each in applied] == [
        (b"0", False),
        (None, False),
        (b"0", True),
        (b"1", False),
    ]
    assert bodies(log) == [b"ann1", b"ann2"]


def test_a_session_refuses_what_is_older_or_leaves_a_gap() -> None:
    sessions = Sessions(Row(), clients_max=1)
    assert sessions.apply(command(1)) == Outcome(b"0")
    assert sessions.apply(command(3)) == Outcome(None)
    assert sessions.apply(command(2)) == Outcome(b"1")
    assert sessions.apply(command(1)) == Outcome(None, repeated=True)
    assert sessions.apply(command(1, client="bob")) == Outcome(None)


def test_a_value_that_is_known_to_be_chosen_replaces_what_was_accepted() -> None:
    log = make_log()
    log.store(Entry(1, LOW, command(7)))
    log.store(Entry(2, HIGH, command(2)))
    records, _ = log.learn(1, (command(1), command(2)))
    assert records == [Stored(Entry(1, CHOSEN, command(1)))]
    assert log.entries[2].ballot == HIGH, "the ballot of what is chosen must not be lowered"


def test_what_is_beyond_a_gap_is_not_learned() -> None:
    log = make_log()
    assert log.learn(3, (command(3),)) == ([], [])
    assert log.decided == 1


def test_an_older_answer_changes_nothing() -> None:
    log = make_log()
    log.learn(1, (command(1), command(2)))
    assert log.learn(1, (command(1),)) == ([], [])


def test_records_bring_the_log_back() -> None:
    records = [
        Installed(founding((1, 2, 3), 4)),
        Promised(LOW),
        Stored(Entry(1, LOW, command(1))),
        Stored(Entry(2, LOW, command(9))),
        Stored(Entry(2, HIGH, command(2))),
        Known(2),
    ]
    log = Log(Sessions(Row()))
    assert log.rebuild(None, records) == HIGH
    assert (log.decided, bodies(log)) == (2, [b"ann1"])
    assert log.undecided(0) == (Entry(2, HIGH, command(2)),)


def test_the_whole_is_as_good_as_its_records_also_with_them_on_top() -> None:
    log = make_log()
    log.store(Entry(1, LOW, command(1)))
    log.decide_through(2, LOW)
    log.take_snapshot(kept_slots=0)
    log.store(Entry(2, HIGH, command(2)))
    whole = decode_whole(encode(log.whole(7, HIGH)))
    assert whole == Whole(7, HIGH, log.snapshot, (Entry(2, HIGH, command(2)),), 2)
    for records in ([], [Stored(Entry(2, HIGH, command(2))), Known(2), Promised(LOW)]):
        other = Log(Sessions(Row()))
        assert other.rebuild(whole, records) == HIGH
        assert (other.start, other.decided, bodies(other)) == (2, 2, [b"ann1"])


def test_a_decided_slot_that_is_missing_is_damage() -> None:
    with pytest.raises(StorageDamaged, match="Slot 1 is missing"):
        Log(Sessions(Row())).rebuild(None, [Installed(founding((1,), 4)), Known(2)])


def test_a_disk_with_nothing_on_it_knows_nobody() -> None:
    log = Log(Sessions(Row()))
    assert log.rebuild(None, []) == ZERO
    assert log.open_memberships()[0].voters == ()


def test_a_snapshot_holds_the_state_the_sessions_and_the_voters() -> None:
    log = make_log()
    log.learn(1, (command(1), Add(4), command(2)))
    log.take_snapshot(kept_slots=1)
    assert (log.start, sorted(log.entries)) == (3, [3])
    assert log.snapshot is not None
    other = make_log()
    assert other.install(log.snapshot)
    assert (other.start, other.decided, bodies(other)) == (4, 4, [b"ann1", b"ann2"])
    assert other.history.at(6).listeners == (4,)
    _, applied = other.learn(4, (command(2),))
    assert applied[0].repeated


def test_an_older_snapshot_is_not_taken() -> None:
    log = make_log()
    log.learn(1, (command(1),))
    assert not log.install(Snapshot(2, 4, (), b""))


def test_a_snapshot_keeps_what_was_accepted_behind_it() -> None:
    log, newer = make_log(), make_log()
    newer.learn(1, (command(1), command(2)))
    newer.take_snapshot(0)
    log.store(Entry(2, LOW, command(8)))
    log.store(Entry(3, LOW, Command("bob", 1, b"x")))
    assert newer.snapshot is not None
    log.install(newer.snapshot)
    assert list(log.entries) == [3]
