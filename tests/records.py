"""What a run of the tests has measured, for the next ones: how long tests take, and which seed finds a planted bug.

`make record` runs all tests with `--record`, which writes both down, in files that nobody edits. Without it a run says
which planted bugs are not found any more where they were found last: each makes the tests search for a while.
"""

from __future__ import annotations

from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from tests.scheduling import group_of, key_of

HERE = Path(__file__).parent
DURATIONS = HERE / "durations.txt"
FIRST_SEEDS = HERE / "first_seeds.txt"
RECORDED_S_MIN = 1.0
"""What takes less may begin whenever it likes."""
FOUND_BY = "found_by"
"""The property of a test that has found a planted bug elsewhere than is written down: its name and the seed."""


def read(file: Path) -> dict[str, str]:
    """Lines of a name and a value."""
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else ()
    return dict(line.rsplit(None, 1) for line in lines)


def write(file: Path, values: dict[str, str]) -> None:
    file.write_text("".join(f"{name} {value}\n" for name, value in values.items()), encoding="utf-8")


def durations_s() -> dict[str, float]:
    return {name: float(seconds) for name, seconds in read(DURATIONS).items()}


@cache
def first_seeds() -> dict[str, str]:
    return read(FIRST_SEEDS)


def first_seed_of(bug: str) -> int:
    """Where to begin to look for a planted bug; some need rare company."""
    return int(first_seeds().get(bug, 0))


class Records:
    """A plugin of pytest for the process that prints."""

    def __init__(self, folder: Path = HERE) -> None:
        self._durations, self._first_seeds = folder / DURATIONS.name, folder / FIRST_SEEDS.name
        self._groups_s: Counter[str] = Counter()
        self._found: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._groups_s[group_of(report.nodeid)] += report.duration
        if report.when == "teardown":
            self._found |= dict(str(found).split() for name, found in report.user_properties if name == FOUND_BY)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if terminalreporter.config.getoption("record"):
            self.write_down()
        elif self._found:
            terminalreporter.section("planted bugs that another seed finds today; `make record` writes it down")
            for name, seed in sorted(self._found.items()):
                terminalreporter.write_line(f"  {name}: {seed}")

    def write_down(self) -> None:
        longest_s: dict[str, float] = {}
        for group, seconds in self._groups_s.items():
            longest_s[key_of(group)] = max(seconds, longest_s.get(key_of(group), 0.0))
        known = {name: float(value) for name, value in read(self._durations).items() if _is_there(name)}
        kept = {name: seconds for name, seconds in (known | longest_s).items() if seconds >= RECORDED_S_MIN}
        by_length = sorted(kept.items(), key=lambda item: (-item[1], item[0]))
        write(self._durations, {name: f"{seconds:.0f}" for name, seconds in by_length})
        write(self._first_seeds, dict(sorted((read(self._first_seeds) | self._found).items())))


def _is_there(group: str) -> bool:
    return (HERE.parent / group.partition("::")[0]).exists()
