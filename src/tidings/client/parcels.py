"""What an outbox holds: things given to put, the lanes they wait in, and the requests that carry them."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tidings.client.pending import Pending
from tidings.client.rows import Row, Source
from tidings.errors import Unavailable
from tidings.message import Receipt, Receipts
from tidings.protocols.broker.messages import Acknowledgement, Part, Stored

if TYPE_CHECKING:
    from tidings.client.session import Call
    from tidings.client.stream import Stream


class Entry:
    """Something given to an outbox; `pending` has what became of it."""

    count = 0
    """How many waiting messages it stands for."""
    alone = False
    """Whether it goes out without waiting for what is in flight."""
    sequence: int | None = None

    def __init__(self, topics: tuple[str, ...]) -> None:
        self.topics = topics
        self.order = 0
        self.gone = False
        """True once it can no longer be sent again."""
        self.pending: Pending[object] = Pending()


class Single(Entry):
    """One message for one or more topics; its result is a list of receipts, one for each topic."""

    count = 1

    def __init__(self, topics: tuple[str, ...], row: Row, sequence: int | None = None) -> None:
        super().__init__(topics)
        self.row = row
        if sequence is not None:
            self.sequence = sequence
            self.alone = True


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
        self.settle()

    def settle(self) -> None:
        """Finishes or fails once nothing more will come."""
        if self.in_flight or not (self.exhausted or self.error):
            return
        if self.error is None:
            self.pending.finish(self.receipts)
        else:
            self.pending.fail(self.error)


class Together(Entry):
    """Messages and acknowledgements that happen together; its result is a list of receipts for each message."""

    def __init__(
        self,
        topics: tuple[str, ...],
        parts: Sequence[tuple[tuple[str, ...], Sequence[Row]]],
        acknowledgements: tuple[Acknowledgement, ...],
    ) -> None:
        super().__init__(topics)
        self.parts = parts
        self.acknowledgements = acknowledgements
        self.streams: list[Stream] = []
        """Where the messages came from that are acknowledged by this."""

    def happened(self) -> None:
        """All of it is stored: what was taken stays taken."""
        for acknowledgement in self.acknowledgements:
            for stream in self.streams:
                if stream.topics == acknowledgement.topics:
                    stream.acknowledged_up_to(acknowledgement.positions)
        for stream in self.streams:
            stream.let_go()
            stream.doubt = None

    def undone(self) -> None:
        """None of it is stored: what was taken comes again."""
        for stream in self.streams:
            stream.take_back()
            stream.doubt = None

    def unknown(self) -> None:
        """It may be stored: that has to be found out before anything else is taken."""
        for stream in self.streams:
            stream.doubt = self


class Lane:
    """Puts to the same topics, in the order in which they were given."""

    __slots__ = ("count", "in_flight", "rivals", "size_bytes", "topics", "waiting")

    def __init__(self, topics: tuple[str, ...]) -> None:
        self.topics = topics
        self.waiting: deque[Entry] = deque()
        self.in_flight = 0
        self.count = 0
        self.size_bytes = 0
        self.rivals: list[Lane] = []
        """Other lanes with a topic in common."""


class Shipment:
    """One request of an outbox and the entries that it carries."""

    __slots__ = ("acknowledgements", "bodies", "call", "entries", "lane", "parts")

    def __init__(
        self,
        lane: Lane,
        entries: Sequence[Entry],
        parts: tuple[Part, ...],
        bodies: tuple[bytes, ...],
        acknowledgements: tuple[Acknowledgement, ...],
    ) -> None:
        self.lane = lane
        self.entries = entries
        self.parts = parts
        self.bodies = bodies
        self.acknowledgements = acknowledgements
        self.call: Call | None = None

    def fits(self, stored: Sequence[Sequence[Stored]]) -> bool:
        """Whether an answer has a place for every target, and an offset wherever it must have one."""
        parts = self.parts
        if len(stored) != len(parts):
            return False
        for number, places in enumerate(stored):  # Twice as fast as a strict zip of both.
            part = parts[number]
            if len(places) != len(part.targets):
                return False
            for place in places:
                if place.first_offset is None and len(place.repeated) < part.count:
                    return False
        return True

    def finish(self, stored: Sequence[Sequence[Stored]]) -> None:
        """Gives every entry its receipts."""
        first = self.entries[0]
        if isinstance(first, Bulk):
            first.take(self.parts[0], stored[0][0])
        elif isinstance(first, Together):
            receipts = [
                receipt for part, places in zip(self.parts, stored, strict=True) for receipt in _receipts(part, places)
            ]
            first.pending.finish(receipts)
        else:
            receipts_of = _receipts(self.parts[0], stored[0])
            for number, entry in enumerate(self.entries):
                entry.pending.finish(receipts_of[number])

    def fail(self, error: BaseException) -> None:
        """Every entry fails, each with an error object of its own."""
        for entry in self.entries:
            own = type(error)(str(error))
            if isinstance(entry, Bulk):
                entry.in_flight -= 1
                entry.error = entry.error or own
                vars(entry.error)["receipts"] = entry.receipts
                if entry in self.lane.waiting and not isinstance(entry.error, Unavailable):
                    self.lane.waiting.remove(entry)
                entry.settle()
            else:
                entry.pending.fail(own)

    def renew_pendings(self) -> None:
        """Before it is sent again: whoever asks now gets the new outcome."""
        for entry in self.entries:
            if entry.pending.done:
                entry.pending = Pending()
            if isinstance(entry, Bulk):
                entry.error = None
                entry.in_flight += 1


def _receipts(part: Part, places: Sequence[Stored]) -> list[list[Receipt]]:
    """For each message of a part, a receipt for each of its topics."""
    if part.count == 1 and len(places) == 1 and not places[0].repeated:
        assert places[0].first_offset is not None
        return [[Receipt(part.targets[0].topic, places[0].first_offset)]]
    rows: list[list[Receipt]] = [[] for _ in range(part.count)]
    for target, place in zip(part.targets, places, strict=True):
        topic = target.topic
        if not place.repeated:
            assert place.first_offset is not None
            for index, row in enumerate(rows):
                row.append(Receipt(topic, place.first_offset + index))
            continue
        repeated = dict(place.repeated)
        offset = place.first_offset
        for index, row in enumerate(rows):
            if index in repeated:
                row.append(Receipt(topic, repeated[index], True))
            else:
                assert offset is not None
                row.append(Receipt(topic, offset))
                offset += 1
    return rows
