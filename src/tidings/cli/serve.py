"""`tidings serve`: a broker alone, a member of a group or a node of a ring, until it is told to stop."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tidings import settings
from tidings.cli import addresses, gateways, quantities
from tidings.errors import InvalidRequest
from tidings.settings.broker import PRESETS

if TYPE_CHECKING:
    from tidings.gateways.sockets import SocketDoor

HELP = """\
Runs a broker on the journal in a folder, until SIGTERM, Ctrl-C or `tidings stop`. By default it is a single broker.
With --group or --into it is a member of a replica group, with --ring or --join a node of a ring of such groups. Its
folder remembers which: to restart it, --data and --bind are enough.

Acknowledged messages survive a crash, a kill and a power cut. Flags override TIDINGS_* variables, and these override
tidings.toml.
"""

EXAMPLES = """\
  tidings serve --data data/
  tidings serve --data data/ --bind tcp://127.0.0.1:* --ready-file address   # any free port, written to a file
  tidings serve --data data/ --bind tcp://*:7400 --keys keys/ --admin alice  # for other machines, with keys
  tidings serve --data data/ --retain-age 7d --retain-bytes 1GB              # old messages may be removed
  tidings serve --data data/ --topics on-subscribe                           # only a subscribe creates a topic
  tidings serve --data data/ --sockets 4200                                  # also for editors and subscribers
  tidings serve --data data/ --sockets 0.0.0.0:4200 --sockets-allow 10.0.0.0/24
  tidings serve --data data/ --http                                          # also spells out numbers, on port 7480
  tidings serve --storage tcp://127.0.0.1:7410                               # the journal is at a `tidings storage`
  # In a group: one of its three founders; a fourth node, before `tidings cluster add`.
  tidings serve --data a/ --bind tcp://127.0.0.1:7401 --group tcp://127.0.0.1:7401,tcp://127.0.0.1:7402,tcp://127.0.0.1:7403
  tidings serve --data d/ --bind tcp://127.0.0.1:7404 --into tcp://127.0.0.1:7401
  # In a ring: its first group, of one node; a second group; a third, with --group for each of its nodes.
  tidings serve --data a/ --bind tcp://127.0.0.1:7501 --ring
  tidings serve --data b/ --bind tcp://127.0.0.1:7502 --join tcp://127.0.0.1:7501
  tidings serve --data c/ --bind tcp://10.0.0.3:7501 --keys keys/ --join tcp://10.0.0.1:7501 --group $ADDRESSES
  tidings serve --data data/ --join tcp://127.0.0.1:7501                     # a single broker joins, with its topics
