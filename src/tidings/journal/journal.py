"""The journal: one append-only row of records, written by group commit.

The owner's loop calls `begin` with all that is ready, hands the commit to a thread that calls `write`
(one write and one sync, however many records), and calls `finish` when that has returned. Only then do
the records exist. At most one commit is under way; meanwhile the loop may go on reading. `write` uses
nothing but the commit and the disk, and the loop changes nothing that a commit refers to, so there are no
locks. After `DiskFull` the loop calls `undo`, and it is as if `begin` had never been called, but that a segment may
have been sealed; `write` has put the disk back already. After any other error the process must end.

When the current segment is `full` the owner makes an index of it and a snapshot of its own state and
calls `roll_next` before `begin`; that commit seals the segment and goes into a new one. The steps are in
`recovery`, the layout of the files in `segment` and `record`.

What is read from the files is checked first (`checked`): damage is `DamagedPlace`, and never handed out.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator

import msgspec

from tidings.errors import StorageDamaged, StorageError
from tidings.journal import segment as files
from tidings.journal.blocks import BLOCK_BYTES, Blocks, block_count
from tidings.journal.checked import Checked, DamagedPlace
from tidings.journal.disk import Buffer, Disk, DiskFull, FileLocation
from tidings.journal.folder import INVENTORY_NAME
from tidings.journal.notes import write_note
from tidings.journal.record import HEADER_SIZE, Append, Record, decode, encode_all, size_at
from tidings.journal.recovery import Inventory, Recovery, Span, replay, survey
from tidings.journal.segment import SEGMENT_HEADER_SIZE, Envelope, Segment
from tidings.settings import JournalSettings

CHECKED_SEGMENTS_MAX = 1_024
"""Segments whose sums are kept in memory: 4 KiB for each of the default size."""
REMOTE_COMMIT_FACTOR = 8
"""How much larger commits to a storage server may be: each is a call, and costs one however small it is."""


class Roll(msgspec.Struct, frozen=True):
    """What sealing a segment takes: the segment as it ends, and the owner's bytes about it."""

    sealed: Segment
    next_slot: int
    index: bytes
    snapshot: bytes
    older_snapshot: str | None
    removable_address: int
    """Segments that end at or before it go when this is on disk."""
    oldest_slot: int
    """The oldest segment that stays."""
    sums: bytes


class Commit(msgspec.Struct):
    """Records on their way to the disk. `records` is in the order of the appends."""

    appends: list[Append]
    records: list[Record]
    roll: Roll | None
    name: str
    durable_address: int
    end_address: int
    last_time_ms: int
    blocks: Blocks
    """The sums of what is written, from the end of the segment on."""
    sealed: bool = False
    """Whether the roll is on disk, whatever came of the records."""


class SegmentRemoved(StorageError):
    """What was to be read has been let go by retention."""

    def __init__(self, address: int) -> None:
        super().__init__(f"The journal no longer holds address {address}: its segment has been removed.")
        self.address = address


