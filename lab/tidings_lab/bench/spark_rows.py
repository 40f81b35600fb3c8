"""Spark with many rows: whether a row costs as much when there are fifty million of them as when there is one million.

Values are small, so that a journal of fifty million fits any disk. It is removed at the end, like everything.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidings_lab.bench.figures import Figure, Limit, ratio_at_most
from tidings_lab.bench.plan import Plan
from tidings_lab.bench.stage import Stage

COST_RATIO_MAX = 1.25
"""Our own bound of what is flat: rounds differ by that much on a machine that others use too."""
WARM_UP_BATCHES = 2
"""The first micro-batches of a query also plan it, and start its workers."""


def steps(plan: Plan) -> int:
    """How many steps it takes."""
    return 3 + plan.rounds


def run(on: Stage) -> list[Figure]:
    """A table with few rows and with many in turns; and a stream, its last batches beside its first."""
    plan = on.plan
    few, many = plan.spark_rows_few, max(plan.spark_rows_few, plan.spark_rows_many)
    broker = on.broker()
    publisher, driver = on.worker(broker.address, "publisher"), on.worker()
    on.step(f"publishing {many:,} messages of {plan.spark_row_bytes} bytes and starting Spark")
    publisher.ask("publish", topic="rows", count=many, size=plan.spark_row_bytes)
    publisher.stop()
    driver.ask("spark_start", folder=str(on.folder / "warehouse"))
    source = {"address": broker.address, "topic": "rows"}
    on.step("warming up")
    for _ in range(2):
        driver.ask("spark_read", **source, rows=few)
    costs: dict[int, list[float]] = {few: [], many: []}
    for number in range(plan.rounds):
        on.step(f"round {number + 1} of {plan.rounds}: a table of {few:,} rows, then of {many:,}")
        for rows, measured in costs.items():
            measured.append(driver.ask("spark_read", **source, rows=rows) / rows)
    on.step(f"a stream of {many:,} rows, {few:,} a batch")
    batches = driver.ask("spark_stream", **source, folder=str(on.folder / "stream"), each=few)
    on.unseen = driver.ask("spark_stop")
    per_row = [seconds / rows for rows, seconds in batches]
    on.raw |= {"table_seconds_per_row": {str(rows): each for rows, each in costs.items()}, "stream": per_row}
    first, last = ends(per_row)
    return [
        _flat(f"table of {many:,} rows", costs[many], f"{few:,} rows", costs[few]),
        _flat(f"last batches of a stream of {many:,}", last, "its first ones", first),
    ]


def ends(samples: Sequence[float]) -> tuple[Sequence[float], Sequence[float]]:
    """The first and the last fifth of what a stream took, without its warm-up.

    >>> ends([9.0, 9.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0])
    ([1.0, 2.0], [9.0, 10.0])
    """
    kept = samples[WARM_UP_BATCHES:] or samples
    fifth = max(1, len(kept) // 5)
    return kept[:fifth], kept[-fifth:]


def _flat(name: str, value: Sequence[float], limit: str, beside: Sequence[float]) -> Figure:
    return Figure(
        scenario="spark-rows",
        name=name,
        value=min(value),
        unit="s/row",
        limit=Limit(limit, min(beside)),
        target=ratio_at_most(COST_RATIO_MAX),
        samples=tuple(value),
        limit_samples=tuple(beside),
    )
