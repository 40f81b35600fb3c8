"""What the machine can do at most: bare loops that do nothing but the thing itself.

Each is measured in the same run as the scenario that is compared to it, in turns with it, and on the same
sizes: `write_and_sync` appends blocks of the size of the broker's commits to a growing file as the journal
does, `echo` sends frames of the size of a put to another process and waits for them to come back, `stream` asks for
frames of the size of a stored batch, `memory_copy` copies memory.
"""

from __future__ import annotations

import os
from pathlib import Path
from time import perf_counter

import zmq

POLL_MS_MAX = 10_000
STREAM_WINDOW = 16
FILE_BYTES_MAX = 64 * 1024 * 1024
COPY_BYTES = 64 * 1024 * 1024


def write_and_sync(folder: Path, block_bytes: int, count: int) -> list[float]:
    """How long each write of a block and its fdatasync took, in seconds.

    The file begins again at the size of a journal segment, for a segment is what the journal appends to; the
    making of a file is not counted.
    """
    path = folder / "limit.bin"
    block = os.urandom(block_bytes)
    times: list[float] = []
    descriptor, written = -1, FILE_BYTES_MAX
    try:
        for _ in range(count):
            if written + block_bytes > FILE_BYTES_MAX:
                if descriptor >= 0:
                    os.close(descriptor)
                descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
                os.fsync(descriptor)
                written = 0
            started = perf_counter()
            os.write(descriptor, block)
            os.fdatasync(descriptor)
            times.append(perf_counter() - started)
            written += block_bytes
    finally:
        if descriptor >= 0:
            os.close(descriptor)
        path.unlink(missing_ok=True)
    return times


def memory_copy(count: int) -> list[float]:
    """How many bytes a second a copy from memory to memory moves, measured `count` times."""
    source, target = bytearray(COPY_BYTES), memoryview(bytearray(COPY_BYTES))
    source[:] = os.urandom(1 << 20) * (COPY_BYTES >> 20)
    rates: list[float] = []
    for _ in range(count):
        started = perf_counter()
        target[:] = source
        rates.append(COPY_BYTES / (perf_counter() - started))
    return rates


class EchoServer:
    """A ROUTER that sends back what it gets.

    A first frame `sync` has it write as many bytes as the second says, and sync them, before it answers; `stream`
    has it answer with as many bytes.
    """

    def __init__(self, folder: Path) -> None:
        self._file = folder / "echo.bin"
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.linger = 0
        self._socket.bind("tcp://127.0.0.1:*")
        self.address = bytes(self._socket.getsockopt(zmq.LAST_ENDPOINT)).rstrip(b"\0").decode()

    def serve(self) -> None:
        """Serves until it is told to stop."""
        receive, send = self._socket.recv_multipart, self._socket.send_multipart
        descriptor = os.open(self._file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        data, block = b"", zmq.Frame(b"")
        while True:
            frames = receive()
            match frames[1]:
                case b"sync":
                    if len(data) != int(frames[2]):
                        data = os.urandom(int(frames[2]))
                    os.write(descriptor, data)
                    os.fdatasync(descriptor)
                    send(frames)
                case b"stream":
                    if len(block) != int(frames[2]):
                        block = zmq.Frame(os.urandom(int(frames[2])), copy=False)
                    send([frames[0], block], copy=True)
                case b"stop":
                    break
                case _:
                    send(frames)
        os.close(descriptor)
        self._file.unlink(missing_ok=True)
        self._socket.close()
        self._context.term()


class EchoClient:
    """Callers of an EchoServer, a socket each."""

    def __init__(self, address: str, callers: int = 1) -> None:
        self._context = zmq.Context()
        self._sockets = []
        for _ in range(callers):
            socket = self._context.socket(zmq.DEALER)
            socket.linger = 1_000
            socket.connect(address)
            self._sockets.append(socket)
        self._poller = zmq.Poller()
        for socket in self._sockets:
            self._poller.register(socket, zmq.POLLIN)

    def echo(self, sizes: list[int], count: int, record_bytes: int = 0) -> list[float]:
        """How long each round trip of frames of these sizes took; with a record, one that is synced on the way."""
        [socket, *_] = self._sockets
        frames = [os.urandom(size) for size in sizes]
        if record_bytes:
            frames = [b"sync", b"%d" % record_bytes, *frames]
        times: list[float] = []
        for _ in range(count):
            started = perf_counter()
            socket.send_multipart(frames)
            socket.recv_multipart()
            times.append(perf_counter() - started)
        return times

    def echo_all(self, sizes: list[int], seconds: float) -> int:
        """How many round trips all callers made together in a time, each waiting for its own."""
        frames = [os.urandom(size) for size in sizes]
        count = 0
        until = perf_counter() + seconds
        for socket in self._sockets:
            socket.send_multipart(frames)
        while perf_counter() < until:
            for socket, _ in self._poller.poll(POLL_MS_MAX):
                socket.recv_multipart()
                socket.send_multipart(frames)
                count += 1
        for socket in self._sockets:
            if socket.poll(POLL_MS_MAX):
                socket.recv_multipart()
        return count

    def stream(self, block_bytes: int, count: int) -> float:
        """How many bytes a second came in, in so many frames of that size, a few asked for ahead."""
        [socket, *_] = self._sockets
        request = [b"stream", b"%d" % block_bytes]
        started = perf_counter()
        asked = min(count, STREAM_WINDOW)
        for _ in range(asked):
            socket.send_multipart(request)
        for _ in range(count):
            socket.recv(copy=False)
            if asked < count:
                socket.send_multipart(request)
                asked += 1
        return block_bytes * count / (perf_counter() - started)

    def close(self, stop_server: bool = False) -> None:
        """Ends the callers, and the server too if asked."""
        if stop_server:
            self._sockets[0].send(b"stop")
        for socket in self._sockets:
            socket.close()
        self._context.term()
