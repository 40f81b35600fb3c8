"""What one name publishes: sequence numbers, natural batching, and puts that ended in doubt.

Puts to the same topics share a *lane*. A put goes out at once when nothing of its lane is in flight; what
piles up meanwhile goes out together as one batch when the answer comes. Full batches do not wait: up to
`in_flight_max` of them are in flight. Lanes that share a topic keep the order in which things were given.

Sequence numbers are given for each topic at the moment of sending. They start from the broker's answer to
AskSequence, from 1 for a name that is made up. After a refusal the topic's number is *unsure* and is asked
for again before anything else goes there; it is asked for only when nothing for that topic is in flight.

A put that ended as Unavailable is *in doubt*: it may be stored, and a copy of it may even arrive later. It
can be sent again as it was. Once something else is put to the same topic that is over: the session takes a new
epoch, which fences every late copy, and only then asks for the number. Without the new epoch a late copy
could take the number that the new message was given, and the new message would be lost as a repetition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING

from tidings.client.doubt import holds_transaction, related, with_entry
from tidings.client.parcels import Bulk, Entry, Lane, Shipment, Single, Together
from tidings.client.pending import Pending
from tidings.client.rows import columns_of
from tidings.errors import Fenced, OutOfSequence, Overloaded, ProtocolError, TidingsError, Unavailable
from tidings.protocols.broker.messages import (
    AnyAnswer,
    AskSequence,
    Commit,
    CommitDone,
    Part,
    Put,
    PutDone,
    Sequence,
    Stored,
    Target,
)
from tidings.wire.codec import encode

if TYPE_CHECKING:
    from tidings.client.session import Identity, Session

UNSURE = 0


class Outbox:
    """Everything that one name publishes in a session."""

    def __init__(self, session: Session, identity: Identity) -> None:
        self._session = session
        self._identity = identity
        self._next: dict[str, int] = {}
        """The sequence number after the last one given to a message of a topic."""
        self._unsure: dict[str, None] = {}
        """Topics whose next number has to be asked for."""
        self._asking: dict[str, Pending[AnyAnswer]] = {}
        self._lanes: dict[tuple[str, ...], Lane] = {}
        self._lanes_of: dict[str, list[Lane]] = {}
        """topic -> the lanes that lead to it."""
        self._given = 0
        self._doubt: list[Shipment] = []
        self._unsent: list[Entry] = []
        self.waiting_count = 0

    # What the session's users call.

    @property
    def idle(self) -> bool:
        """Whether everything that was given has been answered."""
        return not any(lane.waiting or lane.in_flight for lane in self._lanes.values())

    @property
    def has_room(self) -> bool:
        """Whether one more message may be given."""
        return self.waiting_count < self._session.settings.waiting_messages_max

    def give(self, entry: Entry) -> None:
        """Takes something to be published; its `pending` will have the receipts."""
        if self._identity.fenced is not None:
            entry.pending.fail(type(self._identity.fenced)(str(self._identity.fenced)))
            return
        if not self.has_room and not isinstance(entry, Bulk):
            most = self._session.settings.waiting_messages_max
            entry.pending.fail(Overloaded(f"{most} messages are waiting to be sent: wait for some of them first."))
            return
        if self._doubt or self._unsent:
            self._abandon(entry.topics)
        self._given += 1
        entry.order = self._given
        lane = self._lane(entry.topics)
        self._wait_in(lane, entry)
        self._pump_lane(lane)

    def resend(self, entry: Entry) -> Pending[object]:
        """Sends something in doubt again as it was, with all that is in doubt for the same topics."""
        if entry.gone:
            failed: Pending[object] = Pending()
            topics = ", ".join(entry.topics)
            failed.fail(
                OutOfSequence(
                    f"Something else has been put to {topics} since, so this cannot be sent again as it was: "
                    "look whether it was stored before you put it anew."
                )
            )
            return failed
        if isinstance(entry.pending.error, Unavailable):
            self._send_again(*with_entry(self._doubt, self._unsent, entry))
        return entry.pending

    def end_doubt(self, topic: str) -> None:
        """Makes sure that nothing which was put to the topic can still be stored without our knowing."""
        if self._doubt or self._unsent:
            self._abandon((topic,))

    def is_quiet(self, topic: str) -> bool:
        """Whether nothing is on its way to the topic."""
        return not any(lane.in_flight or lane.waiting for lane in self._lanes_of.get(topic, ()))

    def in_doubt(self, topic: str) -> bool:
        """Whether something that may be stored in the topic has not been answered."""
        return any(topic in shipment.lane.topics for shipment in self._doubt)

    def last_sequence(self, topic: str) -> Pending[AnyAnswer]:
        """Asks the broker for the last sequence number that the topic took from this name."""
        call = self._session.request(self._session.now_ms, self._ask_sequence(topic), identity=self._identity)
        return call.pending

    def pump(self) -> None:
        """Sends what may be sent."""
        for lane in list(self._lanes.values()):
            if lane.waiting:
                self._pump_lane(lane)

    def fail_waiting(self, error: Callable[[], TidingsError]) -> None:
        """What has not been sent fails too; it is kept for being sent again."""
        self._asking.clear()
        unsent: list[Entry] = []
        for lane in self._lanes.values():
            unsent.extend(lane.waiting)
            lane.waiting.clear()
            lane.count = lane.size_bytes = 0
        self.waiting_count = 0
        for entry in unsent:
            entry.pending.fail(error())
        # What of many messages has not been sent goes with those of them that are in doubt, whatever the error.
        kept = isinstance(error(), Unavailable)
        self._unsent.extend(each for each in unsent if kept or any(each in doubt.entries for doubt in self._doubt))

    # Lanes.

    def _lane(self, topics: tuple[str, ...]) -> Lane:
        lane = self._lanes.get(topics)
        if lane is None:
            lane = self._lanes[topics] = Lane(topics)
            for topic in topics:
                others = self._lanes_of.setdefault(topic, [])
                for other in others:
                    if other not in lane.rivals:
                        other.rivals.append(lane)
                        lane.rivals.append(other)
                others.append(lane)
        return lane

    def _wait_in(self, lane: Lane, entry: Entry) -> None:
        lane.waiting.append(entry)
        if isinstance(entry, Single):
            lane.count += 1
            lane.size_bytes += entry.row.size_bytes
        self.waiting_count += entry.count

    def _pump_lane(self, lane: Lane) -> None:
        moved = False
        while lane.waiting and self._may_send(lane) and self._sure(lane.topics, lane.waiting[0]):
            moved = True
            entry = lane.waiting[0]
            if isinstance(entry, Single):
                self._send_singles(lane)
            elif isinstance(entry, Bulk):
                self._send_bulk(lane, entry)
            elif isinstance(entry, Together):
                self._send_together(lane, entry)
            else:
                raise AssertionError(entry)
        if moved:  # Others may have waited for what has gone.
            for rival in lane.rivals:
                if rival.waiting:
                    self._pump_lane(rival)

    def _may_send(self, lane: Lane) -> bool:
        if lane.rivals and lane.waiting[0].order > _oldest(lane.rivals):
            return False
        if lane.in_flight == 0:
            return True
        settings = self._session.settings
        if lane.in_flight >= settings.in_flight_max:
            return False
        full = lane.count >= settings.batch_messages or lane.size_bytes >= settings.batch_bytes
        return full or isinstance(lane.waiting[0], Bulk) or lane.waiting[0].alone

    def _sure(self, topics: Iterable[str], entry: Entry) -> bool:
        """Whether every topic's next number is known; asks for those that are not."""
        if isinstance(entry, Single) and entry.sequence is not None:
            return True
        sure = True
        for topic in topics:
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
        if any(lane.in_flight for lane in self._lanes_of.get(topic, ())):
            return  # What is in flight might still change the answer; its own answer brings us back here.
        asked = self._asking[topic] = Pending()
        call = self._session.request(self._session.now_ms, self._ask_sequence(topic), identity=self._identity)
        call.pending.then(lambda p: self._on_sequence(topic, asked, p))

    def _ask_sequence(self, topic: str) -> Callable[[int, int], AskSequence]:
        return lambda number, epoch: AskSequence(number, self._identity.name, epoch, topic)

    def _on_sequence(self, topic: str, asked: Pending[AnyAnswer], answered: Pending[AnyAnswer]) -> None:
        if self._asking.get(topic) is not asked:
            return
        del self._asking[topic]
        error = answered.error
        if error is None:
            answer = answered.outcome()
            if isinstance(answer, Sequence):
                self._next[topic] = answer.last + 1
                self._unsure.pop(topic, None)
                self._pump_topic(topic)
                return
            error = ProtocolError("The broker's answer is not the one that was asked for: is that a tidings broker?")
        if not isinstance(error, Unavailable):  # Whatever waits for this number has no use for another try.
            for lane in self._lanes_of.get(topic, ()):
                waiting = list(lane.waiting)
                lane.waiting.clear()
                lane.count = lane.size_bytes = 0
                for entry in waiting:
                    self.waiting_count -= entry.count
                    entry.pending.fail(type(error)(str(error)))
            self.pump()

    def _pump_topic(self, topic: str) -> None:
        for lane in self._lanes_of.get(topic, ()):
            self._pump_lane(lane)

    # Shipments.

    def _send_singles(self, lane: Lane) -> None:
        taken = self._take_singles(lane)
        rows = [entry.row for entry in taken]
        count = len(rows)
        lane.count -= count
        for row in rows:
            lane.size_bytes -= row.size_bytes
        self.waiting_count -= count
        body = encode(columns_of(self._identity.name, rows))
        explicit = taken[0].sequence
        if explicit is not None:
            self._next[lane.topics[0]] = explicit
            self._unsure.pop(lane.topics[0], None)
        part = Part(self._number_rows(lane.topics, count), count)
        self._ship(Shipment(lane, taken, (part,), (body,), ()))

    def _take_singles(self, lane: Lane) -> list[Single]:
        """As many as fit into one batch, and do not have to wait for another lane."""
        waiting = lane.waiting
        first = waiting.popleft()
        assert isinstance(first, Single)
        taken = [first]
        if not waiting or first.sequence is not None:
            return taken
        bytes_max, messages_max = self._batch_limits()
        before = _oldest(lane.rivals) if lane.rivals else None
        size = first.row.size_bytes
        while waiting and len(taken) < messages_max:
            entry = waiting[0]
            if not isinstance(entry, Single) or entry.sequence is not None:
                break
            size += entry.row.size_bytes
            if size > bytes_max or (before is not None and entry.order > before):
                break
            taken.append(entry)
            waiting.popleft()
        return taken

    def _batch_limits(self) -> tuple[int, int]:
        """How many bytes and messages go into one batch: what the settings say and the broker takes."""
        settings, limits = self._session.settings, self._session.limits
        if limits is None:
            return settings.batch_bytes, settings.batch_messages
        return (
            min(settings.batch_bytes, limits.batch_bytes_max * 7 // 8),
            min(settings.batch_messages, limits.batch_messages_max),
        )

    def _send_bulk(self, lane: Lane, bulk: Bulk) -> None:
        bytes_max, messages_max = self._batch_limits()
        limits = self._session.limits
        message_max = 1 << 62 if limits is None else limits.message_bytes_max
        try:
            taken = bulk.source.take(self._identity.name, messages_max, bytes_max, message_max)
        except Exception as error:  # noqa: BLE001 - the caller's iterable may raise anything, and gets it back.
            bulk.error = error
            taken = None
        if taken is None:
            lane.waiting.popleft()
            bulk.exhausted = True
            bulk.settle()
            return
        count, body = taken
        part = Part(self._number_rows(lane.topics, count), count)
        bulk.in_flight += 1
        self._ship(Shipment(lane, [bulk], (part,), (body,), ()))

    def _send_together(self, lane: Lane, entry: Together) -> None:
        lane.waiting.popleft()
        self.waiting_count -= entry.count
        parts = []
        bodies = []
        for topics, rows in entry.parts:
            parts.append(Part(self._number_rows(topics, len(rows)), len(rows)))
            bodies.append(encode(columns_of(self._identity.name, rows)))
        self._ship(Shipment(lane, [entry], tuple(parts), tuple(bodies), entry.acknowledgements))

    def _number_rows(self, topics: Iterable[str], count: int) -> tuple[Target, ...]:
        targets = []
        for topic in topics:
            first = self._number(topic)
            self._next[topic] = first + count
            targets.append(Target(topic, first))
        return tuple(targets)

    def _ship(self, shipment: Shipment) -> None:
        name, parts = self._identity.name, shipment.parts
        if isinstance(shipment.entries[0], Together):
            acknowledgements = shipment.acknowledgements
            call = self._session.request(
                self._session.now_ms,
                lambda number, epoch: Commit(number, name, epoch, parts, acknowledgements),
                shipment.bodies,
                self._identity,
            )
        else:
            call = self._session.request(
                self._session.now_ms,
                lambda number, epoch: Put(number, name, epoch, parts[0]),
                shipment.bodies,
                self._identity,
            )
        shipment.call = call
        shipment.lane.in_flight += 1
        call.pending.then(partial(self._on_shipped, shipment))

    def _on_shipped(self, shipment: Shipment, answered: Pending[AnyAnswer]) -> None:
        lane = shipment.lane
        lane.in_flight -= 1
        error = answered.error
        if error is not None and self._ask_again(shipment, error):
            return
        if error is None:
            answer = answered.outcome()
            stored: tuple[tuple[Stored, ...], ...] | None = None
            if isinstance(answer, PutDone):
                stored = (answer.stored,)
            elif isinstance(answer, CommitDone):
                stored = answer.stored
            if stored is not None and shipment.fits(stored):
                shipment.finish(stored)
                if shipment.entries[0].sequence is not None and stored[0][0].repeated:
                    self._doubt_numbers(shipment)  # A repetition of an older number says nothing about the next one.
                if lane.waiting or lane.rivals:
                    self._after(lane)
                return
            error = ProtocolError("The broker's answer does not fit what was put: is that a tidings broker?")
        self._doubt_numbers(shipment)
        if isinstance(error, Unavailable) or self._in_doubt_with_others(shipment):
            self._doubt.append(shipment)
        shipment.fail(error)
        if not self._session.failing:
            self._after(lane)

    def _in_doubt_with_others(self, shipment: Shipment) -> bool:
        """Part of many messages of which others are in doubt: they can only be sent again together."""
        entry = shipment.entries[0]
        return isinstance(entry, Bulk) and any(entry in each.entries for each in self._doubt)

    def _ask_again(self, shipment: Shipment, error: BaseException) -> bool:
        """Of several copies one was refused, and another may have been stored or still be on its way.

        A new epoch fences the others; in it the same request gets the final answer, stored before or refused.
        """
        call = shipment.call
        if isinstance(error, (Unavailable, Fenced)) or call is None or call.copies_in_epoch < 2:
            return False
        self._identity.renew = True
        self._repeat(shipment)
        return True

    def _after(self, lane: Lane) -> None:
        self._pump_lane(lane)
        for rival in lane.rivals:
            self._pump_lane(rival)

    def _doubt_numbers(self, shipment: Shipment) -> None:
        for part in shipment.parts:
            for target in part.targets:
                self._unsure[target.topic] = None

    # Doubt.

    def _abandon(self, topics: tuple[str, ...]) -> None:
        """Something new goes to these topics, so what is in doubt there can no longer be sent again."""
        shipments, unsent = related(self._doubt, self._unsent, topics)
        if holds_transaction(shipments):
            self._send_again(shipments, unsent)  # A transaction is brought to its end before anything follows it.
            return
        shipments = [shipment for shipment in shipments if any(topic in shipment.lane.topics for topic in topics)]
        if shipments:
            self._identity.renew = True
        for entry in [entry for shipment in shipments for entry in shipment.entries] + unsent:
            entry.gone = entry.gone or any(topic in entry.topics for topic in topics)
        self._doubt = [shipment for shipment in self._doubt if shipment not in shipments]
        self._unsent = [entry for entry in self._unsent if not entry.gone]

    def _send_again(self, shipments: list[Shipment], unsent: list[Entry]) -> None:
        """Sends what is in doubt again as it was, in its order."""
        self._doubt = [shipment for shipment in self._doubt if shipment not in shipments]
        self._unsent = [entry for entry in self._unsent if entry not in unsent]
        for each in unsent:
            each.pending = Pending()
        for shipment in shipments:
            shipment.renew_pendings()
        for shipment in sorted(shipments, key=_first_sent):
            for part in shipment.parts:
                for target in part.targets:
                    self._unsure.pop(target.topic, None)  # With these the numbers given so far will be taken.
            self._repeat(shipment)
        for each in unsent:
            self._wait_in(self._lane(each.topics), each)
        self.pump()

    def _repeat(self, shipment: Shipment) -> None:
        call = shipment.call
        assert call is not None
        shipment.lane.in_flight += 1
        self._session.repeat(call)
        call.pending.then(partial(self._on_shipped, shipment))


def _first_sent(shipment: Shipment) -> int:
    """When it was first sent, among others; what has not been sent comes last."""
    assert shipment.call is not None
    return shipment.call.number or 1 << 62


def _oldest(lanes: Iterable[Lane]) -> int:
    """The order number of the oldest thing that waits in these lanes."""
    return min((lane.waiting[0].order for lane in lanes if lane.waiting), default=1 << 62)
