"""The failure detector: who has been silent for too long (P1, P2)."""

from __future__ import annotations

import pytest

from tidings.errors import InvalidRequest, LimitReached
from tidings.protocols.heartbeat import Beat, BeatDue, Heartbeat, Unwatch, Watch
from tidings.protocols.stack import Effect, Received, Requested, Send, SetTimer, Suspect, TimerFired
from tidings.settings import HeartbeatSettings

SETTINGS = HeartbeatSettings(beat_ms=100, silence_ms_max=300, watched_max=2)


def watching(*peers: str, at_ms: int = 0) -> Heartbeat:
    heartbeat = Heartbeat(SETTINGS)
    assert heartbeat.start(at_ms) == [SetTimer(BeatDue(), 100)]
    for peer in peers:
        assert heartbeat.handle(Requested(at_ms, Watch(peer))) == [Send((peer,), Beat())]
    return heartbeat


def beats(heartbeat: Heartbeat, now_ms: int) -> list[Effect]:
    effects = heartbeat.handle(TimerFired(now_ms, BeatDue()))
    assert effects[0] == SetTimer(BeatDue(), 100)
    return effects[1:]


def test_watched_peers_get_beats() -> None:
    assert beats(watching("a", "b"), 100) == [Send(("a", "b"), Beat())]


def test_nobody_watched_gets_none() -> None:
    assert beats(watching(), 100) == []


def test_a_silent_peer_is_suspected_once() -> None:
    heartbeat = watching("a", "b")
    assert heartbeat.handle(Received(250, "b", Beat())) == []
    assert beats(heartbeat, 300) == [Send(("a", "b"), Beat())]
    assert beats(heartbeat, 400) == [Send(("b",), Beat()), Suspect("a")]
    assert beats(heartbeat, 500) == [Send(("b",), Beat())]
    assert heartbeat.watched == ("b",)


def test_a_beat_of_an_unwatched_peer_is_no_news() -> None:
    heartbeat = watching("a")
    heartbeat.handle(Received(0, "x", Beat()))
    assert heartbeat.watched == ("a",)


def test_an_unwatched_peer_may_be_silent() -> None:
    heartbeat = watching("a")
    assert heartbeat.handle(Requested(0, Unwatch("a"))) == []
    assert heartbeat.handle(Requested(0, Unwatch("a"))) == []
    assert beats(heartbeat, 1_000) == []


def test_watching_twice_does_not_make_a_peer_younger() -> None:
    heartbeat = watching("a")
    assert heartbeat.handle(Requested(350, Watch("a"))) == []
    assert beats(heartbeat, 400) == [Suspect("a")]


def test_the_number_of_watched_peers_is_bounded() -> None:
    with pytest.raises(LimitReached):
        watching("a", "b").handle(Requested(0, Watch("c")))


def test_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(InvalidRequest):
        HeartbeatSettings(beat_ms=500, silence_ms_max=500)
