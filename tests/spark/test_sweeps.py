"""Sweeps as Spark tasks (D5): the same tables as in processes, no matter who is lost on the way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.integration.broker_process import ROOT
from tests.spark.conftest import needs_java
from tests.unit.experiments.made_up import TABLES, squares
from tidings_lab.experiments.local import LocalEngine
from tidings_lab.experiments.on_spark import SparkEngine
from tidings_lab.experiments.sweep import Grid, Sweep, Tables

EVERYTHING = "select * from {%s} order by point, number"


def squares_sweep(count: int) -> Sweep:
    return Sweep("squares", squares, TABLES, Grid(number=range(count), name=["ann", None]))


def everything(tables: Tables) -> list[list[dict[str, Any]]]:
    rows = [tables.query(EVERYTHING % "squares"), tables.query(EVERYTHING % "steps" + ", step")]
    return [*rows, tables.query("select * from {errors} order by point")]


def test_the_same_tables_whatever_the_number_of_tasks(spark: Any, tmp_path: Path) -> None:
    """D5: also of a point that raises, and also without Spark."""
    sweep = squares_sweep(15)
    told: list[int] = []
    expected = everything(LocalEngine().run(sweep, None, lambda done: None))
    assert [len(rows) for rows in expected] == [28, 2 * (1 + 2 + 3) * 3 + 2 * (0 + 0 + 2), 2]
    for tasks in (1, 7):
        folder = tmp_path / str(tasks)
        tables = SparkEngine(spark, tasks).run(sweep, str(folder), told.append)
        assert everything(tables) == expected
        tables.close()
        assert spark.read.parquet(f"{folder}/squares").count() == 28
    assert told[-1] == 30 and max(told) == 30


def test_both_engines_calculate_alike(spark: Any) -> None:
    """What reports are made of, by Spark SQL and without it."""
    sweep = squares_sweep(12)
    question = (
        "select name, count(*) as n, min(square) as least, max(half) as most, round(avg(square), 6) as mean,"
        " round(percentile(square, 0.9), 6) as p90, round(stddev_pop(square), 6) as deviation,"
        " sum(if(number > 5, 1, 0)) as large from {squares} group by name order by name"
    )
    tables = SparkEngine(spark, 2).run(sweep, None, lambda done: None)
    assert tables.query(question) == LocalEngine().run(sweep, None, lambda done: None).query(question)
    tables.close()


class Life(msgspec.Struct, frozen=True):
    number: int


def die_once(number: int, folder: str) -> Iterator[Life]:
    """Anyone who runs number 5 for the first time is killed."""
    mark = Path(folder) / "has-died"
    if number == 5 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    yield Life(number)


WITH_A_DEATH = """
import sys
from tests.spark.test_sweeps import Life, die_once
from tidings_lab.experiments.on_spark import SparkEngine
from tidings_lab.experiments.sweep import Grid, Sweep
from tidings.spark.session import spark_session

sweep = Sweep("lives", die_once, {"lives": Life}, Grid(number=range(12), folder=[sys.argv[1]]))
with spark_session("a death", "local[2,4]") as spark:
    rows = SparkEngine(spark, 4).run(sweep, None, lambda done: None).query("select * from {lives} order by point")
assert [row["number"] for row in rows] == list(range(12)), rows
"""


def in_a_process(*command: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT)))}
    return subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False, env=environment)


@needs_java
@pytest.mark.soak
@pytest.mark.timeout(900)
def test_work_that_is_lost_is_repeated(tmp_path: Path) -> None:
    """D5: a worker is killed in the middle of a task; each row is there once."""
    done = in_a_process("-c", WITH_A_DEATH, str(tmp_path))
    assert done.returncode == 0, done.stderr[-3000:]
    assert (tmp_path / "has-died").exists()
