"""Simulated worlds in which clients use a broker that is a replica group, while everything goes wrong (P6, P7, P8).

`tidings simulate --world cluster --seed S --trace` replays a seed that fails here.
`test_mutants` demands that each planted bug of this world is found.
"""

from __future__ import annotations

import logging
from random import Random

import pytest

from tests.simulation.seeds import check_fresh
from tests.simulation.traces import check_not_idle, check_same_in_another_process
from tidings.cli import main
from tidings.message import TopicInfo
from tidings.protocols.broker import messages
from tidings.protocols.multipaxos.values import Add, Noop
from tidings.simulator.checkers.checker import Violation
from tidings.simulator.checkers.cluster import GroupJudge
from tidings.simulator.clients.client import ClientProcess
from tidings.simulator.run import run
from tidings.simulator.workloads.cluster import make_cluster_world
from tidings.simulator.world.faults import (
    SHAPES,
    ClientBreak,
    ClientCut,
    ClientEnd,
    ClientPause,
    ClockJump,
    DiskLoss,
    NodeBreak,
    NodeEnd,
    NodePause,
    Outage,
    Partition,
)
from tidings.simulator.world.world import World
from tidings_lab.bugs import MUTANTS

SEEDS = 8
WORLD = "cluster"


def test_seeds() -> None:
    check_fresh(WORLD, SEEDS)


def test_a_seed_is_the_same_run_in_another_process() -> None:
    program = "from tidings.simulator.run import run\nfor seed in range(6): print(run(seed, kind='cluster').trace_hash)"
    check_same_in_another_process(program, 6)


def test_every_kind_of_fault_is_drawn() -> None:
    worlds = [make_cluster_world(Random(seed)) for seed in range(100)]
    plans = [world.plan for world in worlds]
    assert {len(world.nodes) for world in worlds} == {3, 5}
    assert {plan.holding for plan in plans} == {True, False}
    assert any(plan.late for plan in plans)
    faults = [fault for plan in plans for fault in plan.faults]
    assert {type(fault) for fault in faults} == {
        *(NodeEnd, Outage, NodePause, Partition, NodeBreak, ClockJump, DiskLoss),
        *(ClientEnd, ClientPause, ClientCut, ClientBreak),
    }
    assert {fault.shape for fault in faults if isinstance(fault, Partition)} == set(SHAPES)
    assert {fault.how for fault in faults if isinstance(fault, NodeEnd)} == {"kill", "power", "sync"}
    assert {fault.how for fault in faults if isinstance(fault, ClientEnd)} == {"kill", "close", "overlap"}
    patience_ms = max(2 * world.engines.replica.election_ms for world in worlds if world.engines.replica is not None)
    assert any(fault.for_ms > patience_ms for fault in faults if isinstance(fault, NodePause))
    addresses = [world.draw_address().split(",") for world in worlds]
    assert {len(each) for each in addresses} >= {1, 2, 3}


def test_a_run_is_not_idle() -> None:
    """Leaders come and go under the clients' eyes, nodes fall behind and catch up: all within a few seeds."""
    leaders = []

    def trace_of(seed: int) -> tuple[str, ...]:
        trace = run(seed, trace=True, kind=WORLD).trace
        leaders.append({line.split()[1] for line in trace if "-> " in line and " PutDone(" in line})
        return trace

    wanted = (
        "at a step of the disk",
        "because a sync failed",
        "all lights go out",
        "with its disk",
        "is number 4",
        "stands still",
        "its clock is set",
        "is cut off",
        "is lost",
        "NotLeader(request=0",
        "leader='tcp://n",
        "leader=''",
        "takes over the files of another",
        "sends again what has an unknown outcome",
        "it is fenced",
        "duplicate=True",
    )
    check_not_idle(trace_of, range(20), wanted, seeds_min=10)
    several = sum(len(each) > 1 for each in leaders)  # Of 300 seeds, two fifths saw several.
    assert several >= len(leaders) // 5, "several leaders take puts in many runs"


# The checkers of this world, which judge everybody else.


def world_with_asker() -> tuple[World, GroupJudge, ClientProcess]:
    world = make_cluster_world(Random(1))
    assert isinstance(world.judge, GroupJudge)
    return world, world.judge, ClientProcess(world.clients["pia"], 1)


def test_an_answer_that_is_older_than_its_question_is_noticed() -> None:
    _, judge, process = world_with_asker()
    current = judge.current
    current.on_answer(process, messages.Topics(1, (topic("a", 3),)))  # From then on three are known.
    current.on_request(process, messages.AskTopics(2))
    current.on_answer(process, messages.Topics(2, (topic("a", 3),)))
    with pytest.raises(Violation, match="hears of 2 in a"):
        current.on_answer(process, messages.Topics(2, (topic("a", 2),)))


def topic(name: str, next_offset: int) -> TopicInfo:
    return TopicInfo(name, 0, next_offset, 0)


def test_two_values_for_a_slot_are_noticed() -> None:
    world, judge, _ = world_with_asker()
    one, other, *_ = world.nodes
    for node in (one, other):
        judge.on_life(node)
    assert judge.on_slot(one, 1, Noop())
    assert not judge.on_slot(other, 1, Noop())
    judge.on_slot(one, 2, Noop())
    with pytest.raises(Violation, match="and others Noop"):
        judge.on_slot(other, 2, Add(4))
    with pytest.raises(Violation, match="nobody has applied 3"):
        judge.on_slot(other, 4, Noop())


def test_bugs_are_planted() -> None:
    assert len([name for name, mutant in MUTANTS.items() if mutant.world == WORLD]) >= 6


def test_the_command_chooses_the_world(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--world", "cluster", "--seed", "1", "--trace"]) == 0
    output = capsys.readouterr().out
    assert "connects to n" in output
    assert "lives of the nodes" in output
    assert main(["simulate", "--mutant", "own-clock", "--seeds", "5", "--jobs", "1"]) == 1
    assert "every member comes to the same state" in capsys.readouterr().err


def test_simulations_are_quiet_and_nobody_else_is(caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger("tidings.node")
    assert main(["simulate", "--world", "cluster", "--seed", "4"]) == 0
    assert not caplog.records
    log.warning("A broker of this process goes on to say what happens.")
    assert caplog.records
