"""What an outbox makes of what it is given: queues in which it waits, and batches that carry it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from tidings.client.puts import Bulk, Entry, Record, Together
from tidings.client.request import Request
from tidings.errors import Unavailable
from tidings.message import Receipt
from tidings.protocols.broker.messages import AnyAnswer, Commit, CommitDone, Part, Put, PutDone, Stored

LAST = 1 << 62
"""Comes after every order number."""


class Queue:
    """Puts to the same topics that wait, in the order in which they were given."""

    __slots__ = ("count", "in_flight", "overlapping", "size_bytes", "topics", "waiting")

    def __init__(self, topics: tuple[str, ...]) -> None:
        self.topics = topics
        self.waiting: deque[Entry] = deque()
        self.count = self.size_bytes = 0
        """Of the messages that wait, without those of put_many and of transactions."""
        self.in_flight = 0
        """How many of its batches are not answered."""
        self.overlapping: list[Queue] = []
        """Other queues with a topic in common."""

    def add(self, entry: Entry) -> None:
        """Takes in something that has to wait."""
        self.waiting.append(entry)
        self.count += entry.count
        self.size_bytes += entry.size_bytes

    def oldest_beside(self) -> int:
        """The order number of the oldest thing that waits in an overlapping queue: nothing newer may go before it."""
        return min((queue.waiting[0].order for queue in self.overlapping if queue.waiting), default=LAST)

    def take(self, bytes_max: int, messages_max: int) -> list[Record]:
        """The records at the head: as many as fit into one batch, and do not have to wait for another queue."""
        waiting, before = self.waiting, self.oldest_beside() if self.overlapping else LAST
        taken: list[Record] = []
        size_bytes = 0
        while waiting and len(taken) < messages_max:
            entry = waiting[0]
            if not isinstance(entry, Record):
                break
            size_bytes += entry.size_bytes
            if taken and (size_bytes > bytes_max or entry.sequence is not None or entry.order > before):
                size_bytes -= entry.size_bytes
                break
            taken.append(entry)
            waiting.popleft()
            if entry.sequence is not None:
                break
        self.count -= len(taken)
        self.size_bytes -= size_bytes
        return taken

    def clear(self) -> list[Entry]:
        """Everything that waits, which no longer does."""
        waiting = list(self.waiting)
        self.waiting.clear()
        self.count = self.size_bytes = 0
        return waiting


class Batch:
    """What one request carries, under which numbers: records, the next of many, or a transaction."""

    __slots__ = ("_on_answer", "entries", "parts", "queue", "request")

    request: Request

    def __init__(
        self,
        queue: Queue,
        entries: Sequence[Entry],
        parts: tuple[Part, ...],
        on_answer: Callable[[Batch, AnyAnswer | None, BaseException | None], None],
    ) -> None:
        self.queue = queue
        self.entries = entries
        self.parts = parts
        self._on_answer = on_answer

    @property
    def topics(self) -> tuple[str, ...]:
        """Where it leads."""
        return self.queue.topics

    # What its request calls.

    def make(self, number: int, epoch: int) -> Put | Commit:
        """The request's head."""
        first, name = self.entries[0], self.request.identity.name
        if isinstance(first, Together):
            return Commit(number, name, epoch, self.parts, first.acknowledgements)
        return Put(number, name, epoch, self.parts[0])

    def finish(self, answer: AnyAnswer, /) -> None:
        """The broker has answered."""
        self._on_answer(self, answer, None)

    def fail(self, error: BaseException, /) -> None:
        """It was refused, or no answer came."""
        self._on_answer(self, None, error)

    # What its outbox calls.

    def places(self, answer: AnyAnswer) -> Sequence[Sequence[Stored]] | None:
        """Where the answer says that everything is stored; None if it does not fit what was sent."""
        parts = self.parts
        if isinstance(answer, PutDone):
            stored: Sequence[Sequence[Stored]] = (answer.stored,)
        elif isinstance(answer, CommitDone):
            stored = answer.stored
        else:
            return None
        if len(stored) != len(parts):
            return None
        for number, places in enumerate(stored):  # Twice as fast as a strict zip of both.
            part = parts[number]
            if len(places) != len(part.targets):
                return None
            for place in places:
                if place.first_offset is None and len(place.repeated) < part.count:
                    return None
        return stored

    def resolve(self, stored: Sequence[Sequence[Stored]]) -> None:
        """Gives every entry its receipts."""
        first = self.entries[0]
        if isinstance(first, Bulk):
            first.take(self.parts[0], stored[0][0])
        elif isinstance(first, Together):
            both = zip(self.parts, stored, strict=True)
            first.future.finish([receipts for part, places in both for receipts in _receipts(part, places)])
        else:
            receipts_of = _receipts(self.parts[0], stored[0])
            for number, entry in enumerate(self.entries):
                entry.future.finish(receipts_of[number])

    def refuse(self, error: BaseException) -> None:
        """Every entry fails, each with an error object of its own."""
        for entry in self.entries:
            own = type(error)(str(error))
            if isinstance(entry, Bulk):
                if entry in self.queue.waiting and not isinstance(entry.error or own, Unavailable):
                    self.queue.waiting.remove(entry)
                entry.refuse(own)
            else:
                entry.future.fail(own)

    def renew(self) -> None:
        """Before it is sent again: from now on its caller gets the new outcome."""
        for entry in self.entries:
            entry.renew()
            if isinstance(entry, Bulk):
                entry.error = None
                entry.in_flight += 1


def _receipts(part: Part, places: Sequence[Stored]) -> list[list[Receipt]]:
    """For each message of a part, a receipt for each of its topics."""
    if len(places) == 1 and not places[0].repeated:
        first_offset, topic = places[0].first_offset, part.targets[0].topic
        assert first_offset is not None
        return [[Receipt(topic, offset)] for offset in range(first_offset, first_offset + part.count)]
    rows: list[list[Receipt]] = [[] for _ in range(part.count)]
    for target, place in zip(part.targets, places, strict=True):
        repeated = dict(place.repeated)
        offset = place.first_offset
        for index, row in enumerate(rows):
            if index in repeated:
                row.append(Receipt(target.topic, repeated[index], True))
            else:
                assert offset is not None
                row.append(Receipt(target.topic, offset))
                offset += 1
    return rows