"""

OWN_FOLDER = "a node of a group or a ring keeps its own folder: give --data"
CONTRADICTIONS = (
    ("ring", "join", "begin a ring or join one"),
    ("ring", "into", "begin a ring or join a group"),
    ("group", "into", "found a group or join one"),
    *(("storage", option, OWN_FOLDER) for option in ("group", "into", "ring", "join")),
    ("digits", "http", "spell out numbers or leave them"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    place = parser.add_mutually_exclusive_group(required=True)
    place.add_argument("--data", metavar="DIR", type=addresses.folder, help="the journal's folder, created if missing")
    place.add_argument(
        "--storage", metavar="ADDRESS", help="the storage server that keeps the journal (see tidings storage)"
    )
    parser.add_argument(
        "--storage-keys",
        metavar="DIR",
        help="the folder with broker.key and server.pub, if the storage server has keys",
    )
    parser.add_argument("--bind", metavar="ADDRESS", help="where to listen (default: tcp://127.0.0.1:7400)")
    add_broker_arguments(parser)
    parser.add_argument(
        "--ready-file",
        metavar="PATH",
        type=Path,
        help="write the address there once the server answers; that of its web service on a second line",
    )
    gateways.add_arguments(parser.add_argument_group("for other protocols"))
    add_role_arguments(parser.add_argument_group("in a group or a ring"))


def add_role_arguments(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--group",
        metavar="ADDRESSES",
        type=addresses.several,
        help="found a replica group of 1, 3 or 5 nodes: the addresses of all, the same list for each node",
    )
    parser.add_argument(
        "--into",
        metavar="ADDRESSES",
        type=addresses.several,
        help="join the group that these members belong to (then run tidings cluster add)",
    )
    parser.add_argument(
        "--ring", action="store_true", help="begin a ring: this node, or the group of its --group, is its first group"
    )
    parser.add_argument(
        "--join",
        metavar="ADDRESS",
        type=addresses.nodes,
        action="extend",
        help="join a ring as a new group, by the address of any of its nodes; --group: a group of several nodes; "
        "the folder of a broker or a group brings all its topics",
    )
    parser.add_argument(
        "--dissemination",
        choices=["scribe", "gossip"],
        help="how bodies reach readers at several nodes of a ring, the same for all nodes (default: scribe)",
    )
    parser.add_argument(
        "--advertise", metavar="ADDRESS", help="the address at which other nodes reach this one (default: --bind)"
    )
    parser.add_argument(
        "--trust-copy",
        action="store_true",
        help="let a copied folder vote in its member's place; only safe if that member has not run since the copy",
    )


def run(arguments: argparse.Namespace) -> int:
    for one, other, choice in CONTRADICTIONS:
        if not any(getattr(arguments, option) is each for option in (one, other) for each in (None, False)):
            arguments.usage_error(f"--{one} and --{other} contradict each other: {choice}")
    # Ports are taken before the server begins, so that one that is not to be had leaves nothing half started.
    with contextlib.ExitStack() as stack:
        sockets = gateways.socket_settings(arguments)
        serve, doors, place = server(arguments, sockets, stack)
        web = stack.enter_context(gateways.web_service(arguments, sockets))
        write = stack.enter_context(addresses.ready_file(arguments.ready_file))

        def on_ready(address: str) -> None:
            if web is not None:
                web.start()
            write(address + "\n" + (f"{web.address}\n" if web is not None else ""))
            print(f"tidings serves {address} from {place}", file=sys.stderr, flush=True)
            for door in doors:
                print(f"tidings takes editors and subscribers at {door.address}", file=sys.stderr, flush=True)
            if web is not None:
                print(f"tidings spells numbers at {web.address}/spell", file=sys.stderr, flush=True)

        serve(on_ready)
    return 0


def server(
    arguments: argparse.Namespace, sockets: settings.SocketsSettings, stack: contextlib.ExitStack
) -> tuple[Callable[[Callable[[str], None]], None], list[SocketDoor], str]:
    """What runs the server that is asked for, its doors for sockets, and where its journal is."""
    from tidings.cli import roles
    from tidings.journal import folder
    from tidings.transport import curve

    door = {"bind": addresses.free_port(arguments.bind), "keys": arguments.keys}
    storage = {"storage": arguments.storage, "storage_keys": arguments.storage_keys}
    node = settings.load(settings.NodeSettings, door | storage)
    broker = broker_settings(arguments)
    journal = settings.load(settings.JournalSettings, {"durability": arguments.durability})
    members = {"group": arguments.group, "join": arguments.into, "advertise": arguments.advertise}
    group = settings.load(settings.GroupSettings, members)
    contacts = {"contacts": arguments.join, "dissemination": arguments.dissemination}
    ring = settings.load(settings.RingSettings, contacts)
    replica = settings.load(settings.ReplicaSettings)
    curve.check_bind(node.bind, node.keys)

    role, group = roles.decide(arguments.data, arguments.ring, group, ring, node)
    if role != folder.RING and arguments.dissemination is not None:
        arguments.usage_error("only a ring has --dissemination: leave it out, or add --ring or --join")
    if role != folder.BROKER and arguments.data is None:
        raise InvalidRequest(f"{OWN_FOLDER.capitalize()} instead of a storage server.")
    from tidings.admin.asking import drawn_group, held_at
    from tidings.node import process

    doors = [stack.enter_context(each) for each in gateways.socket_doors(sockets)]
    look = partial(held_at, addresses=ring.contacts, keys=node.keys)
    configuration = process.NodeConfiguration(
        broker, journal, node, group, replica, ring, arguments.ring, arguments.trust_copy, look
    )
    if ring.contacts:
        draw_group = partial(drawn_group, addresses=ring.contacts, keys=node.keys)
        configuration = configuration._replace(draw_group=draw_group)
    serve = partial(process.serve, arguments.data, role, configuration, doors=doors)
    return serve, doors, str(arguments.data or node.storage)


def add_broker_arguments(parser: argparse._ActionsContainer) -> None:
    """The settings of a broker, wherever it runs."""
    parser.add_argument(
        "--topics",
        choices=["auto", "on-subscribe", "on-publish"],
        help="what creates a topic: a subscribe or a put (auto, the default), or only one of them",
    )
    parser.add_argument(
        "--durability",
        choices=["fsync", "os"],
        help="fsync (default): on disk before the answer; os: faster, but a power cut may lose acknowledged messages",
    )
    parser.add_argument(
        "--keys", metavar="DIR", help="encrypt, and let in only the keys in this folder (see tidings keys)"
    )
    parser.add_argument(
        "--admin",
        metavar="NAME",
        action="append",
        help="who may stop the broker and, with keys, change its group or ring; repeatable",
    )
    parser.add_argument(
        "--retain-age",
        metavar="TIME",
        type=quantities.duration_ms,
        help="messages older than this may be removed: 12h, 7d",
    )
    parser.add_argument(
        "--retain-bytes",
        metavar="SIZE",
        type=quantities.size_bytes,
        help="once a topic is larger than this, its oldest messages may be removed: 1GB",
    )
    parser.add_argument(
        "--drop-acknowledged",
        action="store_true",
        default=None,
        help="messages that every subscription has acknowledged may be removed",
    )
    parser.add_argument(
        "--topic-idle",
        metavar="TIME",
        type=quantities.duration_ms,
        help="a topic that nobody has used for this long goes, if all of it is acknowledged or expired: 30d "
        "(default: never)",
    )
    parser.add_argument(
        "--max-backlog",
        metavar="N",
        type=quantities.count,
        help="how many messages may wait in a topic that has no limit of its own; a put beyond that is Overloaded",
    )
    parser.add_argument(
        "--preset",
        choices=list(PRESETS),
        help="settings that go together; channels: at most 1,000 messages wait in a topic (see docs/groups.md)",
    )
    parser.add_argument(
        "--lease",
        metavar="TIME",
        type=quantities.duration_ms,
        help="a consumer group member that is silent for this long loses its work to the others (default: 10s)",
    )


def broker_settings(arguments: argparse.Namespace) -> settings.BrokerSettings:
    """What these flags say, and the rest from variables and the file."""
    given = {
        "topics": arguments.topics,
        "admins": arguments.admin,
        "retain_age_ms": arguments.retain_age,
        "retain_bytes": arguments.retain_bytes,
        "drop_acknowledged": arguments.drop_acknowledged,
        "topic_idle_ms": arguments.topic_idle,
        "lease_ms": arguments.lease,
        "max_backlog": arguments.max_backlog,
    }
    chosen = {name: value for name, value in given.items() if value is not None}
    return settings.load(settings.BrokerSettings, PRESETS.get(arguments.preset, {}) | chosen)