class Journal:
    """Opened on a disk, recovered, then ready. All methods belong to the owner's loop, except `write`."""

    def __init__(self, disk: Disk, settings: JournalSettings) -> None:
        self._disk = disk
        self.remote = disk.remote
        """Whether another process keeps the files: writes and reads may then take long, or have to wait."""
        self._settings = settings
        self.scrub_hours = settings.scrub_hours
        self._syncs = settings.durability == "fsync"
        self._ready = False
        self._commit: Commit | None = None
        self._roll: Roll | None = None
        self._sealed: list[Segment] = []
        self._snapshot_name: str | None = None
        self._name = files.journal_name(0)
        self._first_slot = 0
        self._base_address = 0
        self._next_slot = 0
        self._end_address = SEGMENT_HEADER_SIZE
        self._durable_address = SEGMENT_HEADER_SIZE
        self._last_time_ms = 0
        self._recent: OrderedDict[int, Buffer] = OrderedDict()
        self._recent_bytes = 0
        self._blocks = Blocks()
        """Of the current segment."""
        self._current = Checked(disk, self._name, 0, self._blocks)
        self._checked: OrderedDict[int, Checked] = OrderedDict()
        self._mapped: OrderedDict[int, None] = OrderedDict()

    @classmethod
    def open(cls, disk: Disk, settings: JournalSettings) -> Journal:
        """A journal on a disk. Nothing is read or written before `recover`."""
        return cls(disk, settings)

    @property
    def next_slot(self) -> int:
        """The slot that the next record gets."""
        return self._next_slot

    @property
    def end_address(self) -> int:
        """The address after the last finished record."""
        return self._end_address

    @property
    def durable_address(self) -> int:
        """Everything before this address is known to be on disk."""
        return self._durable_address

    @property
    def size_bytes(self) -> int:
        """The size of all segments together."""
        first = self._sealed[0].base_address if self._sealed else self._base_address
        return self._end_address - first

    @property
    def segments(self) -> list[Segment]:
        """The sealed segments, oldest first."""
        return list(self._sealed)

    @property
    def snapshot_name(self) -> str | None:
        """The file of the newest snapshot; None before the first segment is sealed."""
        return self._snapshot_name

    @property
    def segment_address(self) -> int:
        """Where the current segment begins."""
        return self._base_address

    @property
    def is_fresh(self) -> bool:
        """Whether the current segment has no record yet, and so cannot be sealed."""
        return self._next_slot == self._first_slot

    @property
    def full(self) -> bool:
        """Whether the current segment has reached its limit and should be sealed."""
        return (
            self._end_address - self._base_address >= self._settings.segment_bytes_max
            or self._next_slot - self._first_slot >= self._settings.segment_records_max
        )

    @property
    def commit_bytes_max(self) -> int:
        """How much should go into one commit: more where it has to be sent to a storage server first."""
        return self._settings.commit_bytes_max * (REMOTE_COMMIT_FACTOR if self._disk.remote else 1)

    def recover(self, skips_damage: bool = False) -> Recovery:
        """What the disk holds. Appending has to wait until the records have been read to the end.

        Damage among the last segment's records is an error, or is skipped and noted. May be called again, after the
        files have been exchanged.
        """
        assert self._commit is None, "a commit is under way"
        found = survey(self._disk)
        self._ready, self._roll = False, None
        self._recent.clear()
        self._recent_bytes = 0
        self._mapped.clear()
        self._checked.clear()
        self._sealed = found.sealed
        self._snapshot_name = files.snapshot_name(found.first_slot) if found.snapshot else None
        self._begin_segment(found.first_slot, found.base_address)
        self._next_slot = found.first_slot
        self._end_address = found.base_address + SEGMENT_HEADER_SIZE
        snapshot = found.snapshot.payload if found.snapshot else None
        damaged: list[Span] = []
        return Recovery(snapshot, found.indexes, self._replay(damaged, skips_damage), damaged)

    def _replay(self, damaged: list[Span], skips_damage: bool) -> Iterator[Record]:
        for record in replay(self._disk, self._first_slot, self._base_address, damaged if skips_damage else None):
            self._next_slot = record.slot + 1
            self._end_address = record.end_address
            self._last_time_ms = max(self._last_time_ms, record.time_ms)
            yield record
        self._blocks.extend([self._disk.map(self._name)[: self._end_address - self._base_address]])
        for span in damaged:
            self._blocks.spoil(span.start - self._base_address, span.end - self._base_address)
        self._durable_address = self._end_address
        self._ready = True

    def roll_next(self, index: bytes, snapshot: bytes, removable_address: int = 0) -> None:
        """Makes the next commit seal the current segment: its index, and the state before `next_slot`.

        Segments that end at or before `removable_address` are removed when it has been written.
        """
        assert self._ready
        assert self._commit is None, "a commit is under way"
        assert self._next_slot > self._first_slot, "a segment without records cannot be sealed"
        sealed = Segment(self._first_slot, self._base_address, self._end_address, self._last_time_ms)
        kept = (each.first_slot for each in (*self._sealed, sealed) if each.end_address > removable_address)
        oldest_slot = next(kept, self._next_slot)
        names = self._snapshot_name, removable_address, oldest_slot, self._blocks.pack()
        self._roll = Roll(sealed, self._next_slot, index, snapshot, *names)

    def begin(self, appends: list[Append]) -> Commit:
        """Gives slots and addresses to what is to be appended."""
        assert self._ready, "the recovered records have not been read to the end"
        assert self._commit is None, "a commit is under way"
        roll, name = self._roll, self._name
        slot, address = self._next_slot, self._end_address
        durable_address, last_time_ms = self._durable_address, self._last_time_ms
        blocks = self._blocks.end()
        if roll is not None:
            assert roll.next_slot == slot
            name, last_time_ms, blocks = files.journal_name(slot), 0, Blocks()
            address += SEGMENT_HEADER_SIZE
            durable_address = address  # Sealing syncs all that came before.
        records = []
        for append in appends:
            command, bodies_size = append.command, 0
            for body in append.bodies:
                bodies_size += len(body)
            body_address = address + HEADER_SIZE + len(command)
            time_ms = append.time_ms
            if time_ms > last_time_ms:
                last_time_ms = time_ms
            records.append(
                Record(
                    slot,
                    append.kind,
                    time_ms,
                    append.ballot_number,
                    append.ballot_node,
                    command,
                    body_address,
                    bodies_size,
                )
            )
            slot += 1
            address = body_address + bodies_size
        commit = self._commit = Commit(appends, records, roll, name, durable_address, address, last_time_ms, blocks)
        return commit

    def write(self, commit: Commit) -> None:
        """Brings a commit onto the disk. Blocks; may run in another thread than the loop's."""
        blocks, roll, disk = commit.blocks, commit.roll, self._disk
        if roll is not None:
            blocks.extend([files.encode_header(roll.next_slot, roll.sealed.end_address, disk.salt)])
        buffers = encode_all(commit.appends, commit.records, commit.durable_address, blocks)
        if roll is not None:
            try:
                self._seal(roll, commit.name)
            except DiskFull:
                self._unseal(roll, commit.name)
                raise
            commit.sealed = True
            if roll.older_snapshot is not None:
                disk.remove(roll.older_snapshot)
        if buffers:
            write = disk.commit if self._syncs else disk.append
            write(commit.name, buffers)

    def sync_mark(self) -> None:
        """Leaves a mark that everything finished is on disk; in the thread that writes, with no commit under way."""
        if not self._syncs and not self.remote:  # A storage server does so itself, when it stops.
            self._disk.sync(self._name)
        self._disk.sync_mark()

    @property
    def short_of_room(self) -> bool:
        """Whether only what frees room may still be written."""
        return self._disk.short_of_room

    def restock(self) -> None:
        """Looks whether there is room again."""
        self._disk.restock()

    def tend(self) -> None:
        """Looks after a remote disk while there is nothing to write; in the thread that writes."""
        self._disk.tend()

    def finish(self, commit: Commit) -> None:
        """Takes in a commit that has been written: its records exist from now on."""
        assert self._commit is commit
        self._commit = None
        self._finish_roll(commit)
        self._blocks.join(commit.blocks)
        self._next_slot += len(commit.records)
        self._end_address = commit.end_address
        self._last_time_ms = commit.last_time_ms
        self._durable_address = commit.end_address if self._syncs else commit.durable_address
        self._remember(commit)

    def undo(self, commit: Commit) -> None:
        """Forgets a commit whose write ended in DiskFull. So is a roll that is not on disk: call `roll_next` again."""
        assert self._commit is commit
        self._commit = None
        self._finish_roll(commit)
        self._roll = None

    def _finish_roll(self, commit: Commit) -> None:
        roll = commit.roll
        if roll is not None and commit.sealed:
            self._roll = None
            self._sealed.append(roll.sealed)
            self._snapshot_name = files.snapshot_name(roll.next_slot)
            self._begin_segment(roll.next_slot, roll.sealed.end_address)
            self._end_address = self._durable_address = roll.sealed.end_address + SEGMENT_HEADER_SIZE
            self._blocks.extend([files.encode_header(self._first_slot, self._base_address, self._disk.salt)])
            self._remove_through(roll.removable_address)

    def read(self, address: int, size: int) -> Buffer:
        """The bytes at an address: a body of a finished record, or any part of one."""
        body = self._recent.get(address)
        if body is not None and len(body) == size:
            return body
        assert address + size <= self._end_address
        if address >= self._base_address:
            position = address - self._base_address
            if not self._ready:  # While a journal is recovered, only what has just been checked is read from its end.
                return self._disk.read_at(self._name, position, size)
            return self._current.read(position, size)
        segment = self._sealed_at(address)
        checked = self._checked_of(segment)
        self._keep_mapped(segment.first_slot)
        return checked.read(address - segment.base_address, size)

    def _sealed_at(self, address: int) -> Segment:
        number = bisect_right(self._sealed, address, key=lambda segment: segment.base_address) - 1
        if number < 0:
            raise SegmentRemoved(address)
        return self._sealed[number]

    def file_location(self, address: int, size: int) -> tuple[FileLocation, int, bytes] | None:
        """The file that has these bytes, their position there, and the sums of the blocks that they lie in.

        None if other processes cannot read it, or if there are no such sums yet.
        """
        name, base_address, checked = self._name, self._base_address, self._current
        if address < base_address:
            segment = self._sealed_at(address)
            name, base_address = files.journal_name(segment.first_slot), segment.base_address
            checked = self._checked_of(segment)
        sums = checked.sums(address - base_address, size)
        found = self._disk.file_location(name)
        return None if found is None or sums is None else (found, address - base_address, sums)

    def record_at(self, address: int) -> tuple[Record, memoryview] | None:
        """A finished record that begins at an address, and its bodies; None if it is gone or damaged."""
        if address + HEADER_SIZE > self._end_address:
            return None
        try:
            size = size_at(self.read(address, HEADER_SIZE))
            view = memoryview(self.read(address, size)) if 0 < size <= self._end_address - address else memoryview(b"")
        except StorageError:
            return None
        record = decode(view, 0, address)
        return (record, view[size - record.bodies_size :]) if record is not None else None

    def scrub(self, address: int, size: int) -> tuple[int, list[DamagedPlace]]:
        """Reads as much from an address on, to see whether the disk still has what it was given.

        Where to go on, which is the journal's beginning after its end; and what is damaged in the segment, if anything
        that was read is. One segment at most is read.
        """
        start = max(address, self._sealed[0].base_address if self._sealed else self._base_address)
        if start < self._base_address:
            segment = self._sealed_at(start)
            base_address, end = segment.base_address, segment.end_address
            checked, count = self._checked_of(segment), block_count(end - base_address)
        else:
            base_address, checked, count = self._base_address, self._current, len(self._blocks.sums)
            end = 0
        first = (start - base_address) // BLOCK_BYTES
        last = min(count, first + max(1, size // BLOCK_BYTES))
        found: list[DamagedPlace] = []
        for number in range(first, last):
            if not checked.scrub(number):
                found = list(checked.damaged)
        return (end if last == count else base_address + last * BLOCK_BYTES), found

    def forget_checks(self) -> None:
        """Has everything that is read from now on checked again: what was good in memory may have left it since."""
        self._current.forget()
        for slot in self._mapped:
            self._checked[slot].forget()

    def _remove_through(self, end_address: int) -> None:
        """Removes every sealed segment that ends at or before an address; the inventory says so already."""
        count = 0
        while count < len(self._sealed) and self._sealed[count].end_address <= end_address:
            slot = self._sealed[count].first_slot
            self._mapped.pop(slot, None)
            self._checked.pop(slot, None)
            # An index without its segment is a leftover; a segment without its index would be damage.
            self._disk.remove(files.journal_name(slot))
            self._disk.remove(files.index_name(slot))
            count += 1
        del self._sealed[:count]

    def close(self) -> None:
        """Lets go of the disk. Everything finished is there already."""
        self._ready = False
        self._mapped.clear()
        self._checked.clear()
        self._current.unmap()
        self._recent.clear()
        self._disk.close()

    def _begin_segment(self, first_slot: int, base_address: int) -> None:
        self._name = files.journal_name(first_slot)
        self._first_slot = first_slot
        self._base_address = base_address
        self._last_time_ms = 0
        self._blocks = Blocks()
        self._current = Checked(self._disk, self._name, base_address, self._blocks)
        self._current.sealed = False

    def _seal(self, roll: Roll, name: str) -> None:
        """Steps 0 to 4 of `recovery`, in the commit thread."""
        disk, sealed = self._disk, roll.sealed
        if not self._syncs:
            disk.sync(files.journal_name(sealed.first_slot))
        disk.seal(files.journal_name(sealed.first_slot))
        index = Envelope(roll.next_slot, sealed, roll.index, roll.sums)
        disk.replace(files.index_name(sealed.first_slot), files.encode_index(index, disk.salt))
        snapshot = Envelope(roll.next_slot, sealed, roll.snapshot)
        disk.replace(files.snapshot_name(roll.next_slot), files.encode_snapshot(snapshot, disk.salt))
        disk.create(name)
        disk.commit(name, [files.encode_header(roll.next_slot, sealed.end_address, disk.salt)])
        write_note(disk, INVENTORY_NAME, Inventory(roll.oldest_slot, roll.next_slot))

    def _unseal(self, roll: Roll, name: str) -> None:
        """Takes back what `_seal` did, as far as it came. A crash in between only completes the sealing."""
        names = self._disk.names()
        for left in (name, files.snapshot_name(roll.next_slot)):
            if left in names:
                self._disk.remove(left)

    def _remember(self, commit: Commit) -> None:
        """Keeps the bodies just written for those who follow closely, each under its own address."""
        recent, kept_max = self._recent, self._settings.recent_bytes_max
        for append, record in zip(commit.appends, commit.records, strict=True):
            address = record.body_address
            for body in append.bodies:
                size = len(body)
                if 0 < size <= kept_max:
                    recent[address] = body
                    self._recent_bytes += size
                address += size
        while self._recent_bytes > kept_max:
            self._recent_bytes -= len(recent.popitem(last=False)[1])

    def _checked_of(self, segment: Segment) -> Checked:
        """What the bytes of a sealed segment are checked by."""
        checked = self._checked.get(segment.first_slot)
        if checked is None:
            while len(self._checked) >= CHECKED_SEGMENTS_MAX:
                self._mapped.pop(self._checked.popitem(last=False)[0], None)
            name, size = files.journal_name(segment.first_slot), segment.end_address - segment.base_address
            checked = Checked(self._disk, name, segment.base_address, self._sums_of(segment.first_slot, size))
            self._checked[segment.first_slot] = checked
        else:
            self._checked.move_to_end(segment.first_slot)
        return checked

    def _sums_of(self, first_slot: int, size: int) -> Blocks | None:
        name = files.index_name(first_slot)
        try:
            sums = files.decode_index(self._disk.map(name), name, self._disk.salt).sums
        except StorageDamaged:  # The index was whole when the journal was opened; the records have sums of their own.
            return None
        return Blocks.unpack(sums, size) if sums else None

    def _keep_mapped(self, first_slot: int) -> None:
        mapped = self._mapped
        mapped[first_slot] = None
        mapped.move_to_end(first_slot)
        while len(mapped) > self._settings.mapped_segments_max:
            self._checked[mapped.popitem(last=False)[0]].unmap()
