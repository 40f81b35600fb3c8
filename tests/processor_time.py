"""Says at the end of a run which tests took the most processor time.

Seconds on the clock say how busy the machine was. Processor time says what a test costs: that of the process that ran
it, and of every process that it started. What a fixture of several tests costs counts for the first of them: the start
of Spark, for example.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Generator
from pathlib import Path

import pytest

SLOWEST = 10
PROPERTY = "processor_s"

_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")


def processor_s() -> float:
    """What this process has used so far, with its children and theirs, whether they have ended or not."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system + _running_children_s()


def _running_children_s() -> float:
    if not _has_children():
        return 0.0  # As with nearly all tests: reading what the system says of every process takes milliseconds.
    used_s: dict[int, float] = {}
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):  # Where there is no such folder, only children that ended count.
        try:
            _, parent, *fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # It has just ended, and its parent has its time.
        pid = int(stat.parent.name)
        used_s[pid] = sum(map(int, fields[9:13])) / _TICKS_A_SECOND  # utime to cstime, as proc(5) calls them
        children.setdefault(int(parent), []).append(pid)
    found = 0.0
    todo = children.get(os.getpid(), [])
    while todo:
        pid = todo.pop()
        found += used_s[pid]
        todo += children.get(pid, [])
    return found


def _has_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


class ProcessorTime:
    """A plugin of pytest. The workers of a run measure, and send what they found with their reports."""

    def __init__(self) -> None:
        self._before_s = 0.0
        self._used_s: Counter[str] = Counter()

    def pytest_runtest_logstart(self) -> None:
        self._before_s = processor_s()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if report.when == "teardown":  # By then it has ended what it started.
            # A process whose parent ended first has become somebody else's child, and its time is lost.
            report.user_properties.append((PROPERTY, max(0.0, processor_s() - self._before_s)))
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Called in the process that prints, whichever process ran the test."""
        for name, value in report.user_properties:
            if name == PROPERTY:
                self._used_s[report.nodeid] += float(str(value))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._used_s:
            terminalreporter.section(f"processor time: {sum(self._used_s.values()):.0f} s, the slowest tests")
            for line in self.slowest():
                terminalreporter.write_line(line)

    def slowest(self) -> list[str]:
        return [f"{used_s:8.2f} s  {test}" for test, used_s in self._used_s.most_common(SLOWEST)]
