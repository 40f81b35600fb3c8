"""The awaiting bus: the same operations, driven by the event loop.

Tasks share one session. What several of them put at the same time travels together. The link's file
descriptor is watched by the loop; there is no thread and no task of ours.
"""

from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TypeVar, overload

from tidings.client import filling, forks, operations, ranges, reading, staging, working
from tidings.client.bus import monotonic_ms
from tidings.client.future import Future
from tidings.client.group import AsyncGroupSubscription
from tidings.client.inbox import Inbox
from tidings.client.link import WatchedLink
from tidings.client.operations import Core, Operation, Wait, topics_of
from tidings.client.publisher import AsyncPublisher
from tidings.client.ranges import RangeReader, RangeStart, When
from tidings.client.rows import Value
from tidings.client.serving import Handler, Service
from tidings.client.session import Session
from tidings.client.staging import AsyncStage
from tidings.client.subscription import AsyncSubscription
from tidings.client.transaction import AsyncTransaction
from tidings.errors import InvalidRequest
from tidings.message import Batch, GroupInfo, Message, Receipt, Receipts, TopicInfo
from tidings.protocols.broker.bulk import PublishDone, StageName
from tidings.protocols.broker.messages import LaneKind, Start
from tidings.settings import ClientSettings

T = TypeVar("T")
H = TypeVar("H", bound=Handler)

TAKEN_AT_ONCE_MAX = 64


class AsyncDriver:
    """The one place that touches the link, the clock and the event loop."""

    def __init__(self, link: WatchedLink, session: Session, clock: Callable[[], int]) -> None:
        self.closed = False
        self.inherited = False
        """Whether this is a copy in the child of a fork."""
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
        finally:
            operation.close()
            self.pump_soon()

    def pump_soon(self) -> None:
        """Looks after the link once the present step of the loop is over."""
        if not self._soon and not self.closed:
            self._soon = True
            self._loop.call_soon(self.pump)

    def pump(self) -> None:
        """Sends, takes in what has come, does what is due, and resumes anyone who waited for it."""
        self._soon = False
        if self.closed:
            return
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
        for future, ready in list(self._waiting.items()):
            if not future.done() and ready():
                future.set_result(True)

    def close(self) -> None:
        """Ends the link."""
        if not self.closed:
            self.closed = True
            self._loop.remove_reader(self._watched)
            if self._timer is not None:
                self._timer.cancel()
            self._link.close()
            for future in [*self._waiting, *self._awaited]:
                if not future.done():
                    future.set_exception(InvalidRequest("The bus was closed meanwhile: connect again."))

    def abandon(self) -> None:
        """This is the child of a fork. What the loop watches is left alone: the parent's loop may watch the same."""
        self.closed = self.inherited = True

    def _ended(self, text: str) -> InvalidRequest:
        return InvalidRequest(forks.INHERITED if self.inherited else text)

    async def _wait(self, wait: Wait) -> bool:
        if self.closed:
            raise self._ended("The bus was closed meanwhile: connect again.")
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


