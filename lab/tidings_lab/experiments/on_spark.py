"""Runs sweeps as tasks of a Spark cluster, and answers questions about their tables by Spark SQL.

A task gets a number, takes the points that belong to it and gives back their rows as Arrow batches. Spark carries the
sweep to its workers, which import the function by its name, so they need tidings (docs/spark.md). Only DataFrames are
used: it works with a Spark Connect server too.
"""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from tidings_lab.experiments.sweep import Sweep, Value, Watch, points_of_task, run_point
from tidings_lab.experiments.table import arrow_batch, spark_schema, union_of

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import DataFrame, SparkSession

TASKS_FOR_EACH_CORE = 8
"""Some points take longer than others: who is done early takes another task."""
TASKS_ON_A_CLUSTER = 256
"""At least, because its workers may still be on their way when they are counted. A task costs about 15 ms."""
TASKS_MAX = 10_000
LOOK_S = 0.5

TABLE = "table"
"""The column that says where a row belongs, on the way from the tasks."""


class SparkEngine:
    """Runs the points of a sweep as so many tasks."""

    def __init__(self, session: SparkSession, tasks: int | None = None) -> None:
        self._session = session
        self._tasks = tasks

    def run(self, sweep: Sweep, folder: str | None, watch: Watch) -> SparkTables:
        tasks = min(self._tasks or tasks_for(self._session), len(sweep.points), TASKS_MAX)
        everything = self._start(sweep, tasks).persist()
        with watched(self._session, tasks, lambda share: watch(int(share * len(sweep.points)))):
            everything.count()
        watch(len(sweep.points))
        frames = {
            name: everything.where(everything[TABLE] == name).select(*columns)
            for name, columns in sweep.columns.items()
        }
        if folder is not None:
            for name, frame in frames.items():
                frame.coalesce(1).write.mode("overwrite").parquet(f"{folder}/{name}")
                frames[name] = self._session.read.schema(spark_schema(sweep.columns[name])).parquet(f"{folder}/{name}")
        return SparkTables(self._session, everything, frames)

    def _start(self, sweep: Sweep, tasks: int) -> DataFrame:
        columns = {TABLE: str, **union_of(sweep.columns.values())}

        def run_task(batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
            for batch in batches:
                for task in batch.column(0).to_pylist():
                    for index in points_of_task(sweep, task, tasks):
                        rows = [{TABLE: found.table, **found.row} for found in run_point(sweep, index)]
                        yield arrow_batch(columns, rows)

        numbers = self._session.range(0, tasks, 1, tasks)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Those of Spark's own modules.
            return numbers.mapInArrow(run_task, spark_schema(columns))


class SparkTables:
    """Tables that Spark reads."""

    def __init__(self, session: SparkSession, everything: DataFrame, frames: dict[str, DataFrame]) -> None:
        self._session = session
        self._everything = everything
        self._frames = frames

    def query(self, text: str) -> list[dict[str, Value]]:
        frames: dict[str, Any] = dict(self._frames)
        return [row.asDict() for row in self._session.sql(text, **frames).collect()]

    def close(self) -> None:
        self._everything.unpersist()


def tasks_for(session: SparkSession) -> int:
    """How many tasks keep every core busy to the end."""
    context: Any = getattr(session, "sparkContext", None)  # A Spark Connect session has none.
    if context is None:
        return TASKS_ON_A_CLUSTER
    wanted = int(context.defaultParallelism) * TASKS_FOR_EACH_CORE
    is_here = context.master.partition("[")[0] == "local"
    return wanted if is_here else max(wanted, TASKS_ON_A_CLUSTER)


@contextlib.contextmanager
def watched(session: SparkSession, tasks: int, tell: Callable[[float], None]) -> Iterator[None]:
    """Tells now and then which share of so many tasks is done, of what is run inside."""

    def tell_share(stages: list[tuple[int, int]]) -> None:
        # Spark may cut off more stages, to count what these tasks have made.
        tell(max((done for done, count in stages if count == tasks), default=0) / tasks)

    context: Any = getattr(session, "sparkContext", None)
    if context is None:
        with _watched_by_handler(session, tell_share):
            yield
        return
    group = f"sweep {id(tell)}"
    context.setJobGroup(group, "a sweep")
    over = threading.Event()
    watcher = threading.Thread(target=_look, args=(context.statusTracker(), group, over, tell_share), daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


Tell = Callable[[list[tuple[int, int]]], None]
"""Is told of each stage how many tasks are done, and how many there are."""


def _look(tracker: Any, group: str, over: threading.Event, tell: Tell) -> None:
    while not over.wait(LOOK_S):
        stages = [
            stage
            for job in tracker.getJobIdsForGroup(group)
            if (about := tracker.getJobInfo(job)) is not None
            for number in about.stageIds
            if (stage := tracker.getStageInfo(number)) is not None
        ]
        tell([(stage.numCompletedTasks, stage.numTasks) for stage in stages])


@contextlib.contextmanager
def _watched_by_handler(session: SparkSession, tell: Tell) -> Iterator[None]:
    def on_progress(stages: Any, **_: object) -> None:
        tell([(stage.num_completed_tasks, stage.num_tasks) for stage in stages or ()])

    session.registerProgressHandler(on_progress)  # type: ignore[arg-type]
    try:
        yield
    finally:
        session.removeProgressHandler(on_progress)  # type: ignore[arg-type]
