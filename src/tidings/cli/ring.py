"""`tidings ring`: a ring of replica groups on one machine for trial, and what the nodes of any ring say."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

import tidings
from tidings.admin.asking import Asking
from tidings.admin.drive import ClientAccount, drive
from tidings.admin.survey import RingView, look
from tidings.admin.trial import Trial, check_size
from tidings.admin.trial_record import RingRecord
from tidings.cli import quantities
from tidings.cli.cluster import curve
from tidings.cli.columns import Cell, aligned
from tidings.cli.output import harmless, print_json
from tidings.cli.progress import progress_bar
from tidings.client import connect_worker
from tidings.errors import InvalidRequest

HELP = """\
Runs a whole ring of replica groups on this machine, to try it out, and inspects it.

  up               starts it, and stops it on Ctrl-C; with --detach it returns and the ring keeps running. After
                   `down` it resumes with what is stored
  status           its groups, their members and leaders, their shares of the circle and how many topics they own
  kill NODE        kills a node (SIGKILL), or with --leader GROUP the leader of that group
  start NODE       restarts a node
  add              adds a group; returns when the group owns part of the circle
  remove GROUP     hands everything of a group to others; returns when its processes have been stopped
  leave            has the group of a node (--at ADDRESS) hand everything to others; returns when it may be switched off
  drive            random commands (subscribe, unsubscribe, put, get) by several clients at all nodes, and a report
  down             stops all processes

Nodes are called a1, a2, ..., and groups a, b, ... Any client may connect to any node: `tidings shell --bus ADDRESS` is
the prompt, and `tidings put`, `get` and all others work as with one broker. status and drive also take --at, the
address of any node of any ring. With keys, leave needs an administrator's (tidings serve --admin).

The exit code is 1 if status finds a node down, a range without an owner, or a node that disseminates otherwise than
the rest, or if drive finds that a message was lost or came twice.
"""

EXAMPLES = """\
  tidings ring up --groups 4 --replicas 3                 # in a terminal of its own, or with --detach
  tidings ring status
  tidings ring kill b2; tidings ring kill --leader a; tidings ring start b2
  tidings ring add; tidings ring remove c
  tidings ring drive --clients 8 --commands 500 --seed 7
  tidings ring up --dissemination gossip --keys keys/ --as alice    # with keys of replica and alice
  tidings ring status --at tcp://10.0.0.5:7500 --json
  tidings ring leave --at tcp://10.0.0.5:7500       # then stop the nodes of that group
  tidings ring down
"""

ACTIONS = ("up", "status", "kill", "start", "add", "remove", "leave", "drive", "down")
DEFAULT_DIR = "tidings-ring"
WATCH_SECONDS = 0.5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=ACTIONS, help="what to do")
    parser.add_argument("name", metavar="NODE|GROUP", nargs="?", help="for kill, start and remove")
    parser.add_argument(
        "--dir",
        metavar="DIR",
        type=Path,
        default=Path(os.environ.get("TIDINGS_RING") or DEFAULT_DIR),
        help=f"where the ring's journals and logs are (or TIDINGS_RING; default: {DEFAULT_DIR})",
    )
    parser.add_argument("--at", metavar="ADDRESS", help="for status, leave and drive: a node of any ring")
    parser.add_argument("--groups", metavar="N", type=quantities.count, help="for up (default: 4)")
    parser.add_argument("--replicas", metavar="N", type=quantities.count, help="for up and add: 1, 3 or 5 (default: 3)")
    parser.add_argument(
        "--dissemination", choices=["scribe", "gossip"], help="for up: how bodies reach readers (default: scribe)"
    )
    parser.add_argument("--detach", action="store_true", help="for up: return once it runs")
    parser.add_argument("--leader", metavar="GROUP", help="for kill: the leader of this group")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--clients", metavar="N", type=quantities.count, default=8, help="for drive (default: 8)")
    parser.add_argument("--commands", metavar="N", type=quantities.count, default=500, help="for drive (default: 500)")
    parser.add_argument("--topics", metavar="N", type=quantities.count, default=10, help="for drive (default: 10)")
    parser.add_argument("--seed", metavar="S", type=int, default=1, help="for drive: decides the commands (default: 1)")
    parser.add_argument(
        "--keys",
        metavar="DIR",
        help="for up: the folder with the keys of the nodes (server, replica) and of the operator; with --at: the "
        "folder with NAME.key and server.pub",
    )
    parser.add_argument(
        "--as",
        dest="client",
        metavar="NAME",
        help="whose key of --keys to use; for up: that of the operator, who is made the ring's administrator",
    )


def run(arguments: argparse.Namespace) -> int:
    _check(arguments)
    if arguments.action == "up":
        return _up(arguments)
    if arguments.action == "status":
        return _status(arguments)
    if arguments.action == "drive":
        return _drive(arguments)
    if arguments.action == "leave":
        return _leave(arguments)
    with _trial(arguments.dir) as trial:
        return _change(arguments, trial)


def _check(arguments: argparse.Namespace) -> None:
    action, name = arguments.action, arguments.name
    takes_name = action in ("kill", "start", "remove")
    if takes_name and (name is None) != (action == "kill" and arguments.leader is not None):
        what = "a group" if action == "remove" else "a node, or --leader GROUP" if action == "kill" else "a node"
        arguments.usage_error(f"{action} needs {what}")
    if not takes_name and name is not None:
        arguments.usage_error(f"{action} takes no name, and {name!r} was given")
    if arguments.keys is not None and arguments.at is None and action != "up":
        arguments.usage_error(f"{action} uses the keys that the ring was started with: leave out --keys")
    if action == "leave" and arguments.at is None:
        arguments.usage_error("leave needs a node of the group: give its address with --at")
    if arguments.at is not None and action not in ("status", "leave", "drive"):
        arguments.usage_error(f"{action} is for a ring on this machine: name its folder with --dir instead of --at")


@contextlib.contextmanager
def _trial(folder: Path) -> Iterator[Trial]:
    """The ring in a folder; what takes seconds is said while it is done, where somebody watches."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield Trial(folder)
        return
    with console.status("") as status:
        yield Trial(folder, tell=lambda what: status.update(f"{what} ..."))


