"""How a replica that is behind gets what it missed (P6: a lagging replica catches up)."""

from __future__ import annotations

from tests.unit.protocols.multipaxos.parts import command, make_log
from tidings.protocols.multipaxos.catchup import Catchup
from tidings.protocols.multipaxos.log import Log
from tidings.protocols.multipaxos.messages import Chosen, Fetch, FetchPart, Part, Send
from tidings.protocols.multipaxos.records import decode_snapshot
from tidings.settings import ReplicaSettings

SETTINGS = ReplicaSettings(batch_values_max=3, part_bytes_max=16, fetch_retry_ms=100)


def filled(count: int, kept_slots: int | None = None) -> Log:
    log = make_log()
    log.learn(1, tuple(command(number) for number in range(1, count + 1)))
    if kept_slots is not None:
        log.take_snapshot(kept_slots)
    return log


def answers(sends: list[Send]) -> list[object]:
    return [send.message for send in sends]


def test_who_is_behind_asks_once_until_the_answer_is_overdue() -> None:
    catchup = Catchup(make_log(), SETTINGS)
    assert catchup.ask(0, 2, decided=5) == [Send((2,), Fetch(1))]
    assert catchup.ask(99, 3, decided=5) == []
    assert catchup.ask(100, 3, decided=5) == [Send((3,), Fetch(1))]


def test_a_clock_that_was_set_back_does_not_silence_it() -> None:
    catchup = Catchup(make_log(), SETTINGS)
    catchup.ask(1_000_000, 2, decided=5)
    assert catchup.ask(5, 2, decided=5)


def test_who_is_not_behind_does_not_ask() -> None:
    assert Catchup(filled(3), SETTINGS).ask(0, 2, decided=4) == []


def test_an_answer_leads_to_the_next_question() -> None:
    log = make_log()
    catchup = Catchup(log, SETTINGS)
    catchup.ask(0, 2, decided=5)
    log.learn(1, (command(1), command(2)))
    assert catchup.go_on(1, 2, decided=5) == [Send((2,), Fetch(3))]


def test_values_are_served_a_batch_at_a_time() -> None:
    catchup = Catchup(filled(5), SETTINGS)
    assert answers(catchup.serve(3, Fetch(2))) == [Chosen(2, (command(2), command(3), command(4)), 6)]
    assert catchup.serve(3, Fetch(6)) == []


def test_values_are_bounded_in_bytes_too() -> None:
    catchup = Catchup(filled(5), ReplicaSettings(batch_bytes_max=80))
    assert answers(catchup.serve(3, Fetch(1))) == [Chosen(1, (command(1), command(2)), 6)]


def test_undecided_values_are_not_served() -> None:
    log = filled(2)
    assert answers(Catchup(log, SETTINGS).serve(3, Fetch(2))) == [Chosen(2, (command(2),), 3)]


def test_what_is_gone_is_served_as_a_snapshot_part_by_part() -> None:
    log = filled(5, kept_slots=1)
    source, reader = Catchup(log, SETTINGS), Catchup(make_log(), SETTINGS)
    (part,) = answers(source.serve(3, Fetch(1)))
    parts = 1
    while True:
        assert isinstance(part, Part)
        assert len(part.data) <= SETTINGS.part_bytes_max
        assert reader.take_part(part)
        snapshot = reader.take_whole()
        if snapshot is not None:
            break
        (question,) = answers(reader.go_on(0, 2, part.next_slot))
        assert isinstance(question, FetchPart)
        (part,) = answers(source.serve_part(3, question))
        parts += 1
    assert parts > 2
    assert snapshot == log.snapshot


def test_a_part_that_comes_twice_or_too_early_changes_nothing() -> None:
    log = filled(5, kept_slots=0)
    source, reader = Catchup(log, SETTINGS), Catchup(make_log(), SETTINGS)
    (first,) = answers(source.serve(3, Fetch(1)))
    (third,) = answers(source.serve_part(3, FetchPart(6, 32, 1)))
    assert isinstance(first, Part)
    assert isinstance(third, Part)
    assert [reader.take_part(part) for part in (first, first, third)] == [True, False, False]
    assert answers(reader.ask(0, 2, decided=6)) == [FetchPart(6, 16, 1)]


def test_a_newer_snapshot_is_begun_anew() -> None:
    log = filled(5, kept_slots=0)
    source = Catchup(log, SETTINGS)
    log.learn(6, (command(6),))
    log.take_snapshot(0)
    (part,) = answers(source.serve_part(3, FetchPart(6, 32, 1)))
    assert isinstance(part, Part)
    assert (part.next_slot, part.position) == (7, 0)


def test_who_has_no_such_snapshot_sends_the_values_instead() -> None:
    """Its own snapshot is older than what the asker knows already: sending that would lead nowhere."""
    log = filled(2, kept_slots=0)
    log.learn(3, (command(3), command(4)))
    assert answers(Catchup(log, SETTINGS).serve_part(3, FetchPart(9, 16, 4))) == [Chosen(4, (command(4),), 5)]


def test_parts_that_do_not_fit_together_are_thrown_away() -> None:
    reader = Catchup(make_log(), SETTINGS)
    assert reader.take_part(Part(9, 0, 4, b"abcd"))
    assert reader.take_whole() is None
    assert answers(reader.ask(0, 2, decided=9)) == [Fetch(1)]


def test_a_snapshot_beyond_the_bound_is_not_gathered() -> None:
    reader = Catchup(make_log(), ReplicaSettings(snapshot_bytes_max=10))
    assert not reader.take_part(Part(9, 0, 11, b"abcd"))
    assert answers(reader.ask(0, 2, decided=9)) == [Fetch(1)]


def test_a_snapshot_comes_back_from_its_bytes() -> None:
    log = filled(5, kept_slots=0)
    assert log.snapshot is not None
    (part,) = answers(Catchup(log, ReplicaSettings()).serve(3, Fetch(1)))
    assert isinstance(part, Part)
    assert decode_snapshot(part.data) == log.snapshot
