"""The other side of the socket protocol: what editors and subscribers say to a broker.

publish("127.0.0.1", 4200, "news", "hello")                    # returns when the broker has the text on its disk
with Mailbox(print) as mailbox:                                # prints topic and text of what is delivered
    subscribe("127.0.0.1", 4200, "news", mailbox.port)

A mailbox elsewhere than on loopback takes deliveries only from the addresses that it is told to:
`Mailbox(print, "10.0.0.5", allow=["10.0.0.1"])`, then
`subscribe("10.0.0.1", 4200, "news", mailbox.port, "10.0.0.5")`.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, cast

from tidings.errors import InvalidRequest, ProtocolError, TidingsError, Unavailable
from tidings.gateways import fields
from tidings.gateways.allowlist import Allowlist
from tidings.gateways.fields import FieldReader
from tidings.message import TOPIC_LENGTH_MAX, check_topic
from tidings.settings.checks import check_door

CALL_S = 15.0
"""For how long a broker may be silent."""
DELIVERY_S = 5.0
"""How long one delivery may take to come in."""
ARRIVING_MAX = 64
"""Connections at a time; further ones wait in the system's queue."""
HOST = "127.0.0.1"
"""Where a mailbox listens unless it is told otherwise."""
ANYWHERE = "0.0.0.0"
DELIVERY_SIZES_MAX = (TOPIC_LENGTH_MAX * fields.UTF8_BYTES_MAX, fields.TEXT_LENGTH_MAX * fields.UTF8_BYTES_MAX)


def publish(host: str, port: int, topic: str, text: str) -> None:
    """Publishes a text; when this returns it is kept."""
    check_topic(topic)
    fields.check_text(text)
    if _call(host, port, "PUBLISH", topic, text) != fields.DONE:
        raise InvalidRequest(f"The broker did not keep the text for {topic!r}: its log says why.")


def subscribe(host: str, port: int, topic: str, own_port: int, own_host: str | None = None) -> bool:
    """Asks for the messages of a topic at a port of our own; False when there is no such topic.

    A broker delivers to the address that the request came from: `own_host`, or what the system takes.
    """
    return _call(host, port, "SUBSCRIBE", check_topic(topic), own_port, own_host=own_host) == fields.DONE


def unsubscribe(host: str, port: int, topic: str, own_port: int, own_host: str | None = None) -> int:
    """Asks for no more; the broker's answer: DONE, NOT_SUBSCRIBED or NO_TOPIC."""
    return _call(host, port, "UNSUBSCRIBE", check_topic(topic), own_port, own_host=own_host)


def _call(host: str, port: int, *request: str | int, own_host: str | None = None) -> int:
    """One request, one connection, one digit."""
    source = (own_host, 0) if own_host not in (None, ANYWHERE) else None
    try:
        with socket.create_connection((host, port), timeout=CALL_S, source_address=source) as connection:
            connection.sendall(fields.encode(*request))
            answer = b""
            while not answer.endswith(b"\0") and len(answer) < fields.ANSWER_BYTES_MAX:
                data = connection.recv(fields.ANSWER_BYTES_MAX)
                if not data:
                    break
                answer += data
    except OSError as error:
        raise Unavailable(
            f"Error in the connection to broker {host}:{port} ({error}): is `tidings serve --sockets {port}` running?"
        ) from error
    digit = answer.rstrip(b"\0")
    if not digit.isdigit():
        what = f"answered {digit!r}" if digit else "closed the connection without an answer"
        raise ProtocolError(f"The broker {host}:{port} {what}: does it speak this protocol?")
    return int(digit)


class Mailbox:
    """A port of our own for deliveries, looked after by a thread; `on_message` gets topic and text, in order.

    A broker takes a message for delivered when we close the connection, so that is done before it is looked at. What
    is not a delivery is dropped: anybody on this machine can connect here, and of others those in `allow` can. All
    connections are read at the same time, so that one that says nothing holds up no other.
    """

    def __init__(
        self, on_message: Callable[[str, str], None], host: str = HOST, port: int = 0, allow: Sequence[str] = ()
    ) -> None:
        check_door("A mailbox", host, allow, "--allow")
        self._allowed = Allowlist("mailbox", allow)
        self._on_message = on_message
        try:
            self._listener = socket.create_server((host, port), backlog=128)
        except OSError as error:
            raise Unavailable(
                f"A mailbox cannot listen on {host}:{port} ({error.strerror}): give an address of this machine."
            ) from error
        self.host = host
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._run, name="tidings-mailbox", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the thread, after the delivery that it is at."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # This ends an accept that waits; a close alone would not.
        self._thread.join()
        self._listener.close()

    def __enter__(self) -> Mailbox:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _run(self) -> None:
        with selectors.DefaultSelector() as selector:
            self._listener.setblocking(False)
            selector.register(self._listener, selectors.EVENT_READ)
            arriving: dict[socket.socket, _Arriving] = {}
            try:
                while True:
                    until = min((each.deadline for each in arriving.values()), default=None)
                    for key, _ in selector.select(None if until is None else max(0.0, until - time.monotonic())):
                        if key.fileobj is self._listener:
                            self._let_in(selector, arriving)
                        else:
                            self._take(selector, arriving, cast(socket.socket, key.fileobj))
                    now = time.monotonic()
                    for connection in [each for each, state in arriving.items() if state.deadline <= now]:
                        self._let_go(selector, arriving, connection)
            except _Closed:
                return
            finally:
                for connection in arriving:
                    connection.close()

    def _let_in(self, selector: selectors.BaseSelector, arriving: dict[socket.socket, _Arriving]) -> None:
        try:
            connection, (ip, _) = self._listener.accept()
        except BlockingIOError:
            return  # It has gone again.
        except OSError as error:
            raise _Closed from error
        if not self._allowed.lets_in(ip):
            connection.close()
            return
        connection.setblocking(False)
        arriving[connection] = _Arriving(FieldReader(DELIVERY_SIZES_MAX), time.monotonic() + DELIVERY_S)
        selector.register(connection, selectors.EVENT_READ)
        if len(arriving) == ARRIVING_MAX:
            selector.unregister(self._listener)

    def _take(
        self, selector: selectors.BaseSelector, arriving: dict[socket.socket, _Arriving], connection: socket.socket
    ) -> None:
        """What has come on a connection; a delivery that is whole is handed on."""
        found = None
        try:
            data = connection.recv(4096)
            if data and not arriving[connection].reader.feed(data):
                return
            if data:
                topic, text = arriving[connection].reader.fields
                found = check_topic(topic.decode()), fields.check_text(text.decode())
        except BlockingIOError:
            return
        except (OSError, UnicodeDecodeError, TidingsError):
            pass  # It was none.
        self._let_go(selector, arriving, connection)
        if found is not None:
            self._on_message(*found)

    def _let_go(
        self, selector: selectors.BaseSelector, arriving: dict[socket.socket, _Arriving], connection: socket.socket
    ) -> None:
        if len(arriving) == ARRIVING_MAX:
            selector.register(self._listener, selectors.EVENT_READ)
        selector.unregister(connection)
        del arriving[connection]
        connection.close()


class _Arriving(NamedTuple):
    """A connection over which a delivery may come."""

    reader: FieldReader
    deadline: float


class _Closed(Exception):
    """The mailbox has been closed."""
