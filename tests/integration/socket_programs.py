"""A broker with its door for sockets, plain sockets that knock there, and the two programs, all of them real."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from tests.integration.broker_process import ROOT, ServerProcess
from tidings.gateways.calls import Mailbox
from tidings.ring.ports import free_address

SECONDS_MAX = 60.0
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("TIDINGS_")} | {
    "PYTHONPATH": str(ROOT / "src")
}


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain: {what}"
        time.sleep(0.005)


class SocketBroker(ServerProcess):
    """`tidings serve --sockets`, on a folder or a storage server. Its door keeps its port."""

    def __init__(self, place: Path | str, *arguments: str, settings: dict[str, str] | None = None) -> None:
        kept = ("--data", str(place)) if isinstance(place, Path) else ("--storage", place)
        super().__init__("serve", *kept, *arguments, settings=settings)
        self._given = self._command
        self.port = free_port()
        self.spelling = ""
        """Where the web service answers that runs with the broker, with `--http`."""

    def start(self) -> SocketBroker:
        self._command = (*self._given, "--sockets", str(self.port))
        super().start()
        assert self._process is not None and self._process.stderr is not None
        line = self._process.stderr.readline()
        assert line.startswith("tidings takes editors and subscribers at 127.0.0.1:"), line
        self.port = int(line.rpartition(":")[2])
        if "--http" in self._given:
            line = self._process.stderr.readline()
            assert line.startswith("tidings spells numbers at http://127.0.0.1:"), line
            self.spelling = line.split()[-1]
        return self

    def __enter__(self) -> SocketBroker:
        return self.start()

    def ask(self, *fields: str | int) -> bytes:
        """One request over a plain socket: everything that is answered until the door closes."""
        with self.connect() as connection:
            connection.sendall(b"".join(str(field).encode() + b"\0" for field in fields))
            return read_all(connection)

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=SECONDS_MAX)


def read_all(connection: socket.socket) -> bytes:
    data = b""
    while piece := connection.recv(4096):
        data += piece
    return data


class Received:
    """A subscriber's port and what came there, in order."""

    def __init__(self) -> None:
        self.messages: list[tuple[str, str]] = []
        self.mailbox = Mailbox(lambda topic, text: self.messages.append((topic, text)))
        self.port = self.mailbox.port

    @property
    def texts(self) -> list[str]:
        return [text for _, text in self.messages]

    def wait_for(self, count: int) -> list[str]:
        wait_until(lambda: len(self.messages) >= count, f"{count} messages, and there are {self.messages}")
        return self.texts

    def __enter__(self) -> Received:
        return self

    def __exit__(self, *exception: object) -> None:
        self.mailbox.close()


def free_port() -> int:
    """A port where nobody listens, and which the system gives to nobody."""
    return int(free_address().rpartition(":")[2])


def run_editor(port: int, topic: str, text: str, program: list[str] | None = None) -> subprocess.CompletedProcess[str]:
    """`tidings editor` (or another editor) from its start to its end."""
    return subprocess.run(
        [*(program or [sys.executable, "-m", "tidings", "editor"]), *editor_flags(port, topic, text)],
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
        timeout=SECONDS_MAX,
        check=False,
    )


def editor_flags(port: int, topic: str, text: str) -> list[str]:
    return ["-h", "127.0.0.1", "-p", str(port), "-t", topic, "-m", text]


class SubscriberProgram:
    """`tidings subscriber` with its input and output as pipes."""

    def __init__(self, port: int, spell: str = "http://127.0.0.1:1/spell") -> None:
        self.lines: list[str] = []
        self.errors: list[str] = []
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tidings", "subscriber", "-s", "127.0.0.1", "-p", str(port), "--spell", spell],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=ENVIRONMENT,
        )
        self._threads = [
            threading.Thread(target=self._read, args=(self._process.stdout, self.lines)),
            threading.Thread(target=self._read, args=(self._process.stderr, self.errors)),
        ]
        for thread in self._threads:
            thread.start()

    @staticmethod
    def _read(stream: object, lines: list[str]) -> None:
        for line in stream:  # type: ignore[attr-defined]
            lines.append(line.rstrip("\n"))

    def type(self, line: str) -> None:
        """One line at the prompt."""
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def expect(self, *lines: str) -> None:
        """Everything said so far, line by line, must be this."""
        wait_until(
            lambda: len(self.lines) >= len(lines) or self._process.poll() is not None, f"{lines}, not {self.lines}"
        )
        assert self.lines == list(lines), self.errors

    def command(self, line: str, *said: str) -> None:
        """A line at the prompt, and what is said after it; what was said before is put aside."""
        self.lines.clear()
        self.type(line)
        self.expect(*said)

    def quit(self) -> int:
        """QUIT; the exit code."""
        self.type("QUIT")
        return self._end()

    def __enter__(self) -> SubscriberProgram:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._end()

    def _end(self) -> int:
        code = self._process.wait(SECONDS_MAX)
        for thread in self._threads:
            thread.join()
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()
        return code
