"""Simulated worlds in which three or five replicas agree while everything goes wrong (P6, P7).

`tidings simulate --world paxos --seed S --trace` replays a seed that fails here.
"""

from __future__ import annotations

from random import Random

import msgspec
import pytest

from tests.simulation.seeds import check_fresh
from tests.simulation.traces import check_not_idle, check_same_in_another_process
from tidings.cli import main
from tidings.protocols.multipaxos.values import Add, Ballot, Command, Noop, Promote, Remove
from tidings.settings import ReplicaSettings
from tidings.simulator.many import run_many
from tidings.simulator.world.faults import SHAPES, ClockJump, NodeEnd, NodePause, Outage, Partition, Shape
from tidings.simulator.world.network import blocks
from tidings.simulator.worlds import run_seed
from tidings_lab.bugs import MUTANTS
from tidings_lab.simulated_replicas.clients import Client
from tidings_lab.simulated_replicas.faults import TASKS, Damage, FolderCopies, Fork, Work, draw_plan, quiet_plan
from tidings_lab.simulated_replicas.ledger import Ledger
from tidings_lab.simulated_replicas.world import PaxosWorld

SEEDS = 50
WORLD = "paxos"
MUTANT_SEEDS_MAX = 2_000
PAXOS_MUTANTS = [name for name, mutant in MUTANTS.items() if mutant.world == WORLD]


def test_seeds() -> None:
    check_fresh(WORLD, SEEDS)


def test_a_seed_is_the_same_run_in_another_process() -> None:
    program = (
        "from tidings.simulator.worlds import run_seed\n"
        "for seed in range(12): print(run_seed(seed, world='paxos').trace_hash)"
    )
    check_same_in_another_process(program, 12)


def test_every_kind_of_fault_is_drawn() -> None:
    plans = [draw_plan(Random(seed)) for seed in range(100)]
    assert {plan.founders for plan in plans} == {3, 5}
    for rate in ("loss", "repetition", "late"):
        assert any(getattr(plan.faults, rate) > 0 for plan in plans), rate
    faults = [fault for plan in plans for fault in plan.faults.faults]
    assert {type(fault) for fault in faults} == {
        *(NodeEnd, Outage, NodePause, Partition, ClockJump, Damage, Work, FolderCopies, Fork),
    }
    assert any(plan.moved for plan in plans)
    assert {fault.shape for fault in faults if isinstance(fault, Partition)} == set(SHAPES)
    assert {fault.task for fault in faults if isinstance(fault, Work)} == set(TASKS)
    assert {fault.how for fault in faults if isinstance(fault, NodeEnd)} == {"kill", "power", "sync"}
    assert {fault.by_ms > 0 for fault in faults if isinstance(fault, ClockJump)} == {True, False}
    longest_patience_ms = 2 * 350
    assert any(fault.for_ms > longest_patience_ms for fault in faults if isinstance(fault, NodePause))


@pytest.mark.parametrize(
    ("shape", "blocked"),
    [
        ("isolated", {(1, 2), (1, 3), (2, 1), (3, 1)}),
        ("mute", {(1, 2), (1, 3)}),
        ("deaf", {(2, 1), (3, 1)}),
        ("one-way", {(1, 2)}),
        ("split", {(1, 2), (1, 3), (2, 1), (3, 1)}),
        ("bridge", set()),
    ],
)
def test_a_partitionblocks_what_it_says(shape: Shape, blocked: set[tuple[int, int]]) -> None:
    """The victim is 1, the other one 2; a split has 1 on one side and 2 and 3 on the other; a bridge reaches both."""
    partition = Partition(0, 1, shape, 0, 1, sides=0b0010)
    pairs = [(sender, receiver) for sender in (1, 2, 3) for receiver in (1, 2, 3) if sender != receiver]
    assert {pair for pair in pairs if blocks(partition, 1, 2, *pair)} == blocked


def test_a_run_is_not_idle() -> None:
    """Restarts, snapshots, fetches, lost disks, refusals, reads: all within a few seeds."""
    wanted = (
        "at a step of the disk",
        "because a sync failed",
        "all lights go out",
        "stands still",
        "its clock is set",
        "bridge",
        "is gone for good",
        "takes over the files of another",
        "-> 1 Fetch(",
        "Refused(",
        "Noop()",
        "answers the read",
        "rash: [[",
        "replace: [[",
        "listeners=(6,)",
        "an older copy of its folder is put back",
        "ends: This folder knows less than member",
    )
    check_not_idle(lambda seed: run_seed(seed, trace=True, world=WORLD).trace, range(30), wanted)


# Failover, with the timers that a group has by default.


def failover_ms(seed: int) -> int:
    """Virtual milliseconds from the death of a leader until another node leads."""
    world = PaxosWorld(Random(seed), quiet_plan(3, calm_ms=60_000, latency_ms_max=5, sync_ms_max=10), ReplicaSettings())
    world.begin()
    world.pass_or_break(lambda: world.now_ms > 3_000 and bool(world.leading), 10_000, "the first election")
    dead_at_ms = world.now_ms
    world.nodes[world.leading[0]].retire()
    world.pass_or_break(lambda: bool(world.leading), 30_000, "the next election")
    return world.now_ms - dead_at_ms


