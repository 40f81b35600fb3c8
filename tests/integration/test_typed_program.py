"""A program that uses every public name passes a strict type checker, and runs."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import tidings
from tests.integration.broker_process import ROOT
from tidings import testing

PROGRAM = ROOT / "tests" / "typed_program.py"
OF_THE_SHELL = {"apply_change", "perform", "start", "wake"}
"""Methods that the bus's own parts call; their operations are not public."""


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src"), "MYPYPATH": str(ROOT / "src")},
    )


def test_it_uses_every_public_name() -> None:
    used = {node.attr for node in ast.walk(ast.parse(PROGRAM.read_text())) if isinstance(node, ast.Attribute)}
    names = {ast.unparse(node) for node in ast.walk(ast.parse(PROGRAM.read_text())) if isinstance(node, ast.Attribute)}
    assert [name for name in [*tidings.__all__, "open"] if f"tidings.{name}" not in names] == []
    kinds = (
        tidings.Bus,
        tidings.Publisher,
        tidings.Transaction,
        tidings.Stage,
        tidings.Soon,
        tidings.GroupSubscription,
    )
    methods = {name for kind in kinds for name in dir(kind) if not name.startswith("_")} - OF_THE_SHELL
    assert methods - used == set()
    assert testing.__all__ == ["Broker", "ManualClock"]


def test_a_strict_type_checker_has_nothing_to_say(tmp_path: Path) -> None:
    ended = run("-m", "mypy", "--strict", "--config-file=", f"--cache-dir={tmp_path}", str(PROGRAM))
    assert ended.returncode == 0, ended.stdout
    assert (Path(tidings.__file__).parent / "py.typed").is_file()
    wrong = tmp_path / "wrong.py"
    wrong.write_text("import tidings\ntidings.connect().put('news', 5)\ntidings.Unavailable('x').resent()\n")
    ended = run("-m", "mypy", "--strict", "--config-file=", f"--cache-dir={tmp_path}", str(wrong))
    assert ended.stdout.count("error:") == 2, ended.stdout


def test_it_runs(tmp_path: Path) -> None:
    ended = run(str(PROGRAM), str(tmp_path / "data"))
    assert (ended.returncode, ended.stderr) == (0, "")
    assert int(ended.stdout) > 20
