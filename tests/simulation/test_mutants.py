"""Planted bugs: the checkers have to find each of them, and by the invariant that it breaks."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest

from tests.records import FOUND_BY, first_seed_of
from tidings.simulator.checkers import checker as checkers
from tidings.simulator.checkers import cluster, commits, delivery, groups, recovery, ring_cluster, rules, stages
from tidings.simulator.endings import flips
from tidings.simulator.run import Result, run
from tidings.simulator.worlds import SHARES, run_seed
from tidings_lab.bugs import MUTANTS as ALL
from tidings_lab.simulated_replicas import checkers as paxos_checkers
from tidings_lab.simulated_tampering import served, tampering

MUTANTS = {name: mutant for name, mutant in ALL.items() if mutant.world in SHARES}
"""Overlays and rings have tests of their own."""
SEEDS_MAX = {"paxos": 2_000}
SEEDS_MAX_ELSEWHERE = 500


def seeds(name: str) -> list[int]:
    """All within which the bug has to be found: from the one that found it last, and then those before."""
    first_seed = first_seed_of(name)
    end = SEEDS_MAX.get(MUTANTS[name].world, SEEDS_MAX_ELSEWHERE)
    return [first_seed, *range(first_seed + 1, end), *range(min(first_seed, end))]


@cache
def without_bugs(world: str, seed: int) -> Result:
    """Several bugs are found by the same seed."""
    return run_seed(seed, world=world)


@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_is_caught(name: str, record_property: Callable[[str, object], None]) -> None:
    for seed in seeds(name):
        result = run_seed(seed, mutant=name)
        if result.invariant is not None:
            break
    assert result.invariant in MUTANTS[name].rules, f"seed {result.seed}: {result.invariant}: {result.text}"
    assert without_bugs(MUTANTS[name].world, result.seed).invariant is None, (
        "the seed fails without the planted bug too"
    )
    if result.seed != first_seed_of(name):
        record_property(FOUND_BY, f"{name} {result.seed}")


def test_there_are_enough() -> None:
    assert len(MUTANTS) >= 10


def test_a_planted_bug_is_taken_out_again() -> None:
    before = run(3)
    for name in MUTANTS:
        with MUTANTS[name].plant():
            pass
    assert run(3) == before


def test_the_rules_are_those_of_the_checkers() -> None:
    kinds = (checkers.Checker, paxos_checkers.PaxosChecker)
    known = {
        checker.RULE
        for module in (
            *(checkers, delivery, groups, recovery, stages, cluster, commits, ring_cluster),
            paxos_checkers,
        )
        for checker in vars(module).values()
        if isinstance(checker, type) and issubclass(checker, kinds) and checker.RULE
    }
    assert {rule for mutant in MUTANTS.values() for rule in mutant.rules} - {
        rules.ASSERTIONS,
        rules.PROGRESS,
        flips.RULE,
        served.RULE,
        tampering.RULE,
    } <= known
