"""What a worker knows: the client's side of every scenario, and the bare loops of the limits.

A job gets the worker's desk and plain arguments and returns plain numbers. Times are moments of the
machine's monotonic clock, which all processes share, so that jobs of several workers can be put together.
"""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

import tidings
from tidings.client.bus import Bus
from tidings.client.group import GroupSubscription
from tidings.client.subscription import Subscription
from tidings.message import Batch, Message
from tidings.protocols.broker.messages import Start
from tidings_lab.bench import limits
from tidings_lab.bench.group_jobs import GROUP_JOBS
from tidings_lab.bench.overlay import OVERLAY_JOBS
from tidings_lab.bench.ring import RING_JOBS
from tidings_lab.bench.socket_jobs import SOCKET_JOBS, Sink
from tidings_lab.bench.spark_jobs import SPARK_JOBS

CHUNK_MESSAGES = 1_000_000
WAIT_SECONDS_MAX = 60.0
TOUCH_BYTES = 1024 * 1024
JOIN_SECONDS_MAX = 300.0


class Desk:
    """What a worker keeps between two jobs."""

    def __init__(self) -> None:
        self.bus: Bus | None = None
        self.jobs: GroupSubscription | None = None
        self.buses: list[Bus] = []
        self.members: list[GroupSubscription] = []
        self.arriving: Iterator[Message] | None = None
        self.values: list[bytes] = []
        self.readers: list[tuple[Bus, Subscription]] = []
        self.callers: limits.EchoClient | None = None
        self.server: limits.EchoServer | None = None
        self.sink: Sink | None = None

    @property
    def connected(self) -> Bus:
        """The bus, which must have been connected."""
        assert self.bus is not None, "connect comes first"
        return self.bus

    def values_of(self, count: int, size: int) -> list[bytes]:
        """As many different values, made once."""
        if len(self.values) < count or len(self.values[0]) != size:
            filling = os.urandom(size)
            self.values = [b"%*d" % (8, number) + filling[8:] for number in range(count)]
        return self.values if len(self.values) == count else self.values[:count]

    def close(self) -> None:
        """Lets go of everything."""
        for bus, _ in self.readers:
            bus.close()
        if self.sink is not None:
            self.sink.close()
        if self.bus is not None:
            self.bus.close()
        if self.callers is not None:
            self.callers.close()
        if self.server is not None:
            limits.EchoClient(self.server.address).close(stop_server=True)


# The limits.


def write_and_sync(desk: Desk, folder: str, block_bytes: int, count: int) -> list[float]:
    return limits.write_and_sync(Path(folder), block_bytes, count)


def memory_copy(desk: Desk, count: int) -> list[float]:
    return limits.memory_copy(count)


def touch_memory(desk: Desk, size_bytes: int) -> None:
    """Uses memory and gives it back, so that anyone who gets it next finds it ready."""
    block = b"\1" * TOUCH_BYTES
    with mmap.mmap(-1, size_bytes) as memory:
        for position in range(0, size_bytes - TOUCH_BYTES + 1, TOUCH_BYTES):
            memory[position : position + TOUCH_BYTES] = block


def echo_serve(desk: Desk, folder: str) -> str:
    desk.server = limits.EchoServer(Path(folder))
    threading.Thread(target=desk.server.serve, daemon=True).start()
    return desk.server.address


def echo_connect(desk: Desk, address: str, callers: int = 1) -> None:
    if desk.callers is not None:
        desk.callers.close()
    desk.callers = limits.EchoClient(address, callers)


def echo(desk: Desk, sizes: list[int], count: int, record_bytes: int = 0) -> list[float]:
    assert desk.callers is not None
    return desk.callers.echo(sizes, count, record_bytes)


def echo_all(desk: Desk, sizes: list[int], seconds: float) -> int:
    assert desk.callers is not None
    return desk.callers.echo_all(sizes, seconds)


def echo_stream(desk: Desk, block_bytes: int, count: int) -> float:
    assert desk.callers is not None
    return desk.callers.stream(block_bytes, count)


# Publishing.


def connect(desk: Desk, address: str, client: str | None = None) -> None:
    if desk.bus is not None:
        desk.bus.close()
    desk.bus = tidings.connect(address, client_id=client)


def make_values(desk: Desk, count: int, size: int) -> None:
    desk.values_of(count, size)


def make_texts(desk: Desk, count: int, size: int) -> None:
    """Values that are text, as what is kept in readable files mostly is."""
    filling = os.urandom(size).hex().encode()[: size - 8]
    desk.values = [b"%*d" % (8, number) + filling for number in range(count)]


def publish(desk: Desk, topic: str, count: int, size: int) -> tuple[float, float]:
    """Puts many messages, durable when it returns: began, ended."""
    values = desk.values_of(min(count, CHUNK_MESSAGES), size)
    bus = desk.connected
    began = perf_counter()
    left = count
    while left > 0:
        chunk = values if left >= len(values) else values[:left]
        stored = bus.put_many(topic, chunk)
        assert stored.count == len(chunk)
        left -= len(chunk)
    return began, perf_counter()


def put(desk: Desk, topics: list[str], count: int, size: int) -> list[float]:
    """How long each single put took, the topics in turn."""
    bus = desk.connected
    values = desk.values_of(count, size)
    times: list[float] = []
    for number, value in enumerate(values):
        topic = topics[number % len(topics)]
        started = perf_counter()
        bus.put(topic, value)
        times.append(perf_counter() - started)
    return times


