"""`tidings pipeline`: from the bus into a lake, by Spark."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from tidings.cli import connection, quantities, watching
from tidings.cli.connection import open_bus
from tidings.cli.extras import needed
from tidings.cli.output import harmless, print_json
from tidings.errors import InvalidRequest, TidingsError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidings.pipeline.lake import Lake
    from tidings.pipeline.plan import Plan
    from tidings.pipeline.run import Step, Watch
    from tidings.pipeline.status import Status

HELP = """\
Writes every message on the bus into a lake, exactly once: bronze (as it is), silver (text, without duplicates,
order checked, numbers in words) and gold (figures for each topic and window). The tables are Delta tables: Spark,
DuckDB, Polars and pandas can read them at any time. `tidings pipeline ACTION --help` explains an action.
"""

EXAMPLES = """\
  tidings pipeline run --lake lake/ --once                 # everything that is there
  tidings pipeline run --lake lake/ --every 5s             # and everything new; Ctrl-C ends it
  tidings pipeline run --lake lake/ --publish figures      # gold goes back to the bus
  tidings pipeline status --lake lake/ --bus tcp://127.0.0.1:7400
  tidings pipeline compact --lake lake/
  tidings pipeline retain --lake lake/ --older-than 30d
  tidings pipeline report --lake lake/ --to report.html
