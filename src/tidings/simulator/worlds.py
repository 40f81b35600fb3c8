"""Every kind of simulation by its name, and one way to run a seed in any of them.

`topics`, `groups` and `stages` have a broker, `cluster` a broker that is a group of replicas and `ring-cluster` a ring
of them (`simulator/run.py`). Others are offered by packages, in an entry point of the group `tidings.worlds`: a table
of functions that run a seed. Those in which no code of users can run come with tidings-lab: in `tampered` things happen
to the folder of a broker that has ended; `paxos` has replicas alone, `overlay-NAME`, `ring-churn` and `ring-multicast`
the bare overlay.
Whatever the world, a seed decides everything that happens in it, and its `Result` says which invariant broke, if any.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.metadata import entry_points

from tidings.errors import InvalidRequest
from tidings.simulator.planting import find
from tidings.simulator.run import WORLDS as BROKER_WORLDS
from tidings.simulator.run import Result
from tidings.simulator.run import run as run_with_broker

GROUP = "tidings.worlds"

RunSeed = Callable[[int, bool], Result]
"""Runs a seed, with a trace if that is wanted."""

IN_THE_LAB = ("tampered", "paxos", "overlay-", "ring-churn", "ring-multicast")
"""How the names of the worlds begin that come with tidings-lab."""


@cache
def offered() -> dict[str, RunSeed]:
    """The worlds that installed packages offer, by name."""
    return {name: run for table in entry_points(group=GROUP) for name, run in table.load().items()}


def worlds() -> tuple[str, ...]:
    """The names of all worlds that there are here."""
    return (*BROKER_WORLDS, *offered())


ALL = "all"
"""Not a world, but those with a broker or replicas by turns."""
SHARES = {"topics": 4, "groups": 3, "stages": 4, "tampered": 1, "paxos": 3, "cluster": 2, "ring-cluster": 1}
"""Of so many seeds together, how many each world gets: about as many as fit into the same time."""
assert set(BROKER_WORLDS) <= set(SHARES)


def in_turn() -> tuple[str, ...]:
    """The worlds of `all` that there are here: `tampered` and `paxos` come with tidings-lab."""
    return tuple(world for world in SHARES if world in worlds())


@cache
def turns() -> tuple[str, ...]:
    """The worlds by their shares, mixed well, so that every stretch of a long run has its part of each."""
    shares = [(place / SHARES[world], world) for world in in_turn() for place in range(1, SHARES[world] + 1)]
    return tuple(world for _, world in sorted(shares))


def world_at(place: int, kind: str) -> str:
    """The world of the seed that has this place in a run, counted from 0.

    >>> world_at(7, "groups")
    'groups'
    >>> sorted({world_at(place, ALL) for place in range(18)}) == sorted(in_turn())
    True
    """
    return turns()[place % len(turns())] if kind == ALL else kind


def run_seed(seed: int, trace: bool = False, mutant: str | None = None, world: str = "topics") -> Result:
    """Runs a seed to its end, or to the first broken invariant; with a planted bug, in its world, if one is named.

    >>> run_seed(1, world="cluster").invariant is None
    True
    """
    if mutant is not None:
        bug = find(mutant)
        with bug.plant():
            return run_seed(seed, trace, None, bug.world)
    if world in BROKER_WORLDS:
        return run_with_broker(seed, trace, kind=world)
    if world not in offered():
        those = "tampered, paxos, overlay-NAME, ring-churn and ring-multicast"
        raise InvalidRequest(f"There is no world {world!r}: {those} come with tidings-lab.")
    return offered()[world](seed, trace)


def replay_command(seed: int, mutant: str | None, world: str) -> str:
    """The command that shows a seed again, line by line.

    >>> replay_command(7, None, "groups")
    'tidings simulate --seed 7 --world groups --trace'
    """
    where = f" --mutant {mutant}" if mutant is not None else "" if world == "topics" else f" --world {world}"
    return f"tidings simulate --seed {seed}{where} --trace"
