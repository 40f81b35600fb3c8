"""What a run has measured is written down, and read by the next one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.records import FIRST_SEEDS, FOUND_BY, Records, durations_s, first_seeds
from tidings_lab.bugs import MUTANTS

ROOT = Path(__file__).resolve().parents[2]
HERE = "tests/unit/test_records.py"


def report(test: str, seconds: float, found: str = "") -> pytest.TestReport:
    properties: list[tuple[str, object]] = [(FOUND_BY, found)] if found else []
    return pytest.TestReport(test, ("", 0, ""), {}, "passed", None, "teardown", (), seconds, user_properties=properties)


def test_what_took_long_is_written_down_by_group(tmp_path: Path) -> None:
    """What is shorter now, or gone, goes; what did not run stays."""
    durations, seeds = tmp_path / "durations.txt", tmp_path / "first_seeds.txt"
    durations.write_text(
        "tests/unit/test_gone.py::test_x 50\ntests/unit/test_links.py::test_old 9\n" + f"{HERE}::test_a 7\n"
    )
    seeds.write_text("that 4\nthis 3\n")
    records = Records(tmp_path)
    for test, seconds in (
        ("tests/spark/test_page.py::test_x", 20.0),
        ("tests/spark/test_sink.py::test_y[1]", 30.0),
        (f"{HERE}::test_a[1]", 0.6),
        (f"{HERE}::test_b[1]", 2.0),
        (f"{HERE}::test_b[x::y]", 3.0),
    ):
        records.pytest_runtest_logreport(report(test, seconds))
    records.pytest_runtest_logreport(report(f"{HERE}::test_c", 0.1, "this 35"))
    records.write_down()
    assert durations.read_text() == f"tests/spark/ 50\ntests/unit/test_links.py::test_old 9\n{HERE}::test_b 3\n"
    assert seeds.read_text() == "that 4\nthis 35\n"


def test_a_run_says_which_seeds_find_planted_bugs_no_more(tmp_path: Path) -> None:
    """Also when another process finds out; with `--record` it writes them down."""
    (tmp_path / "conftest.py").write_text(
        "import pathlib\nfrom tests.records import Records\n"
        "def pytest_addoption(parser):\n    parser.addoption('--record', action='store_true')\n"
        f"def pytest_configure(config):\n    config.pluginmanager.register(Records(pathlib.Path({str(tmp_path)!r})))\n"
    )
    (tmp_path / "test_some.py").write_text(
        f"def test_bug(record_property):\n    record_property({FOUND_BY!r}, 'no-sync 35')\n"
    )
    command = [sys.executable, "-m", "pytest", "-p", "xdist", "-n", "1", "--rootdir", str(tmp_path), str(tmp_path)]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    told = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert "`make record` writes it down" in told and "\n  no-sync: 35\n" in told
    subprocess.run([*command, "--record"], env=environment, cwd=tmp_path, capture_output=True, check=True)
    assert (tmp_path / "first_seeds.txt").read_text() == "no-sync 35\n"


def test_what_is_written_down_is_of_tests_and_bugs_that_there_are() -> None:
    assert [group for group in durations_s() if not (ROOT / group.partition("::")[0]).exists()] == []
    assert set(first_seeds()) <= MUTANTS.keys()
    assert len(first_seeds()) == len(FIRST_SEEDS.read_text().splitlines())
