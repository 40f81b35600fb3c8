"""What a member of a group has in hand: messages that have come and are not settled for good.

The broker sends *parcels*; a `Crate` is what is known of one. `hand` says of every offset in which crate it is, from
the moment it comes until the broker has confirmed its settlement or has given it to somebody else. What comes again
while it is in hand is not handed out again: it only changes its crate or its attempt.

Nothing here waits or sends; `members` does the talking. Bodies are decoded when they are about to be handed out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from tidings.client.future import Future
from tidings.client.hand import Crate, Hand, Ranges, ranges_of
from tidings.client.link import Frame
from tidings.client.request import Request
from tidings.errors import Fenced, ProtocolError, TidingsError
from tidings.message import Columns, Share
from tidings.protocols.broker.messages import Held, Kept, LaneKind, Parcel, Settlement, Start
from tidings.wire.codec import decode_columns

if TYPE_CHECKING:
    from tidings.client.record import Recorder


class Unopened:
    """A parcel that nobody has looked into yet."""

    __slots__ = ("bodies", "crate", "offsets")

    def __init__(self, crate: Crate, offsets: Sequence[int], bodies: Sequence[Frame]) -> None:
        self.crate = crate
        self.offsets = offsets
        self.bodies = bodies

    def open(self, topic: str) -> list[Share]:
        """The messages inside, a share for each body."""
        batches: list[Columns] = [decode_columns(body) for body in self.bodies]
        if sum(len(columns.values) for columns in batches) != len(self.offsets):
            raise ProtocolError(
                f"A parcel of {topic!r} was said to hold {len(self.offsets)} messages and holds others: "
                "is that a tidings broker?"
            )
        shares = []
        start = 0
        for columns in batches:
            end = start + len(columns.values)
            if end > start:
                shares.append(Share(topic, self.offsets[start:end], columns, self.crate.attempt))
            start = end
        return shares


class Member:
    """The client's end of one membership."""

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
        """Whether the broker was told what is in hand and has not said what of it is still this member's. What was said
        not to be handed out may go to others as new: so nothing is handed out until then, on whatever connection."""
        self.turn = 0
        """How much of the stream has come: the turn of the last parcel, or of the last answer, that was taken."""
        self.early: dict[int, Callable[[], None]] = {}
        """What has come too early, by its turn."""
        self.error: TidingsError | None = None
        self.owner: str | None = None
        self.closed = False
        """True once somebody has ended the subscription object."""
        self.rejoins = 0
        self.refused = 0
        """Messages whose settlement was refused, because they had gone to another member."""
        self.changes = 0
        """Grows whenever something in hand was taken away or changed its attempt."""
        self.hand = Hand()
        self.ready_crates: dict[Crate, None] = {}
        """Crates with something to be settled."""
        self.hold_back = 0
        """While a quick loop is at work, intact crates of up to this size are settled as a whole: naming the parcel is
        all that this takes, and the rest of it is about to be dealt with anyway."""
        self.settling: list[tuple[Crate, list[int]]] = []
        """What the settlement that is in flight speaks of."""
        self.settle_request: Request | None = None
        self.requests: list[Request] = []
        """Other requests of this stream in flight."""
        self.waiters: dict[int, list[Future[None]]] = {}
        """Who waits for the confirmation of single messages."""
        self.alone: dict[int, None] = {}
        """To be settled by requests of their own, because an answer to several left open which was refused."""
        self.answered: dict[int, None] = {}
        """Messages given to a loop that somebody has settled or given back one by one."""
        self.given: Sequence[int] = ()
        """What a loop or a handler has been given and has not come back for."""
        self.releases: dict[int, int] = {}
        """Messages that are being given back, each with its delay. Until the broker has answered nothing is handed
        out, because it takes back what is behind them in their lanes."""
        self.record: Recorder | None = None
        """Where deliveries to this member are written down, if that is not where the whole bus does."""
        self.on_return: Callable[[Sequence[int]], None] | None = None
        """Is told what has been handed out and waits again."""
        self._attempts: dict[int, tuple[int, int]] = {}
        """At which attempts, from and to, a message in hand may have been handed out, if its crate does not say it."""
        self._orphans: dict[int, None] = {}
        """Messages that were lost while somebody was at work on them: finishing one does not settle its next copy
        that has come meanwhile and waits."""
        self._queue: deque[Unopened | Share] = deque()
        self._index = 0
        self._highest = -1
        """The highest offset that has ever come: whatever is above it is not in hand."""

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

    def deliver(self, parcel: Parcel, bodies: Sequence[Frame]) -> None:
        """Takes a parcel of the present stream."""
        offsets = parcel.offsets
        crate = Crate(parcel.stream, parcel.parcel, parcel.attempt, len(offsets))
        highest = self._highest
        if offsets and offsets[-1] > highest:
            self._highest = offsets[-1]
        if offsets and offsets[0] > highest:
            self.hand.take(crate, offsets)
            self._queue.append(Unopened(crate, offsets, bodies))
            return
        hand = self.hand.spread()
        if hand.keys().isdisjoint(offsets):
            hand.update(dict.fromkeys(offsets, crate))
            self._queue.append(Unopened(crate, offsets, bodies))
            return
        known = next(hand[offset] for offset in offsets if offset in hand)
        waiting = dict.fromkeys(self.waiting())
        if known.stream == parcel.stream and known.number == parcel.parcel:
            known.attempt = parcel.attempt
            crate = known
            for offset in offsets:
                if offset in waiting and hand.get(offset) is crate:
                    self._attempts[offset] = (crate.attempt, crate.attempt)
        new = [row for row, offset in enumerate(offsets) if offset not in hand]
        self._move([offset for offset in offsets if offset in hand and hand[offset] is not crate], crate, waiting)
        if new:
            row = 0
            for share in Unopened(crate, offsets, bodies).open(self.topic):
                wanted = [index - row for index in new if row <= index < row + len(share)]
                row += len(share)
                if wanted:
                    part = share.select(wanted)
                    hand.update(dict.fromkeys(part.offsets, crate))
                    self._queue.append(part)
                    if crate.since != parcel.attempt:
                        self._attempts.update(dict.fromkeys(part.offsets, (parcel.attempt, parcel.attempt)))
            crate.intact = crate.intact and crate is not known
        self._sort_out()

    def _move(self, offsets: Sequence[int], crate: Crate, waiting: dict[int, None]) -> None:
        """These are in hand and belong to another crate from now on; what is dealt with stays dealt with."""
        if not offsets:
            return
        finished = self._finished()
        hand = self.hand.spread()
        crate.intact = False
        for offset in offsets:
            hand[offset].intact = False
            self._pass_on(offset, crate, offset in waiting)
            if offset in finished:
                crate.done.append(offset)
        if crate.done:
            self.ready_crates[crate] = None

    def _pass_on(self, offset: int, crate: Crate, waits: bool) -> None:
        """A message in hand gets another crate. If it has been handed out, that copy stays good."""
        first, last = (crate.attempt, crate.attempt) if waits else self._attempts_of(offset)
        self.hand.spread()[offset] = crate
        self._attempts.pop(offset, None)
        if not first == last == crate.since == crate.attempt:
            self._attempts[offset] = (min(first, crate.attempt), max(last, crate.attempt))

    def _attempts_of(self, offset: int) -> tuple[int, int]:
        crate = self.hand.crate_of(offset)
        first, last = self._attempts.get(offset, (crate.since, crate.attempt))
        return first, max(last, crate.attempt)

    def has(self, offset: int, attempt: int) -> bool:
        """Whether a message that was handed out at this attempt is in hand, and not another copy that came later."""
        if offset not in self.hand or self.waits(offset):
            return False
        first, last = self._attempts_of(offset)
        return first <= attempt <= last

    def _finished(self) -> set[int]:
        """Everything that is dealt with and not confirmed."""
        finished = {offset for _, offsets in self.settling for offset in offsets if offset in self.hand}
        for crate in self.ready_crates:
            finished.update(offset for offset in crate.done if self.hand.get(offset) is crate)
        return finished

    def held(self) -> tuple[Held, ...]:
        """Everything in hand, as a new stream has to say it."""
        attempts: dict[int, list[int]] = {}
        for offset, crate in self.hand.spread().items():
            attempts.setdefault(crate.attempt, []).append(offset)
        return tuple(Held(attempt, ranges_of(offsets)) for attempt, offsets in attempts.items())

    def stands(self, kept: Sequence[Kept], settled: Ranges) -> None:
        """The broker says what of everything in hand is still this member's; the rest is dropped."""
        before = self._finished()
        hand = self.hand.spread()
        known = dict(hand)
        self.claiming = False
        waiting = dict.fromkeys(self.waiting())
        crates: dict[int, Crate] = {}
        for each in kept:
            crate = Crate(self.number, each.parcel, each.attempt, 0)
            crate.intact = False
            for start, end in each.ranges:
                crates.update({offset: crate for offset in range(start, end) if offset in known})
        self.ready_crates = {crate: None for crate in self.ready_crates if crate.stream == self.number}
        confirmed = [offset for start, end in settled for offset in range(start, end) if offset in known]
        for offset, old in known.items():
            if old.stream == self.number:
                continue  # It has come on this stream already.
            found = crates.get(offset)
            if found is None:
                del hand[offset]
                self._attempts.pop(offset, None)
            else:
                self._pass_on(offset, found, offset in waiting)
                if offset in before:
                    found.done.append(offset)
                    self.ready_crates[found] = None
        for offset in confirmed:
            self._confirmed(offset)
        gone = [offset for offset in known if offset not in hand]
        settled_before = dict.fromkeys(confirmed)
        lost = [offset for offset in gone if offset not in settled_before]
        self.refused += sum(1 for offset in lost if offset in before and offset not in self.waiters)
        self._refuse_waiters(lost)
        self._orphan(offset for offset in gone if offset not in before)
        self.releases = {offset: delay_ms for offset, delay_ms in self.releases.items() if offset in hand}
        self._sort_out()

    def drop(self, offsets: Iterable[int]) -> None:
        """These are no longer this member's."""
        gone = [offset for offset in dict.fromkeys(offsets) if offset in self.hand]
        finished = self._finished() if gone else set()
        self._orphan(offset for offset in gone if offset not in finished)
        for offset in gone:
            self.hand.crate_of(offset).intact = False
            self.hand.drop(offset)
            self.releases.pop(offset, None)
            self._attempts.pop(offset, None)
        if gone:
            self._refuse_waiters(gone)
            self._sort_out()

    def _orphan(self, offsets: Iterable[int]) -> None:
        """These have gone; whoever has been handed one of them works on in vain."""
        self._orphans.update(dict.fromkeys(offset for offset in offsets if not self.waits(offset)))

    def forget_all(self) -> None:
        """Nothing of it is left."""
        self._refuse_waiters(list(self.hand))
        self.hand = Hand()
        self.claiming = False
        self._attempts.clear()
        self._orphans.clear()
        self.ready_crates.clear()
        self.releases.clear()
        self.settling = []
        self._queue.clear()
        self._index = 0
        self.changes += 1

    def _sort_out(self) -> None:
        """Brings the queue in line with what is in hand: what has gone goes, the attempts are the present ones."""
        self.changes += 1
        hand = self.hand.spread()
        queue: deque[Unopened | Share] = deque()
        for each in self._queue:
            for share in each.open(self.topic) if isinstance(each, Unopened) else (each,):
                rows: list[int] = []
                last: Crate | None = None
                for row in range(self._index, len(share)):
                    crate = hand.get(share.offsets[row])
                    if crate is not last and rows and last is not None:
                        queue.append(share.select(rows, last.attempt))
                        rows = []
                    last = crate
                    if crate is not None:
                        rows.append(row)
                if rows and last is not None:
                    queue.append(share.select(rows, last.attempt))
                self._index = 0
        self._queue = queue
        self._index = 0

    # Going out.

    def ready(self) -> bool:
        """Whether a message can be had without waiting."""
        return bool(self._queue) and not self.releases and not self.claiming

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
        """Rows of a share that nobody has looked at wait again, before everything else, if they are still in hand."""
        self.note_return(share.offsets[start:end])
        rows = [row for row in range(start, end) if share.offsets[row] in self.hand]
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
        """Everything in hand that has been handed out."""
        waiting = dict.fromkeys(self.waiting())
        return [offset for offset in self.hand if offset not in waiting]

    def finish(self, offsets: Sequence[int]) -> None:
        """These have been dealt with, and can be settled."""
        if not offsets:
            return
        hand, answered = self.hand, self.answered
        crate = hand.get(offsets[0])
        if crate is not None and crate.intact and not (answered or self._orphans) and hand.get(offsets[-1]) is crate:
            crate.done += offsets
            crate.left -= len(offsets)
            self.ready_crates[crate] = None
            return
        for offset in offsets:
            crate = hand.get(offset)
            if offset in answered:
                continue
            orphan = offset in self._orphans
            self._orphans.pop(offset, None)
            if crate is None or (orphan and self.waits(offset)):
                self.refused += 1
                continue
            crate.done.append(offset)
            crate.left -= 1
            self.ready_crates[crate] = None

    # Settlements.

    def settlements(self) -> tuple[Settlement, ...]:
        """What the next request has to settle; `settling` remembers it until the answer comes."""
        assert not self.settling
        crates, self.ready_crates = self.ready_crates, {}
        found = []
        hold_back = 0 if self.waiters else self.hold_back
        for crate in crates:
            if crate.left and crate.intact and crate.size <= hold_back:
                self.ready_crates[crate] = None
                continue
            done, crate.done = crate.done, []
            if crate.intact and not crate.left and not self.alone:
                self.settling.append((crate, done))
                found.append(Settlement(crate.number))
                continue
            done = [offset for offset in done if self.hand.get(offset) is crate]
            single = next((offset for offset in done if offset in self.alone), None)
            if single is not None:
                crate.done = [offset for offset in done if offset != single]
                done = [single]
                if crate.done:
                    self.ready_crates[crate] = None
            if done:
                self.settling.append((crate, done))
                found.append(Settlement(crate.number, ranges_of(done)))
        return tuple(found)

    def any_whole(self) -> bool:
        """Whether there is more to be settled than the first part of a parcel."""
        return any(not (crate.left and crate.intact) for crate in self.ready_crates)

    def unsettle(self) -> None:
        """The settlement in flight was refused, or will not be answered: all of it is still to be settled."""
        settling, self.settling = self.settling, []
        for crate, offsets in settling:
            crate.done = offsets + crate.done
            self.ready_crates[crate] = None

    def settled(self, stale: Sequence[int]) -> None:
        """The answer to the settlement in flight: all of it is settled, except in these parcels."""
        settling, self.settling = self.settling, []
        plain = not (self.waiters or self._attempts)
        for crate, offsets in settling:
            if crate.number in stale:
                self._on_stale(crate, offsets)
            elif plain:
                self.hand.drop_all(crate, offsets)
            else:
                for offset in offsets:
                    self._confirmed(offset)

    def _confirmed(self, offset: int) -> None:
        self.hand.drop(offset)
        self._attempts.pop(offset, None)
        self.alone.pop(offset, None)
        for waiter in self.waiters.pop(offset, ()):
            waiter.finish(None)

    def _on_stale(self, crate: Crate, offsets: list[int]) -> None:
        own = [offset for offset in offsets if self.hand.get(offset) is crate]  # Others have come anew meanwhile.
        waited = [offset for offset in own if offset in self.waiters]
        crate.intact = False
        if waited and len(own) > 1:
            self.alone.update(dict.fromkeys(waited))
            crate.done += waited
            self.ready_crates[crate] = None
            own = [offset for offset in own if offset not in self.waiters]
        self.refused += sum(1 for offset in own if offset not in self.waiters)
        self.drop(own)

    def _refuse_waiters(self, offsets: Iterable[int]) -> None:
        for offset in offsets:
            self.alone.pop(offset, None)
            for waiter in self.waiters.pop(offset, ()):
                waiter.fail(self.lost(offset))

    def fail_waiters(self, error: Callable[[], TidingsError]) -> None:
        """Nobody can tell them now; what they wait for stays to be settled."""
        for offset, waiting in self.waiters.items():
            self.waiters[offset] = []
            for waiter in waiting:
                waiter.fail(error())

    def lost(self, offset: int) -> Fenced:
        """Why a message can no longer be settled by this member."""
        return Fenced(
            f"Message {offset} of {self.topic!r} is not in this member's hands: it was settled already, or it was "
            "given to another member because this one was silent for too long; drop what you made of it."
        )

    def answer_alone(self, offset: int) -> None:
        """A message that a loop has been given is settled or given back one by one."""
        if offset in self.given:
            self.answered[offset] = None
