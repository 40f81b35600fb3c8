"""A subscriber of the socket door: its address, its session on the bus, and the messages on their way to it.

A subscriber (ip, port) is a client of the bus of its own, `tidings.sockets/IP:PORT`, and its topics are that
client's subscriptions. (In a group and a ring the node's address stands in between, since gateways at other nodes have
subscribers of their own.) So the journal knows who is subscribed to what, and the door keeps no list beside it. The
name is an anonymous one: a Bye forgets it with everything that it was owed, which is how a subscriber is dropped; and
the door leaves without a Bye when the broker stops, so that the next one finds all of them.

Messages go out one at a time for each subscriber and in the order of their topic. Each is a transaction that takes the
message, delivers it and ends with its acknowledgement: the next one begins when that is in the journal. A delivery is
done when all bytes were sent and the subscriber has closed its end, or has kept it open for longer than it should. What
fails is tried again after a pause that grows. All of this waits for one subscriber alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import logging
import math
import os
import socket
import time
from collections.abc import Callable
from typing import NamedTuple

from tidings.client.aio import AsyncBus
from tidings.errors import InvalidRequest, LimitReached
from tidings.gateways.allowlist import Allowlist
from tidings.gateways.fields import check_text, encode
from tidings.message import Message
from tidings.settings import SocketsSettings
from tidings.settings.broker import SOCKETS_NAME

KNOCK_S = 1.0
"""How long a port is given to show whether anybody is there."""

log = logging.getLogger("tidings.gateways.sockets")


class Address(NamedTuple):
    """Where a subscriber listens."""

    ip: str
    port: int

    def client_id(self, gateway: str = SOCKETS_NAME) -> str:
        """The subscriber's name on the bus.

        >>> Address("127.0.0.1", 4201).client_id()
        'tidings.sockets/127.0.0.1:4201'
        """
        return f"{gateway}/{self.ip}:{self.port}"

    def __str__(self) -> str:
        return f"{self.ip}:{self.port}"


def address_of(client_id: str, gateway: str, allowed: Allowlist) -> Address | None:
    """The address that a subscriber's name stands for; None for a name that the gateway has not given.

    Anybody may make up a name below the gateway's, and none may lead it to a machine that may not subscribe.

    >>> here = Allowlist("sockets", [])
    >>> [address_of(f"tidings.sockets/{each}", "tidings.sockets", here) for each in ("127.0.0.1:4201", "10.0.0.7:80")]
    [Address(ip='127.0.0.1', port=4201), None]
    """
    ip, _, port = client_id.removeprefix(f"{gateway}/").rpartition(":")
    try:
        address = Address(str(ipaddress.IPv4Address(ip)), int(port))
    except ValueError:
        return None
    known = allowed.has(ip) and 0 < address.port < 65_536 and address.client_id(gateway) == client_id
    return address if known else None


class Unreachable(Exception):
    """A subscriber refused for too long."""


class Stopped(Exception):
    """The door closes; what is in flight has not been delivered and stays on the bus."""


class Subscriber:
    """One subscriber and its deliveries. Every method belongs to the event loop."""

    def __init__(
        self, address: Address, bus: AsyncBus, settings: SocketsSettings, on_failed: Callable[[Subscriber], None]
    ) -> None:
        self.address = address
        self.failure: BaseException | None = None
        """Why nothing more can be delivered."""
        self._bus = bus
        self._settings = settings
        self._on_failed = on_failed
        self._topics: dict[str, asyncio.Task[None] | None] = {}
        """What it is subscribed to; None until the deliveries have begun."""
        self._being_delivered: set[str] = set()
        """Topics of which a message is being delivered or acknowledged."""
        self._turn = asyncio.Lock()
        self._nudged = asyncio.Event()
        self._failing_since: float | None = None
        self._pause_s = settings.sockets_retry_ms / 1000
        self._stopping = False

    @property
    def idle(self) -> bool:
        """Whether it has no topic left."""
        return not self._topics

    def has(self, topic: str) -> bool:
        """Whether it is subscribed to this topic."""
        return topic in self._topics

    async def subscribe(self, topic: str) -> None:
        """Makes the subscription on the bus, from the topic's last message on; `begin` starts its deliveries."""
        if len(self._topics) >= self._settings.sockets_topics_max:
            raise LimitReached(
                f"{self.address} has {self._settings.sockets_topics_max} topics (sockets_topics_max): "
                "unsubscribe some, or raise the limit."
            )
        await self._bus.subscribe(topic, start="last")
        self._topics.setdefault(topic, None)

    async def resume(self) -> None:
        """Goes on with everything that the bus knows it to be subscribed to."""
        for topics in await self._bus.subscriptions():
            if len(topics) == 1:  # The door makes no others, but anybody may who uses the name.
                self._topics.setdefault(topics[0], None)
                self.begin(topics[0])

    def begin(self, topic: str) -> None:
        """Starts the deliveries of a topic, if it is subscribed to and they have not begun.

        Somebody is there: what was refused before may be taken now.
        """
        if topic in self._topics and self._topics[topic] is None and not self._stopping:
            task = self._topics[topic] = asyncio.create_task(self._deliver_all(topic))
            task.add_done_callback(self._on_done)
        self._take_heart()
        self._nudged.set()

    async def unsubscribe(self, topic: str) -> None:
        """Ends a subscription: nothing of the topic is delivered once this has returned."""
        task = self._topics.pop(topic)
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        self._being_delivered.discard(topic)
        await self._bus.unsubscribe(topic)

    async def is_gone(self) -> bool:
        """Whether it is owed nothing and nobody listens at its port any more."""
        if self._being_delivered:
            return False
        try:
            async with asyncio.timeout(KNOCK_S):
                with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as connection:
                    connection.setblocking(False)
                    await asyncio.get_running_loop().sock_connect(connection, self.address)
        except ConnectionRefusedError:
            return not self._being_delivered
        except OSError:
            return False
        return False

    async def close(self, forget: bool, grace_s: float = 0.0) -> None:
        """Ends all deliveries, what is in flight after a while at most; `forget` ends the subscriptions with them."""
        self._stopping = True
        self._nudged.set()
        tasks = {topic: task for topic, task in self._topics.items() if task is not None}
        for topic, task in tasks.items():
            if topic not in self._being_delivered:
                task.cancel()
        if tasks:
            _, late = await asyncio.wait(tasks.values(), timeout=grace_s)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late)
        await self._bus.close(bye=forget)

    async def _deliver_all(self, topic: str) -> None:
        """The messages of one topic, each acknowledged before the next is looked at."""
        while not self._stopping:
            async with self._bus.transaction() as transaction:
                message = await transaction.get(topic, timeout=math.inf)
                if message is not None:
                    self._being_delivered.add(topic)
                    async with self._turn:
                        await self._deliver(message)
            self._being_delivered.discard(topic)

    async def _deliver(self, message: Message) -> None:
        """Tries until it is done."""
        try:
            data = encode(message.topic, check_text(message.text))
        except (UnicodeDecodeError, InvalidRequest) as error:
            log.warning(
                "sockets: message %d of %r is skipped for %s, because this protocol cannot carry it: %s",
                message.offset,
                message.topic,
                self.address,
                error,
            )
            return
        while True:
            if self._stopping:
                raise Stopped
            self._nudged.clear()
            try:
                async with asyncio.timeout(self._settings.sockets_delivery_ms / 1000):
                    await self._send(data)
            except OSError as error:  # A time-out is one too.
                self._note_refusal(error)
            else:
                self._take_heart()
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._pause_s):
                    await self._nudged.wait()
            self._pause_s = min(2 * self._pause_s, self._settings.sockets_retry_ms_max / 1000)

    async def _send(self, data: bytes) -> None:
        """One try: connect, send, and see the subscriber close."""
        loop = asyncio.get_running_loop()
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as connection:
            connection.setblocking(False)
            await loop.sock_connect(connection, self.address)
            refuse_oneself(connection)
            await loop.sock_sendall(connection, data)
            connection.shutdown(socket.SHUT_WR)
            with contextlib.suppress(TimeoutError):  # It has the bytes, and is only slow to let go.
                async with asyncio.timeout(self._settings.sockets_linger_ms / 1000):
                    await loop.sock_recv(connection, 1)

    def _take_heart(self) -> None:
        self._failing_since = None
        self._pause_s = self._settings.sockets_retry_ms / 1000

    def _note_refusal(self, error: OSError) -> None:
        now = time.monotonic()
        if self._failing_since is None:
            self._failing_since = now
        elif now - self._failing_since >= self._settings.sockets_refusal_ms_max / 1000:
            raise Unreachable("it took too long" if error.errno is None else os.strerror(error.errno)) from error

    def _on_done(self, task: asyncio.Task[None]) -> None:
        failure = None if task.cancelled() else task.exception()
        if failure is None or isinstance(failure, Stopped) or self._stopping:
            return
        if self.failure is None:
            self.failure = failure
            self._on_failed(self)


def refuse_oneself(connection: socket.socket) -> None:
    """Raises ConnectionRefusedError if both ends of a connection are the same one.

    The system picks our port from the same range that subscribers' ports come from. If it picks the very port that we
    connect to, and nobody listens there, TCP connects us to ourselves, and we would take our own bytes for delivered.
    """
    if connection.getsockname() == connection.getpeername():
        raise ConnectionRefusedError(errno.ECONNREFUSED, "nobody is there but ourselves")