class AsyncBus:
    """A client of a broker whose methods are awaited. Made by `tidings.aconnect`. See `Bus` for what they do."""

    def __init__(
        self,
        link: WatchedLink,
        client_id: str,
        settings: ClientSettings | None = None,
        inbox: str | os.PathLike[str] | None = None,
        clock: Callable[[], int] = monotonic_ms,
        anonymous: bool = False,
        token: bytes | None = None,
        record: str | os.PathLike[str] | None = None,
    ) -> None:
        session = Session(
            client_id,
            token or os.urandom(16),
            anonymous,
            settings or ClientSettings(),
            str(getattr(link, "address", "the broker")),
        )
        try:
            opened = None if inbox is None else Inbox(inbox, client_id)
        except BaseException:
            link.close()
            raise
        self._session = session
        self._driver = AsyncDriver(link, session, clock)
        self._core = Core(session, opened, clock, self._driver.perform)
        if record is not None:
            self._core.record = self._core.recorder(record)
        self._handlers: dict[tuple[str, ...], list[Handler]] = {}
        self._starts: dict[tuple[str, ...], Start] = {}
        self._workers: dict[tuple[str, str], list[Handler]] = {}
        self._joins: dict[tuple[str, str], tuple[Start | None, LaneKind]] = {}

    @property
    def client_id(self) -> str:
        """The name that this bus speaks for."""
        return self._core.client_id

    async def start(self) -> None:
        """Says Hello now rather than with the first call; Unavailable when nobody answers."""
        await self.perform(operations.start(self._core))

    # Publishing.

    @overload
    async def put(
        self,
        topic: str,
        value: Value,
        key: Value | None = None,
        headers: Mapping[str, Value] | None = None,
        id: str | None = None,
        wait: float | None = None,
    ) -> Receipt: ...
    @overload
    async def put(
        self,
        topic: list[str] | tuple[str, ...],
        value: Value,
        key: Value | None = None,
        headers: Mapping[str, Value] | None = None,
        id: str | None = None,
        wait: float | None = None,
    ) -> list[Receipt]: ...
    async def put(
        self,
        topic: str | list[str] | tuple[str, ...],
        value: Value,
        key: Value | None = None,
        headers: Mapping[str, Value] | None = None,
        id: str | None = None,
        wait: float | None = None,
    ) -> Receipt | list[Receipt]:
        """Stores a message; the `resend` of an Unavailable is to be awaited."""
        found: Receipt | list[Receipt] = await self.perform(
            operations.put(self._core, topic, value, key, headers, id, wait=wait)
        )
        return found

    async def put_many(
        self,
        topic: str,
        values: Iterable[Value],
        keys: Iterable[Value | None] | None = None,
        wait: float | None = None,
        headers: Iterable[Mapping[str, Value] | None] | None = None,
        ids: Iterable[str | None] | None = None,
    ) -> Receipts:
        """Stores many messages in one topic, in order, in batches."""
        return await self.perform(filling.put_many(self._core, topic, values, keys, None, wait, headers, ids))

    def publisher(self, name: str) -> AsyncPublisher:
        """A publisher with a name and sequence numbers of its own."""
        return AsyncPublisher(self, self._core, self._session.identity(name, os.urandom(16)))

    def transaction(self) -> AsyncTransaction:
        """Takes and puts that happen together or not at all."""
        return AsyncTransaction(self, self._core)

    # Subscribing.

    @overload
    async def subscribe(
        self,
        topic: str | Iterable[str],
        start: Start | None = None,
        group: None = None,
        lanes: LaneKind = "key",
        record: str | os.PathLike[str] | None = None,
    ) -> AsyncSubscription: ...
    @overload
    async def subscribe(
        self,
        topic: str,
        start: Start | None = None,
        *,
        group: str,
        lanes: LaneKind = "key",
        record: str | os.PathLike[str] | None = None,
    ) -> AsyncGroupSubscription: ...
    async def subscribe(
        self,
        topic: str | Iterable[str],
        start: Start | None = None,
        group: str | None = None,
        lanes: LaneKind = "key",
        record: str | os.PathLike[str] | None = None,
    ) -> AsyncSubscription | AsyncGroupSubscription:
        """Makes a durable subscription, or finds the one that is there; with a `group`, becomes one of its members."""
        if group is not None:
            member = await self.perform(working.join(self._core, group, topic, start, lanes))
            if record is not None:
                member.record = self._core.recorder(record)
            return AsyncGroupSubscription(self, self._core, member)
        topics = await self.perform(operations.subscribe(self._core, topic, "now" if start is None else start))
        if record is not None:
            self._session.streams.of(topics).record = self._core.recorder(record)
        return AsyncSubscription(self, self._core, topics)

    async def unsubscribe(self, topic: str | Iterable[str], group: str | None = None) -> None:
        """Ends a subscription, or a membership."""
        if group is None:
            await self.perform(operations.unsubscribe(self._core, topic))
        else:
            await self.perform(working.leave(self._core, group, topic))

    async def subscriptions(self) -> list[tuple[str, ...]]:
        """The subscriptions of this client, each as its topics."""
        return await self.perform(operations.subscriptions(self._core))

    async def subscribers(self) -> dict[str, list[tuple[str, ...]]]:
        """The subscriptions of every name below this client's own, `client_id/...`."""
        return await self.perform(operations.subscribers(self._core))

    async def get(self, topic: str | Iterable[str], timeout: float | None = 0.0) -> Message | None:
        """The next message of a subscription, acknowledged before it is returned."""
        return await self.perform(reading.get(self._core, topics_of(topic), self._core.deadline_ms(timeout)))

    async def get_all(self) -> dict[str, Message]:
        """One message of each topic that this client has subscribed and that has something new."""
        return await self.perform(reading.get_all(self._core))

    def on(
        self,
        topic: str | Iterable[str],
        start: Start | None = None,
        group: str | None = None,
        lanes: LaneKind = "key",
    ) -> Callable[[H], H]:
        """Makes a function, plain or async, the handler of a topic's messages; `run` subscribes and calls it."""
        topics = topics_of(topic)
        handlers: list[Handler]
        if group is None:
            self._starts.setdefault(topics, "now" if start is None else start)
            handlers = self._handlers.setdefault(topics, [])
        elif len(topics) == 1:
            self._joins.setdefault((group, topics[0]), (start, lanes))
            handlers = self._workers.setdefault((group, topics[0]), [])
        else:
            raise InvalidRequest("A group shares one topic: name one, and make a group for each other topic.")

        def register(handler: H) -> H:
            handlers.append(handler)
            return handler

        return register

    async def run(self, timeout: float | None = None) -> None:
        """Calls the handlers with messages as they come, until `stop` or until none came for `timeout` seconds."""
        for topics, start in self._starts.items():
            await self.perform(operations.subscribe(self._core, topics, start))
        for (group, topic), (first, lanes) in self._joins.items():
            await self.perform(working.join(self._core, group, topic, first, lanes))
        service = Service(self._core, self._handlers, timeout, self._workers)
        try:
            while (found := await self.perform(service.step())) is not None:
                message, handlers = found
                for handler in handlers:
                    result = handler(message)
                    if inspect.isawaitable(result):
                        await result
        finally:
            if not self._driver.closed:
                await self.perform(service.leave())

    def stop(self) -> None:
        """Ends `run`."""
        self._core.stopping = True
        self.wake()

    # In bulk.

    async def read(self, topic: str, start: RangeStart = "earliest", end: int | None = None) -> AsyncIterator[Batch]:
        """The stored batches of any range of offsets: `async for batch in bus.read("news", 3, 6)`."""
        reader = RangeReader(self._core, topic, start, end)
        try:
            await self.perform(reader.begin())
            while (batch := await self.perform(reader.step())) is not None:
                yield batch
        finally:
            reader.leave()

    async def offset_at(self, topic: str, when: When) -> int:
        """The first offset stored at or after a time; the next one if none was."""
        return await self.perform(ranges.offset_at(self._core, topic, when))

    def stage(self, query: str, batch: int, name: str, sink: str = "") -> AsyncStage:
        """A place for the messages of one attempt to write a query's batch, where nobody sees them before `publish`."""
        return AsyncStage(self, self._core, query, batch, name, sink)

    async def publish(
        self,
        query: str,
        batch: int,
        stages: Sequence[StageName],
        once: bool = False,
        wait: float = 0.0,
        sink: str = "",
    ) -> PublishDone:
        """Makes finished stages visible, all or none, unless this batch of the query has been published before."""
        return await self.perform(staging.publish(self._core, query, batch, stages, once, wait, sink))

    async def discard(self, stages: Sequence[str]) -> int:
        """Drops stages by their names, without touching what is published; how many were there."""
        return await self.perform(staging.discard(self._core, stages))

    # Looking.

    async def topics(self) -> list[TopicInfo]:
        """All topics."""
        return await self.perform(operations.topics(self._core))

    async def topic(self, name: str) -> TopicInfo:
        """One topic; NoSuchTopic when there is none of that name."""
        return await self.perform(operations.topic(self._core, name))

    async def groups(self, topic: str | None = None) -> list[GroupInfo]:
        """All groups, or those of a topic, with their members."""
        return await self.perform(working.groups(self._core, topic))

    async def status(self) -> dict[str, int]:
        """Plain numbers about the broker, by name."""
        return await self.perform(operations.status(self._core))

    async def shutdown(self) -> None:
        """Stops the broker, if this client may."""
        await self.perform(operations.shutdown(self._core))

    # Running.

    def perform(self, operation: Operation[T]) -> Awaitable[T]:
        """Runs one of the client's operations to its end."""
        return self._driver.perform(operation)

    def wake(self) -> None:
        """Makes anyone who waits look again."""
        self._driver.pump_soon()

    @property
    def lost(self) -> bool:
        """Whether this is a copy in the child of a fork, with which nothing can be done."""
        return self._core.inherited

    async def close(self, bye: bool = True) -> None:
        """Sends what is noted, says Bye and closes; waits one time-out at most and never raises Unavailable.

        Without `bye` it only closes, and to the broker the client has fallen silent: an anonymous name, which would be
        forgotten at its Bye, keeps its subscriptions for anyone who comes back under it within a day.
        """
        if self._driver.closed:
            return
        try:
            if bye:
                await self.perform(operations.finish(self._core))
        finally:
            self._driver.close()
            self._core.close_files()

    async def __aenter__(self) -> AsyncBus:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"AsyncBus({self._session.address!r}, client_id={self.client_id!r})"
