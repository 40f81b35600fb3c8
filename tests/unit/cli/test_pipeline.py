"""`tidings pipeline` where it needs no Spark: usage, and sentences about what is wrong (D2, D6)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tidings.admin.ports import free_address
from tidings.cli import main
from tidings.pipeline.lake import Lake, Manifest


def refused(capsys: pytest.CaptureFixture[str], code: int, *arguments: str) -> str:
    """The one line on stderr of a command that ends with this code."""
    assert main(["pipeline", *arguments]) == code
    error = capsys.readouterr().err
    assert error.count("\n") == 1, error
    return error


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    Lake(tmp_path / "lake").create(Manifest())
    return tmp_path / "lake"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "the following arguments are required: ACTION"),
        (["fly"], "invalid choice: 'fly'"),
        (["run", "--once"], "the following arguments are required: --lake"),
        (["run", "--lake", "l", "--once", "--every", "5s"], "give --once or --every, not both"),
        (["run", "--lake", "l", "--every", "often"], "'often' is not a time"),
        (["run", "--lake", "l", "--window", "1500ms"], "--window is a number of whole seconds"),
        (["run", "--lake", "l", "--bus", "./data"], "Spark's tasks need a broker"),
        (["compact", "--lake", "l", "--once"], "unrecognized arguments: --once"),
    ],
)
def test_wrong_usage(capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str) -> None:
    assert sentence in refused(capsys, 2, *arguments)


@pytest.mark.parametrize("action", ["status", "compact", "retain", "report"])
def test_a_folder_that_is_no_lake(capsys: pytest.CaptureFixture[str], tmp_path: Path, action: str) -> None:
    assert "is not a lake" in refused(capsys, 1, action, "--lake", str(tmp_path))


def test_a_folder_with_other_things(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    assert "is not a lake, and it is not empty" in refused(capsys, 1, "run", "--once", "--lake", str(tmp_path))
    assert (tmp_path / "thesis.txt").exists()


def test_a_lake_of_another_format(capsys: pytest.CaptureFixture[str], lake: Path) -> None:
    (lake / "lake.json").write_text(json.dumps({"format": 99}))
    assert "a lake of format 99, and this tidings knows format 1" in refused(capsys, 1, "status", "--lake", str(lake))


def test_a_damaged_manifest(capsys: pytest.CaptureFixture[str], lake: Path) -> None:
    (lake / "lake.json").write_text("{")
    assert "lake.json cannot be read" in refused(capsys, 1, "status", "--lake", str(lake))


def test_a_broker_that_is_not_there(capsys: pytest.CaptureFixture[str], lake: Path) -> None:
    address = free_address()
    error = refused(capsys, 1, "run", "--once", "--lake", str(lake), "--bus", address, "--retries", "1")
    assert address in error


def test_masters_and_languages(capsys: pytest.CaptureFixture[str], lake: Path) -> None:
    assert "The master 'nowhere' is not a Spark master" in refused(
        capsys, 1, "run", "--once", "--lake", str(lake), "--master", "nowhere"
    )
    assert "There is no language 'xx'" in refused(capsys, 1, "run", "--lake", str(lake), "--language", "xx")


def test_one_pipeline_at_a_time(capsys: pytest.CaptureFixture[str], lake: Path) -> None:
    with Lake(lake).locked():
        assert "Another pipeline runs on" in refused(capsys, 1, "run", "--once", "--lake", str(lake))


def test_a_new_lake(capsys: pytest.CaptureFixture[str], lake: Path) -> None:
    """There is a status before there is a row, and nothing to report."""
    assert main(["pipeline", "status", "--lake", str(lake), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [table["rows"] for table in found["tables"]] == [0] * 5
    assert [query["last_batch"] for query in found["queries"]] == [None] * 3
    assert main(["pipeline", "status", "--lake", str(lake)]) == 0
    assert "no pipeline is running" in capsys.readouterr().out
    assert main(["pipeline", "compact", "--lake", str(lake)]) == 0
    assert main(["pipeline", "retain", "--lake", str(lake), "--older-than", "30d"]) == 0
    capsys.readouterr()
    assert "There is nothing in gold to report" in refused(capsys, 1, "report", "--lake", str(lake))


def test_the_last_audit_is_shown(capsys: pytest.CaptureFixture[str], lake: Path) -> None:
    (lake / "audit").mkdir()
    (lake / "audit" / "last.json").write_text(json.dumps({"clean": True, "begun_at": "2026-03-01T12:00:00Z"}))
    assert main(["pipeline", "status", "--lake", str(lake)]) == 0
    assert "last audit: clean, 2026-03-01 12:00 UTC" in capsys.readouterr().out
