"""Get, work, put as one: everything in a transaction happens, or nothing does.

What is taken and what is put inside the `with` block goes to the broker as one request at its end. An
exception in the block sends nothing, and the messages that were taken come again. If no answer comes to the
request (Unavailable) the transaction's outcome is unknown: `error.resend()` brings it to its end, and so does the next
use of the subscriptions that it read from, before anything is given out there again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import TracebackType

from tidings.client import operations
from tidings.client.arguments import check_message, topics_of
from tidings.client.operations import Core, Operation
from tidings.client.puts import Record, Together
from tidings.client.reading import claim, fill, make_ready, write_down_head
from tidings.client.rows import Value
from tidings.client.shells import AwaitingShell, BlockingShell
from tidings.client.stream import Stream
from tidings.errors import InvalidRequest
from tidings.message import Message, Receipt
from tidings.protocols.broker.messages import Acknowledgement, Position


class Parts:
    """What a transaction has gathered, and the operations on it."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._records: list[Record] = []
        self._taken: dict[tuple[str, ...], dict[str, int]] = {}
        self._claimed: list[Stream] = []
        self._streams: list[Stream] = []
        """Claimed, and ready to have taken back what is taken."""
        self._ended = False

    def put(
        self,
        topic: str | Iterable[str],
        value: Value,
        key: Value | None,
        headers: Mapping[str, Value] | None,
        id: str | None,
    ) -> None:
        """Adds a message."""
        self._check_open()
        self._records.append(operations.make_record(self._core, topic, value, key, headers, id))

    def ack(self, message: Message, topics: tuple[str, ...]) -> None:
        """Adds an acknowledgement."""
        self._check_open()
        check_message(message)
        places = self._taken.setdefault(topics, {})
        places[message.topic] = max(places.get(message.topic, 0), message.offset + 1)

    def get(self, topics: tuple[str, ...], deadline_ms: int | None) -> Operation[Message | None]:
        """Takes the next message."""
        self._check_open()
        stream = self._core.session.streams.of(topics)
        if stream not in self._claimed:
            yield from claim(stream, "transaction")
            self._claimed.append(stream)
        if stream not in self._streams:
            # The outcome of a transaction before this one may be unknown, and it must be brought to its end first.
            yield from make_ready(self._core, [stream])
            stream.keep()
            self._streams.append(stream)
        if not (yield from fill(self._core, stream, deadline_ms)):
            return None
        message = stream.peek()
        assert message is not None
        write_down_head(self._core, stream)
        stream.marked = None
        stream.advance(1)
        self.ack(message, topics)
        return message

    def commit(self) -> Operation[list[list[Receipt]]]:
        """Sends everything as one request."""
        self._check_open()
        self._ended = True
        core = self._core
        entry = Together(
            self._records,
            tuple(
                Acknowledgement(topics, tuple(Position(topic, offset) for topic, offset in places.items()))
                for topics, places in self._taken.items()
            ),
        )
        if not (entry.records or entry.acknowledgements):
            self._release()
            return []
        # No mark in the inbox: the cursor moves with the rest, and what the broker has of it is the truth.
        entry.streams = list(self._streams)
        try:
            receipts: list[list[Receipt]] = yield from operations.conclude(core, operations.give(core, entry))
        finally:
            self._release()
        return receipts

    def roll_back(self) -> None:
        """Sends nothing; what was taken comes again."""
        self._ended = True
        for stream in self._streams:
            stream.take_back()
        self._release()

    def _release(self) -> None:
        for stream in self._claimed:
            stream.owner = None

    def _check_open(self) -> None:
        if self._ended:
            raise InvalidRequest("This transaction is over: begin another.")


class Transaction:
    """`with bus.transaction() as tx:` - see `Bus.transaction`."""

    def __init__(self, bus: BlockingShell, core: Core) -> None:
        self._bus = bus
        self._core = core
        self._parts = Parts(core)
        self.receipts: list[list[Receipt]] = []
        """After the end: for each message put, in order, a receipt for each of its topics."""

    def get(self, topic: str | Iterable[str], timeout: float | None = 0.0) -> Message | None:
        """The next message of a subscription, acknowledged when the transaction ends well."""
        return self._bus.perform(self._parts.get(topics_of(topic), self._core.deadline_ms(timeout)))

    def put(
        self,
        topic: str | Iterable[str],
        value: Value,
        key: Value | None = None,
        headers: Mapping[str, Value] | None = None,
        id: str | None = None,
    ) -> None:
        """A message to be stored when the transaction ends well."""
        self._parts.put(topic, value, key, headers, id)

    def ack(self, message: Message, subscription: str | Iterable[str] | None = None) -> None:
        """Acknowledges a message that came some other way, for instance to a handler.

        `subscription` names the topics of the subscription if they are not just the message's own.
        """
        self._parts.ack(message, topics_of(check_message(message).topic if subscription is None else subscription))

    def __enter__(self) -> Transaction:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.receipts = self._bus.perform(self._parts.commit())
        elif not self._bus.lost:
            self._bus.perform(roll_back(self._parts))


class AsyncTransaction:
    """`async with bus.transaction() as tx:` - the same, awaited."""

    def __init__(self, bus: AwaitingShell, core: Core) -> None:
        self._bus = bus
        self._core = core
        self._parts = Parts(core)
        self.receipts: list[list[Receipt]] = []

    async def get(self, topic: str | Iterable[str], timeout: float | None = 0.0) -> Message | None:
        """The next message of a subscription, acknowledged when the transaction ends well."""
        return await self._bus.perform(self._parts.get(topics_of(topic), self._core.deadline_ms(timeout)))

    def put(
        self,
        topic: str | Iterable[str],
        value: Value,
        key: Value | None = None,
        headers: Mapping[str, Value] | None = None,
        id: str | None = None,
    ) -> None:
        """A message to be stored when the transaction ends well."""
        self._parts.put(topic, value, key, headers, id)

    def ack(self, message: Message, subscription: str | Iterable[str] | None = None) -> None:
        """Acknowledges a message that came some other way."""
        self._parts.ack(message, topics_of(check_message(message).topic if subscription is None else subscription))

    async def __aenter__(self) -> AsyncTransaction:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.receipts = await self._bus.perform(self._parts.commit())
        elif not self._bus.lost:
            await self._bus.perform(roll_back(self._parts))


def roll_back(parts: Parts) -> Operation[None]:
    """Undoes a transaction under the bus's lock."""
    yield from ()  # Nothing to wait for; but every operation is a generator.
    parts.roll_back()
