"""`tidings export`: a topic, or a range of it, into a file."""

from __future__ import annotations

import argparse
import contextlib
import sys
from pathlib import Path

from tidings.cli import connection
from tidings.cli.connection import open_bus
from tidings.cli.counting import counting
from tidings.cli.extras import needed
from tidings.cli.output import harmless
from tidings.errors import InvalidRequest
from tidings.files.exporting import FORMATS, Format, export, format_of
from tidings.spark.options import parse_place
from tidings.spark.planning import resolve

HELP = """\
Writes a topic, or a range of it, to a file: CSV, JSON (one object per line) or Parquet. Bytes that are not UTF-8 are
base64 in CSV and JSON. Nothing is subscribed or acknowledged. The file appears when it is complete.
"""

EXAMPLES = """\
  tidings export news --out news.csv
  tidings export news --to json | jq .text
  tidings export news --out news.parquet --from 2026-03-01 --until 2026-04-01     # needs the extra `spark`
  tidings export news --out last.csv --from 1000 --until 2000                     # offsets 1000 to 1999
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topic", metavar="TOPIC", help="what to write")
    parser.add_argument("--to", choices=FORMATS, help="the format (default: by the file name's extension)")
    parser.add_argument(
        "--out", metavar="FILE", type=Path, help="where to (default: standard output, for csv and json)"
    )
    parser.add_argument("--from", dest="start", metavar="WHERE", default="earliest", help="an offset, or a time")
    parser.add_argument(
        "--until", dest="end", metavar="WHERE", default="latest", help="an offset or a time; itself not included"
    )
    connection.add_arguments(parser, named=False)


def run(arguments: argparse.Namespace) -> int:
    if arguments.out is None and arguments.to is None:
        arguments.usage_error("give the format with --to csv or --to json, or name a file with --out")
    kind: Format = arguments.to if arguments.out is None else format_of(arguments.out, arguments.to)
    if arguments.out is not None and not arguments.out.absolute().parent.is_dir():
        raise InvalidRequest(f"There is no folder {arguments.out.absolute().parent}: create it first.")
    with needed("spark", "Parquet") if kind == "parquet" else contextlib.nullcontext():
        return _export(arguments, kind)


def _export(arguments: argparse.Namespace, kind: Format) -> int:
    with open_bus(arguments) as bus:
        info = bus.topic(arguments.topic)
        start = max(info.first_offset, resolve(bus, info, parse_place(arguments.start, "--from"), "--from"))
        end = max(start, resolve(bus, info, parse_place(arguments.end, "--until"), "--until"))
        with counting(end - start) as advance:
            count = export(bus.read(info.name, start, end), kind, arguments.out, advance)
    where = "" if arguments.out is None else f" in {arguments.out}"
    print(f"{harmless(info.name)}: {count:,} messages{where}", file=sys.stderr)
    return 0
