"""Seeds of the simulator as a sweep: one row for each, and for those that broke the command that replays them."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from tidings.simulator.worlds import replay_command, run_seed
from tidings_lab.experiments.sweep import Grid, Sweep, Tables, Value


class SimulationRow(msgspec.Struct, frozen=True):
    """What one seed led to. `invariant` is None when every rule held, and `replay` then too."""

    seed: int
    world: str
    mutant: str | None
    trace_hash: str
    """Two runs with the same hash were the same run; only worlds with a broker have it without a trace."""
    virtual_ms: int
    events: int
    lives: int
    invariant: str | None
    text: str
    replay: str | None


def simulate(seed: int, world: str, mutant: str | None) -> Iterator[SimulationRow]:
    """One seed.

    >>> [row] = simulate(0, "ring-churn", "join-with-one-successor")
    >>> row.replay
    'tidings simulate --seed 0 --mutant join-with-one-successor --trace'
    """
    result = run_seed(seed, mutant=mutant, world=world)
    yield SimulationRow(
        seed=seed,
        world=result.world,
        mutant=mutant,
        trace_hash=result.trace_hash,
        virtual_ms=result.virtual_ms,
        events=result.events,
        lives=result.lives,
        invariant=result.invariant,
        text=result.text,
        replay=replay_command(seed, mutant, world) if result.invariant is not None else None,
    )


def seeds_sweep(first_seed: int, count: int, world: str = "topics", mutant: str | None = None) -> Sweep:
    """The sweep of so many seeds in one world, with a planted bug if one is named."""
    name = f"{mutant or world}-{first_seed}-{count}"
    points = Grid(seed=range(first_seed, first_seed + count), world=[world], mutant=[mutant])
    return Sweep(name, simulate, {"runs": SimulationRow}, points)


class Summary(msgspec.Struct, frozen=True):
    """What came of all seeds."""

    seeds: int
    events: int
    broken: int
    raised: int
    """Seeds of which there is no result, because running them raised."""
    rules: list[dict[str, Value]]
    """How often each invariant broke, and the first seed that broke it."""
    failures: list[dict[str, Value]]
    """The first of those that broke or raised."""


def sum_up(tables: Tables, failures_max: int) -> Summary:
    """Asks the tables of a sweep of seeds."""
    groups = tables.query(
        "select invariant, count(*) as seeds, min(seed) as first_seed, sum(events) as events from {runs} "
        "group by invariant order by seeds desc, invariant"
    )
    [raised] = tables.query("select count(*) as seeds from {errors}")
    rules = [group for group in groups if group["invariant"] is not None]
    failures: list[dict[str, Value]] = []
    if rules:
        failures += tables.query(
            "select seed, invariant, text, replay from {runs} "
            f"where invariant is not null order by seed limit {failures_max:d}"
        )
    if raised["seeds"]:
        failures += tables.query(f"select parameters, error from {{errors}} order by point limit {failures_max:d}")
    return Summary(
        seeds=_total(groups, "seeds"),
        events=_total(groups, "events"),
        broken=_total(rules, "seeds"),
        raised=_total([raised], "seeds"),
        rules=rules,
        failures=failures,
    )


def _total(rows: list[dict[str, Value]], column: str) -> int:
    return sum(value for row in rows if isinstance(value := row[column], int))
