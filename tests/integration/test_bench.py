"""`tidings bench` from end to end, on counts that say nothing about speed."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import tidings
from tidings_lab.bench.scenarios import SCENARIOS

SECONDS_MAX = 800

pytestmark = pytest.mark.timeout(900)


def bench(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    source = str(Path(tidings.__file__).resolve().parents[1])
    return subprocess.run(
        [sys.executable, "-m", "tidings", "bench", "--data", str(folder), *arguments],
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        env=os.environ | {"PYTHONPATH": source},
        check=False,
    )


def test_quick_run_measures_every_scenario(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    journals = tmp_path / "journals"
    journals.mkdir()
    report, picture = tmp_path / "figures.json", tmp_path / "figures.png"
    done = bench("--quick", "--scale", "0.01", "--json", str(report), "--plot", str(picture), folder=journals)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(report.read_text())
    assert {figure["scenario"] for figure in found["figures"]} == set(SCENARIOS)
    for figure in found["figures"] + found["limits"]:
        assert figure["value"] > 0, figure
        assert math.isfinite(figure["value"])
        assert figure["limit"] is None or figure["ratio"] > 0, figure
        assert all(sample > 0 for sample in figure["samples"] + figure["limit_samples"]), figure
    assert all(0 <= figure["others"] <= 1 for figure in found["figures"])
    for name in SCENARIOS:
        assert name in done.stdout
    assert picture.stat().st_size > 5_000
    assert list(journals.iterdir()) == [], "what a run makes it removes"


def test_json_on_the_output_is_nothing_but_json(tmp_path: Path) -> None:
    done = bench("put", "--quick", "--scale", "0.01", "--json", "-", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [figure["scenario"] for figure in found["figures"]] == ["put", "put", "put"]
    assert "synchronous put" in done.stderr


def test_the_simulator_of_overlays_is_measured_when_it_is_named(tmp_path: Path) -> None:
    """P11: messages delivered in a second of processor time, beside the target."""
    done = bench("overlay", "--quick", "--scale", "0.01", "--json", "-", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    (figure,) = json.loads(done.stdout)["figures"]
    assert (figure["scenario"], figure["name"]) == ("overlay", "simulated messages, 50 nodes")
    assert figure["value"] == max(figure["samples"]) > 0
    assert "at least 150 k messages/s" in done.stderr


def test_a_message_over_a_ring_is_measured_when_it_is_named(tmp_path: Path) -> None:
    """P12: over an idle ring of three groups of three beside one group of three, with the target for their ratio."""
    done = bench("ring", "--quick", "--scale", "0.01", "--json", "-", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)["figures"]
    assert [figure["scenario"] for figure in figures] == ["ring", "ring"]
    assert all(figure["ratio"] > 0 for figure in figures)
    assert "at most 4 x limit" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["nonsense"], 2, "there is no scenario 'nonsense'"),
        (["put", "--plot", "picture.bmp"], 1, ".png"),
        (["put", "--scale", "0"], 1, "scale"),
    ],
)
def test_wrong_usage_is_said_before_anything_is_measured(
    tmp_path: Path, arguments: list[str], code: int, sentence: str
) -> None:
    done = bench(*arguments, folder=tmp_path)
    assert done.returncode == code
    assert sentence in done.stderr
    assert done.stdout == ""


def test_missing_folder(tmp_path: Path) -> None:
    done = bench("put", folder=tmp_path / "missing")
    assert done.returncode == 1
    assert "is not a folder" in done.stderr


@pytest.mark.soak
def test_three_replicas_are_measured_when_they_are_named(tmp_path: Path) -> None:
    """P6: beside a broker alone; and the leader is killed."""
    done = bench("group", "--quick", "--scale", "0.01", "--json", "-", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)["figures"]
    assert [(figure["scenario"], figure["value"] > 0) for figure in figures] == [("group", True)] * 3
