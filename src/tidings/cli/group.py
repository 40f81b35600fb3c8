"""`tidings group`: the members of a replica group, and how they come and go."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from rich.text import Text

from tidings.cli import quantities, watching
from tidings.cli.output import harmless, print_json
from tidings.errors import InvalidRequest, TidingsError, Unavailable, from_number
from tidings.protocols.broker import messages
from tidings.settings import NodeSettings
from tidings.wire.codec import decode_answer, encode

if TYPE_CHECKING:
    from rich.table import Table

    from tidings.transport.curve import ClientOptions

HELP = """\
Speaks to the members of a replica group (see tidings serve --group).

  status           who belongs to it, who leads, how far each has applied the log (the default)
  add ADDRESS      takes in a node that was started with --join; ends when the node votes
  remove MEMBER    takes a member out, named by its number or its address; ends when it may be switched off

The exit code is 1 if a member does not answer or nobody leads.
"""

EXAMPLES = """\
  tidings group --bus tcp://127.0.0.1:7401
  tidings group status --bus tcp://127.0.0.1:7401,tcp://127.0.0.1:7402 --json
  tidings serve --data d/ --bind tcp://127.0.0.1:7404 --join tcp://127.0.0.1:7401   # in a terminal of its own, then
  tidings group add tcp://127.0.0.1:7404 --bus tcp://127.0.0.1:7401
  tidings group remove 1 --bus tcp://127.0.0.1:7402
"""

ANSWER_SECONDS = 1.0
CHANGE_SECONDS = 120.0
RETRY_SECONDS = 0.2

Wanted = TypeVar("Wanted")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", nargs="?", choices=["status", "add", "remove"], default="status", help="what to do")
    parser.add_argument("member", metavar="MEMBER", nargs="?", help="for add and remove: an address, or a number")
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
    parser.add_argument("--keys", metavar="DIR", help="the folder with NAME.key and server.pub, if members want keys")
    parser.add_argument("--as", dest="client", metavar="NAME", help="whose key to use")


def run(arguments: argparse.Namespace) -> int:
    members = Members(arguments.bus.split(","), _curve(arguments))
    if arguments.action == "status":
        return _status(arguments, members)
    if arguments.member is None:
        raise InvalidRequest(f"`tidings group {arguments.action}` needs a member: give its address.")
    if arguments.action == "add":
        request: messages.AnyRequest = messages.AddMember(1, arguments.member)
    else:
        request = messages.RemoveMember(1, arguments.member)
    found = members.ask_leader(request, arguments.timeout)
    if arguments.json:
        print_json(_fields(found, {}))
    else:
        done = "votes now" if arguments.action == "add" else "may be switched off now"
        print(f"{harmless(arguments.member)} {done}; the group has {len(found.members)} members")
    return 0


def _curve(arguments: argparse.Namespace) -> ClientOptions | None:
    if arguments.keys is None:
        return None
    if arguments.client is None:
        raise InvalidRequest("With --keys the members know you by your key: give its name with --as NAME.")
    from tidings.transport.curve import client_options

    return client_options(Path(arguments.keys), arguments.client)


class Members:
    """Asks members of a group, one by one."""

    def __init__(self, addresses: list[str], curve: ClientOptions | None) -> None:
        self._addresses = [address if "://" in address else f"tcp://{address}" for address in addresses]
        self._curve = curve

    def ask(self, address: str, request: messages.AnyRequest, seconds: float) -> messages.AnyAnswer | None:
        """What a member answers; None if it does not."""
        from tidings.transport.zeromq import DealerLink

        link = DealerLink(address, self._curve)
        try:
            link.send([encode(request)])
            deadline = time.monotonic() + seconds
            while (left := deadline - time.monotonic()) > 0:
                frames = link.receive(max(1, round(left * 1000)))
                if frames is not None:
                    return decode_answer(frames[0])
            return None
        finally:
            link.close()

    def first_view(self) -> messages.Members:
        """What the first member that answers knows."""
        refused: TidingsError | None = None
        for address in self._addresses:
            answer = self.ask(address, messages.AskMembers(1), ANSWER_SECONDS)
            if isinstance(answer, messages.Members):
                return answer
            if isinstance(answer, messages.Failed):
                refused = from_number(answer.number, answer.text)
        if refused is not None:
            raise refused
        raise Unavailable(f"No member answers at {', '.join(self._addresses)}: are they running there?")

    def views(self, first: messages.Members) -> Iterator[tuple[messages.MemberInfo, messages.Members | None]]:
        """Every member, and what it says itself."""
        for member in first.members:
            answer = self.ask(member.address, messages.AskMembers(1), ANSWER_SECONDS)
            yield member, answer if isinstance(answer, messages.Members) else None

    def ask_leader(self, request: messages.AnyRequest, seconds: float) -> messages.Members:
        """Asks whoever leads, and again after a change of the leader: what is wanted can be wanted twice."""
        deadline = time.monotonic() + seconds
        addresses = list(self._addresses)
        while (left := deadline - time.monotonic()) > 0:
            address = addresses.pop(0)
            answer = self.ask(
                address, request, left if address not in self._addresses else min(left, ANSWER_SECONDS * 5)
            )
            match answer:
                case messages.Members():
                    return answer
                case messages.Failed(_, number, text):
                    raise from_number(number, text)
                case messages.Elsewhere(_, leader, members):
                    addresses = [*([leader] if leader else []), *members, *self._addresses]
                    if not leader:
                        time.sleep(RETRY_SECONDS)
            addresses = addresses or list(self._addresses)
        raise Unavailable(f"The change has not come about in {seconds:g} s: see `tidings group status`, and try again.")


def _status(arguments: argparse.Namespace, members: Members) -> int:
    first = members.first_view()
    views = list(members.views(first))
    applied = {member.number: view.applied for member, view in views if view is not None}
    newest = max((view for _, view in views if view is not None), key=lambda view: view.applied, default=first)
    if arguments.json:
        print_json(_fields(newest, applied))
    else:
        print(f"group {newest.group[:8]}, {len(newest.members)} members")
        watching.show(lambda: member_table(newest, applied), False, "")
    leads = any(member.leads for member in newest.members)
    return 0 if leads and len(applied) == len(first.members) else 1


def _fields(found: messages.Members, applied: dict[int, int]) -> dict[str, object]:
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


def member_table(found: messages.Members, applied: dict[int, int]) -> Table:
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
