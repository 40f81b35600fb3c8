"""`tidings doctor`: it runs, and judges what it finds."""

from __future__ import annotations

import json
import socket
import stat
from pathlib import Path

import pytest

from tidings.cli import doctor, main


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TIDINGS_BUS", "TIDINGS_AS", "TIDINGS_KEYS"):
        monkeypatch.delenv(name, raising=False)


def test_it_runs_on_an_embedded_bus(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--data", str(tmp_path), "--bus", f"{tmp_path}/bus"]) == 0
    printed = capsys.readouterr().out
    for check in ("Python", "libzmq", "disk sync", "disk space", "open files", "clock", "broker", "Java"):
        assert check in printed
    assert list(tmp_path.iterdir()) == []


def test_json_has_a_line_for_each_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--data", str(tmp_path), "--bus", f"{tmp_path}/bus", "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert all(set(row) == {"check", "state", "found", "advice"} for row in rows)
    assert {row["state"] for row in rows} <= {"ok", "warn"}


def test_a_folder_that_cannot_be_written_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--data", str(tmp_path / "missing"), "--bus", f"{tmp_path}/bus", "--json"]) == 1
    failed = [json.loads(line) for line in capsys.readouterr().out.splitlines() if '"fail"' in line]
    assert {row["check"] for row in failed} == {"disk sync", "disk space"}
    assert all(row["advice"] for row in failed)


def test_a_broker_that_was_asked_for_and_is_not_there_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["doctor", "--data", str(tmp_path), "--bus", "tcp://127.0.0.1:1", "--timeout", "0.05", "--json"]
    assert main(argv) == 1
    [row] = [json.loads(line) for line in capsys.readouterr().out.splitlines() if '"broker"' in line]
    assert row["state"] == "fail"


def test_the_default_port_is_looked_at_when_no_broker_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert not doctor.port_is_free(port)
        monkeypatch.setattr(doctor.connection, "DEFAULT_BUS", f"tcp://127.0.0.1:{port}")
        assert doctor.no_broker(f"tcp://127.0.0.1:{port}").state == "warn"
    assert doctor.port_is_free(port)
    assert doctor.no_broker(f"tcp://127.0.0.1:{port}").state == "ok"


@pytest.mark.parametrize(("median_us", "state"), [(1, "warn"), (150, "ok"), (9_000, "ok"), (40_000, "warn")])
def test_sync_times_are_judged(median_us: float, state: str) -> None:
    finding = doctor.judge_sync(median_us)
    assert finding.state == state
    assert bool(finding.advice) == (state != "ok")


@pytest.mark.parametrize(
    ("text", "state", "found"),
    [
        ('openjdk version "17.0.15" 2025-04-15', "ok", "17"),
        ('java version "25" 2025-09-16', "ok", "25"),
        ('java version "1.8.0_412"', "warn", "8"),
        ('openjdk version "11.0.2"', "warn", "11"),
        ("nonsense", "warn", "a version that cannot be read"),
    ],
)
def test_java_versions_are_judged(text: str, state: str, found: str) -> None:
    finding = doctor.judge_java(text)
    assert (finding.state, finding.found) == (state, found)


def test_java_is_never_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert doctor.java().state == "warn"
    broken = tmp_path / "java"
    broken.write_text("#!/nonexistent\n")
    broken.chmod(stat.S_IRWXU)
    assert doctor.java().state == "warn"


def test_limits_and_clock_are_judged() -> None:
    assert doctor.python_version((3, 10)).state == "fail"
    assert doctor.python_version((3, 11)).state == "ok"
    assert doctor.descriptors(256).state == "warn"
    assert doctor.descriptors(1024).state == "ok"
    assert doctor.clock(0.0).state == "fail"
    assert doctor.clock(1.79e9).state == "ok"
