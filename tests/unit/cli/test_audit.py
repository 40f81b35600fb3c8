"""`tidings audit`: its usage, and how a report is shown (D4). What it finds is tested in tests/spark."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from tidings.cli import main
from tidings.cli.audit import show
from tidings.errors import StorageDamaged
from tidings.spark.audit.report import Fault, Report, Subject, last_audit, last_of, save

WRONG = Subject("lake", "news", checked=1200, lost=1, faults=(Fault("lost", "news", 70, "x"),), notes=("mind this",))


def report(*subjects: Subject) -> Report:
    return Report(datetime(2026, 1, 1, tzinfo=UTC), 2.5, "tcp://127.0.0.1:7400", "lake", subjects)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "say what to audit"),
        (["--bus", "tcp://127.0.0.1:1"], "nothing to compare the bus with"),
        (["--bus", "tcp://127.0.0.1:1", "--copy", "b"], "--copy needs exactly one --topic"),
        (["--bus", "tcp://127.0.0.1:1", "--copy", "b", "--topic", "a*"], "--copy needs exactly one --topic"),
    ],
)
def test_wrong_usage(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TIDINGS_BUS", raising=False)
    assert main(["audit", *arguments]) == 2
    assert sentence in capsys.readouterr().err


def test_what_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", "--lake", str(tmp_path / "lake")]) == 1
    assert "There is no folder" in capsys.readouterr().err
    assert main(["audit", "--bus", str(tmp_path), "--lake", str(tmp_path)]) == 1
    assert "tidings serve --data" in capsys.readouterr().err


def test_a_report_names_the_first_offending_row(capsys: pytest.CaptureFixture[str]) -> None:
    show(report(WRONG, Subject("lake", "\x1b[31m", checked=3)))
    printed = capsys.readouterr()
    assert "lost: lake: news offset 70 (x)" in printed.out
    assert "lake: news: mind this" in printed.out
    assert "\x1b" not in printed.out
    assert printed.err == "1,203 messages audited in 2.5 s: 1 faults.\n"
    show(report(Subject("lake", "news", checked=3)))
    assert capsys.readouterr().err.endswith("all is well.\n")


def test_a_table_is_never_cut(capsys: pytest.CaptureFixture[str]) -> None:
    """Ten columns are too wide for a terminal: the rare ones are shown only if there is something in them."""
    name = "group " + 40 * "w"
    show(report(Subject(name, "news", checked=10_000_000), Subject("alice", "news", checked=60, repeated=3)))
    assert capsys.readouterr().out.splitlines() == [
        f"{'what':<46}  topic     checked  lost  doubled  reordered  unknown  repeated",
        f"{name}  news   10,000,000     0        0          0        0         0",
        f"{'alice':<46}  news           60     0        0          0        0         3",
    ]


def test_a_report_is_kept_in_the_lake(tmp_path: Path) -> None:
    assert last_audit(tmp_path) is None
    save(report(WRONG), last_of(tmp_path))
    assert last_audit(tmp_path) == report(WRONG)
    assert last_of(tmp_path).read_bytes().startswith(b'{"clean":false')
    last_of(tmp_path).write_text("half")
    with pytest.raises(StorageDamaged, match="is not the report of an audit"):
        last_audit(tmp_path)
