"""What one name publishes: sequence numbers, natural batching, and puts whose outcome is unknown.

Puts to the same topics share a *queue*. A put goes out at once when nothing of its queue is in flight; what
piles up meanwhile goes out together as one batch when the answer comes. Full batches do not wait: up to
`in_flight_max` of them are in flight. Queues that share a topic keep the order in which things were given.

Sequence numbers are given for each topic at the moment of sending. They start from the broker's answer to
AskSequence, from 1 for a name that is made up. After a refusal the topic's number is *unsure* and is asked
for again before anything else goes there; it is asked for only when nothing for that topic is in flight.

A put that ended as Unavailable has an *unknown outcome*: it may be stored, and a copy of it may even arrive later.
It can be sent again as it was. Once something else is put to the same topic that is over: the session takes a new
epoch, which fences every late copy, and only then asks for the number. Without the new epoch a late copy
could take the number that the new message was given, and the new message would be lost as a repetition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from tidings.client.batches import LAST, Batch, Queue
from tidings.client.future import Future, failed
from tidings.client.puts import Bulk, Entry, Record, Together, columns_of
from tidings.client.request import Asks, Identity, Request
from tidings.errors import Fenced, OutOfSequence, Overloaded, ProtocolError, TidingsError, Unavailable
from tidings.protocols.broker import messages
from tidings.protocols.broker.messages import AnyAnswer, AskSequence, Part, Target
from tidings.wire.codec import encode

UNSURE = 0


class Outbox:
    """Everything that one name publishes in a session."""

    def __init__(self, session: Asks, identity: Identity) -> None:
        self._session = session
        self._identity = identity
        self._next: dict[str, int] = {}
        """The sequence number after the last one given to a message of a topic."""
        self._unsure: dict[str, None] = {}
        """Topics whose next number has to be asked for."""
        self._asking: dict[str, Request] = {}
        self._queues: dict[tuple[str, ...], Queue] = {}
        self._queues_of: dict[str, list[Queue]] = {}
        """topic -> the queues that lead to it."""
        self._given = 0
        self._unknown: list[Batch] = []
        """Sent, and perhaps stored: no answer came."""
        self._unsent: list[Entry] = []
        """Never sent, because no answer came to what was before them."""
        self.waiting_count = 0

    # What the session's users call.

    @property
    def idle(self) -> bool:
        """Whether everything that was given has been answered."""
        return not any(queue.waiting or queue.in_flight for queue in self._queues.values())

    @property
    def has_room(self) -> bool:
        """Whether one more message may be given."""
        return self.waiting_count < self._session.settings.waiting_messages_max

    def give(self, entry: Entry) -> None:
        """Takes something to be published; its `future` will have the receipts."""
        entry.future = Future()
        if self._identity.fenced is not None:
            entry.future.fail(_again(self._identity.fenced))
            return
        if not self.has_room and not isinstance(entry, Bulk):
            most = self._session.settings.waiting_messages_max
            entry.future.fail(Overloaded(f"{most} messages are waiting to be sent: wait for some of them first."))
            return
        if self._unknown or self._unsent:
            self._abandon(entry.topics)
        self._given += 1
        entry.order = self._given
        queue = self._queues.get(entry.topics) or self._new_queue(entry.topics)
        queue.add(entry)
        self.waiting_count += entry.count
        self._pump_queue(queue)

    def resend(self, entry: Entry) -> Future[object]:
        """Sends something of unknown outcome again as it was, with all such things for the same topics."""
        if entry.gone:
            topics = ", ".join(entry.topics)
            return failed(
                OutOfSequence(
                    f"Something else has been put to {topics} since, so this cannot be sent again as it was: "
                    "look whether it was stored before you put it again."
                )
            )
        if isinstance(entry.future.error, Unavailable):
            if entry.topics:
                self._send_again(*self._tied_to(entry.topics))
            else:  # A transaction that only took is tied to nothing.
                self._send_again(
                    [batch for batch in self._unknown if entry in batch.entries],
                    [each for each in self._unsent if each is entry],
                )
        return entry.future

    def fence_unknown(self, topic: str) -> None:
        """Makes sure that nothing which was put to the topic can still be stored without our knowing."""
        if self._unknown or self._unsent:
            self._abandon((topic,))

    def is_quiet(self, topic: str) -> bool:
        """Whether nothing is on its way to the topic."""
        return not any(queue.in_flight or queue.waiting for queue in self._queues_of.get(topic, ()))

    def has_unknown(self, topic: str) -> bool:
        """Whether something that may be stored in the topic has not been answered."""
        return any(topic in batch.topics for batch in self._unknown)

    def last_sequence(self, topic: str) -> Request:
        """Asks the broker for the last sequence number that the topic took from this name."""
        name = self._identity.name
        return self._session.request(
            self._session.now_ms,
            lambda number, epoch: AskSequence(number, name, epoch, topic),
            identity=self._identity,
        )

    def pump(self) -> None:
        """Sends what may be sent."""
        for queue in list(self._queues.values()):
            if queue.waiting:
                self._pump_queue(queue)

    def fail_waiting(self, error: Callable[[], TidingsError]) -> None:
        """What has not been sent fails too; it is kept for being sent again."""
        self._asking.clear()
        unsent = [entry for queue in self._queues.values() for entry in queue.clear()]
        self.waiting_count = 0
        for entry in unsent:
            entry.future.fail(error())
        # What of many messages has not been sent goes with those of them that were, whatever the error.
        kept = isinstance(error(), Unavailable)
        self._unsent.extend(each for each in unsent if kept or self._is_partly_unknown(each))

    # Queues.

    def _new_queue(self, topics: tuple[str, ...]) -> Queue:
        queue = self._queues[topics] = Queue(topics)
        for topic in topics:
            others = self._queues_of.setdefault(topic, [])
            for other in others:
                if other not in queue.overlapping:
                    other.overlapping.append(queue)
                    queue.overlapping.append(other)
            others.append(queue)
        return queue

    def _pump_queue(self, queue: Queue) -> None:
        moved = False
        while queue.waiting and self._may_send(queue) and self._sure(queue):
            moved = True
            entry = queue.waiting[0]
            if isinstance(entry, Record):
                self._send_records(queue)
            elif isinstance(entry, Bulk):
                self._send_bulk(queue, entry)
            else:
                assert isinstance(entry, Together)
                self._send_together(queue, entry)
        if moved:  # Others may have waited for what has gone.
            for other in queue.overlapping:
                if other.waiting:
                    self._pump_queue(other)

    def _may_send(self, queue: Queue) -> bool:
        first = queue.waiting[0]
        if queue.overlapping and first.order > queue.oldest_beside():
            return False
        if queue.in_flight == 0:
            return True
        settings = self._session.settings
        if queue.in_flight >= settings.in_flight_max:
            return False
        full = queue.count >= settings.batch_messages or queue.size_bytes >= settings.batch_bytes
        return full or first.sequence is not None or isinstance(first, Bulk)

    # Sequence numbers.

    def _sure(self, queue: Queue) -> bool:
        """Whether every topic's next number is known; asks for those that are not."""
        if queue.waiting[0].sequence is not None:
            return True
        sure = True
        for topic in queue.topics:
            if self._number(topic) == UNSURE:
                sure = False
                self._ask(topic)
        return sure

    def _number(self, topic: str) -> int:
        if topic in self._unsure:
            return UNSURE
        return self._next.get(topic, 1 if self._identity.anonymous else UNSURE)

    def _ask(self, topic: str) -> None:
        if topic in self._asking or self._session.failing:
            return
        if any(queue.in_flight for queue in self._queues_of.get(topic, ())):
            return  # What is in flight might still change the answer; its own answer brings us back here.
        request = self._asking[topic] = self.last_sequence(topic)
        request.future.then(partial(self._on_sequence, topic, request))

    def _on_sequence(self, topic: str, request: Request, answered: Future[AnyAnswer]) -> None:
        if self._asking.get(topic) is not request:
            return
        del self._asking[topic]
        error = answered.error
        if error is None:
            answer = answered.outcome()
            if isinstance(answer, messages.Sequence):
                self._next[topic] = answer.last + 1
                self._unsure.pop(topic, None)
                for queue in self._queues_of.get(topic, ()):
                    self._pump_queue(queue)
                return
            error = ProtocolError("The broker answered something other than was asked: is that a tidings broker?")
        if not isinstance(error, Unavailable):  # Whatever waits for this number has no use for another try.
            for queue in self._queues_of.get(topic, ()):
                self.waiting_count -= queue.count
                for entry in queue.clear():
                    entry.future.fail(_again(error))
            self.pump()

    # Batches.

    def _send_records(self, queue: Queue) -> None:
        records = queue.take(*(self._batch_limits() if len(queue.waiting) > 1 else (0, 1)))
        self.waiting_count -= len(records)
        body = encode(columns_of(self._identity.name, records))
        explicit = records[0].sequence
        if explicit is not None:
            self._next[queue.topics[0]] = explicit
            self._unsure.pop(queue.topics[0], None)
        self._send(queue, records, (self._numbered(queue.topics, len(records)),), (body,))

    def _batch_limits(self) -> tuple[int, int]:
        """How many bytes and messages go into one batch: what the settings say and the broker takes."""
        settings, limits = self._session.settings, self._session.limits
        if limits is None:
            return settings.batch_bytes, settings.batch_messages
        return (
            min(settings.batch_bytes, limits.batch_bytes_max * 7 // 8),
            min(settings.batch_messages, limits.batch_messages_max),
        )

    def _send_bulk(self, queue: Queue, bulk: Bulk) -> None:
        bytes_max, messages_max = self._batch_limits()
        limits = self._session.limits
        message_max = 1 << 62 if limits is None else limits.message_bytes_max
        try:
            taken = bulk.source.take(self._identity.name, messages_max, bytes_max, message_max)
        except Exception as error:  # noqa: BLE001 - the caller's iterable may raise anything, and gets it back.
            bulk.error = error
            taken = None
        if taken is None:
            queue.waiting.popleft()
            bulk.exhausted = True
            bulk.resolve()
            return
        count, body = taken
        bulk.in_flight += 1
        self._send(queue, [bulk], (self._numbered(queue.topics, count),), (body,))

    def _send_together(self, queue: Queue, entry: Together) -> None:
        queue.waiting.popleft()
        bytes_max, messages_max = self._batch_limits()
        pieces: list[list[Record]] = []
        size_bytes = 0
        for record in entry.records:
            size_bytes += record.size_bytes
            piece = pieces[-1] if pieces else []
            if piece and piece[0].topics == record.topics and len(piece) < messages_max and size_bytes <= bytes_max:
                piece.append(record)
            else:
                pieces.append([record])
                size_bytes = record.size_bytes
        parts = tuple(self._numbered(piece[0].topics, len(piece)) for piece in pieces)
        bodies = tuple(encode(columns_of(self._identity.name, piece)) for piece in pieces)
        self._send(queue, [entry], parts, bodies)

    def _numbered(self, topics: Iterable[str], count: int) -> Part:
        """The next numbers of these topics, for so many messages."""
        targets = []
        for topic in topics:
            first = self._number(topic)
            self._next[topic] = first + count
            targets.append(Target(topic, first))
        return Part(tuple(targets), count)

    def _send(self, queue: Queue, entries: Sequence[Entry], parts: tuple[Part, ...], bodies: tuple[bytes, ...]) -> None:
        batch = Batch(queue, entries, parts, self._on_answer)
        batch.request = Request(self._identity, batch.make, bodies, batch)
        self._submit(batch)

    def _submit(self, batch: Batch) -> None:
        batch.queue.in_flight += 1
        batch.request.tries = 1
        self._session.submit(batch.request)

    def _on_answer(self, batch: Batch, answer: AnyAnswer | None, error: BaseException | None) -> None:
        queue = batch.queue
        queue.in_flight -= 1
        if error is not None:
            if self._ask_again(batch, error):
                return
        else:
            assert answer is not None
            stored = batch.places(answer)
            if stored is not None:
                del batch.request  # Each holds the other: so both go now, not when garbage is collected.
                batch.resolve(stored)
                if batch.entries[0].sequence is not None and stored[0][0].repeated:
                    self._mark_unsure(batch)  # A repetition of an older number says nothing about the next one.
                if queue.waiting or queue.overlapping:
                    self._after(queue)
                return
            error = ProtocolError("The broker's answer does not fit what was put: is that a tidings broker?")
        self._mark_unsure(batch)
        if isinstance(error, Unavailable) or self._is_partly_unknown(batch.entries[0]):
            self._unknown.append(batch)
        batch.refuse(error)
        if not self._session.failing:
            self._after(queue)

    def _ask_again(self, batch: Batch, error: BaseException) -> bool:
        """Of several copies one was refused, and another may have been stored or still be on its way.

        A new epoch fences the others; in it the same request gets the final answer, stored before or refused.
        """
        if isinstance(error, (Unavailable, Fenced)) or batch.request.copies_in_epoch < 2:
            return False
        self._identity.renew = True
        self._submit(batch)
        return True

    def _after(self, queue: Queue) -> None:
        self._pump_queue(queue)
        for other in queue.overlapping:
            self._pump_queue(other)

    def _mark_unsure(self, batch: Batch) -> None:
        for part in batch.parts:
            for target in part.targets:
                self._unsure[target.topic] = None

    # Unknown outcomes.

    def _is_partly_unknown(self, entry: Entry) -> bool:
        """Whether the outcome of some of these many messages is unknown: they can only be sent again together."""
        return isinstance(entry, Bulk) and any(entry in batch.entries for batch in self._unknown)

    def _tied_to(self, topics: Iterable[str]) -> tuple[list[Batch], list[Entry]]:
        """What is unknown or unsent for these topics, and for others that are tied to them by a common put."""
        tied = dict.fromkeys(topics)
        known = 0
        while known < len(tied):
            known = len(tied)
            for names in [batch.topics for batch in self._unknown] + [entry.topics for entry in self._unsent]:
                if any(topic in tied for topic in names):
                    tied.update(dict.fromkeys(names))
        return (
            [batch for batch in self._unknown if any(topic in tied for topic in batch.topics)],
            [entry for entry in self._unsent if any(topic in tied for topic in entry.topics)],
        )

    def _abandon(self, topics: tuple[str, ...]) -> None:
        """Something new goes to these topics, so what is unknown there can no longer be sent again."""
        batches, unsent = self._tied_to(topics)
        if any(isinstance(batch.entries[0], Together) for batch in batches):
            self._send_again(batches, unsent)  # A transaction is brought to its end before anything follows it.
            return
        batches = [batch for batch in batches if any(topic in batch.topics for topic in topics)]
        if batches:
            self._identity.renew = True
        for entry in [entry for batch in batches for entry in batch.entries] + unsent:
            entry.gone = entry.gone or any(topic in entry.topics for topic in topics)
        self._unknown = [batch for batch in self._unknown if batch not in batches]
        self._unsent = [entry for entry in self._unsent if not entry.gone]

    def _send_again(self, batches: list[Batch], unsent: list[Entry]) -> None:
        """Sends what is unknown again as it was, in its order, and then what was never sent."""
        self._unknown = [batch for batch in self._unknown if batch not in batches]
        self._unsent = [entry for entry in self._unsent if entry not in unsent]
        for entry in unsent:
            entry.renew()
        for batch in batches:
            batch.renew()
        # What has no number yet has not been sent, and comes last.
        for batch in sorted(batches, key=lambda batch: batch.request.number or LAST):
            for part in batch.parts:
                for target in part.targets:
                    self._unsure.pop(target.topic, None)  # With these the numbers given so far will be taken.
            self._submit(batch)
        for entry in unsent:
            self._queues[entry.topics].add(entry)
            self.waiting_count += entry.count
        self.pump()


def _again(error: BaseException) -> BaseException:
    """The same error as an object of its own, for one more who gets it."""
    return type(error)(str(error))
