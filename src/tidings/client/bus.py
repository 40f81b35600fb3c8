"""The blocking bus: the session's operations, for one thread or several."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, TypeVar, overload

import msgspec

from tidings.client import filling, operations, ranges, reading, staging, working
from tidings.client.driver import Driver
from tidings.client.group import GroupSubscription
from tidings.client.heartbeat import Heartbeat
from tidings.client.inbox import Inbox
from tidings.client.link import Link
from tidings.client.local_files import LocalFiles
from tidings.client.operations import Core, Operation, topics_of
from tidings.client.publisher import Publisher
from tidings.client.ranges import BULK_BYTES, RangeReader, RangeStart, Stored, When
from tidings.client.rows import Value
from tidings.client.serving import Handler, Service
from tidings.client.session import Session
from tidings.client.soon import Soon, Soons
from tidings.client.staging import Stage
from tidings.client.subscription import Subscription
from tidings.client.transaction import Transaction
from tidings.errors import TidingsError, Unavailable
from tidings.message import Batch, GroupInfo, Message, Receipt, Receipts, TopicInfo
from tidings.protocols.broker.bulk import PublishDone, StageName
from tidings.protocols.broker.messages import LaneKind, Start
from tidings.settings import ClientSettings

T = TypeVar("T")
H = TypeVar("H", bound=Handler)


def monotonic_ms() -> int:
    """A clock that never goes back."""
    return time.monotonic_ns() // 1_000_000


class Bus:
    """A client of a broker. Made by `tidings.connect` or `tidings.open`; see there for examples."""

    def __init__(
        self,
        link: Link,
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
        self._driver = Driver(link, session, clock)
        self._core = Core(session, opened, clock, self._driver.perform)
        if record is not None:
            self._core.record = self._core.recorder(record)
        self._handlers: dict[tuple[str, ...], list[Handler]] = {}
        self._workers: dict[tuple[str, str], list[Handler]] = {}
        self._link = link
        self._heartbeat: Heartbeat | None = None
        self._soons = Soons(self._driver, self._core)

    @property
    def client_id(self) -> str:
        """The name that this bus speaks for."""
        return self._core.client_id

    def start(self) -> None:
        """Says Hello now rather than with the first call; Unavailable when nobody answers."""
        self.perform(operations.start(self._core))

    # Publishing.

    @overload
    def put(
        self,
        topic: str,
        value: Value,
        key: Value | None = None,
        headers: Mapping[str, Value] | None = None,
        id: str | None = None,
        wait: float | None = None,
    ) -> Receipt: ...
    @overload
    def put(
        self,
        topic: list[str] | tuple[str, ...],
        value: Value,
        key: Value | None = None,
        headers: Mapping[str, Value] | None = None,
        id: str | None = None,
        wait: float | None = None,
    ) -> list[Receipt]: ...
    def put(
        self,
        topic: str | list[str] | tuple[str, ...],
        value: Value,
        key: Value | None = None,
        headers: Mapping[str, Value] | None = None,
        id: str | None = None,
        wait: float | None = None,
    ) -> Receipt | list[Receipt]:
        """Stores a message in a topic, or in several topics at once (all or none), exactly once.

        If no answer comes after all tries, Unavailable is raised and the message may or may not be stored. The
        error's `resend()` then sends the very same request again and returns the receipt, with `duplicate`
        True if it had been stored. That works until something else is put to the same topic; after that it
        raises OutOfSequence.

        A put that the broker refuses as Overloaded is tried again for `wait` seconds (the setting
        overload_wait_ms), and raises Overloaded after that: it is never dropped in silence.

        >>> import tempfile, tidings
        >>> with tidings.open(tempfile.mkdtemp(), client_id="alice") as bus:
        ...     bus.put("news", "hello", key="greetings")
        ...     bus.put(["news", "sport"], "both")
        Receipt(topic='news', offset=0, duplicate=False)
        [Receipt(topic='news', offset=1, duplicate=False), Receipt(topic='sport', offset=0, duplicate=False)]
        """
        found: Receipt | list[Receipt] = self.perform(
            operations.put(self._core, topic, value, key, headers, id, wait=wait)
        )
        return found

    def put_many(
        self,
        topic: str,
        values: Iterable[Value],
        keys: Iterable[Value | None] | None = None,
        wait: float | None = None,
        headers: Iterable[Mapping[str, Value] | None] | None = None,
        ids: Iterable[str | None] | None = None,
    ) -> Receipts:
        """Stores many messages in one topic, in order, in batches.

        An error's `receipts` says how much of it had been stored by then; an Unavailable has `resend()`, which
        goes on with all of it. `keys`, `headers` and `ids` have an entry for each value, None where it has none. With
        `wait`, what the broker refuses as Overloaded is tried again, until nothing of it was taken for so many seconds
        (the setting overload_wait_ms).

        >>> import tempfile, tidings
        >>> with tidings.open(tempfile.mkdtemp(), client_id="alice") as bus:
        ...     bus.put_many("numbers", (str(number) for number in range(1000)))
        Receipts(topic='numbers', first_offset=0, count=1000, duplicates=0)
        """
        return self.perform(filling.put_many(self._core, topic, values, keys, None, wait, headers, ids))

    def put_soon(
        self,
        topic: str | Iterable[str],
        value: Value,
        key: Value | None = None,
        headers: Mapping[str, Value] | None = None,
        id: str | None = None,
    ) -> Soon[Any]:
        """Like put, without waiting for the answer: many calls share their requests.

        It is sent while the program does other things, or nothing. An error that nobody has asked for with `result()`
        is raised by `flush` and `close`, or written to standard error when the program ends without them.

        >>> import tempfile, tidings
        >>> with tidings.open(tempfile.mkdtemp(), client_id="alice") as bus:
        ...     puts = [bus.put_soon("news", str(number)) for number in range(3)]
        ...     bus.flush()
        ...     puts[2].result().offset
        2
        """
        return self._driver.perform(self._soons.put(topic, value, key, headers, id), soon=True)

    def flush(self) -> None:
        """Waits for every put_soon; raises the first error that nobody has seen."""
        self._soons.flush()

    def publisher(self, name: str) -> Publisher:
        """A publisher with a name and sequence numbers of its own, which tell how far it had come.

        >>> import tempfile, tidings
        >>> lines = ["one", "two", "three"]
        >>> with tidings.open(tempfile.mkdtemp()) as bus:
        ...     for stop in (2, 3):  # The first run breaks off after two lines.
        ...         with bus.publisher("import-7") as publisher:
        ...             done = publisher.last_sequence("news")
        ...             publisher.put_many("news", lines[done:stop])
        Receipts(topic='news', first_offset=0, count=2, duplicates=0)
        Receipts(topic='news', first_offset=2, count=1, duplicates=0)
        """
        identity = self._session.identity(name, os.urandom(16))
        return Publisher(self, self._core, identity)

    def transaction(self) -> Transaction:
        """Takes and puts that happen together or not at all.

        >>> import tempfile, tidings
        >>> with tidings.open(tempfile.mkdtemp(), client_id="clerk") as bus:
        ...     _ = bus.subscribe("orders")
        ...     _ = bus.put("orders", "a bicycle")
        ...     with bus.transaction() as tx:
        ...         order = tx.get("orders")
        ...         tx.put("invoices", order.value)
        ...     tx.receipts
        [[Receipt(topic='invoices', offset=0, duplicate=False)]]
        """
        return Transaction(self, self._core)

    # Subscribing.

    @overload
    def subscribe(
        self,
        topic: str | Iterable[str],
        start: Start | None = None,
        group: None = None,
        lanes: LaneKind = "key",
        record: str | os.PathLike[str] | None = None,
    ) -> Subscription: ...
    @overload
    def subscribe(
        self,
        topic: str,
        start: Start | None = None,
        *,
        group: str,
        lanes: LaneKind = "key",
        record: str | os.PathLike[str] | None = None,
    ) -> GroupSubscription: ...
    def subscribe(
        self,
        topic: str | Iterable[str],
        start: Start | None = None,
        group: str | None = None,
        lanes: LaneKind = "key",
        record: str | os.PathLike[str] | None = None,
    ) -> Subscription | GroupSubscription:
        """Makes a durable subscription, or finds the one that is there (`start` is then ignored).

        It begins with what is put from now on, unless `start` says otherwise. With a `group` the client becomes one
        of the members that share the topic's messages; a group begins with the earliest message, and its first
        member decides about `start` and about what makes a lane: the key, or (`"publisher"`) publisher and key.
        `record` is a folder in which every message that is handed out is written down, for `tidings audit`.

        >>> import tempfile, tidings
        >>> with tidings.open(tempfile.mkdtemp(), client_id="alice") as bus:
        ...     subscription = bus.subscribe("news")
        ...     _ = bus.put_many("news", ["one", "two"])
        ...     [message.text for message in subscription.messages(timeout=0)]
        ['one', 'two']
        """
        if group is None:
            topics = self.perform(operations.subscribe(self._core, topic, "now" if start is None else start))
            if record is not None:
                self._session.streams.of(topics).record = self._core.recorder(record)
            return Subscription(self, self._core, topics)
        member = self.perform(working.join(self._core, group, topic, start, lanes))
        if record is not None:
            member.record = self._core.recorder(record)
        if self._heartbeat is None:
            self._heartbeat = Heartbeat.beside(self._link, self._session)
        return GroupSubscription(self, self._core, member)

    def unsubscribe(self, topic: str | Iterable[str], group: str | None = None) -> None:
        """Ends a subscription, or a membership; NotSubscribed or NoSuchTopic when there is none."""
        if group is None:
            self.perform(operations.unsubscribe(self._core, topic))
        else:
            self.perform(working.leave(self._core, group, topic))

    def subscriptions(self) -> list[tuple[str, ...]]:
        """The subscriptions of this client, each as its topics."""
        return self.perform(operations.subscriptions(self._core))

    def subscribers(self) -> dict[str, list[tuple[str, ...]]]:
        """The subscriptions of every name below this client's own, `client_id/...`."""
        return self.perform(operations.subscribers(self._core))

    def get(self, topic: str | Iterable[str], timeout: float | None = 0.0) -> Message | None:
        """The next message of a subscription, acknowledged before it is returned; None when there is none.

        `timeout` is how long to wait for one, None for ever. When an acknowledgement ends as Unavailable the
        message is kept, and the next get returns it. With an inbox the message is written down there before it is
        returned, and acknowledged with the next call or `close`.

        >>> import tempfile, tidings
        >>> with tidings.open(tempfile.mkdtemp(), client_id="alice") as bus:
        ...     _ = bus.subscribe("news")
        ...     _ = bus.put("news", "hello")
        ...     bus.get("news").text, bus.get("news")
        ('hello', None)
        """
        return self.perform(reading.get(self._core, topics_of(topic), self._core.deadline_ms(timeout)))

    def get_all(self) -> dict[str, Message]:
        """One message of each topic that this client has subscribed and that has something new."""
        return self.perform(reading.get_all(self._core))

    def on(
        self,
        topic: str | Iterable[str],
        start: Start | None = None,
        group: str | None = None,
        lanes: LaneKind = "key",
    ) -> Callable[[H], H]:
        """Makes a function the handler of a topic's messages, and subscribes; `run` then calls it.

        >>> import tempfile, tidings
        >>> with tidings.open(tempfile.mkdtemp(), client_id="alice") as bus:
        ...     @bus.on("news")
        ...     def show(message):
        ...         print(message.text)
        ...         bus.stop()
        ...     _ = bus.put("news", "hello")
        ...     bus.run()
        hello
        """
        handlers: list[Handler]
        if group is None:
            handlers = self._handlers.setdefault(self.subscribe(topic, start).topics, [])
        else:
            member = self.subscribe(topic, start, group=group, lanes=lanes)  # type: ignore[arg-type]
            handlers = self._workers.setdefault((group, member.topic), [])

        def register(handler: H) -> H:
            handlers.append(handler)
            return handler

        return register

    def run(self, timeout: float | None = None) -> None:
        """Calls the handlers with messages as they come, until `stop` or until none came for `timeout` seconds.

        A message is acknowledged after its handlers have returned. When one raises, the error comes out of here,
        and the message comes again with the next run; a group's message is given back, for whichever member is next.
        """
        service = Service(self._core, self._handlers, timeout, self._workers)
        try:
            while (found := self.perform(service.step())) is not None:
                message, handlers = found
                for handler in handlers:
                    handler(message)
        finally:
            if not self._driver.closed and not self.lost:
                self.perform(service.leave())

    def stop(self) -> None:
        """Ends `run`, from a handler, another thread or a signal handler."""
        self._core.stopping = True
        self.wake()

    # In bulk.

    def read(self, topic: str, start: RangeStart = "earliest", end: int | None = None) -> Iterator[Batch]:
        """The stored batches of any range of offsets, without a subscription; nothing is acknowledged or moved.

        `end` is the offset before which to stop, None for what is there now. Offsets that retention has removed, or
        that are not taken yet, are InvalidRequest. Each batch has `stored_at` beside its columns.

        >>> import tempfile, tidings
        >>> with tidings.open(tempfile.mkdtemp(), client_id="alice") as bus:
        ...     _ = bus.put_many("numbers", map(str, range(10)))
        ...     [batch.values for batch in bus.read("numbers", 3, 6)]
        [[b'3', b'4', b'5']]
        """
        reader = RangeReader(self._core, topic, start, end)
        self.perform(reader.begin())
        return self._steps(reader, reader.step)

    def read_stored(self, topic: str, start: RangeStart = "earliest", end: int | None = None) -> Iterator[Stored]:
        """The same as `read`, each batch as it is stored, for readers in bulk that do not want Python's objects."""
        reader = RangeReader(self._core, topic, start, end, BULK_BYTES, LocalFiles())
        self.perform(reader.begin())
        return self._steps(reader, reader.step_stored)

    def _steps(self, reader: RangeReader, step: Callable[[], Operation[T | None]]) -> Iterator[T]:
        try:
            while (batch := self.perform(step())) is not None:
                yield batch
        finally:
            self.apply_change(reader.leave)

    def offset_at(self, topic: str, when: When) -> int:
        """The first offset stored at or after a time (a datetime, or seconds since 1970); the next one if none was.

        >>> import tempfile, tidings
        >>> with tidings.open(tempfile.mkdtemp(), client_id="alice") as bus:
        ...     _ = bus.put("news", "hello")
        ...     bus.offset_at("news", 0), bus.offset_at("news", 4e9)
        (0, 1)
        """
        return self.perform(ranges.offset_at(self._core, topic, when))

    def stage(self, query: str, batch: int, name: str, sink: str = "") -> Stage:
        """A place for the messages of one attempt to write a query's batch, where nobody sees them before `publish`.

        `name` is the attempt's own: one that is repeated takes another. A query that writes the same batch to several
        places names each of them, by a topic say, as its `sink`: each has batches of its own.

        >>> import tempfile, tidings
        >>> with tidings.open(tempfile.mkdtemp(), client_id="alice") as bus:
        ...     for attempt in ("first", "second"):  # The batch is written twice, and published once.
        ...         stage = bus.stage("import", 7, attempt)
        ...         stage.write("news", [b"one", b"two"])
        ...         done = bus.publish("import", 7, [stage.finish()])
        ...         print(done.repeated, bus.topic("news").count)
        False 2
        True 2
        """
        return Stage(self, self._core, query, batch, name, sink)

    def publish(
        self,
        query: str,
        batch: int,
        stages: Sequence[StageName],
        once: bool = False,
        wait: float = 0.0,
        sink: str = "",
    ) -> PublishDone:
        """Makes finished stages visible, all or none, unless this batch of the query has been published before.

        `once` says that the query has no other batch, so that it need not be remembered for long. What is refused as
        Overloaded is tried again for `wait` seconds.
        """
        return self.perform(staging.publish(self._core, query, batch, stages, once, wait, sink))

    def discard(self, stages: Sequence[str]) -> int:
        """Drops stages by their names, without touching what is published; how many were there."""
        return self.perform(staging.discard(self._core, stages))

    # Looking.

    def topics(self) -> list[TopicInfo]:
        """All topics."""
        return self.perform(operations.topics(self._core))

    def topic(self, name: str) -> TopicInfo:
        """One topic; NoSuchTopic when there is none of that name."""
        return self.perform(operations.topic(self._core, name))

    def groups(self, topic: str | None = None) -> list[GroupInfo]:
        """All groups, or those of a topic, with their members."""
        return self.perform(working.groups(self._core, topic))

    def status(self) -> dict[str, int]:
        """Plain numbers about the broker, by name."""
        return self.perform(operations.status(self._core))

    def shutdown(self) -> None:
        """Stops the broker, if this client may."""
        self.perform(operations.shutdown(self._core))

    # Running.

    def be_patient(self, seconds: float) -> None:
        """From now on requests are tried for about so long, instead of `retries` times, before they are Unavailable."""
        settings = self._session.settings
        tries = max(1, round(seconds * 1000 / settings.timeout_ms))
        self._session.settings = msgspec.structs.replace(settings, retries=tries)

    def perform(self, operation: Operation[T]) -> T:
        """Runs one of the client's operations to its end."""
        return self._driver.perform(operation)

    def apply_change(self, change: Callable[[], None]) -> None:
        """Makes a change that waits for nothing, and sends what it leads to."""
        self._driver.apply_change(change)

    def wake(self) -> None:
        """Makes anyone who waits look again."""
        self._driver.wake()

    @property
    def lost(self) -> bool:
        """Whether nothing can be done with it but to close it: a copy in the child of a fork, or broken off."""
        return self._core.inherited or bool(self._driver.broken_off)

    def close(self) -> None:
        """Waits for what was put with put_soon, sends what is noted, says Bye and closes.

        A put_soon that failed, and that nobody has asked for its result, is raised once all of it is closed. For
        everything else it waits one time-out at most, and never raises Unavailable.
        """
        if self._driver.closed:
            return
        unseen: TidingsError | None = None
        try:
            try:
                self._soons.flush()
            except TidingsError as error:
                unseen = error
            if not isinstance(unseen, Unavailable):  # Otherwise nobody hears a Bye either.
                self._driver.perform(operations.finish(self._core))
        finally:
            self._soons.stop()
            if self._heartbeat is not None:
                self._heartbeat.stop()
            self._driver.close()
            self._core.close_files()
        if unseen is not None:
            raise unseen

    def __enter__(self) -> Bus:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except TidingsError as unsent:
            if error is None:
                raise
            error.add_note(f"Nor could the bus be closed in good order: {unsent}")

    def __repr__(self) -> str:
        return f"Bus({self._session.address!r}, client_id={self.client_id!r})"
