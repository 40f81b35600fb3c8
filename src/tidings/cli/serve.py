"""`tidings serve`: a broker, until it is told to stop."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tidings import settings
from tidings.cli import extras, quantities
from tidings.errors import InvalidRequest

if TYPE_CHECKING:
    from tidings.gateways.http import WebService
    from tidings.gateways.sockets import SocketDoor

HTTP_PORT = 7480
HELP = """\
Runs a broker on the journal in a folder, until SIGTERM, Ctrl-C or `tidings stop`. What it has acknowledged
is on disk and there again after any end. Flags come before TIDINGS_* variables, these before tidings.toml.
"""

EXAMPLES = """\
  tidings serve --data data/
  tidings serve --data data/ --bind tcp://127.0.0.1:* --ready-file address   # any free port, written to a file
  tidings serve --data data/ --bind tcp://*:7400 --keys keys/ --admin alice  # for other machines, with keys
  tidings serve --data data/ --retain-age 7d --retain-bytes 1GB              # old messages may go
  tidings serve --data data/ --topics on-subscribe                           # no put without a subscriber
  tidings serve --data data/ --sockets 4200                                  # also for editors and subscribers
  tidings serve --data data/ --http                                          # and numbers into words, on port 7480
  tidings serve --storage tcp://127.0.0.1:7410                               # the journal at a `tidings storage`
  tidings serve --data a/ --bind tcp://127.0.0.1:7401 --group tcp://127.0.0.1:7401,tcp://127.0.0.1:7402,tcp://127.0.0.1:7403
  tidings serve --data d/ --bind tcp://127.0.0.1:7404 --join tcp://127.0.0.1:7401   # then: tidings group add
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    place = parser.add_mutually_exclusive_group(required=True)
    place.add_argument("--data", metavar="DIR", type=Path, help="the journal's folder, made if missing")
    place.add_argument("--storage", metavar="ADDRESS", help="the storage server that keeps it (see tidings storage)")
    parser.add_argument(
        "--storage-keys", metavar="DIR", help="the folder with broker.key and server.pub, if the storage wants keys"
    )
    parser.add_argument(
        "--group",
        metavar="ADDRESSES",
        type=addresses,
        help="found a replica group of 1, 3 or 5 nodes: all their addresses, the same list for each of them",
    )
    parser.add_argument(
        "--join",
        metavar="ADDRESSES",
        type=addresses,
        help="ask the members there to be taken in (see tidings group add)",
    )
    parser.add_argument(
        "--advertise", metavar="ADDRESS", help="the address at which other members reach this one (default: --bind)"
    )
    add_trust_argument(parser)
    parser.add_argument("--bind", metavar="ADDRESS", help="where to listen (default: tcp://127.0.0.1:7400)")
    add_broker_arguments(parser)
    parser.add_argument(
        "--sockets",
        metavar="PORT",
        type=quantities.port,
        help="also serve editors and subscribers on plain sockets, at this port of 127.0.0.1; 0 is any free one",
    )
    parser.add_argument(
        "--http",
        metavar="PORT",
        type=quantities.port,
        nargs="?",
        const=HTTP_PORT,
        help=f"also put numbers into words over HTTP, on this port of 127.0.0.1 (alone: {HTTP_PORT}; 0: any free one)",
    )
    parser.add_argument(
        "--ready-file",
        metavar="PATH",
        type=Path,
        help="write the address there once the broker answers; a second line is that of --http",
    )


