"""Simulated worlds in which queries write in stages and die in the middle (D3).

`tidings simulate --world stages --seed S --trace` replays a seed that fails here.
"""

from __future__ import annotations

from tests.simulation.seeds import check_fresh
from tests.simulation.traces import check_not_idle
from tidings.simulator.run import run
from tidings_lab.bugs import MUTANTS

SEEDS = 20
WORLD = "stages"


def test_seeds() -> None:
    check_fresh(WORLD, SEEDS)


def test_a_run_is_not_idle() -> None:
    """Attempts that break off, batches that are repeated, stages that grow old, carried bodies: all in a few seeds."""
    wanted = (
        "breaks off",
        "after OutOfSequence",
        "after Unavailable",
        "is published already",
        "StageDone(request=",
        "published=True",
        "There is no stage",
        "or has grown too old",
        "reads a from",
        "goes on after InvalidRequest",
    )
    check_not_idle(lambda seed: run(seed, trace=True, kind=WORLD).trace, (167, *range(40)), wanted)


def test_enough_bugs_are_planted() -> None:
    """`test_mutants` demands that each is found."""
    assert sum(mutant.world == WORLD for mutant in MUTANTS.values()) >= 5
