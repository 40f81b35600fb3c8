"""A connection for calls: a request goes out, its answer comes back, and a lost connection is noticed at once.

ZeroMQ reconnects by itself and says nothing about it, so anyone who waits for an answer from a process that has died
would wait for ever. The socket's monitor tells; what was under way is then lost or done, and only the other side
knows: the caller has to ask again over a new connection (`reopen`).
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import zmq

from tidings.errors import InvalidRequest
from tidings.transport.curve import ClientOptions
from tidings.transport.router import COPY_BYTES_MAX

Frame = bytes | memoryview

RECONNECT_MS = 50
HEARTBEAT_MS = 2_000
SILENCE_MS_MAX = 10_000
MESSAGE_BYTES_MAX = 64 * 1024 * 1024


class ConnectionLost(Exception):
    """The other side has gone, and with it what was under way."""


class Caller:
    """One DEALER socket for one thread at a time; nothing is asked while an answer is awaited."""

    def __init__(self, address: str, curve: ClientOptions | None = None) -> None:
        self.address = address
        self._curve = curve
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
        self._open()

    def send(self, frames: Sequence[Frame]) -> None:
        """Sends a request; large frames without a copy, so they must not change before the answer has come."""
        parts = [frame if len(frame) <= COPY_BYTES_MAX else zmq.Frame(frame, copy=False) for frame in frames]
        try:
            self._socket.send_multipart(parts, zmq.DONTWAIT, copy=True)
        except zmq.Again as error:
            raise ConnectionLost("there is no connection") from error

    def receive(self, timeout_ms: int) -> list[Frame] | None:
        """The next answer, None after `timeout_ms`; ConnectionLost when none can come any more."""
        deadline = time.monotonic() + timeout_ms / 1000
        while True:
            left_ms = max(0, round((deadline - time.monotonic()) * 1000))
            ready = dict(self._poller.poll(left_ms))
            if self._monitor in ready:  # First: an answer may have come over the connection that ZeroMQ made since.
                self._monitor.recv_multipart()
                raise ConnectionLost("the connection has ended")
            if self._socket in ready:
                parts = self._socket.recv_multipart(copy=False)
                return [part.bytes if len(part) <= COPY_BYTES_MAX else part.buffer for part in parts]
            if not ready and left_ms == 0:
                return None

    def reopen(self) -> None:
        """A new connection; what was under way on the old one is forgotten."""
        self.close()
        self._open()

    def close(self) -> None:
        """Ends the connection."""
        self._socket.disable_monitor()
        self._monitor.close(linger=0)
        self._socket.close(linger=0)

    def _open(self) -> None:
        opened = self._context.socket(zmq.DEALER)
        try:
            opened.linger = 0
            opened.ipv6 = "[" in self.address
            opened.maxmsgsize = MESSAGE_BYTES_MAX
            opened.setsockopt(zmq.RECONNECT_IVL, RECONNECT_MS)
            opened.setsockopt(zmq.RECONNECT_IVL_MAX, 10 * RECONNECT_MS)
            opened.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
            opened.setsockopt(zmq.HEARTBEAT_TIMEOUT, SILENCE_MS_MAX)
            if self._curve is not None:
                self._curve.apply(opened)
            monitor = opened.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        except BaseException:
            opened.close(linger=0)
            raise
        self._socket, self._monitor = opened, monitor
        try:
            opened.connect(self.address)
        except zmq.ZMQError as error:
            self.close()
            raise InvalidRequest(
                f"The address {self.address!r} cannot be used ({error}): write tcp://HOST:PORT."
            ) from error
        self._poller = zmq.Poller()
        self._poller.register(opened, zmq.POLLIN)
        self._poller.register(monitor, zmq.POLLIN)
