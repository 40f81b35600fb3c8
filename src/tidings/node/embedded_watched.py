"""A client's way to a broker in the same process, for an event loop: no disk holds up the loop.

A thread takes what the loop has sent, all that has come meanwhile at once, and hands it to the broker, so that the
requests of many tasks share a sync. Answers ring a bell that the loop watches. Closing waits for the request that is
under way.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import socket
import threading
from collections.abc import Callable
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from tidings.errors import TidingsError
from tidings.node.embedded import EmbeddedLink, EmbeddedNode, open_folder
from tidings.wire.codec import Frame

TAKEN_AT_ONCE_MAX = 256


class WatchedEmbeddedLink(EmbeddedLink):
    """The same as `EmbeddedLink`, with a thread that waits for the broker."""

    def __init__(self, node: EmbeddedNode) -> None:
        self._ear, self._bell = socket.socketpair()
        self._ear.setblocking(False)
        self._bell.setblocking(False)
        self._rung = False
        self._error: TidingsError | None = None
        self._requests: queue.SimpleQueue[tuple[int, list[Frame]] | None] = queue.SimpleQueue()
        super().__init__(node)
        self._thread = threading.Thread(target=self._work, name="tidings-embedded", daemon=True)
        self._thread.start()

    def send(self, frames: list[Frame]) -> None:
        if self._error is not None:
            raise self._error
        self._requests.put((self._number, frames))

    def take(self, frames: list[Frame]) -> None:
        super().take(frames)
        self._ring()

    def receive(self, timeout_ms: int) -> list[Frame] | None:
        if self._rung and not self.inbox:
            with contextlib.suppress(BlockingIOError):
                self._ear.recv(64)
            self._rung = False  # What has come until now is seen below; what comes later rings again.
        if self._error is not None and not self.inbox:
            raise self._error
        return super().receive(timeout_ms)

    def fileno(self) -> int:
        """Becomes readable when something has come."""
        return self._ear.fileno()

    def close(self) -> None:
        self._requests.put(None)
        self._thread.join()
        super().close()
        self._ear.close()
        self._bell.close()

    def _ring(self) -> None:
        if not self._rung:
            self._rung = True
            with contextlib.suppress(BlockingIOError):
                self._bell.send(b"!")

    # The thread.

    def _work(self) -> None:
        last = False
        while not last:
            taken = [self._requests.get()]
            while len(taken) < TAKEN_AT_ONCE_MAX and not self._requests.empty():  # Nobody else takes any.
                taken.append(self._requests.get())
            last = None in taken
            for number, requests in groupby((each for each in taken if each is not None), itemgetter(0)):
                try:
                    self._node.handle(number, [frames for _, frames in requests])
                except TidingsError as error:
                    self._fail(error)
                except BaseException:
                    self._fail(self._node.failed)
                    raise

    def _fail(self, error: TidingsError | None) -> None:
        self._error = error
        self._ring()
        self.wake()


async def make_link(
    folder: str | Path, clock: Callable[[], int] | None, client_id: str, options: dict[str, Any]
) -> WatchedEmbeddedLink:
    """A link to the broker of a folder, which a thread opens; `options` are those of `open_folder`."""
    opening = asyncio.ensure_future(asyncio.to_thread(open_folder, folder, options, clock, WatchedEmbeddedLink))
    try:
        return await asyncio.shield(opening)
    except asyncio.CancelledError:
        opening.add_done_callback(_close)
        raise


def _close(opened: asyncio.Future[WatchedEmbeddedLink]) -> None:
    if not opened.cancelled() and opened.exception() is None:
        opened.result().close()
