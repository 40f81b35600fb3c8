"""`tidings demo`: the whole thing in front of your eyes, crashes included."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

import msgspec
from rich.console import Console

from tidings.demo.stage import closing_table, perform

HELP = "show publishers, durable subscribers, two crashes and the recovery, and count what came of it"
EXAMPLES = """\
tidings demo                    about half a minute, in a folder that is removed afterwards
tidings demo --orders 20000     a longer one
tidings demo --keep trial/      keep the folder and look into it: tidings topics --bus trial/bus
tidings demo --json             only the verdict, for machines"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--orders", type=int, default=10_000, metavar="N", help="orders for each of the three shops")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="work in this new folder and leave it there")
    parser.add_argument("--json", action="store_true", help="print the verdict as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Exit code 0 when nothing was lost or doubled, 1 otherwise."""
    console = Console(stderr=arguments.json, highlight=False)
    if arguments.keep is not None and arguments.keep.exists():
        print(f"{arguments.keep} is already there: name a new folder, or remove it first.", file=sys.stderr)
        return 1
    folder = arguments.keep or Path(tempfile.mkdtemp(prefix="tidings-demo-"))
    console.print("\n[bold]Three shops sell, billing writes invoices, a dashboard watches, two packers share work.[/]")
    console.print("They share one embedded bus in one process. We kill that process twice.\n")
    try:
        verdict = perform(folder, arguments.orders, console)
    finally:
        if arguments.keep is None:
            shutil.rmtree(folder, ignore_errors=True)
    console.print()
    console.print(closing_table(verdict))
    if arguments.json:
        print(msgspec.json.encode(verdict).decode())
    if verdict.clean:
        console.print(f"\n[bold green]{verdict.kills} crashes, nothing lost, nothing doubled.[/]")
        console.print("Try it yourself: [bold]tidings serve --data data/[/], then [bold]tidings shell --as alice[/].\n")
        return 0
    console.print("\n[bold red]Something was lost or doubled: that is a bug, please report it.[/]\n")
    return 1
