"""What is written down about a ring on this machine, and which processes it takes for its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tidings.admin import trial_record
from tidings.admin.trial_record import NodeRecord, RingRecord
from tidings.errors import InvalidRequest


def node(name: str, folder: Path, pid: int = 0) -> NodeRecord:
    return NodeRecord(name, name[:-1], f"tcp://127.0.0.1:{ord(name[0])}", str(folder / name), ("node",), pid)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    assert trial_record.read(tmp_path) is None
    written = RingRecord(3, "scribe", (node("a1", tmp_path), node("b1", tmp_path)), 2)
    trial_record.write(tmp_path, written)
    assert trial_record.read(tmp_path) == written
    assert written.node("a1") == written.node("tcp://127.0.0.1:97") == written.group("a")[0]
    for look in (lambda: written.node("c1"), lambda: written.group("c")):
        with pytest.raises(InvalidRequest, match="only a"):
            look()
    (tmp_path / trial_record.RECORD_NAME).write_text("{")
    with pytest.raises(InvalidRequest, match="cannot be read"):
        trial_record.read(tmp_path)


def test_only_a_process_of_the_same_folder_is_taken_for_the_node(tmp_path: Path) -> None:
    """A number that the system has given to somebody else must never be killed."""
    assert not node("a1", tmp_path).running
    assert not node("a1", tmp_path, os.getpid()).running
    waiting = [sys.executable, "-c", "input()", str(tmp_path / "a1")]
    with subprocess.Popen(waiting, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert node("a1", tmp_path, process.pid).running, "also when it has only just been started"
        assert not node("a11", tmp_path, process.pid).running
        process.kill()
        process.wait()
        assert not node("a1", tmp_path, process.pid).running
