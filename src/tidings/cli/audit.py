"""`tidings audit`: proves that what was published has arrived, or says what has not."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

from tidings.cli import quantities
from tidings.cli.columns import aligned
from tidings.cli.connection import embedded_folder
from tidings.cli.output import harmless
from tidings.errors import InvalidRequest
from tidings.spark.audit.report import Report, last_of, save

HELP = """\
Proves with Spark that nothing was lost, doubled or reordered, or names what was. Exits with 0 when all is well, and
with 1 when it is not.

  --lake             the lake holds every offset of its topics once
  --bus --lake       the lake holds every message of the bus once, as it was published
  --deliveries       every subscription was given what it covers, once and in order, as its own records say
  --copy TARGET      every message of --topic is once in another topic, and nothing else is
"""

EXAMPLES = """\
  tidings audit --bus tcp://127.0.0.1:7400 --lake lake/
  tidings audit --bus tcp://127.0.0.1:7400 --lake lake/ --topic 'orders.*' --complete
  tidings audit --bus tcp://127.0.0.1:7400 --topic orders --copy invoices --by id
  tidings audit --bus tcp://127.0.0.1:7400 --deliveries deliveries/
  tidings audit --lake lake/ --json | jq .clean
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    what = parser.add_argument_group("what is compared")
    what.add_argument(
        "--bus", metavar="ADDRESS", default=os.environ.get("TIDINGS_BUS"), help="a broker (or TIDINGS_BUS)"
    )
    what.add_argument("--lake", metavar="DIR", type=Path, help="the folder of a lake, with the table bronze in it")
    what.add_argument(
        "--topic", metavar="TOPIC", action="append", default=[], help="only this topic; * matches anything; repeatable"
    )
    what.add_argument(
        "--deliveries",
        metavar="DIR",
        type=Path,
        action="append",
        default=[],
        help="records that subscribers have written (record=DIR of a bus or a subscription); repeatable",
    )
    what.add_argument("--copy", metavar="TOPIC", help="the topic in which each message of --topic should be once")
    what.add_argument(
        "--by",
        choices=("value", "all", "id"),
        default="value",
        help="what identifies a message in a copy: key and value (the default), headers and id too, or only its id",
    )
    what.add_argument(
        "--complete", action="store_true", help="everything should have arrived: count what has not as lost"
    )
    what.add_argument(
        "--from",
        dest="start",
        metavar="OFFSET",
        type=quantities.whole,
        help="deliveries: the first offset that was due (default: where the records begin)",
    )
    parser.add_argument("--save", metavar="FILE", type=Path, help="where to keep the report (default: in the lake)")
    parser.add_argument("--json", action="store_true", help="print the report as one JSON object")
    how = parser.add_argument_group("how")
    how.add_argument("--master", metavar="URL", help="where Spark runs (default: all cores of this machine)")
    how.add_argument("--as", dest="client", metavar="NAME", default=os.environ.get("TIDINGS_AS"), help="who you are")
    how.add_argument("--keys", metavar="DIR", default=os.environ.get("TIDINGS_KEYS"), help="needs --as")
    how.add_argument("--server-key", metavar="KEY", help="the broker's public key or its file")
    how.add_argument(
        "--timeout", metavar="SECONDS", type=quantities.seconds, default=60.0, help="for the broker (default: 60)"
    )


def run(arguments: argparse.Namespace) -> int:
    _check(arguments)
    report = _audit(arguments)
    target = arguments.save or (last_of(arguments.lake) if arguments.lake is not None else None)
    if target is not None:
        save(report, target)
    if arguments.json:
        print(report.to_json().decode())
    else:
        show(report)
    return 0 if report.clean else 1


def _check(arguments: argparse.Namespace) -> None:
    if arguments.bus is None and arguments.lake is None:
        arguments.usage_error("say what to audit: --bus ADDRESS, --lake DIR, or both")
    if arguments.copy is not None:
        if len(arguments.topic) != 1 or "*" in arguments.topic[0]:
            arguments.usage_error("--copy needs exactly one --topic, the one that was copied")
    elif arguments.lake is None and not arguments.deliveries:
        arguments.usage_error("there is nothing to compare the bus with: give --lake, --deliveries or --copy")
    if arguments.bus is not None and embedded_folder(arguments.bus) is not None:
        raise InvalidRequest(
            f"Spark's tasks cannot open the folder {arguments.bus!r} together: run `tidings serve --data "
            f"{arguments.bus}` and give its address."
        )
    for folder in (*arguments.deliveries, *(() if arguments.lake is None else (arguments.lake,))):
        if not folder.is_dir():
            raise InvalidRequest(f"There is no folder {folder}: name an existing one.")


def _audit(arguments: argparse.Namespace) -> Report:
    from tidings.spark.session import check_ready, spark_session

    check_ready(arguments.master)
    from tidings.spark.audit.run import Request, audit
    from tidings.spark.options import Door

    door = None
    if arguments.bus is not None:
        door = Door(arguments.bus, arguments.client, arguments.keys, arguments.server_key, arguments.timeout)
    request = Request(
        door,
        arguments.lake,
        tuple(arguments.topic),
        arguments.copy,
        arguments.by,
        tuple(arguments.deliveries),
        arguments.complete,
        arguments.start,
    )
    with spark_session("tidings audit", arguments.master) as spark:
        return audit(spark, request)


COUNTS = ("checked", "lost", "doubled", "reordered", "unknown")
RARE_COUNTS = ("changed", "repeated", "waiting", "unsure")
"""Columns that are shown only where there is something in them, so that the table has room on a terminal."""


def show(report: Report) -> None:
    """The report as a table, then the first offending rows."""
    console = Console(highlight=False)
    rare = (name for name in RARE_COUNTS if any(getattr(subject, name) for subject in report.subjects))
    counts = (*COUNTS, *rare)
    rows = [(subject.name, subject.topic, *(getattr(subject, name) for name in counts)) for subject in report.subjects]
    if rows:
        print(aligned(("what", "topic", *counts), rows))
    for subject in report.subjects:
        for fault in subject.faults:
            place = "" if fault.offset is None else f" offset {fault.offset}"
            detail = f" ({fault.detail})" if fault.detail else ""
            line = f"{fault.kind}: {subject.name}: {fault.topic}{place}{detail}"
            console.print(Text(harmless(line)), soft_wrap=True)
        for note in subject.notes:
            console.print(Text(harmless(f"{subject.name}: {subject.topic}: {note}")), soft_wrap=True)
    wrong = sum(subject.wrong for subject in report.subjects)
    checked = sum(subject.checked for subject in report.subjects)
    verdict = "all is well" if report.clean else f"{wrong:,} faults"
    print(f"{checked:,} messages audited in {report.seconds:.1f} s: {verdict}.", file=sys.stderr)
