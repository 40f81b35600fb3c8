"""Runs operations on a link in an event loop.

Tasks share one session. What several of them put at the same time travels together. The link's file
descriptor is watched by the loop; there is no thread and no task of ours.

A task may be cancelled while it waits, and then it alone ends: what it has sent stays sent, and its answer is taken in.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from tidings.client import forks
from tidings.client.driver import Driver
from tidings.client.future import Future
from tidings.client.link import WatchedLink
from tidings.client.operations import Operation, Wait
from tidings.client.session import Session
from tidings.errors import InvalidRequest, TidingsError

T = TypeVar("T")

TAKEN_AT_ONCE_MAX = 64


class AsyncDriver:
    """The one place that touches the link, the clock and the event loop."""

    def __init__(self, link: WatchedLink, session: Session, clock: Callable[[], int]) -> None:
        self.closed = False
        self.inherited = False
        """Whether this is a copy in the child of a fork."""
        self._broken: TidingsError | None = None
        """What the link can not go on after: a broker in this process has failed."""
        self._link = link
        self._session = session
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._watched = link.fileno()
        self._loop.add_reader(self._watched, self.pump)
        self._waiting: dict[asyncio.Future[bool], Callable[[], bool]] = {}
        self._awaited: dict[asyncio.Future[bool], None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._soon = False
        self._turned_ms = -1
        forks.own(self)

    async def perform(self, operation: Operation[T]) -> T:
        """Runs an operation to its end."""
        if self.closed:
            raise self._ended("The bus is closed: connect again.")
        try:
            wait = next(operation)
            while True:
                wait = operation.send(await self._wait(wait))
        except StopIteration as stop:
            result: T = stop.value
            return result
        except asyncio.CancelledError as error:
            operation.throw(error)  # It may have something to say about what it leaves behind.
            raise
        finally:
            operation.close()
            self.pump_soon()

    async def give_way(self) -> None:
        """Lets others have the loop, at most once a millisecond: for calls that mostly wait for nothing."""
        now_ms = self._session.now_ms
        if now_ms != self._turned_ms:
            self._turned_ms = now_ms
            await asyncio.sleep(0)

    def pump_soon(self) -> None:
        """Looks after the link once the present step of the loop is over."""
        if not self._soon and not self.closed:
            self._soon = True
            self._loop.call_soon(self.pump)

    def pump(self) -> None:
        """Sends, takes in what has come, does what is due, and resumes anyone who waited for it."""
        self._soon = False
        if self.closed or self._broken is not None:
            return
        try:
            self._look_after_link()
        except TidingsError as error:
            self._broken = error
            self._loop.remove_reader(self._watched)
            self._end_waits(partial(type(error), str(error)))
            return
        for future, ready in list(self._waiting.items()):
            if not future.done() and ready():
                future.set_result(True)

    def _look_after_link(self) -> None:
        session = self._session
        self._send()
        for _ in range(TAKEN_AT_ONCE_MAX):
            frames = self._link.receive(0)
            if frames is None:
                break
            session.receive(self._clock(), frames)
        else:
            self.pump_soon()
        now_ms = self._clock()
        due_ms = session.next_due_ms()
        if due_ms is not None and due_ms <= now_ms and not self._soon:
            session.tick(now_ms)
            due_ms = session.next_due_ms()
        if session.outgoing or session.reopen:
            self._send()
            self.pump_soon()  # Sending may have swallowed the sign that something has come.
        self._set_timer(now_ms, due_ms)

    def close(self) -> None:
        """Ends the link."""
        if not self.closed:
            self.closed = True
            self._loop.remove_reader(self._watched)
            if self._timer is not None:
                self._timer.cancel()
            self._link.close()
            self._end_waits(partial(InvalidRequest, "The bus was closed meanwhile: connect again."))

    def abandon(self) -> None:
        """This is the child of a fork. What the loop watches is left alone: the parent's loop may watch the same."""
        self.closed = self.inherited = True

    def perform_outside(self, operation: Operation[T]) -> T:
        """Runs an operation from outside the loop, which has mostly ended when this is wanted: the program ends."""
        if self._loop.is_running():
            return asyncio.run_coroutine_threadsafe(self.perform(operation), self._loop).result()
        return Driver(self._link, self._session, self._clock).perform(operation)

    def _end_waits(self, make_error: Callable[[], TidingsError]) -> None:
        for future in [*self._waiting, *self._awaited]:
            if not future.done():
                future.set_exception(make_error())

    def _ended(self, text: str) -> InvalidRequest:
        return InvalidRequest(forks.INHERITED if self.inherited else text)

    async def _wait(self, wait: Wait) -> bool:
        if self.closed:
            raise self._ended("The bus was closed meanwhile: connect again.")
        if self._broken is not None:
            raise type(self._broken)(str(self._broken))
        self._send()
        self.pump_soon()
        if isinstance(wait, Future):
            return await self._done(wait)
        if wait.ready():
            return True
        left_ms = None if wait.deadline_ms is None else wait.deadline_ms - self._clock()
        if left_ms is not None and left_ms <= 0:
            return False
        future: asyncio.Future[bool] = self._loop.create_future()
        timer = None
        if left_ms is not None:
            timer = self._loop.call_later(left_ms / 1000, lambda: None if future.done() else future.set_result(False))
        self._waiting[future] = wait.ready
        try:
            return await future
        finally:
            del self._waiting[future]
            if timer is not None:
                timer.cancel()

    async def _done(self, awaited: Future[object]) -> bool:
        future: asyncio.Future[bool] = self._loop.create_future()
        awaited.then(lambda _: None if future.done() else future.set_result(True))
        self._awaited[future] = None
        try:
            return await future
        finally:
            del self._awaited[future]

    def _send(self) -> None:
        session, link = self._session, self._link
        if session.reopen:
            session.reopen = False
            self._loop.remove_reader(self._watched)
            link.reopen(session.route.at)
            self._watched = link.fileno()
            self._loop.add_reader(self._watched, self.pump)
        if session.outgoing:
            outgoing, session.outgoing = session.outgoing, []
            for frames in outgoing:
                link.send(frames)

    def _set_timer(self, now_ms: int, due_ms: int | None) -> None:
        if due_ms is None:
            return
        at = self._loop.time() + max(0, due_ms - now_ms) / 1000
        if self._timer is not None:
            if not self._timer.cancelled() and self._loop.time() < self._timer.when() <= at:
                return
            self._timer.cancel()
        self._timer = self._loop.call_at(at, self.pump)
