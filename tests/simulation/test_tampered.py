"""Folders that are tampered with while nobody looks: anyone who opens one says so, or has everything.

`tidings simulate --world tampered --seed S --trace` replays a seed that fails here; its last lines say what was done.
"""

from __future__ import annotations

from tests.simulation.seeds import check_fresh
from tests.simulation.traces import check_not_idle
from tidings_lab.bugs import MUTANTS
from tidings_lab.simulated_tampering.tampering import TAMPERED
from tidings_lab.simulated_tampering.worlds import run_tampered

SEEDS = 10


def test_seeds() -> None:
    check_fresh(TAMPERED, SEEDS)


def test_what_is_done_is_told_in_most_cases_and_felt_in_none() -> None:
    wanted = (
        " has flipped: ",
        " got lost: ",
        "was put back: ",
        " came back: everything is there",
        " were mixed up: ",
        " of its ",
        " is missing.",
        " while the broker served: everything is there",
        " while the broker served: The messages from offset ",
    )
    check_not_idle(lambda seed: run_tampered(seed, trace=True).trace, range(10), wanted)


def test_enough_bugs_are_planted() -> None:
    """`test_mutants` demands that each is found."""
    assert sum(mutant.world == TAMPERED for mutant in MUTANTS.values()) >= 10
