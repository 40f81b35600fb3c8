"""What is accepted, and what is decided (P6: decided notifications in order)."""

from __future__ import annotations

import pytest

from tests.unit.protocols.multipaxos.parts import SETTINGS, command, make_log
from tidings.errors import StorageDamaged
from tidings.node.founding import founding
from tidings.protocols.multipaxos.acceptor import Acceptor
from tidings.protocols.multipaxos.log import Log
from tidings.protocols.multipaxos.membership import Membership, Term
from tidings.protocols.multipaxos.messages import Accept, Decided
from tidings.protocols.multipaxos.records import (
    Installed,
    Known,
    Lost,
    Named,
    Promised,
    Snapshot,
    Stored,
    Whole,
    decode,
    encode,
)
from tidings.protocols.multipaxos.values import CHOSEN, ZERO, Add, Ballot, Command, Entry, size_of

LOW, HIGH = Ballot(1, 1), Ballot(2, 2)


def test_only_what_came_under_the_leaders_ballot_is_taken_for_decided() -> None:
    log = make_log()
    log.store(Entry(1, LOW, command(1)))
    assert log.decide_through(2, HIGH) == []
    log.store(Entry(1, HIGH, command(2)))
    assert log.decide_through(2, HIGH) == [Decided(1, command(2))]


def test_slots_are_decided_in_order_without_a_gap() -> None:
    log = make_log()
    log.store(Entry(2, LOW, command(2)))
    assert log.decide_through(3, LOW) == []
    log.store(Entry(1, LOW, command(1)))
    assert log.decide_through(3, LOW) == [Decided(1, command(1)), Decided(2, command(2))]


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
    log = Log()
    assert log.rebuild(None, records) == HIGH
    assert (log.decided, log.entries[1].value) == (2, command(1))
    assert log.undecided(0) == (Entry(2, HIGH, command(2)),)


def test_the_whole_is_as_good_as_its_records_also_with_them_on_top() -> None:
    snapshot = Snapshot(2, 4, founding((1, 2, 3), 4).terms)
    whole = Whole(HIGH, snapshot, (Entry(2, HIGH, command(2)),))
    for records in (
        [],
        [Stored(Entry(1, LOW, command(1))), Stored(Entry(2, LOW, command(9))), Promised(LOW), Known(2)],
    ):
        log = Log()
        assert log.rebuild(whole, records) == HIGH
        assert (log.start, log.decided, log.undecided(0)) == (2, 2, (Entry(2, HIGH, command(2)),))


@pytest.mark.parametrize(
    "record",
    [Named(3), Promised(LOW), Stored(Entry(7, HIGH, command(1))), Known(9), Installed(founding((1, 2, 3), 4))],
)
def test_every_record_comes_back_from_its_bytes(record: Named | Promised | Stored | Known | Installed) -> None:
    assert decode(encode(record)) == record


def test_a_decided_slot_that_is_missing_is_damage() -> None:
    with pytest.raises(StorageDamaged, match="Slot 1 is missing"):
        Log().rebuild(None, [Installed(founding((1,), 4)), Known(2)])


def test_a_disk_with_nothing_on_it_knows_nobody() -> None:
    log = Log()
    assert log.rebuild(None, []) == ZERO
    assert log.open_memberships()[0].voters == ()


def test_what_is_undecided_is_counted_in_bytes() -> None:
    log = make_log()
    short, long = Command("ann", 1, b"x"), Command("ann", 1, b"x" * 100)
    log.store(Entry(1, LOW, short))
    log.store(Entry(2, LOW, command(2)))
    log.store(Entry(1, HIGH, long))
    assert log.undecided_bytes == size_of(long) + size_of(command(2))
    log.decide_through(2, HIGH)
    assert log.undecided_bytes == size_of(command(2))


def test_what_is_applied_is_forgotten_and_nothing_else() -> None:
    log = make_log()
    log.learn(1, (command(1), command(2)))
    log.store(Entry(3, LOW, command(3)))
    log.forget_below(2)
    assert (log.start, sorted(log.entries), log.decided) == (2, [2, 3], 3)
    log.forget_below(1)
    assert log.start == 2, "it never goes back"


def test_a_snapshot_says_where_it_stands_and_who_votes_there() -> None:
    log = make_log()
    terms = (Term(1, Membership((1, 2, 3), newest=3)), Term(6, Membership((1, 2, 3), (4,), newest=4)))
    assert log.install(Snapshot(4, 4, terms))
    assert (log.start, log.decided) == (4, 4)
    assert [log.history.at(slot).listeners for slot in (5, 6)] == [(), (4,)]
    assert log.learn(4, (Add(5),))[1] == [Decided(4, Add(5))]


def test_an_older_snapshot_is_not_taken() -> None:
    log = make_log()
    log.learn(1, (command(1),))
    assert not log.install(Snapshot(2, 4, ()))
    assert log.history.at(2).voters == (1, 2, 3)


def test_a_snapshot_keeps_what_was_accepted_behind_it() -> None:
    log = make_log()
    log.store(Entry(2, LOW, command(8)))
    log.store(Entry(3, LOW, Command("bob", 1, b"x")))
    log.install(Snapshot(3, 4, founding((1, 2, 3), 4).terms))
    assert list(log.entries) == [3]
    assert log.undecided_bytes == size_of(log.entries[3].value)


def test_what_is_known_to_be_chosen_waits_only_for_what_is_missing_before_it() -> None:
    """Nobody else may know that it is decided, so nobody else may be waited for."""
    whole = Whole(HIGH, Snapshot(1, 4, founding((1, 2, 3), 4).terms), (Entry(2, LOW, command(2)),))
    log = Log()
    log.rebuild(whole, [Known(3)], damaged=True)
    assert (log.decided, log.known) == (1, 3)
    assert log.learn(1, (command(1),))[1] == [Decided(1, command(1)), Decided(2, command(2))]


def test_what_damage_may_have_overruled_is_dropped() -> None:
    records = [
        Installed(founding((1, 2, 3), 4)),
        Stored(Entry(1, LOW, command(1))),
        Known(2),
        Stored(Entry(2, LOW, command(9))),
        Lost(),
        Stored(Entry(3, HIGH, command(3))),
        Known(4),
    ]
    log = Log()
    log.rebuild(None, records, damaged=True)
    assert (log.decided, log.known, sorted(log.entries)) == (2, 4, [1, 3])


def test_an_older_leader_that_proposes_something_else_where_a_value_is_chosen_changes_nothing() -> None:
    log = make_log()
    log.learn(1, (command(1),))
    acceptor = Acceptor(log, SETTINGS)
    acceptor.accept(1, Accept(LOW, 1, (command(9),), 1, 0))
    assert log.entries[1].value == command(1)
    whole = Whole(ZERO, Snapshot(1, 4, founding((1, 2, 3), 4).terms), (Entry(2, CHOSEN, command(2)),), known=3)
    log = Log()
    log.rebuild(whole, [], damaged=True)
    assert not log.store(Entry(2, LOW, command(9)))
    assert log.entries[2].value == command(2)
