"""Commands lie in the journal as the bodies of the records that speak of them, so that they are read where they lie."""

from __future__ import annotations

from typing import cast

import msgspec

from tidings.errors import StorageDamaged
from tidings.journal.disk import Buffer
from tidings.journal.journal import Journal
from tidings.journal.record import Record as JournalRecord
from tidings.node.places import Places
from tidings.node.state import State
from tidings.protocols.multipaxos import records
from tidings.protocols.multipaxos.messages import Copied
from tidings.protocols.multipaxos.records import Record, Stored
from tidings.protocols.multipaxos.values import Command, Entry, Value, size_of
from tidings.settings import ReplicaSettings


class Kept(msgspec.Struct, frozen=True):
    """A value that is accepted and on disk, and not yet applied."""

    entry: Entry
    record_address: int
    body_address: int


class Local(msgspec.Struct, frozen=True):
    """A command of this replica for itself."""

    command: bytes
    bodies: tuple[Buffer, ...]


def take_apart(record: Record, state: State) -> tuple[bytes, tuple[Buffer, ...]]:
    """A replica's record without the command that it speaks of, and the pieces of that."""
    if isinstance(record, Stored) and isinstance(record.entry.value, Command):
        return records.encode(Stored(_with_body(record.entry, b""))), state.buffers(record.entry.value.body)
    return records.encode(record), ()


def put_together(found: JournalRecord, journal: Journal) -> Record:
    """A replica's record, with the command that is its body."""
    record = records.decode(found.command)
    if isinstance(record, Stored) and isinstance(record.entry.value, Command):
        return Stored(_with_body(record.entry, bytes(journal.read(found.body_address, found.bodies_size))))
    return record


def read_values(journal: Journal, places: Places, slots: range, settings: ReplicaSettings) -> tuple[Value, ...]:
    """The values of consecutive slots, as many as may be sent at once, up to the first that cannot be read."""
    values: list[Value] = []
    size_bytes = 0
    for slot in slots[: settings.batch_values_max]:
        found = journal.record_at(places.record_address(slot))
        record = put_together(found[0], journal) if found is not None else None
        if not isinstance(record, Stored) or record.entry.slot != slot:
            break
        size_bytes += size_of(record.entry.value)
        if values and size_bytes > settings.batch_bytes_max:
            break
        values.append(record.entry.value)
    return tuple(values)


def read_copy(journal: Journal, state: State, copy: bytes) -> list[Copied]:
    """What such a command copies, if it is here, and not damaged here, too."""
    place = state.place_of(copy)
    try:
        return [Copied(copy, bytes(journal.read(*place)))] if place is not None else []
    except StorageDamaged:
        return []


def _with_body(entry: Entry, body: Buffer) -> Entry:
    value = entry.value
    assert isinstance(value, Command)
    return Entry(entry.slot, entry.ballot, Command(value.client, value.sequence, cast(bytes, body)))