def test_a_dead_leader_is_replaced_within_two_seconds() -> None:
    times = sorted(failover_ms(seed) for seed in range(100))
    assert times[98] < 2_000, times


@pytest.mark.parametrize("victim", [-1, 3], ids=["leader", "somebody"])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_group_goes_on_while_something_is_cut_off(shape: Shape, victim: int) -> None:
    """Not only after it heals: five nodes, of which three always reach each other and are reached by clients."""
    cut = Partition(2_000, 20_000, shape, victim, other=1, sides=0b00110)
    quiet = quiet_plan(5, calm_ms=20_000, latency_ms_max=5, sync_ms_max=10)
    faults = msgspec.structs.replace(quiet.faults, faults=(cut,))
    world = PaxosWorld(Random(1), msgspec.structs.replace(quiet, faults=faults), ReplicaSettings())
    world.begin()
    world.pass_or_break(lambda: world.now_ms > 3_000, 4_000, "the time before")
    for number in range(4):
        probe = world.clients[f"probe{number}"] = Client(world, f"probe{number}", 1, 1, read_share=0.0)
        probe.start()
        world.pass_or_break(lambda probe=probe: probe.finished, world.now_ms + 4_000, f"the probe {number}")
    assert world.now_ms < 20_000, "it was to happen meanwhile"


def promises(world: PaxosWorld) -> list[Ballot]:
    return [node.engine.replica.acceptor.promised for node in world.nodes.values() if node.engine is not None]


def test_a_leader_that_is_well_stays() -> None:
    """With the default timers nobody else is elected while nothing goes wrong."""
    for seed in range(8):
        plan = quiet_plan(5, calm_ms=20_000, latency_ms_max=5, sync_ms_max=10)
        world = PaxosWorld(Random(seed), plan, ReplicaSettings())
        world.begin()
        world.pass_or_break(lambda world=world: world.now_ms > 3_000, 20_000, "the first elections")
        (first,) = world.leading
        promised = promises(world)
        world.pass_or_break(lambda world=world: world.now_ms > 15_000, 20_000, "twelve more seconds")
        assert (world.leading, promises(world)) == ([first], promised)


# The ledger, which judges everybody else.


def test_the_ledger_counts_voters_of_one_ballot() -> None:
    ledger = Ledger(1, (1, 2, 3), window=4)
    ledger.accept(1, 1, Ballot(1, 1), Noop())
    ledger.accept(2, 1, Ballot(2, 2), Noop())
    ledger.accept(9, 1, Ballot(1, 1), Noop())
    assert ledger.chosen == {}
    ledger.accept(3, 1, Ballot(2, 2), Noop())
    assert ledger.chosen == {1: Noop()}


def test_the_ledger_notices_a_second_value() -> None:
    ledger = Ledger(1, (1, 2, 3), window=4)
    for node in (1, 2):
        ledger.accept(node, 1, Ballot(1, 1), Noop())
    for node in (2, 3):
        ledger.accept(node, 1, Ballot(2, 2), Command("a", 1, b"x"))
    assert ledger.conflict is not None
    assert "is chosen" in ledger.conflict


def test_the_ledger_notices_a_ballot_with_two_values() -> None:
    ledger = Ledger(1, (1, 2, 3), window=4)
    ledger.accept(1, 1, Ballot(1, 1), Noop())
    ledger.accept(2, 1, Ballot(1, 1), Command("a", 1, b"x"))
    assert ledger.conflict is not None


def test_the_ledger_follows_the_membership() -> None:
    ledger = Ledger(1, (1, 2, 3), window=2)
    values = [Add(4), Remove(1), Noop(), Promote(4), Noop(), Remove(1)]
    for slot, value in enumerate(values, 1):
        for node in (2, 3):
            ledger.accept(node, slot, Ballot(1, 2), value)
    assert ledger.terms == [(1, (1, 2, 3), ()), (3, (1, 2, 3), (4,)), (6, (1, 2, 3, 4), ())]
    assert ledger.next_slot == 6, "two are no majority of four"
    ledger.accept(4, 6, Ballot(1, 2), Remove(1))
    assert ledger.terms[-1] == (8, (2, 3, 4), ())


# The planted bugs; `test_mutants` demands that each is found from its first seed on.


def test_enough_bugs_are_planted() -> None:
    assert len(PAXOS_MUTANTS) >= 12


@pytest.mark.soak
@pytest.mark.parametrize("name", PAXOS_MUTANTS)
def test_mutant_is_found_from_the_first_seed_on(name: str) -> None:
    found = next(
        (result for result in run_many(0, MUTANT_SEEDS_MAX, mutant=name) if result.invariant is not None), None
    )
    assert found is not None
    assert found.invariant in MUTANTS[name].rules, f"seed {found.seed}: {found.invariant}: {found.text}"


def test_the_command_chooses_the_world(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--world", "paxos", "--seed", "1", "--trace"]) == 0
    output = capsys.readouterr().out
    assert "-> 2,3" in output
    assert "lives of the replicas" in output
    assert main(["simulate", "--mutant", "forget-promise", "--seeds", "50", "--jobs", "1"]) == 1
    assert "promises never go back" in capsys.readouterr().err
