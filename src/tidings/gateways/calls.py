"""The other side of the socket protocol: what editors and subscribers say to a broker.

publish("127.0.0.1", 4200, "news", "hello")                    # returns when the broker has the text on its disk
with Mailbox(print) as mailbox:                                # prints topic and text of what is delivered
    subscribe("127.0.0.1", 4200, "news", mailbox.port)
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable

from tidings.errors import InvalidRequest, ProtocolError, TidingsError, Unavailable
from tidings.gateways import fields
from tidings.gateways.fields import FieldReader
from tidings.message import TOPIC_LENGTH_MAX, check_topic

CALL_S = 15.0
"""For how long a broker may be silent."""
DELIVERY_S = 5.0
"""How long one delivery may take to come in."""
HOST = "127.0.0.1"
"""A broker without keys is on loopback, and so are those whom it connects to."""
DELIVERY_SIZES_MAX = (TOPIC_LENGTH_MAX * fields.UTF8_BYTES_MAX, fields.TEXT_LENGTH_MAX * fields.UTF8_BYTES_MAX)


def publish(host: str, port: int, topic: str, text: str) -> None:
    """Publishes a text; when this returns it is kept."""
    check_topic(topic)
    fields.check_text(text)
    if _call(host, port, "PUBLISH", topic, text) != fields.DONE:
        raise InvalidRequest(f"The broker did not keep the text for {topic!r}: its log says why.")


def subscribe(host: str, port: int, topic: str, own_port: int) -> bool:
    """Asks for the messages of a topic at a port of our own; False when there is no such topic."""
    return _call(host, port, "SUBSCRIBE", check_topic(topic), own_port) == fields.DONE


def unsubscribe(host: str, port: int, topic: str, own_port: int) -> int:
    """Asks for no more; the broker's answer: DONE, NOT_SUBSCRIBED or NO_TOPIC."""
    return _call(host, port, "UNSUBSCRIBE", check_topic(topic), own_port)


def _call(host: str, port: int, *request: str | int) -> int:
    """One request, one connection, one digit."""
    try:
        with socket.create_connection((host, port), timeout=CALL_S) as connection:
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
        raise ProtocolError(f"The broker {host}:{port} {what}: is it one that speaks this protocol?")
    return int(digit)


class Mailbox:
    """A port of our own for deliveries, looked after by a thread; `on_message` gets topic and text, in order.

    A broker takes a message for delivered when we close the connection, so that is done before it is looked at. What
    is not a delivery is dropped: anybody on this machine can connect here.
    """

    def __init__(self, on_message: Callable[[str, str], None]) -> None:
        self._on_message = on_message
        self._listener = socket.create_server((HOST, 0), backlog=128)
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
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return  # It was closed.
            with connection:
                found = _receive(connection)
            if found is not None:
                self._on_message(*found)


def _receive(connection: socket.socket) -> tuple[str, str] | None:
    """Topic and text of one delivery, None when this was none."""
    reader = FieldReader(DELIVERY_SIZES_MAX)
    deadline = time.monotonic() + DELIVERY_S
    try:
        while True:
            connection.settimeout(max(0.001, deadline - time.monotonic()))
            data = connection.recv(4096)
            if not data:
                return None
            if reader.feed(data):
                topic, text = reader.fields
                return check_topic(topic.decode()), fields.check_text(text.decode())
    except (OSError, UnicodeDecodeError, TidingsError):
        return None
