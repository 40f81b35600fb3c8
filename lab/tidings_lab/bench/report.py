"""The figures as people and as programs read them: an aligned table, bars while it runs, and JSON."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import msgspec
import zmq
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from tidings.errors import InvalidRequest
from tidings_lab.bench.figures import Figure, fields_of, quantity, target_text
from tidings_lab.bench.plan import Plan
from tidings_lab.bench.stage import Notice

WIDTH_WITHOUT_TERMINAL = 170
BEGIN, END = "<!-- bench: begin -->", "<!-- bench: end -->"


def table_of(figures: Sequence[Figure]) -> Table:
    """One line for each figure: what it is, its limit, the ratio of the two, the target, and whether it is met."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column("scenario", no_wrap=True, style="bold")
    table.add_column("figure")
    table.add_column("measured", justify="right", no_wrap=True)
    table.add_column("limit", justify="right", no_wrap=True)
    table.add_column("which limit", style="dim")
    table.add_column("ratio", justify="right", no_wrap=True)
    table.add_column("target", no_wrap=True)
    table.add_column("", no_wrap=True)
    earlier = ""
    for figure in figures:
        ratio = figure.ratio
        table.add_row(
            figure.scenario if figure.scenario != earlier else "",
            figure.name,
            quantity(figure.value, figure.unit),
            quantity(figure.limit.value, figure.unit) if figure.limit else "",
            figure.limit.name if figure.limit else "",
            f"{ratio:.2f}" if ratio is not None else "",
            target_text(figure),
            _verdict(figure),
        )
        earlier = figure.scenario
    return table


def _verdict(figure: Figure) -> Text:
    if figure.target is None:
        return Text("")
    if figure.ok is None:
        return Text("disturbed", style="yellow")
    return Text("ok", style="green") if figure.ok else Text("below", style="bold red")


def others_line(figures: Sequence[Figure]) -> str:
    """Which scenarios others disturbed, and by how much; "" if none."""
    shares = {figure.scenario: figure.others for figure in figures if figure.disturbed}
    if not shares:
        return ""
    listed = ", ".join(f"{scenario} {share:.0%}" for scenario, share in shares.items())
    return (
        f"Others used the processors meanwhile ({listed}), so neither figures nor ratios of these can be trusted: "
        "run them again when the machine is quiet."
    )


def closing_line(figures: Sequence[Figure]) -> str:
    """How many targets were met.

    >>> closing_line([])
    'There is no target among these figures.'
    """
    targets = [figure for figure in figures if figure.target is not None]
    if not targets:
        return "There is no target among these figures."
    met = sum(figure.ok is True for figure in targets)
    unjudged = sum(figure.ok is None for figure in targets)
    rest = f" {unjudged} could not be judged." if unjudged else ""
    return f"{met} of {len(targets)} targets are met.{rest}"


def print_report(figures: Sequence[Figure], limits: Sequence[Figure], file: IO[str] | None = None) -> None:
    """The table, the limits of the machine below it, and a closing line."""
    console = Console(file=file, highlight=False)
    if not console.is_terminal:
        console = Console(file=file, highlight=False, width=WIDTH_WITHOUT_TERMINAL)
    console.print(table_of(figures))
    if limits:
        console.print()
        console.print("The machine itself, in the same run:")
        grid = Table.grid(padding=(0, 2))
        grid.add_column()
        grid.add_column(justify="right")
        for limit in limits:
            grid.add_row(f"  {limit.name}", quantity(limit.value, limit.unit))
        console.print(grid)
    console.print()
    console.print(closing_line(figures))
    if others_line([*limits, *figures]):
        console.print(others_line([*limits, *figures]))


def as_markdown(figures: Sequence[Figure], limits: Sequence[Figure]) -> str:
    """The same as tables of Markdown."""
    lines = ["| Scenario | Figure | Measured | Limit | Ratio | Target | |", "|---|---|---:|---|---:|---|---|"]
    for figure in figures:
        limit = f"{quantity(figure.limit.value, figure.unit)} ({figure.limit.name})" if figure.limit else ""
        ratio = f"{figure.ratio:.2f}" if figure.ratio is not None else ""
        cells = [figure.scenario, figure.name, quantity(figure.value, figure.unit), limit, ratio, target_text(figure)]
        lines.append(f"| {' | '.join(cells)} | {_verdict(figure).plain} |")
    lines += ["", "| The machine itself, in the same run | |", "|---|---:|"]
    lines += [f"| {limit.name} | {quantity(limit.value, limit.unit)} |" for limit in limits]
    return "\n".join([*lines, "", f"{closing_line(figures)} {others_line([*limits, *figures])}".rstrip()])


def put_between_marks(page: str, text: str) -> str:
    """A page of Markdown with the text between its two marks; InvalidRequest when it has none.

    >>> put_between_marks(f"before\\n{BEGIN}\\nold\\n{END}\\nafter", "new")
    'before\\n<!-- bench: begin -->\\nnew\\n<!-- bench: end -->\\nafter'
    """
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise InvalidRequest(f"The page has no place for the figures: give it the lines {BEGIN} and {END}.")
    return f"{before}{BEGIN}\n{text}\n{END}{after}"


def as_json(
    figures: Sequence[Figure],
    limits: Sequence[Figure],
    plan: Plan,
    raw: Mapping[str, Any],
    machine: Mapping[str, Any],
    version: str,
) -> str:
    """Everything that was measured, in base units: seconds, bytes, things per second."""
    report = {
        "tidings": version,
        "machine": {
            "python": platform.python_version(),
            "libzmq": zmq.zmq_version(),
            "system": f"{platform.system()} {platform.release()}",
            "processors": os.cpu_count(),
            **machine,
        },
        "plan": msgspec.to_builtins(plan),
        "figures": [fields_of(figure) for figure in figures],
        "limits": [fields_of(limit) for limit in limits],
        "raw": raw,
    }
    return json.dumps(report, indent=2) + "\n"


def write_json(target: str, text: str, stdout: IO[str]) -> None:
    """Writes the JSON into a file, or to the output for `-`."""
    if target == "-":
        stdout.write(text)
        stdout.flush()
    else:
        Path(target).write_text(text)


@contextmanager
def progress(steps: Mapping[str, int], file: IO[str]) -> Iterator[Notice]:
    """A bar for each scenario on a terminal, elsewhere a line when one begins."""
    console = Console(file=file, highlight=False)
    if not console.is_terminal:
        begun: set[str] = set()

        def say(scenario: str, what: str) -> None:
            if scenario not in begun:
                begun.add(scenario)
                print(f"{scenario} ...", file=file, flush=True)

        yield say
        return
    columns = (
        TextColumn("[bold]{task.description}"),
        BarColumn(bar_width=30),
        TimeElapsedColumn(),
        TextColumn("[dim]{task.fields[what]}"),
    )
    # Twice a second is enough for the eye; more would be measured along with the rest.
    with Progress(*columns, console=console, refresh_per_second=2, transient=True) as bars:
        tasks = {name: bars.add_task(name, total=count, what="", start=False) for name, count in steps.items()}

        def advance(scenario: str, what: str) -> None:
            task = tasks[scenario]
            if not bars.tasks[task].started:
                bars.start_task(task)
            elif what == "":
                bars.update(task, completed=bars.tasks[task].total, what="")
                bars.stop_task(task)
                return
            bars.update(task, advance=1, what=what)

        yield advance
