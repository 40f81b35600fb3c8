"""`tidings demo`: the whole thing in front of your eyes, crashes included."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

import msgspec
from rich.console import Console

from tidings_lab.demo import lake, stage

HELP = "Shows publishers, subscribers, a group, crashes and the recovery, then Spark, a lake and its audit."
EXAMPLES = """\
tidings demo                    under a minute, in a temporary folder
tidings demo --orders 20000     a longer one
tidings demo --without-spark    only the bus: seconds
tidings demo --keep trial/      keep the folder and look into it: tidings topics --bus trial/bus
tidings demo --json             only the verdict, as JSON"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--orders", type=int, default=10_000, metavar="N", help="orders for each of the three shops")
    parser.add_argument("--without-spark", action="store_true", help="skip the lake")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="work in this new folder and keep it")
    parser.add_argument("--json", action="store_true", help="print the verdict as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Exit code 0 when nothing was lost or doubled, 1 otherwise."""
    console = Console(stderr=arguments.json, highlight=False)
    if arguments.keep is not None and arguments.keep.exists():
        print(f"{arguments.keep} exists already: name a new folder, or remove it first.", file=sys.stderr)
        return 1
    folder = arguments.keep or Path(tempfile.mkdtemp(prefix="tidings-demo-"))
    try:
        verdict, drawn = _perform(arguments, folder, console)
    finally:
        if arguments.keep is None:
            shutil.rmtree(folder, ignore_errors=True)
    if arguments.json:
        print(msgspec.json.encode(msgspec.to_builtins(verdict) | {"lake": msgspec.to_builtins(drawn)}).decode())
    if not verdict.clean or (drawn is not None and not drawn.clean):
        console.print("\n[bold red]Something was lost or doubled: that is a bug, please report it.[/]\n")
        return 1
    crashes = verdict.kills + (drawn.kills if drawn is not None else 0)
    console.print(f"\n[bold green]{crashes} crashes, nothing lost, nothing doubled.[/]")
    console.print("Try it yourself: [bold]tidings serve --data data/[/], then [bold]tidings shell --as alice[/].\n")
    return 0


def _perform(
    arguments: argparse.Namespace, folder: Path, console: Console
) -> tuple[stage.Verdict, lake.LakeVerdict | None]:
    """Both acts, as far as this machine has what they need."""
    console.print("\n[bold]Three shops sell, billing writes invoices, a dashboard watches, two packers share work.[/]")
    console.print("They share one embedded bus in one process. We kill that process twice.\n")
    verdict = stage.perform(folder, arguments.orders, console)
    console.print()
    console.print(stage.closing_table(verdict))
    if arguments.without_spark:
        return verdict, None
    console.print(
        "\n[bold]Spark writes everything into a lake: bronze, silver, gold. We kill its driver half-way.[/]\n"
    )
    reason = lake.missing()
    if reason is not None:
        console.print(f"   left out: {reason}")
        return verdict, None
    with stage.bars_on(console) as progress:
        drawn = lake.perform(folder, arguments.orders, progress)
    for table in lake.closing_tables(drawn):
        console.print()
        console.print(table)
    return verdict, drawn
