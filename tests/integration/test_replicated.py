"""Replica groups of real processes: leaders die, sleep and are cut off, and no user of the group loses anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.failover import kill_leaders
from tests.integration.group_load import Handled, check_jobs, check_subscriber

GAP_SECONDS_MAX = 2.0


@pytest.mark.timeout(900)
def test_the_leader_is_killed_50_times_under_load(tmp_path: Path) -> None:
    """P6, Z9, Z10, Z11: kill -9 of the leader, five publishers, two subscribers, a consumer group of two."""
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
