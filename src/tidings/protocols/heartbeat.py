"""Heartbeat tells which watched peers have gone silent.

Every `beat_ms` it sends a beat to each watched peer. A peer unheard for `silence_ms_max` is suspected once and
dropped. Silence is only a guess: the peer may just be slow.

Only those who watch each other beat each other. So a link that one side has given up goes silent for the other side
too, and a lost goodbye heals by itself after `silence_ms_max`.
"""

from __future__ import annotations

from tidings.errors import LimitReached
from tidings.protocols.stack import (
    Effect,
    Event,
    Message,
    NodeId,
    Received,
    Request,
    Requested,
    Send,
    SetTimer,
    Suspect,
    Timer,
    TimerFired,
    UnexpectedEvent,
)
from tidings.settings import HeartbeatSettings


class Beat(Message, frozen=True):
    """I am alive, and I watch you."""


class Watch(Request, frozen=True):
    """Tell me when this peer goes silent."""

    peer: NodeId


class Unwatch(Request, frozen=True):
    """No longer mind this peer."""

    peer: NodeId


class BeatDue(Timer, frozen=True):
    """Time to beat, and to look who has been silent."""


class Heartbeat:
    """The failure detector of a node."""

    handles = (Beat, Watch, Unwatch, BeatDue)
    listens = ()

    def __init__(self, settings: HeartbeatSettings) -> None:
        self._settings = settings
        self._heard_at_ms: dict[NodeId, int] = {}

    @property
    def watched(self) -> tuple[NodeId, ...]:
        return tuple(self._heard_at_ms)

    def start(self, now_ms: int) -> list[Effect]:
        return [SetTimer(BeatDue(), delay_ms=self._settings.beat_ms)]

    def handle(self, event: Event) -> list[Effect]:
        match event:
            case Received(now_ms, peer, Beat()):
                return self._on_beat(now_ms, peer)
            case TimerFired(now_ms, BeatDue()):
                return self._on_beat_due(now_ms)
            case Requested(now_ms, Watch(peer)):
                return self._on_watch(now_ms, peer)
            case Requested(_, Unwatch(peer)):
                return self._on_unwatch(peer)
        raise UnexpectedEvent(event)

    def _on_beat(self, now_ms: int, peer: NodeId) -> list[Effect]:
        if peer in self._heard_at_ms:  # A beat from an unwatched peer is late, and no news.
            self._heard_at_ms[peer] = now_ms
        return []

    def _on_beat_due(self, now_ms: int) -> list[Effect]:
        earliest_ms = now_ms - self._settings.silence_ms_max
        silent = [peer for peer, at_ms in self._heard_at_ms.items() if at_ms < earliest_ms]
        for peer in silent:
            del self._heard_at_ms[peer]
        effects: list[Effect] = [SetTimer(BeatDue(), delay_ms=self._settings.beat_ms)]
        if self._heard_at_ms:
            effects.append(Send(tuple(self._heard_at_ms), Beat()))
        effects += [Suspect(peer) for peer in silent]
        return effects

    def _on_watch(self, now_ms: int, peer: NodeId) -> list[Effect]:
        if peer in self._heard_at_ms:
            return []
        if len(self._heard_at_ms) == self._settings.watched_max:
            raise LimitReached(
                f"{self._settings.watched_max} peers are watched already: unwatch one, or raise watched_max."
            )
        self._heard_at_ms[peer] = now_ms
        # The first beat goes at once: a peer that began to watch us earlier has waited since then.
        return [Send((peer,), Beat())]

    def _on_unwatch(self, peer: NodeId) -> list[Effect]:
        self._heard_at_ms.pop(peer, None)
        return []
