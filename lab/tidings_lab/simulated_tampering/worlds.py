"""The simulation of folders with which somebody tampers, for `tidings simulate --world tampered`.

`tidings.simulator.worlds` finds the table by its entry point.
"""

from __future__ import annotations

from random import Random

from tidings.simulator.run import Result, live, make_world
from tidings.simulator.worlds import RunSeed
from tidings_lab.simulated_tampering.tampering import TAMPERED, Tampering


def tampered_kind(seed: int) -> str:
    """Of which kind the tampered world of a seed is: up to its end it is just that world of the same seed."""
    return Random(f"who lives in {seed}").choice(("topics", "topics", "groups", "stages"))


def run_tampered(seed: int, trace: bool = False) -> Result:
    """Runs a seed to its end, or to the first thing that nobody has said."""
    return live(make_world(seed, tampered_kind(seed), Tampering), seed, trace, TAMPERED)


WORLDS: dict[str, RunSeed] = {TAMPERED: run_tampered}
