"""`tidings node`: a node of a bare overlay, until it is told to stop."""

from __future__ import annotations

import argparse
import logging
import shlex
import sys
from pathlib import Path

from tidings import settings
from tidings.cli import addresses

HELP = """\
Runs a node of a bare overlay, which stores nothing: a Chord ring with a Scribe tree for each topic, or HyParView with
gossip. For a durable bus over a ring of replica groups see `tidings serve --ring`.

Start the first node without --join; the others join by the address of any running node. Clients talk to it with
`tidings nodes`. A ring begins when --founders nodes are there (2, unless the first node says otherwise). SIGTERM and
Ctrl-C stop a node cleanly.
"""

EXAMPLES = """\
  tidings node --bind tcp://127.0.0.1:7500                                   # the first node of a ring
  tidings node --bind tcp://127.0.0.1:7501 --join tcp://127.0.0.1:7500       # another one
  tidings node --bind tcp://127.0.0.1:7500 --founders 9                      # begins when nine nodes are there
  tidings node --bind tcp://127.0.0.1:7600 --overlay hyparview
  tidings node --bind tcp://*:7500 --address tcp://10.0.0.5:7500 --keys keys/ --join tcp://10.0.0.6:7500
  tidings nodes --at tcp://127.0.0.1:7500 --all
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--bind", metavar="ADDRESS", help="where to listen (default: tcp://127.0.0.1:7500)")
    parser.add_argument("--address", metavar="ADDRESS", help="the address that other nodes use (default: --bind)")
    parser.add_argument(
        "--join",
        metavar="ADDRESS",
        type=addresses.nodes,
        action="extend",
        help="a node of the overlay; repeatable",
    )
    parser.add_argument(
        "--overlay", choices=["chord", "hyparview"], help="the same for all nodes of an overlay (default: chord)"
    )
    parser.add_argument(
        "--founders", metavar="N", type=int, help="for the first node of a ring: how many nodes begin it (default: 2)"
    )
    parser.add_argument(
        "--keys", metavar="DIR", help="encrypt, and let in only the keys in this folder (see tidings keys)"
    )
    parser.add_argument("--ready-file", metavar="PATH", type=Path, help="write the address there once the node answers")
    parser.add_argument("--verbose", action="store_true", help="log which nodes come and go")


def moved(words: list[str]) -> list[str] | None:
    """With --data this was a node of a ring of groups, which `tidings serve` runs now. Goes in the next release.

    >>> moved(["--data", "a", "--address=tcp://b:1", "--verbose"])
    ['serve', '--ring', '--data', 'a', '--advertise', 'tcp://b:1']
    """
    given = iter([part for word in words for part in (word.split("=", 1) if word.startswith("--") else [word])])
    kept: list[str] = []
    for word in given:
        if word in ("--overlay", "--founders"):
            next(given, None)
        elif word != "--verbose":
            kept.append("--advertise" if word == "--address" else word)
    if "--data" not in kept:
        return None
    begins = "--join" not in kept and "--into" not in kept
    command = ["serve", *(["--ring"] if begins else []), *kept]
    instead = f"write `tidings {shlex.join(command)}` instead"
    print(
        f"tidings: {instead}; `tidings node --data` will be removed in the next release.", file=sys.stderr, flush=True
    )
    return command


def run(arguments: argparse.Namespace) -> int:
    from tidings.peer import node
    from tidings.peer.stacks import load_layers

    peer = settings.load(
        settings.PeerSettings,
        {
            "bind": addresses.free_port(arguments.bind),
            "address": arguments.address,
            "join": arguments.join,
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
    with addresses.ready_file(arguments.ready_file) as write:

        def on_ready(address: str) -> None:
            how = f"joins by {', '.join(peer.join)}" if peer.join else "is the first node"
            print(f"tidings node {address} {how} ({peer.overlay})", file=sys.stderr, flush=True)
            write(address + "\n")

        node.serve(peer, load_layers(), on_ready)
    return 0
