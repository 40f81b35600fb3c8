"""What a bus does, written once for the blocking and the awaiting shell.

An operation is a generator. It yields what it waits for, a `Future` or an `Until`, and the shell resumes it
once that has happened (or, for an `Until`, when its deadline has passed). It returns the result or raises.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Generator, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from tidings.client import forks
from tidings.client.arguments import check_path, check_seconds, several_topics, topics_of
from tidings.client.future import Future
from tidings.client.inbox import Inbox
from tidings.client.puts import Entry, Record, Together
from tidings.client.record import Recorder, Subscriber
from tidings.client.request import Identity
from tidings.client.rows import Value
from tidings.client.session import Session
from tidings.errors import (
    InvalidRequest,
    NoSuchTopic,
    NotSubscribed,
    Overloaded,
    ProtocolError,
    TidingsError,
    Unavailable,
)
from tidings.message import Receipt, TopicInfo, check_size, check_topic
from tidings.protocols.broker.messages import (
    AnyAnswer,
    AskStatus,
    AskSubscribers,
    AskSubscriptions,
    AskTopics,
    Bye,
    LimitTopic,
    Sequence,
    Shutdown,
    ShutdownDone,
    Start,
    Status,
    Subscribe,
    SubscribeDone,
    Subscribers,
    Subscriptions,
    Topics,
    Unsubscribe,
    UnsubscribeDone,
)

T = TypeVar("T")
A = TypeVar("A")
E = TypeVar("E", bound=Entry)

OVERLOAD_PAUSE_MS = 5
OVERLOAD_PAUSE_MS_MAX = 500
"""How long a put that was refused as Overloaded waits before its next try, at first and at most."""


class Until:
    """Waits for a condition, at most until a deadline; resumes with whether it came true."""

    __slots__ = ("deadline_ms", "ready")

    def __init__(self, ready: Callable[[], bool], deadline_ms: int | None = None) -> None:
        self.ready = ready
        self.deadline_ms = deadline_ms


Wait = Future[Any] | Until
Operation = Generator[Wait, bool, T]


class Core:
    """What the operations of one bus share."""

    def __init__(
        self,
        session: Session,
        inbox: Inbox | None,
        now_ms: Callable[[], int],
        run: Callable[[Operation[Any]], Any],
        now_us: Callable[[], int] = lambda: time.time_ns() // 1000,
    ) -> None:
        self.session = session
        self.inbox = inbox
        self.record: Recorder | None = None
        """Where all deliveries of the bus are written down, if anywhere."""
        self._recorders: dict[Path, Recorder] = {}
        self.now_ms = now_ms
        self.now_us = now_us
        self.run = run
        """Runs an operation to its end: a value for the blocking shell, an awaitable for the other."""
        self.subscriptions: dict[tuple[str, ...], None] | None = None
        """What the client has subscribed, once it has been asked."""
        self.stopping = False
        self.inherited = False
        """Whether this is a copy in the child of a fork."""
        forks.own(self)

    def abandon(self) -> None:
        """This is the child of a fork."""
        self.inherited = True

    @property
    def client_id(self) -> str:
        """The name that this bus speaks for."""
        return self.session.main.name

    def recorder(self, folder: str | os.PathLike[str]) -> Recorder:
        """The record in a folder; subscriptions that name the same one share it."""
        path = check_path(folder, "record")
        if path not in self._recorders:
            main = self.session.main
            self._recorders[path] = Recorder(path, self.client_id, self.now_us, lambda: main.epoch)
        return self._recorders[path]

    def close_records(self) -> None:
        """Writes down how far each recorded subscription has been acknowledged, and ends the records."""
        try:
            for stream in self.session.streams.all():
                recorder = stream.record or self.record
                if recorder is not None and stream.on_return is not None:
                    for topic, offset in stream.acknowledged.items():
                        recorder.stands(exclusive(self.client_id, stream.topics), topic, offset)
        finally:
            with contextlib.ExitStack() as stack:
                for each in self._recorders.values():
                    stack.callback(each.close)

    def close_files(self) -> None:
        """Ends the records and gives back the inbox, also if the disk has no room for the last words."""
        try:
            self.close_records()
        finally:
            if self.inbox is not None:
                self.inbox.close()

    def deadline_ms(self, timeout: float | None) -> int | None:
        """The moment that lies `timeout` seconds ahead."""
        return None if timeout is None else self.now_ms() + round(min(check_seconds(timeout), 1e9) * 1000)


def exclusive(client: str, topics: tuple[str, ...]) -> Subscriber:
    """The name that an exclusive subscription has in records.

    >>> exclusive("alice", ("news",)).name, exclusive("alice", ("news", "sport")).name
    ('alice', 'alice (news, sport)')
    """
    return Subscriber(client if len(topics) == 1 else f"{client} ({', '.join(topics)})")


def wait_for(future: Future[T]) -> Operation[T]:
    """Waits for an answer and returns or raises what it says."""
    if not future.done:
        yield future
    return future.outcome()


def ask(core: Core, make: Callable[[int, int], Any], kind: type[A]) -> Operation[A]:
    """Sends one request and waits for an answer of that kind."""
    answer: AnyAnswer = yield from wait_for(core.session.request(core.now_ms(), make).future)
    return expect(answer, kind)


def expect(answer: object, kind: type[A]) -> A:
    """The answer itself if it is of that kind."""
    if not isinstance(answer, kind):
        raise ProtocolError(
            f"The broker answered {type(answer).__name__} where {kind.__name__} was expected: is that a tidings broker?"
        )
    return answer


# Sessions.


def start(core: Core) -> Operation[None]:
    """Says Hello and waits for the Welcome."""
    yield from wait_for(core.session.start(core.now_ms()))


def finish(core: Core) -> Operation[None]:
    """Lets what is under way come to its end, then says Bye; takes one time-out at most and never fails."""
    session = core.session
    deadline = core.now_ms() + session.settings.timeout_ms
    for stream in session.streams.all():
        stream.note_handed()
        session.streams.flush(stream)
    for member in session.members.all():
        session.members.flush(member)
    yield Until(lambda: _all_quiet(session), deadline)
    rests = [(each, each.number, session.members.pause(each)) for each in session.members.all() if each.standing]
    yield Until(lambda: all(rest.done or each.number != number for each, number, rest in rests), deadline)
    for member in session.members.all():  # No stream is to begin again behind the Bye.
        session.members.put_down(member)
    futures = []
    for who in session.identities.values():
        if who.epoch and who.fenced is None and who.greeting is None:
            futures.append(say_bye(core, who))
    yield Until(lambda: all(future.done for future in futures), deadline)


def say_bye(core: Core, who: Identity) -> Future[AnyAnswer]:
    """Ends the session of one name."""
    name = who.name
    return core.session.request(core.now_ms(), lambda number, epoch: Bye(number, name, epoch), identity=who).future


def _all_quiet(session: Session) -> bool:
    return (
        all(who.outbox.idle for who in session.identities.values())
        and not any(stream.acking for stream in session.streams.all())
        and not any(each.ack_request or (each.standing and each.nacks) for each in session.members.all())
    )


# Publishing.


def make_record(
    core: Core,
    topic: str | Iterable[str],
    value: Value,
    key: Value | None = None,
    headers: Mapping[str, Value] | None = None,
    id: str | None = None,
    sequence: int | None = None,
) -> Record:
    """One message of this moment, checked."""
    if isinstance(topic, str):
        topics: tuple[str, ...] = (check_topic(topic),)
    else:
        topics = several_topics(topic)
    record = Record(topics, value, key, headers, id, core.now_us(), sequence)
    limits = core.session.limits
    if limits is not None:
        check_size(len(record.value), limits.message_bytes_max)
    if sequence is not None:
        if len(topics) > 1:
            raise InvalidRequest("A sequence number belongs to one topic: put to one topic at a time with it.")
        if type(sequence) is not int or sequence < 1:
            raise InvalidRequest(f"A sequence number must be 1 or more, not {sequence!r}.")
    return record


def give(core: Core, entry: E, identity: Identity | None = None) -> E:
    """Hands something to the outbox; its future has the receipts."""
    core.session.now_ms = core.now_ms()
    (identity or core.session.main).outbox.give(entry)
    return entry


def receipts(core: Core, entry: Entry, identity: Identity | None = None) -> Operation[Any]:
    """Waits for what became of an entry; an Unavailable gets its `resend`."""
    future = entry.future  # Another may be in its place by the time that this one is done: it was sent again.
    if not future.done:
        try:
            yield future
        except BaseException as error:  # Its task was cancelled, or an interrupt came: the caller may go on after that.
            entry.stop()
            where = ", ".join(entry.topics)
            error.add_note(
                f"What was being put to {where} may be stored, now or soon; what was sent is not taken back."
            )
            raise
    if isinstance(future.error, Unavailable):
        who = identity or core.session.main
        future.error.resend = lambda: core.run(resend(core, entry, who))
    return future.outcome()


def put(
    core: Core,
    topic: str | Iterable[str],
    value: Value,
    key: Value | None = None,
    headers: Mapping[str, Value] | None = None,
    id: str | None = None,
    sequence: int | None = None,
    identity: Identity | None = None,
    wait: float | None = None,
) -> Operation[Any]:
    """Stores one message and waits for the receipt: one for a topic, a list for several.

    What is refused as Overloaded is tried again, with growing pauses, for `wait` seconds.
    """
    until_ms = core.deadline_ms(core.session.settings.overload_wait_ms / 1000 if wait is None else wait)
    pause_ms = OVERLOAD_PAUSE_MS
    while True:
        entry = give(core, make_record(core, topic, value, key, headers, id, sequence), identity)
        try:
            found: list[Receipt] = yield from receipts(core, entry, identity)
        except Overloaded:
            now_ms = core.now_ms()
            assert until_ms is not None
            if now_ms >= until_ms:
                raise
            yield Until(lambda: False, min(now_ms + pause_ms, until_ms))
            pause_ms = min(2 * pause_ms, OVERLOAD_PAUSE_MS_MAX)
        else:
            return found[0] if isinstance(topic, str) else found


def conclude(core: Core, entry: Together) -> Operation[Any]:
    """Waits for what became of a transaction and lets its streams know."""
    entry.unknown()  # For as long as the answer is not there, and if nobody stays to wait for it.
    try:
        found = yield from receipts(core, entry)
    except Unavailable:
        raise
    except TidingsError:
        entry.undone()
        raise
    entry.happened()
    return found


def resend(core: Core, entry: Entry, who: Identity) -> Operation[Any]:
    """Sends a put that ended as Unavailable once more as it was."""
    core.session.now_ms = core.now_ms()
    who.outbox.resend(entry)
    if entry.gone:
        return (yield from wait_for(who.outbox.resend(entry)))
    if isinstance(entry, Together):
        return (yield from conclude(core, entry))
    found = yield from receipts(core, entry, who)
    return found[0] if isinstance(entry, Record) and len(entry.topics) == 1 else found


def last_sequence(core: Core, topic: str, who: Identity) -> Operation[int]:
    """The last sequence number that the topic took from this name, for good: nothing is still under way."""
    outbox = who.outbox
    core.session.now_ms = core.now_ms()
    outbox.fence_unknown(check_topic(topic))
    yield Until(lambda: outbox.is_quiet(topic))
    if outbox.has_unknown(topic):
        raise core.session.unavailable()
    core.session.now_ms = core.now_ms()
    answer = yield from wait_for(outbox.last_sequence(topic).future)
    return expect(answer, Sequence).last


# Subscriptions and topics.


def subscribe(core: Core, topic: str | Iterable[str], start: Start) -> Operation[tuple[str, ...]]:
    """Makes a subscription or finds it; returns its topics."""
    topics = topics_of(topic)
    if not (start in ("now", "earliest", "last") or (type(start) is int and start >= 0)):
        raise InvalidRequest(f'start must be "now", "earliest", "last" or an offset, not {start!r}.')
    yield from end_leaving(core, topics)
    name = core.client_id
    done = yield from ask(core, lambda number, epoch: Subscribe(number, name, epoch, topics, start), SubscribeDone)
    if done.created:
        _drop(core, topics)
    if core.subscriptions is not None:
        core.subscriptions[topics] = None
    return topics


def unsubscribe(core: Core, topic: str | Iterable[str]) -> Operation[None]:
    """Ends a subscription."""
    topics = topics_of(topic)
    name = core.client_id
    core.session.streams.of(topics).leaving = True
    try:
        yield from ask(core, lambda number, epoch: Unsubscribe(number, name, epoch, topics), UnsubscribeDone)
    except (NotSubscribed, NoSuchTopic):
        _drop(core, topics)
        raise
    _drop(core, topics)


def end_leaving(core: Core, topics: tuple[str, ...]) -> Operation[None]:
    """Finds out whether an unsubscribe that was never answered has happened, and makes sure that it stays so."""
    if core.session.streams.of(topics).leaving:
        core.session.main.renew = True  # The new epoch fences copies of it that may still arrive.
        core.subscriptions = None
        if topics in (yield from subscriptions(core)):
            core.session.streams.of(topics).leaving = False
        else:
            _drop(core, topics)


def _drop(core: Core, topics: tuple[str, ...]) -> None:
    core.session.streams.drop(topics)
    if core.subscriptions is not None:
        core.subscriptions.pop(topics, None)
    if core.inbox is not None:
        core.inbox.forget(topics)


def subscriptions(core: Core) -> Operation[list[tuple[str, ...]]]:
    """The client's subscriptions, each as its topics."""
    if core.subscriptions is None:
        name = core.client_id
        answer = yield from ask(core, lambda number, epoch: AskSubscriptions(number, name, epoch), Subscriptions)
        core.subscriptions = dict.fromkeys(answer.subscriptions)
    return list(core.subscriptions)


