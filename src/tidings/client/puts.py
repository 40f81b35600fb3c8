"""What callers give to put: a record, many of them, or a transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from tidings.client.future import Future
from tidings.client.rows import ROW_OVERHEAD_BYTES, Source, Value, check_id, headers_of, to_bytes
from tidings.message import Columns, Headers, Receipts
from tidings.protocols.broker.messages import Acknowledgement, Part, Position, Stored


class Entry:
    """Something given to an outbox; `future` has what became of it."""

    count = size_bytes = 0
    """How many waiting messages it stands for, and about how large they are."""
    sequence: int | None = None
    """The number that the caller wants it to have."""
    order = 0
    """Its place among everything that was given."""
    gone = False
    """True once it can no longer be sent again."""
    future: Future[object]
    """Made when it is given, and again when it is sent again."""

    def __init__(self, topics: tuple[str, ...]) -> None:
        self.topics = topics

    def stop(self) -> None:
        """Its caller has gone: what is not sent yet and can be left out is left out."""

    def renew(self) -> None:
        """Before it is sent again: from now on its caller gets the new outcome."""
        if self.future.done:
            self.future = Future()


class Record(Entry):
    """One message for one or more topics; its result is a list of receipts, one for each topic."""

    count = 1
    key: bytes | None = None
    headers: Headers | None = None
    id: str | None = None

    def __init__(
        self,
        topics: tuple[str, ...],
        value: Value,
        key: Value | None = None,
        headers: Mapping[str, Value] | None = None,
        id: str | None = None,
        published_us: int = 0,
        sequence: int | None = None,
    ) -> None:
        self.topics = topics
        self.value = value if type(value) is bytes else to_bytes(value, "value")
        self.published_us = published_us
        size_bytes = len(self.value) + ROW_OVERHEAD_BYTES
        if sequence is not None:
            self.sequence = sequence
        if key is not None:
            self.key = to_bytes(key, "key")
            size_bytes += len(self.key)
        if id is not None:
            self.id = check_id(id)
            size_bytes += 4 * len(id)
        if headers is not None and (found := headers_of(headers)):
            self.headers = found
            size_bytes += sum(len(name) * 4 + len(given) + 8 for name, given in found.items())
        self.size_bytes = size_bytes


class Bulk(Entry):
    """Many messages for one topic; its result is a `Receipts`."""

    def __init__(self, topic: str, source: Source) -> None:
        super().__init__((topic,))
        self.source = source
        self.exhausted = False
        self.in_flight = 0
        self.error: BaseException | None = None
        self.stored_count = 0
        self.first: tuple[int, int] | None = None
        """The sequence number and the offset of the first message that has an offset."""
        self.duplicates = 0

    def stop(self) -> None:
        """No more of the caller's values are looked at."""
        self.source = self.source.ended()

    @property
    def receipts(self) -> Receipts:
        """What has been stored so far."""
        return Receipts(self.topics[0], self.first and self.first[1], self.stored_count, self.duplicates)

    def take(self, part: Part, place: Stored) -> None:
        """A batch has been stored, now or before: answers come in any order, and repeated ones have their offsets."""
        self.in_flight -= 1
        self.stored_count += part.count
        self.duplicates += len(place.repeated)
        places = [(index, offset) for index, offset in place.repeated if offset is not None]
        if place.first_offset is not None:
            repeated = dict(place.repeated)
            places.append((next(i for i in range(part.count) if i not in repeated), place.first_offset))
        if places:
            index, offset = min(places)
            found = (part.targets[0].sequence + index, offset)
            self.first = found if self.first is None else min(self.first, found)
        self.resolve()

    def refuse(self, error: BaseException) -> None:
        """A batch has failed."""
        self.in_flight -= 1
        self.error = self.error or error
        vars(self.error)["receipts"] = self.receipts
        self.resolve()

    def resolve(self) -> None:
        """Finishes or fails once nothing more will come."""
        if self.in_flight or not (self.exhausted or self.error):
            return
        if self.error is None:
            self.future.finish(self.receipts)
        else:
            self.future.fail(self.error)


class TakenFrom(Protocol):
    """A stream of which a transaction has taken messages, which can be taken back."""

    topics: tuple[str, ...]
    unknown: Together | None

    def acknowledged_up_to(self, positions: Sequence[Position]) -> None:
        """The broker has moved the cursor this far."""

    def let_go(self) -> None:
        """What was taken stays taken."""

    def take_back(self) -> None:
        """What was taken comes again."""


class Together(Entry):
    """Messages and acknowledgements that happen together; its result is a list of receipts for each message."""

    def __init__(self, records: Sequence[Record], acknowledgements: tuple[Acknowledgement, ...]) -> None:
        super().__init__(tuple(dict.fromkeys(topic for record in records for topic in record.topics)))
        self.records = records
        self.acknowledgements = acknowledgements
        self.streams: list[TakenFrom] = []
        """Where the messages came from that are acknowledged by this."""

    def happened(self) -> None:
        """All of it is stored: what was taken stays taken."""
        for acknowledgement in self.acknowledgements:
            for stream in self.streams:
                if stream.topics == acknowledgement.topics:
                    stream.acknowledged_up_to(acknowledgement.positions)
        for stream in self.streams:
            stream.let_go()
            stream.unknown = None

    def undone(self) -> None:
        """None of it is stored: what was taken comes again."""
        for stream in self.streams:
            stream.take_back()
            stream.unknown = None

    def unknown(self) -> None:
        """It may be stored: that has to be found out before anything else is taken."""
        for stream in self.streams:
            stream.unknown = self


def columns_of(publisher: str, records: Sequence[Record]) -> Columns:
    """The records as columns; a column that nobody uses is left out."""
    if len(records) == 1:
        [record] = records
        return Columns(
            1,
            publisher,
            [record.value],
            None if record.key is None else [record.key],
            None if record.headers is None else [record.headers],
            None if record.id is None else [record.id],
            record.published_us,
        )
    keys = [record.key for record in records]
    headers = [record.headers for record in records]
    ids = [record.id for record in records]
    times = [record.published_us for record in records]
    return Columns(
        1,
        publisher,
        [record.value for record in records],
        None if keys.count(None) == len(keys) else keys,
        None if headers.count(None) == len(headers) else headers,
        None if ids.count(None) == len(ids) else ids,
        times[0] if times.count(times[0]) == len(times) else times,
    )
