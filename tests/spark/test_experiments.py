"""Experiments on Spark (P11, D5): their runs are tasks, and Spark SQL answers what SQLite does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.pages import blocks_of
from tests.unit.experiments.small import SMALL
from tidings_lab.experiments.catalogue import EXPERIMENTS
from tidings_lab.experiments.experiment import ask
from tidings_lab.experiments.local import LocalTables
from tidings_lab.experiments.on_spark import SparkEngine
from tidings_lab.experiments.report import write_report

MACHINES = {"speed", "cpu_seconds"}
"""What differs from run to run."""


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_spark_runs_and_analyses(name: str, spark: Any, tmp_path: Path) -> None:
    """The rows that Spark's tasks wrote to the lake, asked once by Spark SQL and once without Spark: no difference."""
    experiment = EXPERIMENTS[name]
    sweep = experiment.sweep(SMALL[name])
    tables = SparkEngine(spark).run(sweep, str(tmp_path), lambda done: None)
    outcome = ask(experiment, tables)
    tables.close()
    rows = {
        table: [row.asDict() for row in spark.read.parquet(f"{tmp_path}/{table}").collect()] for table in sweep.columns
    }
    without_spark = ask(experiment, LocalTables(sweep.columns, rows))
    assert outcome.broken == without_spark.broken == []
    for question, answer in outcome.answers.items():
        other = without_spark.answers[question]
        assert len(answer) == len(other) > 0
        for one, two in zip(answer, other, strict=True):
            assert list(one) == list(two)
            for field in set(one) - MACHINES:
                expected = pytest.approx(two[field], rel=1e-9) if isinstance(two[field], float) else two[field]
                assert one[field] == expected, (question, field)
    if name == "load":
        [block] = [block for block in blocks_of("docs/experiments.md") if block.language == "sql"]
        assert len(spark.sql(block.text.replace("lake/experiments/load/", f"{tmp_path}/")).collect()) > 0
    page = write_report(experiment, outcome, tmp_path / "report", f"tidings experiment {name}", str(tmp_path))
    assert all((page.parent / f"{name}-{figure.name}.png").exists() for figure in experiment.figures)
