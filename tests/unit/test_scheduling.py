"""Tests that share something that takes long to start go to one worker, and all others to any."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.scheduling import HAVE_PROGRAMS, SHARING, SPARK, expected_s, group_of

ROOT = Path(__file__).resolve().parents[2]
CONFTEST = """import pytest
from tests.scheduling import Scheduling

@pytest.hookimpl
def pytest_xdist_make_scheduler(config, log):
    return Scheduling(config, log)
"""


def run_tests(folder: Path, workers: int) -> subprocess.CompletedProcess[str]:
    """Runs what is in a folder as this project's tests are run."""
    command = [sys.executable, "-m", "pytest", "-p", "xdist", "-n", str(workers), "--dist", "loadgroup"]
    return subprocess.run(
        [*command, "--rootdir", str(folder)],
        env=os.environ | {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


def test_files_that_are_named_exist() -> None:
    assert [path for path in HAVE_PROGRAMS | SHARING if not (ROOT / path).is_file()] == []


def test_tests_with_programs_of_their_own_do_not_take_the_session() -> None:
    for path in HAVE_PROGRAMS:
        assert not re.search(r"\b(spark|place|build)\b: ", (ROOT / path).read_text(encoding="utf-8")), path


def test_groups() -> None:
    assert group_of("tests/spark/test_new.py::test_x[a::b]") == group_of("tests/spark/test_page.py::test_y") == SPARK
    assert group_of("tests/spark/test_cluster.py::test_x") == "tests/spark/test_cluster.py"
    for alone in ("tests/spark/test_kills.py::test_x", "tests/unit/test_open.py::test_x[1]", "src/tidings/a.py::a.b"):
        assert group_of(alone) == alone


def test_a_group_has_one_worker_and_nobody_waits_for_it(tmp_path: Path) -> None:
    """Those of the group would not end before another worker has run the test that is alone."""
    (tmp_path / "conftest.py").write_text(CONFTEST)
    folder = tmp_path / "tests" / "spark"
    folder.mkdir(parents=True)
    (folder / "test_some.py").write_text(
        "import os, pathlib, time\nimport pytest\n"
        f"SEEN = pathlib.Path({str(tmp_path)!r})\n"
        "@pytest.mark.parametrize('number', range(4))\n"
        "def test_shares(number):\n"
        "    deadline = time.monotonic() + 60\n"
        "    while not (SEEN / 'alone').exists() and time.monotonic() < deadline:\n        time.sleep(0.01)\n"
        "    (SEEN / f'shares{number}').write_text(str(os.getpid()))\n"
    )
    (folder / "test_kills.py").write_text(
        "import os, pathlib\n"
        f"def test_alone():\n    pathlib.Path({str(tmp_path / 'alone')!r}).write_text(str(os.getpid()))\n"
    )
    done = run_tests(tmp_path, 2)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len({path.read_text() for path in tmp_path.glob("shares*")}) == 1
    assert (tmp_path / "alone").read_text() not in {path.read_text() for path in tmp_path.glob("shares*")}


def test_what_takes_long_begins_before_what_does_not() -> None:
    known_s = {SPARK: 200.0, "tests/unit/test_open.py::test_x": 7.0}
    tests = ["src/tidings/a.py::a.b", "tests/unit/test_open.py::test_x[a::b]", "tests/integration/test_new.py::test_x"]
    tests += ["tests/spark/test_page.py::test_y", "tests/spark/test_kills.py::test_x"]
    assert [expected_s(test, known_s) for test in tests] == [0.0, 7.0, 1.0, 200.0, 60.0]


def test_two_workers_at_most_run_spark(tmp_path: Path) -> None:
    """Those of Spark wait for a test behind them, which runs on a third worker or never."""
    (tmp_path / "conftest.py").write_text(CONFTEST)
    folder = tmp_path / "tests" / "spark"
    folder.mkdir(parents=True)
    for name in ("test_kills", "test_demo", "test_notebook"):
        (folder / f"{name}.py").write_text(
            "import pathlib, time\n"
            f"SEEN = pathlib.Path({str(tmp_path)!r})\n"
            "def test_spark():\n"
            "    deadline = time.monotonic() + 30\n"
            "    while not (SEEN / 'plain').exists() and time.monotonic() < deadline:\n        time.sleep(0.01)\n"
            "    assert (SEEN / 'plain').exists()\n"
        )
    (tmp_path / "tests" / "test_plain.py").write_text(
        f"import pathlib\ndef test_plain():\n    pathlib.Path({str(tmp_path / 'plain')!r}).touch()\n"
    )
    done = run_tests(tmp_path, 3)
    assert done.returncode == 0, done.stdout + done.stderr
