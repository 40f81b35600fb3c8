"""`tidings node`: a node of an overlay, until it is told to stop."""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path

from tidings import settings
from tidings.cli.serve import (
    add_broker_arguments,
    add_trust_argument,
    addresses,
    broker_settings,
    free_port,
    write_whole,
)

HELP = r"""\ With --data, runs a node of a ring of replica groups: a durable bus for every client, at whichever node it
connects. A group is founded by the nodes of its --group; the first group is the ring, and others join it by the
address of any node.

Without --data, runs a node of a bare overlay: a Chord ring with a Scribe tree for each topic, or HyParView with gossip.
The first node is started alone, the others join by the address of any that runs. Clients speak to it with `tidings
nodes`. A ring begins when --founders nodes are there (2, unless the first node says more). SIGTERM and Ctrl-C leave in
good order.
"""

EXAMPLES = """\
  tidings node --data a/ --bind tcp://127.0.0.1:7501                                   # a ring: one group of one node
  tidings node --data b/ --bind tcp://127.0.0.1:7502 --join tcp://127.0.0.1:7501       # a second group
  tidings node --data c/ --bind tcp://10.0.0.3:7501 --keys keys/ --group tcp://10.0.0.3:7501,tcp://10.0.0.4:7501,tcp://10.0.0.5:7501
  tidings node --bind tcp://127.0.0.1:7500                                   # the first node of a ring
  tidings node --bind tcp://127.0.0.1:7501 --join tcp://127.0.0.1:7500       # another one
  tidings node --bind tcp://127.0.0.1:7500 --founders 9                      # begin when nine are there
  tidings node --bind tcp://127.0.0.1:7600 --overlay hyparview
  tidings node --bind tcp://*:7500 --address tcp://10.0.0.5:7500 --keys keys/ --join tcp://10.0.0.6:7500
  tidings nodes --at tcp://127.0.0.1:7500 --all
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--data", metavar="DIR", type=Path, help="the journal's folder, made if missing: a durable node"
    )
    parser.add_argument(
        "--group",
        metavar="ADDRESSES",
        type=addresses,
        help="with --data: the founders of this node's group, the same list for each of them (default: it alone)",
    )
    parser.add_argument(
        "--into",
        metavar="ADDRESSES",
        type=addresses,
        help="with --data: ask the members there to be taken into their group (see tidings group add)",
    )
    parser.add_argument(
        "--dissemination",
        choices=["scribe", "gossip"],
        help="with --data: how bodies reach readers at several nodes (default: scribe)",
    )
    parser.add_argument("--bind", metavar="ADDRESS", help="where to listen (default: tcp://127.0.0.1:7500)")
    parser.add_argument("--address", metavar="ADDRESS", help="what the other nodes call (default: where it listens)")
    parser.add_argument("--join", metavar="ADDRESS", action="append", help="a node of the overlay; may be repeated")
    parser.add_argument(
        "--overlay", choices=["chord", "hyparview"], help="the same for all nodes that meet (default: chord)"
    )
    parser.add_argument(
        "--founders", metavar="N", type=int, help="how many nodes begin a ring, for its first node (default: 2)"
    )
    parser.add_argument("--ready-file", metavar="PATH", type=Path, help="write the address there once the node answers")
    parser.add_argument("--verbose", action="store_true", help="say who comes and goes")
    add_trust_argument(parser)
    durable = parser.add_argument_group("the broker of a node with --data")
    add_broker_arguments(durable)


def run(arguments: argparse.Namespace) -> int:
    if arguments.data is not None:
        return run_durable(arguments)
    from tidings.peer import node
    from tidings.peer.stacks import load_layers

    peer = settings.load(
        settings.PeerSettings,
        {
            "bind": free_port(arguments.bind),
            "address": arguments.address,
            "join": [_spelled(contact) for contact in arguments.join] if arguments.join else None,
            "overlay": arguments.overlay,
            "founders": arguments.founders,
            "keys": arguments.keys,
        },
    )
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.DEBUG if arguments.verbose else logging.INFO,
        format="%(asctime)s %(levelname)s %(message)s",
    )
    ready_file: Path | None = arguments.ready_file
    if ready_file is not None:
        ready_file.unlink(missing_ok=True)

    def on_ready(address: str) -> None:
        how = f"joins by {', '.join(peer.join)}" if peer.join else "is the first node"
        print(f"tidings node {address} {how} ({peer.overlay})", file=sys.stderr, flush=True)
        if ready_file is not None:
            write_whole(ready_file, address + "\n")

    try:
        node.serve(peer, load_layers(), on_ready)
    finally:
        if ready_file is not None:
            ready_file.unlink(missing_ok=True)
    return 0


def run_durable(arguments: argparse.Namespace) -> int:
    """A node of a ring of replica groups."""
    from tidings.node.ring.process import serve_node

    data: Path = arguments.data
    node = settings.load(settings.NodeSettings, {"bind": free_port(arguments.bind), "keys": arguments.keys})
    group = settings.load(
        settings.GroupSettings,
        {"group": arguments.group, "join": arguments.into, "advertise": arguments.address},
    )
    ring = settings.load(
        settings.RingSettings,
        {
            "contacts": [_spelled(contact) for contact in arguments.join] if arguments.join else None,
            "dissemination": arguments.dissemination,
        },
    )
    ready_file: Path | None = arguments.ready_file
    if ready_file is not None:
        ready_file.unlink(missing_ok=True)

    def on_ready(address: str) -> None:
        how = f"joins by {', '.join(ring.contacts)}" if ring.contacts else "founds a ring, or goes on with its own"
        print(f"tidings node {address} serves from {data} ({how})", file=sys.stderr, flush=True)
        if ready_file is not None:
            write_whole(ready_file, address + "\n")

    try:
        serve_node(
            data,
            broker_settings(arguments),
            settings.load(settings.JournalSettings, {"durability": arguments.durability}),
            node,
            group,
            settings.load(settings.ReplicaSettings),
            ring,
            on_ready,
            arguments.trust_copy,
        )
    finally:
        if ready_file is not None:
            ready_file.unlink(missing_ok=True)
    return 0


def _spelled(contact: str) -> str:
    """Nodes are known by their addresses as they stand, so there is one way to write one.

    >>> _spelled("localhost:7500"), _spelled("tcp://127.0.0.1:7500")
    ('tcp://127.0.0.1:7500', 'tcp://127.0.0.1:7500')
    """
    address = contact if "://" in contact else f"tcp://{contact}"
    return address.replace("//localhost:", "//127.0.0.1:", 1)