def put_at_once(desk: Desk, topics: list[str], count: int, size: int, at_once: int) -> tuple[float, float]:
    """Puts single messages, so many under way at a time, the topics in turn: began, ended."""
    bus = desk.connected
    values = desk.values_of(count, size)
    began = perf_counter()
    for first in range(0, count, at_once):
        for number in range(first, min(first + at_once, count)):
            bus.put_soon(topics[number % len(topics)], values[number])
        bus.flush()
    return began, perf_counter()


def publish_many(
    desk: Desk, address: str, publishers: int, seconds: float, topic: str, size: int
) -> tuple[int, float, float]:
    """Publishers with a connection each and one put under way each: puts, began, ended.

    One thread looks after all of them in turns: it waits for a publisher's receipt, has it put its next message,
    and goes on to the next. That leaves most of the machine to the broker.
    """
    value = os.urandom(size)
    buses = [tidings.connect(address) for _ in range(publishers)]
    try:
        for bus in buses:
            bus.put(topic, value)
        count = 0
        began = perf_counter()
        until = began + seconds
        under_way = [bus.put_soon(topic, value) for bus in buses]
        while perf_counter() < until:
            for number, bus in enumerate(buses):
                under_way[number].result()
                count += 1
                under_way[number] = bus.put_soon(topic, value)
        ended = perf_counter()
        for bus in buses:
            bus.flush()
    finally:
        for bus in buses:
            bus.close()
    return count, began, ended


# Consuming.


def _counted(batches: Iterator[Batch], count: int) -> int:
    seen = 0
    for batch in batches:
        seen += len(batch.values)
        if seen >= count:
            break
    return seen


def consume_batches(desk: Desk, address: str, client: str, topic: str, start: Start, count: int) -> tuple[float, float]:
    """A new subscriber reads what is there in batches: began, ended."""
    with tidings.connect(address, client_id=client) as bus:
        subscription = bus.subscribe(topic, start=start)
        began = perf_counter()
        seen = _counted(subscription.batches(timeout=WAIT_SECONDS_MAX), count)
        ended = perf_counter()
    assert seen == count, f"{seen} of {count} messages came"
    return began, ended


def consume_messages(
    desk: Desk, address: str, client: str, topic: str, start: Start, count: int
) -> tuple[float, float]:
    """A new subscriber reads what is there one by one: began, ended."""
    with tidings.connect(address, client_id=client) as bus:
        subscription = bus.subscribe(topic, start=start)
        seen = 0
        began = perf_counter()
        for _ in subscription.messages(timeout=WAIT_SECONDS_MAX):
            seen += 1
            if seen == count:
                break
        ended = perf_counter()
    assert seen == count, f"{seen} of {count} messages came"
    return began, ended


def get(desk: Desk, topics: list[str], count: int) -> list[float]:
    """How long each single get took, the topics in turn. There must be something to get."""
    bus = desk.connected
    times: list[float] = []
    for number in range(count):
        topic = topics[number % len(topics)]
        started = perf_counter()
        message = bus.get(topic, timeout=WAIT_SECONDS_MAX)
        times.append(perf_counter() - started)
        assert message is not None, f"nothing came from {topic}"
    return times


def subscribe(desk: Desk, topics: list[str], start: Start = "now") -> None:
    bus = desk.connected
    for topic in topics:
        bus.subscribe(topic, start=start)


def next_offset(desk: Desk, topic: str) -> int:
    return desk.connected.topic(topic).next_offset


def fan_subscribe(desk: Desk, address: str, topic: str, clients: list[str]) -> None:
    """One subscriber for each name, each with a connection of its own."""
    for client in clients:
        bus = tidings.connect(address, client_id=client)
        desk.readers.append((bus, bus.subscribe(topic)))


def fan_consume(desk: Desk, count: int) -> tuple[int, float]:
    """All subscribers of this process read so many messages each: deliveries, and the moment of the last."""
    seen: list[int] = []
    faults: list[BaseException] = []

    def read(subscription: Subscription) -> None:
        try:
            seen.append(_counted(subscription.batches(timeout=WAIT_SECONDS_MAX), count))
        except BaseException as error:  # noqa: BLE001 - it is reported by the thread that asked
            faults.append(error)

    threads = [threading.Thread(target=read, args=(reader,), daemon=True) for _, reader in desk.readers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(JOIN_SECONDS_MAX)
    ended = perf_counter()
    if faults:
        raise faults[0]
    assert seen == [count] * len(threads), f"not every subscriber got its {count} messages"
    return sum(seen), ended


JOBS: dict[str, Callable[..., Any]] = {
    job.__name__: job
    for job in (
        *GROUP_JOBS,
        *SOCKET_JOBS,
        *SPARK_JOBS,
        *OVERLAY_JOBS,
        *RING_JOBS,
        write_and_sync,
        memory_copy,
        touch_memory,
        echo_serve,
        echo_connect,
        echo,
        echo_all,
        echo_stream,
        connect,
        make_values,
        make_texts,
        publish,
        put,
        put_at_once,
        publish_many,
        consume_batches,
        consume_messages,
        get,
        subscribe,
        next_offset,
        fan_subscribe,
        fan_consume,
    )
}
