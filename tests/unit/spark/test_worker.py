"""What a task does for the worker that runs it."""

from __future__ import annotations

import subprocess
import sys

SETTLES = """
import gc
from tidings.spark.worker import settle_in
settle_in()
exempt = gc.get_freeze_count()
assert exempt > 1000, exempt
loop = []
loop.append(loop)
del loop
settle_in()
assert gc.get_freeze_count() == exempt
assert gc.collect() >= 1
"""


def test_what_is_loaded_is_exempt_from_collections_and_garbage_that_comes_later_is_not() -> None:
    """D1: in a process of its own, because there is no way back."""
    done = subprocess.run([sys.executable, "-c", SETTLES], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
