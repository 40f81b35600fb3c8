"""Lakes for the tests of the pipeline: run in this process, or by a command that is killed at a chosen moment."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from tests.integration.broker_process import ROOT
from tidings.pipeline import bronze
from tidings.pipeline.lake import Lake
from tidings.pipeline.plan import Plan
from tidings.pipeline.run import LAYERS, Pipeline, Step, prepare

NOON = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


def at(seconds: float) -> datetime:
    """So many seconds after noon of a certain day."""
    return NOON + timedelta(seconds=seconds)


def run_once(spark: Any, lake: Lake, plan: Plan, layers: tuple[str, ...] = LAYERS, **settings: Any) -> dict[str, Step]:
    """What `tidings pipeline run --once` does, in the session of the tests."""
    with lake.locked():
        prepare(lake, plan, settings.get("window_s"))
        return Pipeline(spark, lake, plan, settings.get("topics", ())).once(None, threading.Event(), layers)


def rows_of(lake: Lake, table: str) -> list[dict[str, Any]]:
    """All rows of a table, in the order of their topics and offsets or windows."""
    found = lake.table(table).open().to_pyarrow_table().to_pylist()
    return sorted(found, key=lambda row: (row["topic"], str(row.get("window_start")), row.get("offset", 0)))


def append_bronze(spark: Any, lake: Lake, batch: int, rows: list[dict[str, Any]]) -> None:
    """Puts rows into bronze as if a query had, with times and ids that no broker would give."""
    from pyspark.sql.pandas.types import from_arrow_schema

    table = lake.table("bronze")
    names = table.schema.names
    frame = spark.createDataFrame(
        [tuple(row.get(name) for name in names) for row in rows], from_arrow_schema(table.schema)
    )
    written = table.write(frame.coalesce(1), batch)
    table.commit(written, "bronze/by-hand", batch, bronze.marks(table.open(), written))


def message(offset: int, value: bytes, published: float, stored: float | None = None, **more: Any) -> dict[str, Any]:
    """A row of bronze."""
    row = {"topic": "t", "offset": offset, "value": value, "publisher": "p", "published_at": at(published)}
    return row | {"stored_at": at(published if stored is None else stored)} | more


KILLED = """
import os, signal, sys
from tidings.cli import main
from tidings.pipeline.delta import Table

moment, table, number, *politely = sys.argv[1].split(":")
commits = 0

def die():
    if politely:
        os.kill(os.getpid(), signal.SIGTERM)
    else:
        os.killpg(0, signal.SIGKILL)

def dying(method):
    def call(self, *arguments, **named):
        global commits
        if self.name == table:
            commits += 1
        if self.name == table and commits == int(number) and moment == "before":
            die()
        result = method(self, *arguments, **named)
        if self.name == table and commits == int(number) and moment == "after":
            die()
        return result
    return call

Table.commit = dying(Table.commit)
sys.exit(main(sys.argv[2:]))
"""
"""`tidings` with a trap: it kills itself and all of its processes before or after a commit to a table, or with a fourth
word asks itself to stop."""


def command(*arguments: str, trap: str | None = None, log: Path) -> int:
    """Runs `tidings` in a group of its own; its exit code, or minus the signal that killed it."""
    program = ["-m", "tidings"] if trap is None else ["-c", KILLED, trap]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT)))}
    with log.open("ab") as file:
        process = subprocess.Popen(
            [sys.executable, *program, *arguments], env=environment, start_new_session=True, stdout=file, stderr=file
        )
        try:
            return process.wait(timeout=600)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise
