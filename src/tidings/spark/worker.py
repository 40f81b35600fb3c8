"""A Python worker of Spark, which runs one task after the other, or plans or commits one batch after the other.

PySpark collects garbage after every task. In a worker that has PySpark, Arrow and tidings loaded that takes 40 ms,
nine tenths of what a small task costs, and it never finds anything in them: they stay as long as the process.
"""

from __future__ import annotations

import gc

_acked = False


def prepare_worker() -> None:
    """Takes what is loaded out of the collections to come.

    Every task, plan and commit says so, because each may be the first of its process; only the first one does it.
    """
    global _acked
    if not _acked:
        _acked = True
        gc.collect()  # What is garbage now would be kept for good.
        gc.freeze()
