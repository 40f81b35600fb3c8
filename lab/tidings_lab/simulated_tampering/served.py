"""Bits that flip in the files of a broker that is alive, between two reads of one life.

The broker has recovered and has perhaps read everything once, so that its blocks have been checked and are mapped. Then
a bit flips on its disk, and everything is read by the paths that users have: as ranges, by a subscription, by a group.
Every message comes as it was stored, or its reader is told that this one cannot be read; and all others come.

What has just been checked counts as good until the broker's next tick, so a tick comes after the flip (see
`journal/checked.py`): within it a page that was read is taken to stay in memory.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from random import Random
from typing import Any, NoReturn

from tidings.client import operations, reading, working
from tidings.client.future import Future
from tidings.client.operations import Core, Operation, Until, Wait
from tidings.client.ranges import RangeReader
from tidings.client.session import Session
from tidings.errors import NoSuchTopic, StorageDamaged
from tidings.journal.record import HEADER_SIZE, scan
from tidings.journal.segment import INDEX_SUFFIX, JOURNAL_SUFFIX, SEGMENT_HEADER_SIZE, slots_of
from tidings.message import Message
from tidings.node.engine import AnyEngine
from tidings.settings import ClientSettings
from tidings.simulator.checkers.checker import Violation
from tidings.simulator.disk import SimulatedDisk

RULE = "what is read is as it was stored, or its reader is told that it cannot be read"
SERVED = ("flip-before-first-read", "flip-while-served", "flip-index-while-served")
POLL_S = 0.3
STEPS_MAX = 20_000
TOLD = re.compile(r"The messages from offset (\d+) to (\d+) cannot be read \(.*\): ")

Row = tuple[bytes, bytes | None]
"""The value and the key of a message."""
Path = Callable[["ServedClient", str, int], Iterator[tuple[int, Row]]]
"""One way to read a topic from an offset on."""


class ServedClient:
    """A client that has a broker to itself: the real session and operations, answered at once in a time of its own."""

    def __init__(self, engine: AnyEngine, now_ms: int, name: str) -> None:
        self.now_ms = now_ms
        self._engine = engine
        self._session = Session(name, name.encode().ljust(16, b"-"), False, ClientSettings(), "the broker")
        self.core = Core(self._session, None, lambda: self.now_ms, _refuse_to_block, lambda: self.now_ms * 1000)
        self._session.start(now_ms)
        self._peer = 1

    def run(self, operation: Operation[Any]) -> Any:
        """An operation to its end."""
        try:
            wait = next(operation)
            while True:
                wait = operation.send(self._wait(wait))
        except StopIteration as end:
            return end.value

    def _wait(self, wait: Wait) -> bool:
        for _ in range(STEPS_MAX):
            self._exchange()
            if wait.done if isinstance(wait, Future) else wait.ready():
                return True
            deadline_ms = wait.deadline_ms if isinstance(wait, Until) else None
            if deadline_ms is not None and self.now_ms >= deadline_ms:
                return False
            self._pass(deadline_ms)
        raise Violation(RULE, "a reader waits for ever, and is told nothing")

    def _pass(self, deadline_ms: int | None) -> None:
        due = [each for each in (deadline_ms, self._session.next_due_ms()) if each is not None]
        self.now_ms = max(self.now_ms + 1, min([*due, self.now_ms + self._engine.tick_ms]))
        self._engine.tick(self.now_ms)
        self._session.tick(self.now_ms)

    def _exchange(self) -> None:
        session, engine = self._session, self._engine
        moved = True
        while moved:
            if session.reopen:
                session.reopen, self._peer = False, self._peer + 1
            outgoing = [[bytes(frame) for frame in frames] for frames in session.outgoing]
            session.outgoing.clear()
            for frames in outgoing:
                engine.receive(self.now_ms, self._peer, frames)
            moved = bool(outgoing)
            while engine.has_staged:
                engine.journal.write(engine.begin_commit(self.now_ms))
                engine.finish_commit(self.now_ms)
            answers, engine.outgoing = engine.outgoing, []
            for peer, answer in answers:
                if peer == self._peer:
                    session.receive(self.now_ms, [bytes(frame) for frame in answer])
                    moved = True


def _refuse_to_block(operation: object) -> NoReturn:
    raise AssertionError(f"{operation} cannot be run to its end here: a connection drives its operations itself")


def _by_range(caller: ServedClient, topic: str, start: int) -> Iterator[tuple[int, Row]]:
    reader = RangeReader(caller.core, topic, start, None)
    try:
        caller.run(reader.begin())
        while (batch := caller.run(reader.step())) is not None:
            yield from map(_row, batch)
    finally:
        reader.leave()


def _by_subscription(caller: ServedClient, topic: str, start: int) -> Iterator[tuple[int, Row]]:
    caller.run(operations.subscribe(caller.core, topic, start))
    streams = caller.core.session.streams
    reader = reading.Reader(caller.core, streams.of((topic,)), POLL_S)
    try:
        while (piece := caller.run(reader.step())) is not None:
            for message in piece:
                yield _row(message)
                reader.done += 1
    finally:
        reader.leave()
        caller.run(operations.unsubscribe(caller.core, topic))


def _by_group(caller: ServedClient, topic: str, start: int) -> Iterator[tuple[int, Row]]:
    member = caller.run(working.join(caller.core, f"connections from {start}", topic, start, "key"))
    worker = working.Worker(caller.core, member, POLL_S)
    try:
        while (piece := caller.run(worker.step())) is not None:
            for message in piece:
                yield _row(message)
                worker.done += 1
    finally:
        worker.leave()
        caller.run(working.close(caller.core, member))


def _row(message: Message) -> tuple[int, Row]:
    return message.offset, (bytes(message.value), message.key)


PATHS: dict[str, Path] = {"a range": _by_range, "a subscription": _by_subscription, "a group": _by_group}


class Read:
    """What one way of reading a topic has led to."""

    def __init__(self) -> None:
        self.rows: dict[int, Row] = {}
        self.withheld: dict[int, str] = {}
        """The offsets of which the reader was told that they cannot be read, and what it was told."""

    def take(self, path: Path, caller: ServedClient, topic: str) -> None:
        """Reads all of a topic, and goes on behind what cannot be read, as the error says."""
        start: int | None = None
        while True:
            try:
                if start is None:
                    start = caller.run(operations.topic(caller.core, topic)).first_offset
                for offset, row in path(caller, topic, start):
                    self.rows[offset] = row
                return
            except NoSuchTopic:  # Nobody used it, and it has gone.
                return
            except StorageDamaged as error:
                told = TOLD.match(str(error))
                if told is None or int(told[2]) < (start or 0):
                    raise Violation(RULE, f"the reader of {topic} from {start} on is only told: {error}") from error
                self.withheld.update(dict.fromkeys(range(int(told[1]), int(told[2]) + 1), str(error)))
                start = int(told[2]) + 1


def read_all(engine: AnyEngine, now_ms: int, *paths: str) -> dict[tuple[str, str], Read]:
    """Every topic by these ways."""
    found: dict[tuple[str, str], Read] = {}
    for path in paths:
        caller = ServedClient(engine, now_ms, f"a connection by {path}")
        for topic in list(engine.broker.machine.topics):
            found[path, topic] = Read()
            found[path, topic].take(PATHS[path], caller, topic)
        now_ms = caller.now_ms
    return found


def check_served(kind: str, disk: SimulatedDisk, random: Random, now_ms: int, open_on: Callable[..., AnyEngine]) -> str:
    """Has a broker on a copy of a disk serve everything while a bit flips; what was done, and what came of it."""
    pristine = open_on(disk.copied())
    pristine.recover()
    wanted = {topic: read.rows for (_, topic), read in read_all(pristine, now_ms, "a range").items()}
    copy = disk.copied()
    engine = open_on(copy)
    engine.recover()
    if kind != "flip-before-first-read":
        read_all(engine, now_ms, "a range")
    suffix = INDEX_SUFFIX if kind == "flip-index-while-served" else JOURNAL_SUFFIX
    names = [name for name in copy.names() if name.endswith(suffix) and copy.size(name)]
    if not names:
        return f"{kind}: there is nothing to do that to"
    name = random.choice(names)
    position, bit = random.randrange(copy.size(name)), random.randrange(8)
    hit = _hit(copy, name, position, engine) if suffix == JOURNAL_SUFFIX else {}
    copy.flip_bit(name, position, bit)
    done = f"bit {bit} of byte {position} of {name} has flipped while the broker served"
    now_ms += engine.tick_ms
    engine.tick(now_ms)
    withheld: dict[str, None] = {}
    try:
        for (path, topic), read in read_all(engine, now_ms, *PATHS).items():
            _compare(engine, wanted.get(topic, {}), hit.get(topic, {}), topic, path, read)
            withheld.update(dict.fromkeys(read.withheld.values()))
    except Violation as violation:
        raise Violation(RULE, f"{kind}: {done}, and {violation.text}") from violation
    except Exception as error:
        raise Violation(RULE, f"{kind}: {done}, and that ends in {error!r}") from error
    return f"{done}: {' '.join(withheld) or 'everything is there'}"


def _compare(
    engine: AnyEngine, wanted: dict[int, Row], hit: dict[int, None], topic: str, path: str, read: Read
) -> None:
    for offset, row in read.rows.items():
        if row != wanted.get(offset):
            raise Violation(RULE, f"{path} brings {row} at {offset} of {topic}, and {wanted.get(offset)} was stored")
    for offset, text in read.withheld.items():
        if offset not in hit:
            raise Violation(RULE, f"the reader of {path} misses {offset} of {topic}, where nothing is damaged: {text}")
    machine = engine.broker.machine
    if topic not in machine.topics and machine.settings.topic_idle_ms is not None:
        return
    kept = machine.topics[topic].first_offset  # Retention may have gone on meanwhile.
    missing = [each for each in wanted if each >= kept and each not in read.rows and each not in read.withheld]
    if missing:
        raise Violation(RULE, f"{path} does not bring {missing} of {topic}, and says nothing of that")


def _hit(disk: SimulatedDisk, name: str, position: int, engine: AnyEngine) -> dict[str, dict[int, None]]:
    """The messages, by topic and offset, whose record has a byte."""
    slot = slots_of([name], JOURNAL_SUFFIX)[0]
    journal = engine.journal
    bases = {each.first_slot: each.base_address for each in journal.segments}
    base_address = bases.get(slot, journal.segment_address)
    for record in scan(disk.map(name), SEGMENT_HEADER_SIZE, base_address, slot, name):
        start = record.body_address - HEADER_SIZE - len(record.command)
        if start <= base_address + position < record.end_address:
            return {
                topic.name: {
                    offset: None
                    for entry, address in enumerate(topic.addresses)
                    if record.body_address <= address < record.end_address
                    for offset in range(topic.offsets[entry], topic.end_of(entry))
                }
                for topic in engine.broker.machine.topics.values()
            }
    return {}
