"""`tidings get`: the next message of a subscription, or of each one, or all as they come."""

from __future__ import annotations

import argparse

from tidings.cli import connection, quantities, work
from tidings.cli.connection import open_bus
from tidings.cli.output import harmless, message_fields, print_json, print_value
from tidings.errors import NotSubscribed
from tidings.message import Message

HELP = """\
Prints the next message of your subscription to a topic and exits with 0, or exits with 3 when there is none.
Without TOPIC it takes one message from each of your topics. With --group it takes the next message of a group, as a
member of it.
"""

EXAMPLES = """\
  tidings get news
  tidings get news --timeout 10           # wait up to ten seconds for one
  tidings get news --follow               # print messages as they come, until Ctrl-C
  tidings get news --json | jq .offset
  tidings get jobs --group workers        # one message of a group; tidings work takes them all
  tidings get --as alice                  # one message from each of alice's topics
"""

NOTHING = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topic", metavar="TOPIC", nargs="?", help="the topic (default: each of your topics)")
    parser.add_argument("--group", metavar="NAME", help="take it from this group, which is made if it is missing")
    parser.add_argument("--follow", "-f", action="store_true", help="keep printing messages as they come")
    parser.add_argument(
        "--timeout",
        dest="wait",
        metavar="SECONDS",
        type=quantities.seconds,
        help="seconds to wait for a message (default: 0; with --follow: forever)",
    )
    parser.add_argument("--json", action="store_true", help="print messages as JSON, one per line")
    connection.add_arguments(parser, named=True, timeout=False)


def run(arguments: argparse.Namespace) -> int:
    if arguments.topic is None and (arguments.follow or arguments.wait):
        arguments.usage_error("--follow and --timeout need a TOPIC")
    if arguments.group is not None:
        return _take(arguments)
    if arguments.follow:
        return _follow(arguments)
    with open_bus(arguments) as bus:
        if arguments.topic is None:
            found = bus.get_all()
            for message in found.values():
                _show(message, arguments.json, with_topic=True)
            return 0 if found else NOTHING
        found_one = bus.get(arguments.topic, timeout=arguments.wait or 0.0)
    if found_one is None:
        return NOTHING
    _show(found_one, arguments.json)
    return 0


def _take(arguments: argparse.Namespace) -> int:
    """What a member of the group gets, by a name for the moment unless one is given: the others go on with the rest."""
    if arguments.topic is None:
        arguments.usage_error("--group needs a TOPIC")
    chosen: dict[str, object] = {
        "named": False,
        "command": [],
        "count": None if arguments.follow else 1,
        "wait": arguments.wait if arguments.follow else arguments.wait or 0.0,
        "start": "earliest",
        "lanes": None,
        "preset": None,
    }
    return work.run(argparse.Namespace(**{**vars(arguments), **chosen}))


def _follow(arguments: argparse.Namespace) -> int:
    """A message is acknowledged after it was printed, so one that found no reader is not lost."""
    code = NOTHING
    with open_bus(arguments) as bus:
        if (arguments.topic,) not in [tuple(s) for s in bus.subscriptions()]:
            raise NotSubscribed(f"You have no subscription to {arguments.topic!r}: make one with tidings subscribe.")
        for message in bus.subscribe(arguments.topic).messages(timeout=arguments.wait):
            _show(message, arguments.json)
            code = 0
    return code


def _show(message: Message, as_json: bool, with_topic: bool = False) -> None:
    if as_json:
        print_json(message_fields(message))
    else:
        print_value(message.value, f"{harmless(message.topic)}: " if with_topic else "")
