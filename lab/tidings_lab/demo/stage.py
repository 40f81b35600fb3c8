"""The stage of the demonstration: starts the worker, kills it twice, and counts what is left at the end."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.table import Table

import tidings
from tidings_lab.demo.worker import GROUP, INVOICES, ORDERS, PACKERS, SHOPS

KILL_AT = (0.3, 0.65)
"""How much of the orders has been published when the worker is killed."""


class Account(msgspec.Struct, frozen=True):
    """What became of the messages of one step."""

    step: str
    published: int
    delivered: int
    lost: int
    doubled: int


class Verdict(msgspec.Struct, frozen=True):
    """The closing table, and how long the recoveries took."""

    accounts: list[Account]
    kills: int
    recovered_ms: list[float]

    @property
    def clean(self) -> bool:
        return all(account.lost == account.doubled == 0 for account in self.accounts)


class Worker:
    """The worker's process and what it reports."""

    def __init__(self, folder: Path, logs: Path, count: int) -> None:
        command = [sys.executable, "-m", "tidings_lab.demo.worker", str(folder), str(logs), str(count)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def reports(self) -> Iterator[tuple[str, int]]:
        """Who has come how far, until the process ends."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.endswith("\n"):  # The last words of a killed process may be cut off.
                who, done = json.loads(line)
                yield who, done

    def kill(self) -> None:
        self._process.kill()
        self.wait()

    def wait(self) -> int:
        code = self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        return code


def prepare(folder: Path) -> None:
    """The subscriptions are there before the first order: from then on they are owed every one."""
    for name in ("billing", "dashboard"):
        with tidings.open(folder, client_id=name) as bus:
            bus.subscribe(ORDERS)
    with tidings.open(folder, client_id=PACKERS[0]) as bus:
        bus.subscribe(ORDERS, group=GROUP)


def perform(folder: Path, count: int, console: Console) -> Verdict:
    """Runs the whole piece with `count` orders for each shop, and gives the verdict."""
    data = folder / "bus"
    total = count * len(SHOPS)
    prepare(data)
    kills, recovered_ms = 0, []
    with bars_on(console) as progress:
        bars: dict[str, TaskID] = {shop: progress.add_task(f"shop {shop}", total=count) for shop in SHOPS}
        bars["billing"] = progress.add_task("billing, exactly once", total=total)
        bars["dashboard"] = progress.add_task("dashboard, durable", total=total)
        bars |= dict.fromkeys(PACKERS, progress.add_task("two packers, a group", total=total))
        while True:
            started = time.perf_counter()
            worker = Worker(data, folder, count)
            done = dict.fromkeys(SHOPS, 0)
            killed = False
            for number, (who, so_far) in enumerate(worker.reports()):
                if number == 0 and kills:
                    recovered_ms.append((time.perf_counter() - started) * 1000)
                    progress.console.print(f"   [green]back[/] after {recovered_ms[-1]:.0f} ms, and everybody goes on")
                if who in PACKERS:
                    progress.update(bars[who], advance=so_far)
                else:
                    progress.update(bars[who], completed=so_far)
                if who in done:
                    done[who] = so_far
                if kills < len(KILL_AT) and sum(done.values()) >= KILL_AT[kills] * total:
                    worker.kill()
                    kills, killed = kills + 1, True
                    progress.console.print(f"   [red]kill -9[/] in the middle of it, at {sum(done.values()):,} orders")
                    break
            if not killed:
                code = worker.wait()
                if code != 0:
                    raise RuntimeError(f"the demonstration's worker ended with code {code}: see its message above")
                break
    return Verdict(_audit(folder, count), kills, recovered_ms)


def bars_on(console: Console) -> Progress:
    """Progress bars, in the form of the demonstration."""
    return Progress(
        TextColumn("   {task.description:<22}"), BarColumn(40), MofNCompleteColumn(), console=console, transient=False
    )


def _audit(folder: Path, count: int) -> list[Account]:
    """Counts in the topics themselves and in what dashboard and packers wrote down."""
    expected = {f"{shop} order {number}" for shop in SHOPS for number in range(1, count + 1)}
    with tidings.open(folder / "bus") as bus:
        orders = _values(bus, ORDERS)
        invoices = [value.removeprefix("invoice for ") for value in _values(bus, INVOICES)]
    return [
        _account("shops to the bus", expected, orders),
        _account("bus to billing to the bus", set(orders), invoices),
        _written("bus to the dashboard", len(orders), folder / "dashboard.log"),
        _written("bus to two packers, a group", len(orders), folder / "packing.log"),
    ]


def _written(step: str, published: int, log: Path) -> Account:
    """From a log of offsets, each with whether it was said to come again: only what was not said counts as doubled."""
    seen = [(int(offset), flag == "1") for offset, flag in (line.split() for line in log.read_text().splitlines())]
    firsts: set[int] = set()
    unannounced = 0
    for offset, redelivered in seen:
        unannounced += offset in firsts and not redelivered
        firsts.add(offset)
    return Account(step, published, len(firsts), published - len(firsts), unannounced)


def _account(step: str, expected: set[str], found: list[str]) -> Account:
    distinct = set(found)
    return Account(step, len(expected), len(distinct), len(expected - distinct), len(found) - len(distinct))


def _values(bus: tidings.Bus, topic: str) -> list[str]:
    subscription = bus.subscribe(topic, start="earliest")
    return [value.decode() for batch in subscription.batches(timeout=0) for value in batch.values]


def closing_table(verdict: Verdict) -> Table:
    """The table that says how it ended."""
    table = Table(title="What became of them", title_justify="left")
    table.add_column("step")
    for name in ("published", "delivered", "lost", "doubled"):
        table.add_column(name, justify="right")
    for account in verdict.accounts:
        style = "green" if account.lost == account.doubled == 0 else "bold red"
        numbers = (account.published, account.delivered, account.lost, account.doubled)
        table.add_row(account.step, *(f"{number:,}" for number in numbers), style=style)
    return table
