"""Sweeps give the same rows however many processes run them (P11)."""

from __future__ import annotations

import msgspec

from tidings.experiments.sweep import failures


def test_rows_do_not_depend_on_the_number_of_processes() -> None:
    rows = [
        [msgspec.structs.replace(row, cpu_seconds=0.0) for row in failures(30, (0.2, 0.6), seed=4, jobs=jobs)]
        for jobs in (1, 2)
    ]
    assert rows[0] == rows[1]
    assert [row.live for row in rows[0]] == [24, 12]
