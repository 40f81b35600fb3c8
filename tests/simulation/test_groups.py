"""Simulated worlds in which the members of a group crash, stall, leave and come back.

`tidings simulate --world groups --seed S --trace` replays a seed that fails here.
"""

from __future__ import annotations

import pytest

from tests.simulation.seeds import check_fresh
from tests.simulation.traces import check_not_idle, check_same_in_another_process
from tidings.cli import main
from tidings.simulator.run import make_world, run
from tidings.simulator.world.faults import ClientBreak, ClientCut, ClientEnd, ClientPause, ClockJump, FullDisk, NodeEnd
from tidings_lab.bugs import MUTANTS

SEEDS = 25
WORLD = "groups"


def test_seeds() -> None:
    check_fresh(WORLD, SEEDS)


def test_a_seed_is_the_same_run_in_another_process() -> None:
    program = "from tidings.simulator.run import run\nfor seed in range(12): print(run(seed, kind='groups').trace_hash)"
    check_same_in_another_process(program, 12)


def test_members_stall_end_and_overlap() -> None:
    plans = [make_world(seed, WORLD).plan for seed in range(100)]
    faults = [fault for plan in plans for fault in plan.faults]
    assert {type(fault) for fault in faults} == {
        *(NodeEnd, FullDisk, ClockJump, ClientEnd, ClientPause, ClientCut, ClientBreak),
    }
    assert {fault.how for fault in faults if isinstance(fault, ClientEnd)} == {"kill", "close", "overlap"}
    assert {plan.orderly for plan in plans} == {True, False}
    assert any(plan.loss for plan in plans)
    assert any(plan.repetition for plan in plans)
    assert {fault.by_ms > 0 for fault in faults if isinstance(fault, ClockJump)} == {True, False}


def test_a_run_is_not_idle() -> None:
    """Refused acks, claims, messages given back, members that leave: all within a few seeds."""
    wanted = (
        "kept=(Kept(",
        "acked=((",
        "crashes with messages in flight",
        "gives ",
        "GroupNackDone",
        "leaves",
        "attempt 3",
        "goes on after Fenced",
        "stands still",
        "Extend(",
        "held=(Held(",
        "GroupPauseDone",
        "fails at",
        "taken=((",
    )
    check_not_idle(lambda seed: run(seed, trace=True, kind=WORLD).trace, range(30), wanted)


def test_enough_bugs_are_planted() -> None:
    """`test_mutants` demands that each is found."""
    assert sum(mutant.world == WORLD for mutant in MUTANTS.values()) >= 15


def test_the_command_chooses_the_world(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--world", "groups", "--seed", "1", "--trace"]) == 0
    assert "is a member" in capsys.readouterr().out
    assert main(["simulate", "--mutant", "no-grace", "--seeds", "50", "--jobs", "1"]) == 1
    assert "breaks an invariant" in capsys.readouterr().err
    assert main(["simulate", "--mutant", "no-grace", "--world", "topics"]) == 2
    assert "leave out --world" in capsys.readouterr().err
