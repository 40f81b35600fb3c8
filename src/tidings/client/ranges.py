"""Reading any range of a topic's offsets, without a subscription."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from datetime import datetime
from typing import Literal, TypeVar

import msgspec

from tidings.boot import boot_id
from tidings.client.link import Frame
from tidings.client.operations import Core, Operation, ask, expect, topic, wait_for
from tidings.client.performing import AwaitingPart, BlockingPart
from tidings.client.reads_from_files import LocalFiles
from tidings.client.request import Request
from tidings.errors import InvalidRequest, ProtocolError
from tidings.message import Batch, check_topic
from tidings.protocols.broker.bulk import AskOffset, OffsetFound, Read, ReadDone
from tidings.wire.codec import decode_columns
from tidings.wire.even import Even, read_even

READ_MESSAGES = 65_536
READ_BYTES = 1024 * 1024
"""What one answer brings; while the caller works on it, the next one is under way."""
BULK_BYTES = 4 * 1024 * 1024
"""The same for readers in bulk, who sit close to the broker: fewer and larger answers cost both sides less."""

T = TypeVar("T")

RangeStart = Literal["earliest"] | int
When = datetime | float


class Stored(msgspec.Struct, frozen=True):
    """A stored batch as it came, and the offsets of it that are wanted: it is unpacked for anyone who asks."""

    topic: str
    first_offset: int
    count: int
    stored_ms: int
    body: Frame
    start: int
    end: int

    def batch(self) -> Batch:
        """What is wanted of it, unpacked."""
        stored_at = self.stored_ms / 1000 if self.stored_ms else None
        batch = Batch(self.topic, self.first_offset, decode_columns(self.body), 1, stored_at, len(self.body))
        self._check(len(batch.values))
        return batch.after(self.start).before(self.end)

    def even(self) -> Even | None:
        """What is wanted of it, the values as one block; None if they are not all of one size."""
        even = read_even(self.body)
        if even is None:
            return None
        self._check(even.count)
        return even.part(self.start - self.first_offset, self.end - self.first_offset)

    def _check(self, count: int) -> None:
        if count != self.count:
            raise ProtocolError(
                f"A batch of {self.topic!r} at {self.first_offset} was announced with {self.count} messages and "
                f"has {count}: is that a tidings broker?"
            )


class RangeReader:
    """The steps of one loop over a range. One answer is in flight and one under way, so memory stays bounded."""

    def __init__(
        self,
        core: Core,
        name: str,
        start: RangeStart,
        end: int | None,
        answer_bytes: int = READ_BYTES,
        local: LocalFiles | None = None,
    ) -> None:
        if not (start == "earliest" or (type(start) is int and start >= 0)):
            raise InvalidRequest(f'A range must start at "earliest" or at an offset, not at {start!r}.')
        if not (end is None or (type(end) is int and end >= 0)):
            raise InvalidRequest(f"A range must end at an offset, or None for what is there now, not {end!r}.")
        self._core = core
        self._topic = check_topic(name)
        self._start = start
        self._at = 0
        self._end = end
        self._answer_bytes = answer_bytes
        self._local = local
        """Files of the broker's journal, if it is to say where batches lie rather than send them."""
        self._under_way: Request | None = None
        self._batches: deque[Stored] = deque()

    def begin(self) -> Operation[None]:
        """Finds out where the range begins and ends, and asks for the first piece of it."""
        if self._end is None or self._start == "earliest":
            info = yield from topic(self._core, self._topic)
            self._end = info.next_offset if self._end is None else self._end
            self._at = info.first_offset if self._start == "earliest" else self._start
        else:
            self._at = self._start
        self._ask(self._at, self._end)

    def step(self) -> Operation[Batch | None]:
        """The next batch, None at the end of the range."""
        stored = yield from self.step_stored()
        return None if stored is None else stored.batch()

    def step_stored(self) -> Operation[Stored | None]:
        """The next batch as it is stored, None at the end of the range."""
        while not self._batches:
            request, self._under_way = self._under_way, None
            if request is None:
                return None
            done = expect((yield from wait_for(request.future)), ReadDone)
            start, end = self._at, self._end
            assert end is not None
            if done.batches:
                last = done.batches[-1]
                self._at = min(end, last.first_offset + last.count)
            if self._at < end:
                if self._at == start:
                    raise ProtocolError(
                        f"The broker has nothing of {self._topic!r} at offset {start}, and {end - start} messages "
                        "were to be read: is that a tidings broker?"
                    )
                self._ask(self._at, end)
            bodies = self._bodies(done, request.received)
            if bodies is None:  # The files are not to be had here: this and all that follows has to be sent.
                self.leave()
                self._local, self._at = None, start
                self._ask(start, end)
            else:
                self._batches.extend(_stored(self._topic, done, bodies, start, end))
        return self._batches.popleft()

    def _bodies(self, done: ReadDone, received: Sequence[Frame]) -> Sequence[Frame] | None:
        """The bodies of an answer; None if it points to some that cannot be read here."""
        if not done.local:
            return received
        return None if self._local is None else self._local.bodies(done, received)

    def leave(self) -> None:
        """Nobody waits for the rest."""
        if self._local is not None:
            self._local.close()
        if self._under_way is not None:
            self._core.session.forget(self._under_way)
            self._under_way = None

    def _ask(self, start: int, end: int) -> None:
        core, name, size_bytes = self._core, self._topic, self._answer_bytes
        boot = "" if self._local is None else boot_id()
        self._under_way = core.session.request(
            core.now_ms(), lambda number, _: Read(number, name, start, end, READ_MESSAGES, size_bytes, boot)
        )


