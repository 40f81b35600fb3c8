"""Kills the leader a replica group, again and again, under load, and measures for how long nothing is stored.

Usage: python -m tests.integration.failover KILLS [PICTURE.svg]
"""

from __future__ import annotations

import itertools
import random
import sys
import tempfile
import time
from pathlib import Path

from tests.integration.group_load import Load
from tests.integration.replica_group import ReplicaGroup


def gaps(acknowledged_at: list[float], kills: list[float]) -> list[float]:
    """The longest time without an acknowledged put after each kill and before the next.

    >>> gaps([1.0, 1.25, 2.0, 2.25, 2.5, 3.0], kills=[1.5, 2.25])
    [0.75, 0.5]
    """
    ends = [*kills[1:], float("inf")]
    pairs = list(itertools.pairwise(acknowledged_at))
    return [
        max(
            (after - before for before, after in pairs if before <= kill < after or kill < before < after <= end),
            default=0.0,
        )
        for kill, end in zip(kills, ends, strict=True)
    ]


def kill_leaders(folder: Path, kills: int, seed: int) -> list[float]:
    """For how long one publisher of single puts got no answer around each kill; everything else is checked, too."""
    rng, killed_at = random.Random(seed), []
    with ReplicaGroup(folder) as group:
        with Load(lambda: group.address) as load:
            for _ in range(kills):
                load.wait_for(rng.randint(1, 500))
                leader = group.leader()
                killed_at.append(time.monotonic())
                leader.kill()
                if rng.random() < 0.5:  # Back at once, or when somebody else leads.
                    group.leader()
                leader.start()
                load.wait_for_probe(killed_at[-1])
            load.wait_for(200)
        load.check()
    return gaps(load.acknowledged_at, killed_at)


def draw(seconds: list[float], picture: Path) -> None:
    """How many of the kills were over after how long."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.5, 3.6), layout="constrained")
    axes = figure.add_subplot()
    shares = [(place + 1) / len(seconds) for place in range(len(seconds))]
    axes.step(sorted(seconds), shares, where="post", color="#1f6f8b")
    axes.axvline(2.0, color="#b03a2e", linestyle="--", label="target: 99 % below 2 s")
    axes.set_xlim(0, 2.4)
    axes.set_ylim(0, 1.02)
    axes.set_xlabel("seconds without an acknowledged put")
    axes.set_ylabel(f"share of {len(seconds)} kills of the leader")
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "tidings"}):
        figure.savefig(picture, metadata={"Date": None})


def main() -> None:
    kills = int(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        found = sorted(kill_leaders(Path(folder), kills, seed=kills))
    for share in (0.5, 0.9, 0.99, 1.0):
        print(f"{share:4.0%} {found[max(0, round(share * kills) - 1)]:.2f} s")
    if len(sys.argv) > 2:
        draw(found, Path(sys.argv[2]))


if __name__ == "__main__":
    main()
