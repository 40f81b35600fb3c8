"""`tidings experiment NAME`: simulations with parameters, and their figures as a table, JSON or a picture."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from tidings.cli import processes
from tidings.cli.output import print_json

if TYPE_CHECKING:
    from tidings.experiments.hyparview import FailureRow

HELP = """\
Runs an experiment in the simulator.

  hyparview   a share of the nodes fails at once: whom do messages reach, before and after the views have healed?
  processes   no simulation: nodes as processes on this machine, over ZeroMQ, some of which are killed
"""

EXAMPLES = """\
  tidings experiment hyparview                                  # 1,000 nodes, 10 to 90 % of them fail
  tidings experiment hyparview --nodes 10000 --share 0.8        # a minute or so
  tidings experiment hyparview --json
  tidings experiment hyparview --plot failures.svg
  tidings experiment processes --overlay chord --nodes 20 --messages 10 --kill 5
"""

NAMES = ("hyparview", "processes")
COLUMNS = (
    ("failed", "{0.failed_share:.0%}"),
    ("live", "{0.live}"),
    ("parts", "{0.parts}"),
    ("at once", "{0.reached_at_once:.2%}"),
    ("healed", "{0.reached_healed:.2%}"),
    ("at last", "{0.reached_at_last:.2%}"),
    ("hops", "{0.hops_mean:.1f}"),
    ("max", "{0.hops_max}"),
    ("last ms", "{0.last_ms_mean:.0f}"),
    ("redundancy", "{0.redundancy:.3f}"),
    ("messages/node", "{0.messages_per_node:.2f}"),
    ("simulated/s", "{0.speed:,.0f}"),
)
LEGEND = """\
failed: nodes that fail at once; parts: groups that do not reach each other afterwards; at once, healed, at last: live
nodes reached by messages published just after the failure, once the views have healed, and by all after recovery;
hops and last: of the healed overlay; messages/node: sent by a node for each message published, of all kinds;
simulated: messages that the simulator delivered in a second of one core."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", choices=NAMES, help=f"the experiment: {', '.join(NAMES)}")
    parser.add_argument("--nodes", metavar="N", type=_nodes, help="how many nodes (default: 1000, or 20 processes)")
    parser.add_argument(
        "--share", metavar="S", type=_share, action="append", help="nodes that fail, 0 to 0.95 (default: 0.1 to 0.9)"
    )
    parser.add_argument("--seed", metavar="S", type=int, default=1, help="decides everything (default: 1)")
    parser.add_argument(
        "--jobs", metavar="N", type=int, default=os.cpu_count() or 1, help="processes (default: one for each core)"
    )
    parser.add_argument("--json", action="store_true", help="print a JSON object for each simulation")
    parser.add_argument("--plot", metavar="FILE", type=Path, help="draw a picture, .png or .svg")
    processes.add_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    if arguments.name == "processes":
        return processes.run(arguments)
    from tidings.experiments import plot, sweep
    from tidings.experiments.hyparview import SHARES

    if arguments.plot is not None:
        plot.check_target(arguments.plot)
    shares = arguments.share or SHARES
    rows = []
    for row in _with_progress(
        sweep.failures(arguments.nodes or 1_000, shares, arguments.seed, arguments.jobs), len(shares)
    ):
        rows.append(row)
        if arguments.json:
            print_json(msgspec.to_builtins(row))
    if not arguments.json:
        _print_table(rows)
    if arguments.plot is not None:
        plot.draw_failures(rows, arguments.plot)
    return 0


def _print_table(rows: list[FailureRow]) -> None:
    lines = [[title for title, _ in COLUMNS], *([form.format(row) for _, form in COLUMNS] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(COLUMNS))]
    for line in lines:
        print("  ".join(text.rjust(width) for text, width in zip(line, widths, strict=True)))
    print(f"\n{LEGEND}")


def _with_progress(rows: Iterator[FailureRow], total: int) -> Iterator[FailureRow]:
    """The same rows, with a bar on a terminal."""
    console = Console(file=sys.stderr)
    if not console.is_terminal:
        yield from rows
        return
    columns = (TextColumn("simulations"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        yield from progress.track(rows, total=total)


def _nodes(text: str) -> int:
    number = int(text) if text.isdecimal() else 0
    if not 10 <= number <= 100_000:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 10 to 100000")
    return number


def _share(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0.0 <= share <= 0.95:
        raise argparse.ArgumentTypeError(f"{text!r} is not a share from 0 to 0.95")
    return share
