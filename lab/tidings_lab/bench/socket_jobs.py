"""What a worker knows of the door for sockets, and of bare sockets beside it."""

from __future__ import annotations

import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from time import perf_counter
from typing import Any

from tidings.gateways import calls
from tidings.gateways.calls import Mailbox
from tidings.gateways.fields import REQUEST_BYTES_MAX, encode

HOST = "127.0.0.1"
WAIT_SECONDS_MAX = 120.0


class Sink:
    """Ports that take deliveries and count them."""

    def __init__(self, ports: int) -> None:
        self._stack = ExitStack()
        self._changed = threading.Condition()
        self.count = 0
        self.ports = [self._stack.enter_context(Mailbox(self._on_message)).port for _ in range(ports)]

    def _on_message(self, topic: str, text: str) -> None:
        with self._changed:
            self.count += 1
            self._changed.notify_all()

    def wait_for(self, count: int) -> float:
        """The moment at which so many had come."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.count >= count, WAIT_SECONDS_MAX), f"only {self.count} came"
            return perf_counter()

    def close(self) -> None:
        """Closes the ports."""
        self._stack.close()


def sink_open(desk: Any, ports: int) -> list[int]:
    """Opens ports for deliveries."""
    desk.sink = Sink(ports)
    return list(desk.sink.ports)


def sink_wait(desk: Any, count: int) -> float:
    """The moment at which so many deliveries had come in all."""
    moment: float = desk.sink.wait_for(count)
    return moment


def sink_close(desk: Any) -> None:
    """Closes the ports."""
    desk.sink.close()
    desk.sink = None


def socket_subscribe(desk: Any, port: int, topic: str, own_ports: list[int]) -> None:
    """Subscribes ports to a topic, which must exist."""
    for own_port in own_ports:
        assert calls.subscribe(HOST, port, topic, own_port)


def socket_publish(desk: Any, port: int, topic: str, count: int, editors: int, size: int) -> tuple[float, float]:
    """Editors at once, each of which waits for its answer before it publishes again: began, ended."""
    text = "x" * size

    def edit(messages: int) -> None:
        for _ in range(messages):
            calls.publish(HOST, port, topic, text)

    with ThreadPoolExecutor(editors) as pool:
        began = perf_counter()
        list(pool.map(edit, [count // editors] * editors))
        return began, perf_counter()


def put_texts(desk: Any, topic: str, count: int, size: int) -> float:
    """Puts texts on the bus itself, all at once; the moment at which it began."""
    began = perf_counter()
    desk.connected.put_many(topic, ["x" * size] * count)
    return began


def bare_serve(desk: Any) -> int:
    """A server in a thread that answers each connection with a `0` once it has sent something: its port."""
    listener = socket.create_server((HOST, 0), backlog=512)

    def serve() -> None:
        while True:
            connection, _ = listener.accept()
            with connection:
                connection.recv(REQUEST_BYTES_MAX)
                connection.sendall(b"0\0")

    threading.Thread(target=serve, daemon=True).start()
    return int(listener.getsockname()[1])


def bare_deliver(desk: Any, ports: list[int], count: int, size: int) -> tuple[float, float]:
    """Connects, sends, and sees the other side close, so often for each port: began, ended."""
    data = encode("news", "x" * size)
    began = perf_counter()
    for _ in range(count):
        for port in ports:
            with socket.create_connection((HOST, port)) as connection:
                connection.sendall(data)
                connection.shutdown(socket.SHUT_WR)
                connection.recv(1)
    return began, perf_counter()


SOCKET_JOBS = (sink_open, sink_wait, sink_close, socket_subscribe, socket_publish, put_texts, bare_serve, bare_deliver)
