"""What traces have to show: that a run is not idle, and that it does not depend on the process that it happens in."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import tidings


def check_not_idle(
    trace_of: Callable[[int], Sequence[str]], seeds: Sequence[int], wanted: Iterable[str], seeds_min: int = 1
) -> None:
    """Everything that is wanted shows in the trace of some seed. Runs them until it has, and `seeds_min` at least."""
    missing = set(wanted)
    for count, seed in enumerate(seeds, 1):
        trace = trace_of(seed)
        missing -= {each for each in missing if any(each in line for line in trace)}
        if not missing and count >= seeds_min:
            return
    assert not missing


def check_same_in_another_process(program: str, count: int) -> None:
    """The program prints a trace's hash on each of `count` lines: all different, and the same in both processes, which
    hash differently: what a seed leads to must not depend on it.
    """
    first, second = (_output(program, hash_seed) for hash_seed in ("1", "2"))
    assert len(set(first.split())) == count
    assert second == first


def _output(program: str, hash_seed: str) -> str:
    environment = os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(Path(tidings.__file__).parents[1])}
    return subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    ).stdout
