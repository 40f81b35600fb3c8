"""A broker with its door for sockets, plain sockets that knock there, and the two programs, all of them real.

The programs may also run in a network namespace of their own, which is as good as another machine.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.integration.broker_process import ROOT, ServerProcess
from tidings.admin.ports import free_address
from tidings.gateways.calls import Mailbox

SECONDS_MAX = 60.0
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("TIDINGS_")} | {
    "PYTHONPATH": str(ROOT / "src")
}


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain: {what}"
        time.sleep(0.005)


class Reach(NamedTuple):
    """From where programs reach a gateway, and where it reaches them."""

    host: str = "127.0.0.1"
    prefix: tuple[str, ...] = ()
    listen: tuple[str, ...] = ()

    def subscriber(self, port: int) -> list[str]:
        command = [sys.executable, "-m", "tidings", "subscriber", "-s", self.host, "-p", str(port)]
        return [*self.prefix, *command, *self.listen]

    def run_editor(self, port: int, topic: str, text: str) -> subprocess.CompletedProcess[str]:
        return run_editor(port, topic, text, [*self.prefix, sys.executable, "-m", "tidings", "editor"], self.host)


@contextlib.contextmanager
def network_namespace() -> Iterator[tuple[str, Reach]]:
    """A namespace that a pair of interfaces joins to ours: the address of our end, and how programs there reach it.

    Skips the test where the system does not let us make one.
    """
    name, network = f"tidings{os.getpid()}", f"198.18.{os.getpid() % 250}"
    ours, theirs = f"tdo{os.getpid()}", f"tdt{os.getpid()}"
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("making a network namespace takes root and the command ip")

    def ip(*words: str) -> None:
        done = subprocess.run(["ip", *words], capture_output=True, text=True, timeout=SECONDS_MAX, check=False)
        if done.returncode:
            pytest.skip(f"this system makes no network namespaces: {done.stderr.strip()}")

    try:
        ip("netns", "add", name)
        ip("link", "add", ours, "type", "veth", "peer", "name", theirs, "netns", name)
        ip("address", "add", f"{network}.1/30", "dev", ours)
        ip("link", "set", ours, "up")
        ip("-n", name, "address", "add", f"{network}.2/30", "dev", theirs)
        ip("-n", name, "link", "set", theirs, "up")
        ip("-n", name, "link", "set", "lo", "up")
        inside = ("ip", "netns", "exec", name)
        yield f"{network}.2", Reach(f"{network}.1", inside, ("--listen", f"{network}.2"))
    finally:
        for words in (("link", "del", ours), ("netns", "del", name)):
            subprocess.run(["ip", *words], capture_output=True, timeout=SECONDS_MAX, check=False)


class Gateway:
    """What tests need of a server with `--sockets`."""

    port: int
    spelling: str = ""
    """Where the web service answers that runs with it, with `--http`."""
    reach = Reach()

    def ask(self, *fields: str | int) -> bytes:
        """One request over a plain socket: everything that is answered until the door closes."""
        with self.connect() as connection:
            connection.sendall(b"".join(str(field).encode() + b"\0" for field in fields))
            return read_all(connection)

    def connect(self) -> socket.socket:
        return socket.create_connection((self.reach.host, self.port), timeout=SECONDS_MAX)

    def read_places(self, stderr: Iterable[str], spells: bool) -> None:
        """From the lines that say so."""
        lines = iter(stderr)
        line = next(lines)
        assert line.startswith(f"tidings takes editors and subscribers at {self.reach.host}:"), line
        self.port = int(line.rpartition(":")[2])
        if spells:
            line = next(lines)
            assert line.startswith(f"tidings spells numbers at http://{self.reach.host}:"), line
            self.spelling = line.split()[-1]


class SocketMember(Gateway):
    """A member of a replica group, or a node of a ring, that is started again with plain sockets."""

    def __init__(self, node: ServerProcess, reach: Reach | None = None, allow: str = "") -> None:
        self.node = node
        self.reach = reach or Reach()
        self.port = free_port()
        host = self.reach.host
        flags = ["--sockets", f"{host}:{self.port}", "--http", f"{host}:0"]
        flags += ["--sockets-allow", allow, "--http-allow", allow] if allow else []
        node.add_flags(*flags)
        self.restart()

    def restart(self) -> None:
        assert self.node.stop() == 0
        self.start()

    def start(self) -> None:
        self.node.start()
        self.read_places(self.node.stderr_lines(), True)


class SocketBroker(ServerProcess, Gateway):
    """`tidings serve --sockets`, on a folder or a storage server. Its door keeps its port."""

    def __init__(self, place: Path | str, *arguments: str, settings: dict[str, str] | None = None) -> None:
        kept = ("--data", str(place)) if isinstance(place, Path) else ("--storage", place)
        super().__init__("serve", *kept, *arguments, settings=settings)
        self._given = self._command if "--http" in self._command else (*self._command, "--digits")
        self.port = free_port()

    def start(self) -> SocketBroker:
        self._command = (*self._given, "--sockets", str(self.port))
        super().start()
        self.read_places(self.stderr_lines(), "--http" in self._given)
        return self

    def __enter__(self) -> SocketBroker:
        return self.start()


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


def run_editor(
    port: int, topic: str, text: str, program: list[str] | None = None, host: str = "127.0.0.1"
) -> subprocess.CompletedProcess[str]:
    """`tidings editor` (or another editor) from its start to its end."""
    return subprocess.run(
        [*(program or [sys.executable, "-m", "tidings", "editor"]), *editor_flags(port, topic, text, host)],
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
        timeout=SECONDS_MAX,
        check=False,
    )


def editor_flags(port: int, topic: str, text: str, host: str = "127.0.0.1") -> list[str]:
    return ["-h", host, "-p", str(port), "-t", topic, "-m", text]


class SubscriberProgram:
    """`tidings subscriber` with its input and output as pipes."""

    def __init__(self, port: int, spell: str = "http://127.0.0.1:1/spell", reach: Reach | None = None) -> None:
        self.lines: list[str] = []
        self.errors: list[str] = []
        self._process = subprocess.Popen(
            [*(reach or Reach()).subscriber(port), "--spell", spell],
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
