"""Any message in any state: whatever comes, in whatever order, a node neither fails nor grows without bound (P4, P5).

Peers are honest but late: what arrives may be old, repeated, or meant for an earlier life.
"""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from tests.unit.protocols.circle import NODES, after
from tidings.errors import NotSubscribed, Overloaded
from tidings.protocols.chord import Chord, ChordSettings, FindRoot, Route, RouteStep, key_of, stable_links
from tidings.protocols.chord import messages as chord
from tidings.protocols.scribe import Publish, Scribe, ScribeSettings, Subscribe, Unsubscribe
from tidings.protocols.scribe import messages as scribe
from tidings.protocols.stack import CancelTimer, PeerDown, Received, Requested, SetTimer, Stack, Timer, TimerFired

TOPICS = ("a", "b", "c")
CHORD = ChordSettings(successors_max=4, pending_max=20)
SCRIBE = ScribeSettings(
    replicas=3,
    topics_max=5,
    children_max=4,
    publishers_max=6,
    log_messages_max=8,
    held_messages_max=8,
    outbox_messages_max=8,
    chunk_messages_max=4,
)


class Noise:
    """Messages that peers may send, drawn at random."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.layer: Scribe | None = None

    def name(self) -> str:
        return self.random.choice(NODES)

    def names(self) -> tuple[str, ...]:
        return tuple(self.random.sample(NODES, self.random.randint(0, 5)))

    def number(self) -> int:
        return self.random.randint(0, 12)

    def epoch(self) -> int:
        """One out of the blue, or one that the node knows well."""
        known = [log.epoch for log in self.layer.roots.logs.values()] if self.layer is not None else []
        return self.random.choice([self.random.randint(0, 3) << 32, *known])

    def entries(self, epoch: int) -> tuple[scribe.Entry, ...]:
        return tuple(scribe.Entry(epoch, self.name(), 1, self.number(), b"x") for _ in range(self.random.randint(0, 3)))

    def payloads(self) -> tuple[bytes, ...]:
        return tuple(b"%d" % self.number() for _ in range(self.random.randint(0, 3)))

    def routed(self) -> bytes:
        topic = self.random.choice(TOPICS)
        return scribe.encode(
            self.random.choice(
                (
                    scribe.Submit(topic, self.name(), 1, self.number(), self.payloads()),
                    scribe.Fetch(topic, self.name(), self.number() - 1),
                )
            )
        )

    def hop(self) -> chord.Hop:
        kind = self.random.choice((chord.ROUTE, chord.STEP, chord.LOOKUP, chord.JOIN))
        topic = self.random.choice(TOPICS)
        payload = self.routed() if kind == chord.ROUTE else scribe.encode(scribe.JoinTree(topic))
        key = self.random.choice((key_of(topic), after(self.name())))
        return chord.Hop(self.number(), kind, key, self.name(), self.number(), self.number(), self.rng(), payload)

    def rng(self) -> bool:
        return self.random.random() < 0.5

    def message(self) -> Any:
        topic, end, epoch = self.random.choice(TOPICS), self.number(), self.epoch()
        return self.random.choice(
            (
                lambda: self.hop(),
                lambda: chord.HopTaken(self.number()),
                lambda: chord.AskLinks(self.number()),
                lambda: chord.TellLinks(self.number(), self.name(), self.names()),
                lambda: chord.Precede(),
                lambda: chord.Place(self.names()),
                lambda: chord.Found(self.number(), self.number()),
                lambda: scribe.Submit(topic, self.name(), 1, self.number(), self.payloads()),
                lambda: scribe.Fetch(topic, self.name(), self.number() - 1),
                lambda: scribe.Grafted(topic, self.name(), end),
                lambda: scribe.Pruned(topic),
                lambda: scribe.Orphaned(topic),
                lambda: scribe.TreeBeat(((topic, self.name(), end),)),
                lambda: scribe.TreeBeatTaken((topic,)),
                lambda: scribe.Spread(topic, self.name(), end, self.payloads()),
                lambda: scribe.Accepted(topic, 0, end),
                lambda: scribe.Refused(topic, 0, "no"),
                lambda: scribe.Fetched(topic, end, self.payloads(), end + 3),
                lambda: scribe.NotRoot(topic),
                lambda: scribe.Replicate(topic, epoch, end, self.epoch(), self.entries(epoch), end, min(end, 2)),
                lambda: scribe.Replicated(topic, epoch, self.rng(), end),
                lambda: scribe.Inherit(topic, epoch),
                lambda: scribe.Legacy(topic, epoch, self.epoch(), end),
                lambda: scribe.Pull(topic, end),
                lambda: scribe.Pulled(topic, self.epoch(), end, self.epoch(), self.entries(epoch), end + 2, ()),
            )
        )()

    def request(self) -> Any:
        topic = self.random.choice(TOPICS)
        return self.random.choice(
            (
                Subscribe(topic, self.number() - 1),
                Unsubscribe(topic),
                Publish(topic, b"mine"),
                FindRoot(key_of(topic)),
                Route(key_of(topic), self.routed()),
                RouteStep(key_of(topic), scribe.encode(scribe.JoinTree(topic))),
            )
        )


def storm(seed: int) -> int:
    """Drives a node through a thousand events; says how many messages its logs came to count."""
    noise = Noise(seed)
    own = noise.name()
    layer = Scribe(own, SCRIBE)
    noise.layer = layer
    ring = Chord(own, CHORD, Random(seed), links=stable_links(NODES, CHORD)[own])
    stack = Stack([layer, ring])
    timers: dict[Timer, None] = {}
    effects = stack.start(0)
    committed = 0
    for now_ms in range(0, 60_000, 60):
        for effect in effects:
            if isinstance(effect, SetTimer):
                timers[effect.timer] = None
            elif isinstance(effect, CancelTimer):
                timers.pop(effect.timer, None)
        draw = noise.random.random()
        if draw < 0.15 and timers:
            timer = noise.random.choice(list(timers))
            del timers[timer]
            effects = stack.handle(TimerFired(now_ms, timer))
        elif draw < 0.2:
            effects = stack.handle(PeerDown(now_ms, noise.name()))
        elif draw < 0.35:
            try:
                effects = stack.handle(Requested(now_ms, noise.request()))
            except (NotSubscribed, Overloaded):
                effects = []
        else:
            effects = stack.handle(Received(now_ms, noise.name(), noise.message()))
        assert len(ring.ring.successors) <= CHORD.successors_max
        assert len(layer.trees.trees) <= SCRIBE.topics_max
        assert all(len(tree.children) <= SCRIBE.children_max for tree in layer.trees.trees.values())
        assert len(timers) < 100
        assert all(log.base <= log.committed <= log.end for log in layer.roots.logs.values())
        assert len(layer.roots.logs) <= SCRIBE.topics_max
        committed = max([committed, *(log.committed for log in layer.roots.logs.values())])
    return committed


@pytest.mark.parametrize("seed", range(40))
def test_whatever_comes_in_whatever_order(seed: int) -> None:
    storm(seed)


def test_not_everything_is_refused() -> None:
    assert any(storm(seed) > 0 for seed in range(5))
