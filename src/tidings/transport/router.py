"""The broker's door: one ROUTER socket, and the pipe through which other threads wake the loop."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import zmq

from tidings.errors import InvalidRequest, Unavailable
from tidings.settings import MIB, NodeSettings
from tidings.transport import curve

Peer = bytes | tuple[bytes]
"""A DEALER's identity, or that of a REQ wrapped in a tuple: its frames have an empty one in front."""

COPY_BYTES_MAX = 16 * 1024
"""Frames above this size are handed on without a copy."""
LONE_COPY_BYTES_MAX = 128 * 1024
"""The same for a frame that goes to one peer only: giving it back to Python takes longer than a copy of this size."""

_LAST = int(zmq.NOBLOCK)
_MORE = int(zmq.NOBLOCK | zmq.SNDMORE)
"""Plain numbers: combining the flags anew for every frame would take as long as queueing it."""


class Router:
    """A bound ROUTER socket. Every method belongs to the thread of the loop, except `wake`."""

    def __init__(self, settings: NodeSettings, frame_bytes_max: int) -> None:
        curve.check_bind(settings.bind, settings.keys)
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._authenticator: curve.Authenticator | None = None
        socket = self._socket
        socket.linger = 0
        socket.maxmsgsize = frame_bytes_max + MIB
        socket.sndhwm = socket.rcvhwm = settings.queued_messages_max
        socket.ipv6 = "[" in settings.bind
        socket.setsockopt(zmq.HEARTBEAT_IVL, 5_000)
        socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, 20_000)
        try:
            if settings.keys is not None:
                self._authenticator = curve.Authenticator(self._context, Path(settings.keys))
                curve.configure_server(socket, Path(settings.keys))
            socket.bind(settings.bind)
        except zmq.ZMQError as error:
            self.close(0)
            if error.errno == zmq.EADDRINUSE:
                raise Unavailable(f"{settings.bind} is already in use: stop who has it, or bind another.") from error
            raise InvalidRequest(f"{settings.bind!r} cannot be bound ({error}): give tcp://HOST:PORT.") from error
        except BaseException:
            self.close(0)
            raise
        self.address = bytes(socket.getsockopt(zmq.LAST_ENDPOINT)).rstrip(b"\0").decode()
        self._keyed = settings.keys is not None
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._poller.register(self._wake_read, zmq.POLLIN)
        self._waker = zmq.Poller()
        self._waker.register(self._wake_read, zmq.POLLIN)

    @property
    def wake_descriptor(self) -> int:
        """Where a byte may be written to wake the loop, by a signal handler for instance."""
        return self._wake_write

    def wake(self) -> None:
        """Ends the loop's wait; may be called from any thread."""
        with contextlib.suppress(BlockingIOError):  # A full pipe has woken it already.
            os.write(self._wake_write, b"\0")

    def wait(self, timeout_ms: int, reading: bool) -> bool:
        """Waits for requests (if `reading`) or to be woken; whether there is something to receive."""
        ready = dict((self._poller if reading else self._waker).poll(timeout_ms))
        if self._wake_read in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(self._wake_read, 4096)
        return self._socket in ready

    def receive(self, count_max: int) -> Iterator[tuple[Peer, list[bytes | memoryview], str | None]]:
        """The requests that have come, up to a number: peer, frames, and whose key it was."""
        receive = self._socket.recv_multipart
        for _ in range(count_max):
            try:
                parts = receive(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            user = None
            if self._keyed and len(parts) > 1:
                user = curve.sender(parts[1])
            frames: list[bytes | memoryview] = [
                part.bytes if len(part) <= COPY_BYTES_MAX else part.buffer for part in parts
            ]
            peer = bytes(frames[0])
            if len(frames) > 1 and not frames[1]:
                yield (peer,), frames[2:], user
            else:
                yield peer, frames[1:], user

    def send_all(self, outgoing: list[tuple[Peer, list[bytes | memoryview]]]) -> None:
        """Sends frames in order. A peer that is gone, or whose queue is full beyond its credit, misses them."""
        shared: dict[int, zmq.Frame] = {}
        readers = Counter(id(frame) for _, frames in outgoing for frame in frames if len(frame) > COPY_BYTES_MAX)
        send = self._socket.send
        for peer, frames in outgoing:
            parts: list[zmq.Frame | bytes | memoryview] = [peer] if isinstance(peer, bytes) else [peer[0], b""]
            for frame in frames:
                if len(frame) <= (LONE_COPY_BYTES_MAX if readers[id(frame)] <= 1 else COPY_BYTES_MAX):
                    parts.append(frame)
                    continue
                # One ZeroMQ frame for all readers of a batch: libzmq counts references, nothing is copied.
                whole = shared.get(id(frame))
                if whole is None:
                    whole = shared[id(frame)] = zmq.Frame(frame, copy=False)
                parts.append(whole)
            with contextlib.suppress(zmq.Again):
                for part in parts[:-1]:
                    send(part, _MORE)
                send(parts[-1], _LAST)

    def close(self, linger_ms: int) -> None:
        """Closes the door; what has been handed to it may still go out for a while."""
        self._socket.close(linger=linger_ms)
        if self._authenticator is not None:
            self._authenticator.close()
        self._context.term()
        if hasattr(self, "_wake_read"):
            os.close(self._wake_read)
            os.close(self._wake_write)
