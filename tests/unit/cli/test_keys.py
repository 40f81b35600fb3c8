"""`tidings keys`: what it writes, what it refuses, and that it tells no secret."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from tidings.cli import main
from tidings.transport import curve


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "keys"


def modes(folder: Path) -> dict[str, int]:
    return {
        str(path.relative_to(folder)): stat.S_IMODE(path.stat().st_mode) for path in folder.rglob("*") if path.is_file()
    }


def test_secrets_are_written_for_their_owner_and_never_shown(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["keys", str(folder)]) == 0
    assert main(["keys", str(folder), "--client", "alice"]) == 0
    assert main(["keys", str(folder), "--list"]) == 0
    assert main(["keys", str(folder), "--list", "--json"]) == 0
    found = modes(folder)
    assert sorted(found) == ["alice.key", "clients/alice.pub", "server.key", "server.pub"]
    assert found["server.key"] == found["alice.key"] == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    captured = capsys.readouterr()
    for name in ("server.key", "alice.key"):
        assert (folder / name).read_text().strip() not in captured.out + captured.err


def test_the_keys_work_for_broker_and_client(folder: Path) -> None:
    main(["keys", str(folder)])
    main(["keys", str(folder), "--client", "alice"])
    options = curve.client_options(folder, "alice")
    assert options.server_public == curve.server_keys(folder).public
    assert curve.allowed(folder) == {options.keys.public: "alice"}


def test_list_shows_public_keys(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["keys", str(folder)])
    for name in ("bob", "alice"):
        main(["keys", str(folder), "--client", name])
    capsys.readouterr()
    assert main(["keys", str(folder), "--list", "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(row["kind"], row["name"]) for row in rows] == [("broker", None), ("client", "alice"), ("client", "bob")]
    assert rows[0]["public"] == (folder / "server.pub").read_text().strip()
    assert main(["keys", str(folder), "--list"]) == 0
    assert [line.split()[-1] for line in capsys.readouterr().out.splitlines()] == [row["public"] for row in rows]


def test_nothing_is_overwritten(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["keys", str(folder)])
    main(["keys", str(folder), "--client", "alice"])
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    capsys.readouterr()
    for argv in (["keys", str(folder)], ["keys", str(folder), "--client", "alice"]):
        assert main(argv) == 1
        assert "not overwritten" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_a_key_made_elsewhere_can_be_allowed(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    public = curve.generate().public
    assert main(["keys", str(folder), "--client", "bob", "--public", public.decode()]) == 0
    assert curve.allowed(folder) == {public: "bob"}
    assert list(modes(folder)) == ["clients/bob.pub"]
    sent = tmp_path / "carol.pub"
    sent.write_text("not a key")
    assert main(["keys", str(folder), "--client", "carol", "--public", str(sent)]) == 1
    assert "not a CURVE key" in capsys.readouterr().err
    public = curve.generate().public
    sent.write_bytes(public)
    assert main(["keys", str(folder), "--client", "carol", "--public", str(sent)]) == 0
    assert curve.allowed(folder)[public] == "carol"
    assert main(["keys", str(folder), "--client", "eve", "--public", "too short"]) == 1


@pytest.mark.parametrize(
    "argv", [["keys"], ["keys", "x", "--public", "k"], ["keys", "x", "--list", "--client", "alice"]]
)
def test_wrong_usage(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("name", ["server", "", "x" * 129, "new\nline"])
def test_a_name_that_cannot_be_a_client_is_refused(folder: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["keys", str(folder), "--client", name]) == 1
    assert not folder.exists()


def test_a_missing_folder_cannot_be_listed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["keys", str(folder), "--list"]) == 1
    assert "There is no folder" in capsys.readouterr().err