def subscribers(core: Core) -> Operation[dict[str, list[tuple[str, ...]]]]:
    """The names below the client's own that have subscriptions, with these."""
    name = core.client_id
    answer = yield from ask(core, lambda number, epoch: AskSubscribers(number, name, epoch), Subscribers)
    return {subscriber: list(topics) for subscriber, topics in answer.subscribers.items()}


def topics(core: Core) -> Operation[list[TopicInfo]]:
    """All topics."""
    answer = yield from ask(core, lambda number, _: AskTopics(number), Topics)
    return list(answer.topics)


def topic(core: Core, name: str) -> Operation[TopicInfo]:
    """One topic."""
    check_topic(name)
    answer = yield from ask(core, lambda number, _: AskTopics(number, name), Topics)
    for info in answer.topics:
        if info.name == name:
            return info
    raise NoSuchTopic(f"There is no topic {name!r}: subscribe or put to it first.")


def limit_topic(core: Core, name: str, max_backlog: int | None) -> Operation[None]:
    """Sets how many messages may wait in a topic."""
    check_topic(name)
    if max_backlog is not None and not (type(max_backlog) is int and max_backlog >= 0):
        raise InvalidRequest(f"max_backlog is None, 0 or a number of messages, and this is {max_backlog!r}.")
    yield from ask(core, lambda number, _: LimitTopic(number, name, max_backlog), Topics)


def status(core: Core) -> Operation[dict[str, int]]:
    """Plain numbers about the broker, by name."""
    answer = yield from ask(core, lambda number, _: AskStatus(number), Status)
    return dict(answer.numbers)


def shutdown(core: Core) -> Operation[None]:
    """Stops the broker."""
    name = core.client_id
    yield from ask(core, lambda number, epoch: Shutdown(number, name, epoch), ShutdownDone)
