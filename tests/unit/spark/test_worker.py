"""What a task does for the worker that runs it."""

from __future__ import annotations

import subprocess
import sys

PREPARES = """
import gc
from tidings.spark.worker import prepare_worker
prepare_worker()
exempt = gc.get_freeze_count()
assert exempt > 1000, exempt
loop = []
loop.append(loop)
del loop
prepare_worker()
assert gc.get_freeze_count() == exempt
assert gc.collect() >= 1
"""


def test_what_is_loaded_is_exempt_from_collections_and_garbage_that_comes_later_is_not() -> None:
    """D1: in a process of its own, because there is no way back."""
    done = subprocess.run([sys.executable, "-c", PREPARES], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