def run(arguments: argparse.Namespace) -> int:
    broker = broker_settings(arguments)
    journal = settings.load(settings.JournalSettings, {"durability": arguments.durability})
    node = settings.load(
        settings.NodeSettings,
        {
            "bind": free_port(arguments.bind),
            "keys": arguments.keys,
            "storage": arguments.storage,
            "storage_keys": arguments.storage_keys,
        },
    )
    sockets = settings.load(settings.SocketsSettings, {"sockets_port": arguments.sockets})

    from tidings.journal import folder
    from tidings.node import loop
    from tidings.transport import curve

    curve.check_bind(node.bind, node.keys)
    group = settings.load(
        settings.GroupSettings, {"group": arguments.group, "join": arguments.join, "advertise": arguments.advertise}
    )
    role = folder.role_of(arguments.data) if arguments.data is not None else None
    replicated = bool(group.group or group.join) or role == folder.MEMBER
    if role not in (None, folder.MEMBER if replicated else folder.BROKER):
        raise folder.wrong_role(arguments.data, role)
    if replicated and (arguments.data is None or sockets.sockets_port is not None):
        raise InvalidRequest("A member of a group keeps its own folder and has no --sockets: give --data, leave those.")
    ready_file: Path | None = arguments.ready_file
    if ready_file is not None:
        ready_file.unlink(missing_ok=True)

    # Ports are taken before the broker begins, so that one that is not to be had leaves nothing half started.
    with contextlib.ExitStack() as stack:
        web = stack.enter_context(web_service(arguments.http))
        doors: list[SocketDoor] = []
        if sockets.sockets_port is not None:
            from tidings.gateways.sockets import SocketDoor

            doors.append(stack.enter_context(SocketDoor(sockets)))

        def on_ready(address: str) -> None:
            if web is not None:
                web.start()
            if ready_file is not None:
                write_whole(ready_file, address + "\n" + (f"{web.address}\n" if web is not None else ""))
            print(f"tidings serves {address} from {arguments.data or node.storage}", file=sys.stderr, flush=True)
            for door in doors:
                print(f"tidings takes editors and subscribers at {door.address}", file=sys.stderr, flush=True)
            if web is not None:
                print(f"tidings spells numbers at {web.address}/spell", file=sys.stderr, flush=True)

        if ready_file is not None:
            stack.callback(ready_file.unlink, missing_ok=True)
        if replicated:
            from tidings.node.member import serve_member

            replica = settings.load(settings.ReplicaSettings)
            serve_member(
                arguments.data, broker, journal, node, group, replica, on_ready, trusts_copy=arguments.trust_copy
            )
        else:
            loop.serve(arguments.data, broker, journal, node, on_ready, doors=doors)
    return 0


def add_trust_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--trust-copy",
        action="store_true",
        help="let a copied folder vote in its member's place: only if that member has not run since it was copied",
    )


def add_broker_arguments(parser: argparse._ActionsContainer) -> None:
    """The settings of a broker, wherever it runs."""
    parser.add_argument(
        "--topics",
        choices=["auto", "on-subscribe", "on-publish"],
        help="what makes a topic: a subscribe or a put (auto, the default), only one of them",
    )
    parser.add_argument(
        "--durability",
        choices=["fsync", "os"],
        help="fsync (default): on disk before the answer; os: faster, but a power cut may take what was answered",
    )
    parser.add_argument(
        "--keys", metavar="DIR", help="encrypt, and let in only the keys in this folder (see tidings keys)"
    )
    parser.add_argument(
        "--admin",
        metavar="NAME",
        action="append",
        help="who may stop the broker and, with keys, change its group or ring; may be repeated",
    )
    parser.add_argument(
        "--retain-age", metavar="TIME", type=quantities.duration_ms, help="messages older than this may go: 12h, 7d"
    )
    parser.add_argument(
        "--retain-bytes",
        metavar="SIZE",
        type=quantities.size_bytes,
        help="the oldest may go once a topic is larger: 1GB",
    )
    parser.add_argument(
        "--drop-acknowledged",
        action="store_true",
        default=None,
        help="messages that every subscription has acknowledged may go",
    )
    parser.add_argument(
        "--lease",
        metavar="TIME",
        type=quantities.duration_ms,
        help="a group's member unheard for this long loses its work to the others (default: 10s)",
    )


def broker_settings(arguments: argparse.Namespace) -> settings.BrokerSettings:
    """What these flags say, and the rest from variables and the file."""
    return settings.load(
        settings.BrokerSettings,
        {
            "topics": arguments.topics,
            "admins": arguments.admin,
            "retain_age_ms": arguments.retain_age,
            "retain_bytes": arguments.retain_bytes,
            "drop_acknowledged": arguments.drop_acknowledged,
            "lease_ms": arguments.lease,
        },
    )


def addresses(text: str) -> list[str]:
    """A list of addresses as people write it.

    >>> addresses("tcp://a:1, tcp://b:2")
    ['tcp://a:1', 'tcp://b:2']
    """
    return [each.strip() for each in text.split(",")]


def web_service(port: int | None) -> WebService | contextlib.nullcontext[None]:
    """The web service on its port, or nothing if none was asked for."""
    if port is None:
        return contextlib.nullcontext()
    with extras.needed("web", "--http"):
        from tidings.gateways.http import WebService
    return WebService(port)


def free_port(address: str | None) -> str | None:
    """ZeroMQ writes `*` for a port of its own choice; people also write 0.

    >>> free_port("tcp://127.0.0.1:0")
    'tcp://127.0.0.1:*'
    """
    if address is None:
        return None
    if "://" not in address:
        raise InvalidRequest(f"The address {address!r} has no protocol: write tcp://{address}.")
    if address.startswith("tcp://") and address.endswith(":0"):
        return address[:-1] + "*"
    return address


def write_whole(path: Path, text: str) -> None:
    """Writes a file so that whoever waits for it never reads half of it."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(text)
    draft.replace(path)
