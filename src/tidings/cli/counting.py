"""A count of messages on the terminal, for commands that move many."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def counting(total: int | None = None) -> Iterator[Callable[[int], object]]:
    """Counts on a terminal, with a bar if it is known how many there will be; elsewhere says nothing."""
    if not sys.stderr.isatty():
        yield lambda count: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (
        SpinnerColumn() if total is None else BarColumn(),
        TextColumn("{task.completed:,.0f} messages"),
        TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("messages", total=total, rate="")

        def advance(count: int) -> None:
            progress.update(task, advance=count)
            speed = progress.tasks[0].speed
            progress.update(task, rate=f"{speed:,.0f}/s" if speed else "")

        yield advance
