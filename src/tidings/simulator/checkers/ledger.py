"""What exists: every durable command in its order, and what each topic holds because of them.

The ledger knows nothing of the broker's indexes, snapshots and restarts. It feeds a reference machine that never
dies, and keeps for each topic the plain list of the messages that were stored, by offset. Messages are told apart
by the unique name with which their value begins; the rest of a value is always the same byte, so that nothing of it
changes unseen.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tidings.errors import TidingsError
from tidings.journal.disk import Buffer
from tidings.journal.record import Record
from tidings.protocols.broker.bulk import Extent, StageName
from tidings.protocols.broker.commands import (
    BatchWrite,
    Command,
    DeadLetter,
    Discard,
    Publish,
    Stage,
    Write,
    decode_command,
)
from tidings.protocols.broker.machine import Machine
from tidings.protocols.broker.messages import Stored
from tidings.protocols.broker.ownership import EVERYTHING, Grown, OwnershipPolicy
from tidings.protocols.ring.commit_commands import HoldPart, ResolvePart
from tidings.settings import BrokerSettings
from tidings.wire.codec import decode_columns

SEPARATOR = b"|"
PADDING = b"."


def name_of(value: bytes) -> str:
    """The unique name of a message; another one if anything of it has changed.

    >>> name_of(b"ann3|..."), name_of(b"ann3|.,."), name_of(b"ann3")
    ('ann3', "altered: b'ann3|.,.'", 'ann3')
    """
    name, _, padding = value.partition(SEPARATOR)
    return f"altered: {value!r}" if padding.strip(PADDING) else name.decode(errors="replace")


class Existing:
    """A durable command, what the reference machine made of it, and what it stored as (topic, offset, name)."""

    def __init__(self, command: Command, time_ms: int, result: object, error: TidingsError | None) -> None:
        self.command = command
        self.time_ms = time_ms
        self.result = result
        self.error = error
        self.stored: list[tuple[str, int, str]] = []


class Ledger:
    """The topics as they must be."""

    def __init__(self, settings: BrokerSettings, ownership: OwnershipPolicy = EVERYTHING) -> None:
        self.reference = Machine(settings, ownership)
        self.slots = 0
        self.topics: dict[str, list[str]] = {}
        self.intended: dict[str, tuple[str, ...]] = {}
        """The topics that each message was meant for."""
        self.staged: dict[str, tuple[str, int, dict[int, tuple[str, list[str]]]]] = {}
        """Stage -> its query and batch, and for each number the topic and the messages."""
        self.is_all = True
        """Whether this is about all topics that there are; otherwise others have what is staged for the rest."""
        self.parts: dict[bytes, tuple[HoldPart, list[list[str]]]] = {}
        """Commits over several groups -> what was held of them, with the messages of each batch."""

    def holds(self, topic: str, offset: int, name: str) -> bool:
        messages = self.topics.get(topic, ())
        return 0 <= offset < len(messages) and messages[offset] == name

    def first_kept(self, topic: str) -> int:
        """The first offset that a topic still has to hold; of one that was collected it is the next one."""
        held = self.reference.topics.get(topic)
        return held.first_offset if held is not None else self.reference.retired.get(topic, 0)

    def take(self, record: Record, bodies: Sequence[Buffer]) -> Existing:
        """One more command is durable."""
        assert record.slot == self.slots
        self.slots += 1
        return self.take_command(decode_command(record.command), record.time_ms, record.body_address, bodies)

    def take_command(self, command: Command, time_ms: int, body_address: int, bodies: Sequence[Buffer]) -> Existing:
        """The same, for a command whose place among the others is known otherwise."""
        try:
            existing = Existing(command, time_ms, self.reference.apply(command, time_ms, body_address), None)
        except TidingsError as error:
            return Existing(command, time_ms, None, error)
        if isinstance(command, Write):
            self._store(existing, command, bodies)
        elif isinstance(command, DeadLetter):
            self._dead_letter(existing, command, bodies)
        elif isinstance(command, HoldPart):
            names = [[name_of(value) for value in decode_columns(body).values] for body in bodies]
            self.parts.setdefault(command.commit, (command, names))
        elif isinstance(command, ResolvePart) and isinstance(existing.result, Grown) and existing.result.topics:
            self._carry_out(existing, command.commit, existing.result)
        elif isinstance(command, Stage | Publish | Discard):
            self._stage(existing, command, bodies)
        return existing

    def _stage(self, existing: Existing, command: Stage | Publish | Discard, bodies: Sequence[Buffer]) -> None:
        if isinstance(command, Discard):
            for name in command.stages if self.is_all else ():
                self.staged.pop(name, None)
        elif isinstance(command, Stage):
            if not existing.result:
                _, _, batches = self.staged.setdefault(command.stage, (command.query, command.batch, {}))
                names = [name_of(value) for body in bodies for value in decode_columns(body).values]
                batches.setdefault(command.number, (command.topic, names))
        elif existing.result is not None:
            extents: Any = existing.result
            existing.stored += self._published(extents, command.stages)
            if self.is_all:
                for name, (query, batch, _) in list(self.staged.items()):
                    if query == command.query and batch <= command.batch:
                        del self.staged[name]

    def _published(self, extents: Sequence[Extent], stages: Sequence[StageName]) -> list[tuple[str, int, str]]:
        """What some stages have stored, as far as it went to these places."""
        stored: list[tuple[str, int, str]] = []
        nexts = {extent.topic: extent.first_offset for extent in extents}
        for stage in stages:
            _, _, batches = self.staged.get(stage.name, ("", 0, {}))
            for topic, names in batches.values():
                if topic in nexts:
                    stored += [(topic, nexts[topic] + rank, name) for rank, name in enumerate(names)]
                    nexts[topic] += len(names)
        return stored

    def _dead_letter(self, existing: Existing, command: DeadLetter, bodies: Sequence[Buffer]) -> None:
        topic = self.reference.topics.get(command.to_topic)
        stored = self.topics.get(command.to_topic, [])
        if topic is not None and topic.next_offset > len(stored):
            (name,) = (name_of(value) for body in bodies for value in decode_columns(body).values)
            existing.stored.append((command.to_topic, len(stored), name))

    def _store(self, existing: Existing, command: Write, bodies: Sequence[Buffer]) -> None:
        results: Any = existing.result
        for batch, body, places in zip(command.batches, bodies, results, strict=True):
            names = [name_of(value) for value in decode_columns(body).values]
            self._store_batch(existing, batch, names, places)

    def _carry_out(self, existing: Existing, commit: bytes, grown: Grown) -> None:
        held, names = self.parts[commit]
        if held.publishing is not None:
            existing.stored += self._published(grown.extents, held.publishing.stages)
        for batch, some, places in zip(held.batches, names, grown.stored, strict=True):
            self._store_batch(existing, batch, some, places)

    def _store_batch(self, existing: Existing, batch: BatchWrite, names: list[str], places: Sequence[Stored]) -> None:
        for target, place in zip(batch.targets, places, strict=True):
            repeated = dict(place.repeated)
            fresh = [name for index, name in enumerate(names) if index not in repeated]
            for rank, name in enumerate(fresh):
                assert place.first_offset is not None
                existing.stored.append((target.topic, place.first_offset + rank, name))