def _stored(name: str, done: ReadDone, bodies: Sequence[Frame], start: int, end: int) -> Iterator[Stored]:
    """The batches of an answer, with the part of the range that each has."""
    if len(bodies) != len(done.batches):
        raise ProtocolError(f"{len(done.batches)} batches came with {len(bodies)} bodies: is that a tidings broker?")
    for described, body in zip(done.batches, bodies, strict=True):
        first, count = described.first_offset, described.count
        wanted = max(start, first)
        until = max(wanted, min(end, first + count))
        yield Stored(name, first, count, described.stored_ms, body, wanted, until)


def offset_at(core: Core, name: str, when: When) -> Operation[int]:
    """The first offset that was stored at or after a time."""
    check_topic(name)
    seconds = when.timestamp() if isinstance(when, datetime) else when
    if not (isinstance(seconds, int | float) and 0 <= seconds < 1e12):
        raise InvalidRequest(f"A time must be a datetime or a number of seconds since 1970, not {when!r}.")
    time_ms = math.ceil(seconds * 1000)
    answer = yield from ask(core, lambda number, _: AskOffset(number, name, time_ms), OffsetFound)
    return answer.offset


class Ranges(BlockingPart):
    """The part of a bus that reads ranges of offsets."""

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
        return self.perform(offset_at(self._core, topic, when))


class AsyncRanges(AwaitingPart):
    """The same, awaited."""

    def read(self, topic: str, start: RangeStart = "earliest", end: int | None = None) -> AsyncIterator[Batch]:
        """The stored batches of any range of offsets: `async for batch in bus.read("news", 3, 6)`."""
        reader = RangeReader(self._core, topic, start, end)
        return self._steps(reader, reader.step)

    def read_stored(self, topic: str, start: RangeStart = "earliest", end: int | None = None) -> AsyncIterator[Stored]:
        """The same as `read`, each batch as it is stored, for readers in bulk that do not want Python's objects."""
        reader = RangeReader(self._core, topic, start, end, BULK_BYTES, LocalFiles())
        return self._steps(reader, reader.step_stored)

    async def _steps(self, reader: RangeReader, step: Callable[[], Operation[T | None]]) -> AsyncIterator[T]:
        try:
            await self.perform(reader.begin())
            while (batch := await self.perform(step())) is not None:
                yield batch
        finally:
            self.apply_change(reader.leave)

    async def offset_at(self, topic: str, when: When) -> int:
        """The first offset stored at or after a time; the next one if none was."""
        return await self.perform(offset_at(self._core, topic, when))
