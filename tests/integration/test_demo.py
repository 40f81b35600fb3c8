"""The demonstration: one command, and its verdict is worth something."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.broker_process import ROOT
from tidings_lab.demo.stage import Account, Verdict, _account


def test_one_command_shows_the_bus_and_nothing_is_lost() -> None:
    """C15: publishers, subscribers, a group, two kills and the recovery, started by one command."""
    done = subprocess.run(
        [sys.executable, "-m", "tidings", "demo", "--orders", "1500", "--json", "--without-spark"],
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=True,
    )
    verdict = json.loads(done.stdout)
    assert verdict["kills"] == 2
    assert len(verdict["recovered_ms"]) == 2
    assert verdict["lake"] is None
    assert len(verdict["accounts"]) == 4
    for account in verdict["accounts"]:
        assert (account["published"], account["delivered"], account["lost"], account["doubled"]) == (4500, 4500, 0, 0)
    assert "nothing lost, nothing doubled" in done.stderr


def test_a_folder_that_is_there_already_is_not_touched(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tidings", "demo", "--keep", str(tmp_path)],
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert "exists already" in done.stderr


@pytest.mark.parametrize(
    ("found", "lost", "doubled"), [(["a", "b"], 0, 0), (["a"], 1, 0), (["a", "b", "a"], 0, 1), (["a", "a"], 1, 1)]
)
def test_the_account_finds_what_is_planted(found: list[str], lost: int, doubled: int) -> None:
    account = _account("step", {"a", "b"}, found)
    assert (account.lost, account.doubled) == (lost, doubled)
    assert Verdict([account], 2, []).clean == (lost == doubled == 0)
    assert isinstance(account, Account)
