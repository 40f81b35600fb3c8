"""Recovery reads what a crash has left and makes it a journal again.

A new segment comes to be in this order, each step on disk before the next begins:

    0. the segment that ends gives back the room that was made ahead of it
    1. its index
    2. the snapshot of the state before the next slot
    3. the new segment, empty; its header
    4. the inventory: this is the newest segment now, and that is the oldest
    5. the older snapshot goes; then segments that retention has let go, oldest first, each before its index
    6. its first records

So the newest snapshot says where the last segment begins. If that segment is missing, or has neither a
readable header nor a record, the crash came between 2 and 4 and it is made now; but not if the inventory
names it, for then it was there. An index without its snapshot (a crash between 1 and 2) is as good as none:
the segment was not sealed, it is replayed, and the index is written again later. What is older than the
inventory's oldest segment was to be removed, and goes now. Whatever else does not fit together is
StorageDamaged, and nothing is changed: a file that is missing is never taken for one that never was.

Sealed segments are not read: their headers and sizes must agree with their indexes and with each other,
and that is all. Replay is therefore bounded by the size of one segment.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from tidings.errors import StorageDamaged
from tidings.journal import segment as files
from tidings.journal.disk import Disk
from tidings.journal.folder import INVENTORY_NAME, TEMPORARY_SUFFIX
from tidings.journal.notes import read_note, write_note
from tidings.journal.record import Record, decode, next_valid, scan, synced_behind
from tidings.journal.segment import SEGMENT_HEADER_SIZE, Envelope, Segment

_log = logging.getLogger("tidings.journal")


class Inventory(msgspec.Struct, frozen=True, array_like=True):
    """Which segments there must be, by their first slots: from the oldest to the newest, without a gap."""

    oldest: int
    newest: int


class Span(NamedTuple):
    """A row of addresses: from one up to another."""

    start: int
    end: int


class Recovery(msgspec.Struct):
    """What the journal's owner starts from: a snapshot, an index for each segment before it, what came after."""

    snapshot: bytes | None
    indexes: list[bytes]
    records: Iterator[Record]
    """Read to the end before the first append."""
    damaged: list[Span]
    """What had to be skipped among these, so far; only for owners who can do without it."""


class Found(msgspec.Struct):
    """What is on the disk: the sealed segments, and where the one begins that takes new records."""

    snapshot: Envelope | None
    sealed: list[Segment]
    indexes: list[bytes]
    first_slot: int
    base_address: int


def survey(disk: Disk) -> Found:
    """Checks that the files fit together, finishes what a crash interrupted, removes what is left over."""
    names = disk.names()
    slots = files.slots_of(names, files.JOURNAL_SUFFIX)
    snapshot = _newest_snapshot(disk, names)
    first_slot = snapshot.next_slot if snapshot else 0
    base_address = snapshot.segment.end_address if snapshot else 0
    inventory = read_note(disk, INVENTORY_NAME, Inventory)
    newest = max(slots[-1] if slots else 0, inventory.newest if inventory else 0)
    if newest > first_slot:
        raise _missing(files.snapshot_name(newest))
    if inventory is None:
        if _has_begun(disk, slots, first_slot, base_address):
            raise _missing(INVENTORY_NAME)
    elif inventory.newest not in slots:
        raise _missing(files.journal_name(inventory.newest))
    oldest = inventory.oldest if inventory is not None else min(slots, default=0)
    sealed_slots = [slot for slot in slots if oldest <= slot != first_slot]
    if snapshot and not slots:
        raise _missing(files.journal_name(first_slot))
    if oldest not in (first_slot, *sealed_slots):
        raise _missing(files.journal_name(oldest))
    sealed, indexes = _sealed_segments(disk, sealed_slots, snapshot)
    _make_last_segment(disk, first_slot, base_address)
    if inventory != Inventory(oldest, first_slot):
        write_note(disk, INVENTORY_NAME, Inventory(oldest, first_slot))
    _remove_leftovers(disk, disk.names(), first_slot, oldest)
    return Found(snapshot, sealed, indexes, first_slot, base_address)


def holds_records(disk: Disk) -> bool:
    """Whether there is any record in the journal, as far as can be seen without recovering it."""
    names = disk.names()
    slots = files.slots_of(names, files.JOURNAL_SUFFIX)
    if files.slots_of(names, files.SNAPSHOT_SUFFIX) or any(slots):
        return True
    return bool(slots) and next_valid(disk.map(files.journal_name(0)), 0, 0) is not None


def _has_begun(disk: Disk, slots: list[int], first_slot: int, base_address: int) -> bool:
    """Whether a journal without an inventory must have had one: it has a record, and is not of the first release.

    The first release may have ended between a snapshot and its segment. Anyone who carries the folder over begins that
    segment, and may be killed before the inventory is written; but no record is written before that.
    """
    if slots and files.is_first_release(disk.map(files.journal_name(slots[-1]))):
        return False
    if first_slot and files.is_first_release_snapshot(disk.map(files.snapshot_name(first_slot))):
        return bool(slots) and next_valid(disk.map(files.journal_name(slots[-1])), 0, base_address) is not None
    return holds_records(disk)


def _missing(name: str) -> StorageDamaged:
    return StorageDamaged(f"The file {name} is missing.")


