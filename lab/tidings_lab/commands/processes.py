"""`tidings experiment processes`: the overlay as processes on this machine, and what came of it."""

from __future__ import annotations

import argparse
from itertools import product
from typing import TYPE_CHECKING

import msgspec

from tidings.cli import quantities
from tidings.cli.columns import aligned
from tidings.cli.output import print_json

if TYPE_CHECKING:
    from tidings_lab.experiments.processes import ProcessesRow

NODES = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("processes")
    group.add_argument("--overlay", choices=["chord", "hyparview"], default="chord", help="(default: chord)")
    group.add_argument(
        "--messages",
        metavar="N",
        type=quantities.count,
        action="append",
        help="messages of each node, also for service; repeatable (default: 10)",
    )
    group.add_argument(
        "--kill", metavar="N", type=int, default=0, help="how many nodes to kill in the middle (default: 0)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Runs the experiment for each number of nodes and messages; 1 if a message is missing or came twice."""
    from tidings_lab.experiments.processes import run_processes

    rows = []
    for nodes, messages in product(arguments.nodes or [NODES], arguments.messages or [10]):
        row = run_processes(arguments.overlay, nodes, messages, arguments.kill, arguments.seed)
        rows.append(row)
        if arguments.json:
            print_json(msgspec.to_builtins(row))
    if not arguments.json:
        print(table(rows))
    return 0 if all(row.reliability == 1.0 and not row.doubled and row.whole for row in rows) else 1


def table(rows: list[ProcessesRow]) -> str:
    """The rows for people. Times are in milliseconds."""
    titles = ["overlay", "nodes", "killed", "each", "published", "delivered", "of", "doubled"]
    titles += ["start ms", "converged ms", "repaired ms", "sent"]
    return aligned(
        titles,
        [
            [
                *(row.overlay, row.nodes, row.killed, row.messages_each),
                *(row.published, row.delivered, row.owed, row.doubled),
                *(row.start_ms, row.convergence_ms, row.repair_ms),
                ", ".join(f"{layer} {count:,}" for layer, count in sorted(row.sent.items())),
            ]
            for row in rows
        ],
    )
