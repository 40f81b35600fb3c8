"""A session's memberships in groups: their streams, their acks, and what is said after an interruption.

A member's stream has a number that is never used again in the session. It is opened with the room for so many
messages in flight and with everything that the member has in flight from before; the answer says what of that is still
its own. That is all that is needed after a new connection, a new epoch, a lost lease or a broker's restart: what was
dealt with and not confirmed is acked again under the new batches' numbers, and what has gone to others is dropped.

Acks travel one request at a time for each membership, and carry all that has been dealt with meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tidings.client.future import Future, failed
from tidings.client.in_flight import ranges_of
from tidings.client.link import Frame
from tidings.client.member import Member
from tidings.client.request import Asks, Make
from tidings.client.streams import Streams
from tidings.errors import Fenced, NoSuchTopic, NotSubscribed, ProtocolError, TidingsError, Unavailable
from tidings.protocols.broker.messages import (
    AnyAnswer,
    BatchRanges,
    Extend,
    ExtendDone,
    GroupAck,
    GroupAckDone,
    GroupBatch,
    GroupNack,
    GroupNackDone,
    GroupPause,
    GroupPauseDone,
    Join,
    JoinDone,
    Work,
    Working,
)

OF_A_STREAM = (Work, GroupAck, GroupNack, Extend, GroupPause)
"""Requests that speak of a member's stream: they end with it, and a refusal says nothing about the session."""
REJOINS_MAX = 3
EARLY_MAX = 64
"""What may have come early on a stream before it is given up; each connection keeps its order, so it is none."""

NOT_TIDINGS = "The broker's answer is not the one that was asked for: is that a tidings broker?"


