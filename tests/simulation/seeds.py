"""The seeds of simulated worlds: drawn again in every run of the tests, beside those that have found something.

A run of the tests begins at a seed that `tests/conftest.py` draws and names in its header; with `TIDINGS_FIRST_SEED` it
is chosen. A seed that finds something is written to `found_seeds.txt` here and runs with every later test, until
somebody has mended what it found and moves its line to `kept_seeds.txt`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from tidings.simulator.many import run_many
from tidings.simulator.run import Result
from tidings.simulator.worlds import replay_command

KEPT = Path(__file__).with_name("kept_seeds.txt")
FOUND = Path(__file__).with_name("found_seeds.txt")
NO_BUG = "-"


class Kept(NamedTuple):
    world: str
    seed: int
    bug: str
    """Which planted bug it finds, or `NO_BUG`."""


def first_seed() -> int:
    """Where the fresh seeds of this run of the tests begin."""
    return int(os.environ["TIDINGS_FIRST_SEED"])


def kept_seeds() -> list[Kept]:
    """All that have found something."""
    texts = [path.read_text(encoding="utf-8") for path in (KEPT, FOUND) if path.exists()]
    lines = (line.partition("#")[0].split() for text in texts for line in text.splitlines())
    return [Kept(world, int(seed), bug) for world, seed, bug in filter(None, lines)]


def check_fresh(world: str, count: int, jobs: int = 1) -> None:
    """Runs fresh seeds of a world, in which every invariant has to hold; soak tests in processes beside each other."""
    for result in run_many(first_seed(), count, jobs, kind=world):
        if result.invariant is not None:
            keep(result.world, result.seed, f"{result.invariant}: {result.text}")
            raise AssertionError(told(result))


def keep(world: str, seed: int, text: str) -> None:
    with FOUND.open("a", encoding="utf-8") as file:
        file.write(f"{world} {seed} {NO_BUG} # {' '.join(text.split())}\n")


def told(result: Result) -> str:
    return (
        f"seed {result.seed} of {result.world}: {result.invariant}: {result.text}\n"
        f"replay: {replay_command(result.seed, None, result.world)}\nkept in {FOUND}"
    )