def replay(disk: Disk, first_slot: int, base_address: int, damaged: list[Span] | None = None) -> Iterator[Record]:
    """Every record of the last segment. At its end a torn tail is cut off and all the rest is synced.

    Damage is an error, unless there is a list to note it in: then what is behind it is read too.
    """
    name = files.journal_name(first_slot)
    view = disk.map(name)
    durable = disk.durable_size(name)
    end, slot = SEGMENT_HEADER_SIZE, first_slot
    while True:
        for record in scan(view, end, base_address, slot, name):
            end, slot = record.end_address - base_address, record.slot + 1
            yield record
        if end >= durable and (end == len(view) or not synced_behind(view, end, base_address)):
            break
        following = next_valid(view, end, base_address)
        if damaged is None or following is None:
            what = "the file ends there" if end == len(view) else "the record there fails its checksum"
            raise StorageDamaged(f"{name} is damaged at position {end}: {what}, and it had been stored.")
        damaged.append(Span(base_address + end, base_address + following))
        behind = decode(view, following, base_address)
        assert behind is not None
        end, slot = following, behind.slot
    if end < len(view):
        torn_bytes = len(bytes(view[end:]).rstrip(b"\0"))
        if torn_bytes:  # All else is room that was made ahead.
            _log.warning(
                "tidings: cut %d bytes off %s at position %d: the last write before the crash is incomplete, and it "
                "had not been synced.",
                torn_bytes,
                name,
                end,
            )
        del view  # A mapping must not outlive the bytes it maps.
        disk.truncate(name, end)
    # A killed process may have left records that only the page cache knows; from here on they count as durable.
    disk.sync(name)


def check(view: memoryview, base_address: int, position: int = SEGMENT_HEADER_SIZE) -> Iterator[Span]:
    """Where the records of a segment are damaged, from one at a position to the end."""
    while position < len(view):
        record = decode(view, position, base_address)
        if record is not None:
            position = record.end_address - base_address
            continue
        following = next_valid(view, position, base_address)
        end = len(view) if following is None else following
        yield Span(base_address + position, base_address + end)
        position = end


def _newest_snapshot(disk: Disk, names: list[str]) -> Envelope | None:
    slots = files.slots_of(names, files.SNAPSHOT_SUFFIX)
    if not slots:
        return None
    name = files.snapshot_name(slots[-1])
    snapshot = files.decode_snapshot(disk.map(name), name, disk.salt)
    if snapshot.next_slot != slots[-1]:
        raise StorageDamaged(f"{name} belongs to slot {snapshot.next_slot}.")
    return snapshot


def _sealed_segments(disk: Disk, slots: list[int], snapshot: Envelope | None) -> tuple[list[Segment], list[bytes]]:
    """The segments before the snapshot and the owner's bytes about each, checked against each other."""
    sealed: list[Segment] = []
    indexes: list[bytes] = []
    if not slots:
        return sealed, indexes
    assert snapshot is not None  # Without one, a segment before the last has been refused already.
    present = set(disk.names())
    following = [*slots[1:], snapshot.next_slot]
    for slot, next_slot in zip(slots, following, strict=True):
        name, index_name = files.journal_name(slot), files.index_name(slot)
        if index_name not in present:
            raise StorageDamaged(f"{index_name} is missing.")
        index = files.decode_index(disk.map(index_name), index_name, disk.salt)
        header = files.decode_header(disk.read_at(name, 0, SEGMENT_HEADER_SIZE), name, disk.salt)
        segment = index.segment
        end_address = segment.base_address + disk.size(name)
        if header != (slot, segment.base_address) or segment.first_slot != slot or end_address != segment.end_address:
            raise StorageDamaged(f"{name} is damaged: its header or its size is not what {index_name} says.")
        if index.next_slot != next_slot or (sealed and sealed[-1].end_address != segment.base_address):
            missing = files.journal_name(index.next_slot)
            raise StorageDamaged(f"{missing} is missing behind {name}.")
        sealed.append(segment)
        indexes.append(index.payload)
    if sealed[-1] != snapshot.segment:
        name = files.snapshot_name(snapshot.next_slot)
        raise StorageDamaged(f"{name} does not fit the segment before it.")
    return sealed, indexes


def _make_last_segment(disk: Disk, first_slot: int, base_address: int) -> None:
    """Makes the segment that takes new records unless it is there."""
    name = files.journal_name(first_slot)
    if name not in disk.names():
        disk.create(name)
    else:
        view = disk.map(name)
        header = files.decode_header(view, name, disk.salt)
        if header == (first_slot, base_address):
            return
        had_records = disk.durable_size(name) > SEGMENT_HEADER_SIZE or synced_behind(view, 0, base_address)
        if header is not None or had_records:
            raise StorageDamaged(f"{name} is damaged at position 0: its header.")
        del view  # A mapping must not outlive the bytes it maps.
        disk.truncate(name, 0)
    disk.commit(name, [files.encode_header(first_slot, base_address, disk.salt)])


def _remove_leftovers(disk: Disk, names: list[str], snapshot_slot: int, oldest_slot: int) -> None:
    """Removes unfinished files, superseded snapshots, and segments that retention has let go."""
    leftovers = [name for name in names if name.endswith(TEMPORARY_SUFFIX)]
    older = (slot for slot in files.slots_of(names, files.SNAPSHOT_SUFFIX) if slot < snapshot_slot)
    leftovers += map(files.snapshot_name, older)
    for suffix in (files.JOURNAL_SUFFIX, files.INDEX_SUFFIX):
        gone = (slot for slot in files.slots_of(names, suffix) if slot < oldest_slot)
        leftovers += [f"{slot:020d}{suffix}" for slot in gone]
    for name in leftovers:
        disk.remove(name)