"""

BATCH_ROWS = 1_000_000
EVERY_MS = 5_000
WATERMARK_MS = 600_000
UNUSED_MS = 7 * 86_400_000
LOG = "_spark.log"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    _run_arguments(actions.add_parser("run", allow_abbrev=False, help="write messages into the lake"))
    status = actions.add_parser(
        "status", allow_abbrev=False, help="how far the lake is and, with --bus, how far behind the bus"
    )
    status.add_argument("--json", action="store_true", help="print it as one JSON object")
    connection.add_arguments(status, named=False)
    status.set_defaults(bus=os.environ.get("TIDINGS_BUS"))
    actions.add_parser("compact", allow_abbrev=False, help="merge small files")
    retain = actions.add_parser(
        "retain", allow_abbrev=False, help="remove old rows, and files that are no longer part of a table"
    )
    retain.add_argument(
        "--older-than",
        metavar="TIME",
        type=quantities.duration_ms,
        help="remove rows that were stored longer ago than this (30d)",
    )
    retain.add_argument(
        "--unused-for", metavar="TIME", type=_unused, default=UNUSED_MS,
        help="remove files that no commit has needed for this long; 0 for all of them (default: 7d)",
    )  # fmt: skip
    report = actions.add_parser("report", allow_abbrev=False, help="write a page with the figures of gold")
    report.add_argument("--to", metavar="FILE", type=Path, help="where to (default: report.html in the lake)")
    for action in actions.choices.values():
        action.add_argument("--lake", metavar="DIR", type=Path, required=True, help="the folder of the lake")


def _run_arguments(parser: argparse.ArgumentParser) -> None:
    time = quantities.duration_ms
    parser.add_argument("--once", action="store_true", help="process everything that is there, then exit")
    parser.add_argument("--every", metavar="TIME", type=time, help="how often to look for new messages (default: 5s)")
    parser.add_argument(
        "--topic", metavar="TOPIC", action="append", help="a topic or a pattern (default: '*'); repeatable"
    )
    parser.add_argument("--master", metavar="URL", help="Spark's master (default: all cores of this machine)")
    parser.add_argument("--window", metavar="TIME", type=time, help="how long a window of gold is (default: 60s)")
    parser.add_argument(
        "--watermark", metavar="TIME", type=time, default=WATERMARK_MS,
        help="how late a message may come and still count in gold (default: 10m)",
    )  # fmt: skip
    parser.add_argument("--publish", metavar="TOPIC", help="put the windows of gold that change on the bus, as JSON")
    parser.add_argument(
        "--language", metavar="NAME", default="en", help="of numbers in words: en, es, pt, pt-BR or none (default: en)"
    )
    parser.add_argument(
        "--batch-rows", metavar="N", type=quantities.count, default=BATCH_ROWS,
        help=f"the most rows in a micro-batch (default: {BATCH_ROWS})",
    )  # fmt: skip
    parser.add_argument(
        "--pass-over-lost", action="store_true",
        help="count messages that the bus removed before they were read, instead of stopping",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print what was done as JSON, one layer per line")
    connection.add_arguments(parser, named=False, timeout=False)


def run(arguments: argparse.Namespace) -> int:
    with needed("spark", "tidings pipeline"):
        import deltalake as _deltalake
        import pyarrow as _pyarrow
    from tidings.pipeline.lake import Lake

    del _deltalake, _pyarrow
    lake = Lake(arguments.lake)
    match arguments.action:
        case "run":
            return _run(arguments, lake)
        case "status":
            return _status(arguments, lake)
        case "report":
            return _report(arguments, lake)
        case _:
            return _upkeep(arguments, lake)


def _run(arguments: argparse.Namespace, lake: Lake) -> int:
    from tidings.pipeline.origin import check_origin
    from tidings.pipeline.run import Pipeline, prepare
    from tidings.spark.session import check_ready

    if arguments.once and arguments.every is not None:
        arguments.usage_error("give --once or --every, not both")
    if connection.embedded_folder(arguments.bus) is not None:
        arguments.usage_error("Spark's tasks need a broker: start `tidings serve` and give --bus tcp://...")
    if arguments.window is not None and arguments.window % 1000:
        arguments.usage_error("--window is a number of whole seconds")
    check_ready(arguments.master)
    plan = _plan(arguments)
    with lake.locked(), _stopping() as stop:
        prepare(lake, plan, None if arguments.window is None else arguments.window // 1000)
        with open_bus(arguments) as bus:
            topics = [info.name for info in bus.topics()]
            check_origin(lake, bus)
        with _session(lake, arguments.master) as spark, _progress() as watch:
            pipeline = Pipeline(spark, lake, plan, topics)
            if arguments.once:
                steps = pipeline.once(watch, stop)
            else:
                steps = pipeline.keep_running((arguments.every or EVERY_MS) / 1000, watch, stop)
    for step in steps.values():
        if arguments.json:
            print_json({"layer": step.layer, "rows": step.rows, "batches": step.batches})
        else:
            print(f"{step.layer}: {step.rows:,} rows in {step.batches:,} batches")
    if arguments.once and pipeline.stopped_early:
        raise TidingsError("The run was stopped before it was done: run it again, and it continues where it stopped.")
    return 0


def _plan(arguments: argparse.Namespace) -> Plan:
    from tidings.message import check_topic
    from tidings.pipeline.plan import Plan
    from tidings.spelling.languages import language

    if arguments.publish is not None and set(check_topic(arguments.publish)) & set("*,"):
        raise InvalidRequest(f"The topic {arguments.publish!r} has a * or a comma: choose another to publish to.")
    if arguments.language != "none":
        language(arguments.language)
        with needed("web", "--language (other than none)"):
            import num2words as _  # noqa: F401
    return Plan(
        bus=arguments.bus,
        topics=",".join(check_topic(topic) for topic in arguments.topic or ["*"]),
        user=arguments.client,
        keys=arguments.keys,
        server_key=arguments.server_key,
        fail_on_data_loss=not arguments.pass_over_lost,
        batch_rows=arguments.batch_rows,
        language=None if arguments.language == "none" else arguments.language,
        watermark_s=arguments.watermark / 1000,
        publish=arguments.publish,
    )


@contextlib.contextmanager
def _session(lake: Lake, master: str | None) -> Iterator[SparkSession]:
    """Spark for the time of a run. What it has to say that is not an error of ours goes into a file of the lake."""
    from tidings.spark.session import open_session

    spark = open_session("tidings pipeline", master, log=lake.folder / LOG)
    try:
        yield spark
    finally:
        spark.stop()


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
    """A line for each layer on a terminal; elsewhere nothing."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    rows = TextColumn("{task.completed:>12,.0f} rows")
    columns = (TextColumn("{task.description:8}"), BarColumn(), rows, TextColumn("{task.fields[speed_text]:>12}"))
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as progress:
        tasks: dict[str, Any] = {}

        def show(steps: dict[str, Step]) -> None:
            below = None
            for step in steps.values():
                if step.layer not in tasks:
                    tasks[step.layer] = progress.add_task(step.layer, total=None, speed_text="")
                total = step.rows + (step.lag or 0) if below is None else max(below, step.rows)
                speed = progress.tasks[tasks[step.layer]].speed
                text = f"{speed:,.0f}/s" if speed else ""
                progress.update(tasks[step.layer], completed=step.rows, total=total or None, speed_text=text)
                below = step.rows

        yield show


