"""`tidings unsubscribe`: the end of a subscription."""

from __future__ import annotations

import argparse
import sys

from tidings.cli import connection
from tidings.cli.connection import open_bus
from tidings.cli.output import harmless

HELP = """\
Ends your subscription to a topic. Messages that it had not given you yet are no longer kept for you.
"""

EXAMPLES = """\
  tidings unsubscribe news
  tidings unsubscribe news sport --as alice
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topics", metavar="TOPIC", nargs="+", help="the topics")
    connection.add_arguments(parser, named=True)


def run(arguments: argparse.Namespace) -> int:
    with open_bus(arguments) as bus:
        for topic in arguments.topics:
            bus.unsubscribe(topic)
            print(f"{harmless(bus.client_id)} is no longer subscribed to {harmless(topic)}", file=sys.stderr)
    return 0
