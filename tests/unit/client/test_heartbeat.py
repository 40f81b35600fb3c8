"""The beats beside the work: where they go in a replica group, while the session itself stands still."""

from __future__ import annotations

from collections import deque

import pytest

from tidings.client.heartbeat import look_after
from tidings.client.route import Route
from tidings.protocols.broker import messages as m
from tidings.wire import codec

A, B, C = (f"tcp://{name}:7400" for name in "abc")


class Wire:
    """A link with answers that have come already."""

    def __init__(self, *answers: object) -> None:
        self.inbox = deque([codec.encode(answer)] for answer in answers)
        self.places: list[str | None] = []

    def send(self, frames: list[bytes | memoryview]) -> None:
        raise AssertionError("Looking after what came sends nothing.")

    def receive(self, timeout_ms: int) -> list[bytes] | None:
        return self.inbox.popleft() if self.inbox else None

    def reopen(self, address: str | None = None) -> None:
        self.places.append(address)

    def close(self) -> None:
        pass


@pytest.mark.parametrize(
    ("known", "answers", "asked", "places"),
    [
        ((A,), [m.BeatDone(1, ())], True, []),
        ((A,), [], True, []),  # A single broker: ZeroMQ connects again by itself.
        ((A, B, C), [m.BeatDone(1, ())], True, []),
        ((A, B, C), [m.NotLeader(1, C, ())], True, [C]),
        ((A, B, C), [m.NotLeader(1, C, ()), m.NotLeader(1, B, ())], True, [C]),
        ((A, B, C), [m.NotLeader(1, "", ())], True, [B]),
        ((A, B, C), [], True, [B]),  # Nobody has answered the last beat.
        ((A, B, C), [], False, []),  # Nothing was asked.
    ],
)
def test_where_the_next_beat_goes(
    known: tuple[str, ...], answers: list[object], asked: bool, places: list[str | None]
) -> None:
    """C7, P6: a member whose handler is busy keeps its lease at the new leader too."""
    wire, route = Wire(*answers), Route(known)
    look_after(wire, route, asked)
    assert wire.places == places
    assert not wire.inbox


def test_beats_follow_a_leader_that_moves_again_and_again() -> None:
    route = Route((A, B, C))
    for leader in (B, C) * 20:  # More often than redirects are followed without an answer in between.
        for answer in (m.NotLeader(1, leader, ()), m.BeatDone(1, ())):
            look_after(Wire(answer), route, True)
        assert route.at == leader
