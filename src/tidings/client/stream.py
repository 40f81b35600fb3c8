"""What has come in on one subscription and has not been handed out yet.

Two positions matter for each topic: how far deliveries have been *received* (that is where a new stream
starts) and how far messages have been *handed out* (that is what can be acknowledged). What lies between them
is the buffer. Bodies are decoded when they are about to be handed out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from tidings.client.future import Future
from tidings.client.link import Frame
from tidings.client.puts import Together
from tidings.client.record import Recorder
from tidings.client.request import Request
from tidings.errors import ProtocolError, TidingsError
from tidings.message import Batch, Message
from tidings.protocols.broker.messages import Delivery, Flowing, Position
from tidings.wire.codec import decode_columns


class UnopenedDelivery:
    """A delivery that nobody has looked into yet; what is below `start` was had before."""

    __slots__ = ("attempt", "bodies", "first_offset", "messages", "next_offset", "size_bytes", "start", "topic")

    def __init__(self, delivery: Delivery, bodies: Sequence[Frame], start: int) -> None:
        self.topic = delivery.topic
        self.first_offset = delivery.first_offset
        self.next_offset = delivery.next_offset
        self.attempt = delivery.attempt
        self.start = start
        self.bodies = bodies
        self.messages = delivery.next_offset - start
        self.size_bytes = sum(map(len, bodies))

    def open(self) -> list[Batch]:
        """The batches inside."""
        batches = []
        offset = self.first_offset
        for body in self.bodies:
            batch = Batch(self.topic, offset, decode_columns(body), self.attempt)
            offset = batch.next_offset
            if offset > self.start:
                batches.append(batch.after(self.start))
        if offset != self.next_offset:
            raise ProtocolError(
                f"A delivery of {self.topic!r} should end at {self.next_offset} and ends at {offset}: "
                "is that a tidings broker?"
            )
        return batches


class Stream:
    """The receiving end of one subscription."""

    def __init__(self, topics: tuple[str, ...]) -> None:
        self.topics = topics
        self.number = 0
        """The stream's number in the session; 0 while it is closed."""
        self.received: dict[str, int] = {}
        """How far each topic has been received; a topic is missing until the broker said where it starts."""
        self.error: TidingsError | None = None
        self.owner: str | None = None
        """Who is taking from this stream: "get", "loop" or "transaction"; one at a time."""
        self.unknown: Together | None = None
        """A transaction on this stream of which it is not known whether it happened."""
        self.closed = False
        """True once somebody has ended the subscription object."""
        self.leaving = False
        """True from an unsubscribe on until it is known whether it has happened."""
        self.opened = False
        self.flows: list[Request] = []
        self.probes: list[tuple[Request, Future[None]]] = []
        self.limit_messages = self.limit_bytes = 0
        self.counted_messages = self.counted_bytes = 0
        """What the broker has sent since the stream began, as it counts against the limits."""
        self.buffered_messages = self.buffered_bytes = 0
        self.heard = False
        """Whether anything has come since the last beat."""
        self.handed: dict[str, int] = {}
        """How far the inbox says that messages were handed out, until more are asked for."""
        self.noted: dict[str, int] = {}
        self.acknowledged: dict[str, int] = {}
        self.acking: Request | None = None
        self.began: dict[str, int] = {}
        """Where each topic stood when this session began with it."""
        self.created_epoch = 0
        """Which subscription on these topics it is; 0 until the broker has said so."""
        self.record: Recorder | None = None
        """Where deliveries of this subscription are written down, if that is not where the whole bus does."""
        self.on_return: Callable[[str, range], None] | None = None
        """Is told what has been handed out and comes again."""
        self.marked: tuple[str, int] | None = None
        """A message that is written down as handed out, and stays at the head until it is acknowledged."""
        self._unopened: deque[UnopenedDelivery] = deque()
        self._batches: deque[Batch] = deque()
        self._index = 0
        self._kept: list[Batch] | None = None
        self._kept_index = 0

    # Coming in.

    def begin(self, number: int) -> None:
        """A new stream of this number; what it brings is counted from nothing."""
        self.number = number
        self.counted_messages = self.counted_bytes = 0
        self.limit_messages = self.limit_bytes = 0
        self.error = None

    @property
    def started(self) -> bool:
        """Whether it is known where every topic starts."""
        return len(self.received) == len(self.topics)

    def positions(self) -> tuple[Position, ...]:
        """Where a new stream has to start; nothing for topics that are not known yet."""
        return tuple(Position(topic, offset) for topic, offset in self.received.items())

    def deliver(self, delivery: Delivery, bodies: Sequence[Frame]) -> bool:
        """Takes a delivery of this stream; False if something before it is missing."""
        topic = delivery.topic
        at = self.received.get(topic)
        if at is None:
            return True  # Nothing was granted before the start was known, so this cannot be meant for us.
        if delivery.since > at:
            return False
        unopened = UnopenedDelivery(delivery, bodies, max(at, delivery.first_offset))
        if bodies:  # What is only passed over costs no credit.
            self.counted_messages += delivery.next_offset - delivery.since
            self.counted_bytes += unopened.size_bytes
        self.heard = True
        self.received[topic] = max(at, delivery.next_offset)
        if unopened.messages > 0 and bodies:
            self._unopened.append(unopened)
            self.buffered_messages += unopened.messages
            self.buffered_bytes += unopened.size_bytes
        return True

    def start(self, flowing: Flowing) -> bool:
        """Nothing has been granted yet, so how far the broker has sent is the start; False if a topic is missing."""
        self.created_epoch = flowing.created_epoch
        for position in flowing.sent:
            if position.topic in self.topics:
                self.received.setdefault(position.topic, position.offset)
                self.began.setdefault(position.topic, position.offset)
        return self.started

    def stands(self, sent: Sequence[Position]) -> bool:
        """The broker says how far it has sent; False if some of that has not come."""
        return all(self.received.get(each.topic, each.offset) >= each.offset for each in sent)

    def restart(self) -> None:
        """Forgets everything: the subscription has been made again."""
        self.received.clear()
        self.handed.clear()
        self.noted.clear()
        self.acknowledged.clear()
        self.created_epoch = 0
        self._unopened.clear()
        self._batches.clear()
        self._index = self.buffered_messages = self.buffered_bytes = 0
        self._kept = None
        self.number = 0
        self.opened = False
        self.unknown = None

    # Going out.

    def ready(self) -> bool:
        """Whether a message can be had without waiting."""
        return bool(self._batches or self._unopened)

    def head(self) -> Batch | None:
        """The batch that holds the next message; `index` says where in it."""
        while not self._batches:
            if not self._unopened:
                return None
            unopened = self._unopened[0]
            self._batches.extend(unopened.open())
            self._unopened.popleft()
            self.buffered_bytes -= unopened.size_bytes
            self._index = 0
        return self._batches[0]

    def holds(self, batch: Batch) -> bool:
        """Whether this very batch is the head."""
        return bool(self._batches) and self._batches[0] is batch

    @property
    def index(self) -> int:
        """The place of the next message in the head."""
        return self._index

    def peek(self) -> Message | None:
        """The next message, which stays."""
        batch = self.head()
        return None if batch is None else batch[self._index]

    def rest(self) -> Batch | None:
        """What is left of the head; it stays."""
        batch = self.head()
        if batch is None or not self._index:
            return batch
        batch = self._batches[0] = batch.after(batch.first_offset + self._index)
        self._index = 0
        return batch

    def advance(self, count: int) -> None:
        """The next `count` messages of the head have been handed out."""
        if not count:
            return
        batch = self._batches[0]
        self._index += count
        self.buffered_messages -= count
        assert self._index <= len(batch.values)
        if self._index == len(batch.values):
            self._batches.popleft()
            self._index = 0
            if self._kept is not None:
                self._kept.append(batch)

    def note(self, topic: str, next_offset: int) -> None:
        """Everything of the topic below `next_offset` has been dealt with."""
        if next_offset > self.noted.get(topic, 0):
            self.noted[topic] = next_offset

    def note_handed(self) -> None:
        """What was handed out has been dealt with."""
        while self.handed:
            self.note(*self.handed.popitem())

    def acknowledged_up_to(self, positions: Sequence[Position]) -> None:
        """The broker has moved the cursor this far."""
        for position in positions:
            self.note(position.topic, position.offset)
            if position.offset > self.acknowledged.get(position.topic, 0):
                self.acknowledged[position.topic] = position.offset

    # Taking back.

    def keep(self) -> None:
        """From here on what is handed out can be taken back."""
        self.rest()
        self._kept = []

    def let_go(self) -> None:
        """What was handed out since `keep` stays handed out."""
        self._kept = None

    def take_back(self) -> None:
        """What was handed out since `keep` comes again, in the same order."""
        if self._kept is None:
            return
        if self.on_return is not None:
            for batch in self._kept:
                self.on_return(batch.topic, range(batch.first_offset, batch.next_offset))
            if self._index:
                first = self._batches[0].first_offset
                self.on_return(self._batches[0].topic, range(first, first + self._index))
        self.buffered_messages += sum(map(len, self._kept)) + self._index
        self._batches.extendleft(reversed(self._kept))
        self._index = 0
        self._kept = None
