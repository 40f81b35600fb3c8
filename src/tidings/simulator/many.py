"""Runs many seeds in several processes. The results come in the order of the seeds, so they do not depend on how
many processes there are.
"""

from __future__ import annotations

import multiprocessing
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor

from tidings.simulator.run import Result
from tidings.simulator.worlds import run_seed

CHUNK = 10
"""Seeds that a process takes at a time."""


def run_many(
    first_seed: int, count: int, jobs: int = 1, mutant: str | None = None, kind: str = "topics"
) -> Iterator[Result]:
    """The results of `count` seeds from `first_seed` on, as they come."""
    if jobs <= 1 or count <= CHUNK:
        for seed in range(first_seed, first_seed + count):
            yield run_seed(seed, mutant=mutant, world=kind)
        return
    end = first_seed + count
    # A fresh interpreter for each process: what the caller has in memory or in threads must not matter.
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        starts = iter(range(first_seed, end, CHUNK))
        under_way: deque[Future[list[Result]]] = deque()
        try:
            while True:
                for start in starts:
                    under_way.append(pool.submit(_run_chunk, start, min(start + CHUNK, end), mutant, kind))
                    if len(under_way) >= 2 * jobs:
                        break
                if not under_way:
                    return
                yield from under_way.popleft().result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _run_chunk(start: int, end: int, mutant: str | None, kind: str) -> list[Result]:
    return [run_seed(seed, mutant=mutant, world=kind) for seed in range(start, end)]