# Up and down.


def _up(arguments: argparse.Namespace) -> int:
    check_size(arguments.groups if arguments.groups is not None else 1, arguments.replicas or 1)
    curve(arguments)  # Says now what is wrong with the keys.
    signal.signal(signal.SIGTERM, _interrupt)  # Stopping this command stops the ring that it runs.
    signal.signal(signal.SIGHUP, _interrupt)
    with _trial(arguments.dir) as trial:
        try:
            keys = (arguments.keys or "", arguments.client or "")
            trial.up(arguments.groups, arguments.replicas, arguments.dissemination, *keys)
        except BaseException:
            trial.give_up()
            raise
    return _stay(arguments, trial)


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def _print_up(arguments: argparse.Namespace, trial: Trial) -> None:
    view = trial.view()
    if arguments.json:
        print_json(_fields(view, trial.record) | {"bus": trial.bus, "dir": str(trial.folder)})
        return
    print(group_table(view, trial.record))
    print(f"\nThe ring runs in {trial.folder}, and any node of it serves any client:")
    print(f"  tidings shell --bus {trial.addresses[0]}")
    print(f"  export TIDINGS_BUS={trial.bus}")
    if not arguments.detach:
        print("Ctrl-C stops it.")
    sys.stdout.flush()


def _stay(arguments: argparse.Namespace, trial: Trial) -> int:
    """Says where the ring is, then waits for Ctrl-C, says which nodes have ended, and stops the others."""
    ended: dict[str, int] = {}
    try:
        _print_up(arguments, trial)
        while not arguments.detach:
            time.sleep(WATCH_SECONDS)
            trial.reap()
            nodes = trial.record.nodes
            for node in nodes:
                if not node.running and ended.get(node.name) != node.pid:
                    ended[node.name] = node.pid
                    print(f"{node.name} has exited: restart it with `tidings ring start {node.name}`", file=sys.stderr)
            if not any(node.running for node in nodes):
                print("No node is running any more.", file=sys.stderr)
                break
        return 0
    except KeyboardInterrupt:
        trial.down()
        return 0
    except BaseException:
        trial.down()
        raise


# Changes.


def _change(arguments: argparse.Namespace, trial: Trial) -> int:
    match arguments.action:
        case "kill":
            name = trial.leader(arguments.leader).name if arguments.leader is not None else arguments.name
            node = trial.kill(name)
            said: dict[str, Any] = {"node": node.name, "address": node.address, "pid": node.pid}
            sentence = f"{node.name} ({node.address}) was killed"
        case "start":
            node = trial.start(arguments.name)
            said = {"node": node.name, "address": node.address, "pid": node.pid}
            sentence = f"{node.name} ({node.address}) runs"
        case "add":
            group = trial.add(arguments.replicas)
            view = trial.group_view(group)
            share = view.share if view is not None else 0.0
            said = {"group": group, "nodes": [node.name for node in trial.record.group(group)], "share": share}
            sentence = f"The group {group} has joined, and owns {share:.1%} of the circle"
        case "remove":
            trial.remove(arguments.name)
            said = {"group": arguments.name}
            sentence = f"The group {arguments.name} has left, and its processes are stopped"
        case _:
            count = trial.down()
            said = {"stopped": count}
            sentence = f"{count} nodes are stopped"
    if arguments.json:
        print_json(said)
    else:
        print(sentence)
    return 0


