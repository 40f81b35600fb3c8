"""Every kind of simulation by its name, and one way to run a seed in any of them.

`topics`, `groups`, `stages` and `tampered` have a broker, `paxos` has replicas, `cluster` a broker that is such
replicas and `ring-cluster` a ring of them (`simulator/run.py`). `overlay-NAME` is the scenario NAME of
`simulator/overlay`, `ring-churn` a Chord ring whose members come and go, `ring-multicast` Scribe over Chord.
Whatever the world, a seed decides everything that happens in it, and its `Result` says which invariant broke, if any.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from tidings.simulator.bugs.all import MUTANTS as BROKER_MUTANTS
from tidings.simulator.bugs.planting import Mutant
from tidings.simulator.overlay import scenario
from tidings.simulator.overlay.mutants import MUTANTS as OVERLAY_MUTANTS
from tidings.simulator.overlay.run import Run
from tidings.simulator.overlay.world import World, without_collection
from tidings.simulator.ring.churn import Churn, draw_plan
from tidings.simulator.ring.multicast import Multicast, draw_multicast
from tidings.simulator.ring.mutants import RING_MUTANTS
from tidings.simulator.run import WORLDS as BROKER_WORLDS
from tidings.simulator.run import Broken, Result, outcome
from tidings.simulator.run import run as run_with_broker

OVERLAY, RING = "overlay-", "ring-"


def _overlay(name: str) -> Callable[[int, bool], tuple[World, Callable[[], Broken]]]:
    def make(seed: int, trace: bool) -> tuple[World, Callable[[], Broken]]:
        under_way = Run(scenario.load(name), seed, trace)

        def happen() -> Broken:
            with without_collection():
                under_way.run()
            return None, ""

        return under_way.world, happen

    return make


def _churn(seed: int, trace: bool) -> tuple[World, Callable[[], Broken]]:
    churn = Churn(draw_plan(seed), trace=trace)

    def happen() -> Broken:
        result = churn.run()
        return result.rule, result.text

    return churn.world, happen


def _multicast(seed: int, trace: bool) -> tuple[World, Callable[[], Broken]]:
    multicast = Multicast(draw_multicast(seed), trace)

    def happen() -> Broken:
        row = multicast.run()
        return row.rule, row.text

    return multicast.world, happen


WITHOUT_BROKER = {
    **{OVERLAY + path.stem: _overlay(path.stem) for path in sorted(scenario.FOLDER.glob("*.toml"))},
    RING + "churn": _churn,
    RING + "multicast": _multicast,
}

WORLDS: tuple[str, ...] = (*BROKER_WORLDS, *WITHOUT_BROKER)

ALL = "all"
"""Not a world, but those with a broker or replicas by turns."""
SHARES = {"topics": 4, "groups": 3, "stages": 4, "tampered": 1, "paxos": 3, "cluster": 2, "ring-cluster": 1}
"""Of so many seeds together, how many each world gets: about as many as fit into the same time."""
assert sorted(SHARES) == sorted(BROKER_WORLDS)


def _take_turns() -> tuple[str, ...]:
    """The worlds by their shares, mixed well, so that every stretch of a long run has its part of each."""
    size = sum(SHARES.values())
    turns = [(place / share, world) for world, share in SHARES.items() for place in range(1, share + 1)]
    assert len(turns) == size
    return tuple(world for _, world in sorted(turns))


TURNS = _take_turns()


def world_at(place: int, kind: str) -> str:
    """The world of the seed that has this place in a run, counted from 0.

    >>> world_at(7, "groups")
    'groups'
    >>> sorted({world_at(place, ALL) for place in range(18)}) == sorted(SHARES)
    True
    """
    return TURNS[place % len(TURNS)] if kind == ALL else kind


MUTANTS: dict[str, Mutant] = {
    **BROKER_MUTANTS,
    **{
        bug.name: Mutant(bug.name, bug.what, bug.rules, bug.plant, OVERLAY + bug.scenario)
        for bug in OVERLAY_MUTANTS.values()
    },
    **{bug.name: Mutant(bug.name, bug.what, bug.rules, bug.plant, RING + bug.world) for bug in RING_MUTANTS.values()},
}
"""The planted bugs of all worlds, each with the world that finds it."""
assert len(MUTANTS) == len(BROKER_MUTANTS) + len(OVERLAY_MUTANTS) + len(RING_MUTANTS), "a bug's name is taken twice"


def run_seed(seed: int, trace: bool = False, mutant: str | None = None, world: str = "topics") -> Result:
    """Runs a seed to its end, or to the first broken invariant; with a planted bug, in its world, if one is named.

    >>> run_seed(1, world="ring-churn").invariant is None
    True
    >>> run_seed(0, mutant="join-with-one-successor").invariant
    'every member has a live successor'
    """
    if mutant is not None:
        with MUTANTS[mutant].plant():
            return run_seed(seed, trace, None, MUTANTS[mutant].world)
    if world in BROKER_WORLDS:
        return run_with_broker(seed, trace, kind=world)
    place, happen = WITHOUT_BROKER[world](seed, trace)
    invariant, text = outcome(happen)
    result = Result(seed, "", place.now_ms, place.delivered, 0, invariant, text, (), world)
    if place.trace is None:
        return result
    if invariant is not None:
        place.trace.add(place.now_us, "world", f"BROKEN {invariant}: {text}")
    return msgspec.structs.replace(result, trace_hash=place.trace.hash, trace=tuple(place.trace.lines))


def replay_command(seed: int, mutant: str | None, world: str) -> str:
    """The command that shows a seed again, line by line.

    >>> replay_command(7, None, "groups")
    'tidings simulate --seed 7 --world groups --trace'
    """
    where = f" --mutant {mutant}" if mutant is not None else "" if world == "topics" else f" --world {world}"
    return f"tidings simulate --seed {seed}{where} --trace"
