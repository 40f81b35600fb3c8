"""Roles of those who work in bulk: a query that writes its batches in stages, and readers of ranges.

The query is what a Spark driver does with its tasks. Each batch is cut into tasks, and an attempt of a task stages its
rows under a name of its own; attempts break off and are repeated. Then the batch is published, and only after that
is it noted as done: a process that dies in between does the whole batch again.
"""

from __future__ import annotations

from itertools import groupby
from operator import itemgetter
from random import Random

from tidings.client import operations, staging
from tidings.client.operations import Operation
from tidings.client.ranges import RangeReader
from tidings.errors import InvalidRequest, NoSuchTopic, OutOfSequence, Overloaded, Unavailable
from tidings.message import Columns
from tidings.protocols.broker.bulk import StageName
from tidings.simulator.clients.client import ClientProcess
from tidings.simulator.clients.publishers import Script, insist

Row = tuple[str, str]
"""A topic and the unique name of a message for it."""


class Query(Script):
    """The batches of a query, and its checkpoint: what is noted survives its processes."""

    def __init__(self, name: str, batches: list[list[Row]], pace_ms: int, padding_max: int, failing: float) -> None:
        super().__init__(name, [], 1, pace_ms, padding_max)
        self.batches = batches
        self.failing = failing
        """How often an attempt breaks off."""
        self.noted = 0
        """Batches that are known to be published."""
        self.attempts = 0


def writing(me: ClientProcess, query: Query) -> Operation[None]:
    """Writes batch after batch, each until it is published and noted."""
    random = me.world.random
    while query.noted < len(query.batches):
        number = query.noted
        yield from me.sleep(random.randint(0, query.pace_ms))
        named = []
        for rows in _tasks(random, query.batches[number]):
            named.append((yield from _task(me, query, number, rows)))
        if not (yield from _publish(me, query, number, named)):
            continue
        yield from me.sleep(random.randint(0, query.pace_ms))  # Here a crash repeats the batch.
        query.noted = max(query.noted, number + 1)
    query.done = True


def _tasks(random: Random, rows: list[Row]) -> list[list[Row]]:
    """The rows of a batch, shared out again each time."""
    count = random.randint(1, 3)
    tasks: list[list[Row]] = [[] for _ in range(count)]
    for row in rows:
        random.choice(tasks).append(row)
    return tasks


def _task(me: ClientProcess, query: Query, number: int, rows: list[Row]) -> Operation[StageName]:
    """Attempts until one has stored everything."""
    random, world = me.world.random, me.world
    while True:
        query.attempts += 1
        stager = staging.Stager(me.core, query.publisher, number, f"{query.publisher}-{number}-{query.attempts}")
        broken_off = not world.calm and random.random() < query.failing
        try:
            for topic, group in groupby(rows, key=itemgetter(0)):
                values = [query.value(random, name) for _, name in group]
                yield from stager.write(topic, Columns(1, me.name, values))
                if broken_off and random.random() < 0.5:
                    break
            named = yield from stager.finish()
        except (Unavailable, Overloaded, OutOfSequence) as error:
            world.note(me.label, f"loses {stager.name} after {type(error).__name__}")
            yield from me.sleep(random.randint(10, 200))
            continue
        if broken_off:
            world.note(me.label, f"breaks off {stager.name}")
            continue
        world.note(me.label, f"has staged {named.count} messages as {named.name}")
        # Clients of an older release do not say for which topics.
        return named if query.attempts % 4 else StageName(named.name, named.count)


def _publish(me: ClientProcess, query: Query, number: int, named: list[StageName]) -> Operation[bool]:
    """Whether the batch is published; False sends everybody back to its beginning."""
    random, world = me.world.random, me.world
    while True:
        try:
            done = yield from staging.publish(me.core, query.publisher, number, named, False, 0.0)
        except (Unavailable, Overloaded) as error:
            again = random.random() < 0.6
            world.note(me.label, f"{'publishes' if again else 'writes'} {number} again after {type(error).__name__}")
            yield from me.sleep(random.randint(10, 200))
            if not again:
                return False
        except InvalidRequest as error:
            world.note(me.label, f"writes {number} again: {error}")  # Its stages have grown old.
            return False
        else:
            world.watch.on_published(me, query, number, done)
            return True


def ranging(me: ClientProcess, topic: str, pace_ms: int) -> Operation[None]:
    """Reads whatever ranges of a topic there are until the last of it has been read."""
    random, watch = me.world.random, me.world.watch
    at = 0
    while True:
        try:
            info = yield from insist(me, lambda: operations.topic(me.core, topic))
        except NoSuchTopic:
            if me.world.is_quiet:
                return
            yield from me.sleep(random.randint(50, 300))
            continue
        if me.world.is_quiet and at == info.next_offset:
            return
        at = max(at, info.first_offset)
        end = random.randint(at, info.next_offset)
        reader = RangeReader(me.core, topic, at, end)
        try:
            yield from reader.begin()
            while (batch := (yield from reader.step())) is not None:
                watch.on_read(me, batch)
                at = batch.next_offset
        except (Unavailable, InvalidRequest, NoSuchTopic) as error:  # Retention may have been faster.
            me.world.note(me.label, f"goes on after {type(error).__name__}: {error}")
        finally:
            reader.leave()
        yield from me.sleep(random.randint(10, 10 + pace_ms))
