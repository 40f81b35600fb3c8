"""`tidings experiment hyparview`: a table, JSON or a picture of small simulations (P11)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tidings.cli import main

SMALL = ("experiment", "hyparview", "--no-spark", "--nodes", "30", "--jobs", "1")


def test_a_table_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL, "--share", "0.3", "--share", "0.5"]) == 0
    title, *_, head, first, second, _ = capsys.readouterr().out.splitlines()
    assert title == "Live nodes that a message reaches"
    assert head.split()[:2] == ["nodes", "once"] and "healed" in head
    assert (first.split()[:3], second.split()[:3]) == (["30", "30%", "21"], ["30", "50%", "15"])


def test_json_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL, "--share", "0.5", "--json"]) == 0
    row = json.loads(capsys.readouterr().out)
    assert (row["nodes"], row["live"], row["reached_at_last"]) == (30, 15, 1.0)


@pytest.mark.parametrize("name", ["failures.svg", "failures.png"])
def test_a_picture(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL, "--share", "0.5", "--plot", str(tmp_path / name)]) == 0
    assert (tmp_path / name).stat().st_size > 1_000


@pytest.mark.parametrize(
    ("arguments", "code", "complaint"),
    [
        (["experiment", "unheard-of"], 2, "invalid choice"),
        ([*SMALL, "--share", "1"], 2, "not a share"),
        (["experiment", "hyparview", "--nodes", "9"], 2, "not a number from 10"),
        ([*SMALL, "--plot", "failures.gif"], 1, ".png or .svg"),
    ],
)
def test_wrong_usage(arguments: list[str], code: int, complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == code
    assert complaint in capsys.readouterr().err
