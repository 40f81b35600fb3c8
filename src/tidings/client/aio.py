"""The awaiting bus: the same operations, driven by the event loop."""

from __future__ import annotations

import inspect
import os
from collections.abc import Awaitable, Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, TypeVar, overload

from tidings.client import filling, operations, reading, working
from tidings.client.arguments import check_seconds, topics_of
from tidings.client.async_driver import AsyncDriver
from tidings.client.async_soon import AsyncBackground
from tidings.client.group import AsyncGroupSubscription
from tidings.client.link import WatchedLink
from tidings.client.looking import AsyncLooking
from tidings.client.operations import Core, Operation
from tidings.client.performing import begin, begin_record, monotonic_ms
from tidings.client.publisher import AsyncPublisher
from tidings.client.ranges import AsyncRanges
from tidings.client.rows import Value
from tidings.client.serving import H, Handlers, Service
from tidings.client.soon import AsyncSoon, say_or_note
from tidings.client.staging import AsyncStages
from tidings.client.subscription import AsyncSubscription
from tidings.client.transaction import AsyncTransaction
from tidings.errors import InvalidRequest, TidingsError, Unavailable
from tidings.message import Message, Receipt, Receipts
from tidings.protocols.broker.messages import LaneKind, Start
from tidings.settings import ClientSettings

T = TypeVar("T")


class AsyncBus(AsyncLooking, AsyncRanges, AsyncStages):
    """A client of a broker whose methods are awaited. Made by `tidings.aconnect` or `tidings.aopen`.

    What they do is said at `Bus`. A call may be cancelled: what it has sent stays sent, and the bus goes on. A put that
    was cancelled may be stored; a note on its CancelledError says so, and `last_sequence` of a publisher tells whether.
    """

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
        self._session, opened = begin(link, client_id, settings, inbox, anonymous, token)
        self._driver = AsyncDriver(link, self._session, clock)
        self._core = Core(self._session, opened, clock, self._driver.perform)
        begin_record(self._core, record, self._driver.close)
        self._handlers = Handlers()
        self._starts: dict[tuple[str, ...], Start] = {}
        self._joins: dict[tuple[str, str], tuple[Start | None, LaneKind]] = {}
        self._background = AsyncBackground(self._driver, self._core)

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

    @overload
    async def put_soon(
        self,
        topic: str,
        value: Value,
        key: Value | None = None,
        headers: Mapping[str, Value] | None = None,
        id: str | None = None,
    ) -> AsyncSoon[Receipt]: ...
    @overload
    async def put_soon(
        self,
        topic: list[str] | tuple[str, ...],
        value: Value,
        key: Value | None = None,
        headers: Mapping[str, Value] | None = None,
        id: str | None = None,
    ) -> AsyncSoon[list[Receipt]]: ...
    async def put_soon(
        self,
        topic: str | list[str] | tuple[str, ...],
        value: Value,
        key: Value | None = None,
        headers: Mapping[str, Value] | None = None,
        id: str | None = None,
    ) -> AsyncSoon[Any]:
        """Like put, without waiting for the answer: it waits only for room. `await soon.result()` gives the receipt.

        The event loop sends it. An error that nobody has asked for is raised by `flush` and `close`.
        """
        return await self._background.hand_over(self._background.soons.put(None, topic, value, key, headers, id))

    async def flush(self) -> None:
        """Waits for every put_soon, those of publishers included; raises the first error that nobody has seen."""
        await self._background.flush()

    def publisher(self, name: str) -> AsyncPublisher:
        """A publisher with a name and sequence numbers of its own."""
        return AsyncPublisher(self, self._core, self._session.identity(name, os.urandom(16)), self._background)

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
        if group is None:
            self._starts.setdefault(topics, "now" if start is None else start)
            return self._handlers.of_topics(topics)
        if len(topics) > 1:
            raise InvalidRequest("A group shares one topic: name one, and make a group for each other topic.")
        self._joins.setdefault((group, topics[0]), (start, lanes))
        return self._handlers.of_group(group, topics[0])

    async def run(self, timeout: float | None = None) -> None:
        """Calls the handlers with messages as they come, until `stop` or until none came for `timeout` seconds."""
        for topics, start in self._starts.items():
            await self.perform(operations.subscribe(self._core, topics, start))
        for (group, topic), (first, lanes) in self._joins.items():
            await self.perform(working.join(self._core, group, topic, first, lanes))
        service = Service(self._core, self._handlers.exclusive, timeout, self._handlers.workers)
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

    # Running.

    def be_patient(self, seconds: float) -> None:
        """From now on requests are tried for about so long, instead of `retries` times, before they are Unavailable."""
        self._session.be_patient(check_seconds(seconds))

    def perform(self, operation: Operation[T]) -> Awaitable[T]:
        """Runs one of the client's operations to its end."""
        return self._driver.perform(operation)

    def apply_change(self, change: Callable[[], None]) -> None:
        """Makes a change that waits for nothing, and sends what it leads to."""
        change()
        self._driver.pump_soon()

    def wake(self) -> None:
        """Makes anyone who waits look again."""
        self._driver.pump_soon()

    @property
    def lost(self) -> bool:
        """Whether this is a copy in the child of a fork, with which nothing can be done."""
        return self._core.inherited

    async def close(self, bye: bool = True) -> None:
        """Waits for what was put with put_soon, sends what is noted, says Bye (unless `bye` is False) and closes.

        As with `Bus`, a put_soon that failed, and that nobody has asked for its result, is raised at the end.
        """
        if self._driver.closed:
            return
        unseen: TidingsError | None = None
        try:
            try:
                await self.flush()
            except TidingsError as error:
                unseen = error
            if bye and not isinstance(unseen, Unavailable):  # Otherwise nobody hears a Bye either.
                await self.perform(operations.finish(self._core))
        finally:
            self._background.stop()
            self._driver.close()
            self._core.close_files()
        if unseen is not None:
            raise unseen

    async def __aenter__(self) -> AsyncBus:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.close()
        except TidingsError as unsent:
            say_or_note(unsent, error)

    def __repr__(self) -> str:
        return f"AsyncBus({self._session.address!r}, client_id={self.client_id!r})"