def _status(arguments: argparse.Namespace, lake: Lake) -> int:
    from tidings.pipeline.status import status

    if arguments.bus is None:
        found = status(lake)
    else:
        with open_bus(arguments) as bus:
            found = status(lake, bus)
    if arguments.json:
        print_json(msgspec.to_builtins(found))
    else:
        _show(found)
    return 0


def _show(found: Status) -> None:
    from rich.console import Console

    console = Console(highlight=False)
    table = watching.plain_table(("table",), ("rows", "files", "size", "last commit (UTC)"))
    for each in found.tables:
        size, moment = quantities.human_bytes(each.size_bytes), f"{each.committed_at:%Y-%m-%d %H:%M:%S}"
        table.add_row(each.name, f"{each.rows:,}", f"{each.files:,}", size, moment)
    console.print(table)
    console.print()
    table = watching.plain_table(("query",), ("last batch", "rows to read", "finished (UTC)"))
    for query in found.queries:
        waiting = "" if query.waiting is None else f"{query.waiting:,}"
        moment = "" if query.finished_at is None else f"{query.finished_at:%Y-%m-%d %H:%M:%S}"
        table.add_row(query.name, "" if query.last_batch is None else f"{query.last_batch:,}", waiting, moment)
    console.print(table)
    console.print()
    table = watching.plain_table(("topic",), ("next offset", "lag", "removed unread"))
    for topic in found.topics:
        lag = "" if topic.lag is None else f"{topic.lag:,}"
        table.add_row(harmless(topic.name), f"{topic.next_offset:,}", lag, f"{topic.skipped:,}")
    console.print(table)
    console.print()
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in found.rejected.items()) or "none"
    late = "?" if found.late is None else f"{found.late:,}"
    print(f"rejected: {reasons}; backwards: {found.backwards:,}; late: {late}")
    if found.audit is not None:
        print(f"last audit: {'clean' if found.audit.clean else 'NOT CLEAN'}, {found.audit.begun_at:%Y-%m-%d %H:%M} UTC")
    print("a pipeline is running" if found.running else "no pipeline is running")


def _upkeep(arguments: argparse.Namespace, lake: Lake) -> int:
    from tidings.pipeline.upkeep import compact, retain

    later = "skipped while the pipeline runs"
    if arguments.action == "compact":
        for each in compact(lake):
            files = f"{each.files_before:,} files are now {each.files_after:,}"
            print(f"{each.table}: {later if each.skipped else files}")
        return 0
    for gone in retain(lake, arguments.older_than, arguments.unused_for, datetime.now(UTC)):
        print(f"{gone.table}: {later if gone.skipped else f'{gone.rows:,} rows and {gone.files:,} files removed'}")
    return 0


def _report(arguments: argparse.Namespace, lake: Lake) -> int:
    with needed("plots", "tidings pipeline report"):
        import matplotlib as _  # noqa: F401
    from tidings.pipeline.report import write_report
    from tidings.pipeline.status import status

    path = arguments.to or lake.folder / "report.html"
    write_report(lake, status(lake), path)
    print(path)
    return 0


def _unused(text: str) -> int:
    return 0 if text == "0" else quantities.duration_ms(text)
