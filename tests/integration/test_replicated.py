"""Replica groups of real processes: leaders die, sleep and are cut off, and no user of the group loses anything."""

from __future__ import annotations

import itertools
import random
import time
from pathlib import Path

import pytest

from tests.integration.group_load import Handled, Load, check_jobs, check_subscriber
from tests.integration.replica_group import ReplicaGroup

GAP_SECONDS_MAX = 2.0


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
    """Kills whoever leads, again and again, under load; for how long nothing was acknowledged each time."""
    chance, killed_at = random.Random(seed), []
    with ReplicaGroup(folder) as group:
        with Load(lambda: group.address) as load:
            for _ in range(kills):
                load.wait_for(chance.randint(1, 500))
                leader = group.leader()
                killed_at.append(time.monotonic())
                leader.kill()
                if chance.random() < 0.5:  # Back at once, or when somebody else leads.
                    group.leader()
                leader.start()
                load.wait_for_probe(killed_at[-1])
            load.wait_for(200)
        load.check()
    return gaps(load.acknowledged_at, killed_at)


@pytest.mark.timeout(900)
def test_the_leader_is_killed_50_times_under_load(tmp_path: Path) -> None:
    """P6, Z9, Z10, Z11: kill -9 of whoever leads, five publishers, two subscribers, a consumer group of two."""
    assert len(kill_leaders(tmp_path, kills=50, seed=1)) == 50


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(10))
def test_the_leader_is_killed_500_times_under_load(tmp_path: Path, seed: int) -> None:
    """P6, Z9, Z10, Z11: ten groups, each of which loses its leader 50 times, and is back within two seconds."""
    found = sorted(kill_leaders(tmp_path, kills=50, seed=100 + seed))
    assert found[-2] < GAP_SECONDS_MAX, found


@pytest.mark.parametrize(
    ("planted", "found"),
    [
        (lambda rows: rows.append((len(rows), rows[3][1])), "came twice"),
        (lambda rows: rows.insert(2, rows[2]), "offset"),
        (lambda rows: rows.pop(), "is missing"),
        (lambda rows: rows.append((len(rows), "b:10")), "not acknowledged"),
        (lambda rows: rows.__setitem__(slice(1, 3), [(1, rows[2][1]), (2, rows[1][1])]), "not where"),
        (lambda rows: rows.__setitem__(slice(0, 3), [(0, rows[2][1]), (1, rows[1][1]), (2, rows[0][1])]), "order"),
    ],
)
def test_the_check_of_a_subscriber_finds_what_is_planted(planted: object, found: str) -> None:
    rows = [(2 * count + place, f"{name}:{count}") for count in range(10) for place, name in enumerate("ab")]
    offsets = {value: offset if value.startswith("b") else None for offset, value in rows}
    check_subscriber(offsets, rows)
    planted(rows)  # type: ignore[operator]
    with pytest.raises(AssertionError, match=found):
        check_subscriber(offsets, rows)


@pytest.mark.parametrize(
    ("planted", "found"),
    [
        (lambda rows: rows.pop(), "lost"),
        (lambda rows: rows.reverse(), "order"),
        (lambda rows: rows.append(rows[3]), "twice"),
    ],
)
def test_the_check_of_a_consumer_group_finds_what_is_planted(planted: object, found: str) -> None:
    rows = [Handled(f"lane{count % 3}", f"boss:{count}", 1) for count in range(12)]
    rows.append(rows[5]._replace(attempt=2))  # Handed out again, and it says so.
    offsets: dict[str, int | None] = {row.value: None for row in rows}
    check_jobs(offsets, rows)
    rows.pop()
    planted(rows)  # type: ignore[operator]
    with pytest.raises(AssertionError, match=found):
        check_jobs(offsets, rows)
