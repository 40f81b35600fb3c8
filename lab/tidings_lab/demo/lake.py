"""The second act: a broker serves the bus, Spark takes it into a lake, is killed on the way, the lake is audited."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from rich.progress import Progress
from rich.table import Table

from tidings.errors import InvalidRequest
from tidings.spark.session import check_ready
from tidings_lab.demo.worker import SHOPS

BATCHES = 2
"""Into how many micro-batches bronze is cut, so that there is a middle to be killed in."""
LAYERS = {"bronze": "bronze, as it is", "silver": "silver, cleaned", "gold": "gold, summed up"}
START_S_MAX = 60.0


class Audited(msgspec.Struct, frozen=True):
    """What the audit says of one topic in the lake."""

    topic: str
    checked: int
    lost: int
    doubled: int
    reordered: int


class LakeVerdict(msgspec.Struct, frozen=True):
    """What became of the messages on their way through Spark."""

    audits: list[Audited]
    windows: list[list[Any]]
    """Of gold, for each topic: windows, messages, highest rate, highest 95th percentile of the latency in ms."""
    kills: int

    @property
    def clean(self) -> bool:
        return bool(self.audits) and all(each.lost == each.doubled == each.reordered == 0 for each in self.audits)


def missing() -> str | None:
    """What Spark would need and this machine does not have, in a sentence; None if it has all of it."""
    try:
        check_ready(None)
        import deltalake as _deltalake  # noqa: F401
        import pyarrow as _pyarrow  # noqa: F401
    except InvalidRequest as error:
        return str(error)
    except ModuleNotFoundError as error:
        return f"{error.name} is not installed: pip install '.[spark]' in a checkout."
    return None


class Driver:
    """The driver's process and what it reports."""

    def __init__(self, lake: Path, address: str, batch_rows: int) -> None:
        command = [sys.executable, "-m", "tidings_lab.demo.driver", str(lake), address, str(batch_rows)]
        self._log = lake.with_name("driver.log")
        with self._log.open("ab") as errors:
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)

    def reports(self) -> Iterator[Any]:
        """`[layer, rows]` while it works, then the outcome."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.endswith("\n"):  # The last words of a killed process may be cut off.
                yield json.loads(line)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def complaint(self) -> str:
        """Waits for its end; its last words."""
        code = self._process.wait()
        lines = self._log.read_text(errors="replace").strip().splitlines()
        return f"the demonstration's Spark driver ended with code {code}: {lines[-1] if lines else 'it said nothing'}"

    def close(self) -> None:
        self.kill()
        assert self._process.stdout is not None
        self._process.stdout.close()


def perform(folder: Path, count: int, progress: Progress) -> LakeVerdict:
    """Takes the topics of the first act into a lake, killing the driver once, and audits it."""
    total = 2 * count * len(SHOPS)  # Orders and invoices.
    bars = {layer: progress.add_task(name, total=total) for layer, name in LAYERS.items()}
    before, kills = 0, 0
    with _broker(folder / "bus") as address:
        while True:
            with contextlib.closing(Driver(folder / "lake", address, total // BATCHES)) as driver:
                for report in driver.reports():
                    if isinstance(report, dict):
                        for bar in bars.values():
                            progress.update(bar, completed=total)
                        return _verdict(report, kills)
                    layer, rows = report
                    if layer == "spark" and kills:
                        progress.console.print("   [green]back[/], and the lake goes on where it stopped")
                    elif layer in bars:
                        progress.update(bars[layer], completed=rows + (before if layer == "bronze" else 0))
                    if not kills and layer == "bronze" and rows >= total // 3:
                        driver.kill()
                        before, kills = rows, 1
                        progress.console.print(f"   [red]kill -9[/] of Spark's driver, after {rows:,} rows")
                        break
                else:
                    raise RuntimeError(driver.complaint())


def _verdict(report: dict[str, Any], kills: int) -> LakeVerdict:
    return LakeVerdict(msgspec.convert(report["subjects"], list[Audited]), report["windows"], kills)


@contextlib.contextmanager
def _broker(data: Path) -> Iterator[str]:
    """The folder of the first act, served to Spark's tasks; gives the address."""
    ready = data.with_name("address")
    command = [sys.executable, "-m", "tidings", "serve", "--data", str(data), "--bind", "tcp://127.0.0.1:*"]
    broker = subprocess.Popen([*command, "--ready-file", str(ready)], stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + START_S_MAX
        while not ready.exists():
            if broker.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(
                    "the demonstration's broker did not start: try `tidings serve` in a folder of your own"
                )
            time.sleep(0.02)
        yield ready.read_text().strip()
    finally:
        broker.terminate()
        broker.wait()


def closing_tables(verdict: LakeVerdict) -> list[Table]:
    """What the audit says, and what gold has."""
    audit = Table(title="What the audit says of the lake", title_justify="left")
    audit.add_column("topic")
    for name in ("checked", "lost", "doubled", "reordered"):
        audit.add_column(name, justify="right")
    for each in verdict.audits:
        style = "green" if each.lost == each.doubled == each.reordered == 0 else "bold red"
        numbers = (each.checked, each.lost, each.doubled, each.reordered)
        audit.add_row(each.topic, *(f"{number:,}" for number in numbers), style=style)
    gold = Table(title="The lake's gold", title_justify="left")
    gold.add_column("topic")
    for name in ("windows", "messages", "most in a second", "95 % stored within"):
        gold.add_column(name, justify="right")
    for topic, windows, messages, rate, latency_ms in verdict.windows:
        gold.add_row(topic, f"{windows:,}", f"{messages:,}", f"{rate:,.0f}", f"{latency_ms:,.1f} ms")
    return [audit, gold]
