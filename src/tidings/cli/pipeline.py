"""`tidings pipeline`: from the bus into a lake, by Spark."""

from __future__ import annotations

import argparse
import contextlib
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from tidings.cli import connection, quantities
from tidings.cli.connection import open_bus
from tidings.cli.extras import needed
from tidings.cli.output import print_json

if TYPE_CHECKING:
    from tidings.pipeline.plan import Plan
    from tidings.pipeline.run import Watch

HELP = """\
Takes every message of the bus into a lake, once and only once: bronze (as it is), silver (text, without
duplicates, order checked, numbers in words) and gold (figures for each topic and window). The tables are Delta
tables: Spark, DuckDB, Polars and pandas read them at any time.

  run       take what is there (--once), or keep at it (--every)
"""

EXAMPLES = """\
  tidings pipeline run --lake lake/ --once
  tidings pipeline run --lake lake/ --every 5s
"""

ACTIONS = ("run",)
BATCH_ROWS = 1_000_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", metavar="ACTION", choices=ACTIONS, help=", ".join(ACTIONS))
    parser.add_argument("--lake", metavar="DIR", type=Path, required=True, help="the folder of the lake")
    parser.add_argument("--json", action="store_true", help="print JSON")
    group = parser.add_argument_group("run")
    group.add_argument("--once", action="store_true", help="take everything that is there, and end")
    group.add_argument("--every", metavar="TIME", type=quantities.duration_ms, help="look again so often (default: 5s)")
    group.add_argument(
        "--topic", metavar="TOPIC", action="append", help="a topic or a pattern (default: '*'); may be repeated"
    )
    group.add_argument("--master", metavar="URL", help="Spark's master (default: all cores of this machine)")
    group.add_argument(
        "--window", metavar="TIME", type=quantities.duration_ms, help="the windows of gold (default: 60s)"
    )
    group.add_argument(
        "--watermark", metavar="TIME", type=quantities.duration_ms, default=600_000,
        help="how late a message may come and still count in gold (default: 10m)",
    )  # fmt: skip
    group.add_argument("--publish", metavar="TOPIC", help="put the windows of gold that change on the bus")
    group.add_argument(
        "--language", metavar="NAME", default="en", help="of numbers in words: en, es, pt, pt-BR or none"
    )
    group.add_argument(
        "--batch-rows", metavar="N", type=quantities.count, default=1_000_000, help="rows of a micro-batch"
    )
    group.add_argument(
        "--pass-over-lost", action="store_true",
        help="count messages that retention removed before they were read, instead of stopping",
    )  # fmt: skip
    connection.add_arguments(parser, named=False, timeout=False)


def run(arguments: argparse.Namespace) -> int:
    with needed("spark", "tidings pipeline"):
        import deltalake as _deltalake  # noqa: F401
        import pyarrow as _pyarrow  # noqa: F401
        import pyspark as _pyspark  # noqa: F401
    return _run(arguments)


def _run(arguments: argparse.Namespace) -> int:
    from tidings.pipeline.lake import Lake
    from tidings.pipeline.run import Pipeline, prepare
    from tidings.spark.session import check_ready, spark_session

    if arguments.once and arguments.every is not None:
        arguments.usage_error("give --once or --every, not both")
    if connection.embedded_folder(arguments.bus) is not None:
        arguments.usage_error(
            "Spark's tasks reach a broker by its address: start `tidings serve` and give --bus tcp://..."
        )
    check_ready(arguments.master)
    plan = _plan(arguments)
    lake = Lake(arguments.lake)
    with open_bus(arguments) as bus:
        topics = [info.name for info in bus.topics()]
    with lake.locked():
        prepare(lake, plan, None if arguments.window is None else arguments.window // 1000)
        with _stopping() as stop, spark_session("tidings pipeline", arguments.master) as spark:
            pipeline = Pipeline(spark, lake, plan, topics)
            with _progress() as watch:
                if arguments.once:
                    steps = pipeline.once(watch, stop)
                else:
                    steps = pipeline.keep_running((arguments.every or 5_000) / 1000, watch, stop)
    for step in steps.values():
        if arguments.json:
            print_json({"layer": step.layer, "rows": step.rows, "batches": step.batches})
        else:
            print(f"{step.layer}: {step.rows:,} rows in {step.batches:,} batches")
    return 0


def _plan(arguments: argparse.Namespace) -> Plan:
    from tidings.message import check_topic
    from tidings.pipeline.plan import Plan
    from tidings.spelling.languages import language

    spoken = None if arguments.language == "none" else language(arguments.language).name
    return Plan(
        bus=arguments.bus,
        topics=",".join(check_topic(topic) for topic in arguments.topic or ["*"]),
        user=arguments.client,
        keys=arguments.keys,
        server_key=arguments.server_key,
        fail_on_data_loss=not arguments.pass_over_lost,
        batch_rows=arguments.batch_rows,
        language=spoken,
        watermark_s=arguments.watermark / 1000,
        publish=None if arguments.publish is None else check_topic(arguments.publish),
    )


@contextlib.contextmanager
def _stopping() -> Iterator[threading.Event]:
    """Set by SIGINT and SIGTERM: the run ends in good order."""
    stop = threading.Event()
    before = {number: signal.signal(number, lambda *_: stop.set()) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _progress() -> Iterator[Watch | None]:
    yield None
