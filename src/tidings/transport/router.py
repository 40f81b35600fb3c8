"""The broker's door: one ROUTER socket, and the pipe through which other threads wake the loop."""

from __future__ import annotations

import select
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import zmq

from tidings.errors import InvalidRequest, Unavailable
from tidings.settings import MIB, NodeSettings
from tidings.settings.broker import SOCKETS_NAME
from tidings.transport import curve, frames
from tidings.transport.bell import Bell
from tidings.transport.zeromq import DealerLink

Peer = bytes | tuple[bytes]
"""A DEALER's identity, or that of a REQ wrapped in a tuple: its frames have an empty one in front."""

COPY_BYTES_MAX = 16 * 1024
"""Frames above this size are handed on without a copy."""
LONE_COPY_BYTES_MAX = 128 * 1024
"""The same for a frame that goes to one peer only: giving it back to Python takes longer than a copy of this size."""

HANDSHAKE_MS_MAX = 10_000
"""Who has connected and does not say what ZeroMQ wants to hear is cut off after this long: it costs a descriptor."""

INSIDE = "inproc://tidings"
"""Where doors of the same process connect. The name means something only in the router's own context."""


def gateway_options(settings: NodeSettings) -> curve.ClientOptions | None:
    """The key of this node's gateways, if there is one."""
    if settings.keys is None or not curve.secret_file(Path(settings.keys), SOCKETS_NAME).exists():
        return None
    return curve.client_options(Path(settings.keys), SOCKETS_NAME)


class Router:
    """A bound ROUTER socket. Every method belongs to the thread of the loop, except `wake` and `link`."""

    def __init__(self, settings: NodeSettings, frame_bytes_max: int) -> None:
        curve.check_bind(settings.bind, settings.keys)
        self._gateway_options = gateway_options(settings)
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._authenticator: curve.Authenticator | None = None
        socket = self._socket
        socket.linger = 0
        socket.maxmsgsize = frame_bytes_max + MIB
        socket.sndhwm = socket.rcvhwm = settings.queued_messages_max
        socket.ipv6 = "[" in settings.bind
        socket.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_MS_MAX)
        socket.setsockopt(zmq.HEARTBEAT_IVL, 5_000)
        socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, 20_000)
        try:
            if settings.keys is not None:
                self._authenticator = curve.Authenticator(self._context, Path(settings.keys))
                curve.configure_server(socket, Path(settings.keys))
            socket.bind(settings.bind)
            self.address = bytes(socket.getsockopt(zmq.LAST_ENDPOINT)).rstrip(b"\0").decode()
            socket.bind(INSIDE)
        except zmq.ZMQError as error:
            self.close(0)
            if error.errno == zmq.EADDRINUSE:
                raise Unavailable(
                    f"{settings.bind} is already in use by another process: stop it, or bind another address."
                ) from error
            raise InvalidRequest(f"{settings.bind!r} cannot be bound ({error}): give tcp://HOST:PORT.") from error
        except BaseException:
            self.close(0)
            raise
        self._keyed = settings.keys is not None
        self._bell = Bell()
        self._waker = select.poll()
        self._waker.register(self._bell.ear, select.POLLIN)
        self._waiter = select.poll()
        self._waiter.register(self._bell.ear, select.POLLIN)
        self._waiter.register(int(self._socket.fd), select.POLLIN)

    @property
    def wake_descriptor(self) -> int:
        """Where a byte may be written to wake the loop, by a signal handler for instance."""
        return self._bell.rope

    def wake(self) -> None:
        """Ends the loop's wait; may be called from any thread, also when the door is closed."""
        self._bell.ring()

    def link(self) -> DealerLink:
        """A connection from inside this process; may be called from any thread, and must be closed before the router.

        It needs no key, with or without CURVE: anyone who can call this holds the broker itself. Only on its way from
        here to the leader of a group it has one.
        """
        return DealerLink(INSIDE, self._gateway_options, context=self._context)

    def wait(self, timeout_ms: int, reading: bool) -> bool:
        """Waits for requests (if `reading`) or to be woken; whether there is something to receive."""
        if reading and frames.is_readable(self._socket):  # With many clients there mostly is.
            return True
        for descriptor, _ in (self._waiter if reading else self._waker).poll(timeout_ms):
            if descriptor == self._bell.ear:
                self._bell.hush()
        return reading and frames.is_readable(self._socket)

    def receive(self, count_max: int) -> Iterator[tuple[Peer, list[bytes | memoryview], str | None]]:
        """The requests that have come, up to a number: peer, frames, and whose key it was."""
        receive, socket, keyed = frames.receive_from, self._socket, self._keyed
        for count in range(count_max):
            if count == 1 and not frames.is_readable(socket):  # Most come alone.
                return
            try:
                identity, parts = receive(socket)
            except zmq.Again:
                return
            user = curve.sender(parts[0]) if keyed else None
            request: list[bytes | memoryview] = [
                part.bytes if len(part) <= COPY_BYTES_MAX else part.buffer for part in parts
            ]
            if request[0]:
                yield identity, request, user
            else:
                yield (identity,), request[1:], user

    def send_all(self, outgoing: Sequence[tuple[Peer, list[bytes | memoryview]]]) -> None:
        """Sends frames in order. A peer that is gone, or whose queue is full beyond its credit, misses them."""
        shared: dict[int, zmq.Frame] = {}
        readers: Counter[int] | None = None
        send, socket = frames.send, self._socket
        for peer, answer in outgoing:
            parts: list[zmq.Frame | bytes | memoryview] = [peer] if isinstance(peer, bytes) else [peer[0], b""]
            for frame in answer:
                size = len(frame)
                if size <= COPY_BYTES_MAX:
                    parts.append(frame)
                    continue
                if readers is None:
                    readers = Counter(id(each) for _, frames_sent in outgoing for each in frames_sent)
                if size <= LONE_COPY_BYTES_MAX and readers[id(frame)] == 1:
                    parts.append(frame)
                    continue
                # One ZeroMQ frame for all readers of a batch: libzmq counts references, nothing is copied.
                whole = shared.get(id(frame))
                if whole is None:
                    whole = shared[id(frame)] = zmq.Frame(frame, copy=False)
                parts.append(whole)
            try:
                send(socket, parts)
            except zmq.Again:
                continue

    def close(self, linger_ms: int) -> None:
        """Closes the door; what has been handed to it may still go out for a while."""
        self._socket.close(linger=linger_ms)
        if self._authenticator is not None:
            self._authenticator.close()
        self._context.term()
        if hasattr(self, "_bell"):
            self._bell.close()
