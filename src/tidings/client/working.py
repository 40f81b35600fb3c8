"""The operations of a group's member: joining, taking, acking, giving back, and the steps of a loop.

A message that has been handed out stays in flight until it is acked or given back. A loop acks
each message when the next one is asked for, without waiting for the confirmation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice

from tidings.client.arguments import check_message, check_seconds
from tidings.client.member import Member
from tidings.client.operations import Core, Operation, Until, ask, wait_for
from tidings.client.reading import QUICK_MS, SLOW_MS, STRIDE_MAX
from tidings.client.record import Subscriber
from tidings.errors import Fenced, InvalidRequest, Overloaded
from tidings.message import GroupInfo, Message, Share, check_name, check_topic
from tidings.protocols.broker.messages import (
    AskGroups,
    Groups,
    Join,
    JoinDone,
    LaneKind,
    Leave,
    LeaveDone,
    Start,
)


def join(core: Core, group: str, topic: object, start: Start | None, lanes: LaneKind) -> Operation[Member]:
    """Makes the client a member of a group; the first one makes the group."""
    if not isinstance(topic, str):
        raise InvalidRequest("A group shares one topic: name one, and make a group for each other topic.")
    check_topic(topic)
    check_name(group)
    begin: Start = "earliest" if start is None else start
    if not (begin in ("now", "earliest", "last") or (type(begin) is int and begin >= 0)):
        raise InvalidRequest(f'start must be "now", "earliest", "last" or an offset, not {start!r}.')
    if lanes not in ("key", "publisher"):
        raise InvalidRequest(f'lanes must be "key" or "publisher", not {lanes!r}.')
    name = core.client_id
    epochs = [0]

    def make(number: int, epoch: int) -> Join:
        epochs[0] = epoch
        return Join(number, name, epoch, group, topic, begin, lanes)

    yield from ask(core, make, JoinDone)
    member = core.session.members.of(group, topic)
    member.start, member.lanes = begin, lanes
    member.joined_epoch = epochs[0]
    member.closed = False
    return member


def leave(core: Core, group: str, topic: object) -> Operation[None]:
    """The client is no longer a member; what it has not acked goes on with the others."""
    if not isinstance(topic, str):
        raise InvalidRequest("A group shares one topic: name the one to leave.")
    check_name(group)
    check_topic(topic)
    name, known = core.client_id, core.session.members.of(group, topic)
    known.closed = True
    yield from put_down(core, known, core.now_ms() + core.session.settings.timeout_ms)
    yield from ask(core, lambda number, epoch: Leave(number, name, epoch, group, topic), LeaveDone)
    core.session.members.drop(known)


def groups(core: Core, topic: str | None) -> Operation[list[GroupInfo]]:
    """All groups, or those of a topic."""
    if topic is not None:
        check_topic(topic)
    answer = yield from ask(core, lambda number, _: AskGroups(number, topic), Groups)
    return list(answer.groups)


def check(core: Core, member: Member) -> None:
    """Raises what has happened to the membership meanwhile."""
    fenced = core.session.main.fenced
    if fenced is not None:
        raise Fenced(str(fenced))
    if member.error is not None:
        error, member.error = member.error, None
        raise error


def claim(member: Member) -> None:
    """Makes a loop the one who takes from this membership."""
    if member.owner is not None:
        raise InvalidRequest(f"A loop already reads the group {member.group!r}: finish it first.")
    member.owner = "loop"


def stand(core: Core, member: Member) -> Operation[None]:
    """Opens the stream if it is closed, and waits until it stands."""
    while not member.standing:
        check(core, member)
        if member.closed:
            raise InvalidRequest(f"The subscription to {member.topic!r} is closed: subscribe again.")
        if not member.number:
            core.session.now_ms = core.now_ms()
            core.session.members.open(member)
        yield Until(lambda: member.standing or not member.number)


def fill(core: Core, member: Member, deadline_ms: int | None, sure: bool) -> Operation[bool]:
    """Waits until there is a message; if `sure`, the broker is asked before the answer is no."""
    asked_again = False
    while not member.ready() and not member.closed:
        check(core, member)
        if not member.standing:
            if not member.number:
                core.session.now_ms = core.now_ms()
                core.session.members.open(member)
            yield Until(lambda: member.standing or member.ready() or member.closed or not member.number)
        elif sure and not idle(member):  # What is being acked makes room for more.
            core.session.now_ms = core.now_ms()
            core.session.members.flush(member)
            yield Until(lambda: idle(member) or _stirred(member))
        elif sure:
            sure = False
            number = member.number
            core.session.now_ms = core.now_ms()
            probe = core.session.members.probe(member)
            yield Until(lambda probe=probe, number=number: probe.done or member.ready() or member.number != number)  # type: ignore[misc]
            if member.number != number and not asked_again:  # The broker had dropped the stream: a new one is sure.
                sure = asked_again = True
        elif not (yield Until(lambda: _stirred(member), deadline_ms)):
            break
    return member.ready() and not member.closed


def _stirred(member: Member) -> bool:
    return member.ready() or member.closed or member.error is not None or not member.number


def get(core: Core, member: Member, deadline_ms: int | None) -> Operation[Message | None]:
    """The next message, not acked; None when the deadline passed without one."""
    if member.owner is not None:
        raise InvalidRequest(f"The group {member.group!r} is being read by a loop: take the next message there.")
    if not (yield from fill(core, member, deadline_ms, True)):
        return None
    return take(core, member)


def hand_out(core: Core, member: Member, share: Share, start: int, end: int) -> None:
    """Rows of a share are about to be handed out: that is recorded, if the subscriber wants it.

    The broker is told of what may have failed before, so that it counts should this process die of it.
    """
    if share.attempt > 1:
        core.session.now_ms = core.now_ms()
        core.session.members.took(member, share.offsets[start:end])
    recorder = member.record or core.record
    if recorder is not None:
        who = Subscriber(member.group, True, member.lanes)
        if member.on_return is None:
            member.on_return = partial(recorder.returned, who, member.topic)
        recorder.handed(who, share, start, end)


def take(core: Core, member: Member) -> Message:
    """Hands out one message of those that are there."""
    share = member.head()
    assert share is not None
    hand_out(core, member, share, member.index, member.index + 1)
    message = share[member.index]
    member.take(1)
    return message


def ack(core: Core, member: Member, message: Message) -> Operation[None]:
    """Acks a message and waits for the confirmation."""
    check_message(message)
    if isinstance(member.error, Overloaded):
        member.error = None  # What was refused then goes with this ack, whose answer is the one that counts.
    check(core, member)
    core.session.now_ms = core.now_ms()
    yield from wait_for(core.session.members.acknowledge(member, message.offset, message.attempt))


def nack(core: Core, member: Member, message: Message, delay: float) -> Operation[None]:
    """Gives a message back."""
    delay_ms = round(min(check_seconds(delay, "delay"), 1e9) * 1000)
    offset = check_message(message).offset
    check(core, member)
    _check_in_flight(member, message)
    core.session.now_ms = core.now_ms()
    core.session.members.nack(member, (offset,), delay_ms)
    while offset in member.nacks:
        yield from stand(core, member)
        yield Until(lambda: offset not in member.nacks or not member.standing)


def extend(core: Core, member: Member, message: Message) -> Operation[None]:
    """Asks for more time, on as many streams as it takes."""
    offset = check_message(message).offset
    while True:
        yield from stand(core, member)
        _check_in_flight(member, message)
        number = member.number
        core.session.now_ms = core.now_ms()
        done = core.session.members.extend(member, offset)
        yield Until(lambda done=done, number=number: done.done or member.number != number)  # type: ignore[misc]
        if done.done:
            return


def _check_in_flight(member: Member, message: Message) -> None:
    """Raises Fenced unless the message has been handed out and nothing has been said about it."""
    offset = message.offset
    if not member.has(offset, message.attempt) or offset in member.waiters or offset in member.nacks:
        raise member.lost(offset)


def _quiet(core: Core, member: Member, deadline_ms: int) -> Operation[None]:
    """Lets acks, and what is given back, come to their end."""
    core.session.now_ms = core.now_ms()
    core.session.members.flush(member)
    yield Until(lambda: idle(member) and not (member.standing and member.nacks), deadline_ms)


def idle(member: Member) -> bool:
    """Whether nothing is to be acked, or nothing can be."""
    return not member.number or not (member.ack_request or (member.ready_batches and member.error is None))


def put_down(core: Core, member: Member, deadline_ms: int) -> Operation[None]:
    """Acks what was dealt with, gives back the rest and ends the stream, if that can be done by the deadline."""
    members = core.session.members
    while member.number and core.now_ms() < deadline_ms:
        number = member.number
        if member.standing:
            yield from _quiet(core, member, deadline_ms)
        if member.standing and member.number == number:
            core.session.now_ms = core.now_ms()
            rested = members.pause(member)
            yield Until(lambda rested=rested, number=number: rested.done or member.number != number, deadline_ms)  # type: ignore[misc]
        elif member.number == number:
            yield Until(lambda number=number: member.standing or member.number != number, deadline_ms)  # type: ignore[misc]
    members.put_down(member)


def close(core: Core, member: Member) -> Operation[None]:
    """Puts down what is in flight, for good; takes one time-out at most."""
    member.closed = True
    yield from put_down(core, member, core.now_ms() + core.session.settings.timeout_ms)
    core.session.members.drop(member)


class Worker:
    """The steps of one loop over a group's messages.

    The shell asks for a piece with `step`, hands the messages out, and counts in `done` those after which the next
    one was asked for. `leave` ends the loop; what is handed out and not `done` is given back, which was an attempt, and
    what nobody has looked at waits for anyone who takes next.
    """

    def __init__(self, core: Core, member: Member, timeout: float | None) -> None:
        self.done = 0
        self.taken = 0
        """How many messages of the present piece have been handed out, if that is more than `done`."""
        self.changes = -1
        """The member's `changes` when the present piece was handed out."""
        self._core = core
        self._member = member
        self._timeout = timeout
        self._claimed = False
        self._share: Share | None = None
        self._start = 0
        self._messages: Iterator[Message] = iter(())
        self._stride = 1
        self._stepped_ms = 0
        self._unsent = 0
        self._flushed_ms = 0
        self._enough = max(1, core.session.settings.room_messages // 4)
        """Acks of a quick loop travel in pieces of this size, or whatever would come would be as small."""

    def step(self) -> Operation[Iterator[Message] | None]:
        """The next few messages, or None at the end of the loop.

        They end early when something in flight has changed: then the next step looks at the rest again.
        """
        piece = yield from self.step_unwatched()
        return None if piece is None else self._watched(piece, self.changes)

    def _watched(self, piece: Iterator[Message], changes: int) -> Iterator[Message]:
        member = self._member
        for message in piece:
            if member.changes != changes:
                return
            self.taken += 1
            yield message

    def step_unwatched(self) -> Operation[Iterator[Message] | None]:
        """The same for a shell that stops by itself once the member's `changes` are no longer those of this step."""
        self._pace()
        share = yield from self._next()
        if share is None:
            return None
        member = self._member
        if share is not self._share or member.changes != self.changes:
            self._share, self.changes = share, member.changes
            self._messages = islice(iter(share), member.index, None)
        self._start = member.index
        if share.attempt > 1:  # One at a time, so that it is known which one a process has died of.
            self._stride = 1
        hand_out(self._core, member, share, member.index, min(member.index + self._stride, len(share.values)))
        member.given = member.take(self._stride)
        self._stepped_ms = self._core.now_ms()
        return islice(self._messages, len(member.given))

    def step_batch(self) -> Operation[Share | None]:
        """The next messages together, or None at the end of the loop."""
        share = yield from self._next()
        if share is None:
            return None
        member = self._member
        if member.index:
            share = share.select(range(member.index, len(share.values)))
        self._share, self._start, self.taken = share, 0, len(share.values)
        hand_out(self._core, member, share, 0, len(share.values))
        member.given = member.take(len(share.values))
        return share

    def leave(self) -> None:
        """Ends the loop: what was dealt with is acked, what is in flight goes back, the rest waits."""
        if self._claimed:
            self._claimed = False
            self._note_done()
            self._member.owner = None

    def _next(self) -> Operation[Share | None]:
        core, member = self._core, self._member
        if not self._claimed:
            claim(member)
            self._claimed = True
        self._note_done()
        fenced = core.session.main.fenced
        if fenced is not None:
            raise Fenced(str(fenced))
        deadline_ms = core.deadline_ms(self._timeout)
        if not (yield from fill(core, member, deadline_ms, self._timeout is not None)):
            return None
        return member.head()

    def _note_done(self) -> None:
        """Takes note of what has been dealt with since the last step."""
        done, self.done = self.done, 0
        taken, self.taken = max(done, self.taken), 0
        member = self._member
        given, member.given = member.given, ()
        if given:
            member.finish(given if done == len(given) else given[:done])
            if done < len(given) and self._share is not None:
                if taken < len(given):
                    member.put_back(self._share, self._start + taken, self._start + len(given))
                failed = [
                    each for each in given[done:taken] if each in member.in_flight and each not in member.answered
                ]
                if failed:
                    self._core.session.now_ms = self._core.now_ms()
                    member.note_return(failed)
                    self._core.session.members.nack(member, failed, 0)
            member.answered.clear()
        if member.ready_batches:
            now_ms = self._core.session.now_ms = self._core.now_ms()
            self._unsent += done
            members = self._core.session.members
            late, last = now_ms - self._flushed_ms >= SLOW_MS, not (self._claimed and member.ready())
            if late or last or self._unsent >= self._enough:
                self._unsent, self._flushed_ms = 0, now_ms
                if last or (late and not member.any_whole()):
                    members.flush(member)
                else:
                    members.flush_whole(member, self._enough)

    def _pace(self) -> None:
        """Quick loops look after the connection every now and then, slow ones after each message."""
        took_ms = self._core.now_ms() - self._stepped_ms
        if took_ms <= QUICK_MS:
            self._stride = min(self._stride * 2, STRIDE_MAX)
        elif took_ms >= SLOW_MS:
            self._stride = 1


class Bench:
    """The memberships that handlers work for: whose turn is next, and what is acked or given back."""

    def __init__(self, core: Core, members: Sequence[Member]) -> None:
        self._core = core
        self._members = members
        self._claimed: list[Member] = []
        self._turn = 0
        self._in_flight: tuple[Member, Share, int] | None = None

    def claim(self) -> None:
        """Begins."""
        for member in self._members:
            if member not in self._claimed:
                claim(member)
                self._claimed.append(member)

    def look_after(self) -> None:
        """Opens what is closed, and raises what went wrong with what has nothing to give."""
        for member in self._claimed:
            if not member.ready():
                check(self._core, member)
                if not member.number:
                    self._core.session.now_ms = self._core.now_ms()
                    self._core.session.members.open(member)

    def stirred(self) -> bool:
        """Whether it is time to look again."""
        return any(member.ready() or member.error is not None or not member.number for member in self._claimed)

    def next(self) -> tuple[Member, Message] | None:
        """Takes turns between the memberships that have something."""
        for step in range(len(self._claimed)):
            member = self._claimed[(self._turn + step) % len(self._claimed)]
            if member.ready():
                self._turn = (self._turn + step + 1) % len(self._claimed)
                share, row = member.head(), member.index
                assert share is not None
                hand_out(self._core, member, share, row, row + 1)
                member.given = member.take(1)
                self._in_flight = (member, share, row)
                return member, share[row]
        return None

    def note_done(self) -> None:
        """The handlers of the message in flight have returned."""
        if self._in_flight is not None:
            member, share, row = self._in_flight
            self._in_flight = None
            member.finish((share.offsets[row],))
            self._forget_given(member)
            self._core.session.now_ms = self._core.now_ms()
            self._core.session.members.flush(member)

    def leave(self) -> Operation[None]:
        """Ends; what the memberships have in flight goes back, a message whose handlers have not returned included."""
        claimed, self._claimed = self._claimed, []
        if self._in_flight is not None:
            member, self._in_flight = self._in_flight[0], None
            self._forget_given(member)
        for member in claimed:
            member.owner = None
        deadline_ms = self._core.now_ms() + self._core.session.settings.timeout_ms
        for member in claimed:
            yield from put_down(self._core, member, deadline_ms)

    def _forget_given(self, member: Member) -> None:
        member.given = ()
        member.answered.clear()
