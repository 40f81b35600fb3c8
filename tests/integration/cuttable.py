"""A network between processes that can be cut, in one direction or both: TCP proxies on loopback in front of each.

Everybody who connects to a proxy is known by the process that the connection belongs to, as the system tells. What is
sent over a link that is cut waits, and arrives when the link is mended, late and in its order, if the two have
not given up the connection until then. That is the worst that a network without loss can do.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Self

CHUNK_BYTES = 65_536


class CuttableNetwork:
    """Proxies, each before one process, and the links between processes that are cut at the moment."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="network")
        self._pids: dict[str, Callable[[], int | None]] = {}
        self._cut: set[tuple[str, str]] = set()
        self._mended = asyncio.Condition()
        self._tasks: set[asyncio.Task[None]] = set()
        self._servers: list[asyncio.Server] = []

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

    def place(self, name: str, pid: Callable[[], int | None], public_port: int, port: int) -> None:
        """A proxy on `public_port` before the process that listens on `port`."""
        self._pids[name] = pid

        async def on_connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            self._tasks.add(task)
            try:
                await self._carry(name, port, reader, writer)
            finally:
                self._tasks.discard(task)
                writer.close()

        async def listen() -> None:
            self._servers.append(await asyncio.start_server(on_connected, "127.0.0.1", public_port))

        self._do(listen())

    def cut(self, *links: tuple[str, str]) -> None:
        """What the first of a pair sends no longer reaches the second."""
        self._do(self._change(lambda: self._cut.update(links)))

    def mend(self) -> None:
        """All links are whole again."""
        self._do(self._change(self._cut.clear))

    async def _change(self, change: Callable[[], None]) -> None:
        async with self._mended:
            change()
            self._mended.notify_all()

    async def _carry(self, name: str, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = (self._owner(writer.get_extra_info("peername")[1]), name)
        await self._whole(link)
        try:
            inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            return  # Nobody is there: neither is anybody here.
        try:
            await self._first(self._pump(link, reader, inner_writer), self._pump(link, inner_reader, writer))
        finally:
            inner_writer.close()

    async def _first(self, *works: Coroutine[Any, Any, None]) -> None:
        """A connection ends when one of its directions does."""
        tasks = [asyncio.ensure_future(work) for work in works]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _pump(self, link: tuple[str, str], reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(CHUNK_BYTES):
                await self._whole(link)
                writer.write(data)
                await writer.drain()

    async def _whole(self, link: tuple[str, str]) -> None:
        async with self._mended:
            await self._mended.wait_for(lambda: link not in self._cut)

    def _owner(self, port: int) -> str:
        """Whose connection this is: the name of a process that was placed, or nothing for anybody else."""
        inode = _inode(port)
        for name, pid in self._pids.items():
            number = pid()
            if number is not None and inode in _sockets(number):
                return name
        return ""


def _inode(port: int) -> str:
    """The inode of the socket with a local port that is connected, as text."""
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if int(fields[1].rpartition(":")[2], 16) == port and fields[3] == "01":
            return fields[9]
    return ""


def _sockets(pid: int) -> set[str]:
    """The inodes of the sockets that a process has open."""
    found = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            target = os.readlink(descriptor)
            if target.startswith("socket:["):
                found.add(target[len("socket:[") : -1])
    return found
