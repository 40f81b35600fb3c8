"""Runs a sweep of simulations in several processes. The rows come in the order of the sweep."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor

from tidings.experiments.hyparview import FailureRow, failure


def failures(nodes: int, shares: Sequence[float], seed: int, jobs: int = 1) -> Iterator[FailureRow]:
    """A row for each share of failing nodes, as they come."""
    if jobs <= 1 or len(shares) == 1:
        for share in shares:
            yield failure(nodes, share, seed)
        return
    # A fresh interpreter for each process: what the caller has in memory or in threads must not matter.
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        under_way = [pool.submit(failure, nodes, share, seed) for share in shares]
        try:
            for one in under_way:
                yield one.result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
