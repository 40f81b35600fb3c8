"""Whole overlays in the simulator: HyParView and gossip under every fault, and planted faults (P1, P2, P3, P11, P12).

`tidings simulate --world overlay-SCENARIO --seed S --trace` replays a seed that fails here.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from tests.records import FOUND_BY, first_seed_of
from tests.simulation.seeds import check_fresh
from tests.simulation.traces import check_same_in_another_process
from tidings_lab.bugs import MUTANTS as ALL
from tidings_lab.experiments.hyparview import failure
from tidings_lab.simulated_overlay import checkers
from tidings_lab.simulated_overlay.run import Outcome, run
from tidings_lab.simulated_overlay.scenario import FOLDER, load

SCENARIOS = sorted(path.stem for path in FOLDER.glob("*.toml"))
SEEDS = 2
SEEDS_SOAK = 300
SEEDS_MUTANT_MAX = 20
OVERLAY = "overlay-"
MUTANTS = {name: mutant for name, mutant in ALL.items() if mutant.world.startswith(OVERLAY)}


def check(outcome: Outcome) -> None:
    assert outcome.rule is None, f"{outcome.scenario}, seed {outcome.seed}: {outcome.rule}: {outcome.text}"


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenario(name: str) -> None:
    """P2, P3, P12: views are mutual, connected and bounded; each message comes to each node once."""
    check_fresh(f"overlay-{name}", SEEDS)


@pytest.mark.soak
@pytest.mark.parametrize("name", SCENARIOS)
def test_scenario_with_many_seeds(name: str) -> None:
    check_fresh(f"overlay-{name}", SEEDS_SOAK, jobs=2)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.8])
def test_everybody_is_reached_after_a_mass_failure(share: float) -> None:
    """P2, P12: the views heal, and what was published meanwhile is recovered."""
    row = failure(nodes=500, share=share, seed=3)
    assert (row.parts, row.one_sided, row.reached_healed, row.reached_at_last) == (1, 0, 1.0, 1.0)
    assert row.redundancy < 0.1


@pytest.mark.soak
@pytest.mark.parametrize("share", [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8])
def test_everybody_of_ten_thousand_is_reached_after_a_mass_failure(share: float) -> None:
    """P2, P11, P12: 10,000 nodes, views of 5 and 30, as in the HyParView paper."""
    row = failure(nodes=10_000, share=share, seed=1)
    assert (row.parts, row.reached_healed, row.reached_at_last) == (1, 1.0, 1.0)
    assert row.redundancy < 0.1


@pytest.mark.soak
def test_nearly_everybody_of_ten_thousand_is_reached_after_nine_of_ten_failed() -> None:
    row = failure(nodes=10_000, share=0.9, seed=1)
    assert row.reached_healed >= 0.99 and row.reached_at_last >= 0.99


@pytest.mark.parametrize("name", MUTANTS)
def test_planted_fault_is_found(name: str, record_property: Callable[[str, object], None]) -> None:
    mutant = MUTANTS[name]
    scenario = load(mutant.world.removeprefix(OVERLAY))
    first_seed = first_seed_of(name)
    for seed in range(first_seed, first_seed + SEEDS_MUTANT_MAX):
        with mutant.plant():
            outcome = run(scenario, seed)
        if outcome.rule is not None:
            break
    assert outcome.rule in mutant.rules, f"seed {outcome.seed}: {outcome.rule}: {outcome.text}"
    check(run(scenario, outcome.seed))
    if outcome.seed != first_seed:
        record_property(FOUND_BY, f"{name} {outcome.seed}")


def test_every_rule_has_a_planted_fault() -> None:
    rules = {value for name, value in vars(checkers).items() if name.isupper() and isinstance(value, str)}
    assert {rule for mutant in MUTANTS.values() for rule in mutant.rules} == rules


def test_a_seed_is_the_same_run_in_another_process() -> None:
    """Neither the order of sets nor `hash()` decides anything."""
    program = (
        "from tidings_lab.simulated_overlay.run import run\n"
        "from tidings_lab.simulated_overlay.scenario import load\n"
        "for name in ('churn', 'loss', 'heartbeat', 'cut'):\n"
        "    print(run(load(name), 5, trace=True).trace_hash)"
    )
    check_same_in_another_process(program, 4)


def test_another_seed_is_another_run() -> None:
    assert run(load("calm"), 1, trace=True).trace_hash != run(load("calm"), 2, trace=True).trace_hash


def test_bytes_and_objects_make_the_same_run() -> None:
    plan = load("mass-failure")
    encoded = msgspec.structs.replace(plan, network=msgspec.structs.replace(plan.network, encode=True))
    assert run(plan, 4, trace=True) == run(encoded, 4, trace=True)


def test_a_run_is_not_idle() -> None:
    """Every kind of message is sent within the scenarios."""
    sent: set[str] = set()
    for name in SCENARIOS:
        sent |= set(run(load(name), 1).sent)
    wanted = "Join ForwardJoin Neighbor NeighborAnswer Disconnect Shuffle ShuffleReply Beat "
    wanted += "Payload IHave Graft Prune Digest Fetch Recovered Gone"
    assert set(wanted.split()) <= sent
