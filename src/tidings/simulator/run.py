"""Runs one seed: draws the world, lets it happen, and says what came of it."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from random import Random
from typing import Protocol

import msgspec

from tidings.simulator.checkers.checker import Violation
from tidings.simulator.checkers.rules import ASSERTIONS
from tidings.simulator.workloads.cluster import make_cluster_world
from tidings.simulator.workloads.groups import make_group_world
from tidings.simulator.workloads.ring_cluster import make_ring_world
from tidings.simulator.workloads.stages import make_stage_world
from tidings.simulator.workloads.topics import Ending, make_topic_world
from tidings.simulator.world.trace import Trace
from tidings.simulator.world.world import World

CALM_MS_MIN = 3_000
CALM_MS_MAX = 12_000

WORLDS = ("topics", "groups", "stages", "cluster", "ring-cluster")
"""Publishers and subscribers, the members of a group, queries that write in stages, clients of replicas that agree, or
of a ring of such replicas.
"""


class Result(msgspec.Struct, frozen=True):
    """What one seed led to. `invariant` is None when every rule held."""

    seed: int
    trace_hash: str
    virtual_ms: int
    events: int
    lives: int
    invariant: str | None = None
    text: str = ""
    trace: tuple[str, ...] = ()
    world: str = "topics"


class AnyWorld(Protocol):
    """What a run needs of a world, with a broker or without."""

    @property
    def trace(self) -> Trace: ...

    @property
    def now_ms(self) -> int: ...

    @property
    def events(self) -> int: ...

    @property
    def lives(self) -> int: ...

    def note(self, process: str, what: str) -> None: ...

    def run(self) -> None: ...


Broken = tuple[str | None, str]
"""The invariant that broke, if any, and what was seen."""


def outcome(happen: Callable[[], Broken], lines: list[str] | None = None) -> Broken:
    """What comes of a run; whatever the code under test raises is a finding, and `lines` say where that was."""
    try:
        return happen()
    except Violation as violation:
        return violation.invariant, violation.text
    except Exception as error:  # noqa: BLE001 - whatever it is.
        if lines is not None:
            lines += traceback.format_exc().splitlines()
        where = traceback.extract_tb(error.__traceback__)[-1]
        file = where.filename.rsplit("/", 1)[-1]
        return ASSERTIONS, f"{type(error).__name__}: {error} in {where.name}, line {where.lineno} of {file}"


def make_world(seed: int, kind: str = "topics", ending: Ending | None = None) -> World:
    """The world of a seed, before anything has happened in it; one of a single broker may have an ending."""
    assert kind in WORLDS, f"{kind!r} is no world with a broker"
    random = Random(seed)
    if kind == "cluster":
        return make_cluster_world(random)
    if kind == "ring-cluster":
        return make_ring_world(random)
    if kind == "groups":
        return make_group_world(random, random.randint(CALM_MS_MIN, CALM_MS_MAX), ending)
    if kind == "stages":
        return make_stage_world(random, random.randint(CALM_MS_MIN, CALM_MS_MAX), ending)
    return make_topic_world(random, random.randint(3, 5), random.randint(CALM_MS_MIN, CALM_MS_MAX), ending)


def run(seed: int, trace: bool = False, kind: str = "topics") -> Result:
    """Runs a seed to its end, or to the first broken invariant."""
    return live(make_world(seed, kind), seed, trace, kind)


def live(world: AnyWorld, seed: int, trace: bool, kind: str) -> Result:
    """Lets everything happen in a world, and says what came of it."""

    def happen() -> Broken:
        world.run()
        return None, ""

    invariant, text = outcome(happen, world.trace.lines if trace else None)
    if invariant is not None:
        world.note("world", f"BROKEN {invariant}: {text}")
    return Result(
        seed,
        world.trace.hash,
        world.now_ms,
        world.events,
        world.lives,
        invariant,
        text,
        tuple(world.trace.lines) if trace else (),
        kind,
    )
