"""`tidings groups`: who shares which work."""

from __future__ import annotations

import argparse
from collections.abc import Iterable

import msgspec
from rich.table import Table
from rich.text import Text

from tidings.cli import connection, watching
from tidings.cli.connection import open_bus
from tidings.cli.output import harmless, print_json
from tidings.message import GroupInfo, MemberInfo

HELP = """\
Lists the consumer groups of a bus with their members: how many lanes each works on, what it has in flight, and what
waits for it. The lag of a group is the number of messages that are not acked yet.

With --delays: how many of a member's acks were delayed (by more than 0.3 s) since its stream began, how many of the
last minute were slow (more than 5 s; three move its waiting lanes), and the longest that one took.
"""

EXAMPLES = """\
  tidings groups
  tidings groups jobs --watch
  tidings groups jobs --delays
  tidings groups --json | jq .lag
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topic", metavar="TOPIC", nargs="?", help="only the groups on this topic")
    parser.add_argument("--json", action="store_true", help="print groups as JSON, one per line")
    parser.add_argument("--delays", action="store_true", help="show how late acks were, instead of what there is to do")
    watching.add_arguments(parser)
    connection.add_arguments(parser, named=False)


def run(arguments: argparse.Namespace) -> int:
    table, nothing = (delay_table, "members") if arguments.delays else (group_table, "groups")
    with open_bus(arguments) as bus:
        if arguments.json:
            for info in bus.groups(arguments.topic):
                print_json(msgspec.to_builtins(info))
        else:
            watching.show(lambda: table(bus.groups(arguments.topic)), arguments.watch, f"There are no {nothing} yet.")
    return 0


def group_table(groups: Iterable[GroupInfo]) -> Table:
    """The groups as an aligned table, each followed by its members."""
    table = watching.plain_table(
        ("group", "topic", "member", "state"), ("lanes", "in flight", "waiting", "lag", "moved lanes")
    )
    for group in groups:
        names = (Text(harmless(group.name)), Text(harmless(group.topic)))
        table.add_row(*names, "", "", f"{group.lanes:,}", "", "", f"{group.lag:,}", f"{group.moved_lanes:,}")
        for member in group.members:
            numbers = (f"{number:,}" for number in (member.lanes, member.in_flight, member.waiting))
            table.add_row("", "", Text(harmless(member.name)), _state(member), *numbers, "", "")
    return table


def delay_table(groups: Iterable[GroupInfo]) -> Table:
    """The members of all groups, and how late their acks were."""
    table = watching.plain_table(("group", "topic", "member", "state"), ("delayed", "slow", "longest"))
    for group in groups:
        for member in group.members:
            names = (Text(harmless(name)) for name in (group.name, group.topic, member.name))
            counts = (f"{member.delayed_acks:,}", f"{member.slow_acks:,}", f"{member.longest_ms:,} ms")
            table.add_row(*names, _state(member), *counts)
    return table


def _state(member: MemberInfo) -> str:
    if not member.active:
        return "[red]away[/]"
    return "[yellow]slow[/]" if member.slow else "[green]works[/]"
