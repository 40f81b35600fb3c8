"""Brokers and workers as processes of their own: started, asked, watched, and ended by their id.

Everything has a time limit. The processes see none of the caller's TIDINGS_* variables and no
`tidings.toml`, so that a run measures the defaults.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

import tidings
from tidings.errors import TidingsError
from tidings_lab.bench.neighbours import processor_seconds

READY_SECONDS_MAX = 120.0
ANSWER_SECONDS_MAX = 600.0
STOP_SECONDS_MAX = 30.0


def environment() -> dict[str, str]:
    """The caller's environment without what would change the settings, and with this very package."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TIDINGS_")}
    package = str(Path(tidings.__file__).resolve().parents[1])
    older = kept.get("PYTHONPATH")
    return kept | {"PYTHONPATH": f"{package}{os.pathsep}{older}" if older else package}


def end(process: subprocess.Popen[Any]) -> None:
    """Ends a process in good order, or by force when that takes too long."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class Memory(msgspec.Struct, frozen=True):
    """What a process holds in memory: all of it, and the part that is not just a file's pages."""

    resident_bytes: int
    anonymous_bytes: int


class ServerProcess:
    """A command that serves on loopback, on a free port if none is given, with a folder of its own."""

    def __init__(
        self,
        folder: Path,
        command: list[str],
        settings: dict[str, str] | None = None,
        bind: str = "tcp://127.0.0.1:*",
    ) -> None:
        self.folder = folder
        self._command = command
        self._bind = bind
        self._settings = settings or {}
        self.data = folder / "data"
        self.address = ""
        self._ready_file = folder / "address"
        self._log = folder / "server.log"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        """The id of the running process."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> float:
        """Starts it and waits until it serves; the seconds from one to the other."""
        started = time.perf_counter()
        self.launch()
        self.wait_until_ready()
        return time.perf_counter() - started

    def launch(self) -> None:
        """Starts it and waits for nothing."""
        assert self._process is None
        self.folder.mkdir(parents=True, exist_ok=True)
        self._ready_file.unlink(missing_ok=True)
        command = [sys.executable, "-m", "tidings", *self._command]
        command += ["--bind", self._bind, "--ready-file", str(self._ready_file.resolve())]
        with self._log.open("wb") as errors:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stderr=errors, env=environment() | self._settings, cwd=self.folder
            )

    def wait_until_ready(self) -> None:
        """Returns when it serves."""
        deadline = time.perf_counter() + READY_SECONDS_MAX
        while not self._ready_file.exists():
            if self._process is None or self._process.poll() is not None or time.perf_counter() > deadline:
                self.stop()
                raise TidingsError(f"`tidings {self._command[0]}` did not start: {_last_line(self._log)}")
            time.sleep(0.002)
        self.address = self._ready_file.read_text().partition("\n")[0]

    def stop(self) -> None:
        """Ends it in good order."""
        process, self._process = self._process, None
        if process is not None:
            end(process)

    def kill(self) -> None:
        """Ends it as a power cut would end it, as far as a process can know."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def memory(self) -> Memory:
        """How much memory it holds now."""
        sizes = {}
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            name, _, rest = line.partition(":")
            if rest.endswith(" kB"):
                sizes[name] = int(rest.split()[0]) * 1024
        return Memory(sizes["VmRSS"], sizes["RssAnon"])

    def processor_seconds(self) -> float:
        """How long it has been busy since it started."""
        return processor_seconds(self.pid)


class BrokerProcess(ServerProcess):
    """A `tidings serve` on a folder, or on a storage server."""

    def __init__(self, folder: Path, settings: dict[str, str] | None = None, storage: str | None = None) -> None:
        place = ["--data", str((folder / "data").resolve())] if storage is None else ["--storage", storage]
        super().__init__(folder, ["serve", *place], settings)


class StorageProcess(ServerProcess):
    """A `tidings storage` on a folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, ["storage", "--data", str((folder / "data").resolve())])


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it said nothing."


class Worker:
    """A process that does one job after another: see `jobs` for what it knows."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tidings_lab.bench.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment(),
        )
        self._unread = b""

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def ask(self, job: str, **arguments: Any) -> Any:
        """Has a job done and returns what came of it."""
        self.send(job, **arguments)
        return self.answer()

    def send(self, job: str, **arguments: Any) -> None:
        """Starts a job; `answer` waits for its end."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([job, arguments]).encode() + b"\n")
        self._process.stdin.flush()

    def answer(self) -> Any:
        """What came of the job that was started first."""
        line = self._read_line(time.monotonic() + ANSWER_SECONDS_MAX)
        kind, result = json.loads(line)
        if kind == "failed":
            raise TidingsError(f"A client of the benchmark failed: {result}")
        return result

    def kill_after(self, seconds: float) -> float:
        """Kills the worker in the middle of its job; the moment at which that happened."""
        time.sleep(seconds)
        self._process.kill()
        return time.perf_counter()

    def _read_line(self, deadline: float) -> bytes:
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        while b"\n" not in self._unread:
            ready, _, _ = select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise TidingsError(f"A client of the benchmark took more than {ANSWER_SECONDS_MAX:g} s: give it up.")
            data = os.read(descriptor, 1 << 16)
            if not data:
                raise TidingsError("A client of the benchmark ended without an answer: see what it wrote above.")
            self._unread += data
        line, _, self._unread = self._unread.partition(b"\n")
        return line

    def stop(self) -> None:
        """Ends the process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.close()  # It ends when there is nothing more to read.
            self._process.wait(2)
        except (subprocess.TimeoutExpired, BrokenPipeError):
            end(self._process)
        self._process.stdout.close()
