"""`tidings topics`: what is on the bus."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable

from tidings.cli import connection
from tidings.cli.connection import open_bus
from tidings.cli.output import harmless, print_json, topic_fields
from tidings.cli.quantities import human_bytes
from tidings.message import TopicInfo

HELP = """\
Lists the topics of a bus: how many messages each holds, at which offsets, and how many subscriptions.
"""

EXAMPLES = """\
  tidings topics
  tidings topics news
  tidings topics --json | jq .name
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topic", metavar="TOPIC", nargs="?", help="only this one")
    parser.add_argument("--json", action="store_true", help="print topics as JSON, one a line")
    connection.add_arguments(parser, named=False)


def run(arguments: argparse.Namespace) -> int:
    with open_bus(arguments) as bus:
        found = bus.topics() if arguments.topic is None else [bus.topic(arguments.topic)]
    if arguments.json:
        for info in found:
            print_json(topic_fields(info))
    else:
        print_table(found)
    return 0


def print_table(topics: Iterable[TopicInfo]) -> None:
    """The topics as an aligned table."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("topic", overflow="fold")
    for column in ("messages", "first", "next", "subscriptions", "size"):
        table.add_column(column, justify="right", no_wrap=True)
    for info in topics:
        numbers = (info.count, info.first_offset, info.next_offset, info.subscriptions)
        table.add_row(Text(harmless(info.name)), *(f"{number:,}" for number in numbers), human_bytes(info.size_bytes))
    if table.row_count:
        Console(highlight=False).print(table)
    else:
        print("There are no topics yet.", file=sys.stderr)
