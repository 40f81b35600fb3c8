"""Simulated worlds in which everything goes wrong, and every invariant has to hold.

`tidings simulate --seed S --trace` replays a seed that fails here.
"""

from __future__ import annotations

from tests.simulation.seeds import check_fresh
from tests.simulation.traces import check_not_idle, check_same_in_another_process
from tidings.simulator.many import CHUNK, run_many
from tidings.simulator.run import make_world, run
from tidings.simulator.world.faults import ClientBreak, ClientCut, ClientEnd, ClientPause, ClockJump, FullDisk, NodeEnd
from tidings.simulator.worlds import SHARES

SEEDS = 50


def test_seeds() -> None:
    check_fresh("topics", SEEDS)


def test_a_seed_is_the_same_run_again() -> None:
    for seed in range(5):
        assert run(seed).trace_hash == run(seed).trace_hash


def test_a_seed_is_the_same_run_in_another_process() -> None:
    program = "from tidings.simulator.run import run\nfor seed in range(12): print(run(seed).trace_hash)"
    check_same_in_another_process(program, 12)


def test_results_do_not_depend_on_the_number_of_processes() -> None:
    for kind, count in (("topics", CHUNK + 2), ("all", sum(SHARES.values()))):
        assert list(run_many(0, count, jobs=1, kind=kind)) == list(run_many(0, count, jobs=2, kind=kind))


def test_every_kind_of_fault_is_drawn() -> None:
    plans = [make_world(seed).plan for seed in range(100)]
    assert {plan.orderly for plan in plans} == {True, False}
    for rate in ("loss", "repetition", "late"):
        assert any(getattr(plan, rate) > 0 for plan in plans), rate
    faults = [fault for plan in plans for fault in plan.faults]
    assert {type(fault) for fault in faults} == {
        *(NodeEnd, FullDisk, ClockJump, ClientEnd, ClientPause, ClientCut, ClientBreak),
    }
    assert {fault.how for fault in faults if isinstance(fault, NodeEnd)} == {"kill", "power", "sync"}
    assert {fault.how for fault in faults if isinstance(fault, ClientEnd)} == {"kill", "close", "overlap"}


def test_a_run_is_not_idle() -> None:
    """Restarts, new segments, redelivery, refusals and retention all happen within a few seeds."""
    wanted = (
        "a new segment",
        "ends at a step of the disk",
        "because a sync failed",
        "refuses",
        "again of",
        "sends again what has an unknown outcome",
        "it is fenced",
        "Commit(",
        "first_offset=",
        "stands still",
        "breaks",
    )
    check_not_idle(lambda seed: run(seed, trace=True).trace, range(30), wanted)
