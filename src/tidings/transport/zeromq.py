"""A client's connection to a broker, or to one member of a group at a time: one ZeroMQ DEALER socket.

Nothing here promises delivery: a message is sent or lost, and the session above sends again what stays
unanswered. `reopen` makes a new socket, and what the old one had not sent goes with it.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING

import zmq

from tidings.errors import InvalidRequest, LimitReached
from tidings.transport.frames import Frame, is_readable, receive, send

if TYPE_CHECKING:
    from tidings.transport.curve import ClientOptions

MESSAGE_BYTES_MAX = 256 * 1024 * 1024
"""A frame above this ends the connection; far above every limit that a broker could set."""
QUEUED_MESSAGES_MAX = 100_000
"""In each direction; the session's own limits are met long before."""


class DealerLink:
    """A link over ZeroMQ; see `tidings.client.link.Link`.

    Of several addresses, `tcp://A:7400,tcp://B:7400`, it takes the first, and the others when it is told so.
    """

    def __init__(
        self,
        address: str,
        curve: ClientOptions | None = None,
        context: zmq.Context[zmq.Socket[bytes]] | None = None,
    ) -> None:
        self.address = address
        self.at = address.partition(",tcp://")[0]
        """Where it leads at the moment."""
        self._curve = curve
        self._context = zmq.Context.instance() if context is None else context
        try:
            self._ear, self._bell = socket.socketpair()
        except OSError as error:
            raise _no_socket(error) from error
        self._ear.setblocking(False)
        self._bell.setblocking(False)
        try:
            self._open()
        except BaseException:
            self._ear.close()
            self._bell.close()
            raise

    def send(self, frames: Sequence[Frame]) -> None:
        """Sends one message without waiting; it is lost when the queue is full."""
        try:
            send(self._socket, frames)
        except zmq.Again:
            return

    def receive(self, timeout_ms: int) -> list[bytes] | None:
        """The next message, or None after `timeout_ms` or when woken."""
        dealer = self._socket
        if timeout_ms == 0:
            return [frame.bytes for frame in receive(dealer)] if is_readable(dealer) else None
        for ready, _ in self._poller.poll(timeout_ms):
            if ready is dealer:
                return [frame.bytes for frame in receive(dealer)]
            with contextlib.suppress(BlockingIOError):
                self._ear.recv(4096)
        return None

    def fileno(self) -> int:
        """Becomes readable when something may have come."""
        return int(self._socket.fd)

    def wake(self) -> None:
        """Makes a `receive` that waits in another thread return soon."""
        with contextlib.suppress(OSError):  # It may be full, and wakes anyway; or closed.
            self._bell.send(b"!")

    def sibling(self) -> DealerLink:
        """Another connection to the same broker, for another thread."""
        return DealerLink(self.at, self._curve, self._context)

    def reopen(self, address: str | None = None) -> None:
        """A new socket, to another address if one is given; what the old one had not sent or given out is lost."""
        self.at = address or self.at
        self._socket.close(linger=0)
        self._open()

    def close(self) -> None:
        """Ends the link."""
        self._socket.close(linger=0)
        self._ear.close()
        self._bell.close()

    def _open(self) -> None:
        try:
            opened = self._context.socket(zmq.DEALER)
        except zmq.ZMQError as error:
            raise _no_socket(error) from error
        try:
            opened.linger = 0
            opened.ipv6 = "[" in self.at
            opened.maxmsgsize = MESSAGE_BYTES_MAX
            opened.set_hwm(QUEUED_MESSAGES_MAX)
            opened.setsockopt(zmq.RECONNECT_IVL_MAX, 1000)
            if self._curve is not None:
                self._curve.apply(opened)
            opened.connect(self.at)
        except zmq.ZMQError as error:
            opened.close(linger=0)
            raise InvalidRequest(f"The address {self.at!r} cannot be used ({error}): write tcp://HOST:PORT.") from error
        self._socket = opened
        self._poller = zmq.Poller()
        self._poller.register(opened, zmq.POLLIN)
        self._poller.register(self._ear, zmq.POLLIN)


def _no_socket(error: Exception) -> LimitReached:
    return LimitReached(f"The system gives this process no more sockets ({error}): close some, or raise ulimit -n.")
