"""What is stored is for the user who runs the broker: others on the machine read no message."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

import tidings


@pytest.fixture(autouse=True)
def usual_umask() -> object:
    before = os.umask(0o022)
    yield
    os.umask(before)


def modes(folder: Path) -> dict[str, int]:
    return {
        str(path.relative_to(folder.parent)): stat.S_IMODE(path.stat().st_mode) for path in (folder, *folder.rglob("*"))
    }


def test_nobody_else_reads_a_folder_or_its_files(tmp_path: Path) -> None:
    data = tmp_path / "new" / "data"
    with tidings.open(data, client_id="ann") as bus:
        bus.put("news", "hello")
    found = modes(data)
    assert any(name.endswith(".journal") for name in found)
    assert {name: oct(mode) for name, mode in found.items() if mode & 0o077} == {}


def test_nobody_else_reads_an_inbox_or_a_record(tmp_path: Path) -> None:
    with tidings.open(tmp_path / "data", client_id="ann", inbox=tmp_path / "inbox", record=tmp_path / "record") as bus:
        bus.subscribe("news")
        bus.put("news", "hello")
        assert bus.get("news") is not None
    found = {**modes(tmp_path / "inbox"), **modes(tmp_path / "record")}
    assert len(found) > 2
    assert {name: oct(mode) for name, mode in found.items() if mode & 0o077} == {}
