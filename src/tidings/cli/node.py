"""`tidings node`: a node of an overlay, until it is told to stop."""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path

from tidings import settings
from tidings.cli.serve import free_port, write_whole

HELP = r"""\ Runs a node of a peer-to-peer overlay: a Chord ring with a Scribe tree for each topic, or HyParView with
gossip. The first node is started alone, the others join by the address of any that runs. Clients speak to it with
`tidings nodes`. A ring begins when --founders nodes are there (2, unless the first node says more); SIGTERM and
Ctrl-C leave in good order.
"""

EXAMPLES = """\
  tidings node --bind tcp://127.0.0.1:7500                                   # the first node of a ring
  tidings node --bind tcp://127.0.0.1:7501 --join tcp://127.0.0.1:7500       # another one
  tidings node --bind tcp://127.0.0.1:7500 --founders 9                      # begin when nine are there
  tidings node --bind tcp://127.0.0.1:7600 --overlay hyparview
  tidings node --bind tcp://*:7500 --address tcp://10.0.0.5:7500 --keys keys/ --join tcp://10.0.0.6:7500
  tidings nodes --at tcp://127.0.0.1:7500 --all
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--bind", metavar="ADDRESS", help="where to listen (default: tcp://127.0.0.1:7500)")
    parser.add_argument("--address", metavar="ADDRESS", help="what the other nodes call (default: where it listens)")
    parser.add_argument("--join", metavar="ADDRESS", action="append", help="a node of the overlay; may be repeated")
    parser.add_argument(
        "--overlay", choices=["chord", "hyparview"], help="the same for all nodes that meet (default: chord)"
    )
    parser.add_argument(
        "--founders", metavar="N", type=int, help="how many nodes begin a ring, for its first node (default: 2)"
    )
    parser.add_argument(
        "--keys",
        metavar="DIR",
        help="encrypt, and let in only the keys in this folder; the node's own is named after its address",
    )
    parser.add_argument("--ready-file", metavar="PATH", type=Path, help="write the address there once the node answers")
    parser.add_argument("--verbose", action="store_true", help="say who comes and goes")


def run(arguments: argparse.Namespace) -> int:
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


def _spelled(contact: str) -> str:
    """Nodes are known by their addresses as they stand, so there is one way to write one.

    >>> _spelled("localhost:7500"), _spelled("tcp://127.0.0.1:7500")
    ('tcp://127.0.0.1:7500', 'tcp://127.0.0.1:7500')
    """
    address = contact if "://" in contact else f"tcp://{contact}"
    return address.replace("//localhost:", "//127.0.0.1:", 1)
