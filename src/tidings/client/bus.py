"""The blocking bus: the session's operations, for one thread or several."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, TypeVar, overload

from tidings.client import filling, operations, reading, working
from tidings.client.arguments import check_seconds, topics_of
from tidings.client.driver import Driver
from tidings.client.group import GroupSubscription
from tidings.client.heartbeat import Heartbeat
from tidings.client.link import Link
from tidings.client.looking import Looking
from tidings.client.operations import Core, Operation
from tidings.client.performing import begin, begin_record, monotonic_ms
from tidings.client.publisher import Publisher
from tidings.client.ranges import Ranges
from tidings.client.rows import Value
from tidings.client.serving import H, Handlers, Service
from tidings.client.soon import Background, Soon, say_or_note
from tidings.client.staging import Stages
from tidings.client.subscription import Subscription
from tidings.client.transaction import Transaction
from tidings.errors import TidingsError, Unavailable
from tidings.message import Message, Receipt, Receipts
from tidings.protocols.broker.messages import LaneKind, Start
from tidings.settings import ClientSettings

T = TypeVar("T")


class Bus(Looking, Ranges, Stages):
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
        self._session, opened = begin(link, client_id, settings, inbox, anonymous, token)
        self._driver = Driver(link, self._session, clock)
        self._core = Core(self._session, opened, clock, self._driver.perform)
        begin_record(self._core, record, self._driver.close)
        self._handlers = Handlers()
        self._link = link
        self._heartbeat: Heartbeat | None = None
        self._background = Background(self._driver, self._core)
        self._soons = self._background.soons

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

    @overload
    def put_soon(
        self,
        topic: str,
        value: Value,
        key: Value | None = None,
        headers: Mapping[str, Value] | None = None,
        id: str | None = None,
    ) -> Soon[Receipt]: ...
    @overload
    def put_soon(
        self,
        topic: list[str] | tuple[str, ...],
        value: Value,
        key: Value | None = None,
        headers: Mapping[str, Value] | None = None,
        id: str | None = None,
    ) -> Soon[list[Receipt]]: ...
    def put_soon(
        self,
        topic: str | list[str] | tuple[str, ...],
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
        soon = self._driver.perform(self._soons.put(None, topic, value, key, headers, id), soon=True)
        if self._background.tending is None:
            self._background.begin()
        return soon

    def flush(self) -> None:
        """Waits for every put_soon, those of publishers included; raises the first error that nobody has seen."""
        self._background.flush()

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
        return Publisher(self, self._core, identity, self._background)

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
        if group is None:
            return self._handlers.of_topics(self.subscribe(topic, start).topics)
        member = self.subscribe(topic, start, group=group, lanes=lanes)  # type: ignore[arg-type]
        return self._handlers.of_group(group, member.topic)

    def run(self, timeout: float | None = None) -> None:
        """Calls the handlers with messages as they come, until `stop` or until none came for `timeout` seconds.

        A message is acknowledged after its handlers have returned. When one raises, the error comes out of here,
        and the message comes again with the next run; a group's message is given back, for whichever member is next.
        """
        service = Service(self._core, self._handlers.exclusive, timeout, self._handlers.workers)
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

    # Running.

    def be_patient(self, seconds: float) -> None:
        """From now on requests are tried for about so long, instead of `retries` times, before they are Unavailable."""
        self._session.be_patient(check_seconds(seconds))

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

    def close(self, bye: bool = True) -> None:
        """Waits for what was put with put_soon, sends what is noted, says Bye and closes.

        A put_soon that failed, and that nobody has asked for its result, is raised once all of it is closed. For
        everything else it waits one time-out at most, and never raises Unavailable.

        Without `bye` nothing else is sent, and to the broker the client has fallen silent: an anonymous name, which
        would be forgotten at its Bye, keeps its subscriptions for anyone who comes back under it within a day.
        """
        if self._driver.closed:
            return
        unseen: TidingsError | None = None
        try:
            try:
                self._background.flush()
            except TidingsError as error:
                unseen = error
            if bye and not isinstance(unseen, Unavailable):  # Otherwise nobody hears a Bye either.
                self._driver.perform(operations.finish(self._core))
        finally:
            self._background.stop()
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
            say_or_note(unsent, error)

    def __repr__(self) -> str:
        return f"Bus({self._session.address!r}, client_id={self.client_id!r})"
