"""Runs many seeds in several processes. The results come in the order of the seeds, so they do not depend on how
many processes there are.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor

from tidings.simulator.run import Result
from tidings.simulator.worlds import run_seed, world_at

_LOG = logging.getLogger("tidings")
CHUNK = 10
"""Seeds that a process takes at a time."""


def run_many(
    first_seed: int, count: int, jobs: int = 1, mutant: str | None = None, kind: str = "topics"
) -> Iterator[Result]:
    """The results of `count` seeds from `first_seed` on, as they come; of the kind `all` each in the next world.

    >>> [result.world for result in run_many(1_000, 3, kind="all")]
    ['stages', 'topics', 'groups']
    """
    if jobs <= 1 or count <= CHUNK:
        for place in range(count):
            yield _run(first_seed, place, mutant, kind)
        return
    # A fresh interpreter for each process: what the caller has in memory or in threads must not matter.
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), initializer=silence) as pool:
        starts = iter(range(0, count, CHUNK))
        under_way: deque[Future[list[Result]]] = deque()
        try:
            while True:
                for start in starts:
                    places = range(start, min(start + CHUNK, count))
                    under_way.append(pool.submit(_run_chunk, first_seed, places, mutant, kind))
                    if len(under_way) >= 2 * jobs:
                        break
                if not under_way:
                    return
                yield from under_way.popleft().result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def silence() -> None:
    """Simulated disks tear and rot all the time: what the log would say of it is not news."""
    _LOG.setLevel(logging.ERROR)


@contextlib.contextmanager
def silenced() -> Iterator[None]:
    """The same for a while: anyone else who logs in this process is heard again afterwards."""
    before = _LOG.level
    silence()
    try:
        yield
    finally:
        _LOG.setLevel(before)


def _run_chunk(first_seed: int, places: range, mutant: str | None, kind: str) -> list[Result]:
    return [_run(first_seed, place, mutant, kind) for place in places]


def _run(first_seed: int, place: int, mutant: str | None, kind: str) -> Result:
    return run_seed(first_seed + place, mutant=mutant, world=world_at(place, kind))
