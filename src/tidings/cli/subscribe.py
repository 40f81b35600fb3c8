"""`tidings subscribe`: a durable subscription."""

from __future__ import annotations

import argparse
import sys
from typing import Literal

from tidings.cli import connection
from tidings.cli.connection import open_bus
from tidings.cli.output import harmless, print_json

HELP = """\
Creates a subscription that lasts until you unsubscribe: `tidings get` then gives you every message put from now
on, including those put while you were away. Subscribing again changes nothing.
"""

EXAMPLES = """\
  tidings subscribe news
  tidings subscribe news sport --as alice
  tidings subscribe news --start earliest      # including everything that is there
  tidings subscribe news --start 1000          # from offset 1000 on
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topics", metavar="TOPIC", nargs="+", help="the topics, each a subscription of its own")
    parser.add_argument(
        "--start",
        type=start,
        default="now",
        help="now (default), earliest, last (the last message and what follows), or an offset",
    )
    parser.add_argument("--json", action="store_true", help="print subscriptions as JSON, one per line")
    connection.add_arguments(parser, named=True)


def run(arguments: argparse.Namespace) -> int:
    with open_bus(arguments) as bus:
        for topic in arguments.topics:
            bus.subscribe(topic, start=arguments.start)
            if arguments.json:
                print_json({"topic": topic, "client": bus.client_id})
            else:
                print(f"{harmless(bus.client_id)} is subscribed to {harmless(topic)}", file=sys.stderr)
    return 0


def start(text: str) -> Literal["now", "earliest", "last"] | int:
    """Where a new subscription begins.

    >>> start("last"), start("12")
    ('last', 12)
    """
    match text:
        case "now" | "earliest" | "last":
            return text
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is none of now, earliest, last or an offset")
    return int(text)
