"""What a member of a group has in flight: messages that have come and are not acked for good.

The broker sends *batches*; an `InFlightBatch` is what is known of one. `in_flight` says of every offset in which batch
it is, from the moment it comes until the broker has confirmed its ack or has given it to somebody else. What comes
again while it is in flight is not handed out again: it only changes its batch or its attempt.

Nothing here waits or sends; `members` does the talking. Bodies are decoded when they are about to be handed out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence

from tidings.client.future import Future
from tidings.client.in_flight import InFlightBatch, InFlightSet, Ranges, ranges_of
from tidings.client.link import Frame
from tidings.client.record import Recorder
from tidings.client.request import Request
from tidings.client.unopened import Unopened
from tidings.errors import Fenced, TidingsError
from tidings.message import Share
from tidings.protocols.broker.messages import BatchRanges, GroupBatch, Held, Kept, LaneKind, Start


class Member:
    """The client's end of one membership."""

    owner: str | None = None
    closed = False
    """True once somebody has ended the subscription object."""
    rejoins = 0
    refused = 0
    """Messages whose ack was refused, because they had gone to another member."""
    changes = 0
    """Grows whenever something in flight was taken away or changed its attempt."""

    def __init__(self, group: str, topic: str, start: Start = "earliest", lanes: LaneKind = "key") -> None:
        self.group = group
        self.topic = topic
        self.start: Start = start
        self.lanes: LaneKind = lanes
        self.joined_epoch = 0
        """The epoch in which the broker has made this client a member; 0 when that is not known."""
        self.number = 0
        """The stream's number in the session; 0 while it is closed."""
        self.standing = False
        """Whether the broker has said that the stream stands."""
        self.claiming = False
        """Whether the broker was told what is in flight and has not said what of it is still this member's. What is not
        handed out may go to others as new, so nothing is handed out until then, on whatever connection."""
        self.turn = 0
        """How much of the stream has come: the turn of the last batch, or of the last answer, that was taken."""
        self.early: dict[int, Callable[[], None]] = {}
        """What has come too early, by its turn."""
        self.error: TidingsError | None = None
        self.in_flight = InFlightSet()
        self.ready_batches: dict[InFlightBatch, None] = {}
        """Batches with something to be acked."""
        self.hold_back = 0
        """While a quick loop is at work, intact batches of up to this size are acked as a whole: naming the batch is
        all that this takes, and the rest of it is about to be dealt with anyway."""
        self.acking: list[tuple[InFlightBatch, list[int]]] = []
        """What the ack that is in flight speaks of."""
        self.ack_request: Request | None = None
        self.requests: list[Request] = []
        """Other requests of this stream in flight."""
        self.waiters: dict[int, list[Future[None]]] = {}
        """Who waits for the confirmation of single messages."""
        self.alone: dict[int, None] = {}
        """To be acked by requests of their own, because an answer to several left open which was refused."""
        self.answered: dict[int, None] = {}
        """Messages given to a loop that somebody has acked or given back one by one."""
        self.given: Sequence[int] = ()
        """What a loop or a handler has been given and has not come back for."""
        self.nacks: dict[int, int] = {}
        """Messages that are being given back, each with its delay. Until the broker has answered nothing is handed
        out, because it takes back what is behind them in their lanes."""
        self.record: Recorder | None = None
        """Where deliveries to this member are written down, if that is not where the whole bus does."""
        self.on_return: Callable[[Sequence[int]], None] | None = None
        """Is told what has been handed out and waits again."""
        self._attempts: dict[int, tuple[int, int]] = {}
        """At which attempts, from and to, a message in flight may have been handed out, if not at its batch's."""
        self._orphans: dict[int, None] = {}
        """Messages that were lost while somebody was at work on them: finishing one does not ack its next copy
        that has come meanwhile and waits."""
        self._queue: deque[Unopened | Share] = deque()
        self._index = 0
        self._highest = -1
        """The highest offset that has ever come: whatever is above it is not in flight."""

    # Coming in.

    def begin(self, number: int) -> None:
        """A new stream of this number; its turns are counted from nothing."""
        self.number = number
        self.error = None
        self.turn = 0
        self.early.clear()

    def in_turn(self, turn: int, take: Callable[[], None]) -> None:
        """Takes what has come on the present stream when its turn comes; what has had its turn is dropped.

        A connection keeps the order and may lose something when its queue is full. What is lost is never made up
        for on this stream; `early` shows that there is a gap.
        """
        if turn > self.turn + 1:
            self.early[turn] = take
            return
        number = self.number
        following: Callable[[], None] | None = take if turn == self.turn + 1 else None
        while following is not None:
            self.turn += 1
            following()
            following = self.early.pop(self.turn + 1, None) if self.number == number else None

    def deliver(self, group_batch: GroupBatch, bodies: Sequence[Frame]) -> None:
        """Takes a batch of the present stream."""
        offsets = group_batch.offsets
        batch = InFlightBatch(group_batch.stream, group_batch.batch, group_batch.attempt, len(offsets))
        highest = self._highest
        if offsets and offsets[-1] > highest:
            self._highest = offsets[-1]
        if offsets and offsets[0] > highest:
            self.in_flight.take(batch, offsets)
            self._queue.append(Unopened(batch, offsets, bodies))
            return
        in_flight = self.in_flight.spread()
        if in_flight.keys().isdisjoint(offsets):
            in_flight.update(dict.fromkeys(offsets, batch))
            self._queue.append(Unopened(batch, offsets, bodies))
            return
        known = next(in_flight[offset] for offset in offsets if offset in in_flight)
        waiting = dict.fromkeys(self.waiting())
        if known.stream == group_batch.stream and known.number == group_batch.batch:
            known.attempt = group_batch.attempt
            batch = known
            for offset in offsets:
                if offset in waiting and in_flight.get(offset) is batch:
                    self._attempts[offset] = (batch.attempt, batch.attempt)
        new = [row for row, offset in enumerate(offsets) if offset not in in_flight]
        moved = [offset for offset in offsets if offset in in_flight and in_flight[offset] is not batch]
        self._move(moved, batch, waiting)
        if new:
            row = 0
            for share in Unopened(batch, offsets, bodies).open(self.topic):
                wanted = [index - row for index in new if row <= index < row + len(share)]
                row += len(share)
                if wanted:
                    part = share.select(wanted)
                    in_flight.update(dict.fromkeys(part.offsets, batch))
                    self._queue.append(part)
                    if batch.since != group_batch.attempt:
                        self._attempts.update(dict.fromkeys(part.offsets, (group_batch.attempt, group_batch.attempt)))
            batch.intact = batch.intact and batch is not known
        self._sort_out()

    def _move(self, offsets: Sequence[int], batch: InFlightBatch, waiting: dict[int, None]) -> None:
        """These are in flight and belong to another batch from now on; what is dealt with stays dealt with."""
        if not offsets:
            return
        finished = self._finished()
        in_flight = self.in_flight.spread()
        batch.intact = False
        for offset in offsets:
            in_flight[offset].intact = False
            self._pass_on(offset, batch, offset in waiting)
            if offset in finished:
                batch.done.append(offset)
        if batch.done:
            self.ready_batches[batch] = None

    def _pass_on(self, offset: int, batch: InFlightBatch, waits: bool) -> None:
        """A message in flight gets another batch. If it has been handed out, that copy stays good."""
        first, last = (batch.attempt, batch.attempt) if waits else self._attempts_of(offset)
        self.in_flight.spread()[offset] = batch
        self._attempts.pop(offset, None)
        if not first == last == batch.since == batch.attempt:
            self._attempts[offset] = (min(first, batch.attempt), max(last, batch.attempt))

    def _attempts_of(self, offset: int) -> tuple[int, int]:
        batch = self.in_flight.batch_of(offset)
        first, last = self._attempts.get(offset, (batch.since, batch.attempt))
        return first, max(last, batch.attempt)

    def has(self, offset: int, attempt: int) -> bool:
        """Whether a message that was handed out at this attempt is in flight, and not another copy that came later."""
        if offset not in self.in_flight or self.waits(offset):
            return False
        first, last = self._attempts_of(offset)
        return first <= attempt <= last

    def _finished(self) -> set[int]:
        """Everything that is dealt with and not confirmed."""
        finished = {offset for _, offsets in self.acking for offset in offsets if offset in self.in_flight}
        for batch in self.ready_batches:
            finished.update(offset for offset in batch.done if self.in_flight.get(offset) is batch)
        return finished

    def held(self) -> tuple[Held, ...]:
        """Everything in flight, as a new stream has to say it."""
        attempts: dict[int, list[int]] = {}
        for offset, batch in self.in_flight.spread().items():
            attempts.setdefault(batch.attempt, []).append(offset)
        return tuple(Held(attempt, ranges_of(offsets)) for attempt, offsets in attempts.items())

    def stands(self, kept: Sequence[Kept], acked: Ranges) -> None:
        """The broker says what of everything in flight is still this member's; the rest is dropped."""
        before = self._finished()
        in_flight = self.in_flight.spread()
        known = dict(in_flight)
        self.claiming = False
        waiting = dict.fromkeys(self.waiting())
        batches: dict[int, InFlightBatch] = {}
        for each in kept:
            batch = InFlightBatch(self.number, each.batch, each.attempt, 0)
            batch.intact = False
            for start, end in each.ranges:
                batches.update({offset: batch for offset in range(start, end) if offset in known})
        self.ready_batches = {batch: None for batch in self.ready_batches if batch.stream == self.number}
        confirmed = [offset for start, end in acked for offset in range(start, end) if offset in known]
        for offset, old in known.items():
            if old.stream == self.number:
                continue  # It has come on this stream already.
            found = batches.get(offset)
            if found is None:
                del in_flight[offset]
                self._attempts.pop(offset, None)
            else:
                self._pass_on(offset, found, offset in waiting)
                if offset in before:
                    found.done.append(offset)
                    self.ready_batches[found] = None
        for offset in confirmed:
            self._confirmed(offset)
        gone = [offset for offset in known if offset not in in_flight]
        acked_before = dict.fromkeys(confirmed)
        lost = [offset for offset in gone if offset not in acked_before]
        self.refused += sum(1 for offset in lost if offset in before and offset not in self.waiters)
        self._refuse_waiters(lost)
        self._orphan(offset for offset in gone if offset not in before)
        self.nacks = {offset: delay_ms for offset, delay_ms in self.nacks.items() if offset in in_flight}
        self._sort_out()

    def drop(self, offsets: Iterable[int]) -> None:
        """These are no longer this member's."""
        gone = [offset for offset in dict.fromkeys(offsets) if offset in self.in_flight]
        finished = self._finished() if gone else set()
        self._orphan(offset for offset in gone if offset not in finished)
        for offset in gone:
            self.in_flight.batch_of(offset).intact = False
            self.in_flight.drop(offset)
            self.nacks.pop(offset, None)
            self._attempts.pop(offset, None)
        if gone:
            self._refuse_waiters(gone)
            self._sort_out()

    def _orphan(self, offsets: Iterable[int]) -> None:
        """These have gone; anyone who has been handed one of them works on in vain."""
        self._orphans.update(dict.fromkeys(offset for offset in offsets if not self.waits(offset)))

    def forget_all(self) -> None:
        """Nothing of it is left."""
        self._refuse_waiters(list(self.in_flight))
        self.in_flight = InFlightSet()
        self.claiming = False
        self._attempts.clear()
        self._orphans.clear()
        self.ready_batches.clear()
        self.nacks.clear()
        self.acking = []
        self._queue.clear()
        self._index = 0
        self.changes += 1

    def _sort_out(self) -> None:
        """Brings the queue in line with what is in flight: what has gone goes, the attempts are the present ones."""
        self.changes += 1
        in_flight = self.in_flight.spread()
        queue: deque[Unopened | Share] = deque()
        for each in self._queue:
            for share in each.open(self.topic) if isinstance(each, Unopened) else (each,):
                rows: list[int] = []
                last: InFlightBatch | None = None
                for row in range(self._index, len(share)):
                    batch = in_flight.get(share.offsets[row])
                    if batch is not last and rows and last is not None:
                        queue.append(share.select(rows, last.attempt))
                        rows = []
                    last = batch
                    if batch is not None:
                        rows.append(row)
                if rows and last is not None:
                    queue.append(share.select(rows, last.attempt))
                self._index = 0
        self._queue = queue
        self._index = 0

    # Going out.

    def ready(self) -> bool:
        """Whether a message can be had without waiting."""
        return bool(self._queue) and not self.nacks and not self.claiming

    def head(self) -> Share | None:
        """The share that holds the next message; `index` says where in it."""
        if not self._queue:
            return None
        first = self._queue[0]
        if isinstance(first, Unopened):
            shares = first.open(self.topic)
            self._queue.popleft()
            self._queue.extendleft(reversed(shares))
            self._index = 0
            return shares[0]
        return first

    @property
    def index(self) -> int:
        """The place of the next message in the head."""
        return self._index

    def take(self, count: int) -> Sequence[int]:
        """Hands out the next messages of the head, at most `count`; their offsets."""
        share = self.head()
        assert share is not None
        start = self._index
        self._index = min(start + count, len(share.values))
        if self._index == len(share.values):
            self._queue.popleft()
            self._index = 0
        return share.offsets[start : start + count]

    def put_back(self, share: Share, start: int, end: int) -> None:
        """Rows of a share that nobody has looked at wait again, before everything else, if they are still in flight."""
        self.note_return(share.offsets[start:end])
        rows = [row for row in range(start, end) if share.offsets[row] in self.in_flight]
        if not rows:
            return
        if self._index:
            head = self.head()
            assert head is not None
            self._queue[0] = head.select(range(self._index, len(head.values)))
            self._index = 0
        self._queue.appendleft(share.select(rows))
        self._sort_out()

    def note_return(self, offsets: Sequence[int]) -> None:
        """These were handed out, and will be again."""
        if self.on_return is not None:
            self.on_return(offsets)

    def waits(self, offset: int) -> bool:
        """Whether this message has come and has not been handed out."""
        index = self._index
        for each in self._queue:
            if offset in each.offsets[index:]:
                return True
            index = 0
        return False

    def waiting(self) -> list[int]:
        """Everything that has come and has not been handed out."""
        found = [offset for each in self._queue for offset in each.offsets]
        return found[self._index :]

    def taken(self) -> list[int]:
        """Everything in flight that has been handed out."""
        waiting = dict.fromkeys(self.waiting())
        return [offset for offset in self.in_flight if offset not in waiting]

    def finish(self, offsets: Sequence[int]) -> None:
        """These have been dealt with, and can be acked."""
        if not offsets:
            return
        known, answered = self.in_flight, self.answered
        batch = known.get(offsets[0])
        if batch is not None and batch.intact and not (answered or self._orphans) and known.get(offsets[-1]) is batch:
            batch.done += offsets
            batch.left -= len(offsets)
            self.ready_batches[batch] = None
            return
        for offset in offsets:
            batch = known.get(offset)
            if offset in answered:
                continue
            orphan = offset in self._orphans
            self._orphans.pop(offset, None)
            if batch is None or (orphan and self.waits(offset)):
                self.refused += 1
                continue
            batch.done.append(offset)
            batch.left -= 1
            self.ready_batches[batch] = None

    # Acks.

    def acks(self) -> tuple[BatchRanges, ...]:
        """What the next request has to ack; `acking` remembers it until the answer comes."""
        assert not self.acking
        batches, self.ready_batches = self.ready_batches, {}
        found = []
        hold_back = 0 if self.waiters else self.hold_back
        for batch in batches:
            if batch.left and batch.intact and batch.size <= hold_back:
                self.ready_batches[batch] = None
                continue
            done, batch.done = batch.done, []
            if batch.intact and not batch.left and not self.alone:
                self.acking.append((batch, done))
                found.append(BatchRanges(batch.number))
                continue
            done = [offset for offset in done if self.in_flight.get(offset) is batch]
            single = next((offset for offset in done if offset in self.alone), None)
            if single is not None:
                batch.done = [offset for offset in done if offset != single]
                done = [single]
                if batch.done:
                    self.ready_batches[batch] = None
            if done:
                self.acking.append((batch, done))
                found.append(BatchRanges(batch.number, ranges_of(done)))
        return tuple(found)

    def any_whole(self) -> bool:
        """Whether there is more to be acked than the first part of a batch."""
        return any(not (batch.left and batch.intact) for batch in self.ready_batches)

    def unack(self) -> None:
        """The ack in flight was refused, or will not be answered: all of it is still to be acked."""
        acking, self.acking = self.acking, []
        for batch, offsets in acking:
            batch.done = offsets + batch.done
            self.ready_batches[batch] = None

    def acked(self, stale: Sequence[int]) -> None:
        """The answer to the ack in flight: all of it is acked, except in these batches."""
        acking, self.acking = self.acking, []
        plain = not (self.waiters or self._attempts)
        for batch, offsets in acking:
            if batch.number in stale:
                self._on_stale(batch, offsets)
            elif plain:
                self.in_flight.drop_all(batch, offsets)
            else:
                for offset in offsets:
                    self._confirmed(offset)

    def _confirmed(self, offset: int) -> None:
        self.in_flight.drop(offset)
        self._attempts.pop(offset, None)
        self.alone.pop(offset, None)
        for waiter in self.waiters.pop(offset, ()):
            waiter.finish(None)

    def _on_stale(self, batch: InFlightBatch, offsets: list[int]) -> None:
        own = [offset for offset in offsets if self.in_flight.get(offset) is batch]  # Others have come again meanwhile.
        waited = [offset for offset in own if offset in self.waiters]
        batch.intact = False
        if waited and len(own) > 1:
            self.alone.update(dict.fromkeys(waited))
            batch.done += waited
            self.ready_batches[batch] = None
            own = [offset for offset in own if offset not in self.waiters]
        self.refused += sum(1 for offset in own if offset not in self.waiters)
        self.drop(own)

    def _refuse_waiters(self, offsets: Iterable[int]) -> None:
        for offset in offsets:
            self.alone.pop(offset, None)
            for waiter in self.waiters.pop(offset, ()):
                waiter.fail(self.lost(offset))

    def fail_waiters(self, error: Callable[[], TidingsError]) -> None:
        """Nobody can tell them now; what they wait for stays to be acked."""
        for offset, waiting in self.waiters.items():
            self.waiters[offset] = []
            for waiter in waiting:
                waiter.fail(error())

    def lost(self, offset: int) -> Fenced:
        """Why a message can no longer be acked by this member."""
        return Fenced(
            f"Message {offset} of {self.topic!r} is not in flight at this member: it was acked already, or it was "
            "given to another member because this one was silent for too long; discard your result."
        )

    def answer_alone(self, offset: int) -> None:
        """A message that a loop has been given is acked or given back one by one."""
        if offset in self.given:
            self.answered[offset] = None
