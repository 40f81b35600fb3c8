"""The acceptor's rules (P6): promises only rise, and every answer waits for the disk."""

from __future__ import annotations

import pytest

from tests.unit.protocols.multipaxos.parts import command, make_replica, persists, receive, said
from tidings.protocols.multipaxos.acceptor import REACH_WINDOWS
from tidings.protocols.multipaxos.messages import Accept, Accepted, Persist, Prepare, Promise, Refused, Send
from tidings.protocols.multipaxos.records import Known, Promised, Stored
from tidings.protocols.multipaxos.values import Ballot, Entry
from tidings.settings import ReplicaSettings

LOW, MIDDLE, HIGH = Ballot(3, 1), Ballot(5, 3), Ballot(7, 1)


def accept(ballot: Ballot, first_slot: int, *numbers: int, decided: int = 1) -> Accept:
    return Accept(ballot, first_slot, tuple(map(command, numbers)), decided, round=1)


def test_a_promise_is_given_only_after_it_is_on_disk() -> None:
    effects = receive(make_replica(2), 1, Prepare(LOW, 1))
    promise = Send((1,), Promise(LOW, (), 1))
    assert persists(effects) == [Persist((Promised(LOW),), (promise,))]
    assert said([effect for effect in effects if not isinstance(effect, Persist)], Promise) == []


def test_a_lower_ballot_is_refused_and_changes_nothing() -> None:
    replica = make_replica(2, records=[Promised(MIDDLE)])
    for message in (Prepare(LOW, 1), accept(LOW, 1, 1)):
        assert receive(replica, 1, message) == [Send((1,), Refused(MIDDLE, 1))]
    assert replica.log.entries == {}


def test_a_repeated_prepare_is_answered_again_without_another_record() -> None:
    replica = make_replica(2)
    receive(replica, 1, Prepare(LOW, 1))
    assert persists(receive(replica, 1, Prepare(LOW, 1))) == [Persist((), (Send((1,), Promise(LOW, (), 1)),))]


def test_an_accept_is_answered_only_after_it_is_on_disk() -> None:
    effects = receive(make_replica(2), 1, accept(LOW, 1, 1, 2))
    entries = tuple(Stored(Entry(slot, LOW, command(slot))) for slot in (1, 2))
    assert persists(effects) == [Persist((Promised(LOW), *entries), (Send((1,), Accepted(LOW, 1, 2, 1, 1)),))]


def test_accepting_raises_the_promise() -> None:
    replica = make_replica(2)
    receive(replica, 3, accept(MIDDLE, 1, 1))
    assert said(receive(replica, 1, Prepare(LOW, 1)), Refused) == [Refused(MIDDLE, 1)]
    assert said(receive(replica, 1, accept(LOW, 2, 2)), Refused) == [Refused(MIDDLE, 1)]


def test_even_an_empty_accept_raises_the_promise() -> None:
    """A heartbeat confirms leadership: anyone who answers it must not let an older leader decide anything any more."""
    replica = make_replica(2)
    assert persists(receive(replica, 3, accept(MIDDLE, 1)))[0].records == (Promised(MIDDLE),)
    assert said(receive(replica, 1, accept(LOW, 1, 1)), Refused) == [Refused(MIDDLE, 1)]


def test_an_accept_that_comes_again_waits_for_the_first_one_to_be_on_disk() -> None:
    replica = make_replica(2)
    receive(replica, 1, accept(LOW, 1, 1))
    assert receive(replica, 1, accept(LOW, 1, 1))[-1] == Persist((), (Send((1,), Accepted(LOW, 1, 1, 1, 1)),))


def test_promises_and_accepts_survive_a_restart() -> None:
    replica = make_replica(2, records=[Promised(LOW), Stored(Entry(1, MIDDLE, command(1)))])
    assert replica.acceptor.promised == MIDDLE
    assert said(receive(replica, 1, accept(LOW, 1, 2)), Refused)


def test_a_promise_reports_everything_accepted_and_undecided_from_the_slot_on() -> None:
    replica = make_replica(2)
    receive(replica, 1, accept(LOW, 1, 1, 2, 3))
    receive(replica, 3, accept(MIDDLE, 3, 4, decided=1))
    promise = Promise(HIGH, (Entry(2, LOW, command(2)), Entry(3, MIDDLE, command(4))), 1)
    assert said(receive(replica, 1, Prepare(HIGH, 2)), Promise) == [promise]


def test_a_promise_says_what_is_decided_instead_of_reporting_it() -> None:
    replica = make_replica(2)
    receive(replica, 1, accept(LOW, 1, 1, 2))
    receive(replica, 1, accept(LOW, 3, decided=2))
    assert said(receive(replica, 3, Prepare(MIDDLE, 1)), Promise) == [
        Promise(MIDDLE, (Entry(2, LOW, command(2)),), 2),
    ]


def test_a_higher_ballot_replaces_what_was_accepted() -> None:
    replica = make_replica(2)
    receive(replica, 1, accept(LOW, 1, 1))
    receive(replica, 3, accept(MIDDLE, 1, 9))
    assert replica.log.entries[1] == Entry(1, MIDDLE, command(9))


def test_a_node_far_behind_accepts_only_what_is_within_reach() -> None:
    replica = make_replica(2)
    reach = REACH_WINDOWS * replica.log.history.window
    assert said(receive(replica, 1, accept(LOW, reach, 1, 2)), Accepted)[0].count == 1
    assert list(replica.log.entries) == [reach]


def test_what_a_promise_would_have_to_report_is_bounded_in_bytes() -> None:
    """But for the first undecided slot, without which nothing goes on."""
    replica = make_replica(2, settings=ReplicaSettings(undecided_bytes_max=1))
    assert said(receive(replica, 1, accept(LOW, 2, 2, 3)), Accepted)[0].count == 1
    assert said(receive(replica, 1, accept(LOW, 1, 1, 2, 3)), Accepted)[0].count == 2
    receive(replica, 1, accept(LOW, 3, decided=3))
    assert replica.log.undecided_bytes == 0
    assert said(receive(replica, 1, accept(LOW, 3, 3)), Accepted)[0].count == 1


def test_what_an_accept_says_is_decided_leaves_room_for_what_it_brings() -> None:
    """The leader counts on that, and would say it again only with the next beat."""
    replica = make_replica(2, settings=ReplicaSettings(undecided_bytes_max=1))
    receive(replica, 1, accept(LOW, 1, 1))
    effects = receive(replica, 1, accept(LOW, 2, 2, decided=2))
    assert said(effects, Accepted) == [Accepted(LOW, 2, 1, 2, 1)]
    assert persists(effects)[0].records == (Stored(Entry(2, LOW, command(2))), Known(2))


def test_a_decided_slot_cannot_be_overruled() -> None:
    replica = make_replica(2)
    receive(replica, 1, accept(LOW, 1, 1))
    receive(replica, 1, accept(LOW, 2, decided=2))
    assert said(receive(replica, 3, accept(MIDDLE, 1, 1)), Accepted)[0].count == 1
    assert replica.log.entries[1].ballot == LOW
    with pytest.raises(AssertionError, match="slot 1 is"):
        receive(replica, 3, accept(HIGH, 1, 7))


def test_what_is_known_to_be_decided_is_written_behind_its_entries() -> None:
    """A power cut keeps a beginning of the records: never the word that a slot is decided without its value."""
    replica = make_replica(2)
    receive(replica, 1, accept(LOW, 1, 1))
    records = persists(receive(replica, 1, accept(LOW, 2, 2, decided=3)))[0].records
    assert records == (Stored(Entry(2, LOW, command(2))), Known(3))
