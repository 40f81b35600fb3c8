"""`tidings bench spark` from end to end, on counts that say nothing about speed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.spark.conftest import needs_java


@needs_java
@pytest.mark.soak
def test_every_figure_is_measured(tmp_path: Path) -> None:
    report = tmp_path / "figures.json"
    command = [
        "bench",
        "spark",
        "--large",
        "--quick",
        "--scale",
        "0.01",
        "--data",
        str(tmp_path),
        "--json",
        str(report),
    ]
    done = subprocess.run([sys.executable, "-m", "tidings", *command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    figures = json.loads(report.read_text())["figures"]
    assert [figure["target"] is not None for figure in figures] == [True, False, True, True, True, False, True, True]
    assert all(figure["value"] > 0 for figure in figures)
    assert list(tmp_path.iterdir()) == [report], "what a run makes it removes"
