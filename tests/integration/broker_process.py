"""A real broker in a process of its own, to be stopped, killed and started again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


class BrokerProcess:
    """`tidings serve` on a folder. The port that it first gets stays its port."""

    def __init__(self, data: Path, *arguments: str, settings: dict[str, str] | None = None) -> None:
        self.data = data
        self._settings = settings or {}
        self._arguments = arguments
        self._bind = "tcp://127.0.0.1:*"
        self._process: subprocess.Popen[str] | None = None
        self.log: list[str] = []

    @property
    def address(self) -> str:
        assert "*" not in self._bind, "start it first"
        return self._bind

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> BrokerProcess:
        """Starts it and waits for the line that says where it serves."""
        environment = os.environ | {"PYTHONPATH": str(ROOT / "src")} | self._settings
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tidings",
                "serve",
                "--data",
                str(self.data),
                "--bind",
                self._bind,
                *self._arguments,
            ],
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self.log.append(line)
            if "serves" in line:
                self._bind = next(word for word in line.split() if word.startswith("tcp://"))
                return self
        raise AssertionError(f"The broker did not start: {''.join(self.log)}")

    def kill(self) -> None:
        """SIGKILL: it gets no chance to do anything."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """SIGTERM: it ends in good order; its exit code."""
        return self._end(signal.SIGTERM)

    def wait(self) -> int:
        assert self._process is not None
        assert self._process.stderr is not None
        self.log += self._process.stderr.readlines()
        self._process.stderr.close()
        code = self._process.wait()
        self._process = None
        return code

    def _end(self, number: signal.Signals) -> int:
        if self._process is None:
            return 0
        self._process.send_signal(number)
        return self.wait()

    def __enter__(self) -> BrokerProcess:
        return self.start()

    def __exit__(self, *exception: object) -> None:
        self.kill()