class Members:
    """All memberships of the session's own name."""

    def __init__(self, session: Asks, streams: Streams) -> None:
        self._session = session
        self._streams = streams
        self._members: dict[tuple[str, str], Member] = {}
        self._numbers: dict[int, Member] = {}
        self._unsaid: dict[tuple[str, str], None] = {}
        """Memberships whose messages were put down without the broker's knowing which of them had been handed out."""

    def of(self, group: str, topic: str) -> Member:
        """The membership of that group, which is closed until `open`."""
        member = self._members.get((group, topic))
        if member is None:
            member = self._members[group, topic] = Member(group, topic)
        return member

    def all(self) -> list[Member]:
        """Every membership, open or not."""
        return list(self._members.values())

    def numbers(self) -> tuple[int, ...]:
        """The streams that are open."""
        return tuple(self._numbers)

    def drop(self, member: Member) -> None:
        """Nothing of the membership is left on this side."""
        if self._members.get((member.group, member.topic)) is member:
            del self._members[member.group, member.topic]
        self.put_down(member)

    # Opening and closing.

    def open(self, member: Member, tries: int = 1) -> None:
        """Starts the stream under a new number, with what is in flight; joins first where that is needed."""
        self._close(member)
        member.begin(self._streams.next_number())
        self._numbers[member.number] = member
        self._streams.keep_beating()
        if member.joined_epoch and member.joined_epoch == self._session.main.epoch:
            self._send_work(member, tries)
        else:
            self._send_join(member, tries)

    def reopen_all(self, tries: int) -> None:
        """The connection or the epoch is a new one, so every open stream begins again."""
        for member in list(self._numbers.values()):
            self.open(member, tries)

    def close_all(self, error: Callable[[], TidingsError]) -> None:
        """Every open stream ends with this error; the next use opens it again."""
        for member in list(self._numbers.values()):
            self._end(member, error)

    def on_beaten(self, missing: Sequence[int]) -> None:
        """The broker does not serve these streams; and others may have a gap that nothing will fill."""
        for number, member in list(self._numbers.items()):
            if member.standing and (number in missing or member.early):
                self.open(member)

    def _close(self, member: Member) -> None:
        self._numbers.pop(member.number, None)
        member.number = 0
        member.standing = False
        for request in member.requests:
            self._session.forget(request)
        member.requests = []
        if member.ack_request is not None:
            self._session.forget(member.ack_request)
            member.ack_request = None
            member.unack()

    def _end(self, member: Member, error: Callable[[], TidingsError]) -> None:
        self._close(member)
        member.error = error()
        if isinstance(member.error, NotSubscribed | NoSuchTopic | Fenced):
            member.joined_epoch = 0
        member.fail_waiters(error)

    def _ask(self, member: Member, make: Make, on_answer: Callable[[Future[AnyAnswer]], None], tries: int = 1) -> None:
        """Sends a request of the present stream; an answer that comes after the stream's end is not looked at."""
        number = member.number
        request = self._session.request(self._session.now_ms, make, tries=tries)
        member.requests.append(request)

        def answered(future: Future[AnyAnswer]) -> None:
            if request in member.requests:
                member.requests.remove(request)
            if member.number == number:
                on_answer(future)

        request.future.then(answered)

    def _send_join(self, member: Member, tries: int = 1) -> None:
        name = self._session.main.name
        epochs = [0]

        def make(request: int, epoch: int) -> Join:
            epochs[0] = epoch
            return Join(request, name, epoch, member.group, member.topic, member.start, member.lanes)

        def joined(future: Future[AnyAnswer]) -> None:
            if self._answer(member, future, JoinDone) is not None:
                member.joined_epoch = epochs[0]
                self._send_work(member)

        self._ask(member, make, joined, tries)

    def _answer(self, member: Member, future: Future[AnyAnswer], kind: type[AnyAnswer]) -> AnyAnswer | None:
        """The answer if it is of that kind; otherwise the stream ends with the reason."""
        error = future.error
        if error is None:
            answer = future.outcome()
            if isinstance(answer, kind):
                return answer
            error = ProtocolError(NOT_TIDINGS)
        if isinstance(error, TidingsError):
            made, text = type(error), str(error)
            self._end(member, lambda: made(text))
        return None

    def _send_work(self, member: Member, tries: int = 1) -> None:
        name, number, held = self._session.main.name, member.number, member.held()
        room, key = self._session.settings.room_messages, (member.group, member.topic)
        taken = None if key in self._unsaid else ranges_of(member.taken())
        member.claiming = True

        def worked(future: Future[AnyAnswer]) -> None:
            if isinstance(future.error, Fenced) and member.rejoins < REJOINS_MAX:
                # The broker knows the member in another epoch. Whether a newer session has taken over, Join will tell.
                member.rejoins += 1
                member.joined_epoch = 0
                self.open(member)
                return
            answer = self._answer(member, future, Working)
            if isinstance(answer, Working):
                member.rejoins = 0
                self._unsaid.pop(key, None)
                member.standing = True
                member.stands(answer.kept, answer.acked)
                self.flush(member)
                self.took(
                    member, [offset for offset in member.taken() if member.in_flight.batch_of(offset).attempt > 1]
                )
                for delay_ms in dict.fromkeys(member.nacks.values()):
                    self._send_nack(member, [each for each in member.nacks if member.nacks[each] == delay_ms])

        self._ask(
            member,
            lambda request, epoch: Work(
                request, name, epoch, member.group, member.topic, number, room, held, True, taken
            ),
            worked,
            tries,
        )

    def took(self, member: Member, offsets: Sequence[int]) -> None:
        """Says that messages are about to be handed out, which is an attempt; a stream that begins says so itself."""
        if not member.standing or not offsets:
            return
        name, number, taken = self._session.main.name, member.number, ranges_of(offsets)
        room = self._session.settings.room_messages

        def heard(future: Future[AnyAnswer]) -> None:
            if isinstance(future.error, Fenced):
                self.open(member)

        self._ask(
            member,
            lambda request, epoch: Work(request, name, epoch, member.group, member.topic, number, room, taken=taken),
            heard,
        )

    def probe(self, member: Member) -> Future[None]:
        """Done once everything that the broker had for this member when it was asked has come in."""
        asked: Future[None] = Future()
        name, number, room = self._session.main.name, member.number, self._session.settings.room_messages

        def worked(future: Future[AnyAnswer]) -> None:
            if isinstance(future.error, Fenced):
                self.open(member)
                asked.finish(None)
                return
            answer = self._answer(member, future, Working)
            if isinstance(answer, Working):
                if answer.turn > member.turn:
                    self.open(member)  # Something that was sent has not come.
                asked.finish(None)

        self._ask(
            member, lambda request, epoch: Work(request, name, epoch, member.group, member.topic, number, room), worked
        )
        return asked

    def pause(self, member: Member) -> Future[None]:
        """Ends the stream at the broker, which gives everything in flight to others; nothing is to be acked now."""
        paused: Future[None] = Future()
        name, number, taken = self._session.main.name, member.number, ranges_of(member.taken())

        def answered(future: Future[AnyAnswer]) -> None:
            if isinstance(future.error, Fenced) or self._answer(member, future, GroupPauseDone) is not None:
                self.put_down(member)
                if future.error is None:
                    self._unsaid.pop((member.group, member.topic), None)
                paused.finish(None)

        self._ask(
            member,
            lambda request, epoch: GroupPause(request, name, epoch, member.group, member.topic, number, taken=taken),
            answered,
        )
        return paused

    def put_down(self, member: Member) -> None:
        """Closes the stream on this side and forgets what is in flight; the membership can be opened again."""
        self._close(member)
        if member.taken():
            self._unsaid[member.group, member.topic] = None
        member.forget_all()

    # Coming in.

    def on_group_batch(self, group_batch: GroupBatch, bodies: Sequence[Frame]) -> None:
        """Work has come; that of an old or unknown stream is dropped."""
        member = self._numbers.get(group_batch.stream)
        if member is not None:
            member.in_turn(group_batch.turn, lambda: member.deliver(group_batch, bodies))
            if len(member.early) > EARLY_MAX:
                self.open(member)

    # Acks.

    def flush(self, member: Member) -> None:
        """Acks everything that has been dealt with, at once or when the ack in flight is answered."""
        self.flush_whole(member, 0)

    def flush_whole(self, member: Member, size: int) -> None:
        """The same, but batches of up to this size wait until they have been dealt with as a whole."""
        member.hold_back = size
        self._send_acks(member)

    def _send_acks(self, member: Member) -> None:
        if member.ack_request is not None or not member.ready_batches or self._session.failing:
            return
        if not member.number:
            if self._session.main.fenced is None and member.error is None:
                self.open(member)
            return
        if not member.standing:
            return
        acks = member.acks()
        if not acks:
            return
        name, number = self._session.main.name, member.number
        request = self._session.request(
            self._session.now_ms,
            lambda request, epoch: GroupAck(request, name, epoch, member.group, member.topic, number, acks),
        )
        member.ack_request = request

        def acked(future: Future[AnyAnswer]) -> None:
            answer = future.outcome() if future.error is None else None
            if member.ack_request is not request:
                return
            if isinstance(answer, GroupAckDone):
                member.in_turn(answer.turn, lambda: self._on_acked(member, answer))
            else:
                self._on_refused(member, future.error or ProtocolError(NOT_TIDINGS))

        request.future.then(acked)

    def _on_acked(self, member: Member, answer: GroupAckDone) -> None:
        member.ack_request = None
        member.acked(answer.stale)
        self._send_acks(member)

    def _on_refused(self, member: Member, error: BaseException) -> None:
        member.ack_request = None
        member.unack()
        if isinstance(error, Fenced):
            self.open(member)
        elif isinstance(error, NotSubscribed | NoSuchTopic | ProtocolError):
            made, text = type(error), str(error)
            self._end(member, lambda: made(text))
        elif isinstance(error, TidingsError) and not isinstance(error, Unavailable):
            # Not now; it goes with the next ack. Who waits for it is told, or else who takes the next message.
            refusal, why = type(error), str(error)
            if not any(member.waiters.values()):
                member.error = refusal(why)
            member.fail_waiters(lambda: refusal(why))

    def acknowledge(self, member: Member, offset: int, attempt: int) -> Future[None]:
        """Acks one message that was handed out; done once that is confirmed, Fenced if it has gone to others."""
        if not member.has(offset, attempt):
            return failed(member.lost(offset))
        waiter: Future[None] = Future()
        waiting = member.waiters.get(offset)
        if waiting is not None:
            waiting.append(waiter)
        else:
            member.finish((offset,))
            member.answer_alone(offset)
            member.waiters[offset] = [waiter]
        if not member.number:
            self.open(member)
        self.flush(member)
        return waiter

    def nack(self, member: Member, offsets: Sequence[int], delay_ms: int) -> None:
        """Gives messages back, on this stream or the next; `nacks` has them until that has happened."""
        for offset in offsets:
            member.answer_alone(offset)
            member.nacks[offset] = delay_ms
        if member.standing:
            self._send_nack(member, offsets)

    def _send_nack(self, member: Member, offsets: Sequence[int]) -> None:
        """One request for each batch; all of these have the same delay."""
        batches: dict[int, list[int]] = {}
        for offset in offsets:
            batches.setdefault(member.in_flight.batch_of(offset).number, []).append(offset)
        for group_batch, some in batches.items():
            self._send_nack_of(member, BatchRanges(group_batch, ranges_of(some)), some)

    def _send_nack_of(self, member: Member, ack: BatchRanges, offsets: Sequence[int]) -> None:
        name, number, delay_ms = self._session.main.name, member.number, member.nacks[offsets[0]]

        def answered(future: Future[AnyAnswer]) -> None:
            if isinstance(future.error, Fenced):
                self.open(member)
                return
            answer = self._answer(member, future, GroupNackDone)
            if isinstance(answer, GroupNackDone):
                gone = [each for start, end in answer.ranges for each in range(start, end)]
                member.in_turn(answer.turn, lambda: member.drop([*offsets, *gone]))

        self._ask(
            member,
            lambda request, epoch: GroupNack(request, name, epoch, member.group, member.topic, number, ack, delay_ms),
            answered,
        )

    def extend(self, member: Member, offset: int) -> Future[None]:
        """Asks for more time for the batch of a message. If the stream ends first, ask again on the next one."""
        extended: Future[None] = Future()
        name, number, group_batch = self._session.main.name, member.number, member.in_flight.batch_of(offset).number

        def answered(future: Future[AnyAnswer]) -> None:
            if isinstance(future.error, Fenced):
                self.open(member)
            elif self._answer(member, future, ExtendDone) is not None:
                extended.finish(None)

        self._ask(
            member,
            lambda request, epoch: Extend(request, name, epoch, member.group, member.topic, number, group_batch),
            answered,
        )
        return extended
