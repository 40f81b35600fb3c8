"""Runs a program twice, in processes that hash differently: what a seed leads to must not depend on it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import tidings


def check_same_in_another_process(program: str, count: int) -> None:
    """The program prints a trace's hash on each of `count` lines: all different, and the same in both processes."""
    first, second = (_output(program, hash_seed) for hash_seed in ("1", "2"))
    assert len(set(first.split())) == count
    assert second == first


def _output(program: str, hash_seed: str) -> str:
    environment = os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(Path(tidings.__file__).parents[1])}
    return subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    ).stdout
