"""The Spark driver that the demonstration kills: it takes the bus into a lake, then audits the lake.

Started again, it goes on where the lake says that the last one stopped.
"""

from __future__ import annotations

import json
import sys
import threading
from typing import Any

import msgspec

from tidings.pipeline.lake import Lake
from tidings.pipeline.plan import Plan
from tidings.pipeline.run import Pipeline, Step, prepare
from tidings.spark.audit.report import last_of, save
from tidings.spark.audit.run import Request, audit
from tidings.spark.delta_frames import lake_table
from tidings.spark.options import Door
from tidings.spark.session import spark_session
from tidings_lab.demo.worker import INVOICES, ORDERS

WINDOW_S = 10
SHORT = {
    "spark.driver.extraJavaOptions": "-Xss16m -XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.shuffle.partitions": "1",
}
"""For a driver that lives for seconds: thorough compiling, and more tasks, would cost more than they save."""


def main() -> int:
    """Reports are lines of JSON: `[layer, rows]` while it works, then the outcome. Arguments: lake, bus, batch rows."""
    lake, bus, batch_rows = Lake(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    reported: dict[str, int] = {}

    def watch(steps: dict[str, Step]) -> None:
        for layer, step in steps.items():
            if step.rows != reported.get(layer, 0):
                reported[layer] = step.rows
                _report([layer, step.rows])

    plan = Plan(bus=bus, batch_rows=batch_rows)
    with lake.locked():
        prepare(lake, plan, WINDOW_S)
        with spark_session("tidings demo", settings=SHORT) as spark:
            _report(["spark", 0])
            watch(Pipeline(spark, lake, plan, (ORDERS, INVOICES)).once(watch, threading.Event()))
            outcome = audit(spark, Request(Door(bus, None, None, None, plan.timeout_s), lake.folder, complete=True))
            save(outcome, last_of(lake.folder))
            windows = _windows(lake_table(spark, lake.folder, "gold"))
    _report({"subjects": msgspec.to_builtins(outcome.subjects), "windows": windows})
    return 0


def _windows(gold: Any) -> list[list[Any]]:
    """Gold in a few lines: for each topic its windows, messages, and the slowest 95th percentile."""
    figures = gold.groupBy("topic").agg(
        {"*": "count", "messages": "sum", "rate": "max", "latency_p95_ms": "max"},
    )
    columns = ("topic", "count(1)", "sum(messages)", "max(rate)", "max(latency_p95_ms)")
    return [[row[name] for name in columns] for row in figures.orderBy("topic").collect()]


def _report(line: object) -> None:
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    sys.exit(main())
