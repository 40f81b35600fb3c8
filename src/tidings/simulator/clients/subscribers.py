"""Roles that read: by get, in a loop, in batches, all at once, in transactions, and for a while only."""

from __future__ import annotations

from collections.abc import Callable

from tidings.client import operations, reading
from tidings.client.operations import Operation
from tidings.client.transaction import Parts
from tidings.errors import NoSuchTopic, NotSubscribed, OutOfSequence, Overloaded, Unavailable
from tidings.message import Message
from tidings.protocols.broker.messages import Start
from tidings.simulator.checkers.ledger import SEPARATOR
from tidings.simulator.clients.client import ClientProcess
from tidings.simulator.clients.publishers import insist

POLL_S = 0.3

Handler = Callable[[Message], object]


def _subscribe(me: ClientProcess, topics: tuple[str, ...], start: Start) -> Operation[None]:
    yield from insist(me, lambda: operations.subscribe(me.core, topics, start))
    me.world.note(me.label, f"is subscribed to {', '.join(topics)}")


def _rest(me: ClientProcess) -> Operation[None]:
    """Waits a little after something went wrong."""
    yield from me.sleep(me.world.random.randint(10, 200))


def _work(me: ClientProcess, pace_ms: int) -> Operation[None]:
    """What an application does with a message."""
    if pace_ms and me.world.random.random() < 0.7:
        yield from me.sleep(me.world.random.randint(0, pace_ms))


def getting(me: ClientProcess, topics: tuple[str, ...], start: Start, pace_ms: int) -> Operation[None]:
    """`get` one after another."""
    yield from _subscribe(me, topics, start)
    while not me.world.drained(me.name, topics):
        yield from _get_one(me, topics)
        yield from _work(me, pace_ms)


def _get_one(me: ClientProcess, topics: tuple[str, ...]) -> Operation[None]:
    try:
        message = yield from reading.get(me.core, topics, me.core.deadline_ms(POLL_S))
    except (Unavailable, Overloaded):
        yield from _rest(me)
    else:
        if message is not None:
            me.world.watch.on_handed(me, topics, message)


def looping(me: ClientProcess, topics: tuple[str, ...], start: Start, pace_ms: int) -> Operation[None]:
    """`for message in subscription`: acknowledged when the next one is asked for."""
    yield from _loop(me, topics, start, pace_ms, POLL_S)


def handling(
    me: ClientProcess, topics: tuple[str, ...], start: Start, pace_ms: int, handler: Handler
) -> Operation[None]:
    """A loop that calls a handler with each message."""
    yield from _loop(me, topics, start, pace_ms, POLL_S, handler)


def waiting(me: ClientProcess, topics: tuple[str, ...], start: Start, pace_ms: int) -> Operation[None]:
    """The same without a time-out: it never asks, and has to be given what there is."""
    yield from _loop(me, topics, start, pace_ms, None)


def _loop(
    me: ClientProcess,
    topics: tuple[str, ...],
    start: Start,
    pace_ms: int,
    timeout: float | None,
    handler: Handler = bool,
) -> Operation[None]:
    yield from _subscribe(me, topics, start)
    while not me.world.drained(me.name, topics):
        reader = reading.Reader(me.core, me.session.streams.of(topics), timeout)
        try:
            while (piece := (yield from reader.step())) is not None:
                for message in piece:
                    me.world.watch.on_handed(me, topics, message)
                    handler(message)
                    yield from _work(me, pace_ms)
                    reader.done += 1
                if me.world.random.random() < 0.05:
                    break
        except (Unavailable, Overloaded):
            yield from _rest(me)
        finally:
            reader.leave()
    yield from me.sleep(50)


def batching(me: ClientProcess, topics: tuple[str, ...], start: Start, pace_ms: int) -> Operation[None]:
    """`for batch in subscription.batches()`: a batch is acknowledged as one."""
    yield from _subscribe(me, topics, start)
    while not me.world.drained(me.name, topics):
        reader = reading.Reader(me.core, me.session.streams.of(topics), POLL_S)
        try:
            while (batch := (yield from reader.step_batch())) is not None:
                for message in batch:
                    me.world.watch.on_handed(me, topics, message)
                yield from _work(me, pace_ms)
                reader.done = len(batch)
        except (Unavailable, Overloaded):
            yield from _rest(me)
        finally:
            reader.leave()
    yield from me.sleep(50)


def getting_all(me: ClientProcess, topics: tuple[str, ...], start: Start, pace_ms: int) -> Operation[None]:
    """`get_all`: one message of each one-topic subscription at a time."""
    for name in topics:
        yield from _subscribe(me, (name,), start)
    while not all(me.world.drained(me.name, (name,)) for name in topics):
        try:
            found = yield from reading.get_all(me.core)
        except (Unavailable, Overloaded):
            yield from _rest(me)
            continue
        for topic, message in found.items():
            me.world.watch.on_handed(me, (topic,), message)
        yield from me.sleep(20 if found else 200)
        yield from _work(me, pace_ms)


def coming_and_going(me: ClientProcess, topics: tuple[str, ...], start: Start, pace_ms: int) -> Operation[None]:
    """Subscribes, reads a few, unsubscribes, and again."""
    random = me.world.random
    for _ in range(random.randint(1, 4)):
        yield from _subscribe(me, topics, random.choice(("now", "earliest", "last")))
        for _ in range(random.randint(0, 4)):
            yield from _get_one(me, topics)
            yield from _work(me, pace_ms)
        while me.world.idle_ms and me.world.watch.once.missing((me.name, topics)):  # Only what is acked may go.
            yield from _get_one(me, topics)
        try:
            yield from insist(me, lambda: operations.unsubscribe(me.core, topics))
        except (NotSubscribed, NoSuchTopic):  # The topic may have gone after it.
            me.world.note(me.label, "finds that its unsubscribe had already happened")
        if me.world.idle_ms:
            yield from me.sleep(me.world.idle_ms)


def transacting(
    me: ClientProcess, topics: tuple[str, ...], start: Start, pace_ms: int, answers: str
) -> Operation[None]:
    """Takes some, puts an answer to each, and both happen together or not at all."""
    random, watch = me.world.random, me.world.watch
    yield from _subscribe(me, topics, start)
    while not me.world.drained(me.name, topics):
        parts = Parts(me.core)
        try:
            for _ in range(random.randint(1, 3)):
                message = yield from parts.get(topics, me.core.deadline_ms(POLL_S))
                if message is None:
                    break
                watch.on_handed(me, topics, message)
                answer = f"{me.name}:{message.topic}:{message.offset}"
                watch.on_given(me, answer, (answers,))
                parts.put(answers, answer.encode() + SEPARATOR, None, None, None)
                yield from _work(me, pace_ms)
        except (Unavailable, Overloaded):
            parts.roll_back()
            yield from _rest(me)
            continue
        if random.random() < 0.1:
            me.world.note(me.label, "changes its mind")
            parts.roll_back()
            continue
        try:
            yield from parts.commit()
        except (Unavailable, Overloaded, OutOfSequence) as error:
            me.world.note(me.label, f"got no commit: {error}")
            yield from _rest(me)
