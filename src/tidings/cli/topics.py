"""`tidings topics`: what is on the bus."""

from __future__ import annotations

import argparse
from collections.abc import Iterable

from rich.table import Table
from rich.text import Text

from tidings.cli import connection, quantities, watching
from tidings.cli.connection import open_bus
from tidings.cli.output import harmless, print_json, topic_fields
from tidings.cli.quantities import human_bytes
from tidings.message import TopicInfo

HELP = """\
Lists the topics on a bus: how many messages each holds, at which offsets, and how many subscriptions it has.

With --max-backlog it limits how many messages may wait in a topic: a put beyond that is refused as Overloaded, and
nothing is dropped. The limit stays with the topic. With keys, that takes the key of an administrator (serve --admin).
"""

EXAMPLES = """\
  tidings topics
  tidings topics news
  tidings topics --watch
  tidings topics jobs --max-backlog 1000       # or none: any number; or default: as serve --max-backlog says
  tidings topics --json | jq .name
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topic", metavar="TOPIC", nargs="?", help="only this topic")
    parser.add_argument("--json", action="store_true", help="print topics as JSON, one per line")
    parser.add_argument(
        "--max-backlog",
        metavar="N",
        type=backlog,
        default=argparse.SUPPRESS,
        help="set how many messages may wait in TOPIC: a number, none or default",
    )
    watching.add_arguments(parser)
    connection.add_arguments(parser, named=False)


def run(arguments: argparse.Namespace) -> int:
    limits = "max_backlog" in arguments
    if limits and arguments.topic is None:
        arguments.usage_error("--max-backlog needs a TOPIC")
    with open_bus(arguments) as bus:
        if limits:
            bus.limit_topic(arguments.topic, arguments.max_backlog)

        def found() -> list[TopicInfo]:
            return bus.topics() if arguments.topic is None else [bus.topic(arguments.topic)]

        if arguments.json:
            for info in found():
                print_json(topic_fields(info))
        else:
            watching.show(lambda: topic_table(found()), arguments.watch, "There are no topics yet.")
    return 0


def backlog(text: str) -> int | None:
    """A limit as people write it: 0 stands for any number, None for the broker's settings.

    >>> backlog("1000"), backlog("none"), backlog("default")
    (1000, 0, None)
    """
    return {"none": 0, "default": None}[text] if text in ("none", "default") else quantities.count(text)


def topic_table(topics: Iterable[TopicInfo]) -> Table:
    """The topics as an aligned table."""
    table = watching.plain_table(("topic",), ("messages", "first", "next", "subscriptions", "size", "limit"))
    for info in topics:
        numbers = (info.count, info.first_offset, info.next_offset, info.subscriptions)
        limit = "" if info.max_backlog is None else f"{info.max_backlog:,}" if info.max_backlog else "none"
        size = human_bytes(info.size_bytes)
        table.add_row(Text(harmless(info.name)), *(f"{number:,}" for number in numbers), size, limit)
    return table
