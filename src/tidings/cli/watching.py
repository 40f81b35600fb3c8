"""Tables that stay on the screen and are drawn again, for `--watch`."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable

from rich.console import Console
from rich.live import Live
from rich.table import Table

WATCH_SECONDS = 1.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--watch", action="store_true", help="keep the table on screen, up to date; Ctrl-C ends it")


def show(make: Callable[[], Table], watch: bool, nothing: str) -> None:
    """Prints the table once, or keeps it up to date; `nothing` is said when it has no rows."""
    console = Console(highlight=False)
    if watch:
        with Live(make(), console=console, auto_refresh=False) as live:
            while True:
                time.sleep(WATCH_SECONDS)
                live.update(make(), refresh=True)
    table = make()
    if table.row_count:
        console.print(table)
    else:
        print(nothing, file=sys.stderr)


def plain_table(left: tuple[str, ...], right: tuple[str, ...]) -> Table:
    """A table without lines: the first columns are texts, the others are numbers."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in left:
        table.add_column(column, overflow="fold")
    for column in right:
        table.add_column(column, justify="right", no_wrap=True)
    return table
