"""A client's connection to a broker, or to one member of a group at a time: one ZeroMQ DEALER socket.

Nothing here promises delivery: a message is sent or lost, and the session above sends again what stays
unanswered. `reopen` makes a new socket, and what the old one had not sent goes with it.
"""

from __future__ import annotations

import contextlib
import math
import select
import socket
from collections.abc import Sequence
from time import monotonic
from typing import TYPE_CHECKING, Any

import zmq

from tidings.errors import InvalidRequest, LimitReached
from tidings.transport.frames import Frame, is_readable, receive_copy, send

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
        self._prompt = False
        """Whether the last message was there before it was waited for, as the answers to many publishers in one thread
        mostly are. The next one is then taken without asking for it first: 0.7 instead of 2.1 us, or 3.5 if it is not
        there; and ZeroMQ's thread need not wake us for it."""
        self._ear_descriptor = self._ear.fileno()
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
            return receive_copy(dealer) if is_readable(dealer) else None
        if self._prompt:
            try:
                return receive_copy(dealer)
            except zmq.Again:
                self._prompt = False
        elif is_readable(dealer):
            self._prompt = True
            return receive_copy(dealer)
        return self._wait(timeout_ms)

    def _wait(self, timeout_ms: int) -> list[bytes] | None:
        """Waits for the descriptors themselves: a `zmq.Poller` would look at the socket twice more."""
        until = monotonic() + timeout_ms / 1000
        while ready := self._waiter.poll(timeout_ms):
            if is_readable(self._socket):
                return receive_copy(self._socket)
            if any(descriptor == self._ear_descriptor for descriptor, _ in ready):
                with contextlib.suppress(BlockingIOError):
                    self._ear.recv(4096)
                return None
            # ZeroMQ wakes us for its own affairs too, such as a connection that has come about.
            timeout_ms = max(0, math.ceil((until - monotonic()) * 1000))
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
        self._prompt = False
        self._waiter = _poller()
        self._waiter.register(int(opened.fd), zmq.POLLIN)
        self._waiter.register(self._ear_descriptor, zmq.POLLIN)


def _poller() -> Any:
    """The system's own where it has one; Windows does not. The flags are the same."""
    return select.poll() if hasattr(select, "poll") else zmq.Poller()


def _no_socket(error: Exception) -> LimitReached:
    return LimitReached(f"The system gives this process no more sockets ({error}): close some, or raise ulimit -n.")
