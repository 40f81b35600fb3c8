"""`tidings experiment service` in small (P11): a ring of six processes, of which one in each group is killed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tidings.cli import main


def test_the_whole_service_as_an_experiment(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """P8, P11: nothing is lost or doubled, all replicas agree in the end, and there is a page about it."""
    assert main(["experiment", "service", "--small", "--seed", "2", "--json", "--out", str(tmp_path)]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    loads = [row for row in rows if row["table"] == "service"]
    assert [(row["nodes"], row["groups"], row["killed"], row["messages"]) for row in loads] == [
        (6, 2, 2, 4),
        (6, 2, 2, 8),
    ]
    for row in loads:
        assert row["published"] == 6 * row["messages"]
        assert row["delivered"] == row["owed"] > 0
        assert (row["lost"], row["doubled"], row["disordered"]) == (0, 0, 0)
        assert row["agreeing"] == row["replicas_up"] == 6
        assert 0 < row["p50_ms"] <= row["p99_ms"] <= row["convergence_ms"]
    page = (tmp_path / "service.md").read_text(encoding="utf-8")
    assert "section 7" in page and "tidings experiment service --seed 2 --small" in page
    assert (tmp_path / "service-convergence.svg").exists() and (tmp_path / "service-convergence.png").exists()
