"""A ring is founded by several nodes at once, and anyone who comes late joins (P4)."""

from __future__ import annotations

from tidings.protocols.chord import NeighboursChanged, TakePlace, identifier
from tidings.protocols.chord.founding import (
    ATTEND_MS,
    ATTENDING_MS_MAX,
    STEPS_MAX,
    Attend,
    AttendDue,
    Begin,
    Founded,
    Founding,
    founding_links,
)
from tidings.protocols.stack import Ask, CancelTimer, Notified, Notify, Received, Send, SetTimer, TimerFired

RING = tuple(sorted(("a", "b", "c"), key=identifier))


def host(founders: int = 3) -> Founding:
    founding = Founding("a", (), founders, successors_max=8)
    assert founding.start(0) == []
    return founding


def test_links_follow_from_the_names() -> None:
    first, second, third = RING
    assert founding_links(first, reversed(RING), 8) == TakePlace(third, (second, third))
    assert founding_links(second, RING, 1) == TakePlace(first, (third,))


def test_the_host_begins_when_enough_are_there() -> None:
    founding = host()
    assert founding.missing == 2
    assert founding.handle(Received(1, "b", Attend("b", 0))) == []
    assert founding.handle(Received(2, "b", Attend("b", 0))) == []  # The same one again.
    assert founding.missing == 1
    members = ("a", "b", "c")
    assert founding.handle(Received(3, "c", Attend("c", 0))) == [
        Send(("b", "c"), Begin(members)),
        Ask(founding_links("a", members, 8)),
        Notify(Founded(members)),
    ]


def test_who_fell_silent_is_not_a_founder() -> None:
    founding = host()
    founding.handle(Received(0, "b", Attend("b", 0)))
    assert founding.handle(Received(ATTENDING_MS_MAX + 1, "c", Attend("c", 0))) == []
    assert founding.missing == 1


def test_a_node_attends_until_it_is_in_the_ring() -> None:
    founding = Founding("b", ("a",), 2, 8)
    attend = [Send(("a",), Attend("b", 0)), SetTimer(AttendDue(), ATTEND_MS)]
    assert founding.start(0) == attend
    assert founding.handle(TimerFired(500, AttendDue())) == attend
    assert founding.handle(Notified(600, NeighboursChanged("a", ("a",)))) == [CancelTimer(AttendDue())]
    assert founding.handle(TimerFired(1000, AttendDue())) == []
    assert founding.handle(Received(1001, "a", Begin(("a", "b")))) == []  # It has joined by a route already.


def test_a_founding_member_acks() -> None:
    founding = Founding("b", ("a",), 2, 8)
    assert founding.handle(Received(1, "a", Begin(RING))) == [Ask(founding_links("b", RING, 8)), Notify(Founded(RING))]
    stranger = Founding("d", ("a",), 2, 8)
    assert stranger.handle(Received(1, "a", Begin(RING))) == []
    assert stranger.handle(Received(1, "a", Begin(("d", "d")))) == []  # Nobody is a ring alone.


def test_word_of_a_newcomer_is_passed_on_to_the_host() -> None:
    founding = Founding("b", ("a",), 2, 8)
    assert founding.handle(Received(1, "c", Attend("c", 0))) == [Send(("a",), Attend("c", 1))]
    assert founding.handle(Received(1, "c", Attend("c", STEPS_MAX))) == []
    assert founding.handle(Received(1, "a", Attend("a", 0))) == []  # Not back to the one that it is about.


def test_a_ring_that_exists_is_not_founded_again() -> None:
    founding = host(2)
    founding.handle(Notified(1, NeighboursChanged("b", ("b",))))
    assert founding.handle(Received(2, "c", Attend("c", 0))) == []
    assert founding.missing == 0
