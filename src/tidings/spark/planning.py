"""Which offsets to read, and which task reads which of them. Nothing here knows Spark."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tidings.client.bus import Bus
from tidings.errors import InvalidRequest, NoSuchTopic, StorageError
from tidings.message import TopicInfo
from tidings.spark.options import Place, Reading

log = logging.getLogger("tidings.spark")

TASK_ROWS_WANTED = 1_000_000
TASK_ROWS_MIN = 10_000
"""Without the option tasks: a task for about so many rows, as many for each core, if each has at least this many."""
TASKS_MAX = 10_000


class DataLoss(StorageError):
    """Messages that were to be read are no longer there."""


@dataclass(frozen=True)
class Range:
    """The offsets of a topic from `start` up to `end`."""

    topic: str
    start: int
    end: int

    @property
    def count(self) -> int:
        """How many messages that is."""
        return self.end - self.start


def find_topics(bus: Bus, reading: Reading, known: Iterable[str] = ()) -> dict[str, TopicInfo]:
    """The topics that are there and wanted, by name. A name without a pattern must be there, or be `known`.

    The broker collects topics that nobody uses; a stream that has read one waits for it to come back. Where lost
    messages are passed over, a lost topic is too.
    """
    found = {info.name: info for info in bus.topics() if reading.wants(info.name)}
    missing = [name for name in reading.topics if "*" not in name and name not in found and name not in known]
    if missing and reading.fail_on_data_loss:
        raise NoSuchTopic(f"There is no topic {missing[0]!r}: put to it or subscribe to it first, or name another.")
    if missing:
        names = ", ".join(map(repr, missing))
        log.warning("%s topics do not exist (%s) and are skipped (failOnDataLoss=false).", len(missing), names)
    return dict(sorted(found.items()))


def place_of(places: Place | Mapping[str, Place], topic: str, otherwise: Place) -> Place:
    """What the option says of a topic."""
    return places.get(topic, otherwise) if isinstance(places, Mapping) else places


def resolve(bus: Bus, info: TopicInfo, place: Place, shown: str) -> int:
    """The offset that a place stands for; one that is not there is refused."""
    if place == "earliest":
        return info.first_offset
    if place == "latest":
        return info.next_offset
    if isinstance(place, int):
        if place > info.next_offset:
            raise InvalidRequest(
                f"{shown} names the offset {place} of {info.name!r}, which holds {info.first_offset} to "
                f"{info.next_offset}: name one that is there."
            )
        return place
    return bus.offset_at(info.name, place)


def batch_ranges(bus: Bus, reading: Reading) -> list[Range]:
    """What a read in batch covers."""
    ranges = []
    topics = find_topics(bus, reading)
    check_named(reading, topics)
    for name, info in topics.items():
        start = resolve(bus, info, place_of(reading.starting, name, "earliest"), "startingOffsets")
        end = resolve(bus, info, place_of(reading.ending, name, "latest"), "endingOffsets")
        ranges.append(kept(Range(name, start, max(start, end)), info, reading))
    return [each for each in ranges if each.count]


def check_named(reading: Reading, topics: Iterable[str]) -> None:
    """Raises InvalidRequest when offsets are given for a topic that is not read."""
    for places in (reading.starting, reading.ending):
        strangers = [name for name in places if name not in topics] if isinstance(places, Mapping) else []
        if strangers:
            raise InvalidRequest(f"Offsets are given for {strangers[0]!r}, which is not read: name it in topic too.")


def kept(wanted: Range, info: TopicInfo, reading: Reading) -> Range:
    """The part of a range that is still there; the rest is an error, or counted and passed over."""
    if info.first_offset <= wanted.start <= wanted.end <= info.next_offset or not wanted.count:
        return wanted
    start = min(max(wanted.start, info.first_offset), info.next_offset)
    end = max(start, min(wanted.end, info.next_offset))
    lost = wanted.count - (end - start)
    text = (
        f"{lost} messages of {wanted.topic!r} from {wanted.start} to {wanted.end} are not there: "
        f"the topic holds {info.first_offset} to {info.next_offset}"
    )
    if reading.fail_on_data_loss:
        raise DataLoss(
            f"{text}. Start a new query where the topic begins, or skip them with the option failOnDataLoss=false."
        )
    log.warning("%s, and they are skipped (failOnDataLoss=false).", text)
    return Range(wanted.topic, start, end)


def split_as_asked(ranges: Sequence[Range], reading: Reading) -> list[list[Range]]:
    """Ranges cut into shares as the options want them: so many tasks, and no larger ones than this."""
    total = sum(each.count for each in ranges)
    tasks = reading.tasks or _usual_tasks(total)
    if reading.task_messages_max is not None:
        tasks = max(tasks, -(-total // reading.task_messages_max))
    return split(ranges, tasks)


def split(ranges: Sequence[Range], tasks: int) -> list[list[Range]]:
    """Ranges cut into equal shares, one for each task; a small topic shares its task with others.

    >>> split([Range("a", 0, 5), Range("b", 0, 1)], 2)
    [[Range(topic='a', start=0, end=3)], [Range(topic='a', start=3, end=5), Range(topic='b', start=0, end=1)]]
    """
    total = sum(each.count for each in ranges)
    if not total:
        return []
    count = min(tasks, total)
    shares: list[list[Range]] = []
    at = 0
    rest = [each for each in ranges if each.count]
    for number in range(count):
        until = total * (number + 1) // count
        share: list[Range] = []
        while at < until:
            first = rest[0]
            taken = min(first.count, until - at)
            share.append(Range(first.topic, first.start, first.start + taken))
            at += taken
            if taken == first.count:
                rest.pop(0)
            else:
                rest[0] = Range(first.topic, first.start + taken, first.end)
        shares.append(share)
    return shares


def _usual_tasks(rows: int) -> int:
    cores = os.cpu_count() or 1
    rounds = -(-rows // (TASK_ROWS_WANTED * cores))  # A last round with fewer tasks than cores would leave some idle.
    return min(rounds * cores, -(-rows // TASK_ROWS_MIN), TASKS_MAX)


def limit(start: Mapping[str, int], latest: Mapping[str, int], messages_max: int) -> dict[str, int]:
    """How far to go with at most so many messages: each topic gets its share of what waits in it.

    >>> limit({"a": 0, "b": 10}, {"a": 30, "b": 20}, 20)
    {'a': 15, 'b': 15}
    """
    waiting = {name: max(0, end - start.get(name, end)) for name, end in latest.items()}
    total = sum(waiting.values())
    if total <= messages_max:
        return dict(latest)
    ends = {}
    before = 0
    for name, count in waiting.items():
        # Shares of the sum so far, so that roundings never add up to more or less than the limit.
        share = messages_max * (before + count) // total - messages_max * before // total
        before += count
        ends[name] = start[name] + share if count else latest[name]
    return ends
