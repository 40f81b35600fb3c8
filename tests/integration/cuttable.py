"""A network between the members of a group that can be cut, in one direction or both: TCP proxies on loopback.

A member that connects to a proxy is known by the number that its messages carry. What is sent over a link that is cut
waits, and arrives when the link is mended, late and in its order, if the two have not given up the connection
until then. That is the worst that a network without loss can do. Clients always get through.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Self

from tidings.wire.replication import MARK

CHUNK_BYTES = 65_536
REFUSAL_SECONDS = 0.1
"""So much later a connection to somebody who is not there is closed: those who knock would knock at once again."""
LONG = 2
"""The flag of a frame whose size takes eight bytes; otherwise it takes one."""


def sender_of(data: bytes) -> int:
    """The number of the member whose message begins in these bytes; 0 if none does.

    >>> from tidings.protocols.multipaxos.messages import Fetch
    >>> from tidings.wire.replication import encode_message
    >>> mark, header = encode_message(Fetch(7), b"group", 3, 2)
    >>> sender_of(b"..." + bytes([1, len(mark)]) + mark + bytes([0, len(header)]) + header)
    3
    """
    at = data.find(MARK) + len(MARK)
    if at < len(MARK) or at + 3 > len(data):
        return 0
    at += 9 if data[at] & LONG else 2
    # An array, then the group's name (a byte for the kind, one for the size), then the sender as one small number.
    place = at + 3 + data[at + 2] if at + 2 < len(data) else len(data)
    return data[place] if place < len(data) else 0


class _Connection:
    """A connection to one of the members, and who has made it: 0 as long as that is not known, or for a client."""

    def __init__(self, receiver: str) -> None:
        self.receiver = receiver
        self.sender = 0


class CuttableNetwork:
    """Proxies, each before one member, and the links between members that are cut at the moment."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="network")
        self._cut: set[tuple[int, str]] = set()
        self._mended = asyncio.Condition()
        self._tasks: set[asyncio.Task[None]] = set()
        self._servers: list[asyncio.Server] = []
        self._writers: set[asyncio.StreamWriter] = set()
        """To those who have connected: the task of one may be cancelled before it has begun."""

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._do(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    async def _close(self) -> None:
        for server in self._servers:
            server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for writer in self._writers:
            writer.close()
        await asyncio.gather(*(writer.wait_closed() for writer in self._writers), return_exceptions=True)

    def place(self, address: str, port: int) -> None:
        """A proxy at an address of loopback, before the member that listens on `port`."""

        def on_connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = self._loop.create_task(self._carry(address, port, reader, writer))
            self._tasks.add(task)
            self._writers.add(writer)
            task.add_done_callback(lambda done: self._forget(done, writer))

        async def listen() -> None:
            public_port = int(address.rpartition(":")[2])
            self._servers.append(await asyncio.start_server(on_connected, "127.0.0.1", public_port))

        self._do(listen())

    def _forget(self, task: asyncio.Task[None], writer: asyncio.StreamWriter) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            self._writers.discard(writer)

    def cut(self, *links: tuple[int, str]) -> None:
        """What the member with a number sends no longer reaches the one at an address."""
        self._do(self._change(lambda: self._cut.update(links)))

    def mend(self) -> None:
        """All links are whole again."""
        self._do(self._change(self._cut.clear))

    async def _change(self, change: Callable[[], None]) -> None:
        async with self._mended:
            change()
            self._mended.notify_all()

    async def _carry(self, address: str, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await asyncio.sleep(REFUSAL_SECONDS)
            writer.close()
            return
        connection = _Connection(address)
        pumps = [
            self._loop.create_task(self._pump(connection, reader, inner_writer)),
            self._loop.create_task(self._pump(connection, inner_reader, writer)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            writer.close()
            inner_writer.close()

    async def _pump(self, connection: _Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(CHUNK_BYTES):
                connection.sender = connection.sender or sender_of(data)
                if self._is_cut(connection):
                    async with self._mended:
                        await self._mended.wait_for(lambda: not self._is_cut(connection))
                writer.write(data)
                await writer.drain()

    def _is_cut(self, connection: _Connection) -> bool:
        return (connection.sender, connection.receiver) in self._cut
