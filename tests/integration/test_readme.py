"""What the README shows is what happens."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.integration.broker_process import ROOT, BrokerProcess

README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def test_the_first_python_block_runs(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", blocks("python")[0]],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "hello\n"


def test_the_shell_block_runs(tmp_path: Path) -> None:
    [commands] = [block for block in blocks("sh") if "tidings subscribe " in block]
    with BrokerProcess(tmp_path / "data") as broker:
        outputs = []
        for line in commands.splitlines():
            words = line.partition("  #")[0].strip()
            if not words.startswith("tidings"):
                continue
            done = subprocess.run(
                [sys.executable, "-m", *re.findall(r'"[^"]*"|\S+', words.replace('"', ""))],
                env=os.environ | {"PYTHONPATH": str(ROOT / "src"), "TIDINGS_BUS": broker.address},
                input="topics\nquit\n",
                capture_output=True,
                text=True,
                check=True,
            )
            outputs.append(done.stdout)
    assert outputs[2] == "hello\n"
    assert "news" in outputs[3]


def test_every_python_block_is_python() -> None:
    for block in blocks("python"):
        compile(block, "README.md", "exec")


def test_every_link_leads_somewhere() -> None:
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
