"""The second act of the demonstration: Spark, a killed driver, the lake and its audit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.integration.broker_process import ROOT
from tests.spark.conftest import needs_java
from tidings_lab.demo.lake import Audited, LakeVerdict


@needs_java
def test_one_command_shows_the_whole(tmp_path: Path) -> None:
    """D2, D3, D4: the bus goes into a lake, its driver is killed on the way, and the audit finds nothing wrong."""
    kept = tmp_path / "kept"
    done = subprocess.run(
        [sys.executable, "-m", "tidings", "demo", "--orders", "400", "--json", "--keep", str(kept)],
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    lake = json.loads(done.stdout)["lake"]
    assert lake["kills"] == 1
    assert lake["audits"] == [
        {"topic": topic, "checked": 1200, "lost": 0, "doubled": 0, "reordered": 0} for topic in ("invoices", "orders")
    ]
    assert [(topic, messages) for topic, _, messages, *_ in lake["windows"]] == [("invoices", 1200), ("orders", 1200)]
    assert (kept / "lake" / "audit" / "last.json").is_file()
    assert "3 crashes, nothing lost, nothing doubled" in done.stderr


def test_the_verdict_needs_an_audit_without_faults() -> None:
    assert LakeVerdict([Audited("orders", 10, 0, 0, 0)], [], 1).clean
    assert not LakeVerdict([Audited("orders", 10, 1, 0, 0)], [], 1).clean
    assert not LakeVerdict([Audited("orders", 10, 0, 1, 0)], [], 1).clean
    assert not LakeVerdict([], [], 1).clean


def test_without_java_the_first_act_is_shown_and_one_sentence_says_why(tmp_path: Path) -> None:
    (tmp_path / "python").symlink_to(sys.executable)
    environment = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    done = subprocess.run(
        [sys.executable, "-m", "tidings", "demo", "--orders", "50"],
        env=environment | {"PYTHONPATH": str(ROOT / "src"), "PATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "left out: Spark needs Java 17 or newer" in " ".join(done.stdout.split())