def _leave(arguments: argparse.Namespace) -> int:
    from tidings.admin.asking import LEADER_SECONDS, Asking
    from tidings.admin.trial import MOVE_SECONDS_MAX
    from tidings.protocols.broker.operators import AskRing, LeaveRing, Ring, RingLeft

    asking = Asking(arguments.at.split(","), curve(arguments))
    asking.first(AskRing(1), Ring)  # Says so at once if nobody is there.
    advice = "the group goes on leaving by itself, so ask again."
    asking.ask_leader(LeaveRing(1), RingLeft, MOVE_SECONDS_MAX, advice, patience=LEADER_SECONDS)
    if arguments.json:
        print_json({"at": arguments.at, "left": True})
    else:
        print("The group has left the ring, and its nodes may be switched off")
    return 0


# Looking.


def _status(arguments: argparse.Namespace) -> int:
    known = None
    if arguments.at is not None:
        view = look(Asking(arguments.at.split(","), curve(arguments)))
    else:
        with _trial(arguments.dir) as trial:
            known = trial.record
            view = trial.view()
    down = [node.name for node in known.nodes if not node.running] if known is not None else []
    if arguments.json:
        print_json(_fields(view, known) | {"down": down})
    else:
        print(group_table(view, known))
        for name in down:
            print(f"{name} is down", file=sys.stderr)
        told = {node.address for node in known.nodes if not node.running} if known is not None else set()
        for problem in view.problems:
            if not any(problem.startswith(address) for address in told):
                print(harmless(problem), file=sys.stderr)
    return 0 if view.whole and not down else 1


def group_table(view: RingView, known: RingRecord | None) -> str:
    """The groups of a ring, with their names if it is one of ours."""
    rows: list[list[Cell]] = []
    for group in view.groups:
        names = [_name(address, known) for address in group.members]
        silent = {_name(address, known) for address in group.silent}
        rows.append(
            [
                _letters(group.members, known) or group.group[:8],
                group.group[:8],
                f"{group.share:6.1%}",
                group.topics,
                _name(group.leader, known) if group.leader else "nobody",
                " ".join(f"{name} (down)" if name in silent else name for name in names),
            ]
        )
    rows.sort(key=lambda row: (len(str(row[0])), row[0]))
    return aligned(["group", "id", " share", "topics", "leader", "members"], rows)


def _letters(members: tuple[str, ...], known: RingRecord | None) -> str:
    nodes = known.nodes if known is not None else ()
    return next((node.group for node in nodes if node.address in members), "")


def _name(address: str, known: RingRecord | None) -> str:
    return known.name_of(address) if known is not None else address


def _fields(view: RingView, known: RingRecord | None) -> dict[str, Any]:
    return {
        "groups": [
            {
                "group": _letters(group.members, known) or group.group[:8],
                "id": group.group,
                "leader": group.leader,
                "share": group.share,
                "topics": group.topics,
                "members": [
                    {
                        "name": _name(address, known),
                        "address": address,
                        "answers": address not in group.silent,
                        "dissemination": view.dissemination.get(address),
                    }
                    for address in group.members
                ],
            }
            for group in view.groups
        ],
        "whole": view.whole,
        "problems": list(view.problems),
    }


# Driving.


def _drive(arguments: argparse.Namespace) -> int:

    connect: Any = tidings.connect
    keys, user = arguments.keys, arguments.client
    if arguments.at is None:
        trial = Trial(arguments.dir)
        addresses, keys, user = trial.addresses, trial.record.keys or None, trial.record.operator
    else:
        view = look(Asking(arguments.at.split(","), curve(arguments)))
        addresses = [each for group in view.groups for each in group.members if each not in group.silent]
    if keys is not None:

        def connect(nodes: str, name: str, **given: Any) -> tidings.Bus:
            return connect_worker(nodes, user, keys=keys, **given)

    if not addresses:
        raise InvalidRequest(f"No node of the ring in {arguments.dir} runs: start it with `tidings ring up`.")
    with progress_bar("commands", arguments.commands) as tell:
        accounts = drive(
            addresses, arguments.clients, arguments.commands, arguments.topics, arguments.seed, tell, connect
        )
    if arguments.json:
        for account in accounts:
            print_json(msgspec.to_builtins(account))
    else:
        print(account_table(accounts))
    return 0 if all(account.right for account in accounts) else 1


def account_table(accounts: list[ClientAccount]) -> str:
    """The accounts of a drive, and their sum; of the longest time the longest."""
    columns = ("subscribed", "unsubscribed", "published", "delivered", "lost", "doubled", "strange")
    rows: list[list[Cell]] = [
        [f"client {number}", account.node, *(getattr(account, name) for name in columns), account.longest_ms]
        for number, account in enumerate(accounts, 1)
    ]
    total: list[Cell] = [sum(getattr(account, name) for account in accounts) for name in columns]
    rows.append(["all", "", *total, max(account.longest_ms for account in accounts)])
    return aligned(["client", "node", *columns, "longest ms"], rows)
