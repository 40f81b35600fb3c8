"""One ballot, from the first question to the last proposal (P6)."""

from __future__ import annotations

from tests.unit.protocols.multipaxos.parts import SETTINGS, WINDOW, command, make_log
from tidings.protocols.multipaxos.leader import Leader
from tidings.protocols.multipaxos.log import Log
from tidings.protocols.multipaxos.messages import Accepted, Promise
from tidings.protocols.multipaxos.values import Add, Ballot, Entry, Noop, Promote
from tidings.settings import ReplicaSettings

OLD, OLDER, NEW = Ballot(2, 2), Ballot(1, 3), Ballot(3, 1)


def candidate(log: Log | None = None, settings: ReplicaSettings = SETTINGS) -> Leader:
    return Leader(NEW, log if log is not None else make_log(), settings)


def promise(*entries: Entry, decided: int = 1) -> Promise:
    return Promise(NEW, entries, decided)


def accepted(first_slot: int, count: int = 1) -> Accepted:
    return Accepted(NEW, first_slot, count, 1, 0)


def test_nothing_is_proposed_before_a_majority_has_promised() -> None:
    leader = candidate()
    leader.queue.append(command(1))
    leader.take_promise(1, promise())
    assert leader.next_batch() is None
    leader.take_promise(1, promise())  # The same node again is no majority.
    assert leader.next_batch() is None
    leader.take_promise(2, promise())
    assert leader.next_batch() == (1, (command(1),))


def test_the_value_with_the_highest_ballot_is_proposed_again() -> None:
    leader = candidate()
    leader.queue.append(command(9))
    leader.take_promise(2, promise(Entry(1, OLDER, command(1)), Entry(2, OLD, command(2))))
    leader.take_promise(3, promise(Entry(1, OLD, command(3))))
    assert leader.next_batch() == (1, (command(3), command(2), command(9)))


def test_holes_are_filled_before_anything_new() -> None:
    leader = candidate()
    leader.queue.append(command(9))
    leader.take_promise(2, promise(Entry(3, OLD, command(3))))
    leader.take_promise(3, promise())
    assert leader.next_batch() == (1, (Noop(), Noop(), command(3), command(9)))


def test_slots_that_somebody_knows_to_be_decided_are_not_proposed_in() -> None:
    log = make_log()
    leader = candidate(log)
    leader.queue.append(command(9))
    leader.take_promise(2, promise(decided=3))
    leader.take_promise(3, promise(Entry(1, OLD, command(1))))
    assert leader.next_batch() is None
    log.learn(1, (command(1), command(2)))
    assert leader.next_batch() == (3, (command(9),))


def test_no_more_slots_are_open_than_the_window_has() -> None:
    log = make_log()
    leader = candidate(log)
    for node in (1, 2):
        leader.take_promise(node, promise())
    leader.queue.extend(map(command, range(1, 10)))
    assert leader.next_batch() == (1, tuple(command(number) for number in range(1, WINDOW + 1)))
    assert leader.next_batch() is None
    log.learn(1, (command(1),))
    assert leader.next_batch() == (WINDOW + 1, (command(WINDOW + 1),))


def test_commands_are_gathered_while_enough_accepts_are_under_way() -> None:
    log = make_log()
    leader = candidate(log, ReplicaSettings(batches_open_max=1))
    for node in (1, 2):
        leader.take_promise(node, promise())
    leader.queue.append(command(1))
    assert leader.next_batch() == (1, (command(1),))
    leader.queue.extend((command(2), command(3)))
    assert leader.next_batch() is None
    log.learn(1, (command(1),))
    assert leader.next_batch() == (2, (command(2), command(3)))


def test_a_batch_is_bounded_in_values_and_bytes() -> None:
    for settings in (ReplicaSettings(batch_values_max=2), ReplicaSettings(batch_bytes_max=40)):
        leader = candidate(settings=settings)
        for node in (1, 2):
            leader.take_promise(node, promise())
        leader.queue.extend(map(command, (1, 2, 3)))
        assert leader.next_batch() == (1, (command(1), command(2)))


def test_a_slot_is_chosen_by_a_majority_of_nodes_not_of_answers() -> None:
    log = make_log()
    leader = candidate(log)
    for node in (1, 2):
        leader.take_promise(node, promise())
    leader.queue.append(command(1))
    leader.next_batch()
    leader.take_accepted(1, accepted(1))
    leader.take_accepted(1, accepted(1))
    leader.take_accepted(8, accepted(1))  # Nobody who votes.
    assert not leader.next_is_chosen()
    leader.take_accepted(3, accepted(1))
    assert leader.next_is_chosen()


def test_a_later_slot_may_be_chosen_first_and_waits() -> None:
    leader = candidate()
    for node in (1, 2):
        leader.take_promise(node, promise())
    leader.queue.extend((command(1), command(2)))
    leader.next_batch()
    for node in (1, 2):
        leader.take_accepted(node, accepted(2))
    assert not leader.next_is_chosen()


def test_what_a_node_has_not_accepted_is_said_again() -> None:
    leader = candidate()
    for node in (1, 2):
        leader.take_promise(node, promise())
    leader.queue.extend((command(1), command(2), command(3)))
    leader.next_batch()
    leader.take_accepted(2, accepted(1, 2))
    assert leader.unaccepted_by(2) == (3, (command(3),))
    assert leader.unaccepted_by(3) == (1, (command(1), command(2), command(3)))
    assert leader.unaccepted_by(1)[0] == 1


def test_new_voters_have_to_promise_before_their_slots_are_proposed_in() -> None:
    """A majority of the voters of each slot: 1 and 2 are none of 1, 2, 3 and 4."""
    log = make_log((1, 2, 3))
    log.learn(1, (Add(4), *(Noop(),) * WINDOW, Promote(4)))
    leader = candidate(log)
    for node in (1, 2):
        leader.take_promise(node, promise())
    assert leader.unpromised() == (3, 4)
    leader.queue.append(command(1))
    filled = leader.next_batch()
    assert filled == (7, (Noop(),) * (WINDOW - 1))  # Up to the slot before the change is in force.
    log.learn(7, filled[1])
    assert leader.next_batch() is None
    leader.take_promise(4, promise())
    assert leader.next_batch() == (10, (command(1),))


def test_reads_wait_until_all_that_was_reported_is_decided() -> None:
    log = make_log()
    leader = candidate(log)
    leader.leading = True
    leader.take_promise(2, promise(Entry(1, OLD, command(1))))
    leader.take_promise(3, promise())
    assert not leader.is_up_to_date
    log.learn(1, (command(1),))
    assert leader.is_up_to_date
