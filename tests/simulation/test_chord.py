"""The Chord ring under churn (P4, P11): the corrected rules keep its invariants, the rules of 2001 do not."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import tidings
from tests.records import FOUND_BY, first_seed_of
from tests.simulation.seeds import check_fresh, first_seed
from tests.simulation.traces import check_same_in_another_process
from tidings.protocols.chord.ring import Ring
from tidings_lab.bugs import MUTANTS
from tidings_lab.experiments.balance import measure_hops
from tidings_lab.experiments.chord_plans import topic_rows
from tidings_lab.experiments.rules_2001 import Ring2001
from tidings_lab.simulated_overlay.chord import checkers, tree_checkers
from tidings_lab.simulated_overlay.chord.checkers import Violation, check_always, check_ideal
from tidings_lab.simulated_overlay.chord.churn import draw_plan, run_churn, run_large_churn
from tidings_lab.simulated_overlay.chord.multicast import draw_multicast, run_multicast

SEEDS, SEEDS_SOAK = 50, 1_000
MUTANT_SEEDS_MAX = 40
RING_MUTANTS = {name: each for name, each in MUTANTS.items() if each.world in ("ring-churn", "ring-multicast")}


def keeps_the_invariants(seeds: range, loss: float = 0.0) -> None:
    for seed in seeds:
        result = run_churn(seed, loss=loss)
        assert result.rule is None, f"seed {seed}: {result.text}"


def test_churn_keeps_the_invariants() -> None:
    check_fresh("ring-churn", SEEDS)


@pytest.mark.soak
def test_much_churn_keeps_the_invariants() -> None:
    check_fresh("ring-churn", SEEDS_SOAK, jobs=2)


def test_a_ring_that_loses_messages_becomes_ideal_when_left_alone() -> None:
    keeps_the_invariants(range(first_seed(), first_seed() + 10), loss=0.02)


@pytest.mark.soak
def test_many_rings_that_lose_messages_become_ideal_when_left_alone() -> None:
    keeps_the_invariants(range(first_seed(), first_seed() + 300), loss=0.02)


def test_the_rules_of_2001_break_the_ring() -> None:
    """Each seed holds with the corrected rules, so that it is the rules that break it."""
    broken = [result for seed in range(15) if (result := run_churn(seed, ring=Ring2001)).rule is not None]
    keeps_the_invariants(range(15))
    assert len(broken) >= 5
    assert {result.rule for result in broken} & {checkers.LIVE, checkers.ONE_RING, checkers.ORDERED_RING}
    assert {result.rule for result in broken} <= set(checkers.RULES)


def test_schedules_are_not_idle() -> None:
    results = [run_churn(seed) for seed in range(20)]
    assert sum(result.joins for result in results) > 200
    assert sum(result.crashes for result in results) > 150
    assert sum(result.returns for result in results) > 80
    assert {draw_plan(seed).settings.successors_max for seed in range(20)} == {2, 3, 4}


def test_a_large_ring_gets_over_many_deaths_and_joins_at_once() -> None:
    result = run_large_churn(500, joins=20, crashes=50)
    assert result.rule is None, result.text
    assert result.members == 470


@pytest.mark.soak
def test_a_very_large_ring_gets_over_many_deaths_and_joins_at_once() -> None:
    result = run_large_churn(10_000, joins=50, crashes=500)
    assert result.rule is None, result.text


@pytest.mark.parametrize(("nodes", "lookups"), [(100, 3_000), (1_000, 3_000), (10_000, 2_000)])
def test_lookups_take_half_of_log2_hops(nodes: int, lookups: int) -> None:
    """Chord, section 6.3: within 15 %, and every answer is right."""
    row = measure_hops(nodes, lookups)
    assert row.answered == row.right == lookups
    assert abs(row.ratio - 1) <= 0.15, row


def test_virtual_identifiers_spread_topics_more_evenly() -> None:
    """Chord, section 6.1."""
    rows = topic_rows(sizes=(100,), topics=2_000)
    assert [row.virtual for row in rows] == [1, 16, 64]
    assert rows[0].deviation > 2 * rows[1].deviation > 2 * rows[2].deviation
    assert rows[0].without > rows[2].without == 0


# The checkers see what they have to see.


class Known:
    """What a member of a simulated ring knows."""

    def __init__(self, name: str, *successors: str) -> None:
        self.ring = Ring(name, draw_plan(0).settings)
        self.ring.is_member = True
        self.ring.successors = successors


def made_up(**lists: str) -> dict[str, Ring]:
    return {name: Known(name, *successors.split()).ring for name, successors in lists.items()}


# By SHA-256 the letters stand in this order on the circle: d, f, c, b, e, a.


@pytest.mark.parametrize(
    ("rule", "lists"),
    [
        (checkers.LIVE, {"d": "x", "c": "b", "b": "d"}),
        (checkers.ONE_RING, {"d": "b", "b": "d", "c": "e", "e": "c"}),
        (checkers.ORDERED_RING, {"d": "b", "b": "a", "c": "d", "a": "c"}),
        (checkers.ORDERED_LISTS, {"d": "c b", "c": "b d", "b": "d c", "e": "f b d"}),
        (checkers.ORDERED_LISTS, {"d": "d", "c": "d"}),
    ],
)
def test_a_broken_ring_is_seen(rule: str, lists: dict[str, str]) -> None:
    with pytest.raises(Violation) as caught:
        check_always(made_up(**lists))
    assert caught.value.rule == rule


def test_a_ring_that_is_only_ordered_is_not_ideal() -> None:
    ring = made_up(d="b", b="d", c="b")
    check_always(ring)
    with pytest.raises(Violation) as caught:
        check_ideal(ring)
    assert caught.value.rule == checkers.IDEAL


@pytest.mark.parametrize("name", RING_MUTANTS)
def test_planted_bug_is_caught(name: str, record_property: Callable[[str, object], None]) -> None:
    mutant = RING_MUTANTS[name]
    begin = first_seed_of(name)
    with mutant.plant():
        for seed in range(begin, begin + MUTANT_SEEDS_MAX):
            rule = broken_rule(mutant.world, seed)
            if rule is not None:
                break
    assert rule in mutant.rules
    if seed != begin:
        record_property(FOUND_BY, f"{name} {seed}")
    assert broken_rule(mutant.world, seed) is None, f"seed {seed} fails without the planted bug too"


def broken_rule(world: str, seed: int) -> str | None:
    """The invariant that a seed breaks, if any."""
    return run_churn(seed).rule if world == "ring-churn" else run_multicast(draw_multicast(seed)).rule


def test_planted_bugs_name_rules_that_exist() -> None:
    rules = {*checkers.RULES, *tree_checkers.RULES}
    assert all(set(mutant.rules) <= rules for mutant in RING_MUTANTS.values())


def test_a_seed_is_the_same_run_in_another_process() -> None:
    program = (
        "from tidings_lab.simulated_overlay.chord.churn import run_churn\n"
        "from tidings_lab.simulated_overlay.chord.multicast import draw_multicast, run_multicast\n"
        "for seed in range(4):\n"
        "    print(run_churn(seed, trace=True).trace_hash)\n"
        "    print(run_multicast(draw_multicast(seed), trace=True).trace_hash)\n"
    )
    check_same_in_another_process(program, 8)


def test_what_the_documentation_shows_is_what_happens() -> None:
    text = (Path(__file__).parents[2] / "docs" / "ring.md").read_text(encoding="utf-8")
    [program] = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    environment = os.environ | {"PYTHONPATH": str(Path(tidings.__file__).parents[1])}
    subprocess.run([sys.executable, "-c", program], env=environment, check=True)
