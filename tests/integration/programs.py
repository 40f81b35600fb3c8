"""Small programs that tests run as processes of their own, to see how they end."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

from tests.integration.broker_process import ROOT

ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT / "src")}


def run_program(text: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Runs a program to its end; it finds the arguments in `sys.argv`."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(text), *map(str, arguments)],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
    )
