"""Roles that put: three ways of publishing that users rely on, each with its own promise.

- *resuming*: publishes a list in order, one after another. After a crash it asks for its last sequence number
  and goes on from there, so every item is stored exactly once.
- *keyed*: publishes many at a time, each under an id, and puts again whatever it is not sure of. Every item is
  stored exactly once.
- *careless*: publishes many at a time and does not come back to what a crash left with an unknown outcome. Every item
  is stored at most once, and once if it was acknowledged.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any, TypeVar

from tidings.client import operations
from tidings.client.operations import Operation, Until
from tidings.client.puts import Bulk, Entry
from tidings.client.request import Identity
from tidings.client.rows import Source
from tidings.errors import OutOfSequence, Overloaded, Unavailable
from tidings.simulator.checkers.ledger import PADDING, SEPARATOR
from tidings.simulator.clients.client import ClientProcess

T = TypeVar("T")

Item = tuple[tuple[str, ...], str]
"""Topics and the unique name of a message for them."""


class Script:
    """What a name has to publish, and what it knows of it over all its lives."""

    def __init__(self, publisher: str, items: list[Item], window: int, pace_ms: int, padding_max: int) -> None:
        self.publisher = publisher
        self.items = items
        self.window = window
        """How many puts are under way at once."""
        self.pace_ms = pace_ms
        self.padding_max = padding_max
        self.keys: dict[str, bytes] = {}
        """The keys of messages that have one."""
        self.position = 0
        self.confirmed: dict[str, None] = {}
        self.done = False
        self.at_work = 0
        """Lives that are at work on what others do not know of: what is under way may still be stored."""

    @property
    def is_over(self) -> bool:
        """Whether nobody will publish anything of it any more."""
        return self.done and not self.at_work

    def value(self, random: Random, name: str) -> bytes:
        padding = PADDING * random.randint(0, self.padding_max)
        return name.encode() + SEPARATOR + padding if self.padding_max else name.encode()


def insist(me: ClientProcess, attempt: Callable[[], Operation[T]]) -> Operation[T]:
    """Tries until there is an answer that is not for now."""
    while True:
        try:
            return (yield from attempt())
        except (Unavailable, Overloaded):
            yield from me.sleep(me.world.random.randint(10, 200))


def _give(me: ClientProcess, script: Script, item: Item, who: Identity, with_id: bool) -> Entry:
    topics, name = item
    me.world.watch.on_given(me, name, topics)
    value = script.value(me.world.random, name)
    key = script.keys.get(name)
    record = operations.make_record(me.core, topics, value, key=key, id=name if with_id else None)
    return operations.give(me.core, record, who)


def _outcome(me: ClientProcess, entry: Entry, who: Identity) -> Operation[Any]:
    """What became of an entry; what has an unknown outcome is sent again as it was."""
    while True:
        try:
            return (yield from operations.receipts(me.core, entry, who))
        except Unavailable:
            yield from me.sleep(me.world.random.randint(10, 200))
            me.world.note(me.label, "sends again what has an unknown outcome")
            me.session.now_ms = me.world.now_ms
            if entry.gone:
                raise
            who.outbox.resend(entry)


# Resuming.


def resuming(me: ClientProcess, script: Script) -> Operation[None]:
    who = me.session.main
    if script.publisher != me.name:
        who = me.session.identity(script.publisher, me.world.random.randbytes(16))
    while True:
        position = yield from _stored_count(me, script, who)
        if position == len(script.items):
            break
        try:
            yield from _publish_from(me, script, position, who)
        except (Overloaded, OutOfSequence, Unavailable) as error:
            me.world.note(me.label, f"asks where it stands after {type(error).__name__}: {error}")
            yield from me.sleep(me.world.random.randint(10, 200))
    script.done = True


def _stored_count(me: ClientProcess, script: Script, who: Identity) -> Operation[int]:
    """How many items the broker has, by its own account of the sequence numbers."""
    lasts: dict[str, int] = {}
    for topic in dict.fromkeys(topic for topics, _ in script.items for topic in topics):
        lasts[topic] = yield from insist(me, lambda topic=topic: operations.last_sequence(me.core, topic, who))  # type: ignore[misc]
    me.world.note(me.label, f"learns its last sequence numbers: {lasts}")
    counts = dict.fromkeys(lasts, 0)
    position = 0
    for topics, _ in script.items:
        if any(counts[topic] + 1 > lasts[topic] for topic in topics):
            break
        position += 1
        for topic in topics:
            counts[topic] += 1
    if counts != lasts:
        me.world.watch.violate(
            "several at once are all or none", f"{script.publisher} has the last sequence numbers {lasts}, not {counts}"
        )
    return position


def _publish_from(me: ClientProcess, script: Script, position: int, who: Identity) -> Operation[None]:
    random, watch = me.world.random, me.world.watch
    while position < len(script.items):
        yield from me.sleep(random.randint(0, script.pace_ms))
        if me.world.idle_ms and random.random() < 0.1:
            yield from me.sleep(me.world.idle_ms)
        topics, name = script.items[position]
        many = [name]
        if len(topics) == 1 and random.random() < 0.3:
            for more_topics, more in script.items[position + 1 : position + random.randint(2, 9)]:
                if more_topics != topics:
                    break
                many.append(more)
        if len(many) > 1:
            for each in many:
                watch.on_given(me, each, topics)
            values = [script.value(random, each) for each in many]
            keys = [script.keys.get(each) for each in many] if script.keys else None
            entry = Bulk(topics[0], Source(values, keys, me.core.now_us))
            receipts = yield from _outcome(me, operations.give(me.core, entry, who), who)
            watch.on_many(me, topics[0], many, receipts)
        else:
            receipts = yield from _outcome(me, _give(me, script, script.items[position], who, False), who)
            watch.on_receipts(me, name, receipts)
        position += len(many)


# Keyed.


def keyed(me: ClientProcess, script: Script) -> Operation[None]:
    who, random = me.session.main, me.world.random
    under_way: dict[str, tuple[Item, Entry]] = {}
    while True:
        left = [item for item in script.items if item[1] not in script.confirmed and item[1] not in under_way]
        if not left and not under_way:
            break
        while left and len(under_way) < script.window:
            item = left.pop(0)
            under_way[item[1]] = (item, _give(me, script, item, who, True))
        yield Until(lambda: any(entry.future.done for _, entry in under_way.values()))
        for name, (_, entry) in list(under_way.items()):
            if entry.future.done:
                del under_way[name]
                try:
                    me.world.watch.on_receipts(me, name, entry.future.outcome())  # type: ignore[arg-type]
                    script.confirmed[name] = None
                except (Unavailable, Overloaded, OutOfSequence) as error:
                    me.world.note(me.label, f"is not sure of {name}: {type(error).__name__}")
        yield from me.sleep(random.randint(0, script.pace_ms))
        if me.world.idle_ms and random.random() < 0.1:
            yield from me.sleep(me.world.idle_ms)
    script.done = True


# Careless.


def _any_done(under_way: list[tuple[Item, Entry]]) -> bool:
    return any(entry.future.done for _, entry in under_way)


def careless(me: ClientProcess, script: Script) -> Operation[None]:
    script.at_work += 1
    try:
        yield from _put_carelessly(me, script)
    finally:
        script.at_work -= 1


def _put_carelessly(me: ClientProcess, script: Script) -> Operation[None]:
    who, random = me.session.main, me.world.random
    under_way: list[tuple[Item, Entry]] = []
    again: list[Item] = []
    while script.position < len(script.items) or under_way or again:
        while (again or script.position < len(script.items)) and len(under_way) < script.window:
            if again:
                item = again.pop(0)
            else:
                item = script.items[script.position]
                script.position += 1
            under_way.append((item, _give(me, script, item, who, False)))
        yield Until(partial(_any_done, under_way))
        if me.world.idle_ms and random.random() < 0.1:
            yield from me.sleep(me.world.idle_ms)
        done = [pair for pair in under_way if pair[1].future.done]
        under_way = [pair for pair in under_way if not pair[1].future.done]
        for item, entry in done:
            if not entry.future.done:  # Sent again together with one before it.
                under_way.append((item, entry))
                continue
            try:
                me.world.watch.on_receipts(me, item[1], entry.future.outcome())  # type: ignore[arg-type]
            except Unavailable:
                if random.random() < 0.5 and not entry.gone:
                    me.world.note(me.label, f"sends {item[1]} again as it was")
                    me.session.now_ms = me.world.now_ms
                    who.outbox.resend(entry)
                    under_way.append((item, entry))
            except (Overloaded, OutOfSequence) as error:
                # Both say that nothing was stored, so the same message may be put as a new one.
                me.world.note(me.label, f"puts {item[1]} again after {type(error).__name__}")
                again.append(item)
        yield from me.sleep(random.randint(0, script.pace_ms))
    script.done = True
