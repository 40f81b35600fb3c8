"""`tidings topics`: what is on the bus."""

from __future__ import annotations

import argparse
from collections.abc import Iterable

from rich.table import Table
from rich.text import Text

from tidings.cli import connection, watching
from tidings.cli.connection import open_bus
from tidings.cli.output import harmless, print_json, topic_fields
from tidings.cli.quantities import human_bytes
from tidings.message import TopicInfo

HELP = """\
Lists the topics on a bus: how many messages each holds, at which offsets, and how many subscriptions it has.
"""

EXAMPLES = """\
  tidings topics
  tidings topics news
  tidings topics --watch
  tidings topics --json | jq .name
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topic", metavar="TOPIC", nargs="?", help="only this topic")
    parser.add_argument("--json", action="store_true", help="print topics as JSON, one per line")
    watching.add_arguments(parser)
    connection.add_arguments(parser, named=False)


def run(arguments: argparse.Namespace) -> int:
    with open_bus(arguments) as bus:

        def found() -> list[TopicInfo]:
            return bus.topics() if arguments.topic is None else [bus.topic(arguments.topic)]

        if arguments.json:
            for info in found():
                print_json(topic_fields(info))
        else:
            watching.show(lambda: topic_table(found()), arguments.watch, "There are no topics yet.")
    return 0


def topic_table(topics: Iterable[TopicInfo]) -> Table:
    """The topics as an aligned table."""
    table = watching.plain_table(("topic",), ("messages", "first", "next", "subscriptions", "size"))
    for info in topics:
        numbers = (info.count, info.first_offset, info.next_offset, info.subscriptions)
        table.add_row(Text(harmless(info.name)), *(f"{number:,}" for number in numbers), human_bytes(info.size_bytes))
    return table
