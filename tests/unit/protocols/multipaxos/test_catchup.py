"""How a replica that is behind asks for what it missed (P6); `tests/unit/node` has how it is answered."""

from __future__ import annotations

from tests.unit.protocols.multipaxos.parts import command, make_log
from tidings.protocols.multipaxos.catchup import Catchup
from tidings.protocols.multipaxos.messages import Fetch, Send
from tidings.settings import ReplicaSettings

SETTINGS = ReplicaSettings(fetch_retry_ms=100)


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
    log = make_log()
    log.learn(1, (command(1), command(2), command(3)))
    assert Catchup(log, SETTINGS).ask(0, 2, decided=4) == []


def test_an_answer_leads_to_the_next_question() -> None:
    log = make_log()
    catchup = Catchup(log, SETTINGS)
    catchup.ask(0, 2, decided=5)
    log.learn(1, (command(1), command(2)))
    assert catchup.go_on(1, 2, decided=5) == [Send((2,), Fetch(3))]


def test_pieces_that_come_in_count_as_an_answer() -> None:
    catchup = Catchup(make_log(), SETTINGS)
    catchup.ask(0, 2, decided=5)
    catchup.wait(90)
    assert catchup.ask(100, 2, decided=5) == []
    assert catchup.ask(190, 2, decided=5) == [Send((2,), Fetch(1))]
