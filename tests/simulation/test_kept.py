"""Seeds that have found something once hold, and find it again where it is planted."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation import seeds
from tests.simulation.seeds import NO_BUG, Kept, check_fresh, kept_seeds, told
from tidings.simulator.worlds import run_seed, worlds
from tidings_lab.bugs import MUTANTS


@pytest.mark.parametrize("kept", kept_seeds(), ids=lambda kept: f"{kept.world}-{kept.seed}-{kept.bug}")
def test_kept_seed(kept: Kept) -> None:
    result = run_seed(kept.seed, world=kept.world)
    assert result.invariant is None, told(result)
    if kept.bug != NO_BUG:
        assert MUTANTS[kept.bug].world == kept.world
        found = run_seed(kept.seed, mutant=kept.bug).invariant
        assert found in MUTANTS[kept.bug].rules, "it does not find any more what it is kept for"


def test_a_seed_that_finds_something_is_told_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seeds, "FOUND", tmp_path / "found_seeds.txt")
    monkeypatch.setenv("TIDINGS_FIRST_SEED", "0")
    before = kept_seeds()
    with MUTANTS["same-epoch"].plant(), pytest.raises(AssertionError, match="replay: tidings simulate --seed"):
        check_fresh("topics", 5)
    *others, found = kept_seeds()
    assert others == before
    assert (found.world, found.bug) == ("topics", NO_BUG)
    assert found.seed in range(5)


def test_every_run_of_the_tests_has_seeds_of_its_own() -> None:
    """And says which, so that it can be repeated."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-p", "no:cacheprovider", "-n", "0", __file__]
    environment = {name: value for name, value in os.environ.items() if name != "TIDINGS_FIRST_SEED"}
    headers = set()
    for chosen in ({}, {}, {"TIDINGS_FIRST_SEED": "77"}):
        output = subprocess.run(command, env=environment | chosen, capture_output=True, text=True, check=True).stdout
        headers.add(next(line for line in output.splitlines() if "TIDINGS_FIRST_SEED" in line))
    assert len(headers) == 3
    assert any(header.endswith("TIDINGS_FIRST_SEED=77") for header in headers)


def test_kept_seeds_are_of_worlds_that_there_are() -> None:
    assert {kept.world for kept in kept_seeds()} <= set(worlds())
