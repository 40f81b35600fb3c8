"""A subscription in the caller's hands: messages one by one, or in batches."""

from __future__ import annotations

from collections.abc import Iterator

from tidings.client import operations, reading
from tidings.client.operations import Core
from tidings.client.reading import Reader
from tidings.client.shells import AwaitingShell, BlockingShell
from tidings.client.working import Worker
from tidings.message import Batch, Message


class Subscription:
    """What `Bus.subscribe` returns. A loop over it acknowledges each message when the next one is asked for.

    A message that is in flight when the loop ends early, by `break` or an error, counts as not acknowledged and
    comes again; with an inbox it counts as handed out.
    """

    def __init__(self, bus: BlockingShell, core: Core, topics: tuple[str, ...]) -> None:
        self.topics = topics
        self._bus = bus
        self._core = core
        self._open = True
        core.session.streams.of(topics).closed = False

    def __iter__(self) -> Iterator[Message]:
        return self.messages()

    def messages(self, timeout: float | None = None) -> Iterator[Message]:
        """The messages as they come; ends when none came for `timeout` seconds, or at `close`."""
        core, perform = self._core, self._bus.perform
        reader = Reader(core, core.session.streams.of(self.topics), timeout)
        try:
            while self._open and (piece := perform(reader.step())) is not None:
                for message in piece:
                    yield message
                    reader.done += 1
                    if core.inherited:  # The rest of the piece is the parent's; the next step says so.
                        break
        finally:
            self._bus.apply_change(reader.leave)

    def batches(self, timeout: float | None = None) -> Iterator[Batch]:
        """The same in batches, each acknowledged as one when the next is asked for."""
        perform, reader = self._bus.perform, Reader(self._core, self._core.session.streams.of(self.topics), timeout)
        try:
            while self._open and (batch := perform(reader.step_batch())) is not None:
                yield batch
                reader.done = len(batch.values)
        finally:
            self._bus.apply_change(reader.leave)

    def get(self, timeout: float | None = 0.0) -> Message | None:
        """The next message, acknowledged before it is returned; None when there is none in time."""
        return self._bus.perform(reading.get(self._core, self.topics, self._core.deadline_ms(timeout)))

    def unsubscribe(self) -> None:
        """Ends the subscription itself: the broker forgets it."""
        self._open = False
        self._bus.perform(operations.unsubscribe(self._core, self.topics))

    def close(self) -> None:
        """Ends loops over this object; the subscription stays."""
        self._open = False
        self._core.session.streams.of(self.topics).closed = True
        self._bus.wake()

    def __enter__(self) -> Subscription:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Subscription({', '.join(map(repr, self.topics))})"


class AsyncSubscription:
    """What `AsyncBus.subscribe` returns: the same, awaited."""

    def __init__(self, bus: AwaitingShell, core: Core, topics: tuple[str, ...]) -> None:
        self.topics = topics
        self._bus = bus
        self._core = core
        core.session.streams.of(topics).closed = False

    def __aiter__(self) -> AsyncMessages:
        return self.messages()

    def messages(self, timeout: float | None = None) -> AsyncMessages:
        """The messages as they come; ends when none came for `timeout` seconds, or at `close`."""
        return AsyncMessages(self._bus, self._reader(timeout))

    def batches(self, timeout: float | None = None) -> AsyncBatches:
        """The same in batches, each acknowledged as one when the next is asked for."""
        return AsyncBatches(self._bus, self._reader(timeout))

    def _reader(self, timeout: float | None) -> Reader:
        return Reader(self._core, self._core.session.streams.of(self.topics), timeout)

    async def get(self, timeout: float | None = 0.0) -> Message | None:
        """The next message, acknowledged before it is returned; None when there is none in time."""
        return await self._bus.perform(reading.get(self._core, self.topics, self._core.deadline_ms(timeout)))

    async def unsubscribe(self) -> None:
        """Ends the subscription itself: the broker forgets it."""
        await self._bus.perform(operations.unsubscribe(self._core, self.topics))

    def close(self) -> None:
        """Ends loops over this object; the subscription stays."""
        self._core.session.streams.of(self.topics).closed = True
        self._bus.wake()

    async def __aenter__(self) -> AsyncSubscription:
        return self

    async def __aexit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"AsyncSubscription({', '.join(map(repr, self.topics))})"


class AsyncMessages:
    """One `async for` over messages. It ends with its last reference, without waiting for the event loop."""

    def __init__(self, bus: AwaitingShell, reader: Reader | Worker) -> None:
        self._bus = bus
        self._reader = reader
        self._piece: Iterator[Message] = iter(())
        self._in_flight = 0

    def __aiter__(self) -> AsyncMessages:
        return self

    async def __anext__(self) -> Message:
        self._reader.done += self._in_flight
        self._in_flight = 0
        if not self._bus.lost:
            for message in self._piece:
                self._in_flight = 1
                return message
        piece = await self._bus.perform(self._reader.step())
        if piece is None:
            self._reader.leave()
            self._bus.wake()
            raise StopAsyncIteration
        self._piece = piece
        self._in_flight = 1
        return next(piece)

    def __del__(self) -> None:
        self._reader.leave()


class AsyncBatches:
    """One `async for` over batches."""

    def __init__(self, bus: AwaitingShell, reader: Reader | Worker) -> None:
        self._bus = bus
        self._reader = reader
        self._in_flight = 0

    def __aiter__(self) -> AsyncBatches:
        return self

    async def __anext__(self) -> Batch:
        self._reader.done = self._in_flight
        self._in_flight = 0
        batch = await self._bus.perform(self._reader.step_batch())
        if batch is None:
            self._reader.leave()
            self._bus.wake()
            raise StopAsyncIteration
        self._in_flight = len(batch.values)
        return batch

    def __del__(self) -> None:
        self._reader.leave()
