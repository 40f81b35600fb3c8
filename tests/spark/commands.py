"""Runs several commands in one process, which then needs one JVM: `python -m tests.spark.commands '[["audit", ...]]'`.

The answer is a line of JSON: the exit code and the output of each.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys

from tests.integration.broker_process import ROOT


def run(commands: list[list[str]], environment: dict[str, str] | None = None) -> list[tuple[int, str, str]]:
    """What each command returned, printed and complained of, from a process of their own."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.commands", json.dumps(commands)],
        env=environment or os.environ | {"PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT)))},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-5000:]
    return [(code, output, errors) for code, output, errors in json.loads(done.stdout.splitlines()[-1])]


if __name__ == "__main__":
    from tidings.cli import main

    answers = []
    for command in json.loads(sys.argv[1]):
        with contextlib.redirect_stdout(io.StringIO()) as output, contextlib.redirect_stderr(io.StringIO()) as errors:
            code = main(command)
        answers.append((code, output.getvalue(), errors.getvalue()))
    print(json.dumps(answers))
