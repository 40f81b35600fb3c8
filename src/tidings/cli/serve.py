"""`tidings serve`: a broker, until it is told to stop."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from tidings import settings
from tidings.cli import quantities
from tidings.errors import InvalidRequest

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
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", metavar="DIR", required=True, type=Path, help="the journal's folder, made if missing")
    parser.add_argument("--bind", metavar="ADDRESS", help="where to listen (default: tcp://127.0.0.1:7400)")
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
    parser.add_argument("--admin", metavar="NAME", action="append", help="who may stop the broker; may be repeated")
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
    parser.add_argument(
        "--ready-file", metavar="PATH", type=Path, help="write the address there once the broker answers"
    )


def run(arguments: argparse.Namespace) -> int:
    broker = settings.load(
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
    journal = settings.load(settings.JournalSettings, {"durability": arguments.durability})
    node = settings.load(settings.NodeSettings, {"bind": free_port(arguments.bind), "keys": arguments.keys})

    from tidings.node import loop
    from tidings.transport import curve

    curve.check_bind(node.bind, node.keys)
    ready_file: Path | None = arguments.ready_file
    if ready_file is not None:
        ready_file.unlink(missing_ok=True)

    def on_ready(address: str) -> None:
        if ready_file is not None:
            write_whole(ready_file, address + "\n")
        print(f"tidings serves {address} from {arguments.data}", file=sys.stderr, flush=True)

    try:
        loop.serve(arguments.data, broker, journal, node, on_ready)
    finally:
        if ready_file is not None:
            ready_file.unlink(missing_ok=True)
    return 0


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
