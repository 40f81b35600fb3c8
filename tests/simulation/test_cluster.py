"""Simulated worlds in which clients use a broker that is a replica group, while everything goes wrong (P6, P7, P8).

`tidings simulate --world cluster --seed S --trace` replays a seed that fails here.
`test_mutants` demands that each planted bug of this world is found.
"""

from __future__ import annotations

import logging
from random import Random

import pytest

from tests.simulation.seeds import check_fresh
from tests.simulation.traces import check_same_in_another_process
from tidings.cli import main
from tidings.message import TopicInfo
from tidings.protocols.broker import messages
from tidings.protocols.multipaxos.values import Add, Noop
from tidings.simulator.checkers import Violation
from tidings.simulator.client import ClientProcess
from tidings.simulator.cluster.watch import ClusterWatch
from tidings.simulator.cluster.workload import make_cluster_world
from tidings.simulator.cluster.world import ClusterWorld
from tidings.simulator.mutants import MUTANTS
from tidings.simulator.paxos.faults import SHAPES
from tidings.simulator.run import run

SEEDS = 60
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
    assert any(plan.late > 0 for plan in plans)
    for kind in (
        *("ends", "outages", "pauses", "partitions", "node_breaks", "clock_jumps", "losses"),
        *("client_ends", "client_pauses", "client_cuts", "breaks"),
    ):
        assert any(getattr(plan, kind) for plan in plans), kind
    assert {partition.shape for plan in plans for partition in plan.partitions} == set(SHAPES)
    assert {end.how for plan in plans for end in plan.ends} == {"kill", "power", "sync"}
    assert {end.how for plan in plans for end in plan.client_ends} == {"kill", "close", "overlap"}
    patience_ms = max(2 * world.replica_settings.election_ms for world in worlds)
    assert any(pause.for_ms > patience_ms for plan in plans for pause in plan.pauses)
    addresses = [world.draw_address().split(",") for world in worlds]
    assert {len(each) for each in addresses} >= {1, 2, 3}


def test_a_run_is_not_idle() -> None:
    """Leaders come and go under the clients' eyes, nodes fall behind and catch up: all within a few seeds."""
    traces = [run(seed, trace=True, kind=WORLD).trace for seed in range(20)]
    lines = [line for trace in traces for line in trace]
    for wanted in (
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
    ):
        assert any(wanted in line for line in lines), wanted
    leaders = [{line.split()[1] for line in trace if "-> " in line and " PutDone(" in line} for trace in traces]
    several = sum(len(each) > 1 for each in leaders)  # Of 300 seeds, two fifths saw several.
    assert several >= len(leaders) // 5, "several leaders take puts in many runs"


# The checkers of this world, which judge everybody else.


def world_with_asker() -> tuple[ClusterWorld, ClientProcess]:
    world = make_cluster_world(Random(1))
    return world, ClientProcess(world.clients["pia"], 1)


def test_an_answer_that_is_older_than_its_question_is_noticed() -> None:
    world, process = world_with_asker()
    current = world.watch.current
    current.on_answer(process, messages.Topics(1, (topic("a", 3),)))  # From then on three are known.
    current.on_request(process, messages.AskTopics(2))
    current.on_answer(process, messages.Topics(2, (topic("a", 3),)))
    with pytest.raises(Violation, match="hears of 2 in a"):
        current.on_answer(process, messages.Topics(2, (topic("a", 2),)))


def topic(name: str, next_offset: int) -> TopicInfo:
    return TopicInfo(name, 0, next_offset, 0)


def test_two_values_for_a_slot_are_noticed() -> None:
    world, _ = world_with_asker()
    watch, (one, other, *_) = world.watch, world.nodes
    assert isinstance(watch, ClusterWatch)
    for node in (one, other):
        watch.on_node(node)
    assert watch.on_slot(one, 1, Noop())
    assert not watch.on_slot(other, 1, Noop())
    watch.on_slot(one, 2, Noop())
    with pytest.raises(Violation, match="and others Noop"):
        watch.on_slot(other, 2, Add(4))
    with pytest.raises(Violation, match="nobody has applied 3"):
        watch.on_slot(other, 4, Noop())


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
