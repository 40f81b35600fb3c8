"""Real brokers and storage servers in processes of their own, to be stopped, killed and started again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Self

from tests.integration.forked import ROOT, Forked
from tidings.admin.ports import free_address

COMMAND = ("-m", "tidings")


class ServerProcess:
    """A command that serves. The port that it first gets stays its port."""

    descriptors_max: int | None = None
    """What the system lets it open, if that is not what it lets us."""
    forks = True
    """Whether it may begin with everything imported (`forked.py`); a soak has time for starts as a user has them."""

    def __init__(self, *command: str, settings: dict[str, str] | None = None) -> None:
        self._program: tuple[str, ...] = COMMAND
        self._command = command
        self._settings = settings or {}
        self._bind: str | None = None
        self._process: subprocess.Popen[str] | Forked | None = None
        self.log: list[str] = []

    @property
    def address(self) -> str:
        assert self._bind is not None, "start it first"
        return self._bind

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def add_flags(self, *flags: str) -> None:
        """From the next start on."""
        self._command = (*self._command, *flags)

    def stderr_lines(self) -> Iterable[str]:
        """What it says from here on, as it comes."""
        assert self._process is not None and self._process.stderr is not None
        return iter(self._process.stderr.readline, "")

    def launch(self) -> None:
        """Starts it and waits for nothing.

        A port that the system chooses may go to anybody else's connection while the server is down.
        """
        if self._bind is None:
            self._bind = free_address()
        environment = os.environ | {"PYTHONPATH": str(ROOT / "src")} | self._settings
        if self.forks and self._program == COMMAND and self.descriptors_max is None:
            self._process = Forked([*self._command, "--bind", self._bind], environment)
            return
        limits = (
            [] if self.descriptors_max is None else ["sh", "-c", f'ulimit -n {self.descriptors_max}; exec "$@"', "sh"]
        )
        self._process = subprocess.Popen(
            [*limits, sys.executable, *self._program, *self._command, "--bind", self._bind],
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def start(self) -> Self:
        """Starts it and waits for the line that says where it serves."""
        self.launch()
        return self.wait_until_ready()

    def wait_until_ready(self) -> Self:
        assert self._process is not None
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self.log.append(line)
            if line.startswith(("tidings serves", "tidings stores", "tidings node")):
                self._bind = next(word for word in line.split() if word.startswith("tcp://"))
                return self
        raise AssertionError(f"It did not start: {''.join(self.log)}")

    def kill(self) -> None:
        """SIGKILL: it gets no chance to do anything."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """SIGTERM: it ends in good order; its exit code."""
        return self._end(signal.SIGTERM)

    @property
    def has_ended(self) -> bool:
        """Whether it has ended by itself; `wait` says how."""
        return self._process is not None and self._process.poll() is not None

    def wait(self) -> int:
        assert self._process is not None
        assert self._process.stderr is not None
        self.log += self._process.stderr.readlines()
        self._process.stderr.close()
        code = self._process.wait()
        self._process = None
        return code

    def last_words(self) -> str:
        """All that it has said, and whether it had ended; it is killed if it had not."""
        code = None if self._process is None else self._process.poll()
        self.kill()
        return f"{'still there' if code is None else f'ended with {code}'}: {''.join(self.log)}"

    def _end(self, number: signal.Signals) -> int:
        if self._process is None:
            return 0
        self._process.send_signal(number)
        return self.wait()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exception: object) -> None:
        self.kill()


class BrokerProcess(ServerProcess):
    """`tidings serve` on a folder."""

    def __init__(self, data: Path, *arguments: str, settings: dict[str, str] | None = None) -> None:
        super().__init__("serve", "--data", str(data), *arguments, settings=settings)
        self.data = data


class NodeProcess(ServerProcess):
    """`tidings node` on a folder: one of a ring, which it founds unless it is told where to `--join`."""

    def __init__(self, data: Path, *arguments: str, settings: dict[str, str] | None = None) -> None:
        super().__init__("node", "--data", str(data), *arguments, settings=settings)
        self.data = data


class StorageProcess(ServerProcess):
    """`tidings storage` on a folder."""

    def __init__(self, data: Path, *arguments: str, settings: dict[str, str] | None = None) -> None:
        super().__init__("storage", "--data", str(data), *arguments, settings=settings)
        self.data = data


class StoredBrokerProcess(ServerProcess):
    """`tidings serve` on a storage server."""

    def __init__(self, storage: str, *arguments: str, settings: dict[str, str] | None = None) -> None:
        super().__init__("serve", "--storage", storage, *arguments, settings=settings)
