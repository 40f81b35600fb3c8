"""Processes of `python -m tidings` that begin with everything imported: forked from one that has done nothing else.

A broker uses more processor time for its imports than for most tests, and the tests start about a thousand. Each is a
process of its own all the same, with the arguments, variables and streams that it is given, and runs the command from
its first line to Python's own end. Whatever looks at how a process is started starts one itself, and so does a soak.

`python -m tests.integration.forked SOCKET` is the process that forks. It ends with the one that has started it.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MESSAGE_MAX = 1 << 20
IMPORTED = (
    *("tidings.cli", "tidings.cli.serve", "tidings.cli.storage", "tidings.cli.node", "tidings.cli.roles"),
    *("tidings.node.process", "tidings.storage.server", "tidings.gateways.sockets", "tidings.gateways.http"),
)


class Forked:
    """A process as `subprocess.Popen` would give it, as far as the tests of servers ask."""

    returncode: int | None = None

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        read, write = os.pipe()
        self._ended, tell = os.pipe()
        self.stderr = os.fdopen(read, encoding="utf-8", errors="strict")
        try:
            self.pid = _forking().fork(arguments, environment, (0, 1, write, tell))
        finally:
            os.close(write)
            os.close(tell)

    def poll(self) -> int | None:
        return self._look(0)

    def wait(self) -> int:
        code = self._look(None)
        assert code is not None
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # It has ended just now.
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _look(self, seconds: float | None) -> int | None:
        if self.returncode is None and select.select([self._ended], [], [], seconds)[0]:
            self.returncode = int(os.read(self._ended, 16) or -signal.SIGKILL)
            os.close(self._ended)
        return self.returncode


class _Forking:
    """The process that forks, as those see it who ask for processes."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        self._lock = threading.Lock()
        self._socket, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with other:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(other.fileno())],
                env=os.environ | {"PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT)))},
                cwd=ROOT,
                pass_fds=[other.fileno()],
            )
        atexit.register(self.close)

    def fork(self, arguments: Sequence[str], environment: Mapping[str, str], streams: Sequence[int]) -> int:
        order = json.dumps([list(arguments), dict(environment), os.getcwd()]).encode()
        with self._lock:
            socket.send_fds(self._socket, [order], streams)
            return int(self._socket.recv(16))

    def close(self) -> None:
        if os.getpid() == self.owner:
            self._socket.shutdown(socket.SHUT_RDWR)
            self._process.wait()


_started: _Forking | None = None


def _forking() -> _Forking:
    global _started
    if _started is None or _started.owner != os.getpid():
        _started = _Forking()
    return _started


# In the process that forks.


def serve(orders: socket.socket) -> None:
    """Forks as it is told, and passes on how each process has ended."""
    awake, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the tests, and these end what they have started.
    running: dict[int, int] = {}
    while True:
        ready, _, _ = select.select([orders, awake], [], [])
        if awake in ready:
            os.read(awake, 4_096)
            _reap(running)
        if orders in ready:
            order, streams, _, _ = socket.recv_fds(orders, MESSAGE_MAX, 4)
            if not order:
                return
            pid = os.fork()
            if pid == 0:
                orders.detach()  # Or at the end it would close whatever has its number by then.
                _become(*json.loads(order), streams)
            running[pid] = streams.pop()
            for stream in streams:
                os.close(stream)
            orders.send(b"%d" % pid)


def _reap(running: dict[int, int]) -> None:
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        tell = running.pop(pid)
        with contextlib.suppress(BrokenPipeError):
            os.write(tell, b"%d" % os.waitstatus_to_exitcode(status))
        os.close(tell)


def _become(arguments: list[str], environment: dict[str, str], folder: str, streams: Sequence[int]) -> None:
    """From here on the process is `python -m tidings`; this does not return."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for target, stream in enumerate(streams[:3]):
        os.dup2(stream, target)
    os.closerange(3, max(map(int, os.listdir("/proc/self/fd"))) + 1)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["tidings", *arguments]
    gc.enable()
    runpy.run_module("tidings", run_name="__main__", alter_sys=True)
    raise AssertionError("the command has returned")


if __name__ == "__main__":
    import importlib

    for each in IMPORTED:
        importlib.import_module(each)
    gc.collect()
    gc.freeze()
    serve(socket.socket(fileno=int(sys.argv[1])))
