"""Runs sweeps in processes of this machine, without Spark, and answers questions about their tables by SQLite."""

from __future__ import annotations

import math
import multiprocessing
import shutil
import sqlite3
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path

from tidings.errors import InvalidRequest
from tidings_lab.experiments.sweep import Found, Sweep, Value, Watch, points_of_task, run_point
from tidings_lab.experiments.table import SQLITE, arrow_batch, arrow_schema

TASKS_FOR_EACH_JOB = 16
"""Some points take longer than others: who is done early takes another task."""
POINTS_AT_A_TIME = 10
"""A task has so many at most, so that progress is seen."""
AHEAD = 2
"""Tasks that are waiting for each process."""

Rows = dict[str, list[dict[str, object]]]


class LocalEngine:
    """Runs the points of a sweep in so many processes."""

    def __init__(self, jobs: int = 1) -> None:
        self._jobs = jobs

    def run(self, sweep: Sweep, folder: str | None, watch: Watch) -> LocalTables:
        if folder is not None:
            check_arrow()
            if "://" in folder:
                raise InvalidRequest(f"{folder} is not a folder of this machine: name one, or run it on Spark.")
        rows: Rows = {name: [] for name in sweep.columns}
        for done, found in enumerate(self._run_points(sweep), 1):
            for each in found:
                rows[each.table].append(each.row)
            watch(done)
        for table in rows.values():
            table.sort(key=lambda row: row["point"])  # type: ignore[arg-type, return-value]
        if folder is not None:
            write_tables(Path(folder), sweep.columns, rows)
        return LocalTables(sweep.columns, rows)

    def _run_points(self, sweep: Sweep) -> Iterator[list[Found]]:
        count = len(sweep.points)
        tasks = max(min(count, TASKS_FOR_EACH_JOB * self._jobs), math.ceil(count / POINTS_AT_A_TIME))
        if self._jobs <= 1 or count <= 1:
            for index in range(count):
                yield run_point(sweep, index)
            return
        # A fresh interpreter for each process: what the caller has in memory or in threads must not matter.
        with ProcessPoolExecutor(self._jobs, multiprocessing.get_context("spawn")) as pool:
            under_way: deque[Future[list[list[Found]]]] = deque()
            try:
                for task in range(tasks):
                    under_way.append(pool.submit(_run_task, sweep, task, tasks))
                    if len(under_way) > AHEAD * self._jobs:
                        yield from under_way.popleft().result()
                while under_way:
                    yield from under_way.popleft().result()
            finally:
                pool.shutdown(wait=True, cancel_futures=True)


def _run_task(sweep: Sweep, task: int, tasks: int) -> list[list[Found]]:
    return [run_point(sweep, index) for index in points_of_task(sweep, task, tasks)]


class LocalTables:
    """Tables in the memory of this process."""

    def __init__(self, columns: Mapping[str, Mapping[str, type]], rows: Rows) -> None:
        self._names = {name: f'"{name}"' for name in columns}
        self._database = sqlite3.connect(":memory:")
        self._database.row_factory = sqlite3.Row
        # What Spark has and SQLite has not, under Spark's names.
        self._database.create_aggregate("percentile", 2, Percentile)  # type: ignore[arg-type]
        self._database.create_aggregate("stddev_pop", 1, Deviation)  # type: ignore[arg-type]
        self._database.create_function("if", 3, lambda condition, yes, no: yes if condition else no)
        for name, kinds in columns.items():
            fields = ", ".join(f'"{field}" {SQLITE[kind]}' for field, kind in kinds.items())
            self._database.execute(f'CREATE TABLE "{name}" ({fields})')
            places = ", ".join("?" * len(kinds))
            values = ([row[field] for field in kinds] for row in rows[name])
            self._database.executemany(f'INSERT INTO "{name}" VALUES ({places})', values)

    def query(self, text: str) -> list[dict[str, Value]]:
        return [dict(row) for row in self._database.execute(text.format(**self._names))]

    def close(self) -> None:
        self._database.close()


class Percentile:
    """The exact percentile, between two values in proportion, as Spark's `percentile` has it."""

    def __init__(self) -> None:
        self._values: list[float] = []
        self._share = 0.0

    def step(self, value: float | None, share: float) -> None:
        self._share = share
        if value is not None:
            self._values.append(value)

    def finalize(self) -> float | None:
        if not self._values:
            return None
        self._values.sort()
        place = self._share * (len(self._values) - 1)
        below, above = math.floor(place), math.ceil(place)
        if below == above:
            return float(self._values[below])
        return (above - place) * self._values[below] + (place - below) * self._values[above]


class Deviation:
    """The standard deviation of all there are."""

    def __init__(self) -> None:
        self._values: list[float] = []

    def step(self, value: float | None) -> None:
        if value is not None:
            self._values.append(value)

    def finalize(self) -> float | None:
        if not self._values:
            return None
        mean = math.fsum(self._values) / len(self._values)
        return math.sqrt(math.fsum((value - mean) ** 2 for value in self._values) / len(self._values))


def check_arrow() -> None:
    """Raises InvalidRequest, before anything is run, if tables could not be written afterwards."""
    try:
        import pyarrow.parquet as _  # noqa: F401
    except ModuleNotFoundError as error:
        raise InvalidRequest(
            "Tables need PyArrow, which is not installed: pip install '.[spark]' in a checkout."
        ) from error


def write_tables(
    folder: Path, columns: Mapping[str, Mapping[str, type]], rows: Mapping[str, Sequence[dict[str, object]]]
) -> None:
    """Each table as one file of Parquet in a folder of its name, as Spark would have it."""
    import pyarrow
    import pyarrow.parquet

    for name, kinds in columns.items():
        place = folder / name
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        table = pyarrow.Table.from_batches([arrow_batch(kinds, rows[name])], schema=arrow_schema(kinds))
        pyarrow.parquet.write_table(table, place / "part-00000.parquet")
