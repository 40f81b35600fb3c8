"""`tidings nodes`: what the nodes of an overlay see, a prompt on one of them, and a client that draws its commands."""

from __future__ import annotations

import argparse
import os
import sys

import msgspec

from tidings.cli import quantities
from tidings.cli.cluster import curve
from tidings.cli.columns import Cell, aligned
from tidings.cli.node_view import view_lines
from tidings.cli.output import harmless, print_json
from tidings.errors import Unavailable
from tidings.peer.caller import TIMEOUT_SECONDS, NodeCaller, NodeView
from tidings.peer.drive import NodeAccount, drive
from tidings.peer.survey import LOOK_SECONDS, Survey, walk
from tidings.settings import PeerSettings
from tidings.transport.curve import ClientOptions

HELP = """\
Talks to the nodes of a bare overlay (see tidings node).

  look    what a node sees (the default); with --all, walks from node to node and checks that the overlay is whole
  shell   a prompt on one node: subscribe, unsubscribe, publish, received, status
  drive   random commands to a node, or with --all to all of them, and a report of what arrived

The exit code is 1 if --all finds that the overlay is not whole, or if drive finds a message missing or doubled.
"""

EXAMPLES = """\
  tidings nodes --at tcp://127.0.0.1:7500
  tidings nodes --at tcp://127.0.0.1:7500 --all --json
  tidings nodes shell --at tcp://127.0.0.1:7500
  printf 'subscribe news\\npublish news hello\\n' | tidings nodes shell --at tcp://127.0.0.1:7500
  tidings nodes drive --at tcp://127.0.0.1:7500 --all --commands 200 --seed 1
"""

DEFAULT = PeerSettings().bind


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", nargs="?", choices=["look", "shell", "drive"], default="look", help="what to do")
    parser.add_argument(
        "--at",
        metavar="ADDRESS",
        default=os.environ.get("TIDINGS_NODE") or DEFAULT,
        help=f"a node (or TIDINGS_NODE; default: {DEFAULT})",
    )
    parser.add_argument("--all", action="store_true", help="every node that can be reached from there")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--timeout", metavar="SECONDS", type=quantities.seconds, help="how long to wait for a node")
    parser.add_argument("--commands", metavar="N", type=quantities.count, default=100, help="for drive (default: 100)")
    parser.add_argument("--topics", metavar="N", type=quantities.count, default=5, help="for drive (default: 5)")
    parser.add_argument("--seed", metavar="S", type=int, default=1, help="for drive: decides the commands (default: 1)")
    parser.add_argument("--keys", metavar="DIR", help="the folder with NAME.key and server.pub, for nodes with keys")
    parser.add_argument("--as", dest="client", metavar="NAME", help="whose key to use")


def run(arguments: argparse.Namespace) -> int:
    address = arguments.at if "://" in arguments.at else f"tcp://{arguments.at}"
    keys = curve(arguments)
    if arguments.action == "shell":
        from tidings.cli import node_shell

        return node_shell.serve(address, keys)
    if arguments.action == "drive":
        return _drive(arguments, address, keys)
    return _look_at_all(arguments, address, keys) if arguments.all else _look(arguments, address, keys)


def _no_answer(address: str) -> Unavailable:
    return Unavailable(f"The node at {address} does not answer: is it running, and is that its address?")


# Looking.


def _look(arguments: argparse.Namespace, address: str, keys: ClientOptions | None) -> int:
    with NodeCaller(address, keys, arguments.timeout or TIMEOUT_SECONDS) as caller:
        view = caller.look()
    if arguments.json:
        print_json(msgspec.to_builtins(view))
    else:
        for title, text in view_lines(view):
            print(f"{title:<14} {harmless(text)}")
    return 0


def _look_at_all(arguments: argparse.Namespace, address: str, keys: ClientOptions | None) -> int:
    survey = walk(address, keys, arguments.timeout or LOOK_SECONDS)
    if not survey.nodes:
        raise _no_answer(address)
    if arguments.json:
        fields = msgspec.to_builtins(survey)
        print_json({"overlay": survey.nodes[0].overlay, "whole": survey.whole, **fields})
    else:
        print(survey_table(survey))
        _print_verdict(survey)
    return 0 if survey.whole else 1


def survey_table(survey: Survey) -> str:
    """The nodes of an overlay, a ring in its order."""
    return aligned([*_place(survey.nodes[0]), *COUNTS], [_row(view) for view in survey.nodes])


COUNTS = ("topics", "published", "arrived", "sent")


def _row(view: NodeView) -> list[Cell]:
    sent = sum(sum(kinds.values()) for kinds in view.sent.values())
    return [*_place(view).values(), len(view.subscriptions), view.published, view.arrived, sent]


def _place(view: NodeView) -> dict[str, Cell]:
    """What is special about a node of its overlay, with titles."""
    place: dict[str, Cell] = {"node": view.address}
    if view.ring is not None:
        place["successor"] = view.ring.successors[0] if view.ring.successors else "none"
        place["fingers"] = len(view.ring.fingers)
        place["owns"] = sum(tree.is_root for tree in view.trees)
        place["children"] = sum(len(tree.children) for tree in view.trees)
    if view.views is not None:
        place["active"], place["passive"] = len(view.views.active), len(view.views.passive)
    return place


def _print_verdict(survey: Survey) -> None:
    ring = survey.nodes[0].ring is not None
    shape = "one ordered ring, and its trees are whole" if ring else "connected, and their active views are mutual"
    if survey.silent:
        print(f"{len(survey.silent)} more are known and do not answer: {', '.join(survey.silent[:5])}")
    if survey.whole:
        print(f"{len(survey.nodes)} nodes are {shape}.")
    for problem in survey.problems:
        print(harmless(problem), file=sys.stderr)


# Driving.


def _drive(arguments: argparse.Namespace, address: str, keys: ClientOptions | None) -> int:
    addresses = [view.address for view in walk(address, keys).nodes] if arguments.all else [address]
    if not addresses:
        raise _no_answer(address)
    accounts = drive(addresses, arguments.commands, arguments.seed, arguments.topics, keys)
    if arguments.json:
        for account in accounts:
            print_json(msgspec.to_builtins(account))
    else:
        print(account_table(accounts))
    return 1 if any(account.missing or account.doubled or account.strange for account in accounts) else 0


def account_table(accounts: list[NodeAccount]) -> str:
    """The accounts of a drive, and their sum."""
    columns = ("subscribed", "unsubscribed", "published", "received", "owed", "missing", "doubled", "strange")
    rows: list[list[Cell]] = [[account.node, *(getattr(account, name) for name in columns)] for account in accounts]
    rows.append(["all", *(sum(getattr(account, name) for account in accounts) for name in columns)])
    return aligned(["node", *columns], rows)
