"""The slowest tests are told at the end of a run, by the processor time of all their processes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processor_time import PROPERTY, SLOWEST, ProcessorTime, processor_s

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 0.1
"""What a program uses; the system counts it in hundredths."""
WORK = f"import time\nwhile time.process_time() < {SECONDS}:\n    pass\n"
SERVER = f"{WORK}print(1, flush=True)\ninput()\n"
TESTS = f"""
import subprocess, sys, time

import pytest

@pytest.fixture(scope="module")
def server():
    server = subprocess.Popen([sys.executable, "-c", {SERVER!r}],
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    server.stdout.readline()
    yield server
    server.kill()
    server.communicate()

def test_waits():
    time.sleep(0.01)

def test_starts_a_program():
    subprocess.run([sys.executable, "-c", {WORK!r}], check=True)

def test_starts_a_server_for_all(server):
    pass

def test_uses_the_server(server):
    pass
"""


def report(test: str, used_s: float) -> pytest.TestReport:
    return pytest.TestReport(
        test, ("", 0, ""), {}, "passed", None, "teardown", user_properties=[("other", 7), (PROPERTY, used_s)]
    )


def test_the_slowest_come_first() -> None:
    found = ProcessorTime()
    for number in range(2 * SLOWEST):
        found.pytest_runtest_logreport(report(f"test_{number}", number))
    lines = found.slowest()
    assert len(lines) == SLOWEST
    assert lines[0].split() == [f"{2 * SLOWEST - 1}.00", "s", f"test_{2 * SLOWEST - 1}"]


def test_a_process_counts_while_it_runs_and_when_it_has_ended() -> None:
    before_s = processor_s()
    with subprocess.Popen([sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        if Path("/proc/self/stat").exists():
            assert processor_s() - before_s >= SECONDS / 2
        process.communicate(b"\n")
    assert processor_s() - before_s >= SECONDS / 2


def test_a_run_tells_its_slowest_tests(tmp_path: Path) -> None:
    """Also when another process runs them."""
    file = tmp_path / "test_some.py"
    file.write_text(TESTS)
    (tmp_path / "conftest.py").write_text(
        "from tests.processor_time import ProcessorTime\n"
        "def pytest_configure(config):\n    config.pluginmanager.register(ProcessorTime())\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "xdist", "-n", "1", "--rootdir", str(tmp_path), str(file)],
        env=os.environ | {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    told = {name: float(used_s) for used_s, name in re.findall(r"^ +([\d.]+) s  .*::(\w+)$", done.stdout, re.MULTILINE)}
    assert set(told) == {"test_waits", "test_starts_a_program", "test_starts_a_server_for_all", "test_uses_the_server"}
    assert told["test_starts_a_program"] >= SECONDS / 2
    if Path("/proc/self/stat").exists():
        assert told["test_starts_a_server_for_all"] >= SECONDS / 2
