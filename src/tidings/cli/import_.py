"""`tidings import`: the rows of a file into a topic, each once."""

from __future__ import annotations

import argparse
import contextlib
from pathlib import Path

from tidings.cli import connection
from tidings.cli.connection import open_bus
from tidings.cli.counting import counting
from tidings.cli.extras import needed
from tidings.cli.output import harmless, print_json
from tidings.errors import InvalidRequest
from tidings.files.exporting import FORMATS, format_of
from tidings.files.importing import import_file

HELP = """\
Publishes the rows of a file: what `tidings export` wrote, or any CSV, JSON lines or Parquet with a value in each row,
and optionally key, headers and id. Each row is stored once: if an import is interrupted, run it again, and it resumes
where it stopped. A file that has changed in between is refused.
"""

EXAMPLES = """\
  tidings import news.csv --topic news
  tidings import orders.parquet --topic orders                # needs the extra `spark`
  tidings import dump --format json --topic news
  tidings import news.csv --topic news --name second-time     # the same rows again
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", type=Path, help="what to publish")
    parser.add_argument("--topic", metavar="TOPIC", required=True, help="where to")
    parser.add_argument("--format", choices=FORMATS, help="the format (default: what the file's name ends with)")
    parser.add_argument(
        "--name",
        metavar="NAME",
        help="the publisher: each row is stored once per name (default: made from the contents)",
    )
    parser.add_argument("--json", action="store_true", help="print what was done as JSON")
    connection.add_arguments(parser, named=False)


def run(arguments: argparse.Namespace) -> int:
    path: Path = arguments.file
    if not path.is_file():
        raise InvalidRequest(f"There is no file {path}: name an existing one.")
    kind = format_of(path, arguments.format)
    with (
        needed("spark", "Parquet") if kind == "parquet" else contextlib.nullcontext(),
        open_bus(arguments) as bus,
        counting() as advance,
    ):
        # With keys, a client may publish under names below its own.
        below = f"{arguments.client}/" if arguments.keys is not None else ""
        done = import_file(bus, path, arguments.topic, kind, advance, arguments.name, below)
    fields = {"topic": arguments.topic, "rows": done.rows, "stored": done.rows - done.before, "before": done.before}
    if arguments.json:
        print_json(fields)
    else:
        before = f", {done.before:,} stored before" if done.before else ""
        print(f"{harmless(arguments.topic)}: {done.rows - done.before:,} messages{before}")
    return 0
