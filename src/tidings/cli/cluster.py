"""`tidings cluster`: the members of a replica group, and how they come and go."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from rich.table import Table
from rich.text import Text

from tidings.admin.asking import Asking, spelled
from tidings.cli import quantities, watching
from tidings.cli.output import harmless, print_json
from tidings.errors import InvalidRequest
from tidings.protocols.broker import messages, operators
from tidings.settings import NodeSettings, check_reachable
from tidings.transport.curve import ClientOptions, client_options

HELP = """\
Talks to the members of a replica group (see tidings serve --group).

  status           its members, its leader, and how far each has applied the log (the default)
  add ADDRESS      adds a node that was started with --into; returns when the node votes
  remove MEMBER    removes a member, by its number or address; returns when it may be switched off

If the members have keys, add and remove need the key of an administrator (--admin NAME).
The exit code is 1 if a member does not answer or there is no leader.
"""

EXAMPLES = """\
  tidings cluster --bus tcp://127.0.0.1:7401
  tidings cluster status --bus tcp://127.0.0.1:7401,tcp://127.0.0.1:7402 --json
  tidings serve --data d/ --bind tcp://127.0.0.1:7404 --into tcp://127.0.0.1:7401   # in a terminal of its own, then
  tidings cluster add tcp://127.0.0.1:7404 --bus tcp://127.0.0.1:7401
  tidings cluster remove 1 --bus tcp://127.0.0.1:7402
"""

CHANGE_SECONDS = 120.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", nargs="?", choices=["status", "add", "remove"], default="status", help="what to do")
    parser.add_argument(
        "member", metavar="MEMBER", nargs="?", help="for add: an address; for remove: an address or a number"
    )
    parser.add_argument(
        "--bus",
        metavar="ADDRESSES",
        default=os.environ.get("TIDINGS_BUS") or NodeSettings().bind,
        help="one member or several (or TIDINGS_BUS)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--timeout",
        metavar="SECONDS",
        type=quantities.seconds,
        default=CHANGE_SECONDS,
        help=f"how long a change may take (default: {CHANGE_SECONDS:.0f})",
    )
    parser.add_argument(
        "--keys", metavar="DIR", help="the folder with NAME.key and server.pub, if the members have keys"
    )
    parser.add_argument("--as", dest="client", metavar="NAME", help="whose key to use; changes need an administrator's")


def run(arguments: argparse.Namespace) -> int:
    members = Asking(arguments.bus.split(","), curve(arguments))
    if arguments.action == "status":
        return _status(arguments, members)
    if arguments.member is None:
        raise InvalidRequest(f"`tidings cluster {arguments.action}` needs a member: give its address.")
    member = arguments.member.strip()
    if not member.isdecimal():
        member = spelled(member)
        check_reachable(member)
    elif arguments.action == "add":
        raise InvalidRequest(f"A node that is to be added has no number yet: give its address instead of {member}.")
    kind = operators.AddMember if arguments.action == "add" else operators.RemoveMember
    request: messages.AnyRequest = kind(1, member)
    advice = "see `tidings cluster status`, and try again."
    found = members.ask_leader(request, operators.Members, arguments.timeout, advice)
    if arguments.json:
        print_json(_fields(found, {}))
    else:
        done = "votes now" if arguments.action == "add" else "may be switched off now"
        print(f"{harmless(member)} {done}; the group has {len(found.members)} members")
    return 0


def curve(arguments: argparse.Namespace) -> ClientOptions | None:
    """The key that --keys and --as name, for connections to single nodes."""
    if arguments.keys is None:
        return None
    if arguments.client is None:
        raise InvalidRequest("With --keys the nodes know you by your key: give its name with --as NAME.")
    return client_options(Path(arguments.keys), arguments.client)


def _status(arguments: argparse.Namespace, members: Asking) -> int:
    first = members.first_view()
    views = list(members.views(first))
    applied = {member.number: view.applied for member, view in views if view is not None}
    newest = max((view for _, view in views if view is not None), key=lambda view: view.applied, default=first)
    if arguments.json:
        print_json(_fields(newest, applied))
    else:
        print(f"group {newest.group[:8]}, {len(newest.members)} members" if newest.group else "a broker alone")
        watching.show(lambda: member_table(newest, applied), False, "")
    leads = any(member.leads for member in newest.members)
    return 0 if leads and len(applied) == len(first.members) else 1


def _fields(found: operators.Members, applied: dict[int, int]) -> dict[str, object]:
    return {
        "group": found.group,
        "members": [
            {
                "number": member.number,
                "address": member.address,
                "role": member.role,
                "leads": member.leads,
                "applied": applied.get(member.number),
            }
            for member in found.members
        ],
    }


def member_table(found: operators.Members, applied: dict[int, int]) -> Table:
    """The members as an aligned table."""
    table = watching.plain_table(("member", "address", "role"), ("applied", "behind"))
    newest = max(applied.values(), default=0)
    for member in found.members:
        has = applied.get(member.number)
        table.add_row(
            str(member.number),
            Text(harmless(member.address)),
            "leader" if member.leads else member.role,
            "no answer" if has is None else f"{has:,}",
            "" if has is None else f"{newest - has:,}",
        )
    return table
