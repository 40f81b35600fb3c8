"""No byte leaves the journal that fails its checksum (Z11): bits flipped everywhere, read in every way."""

from __future__ import annotations

import struct
from pathlib import Path
from random import Random
from zlib import crc32

import pytest

from tidings.journal import COMMAND, Append, Disk, Journal, RealDisk, Record
from tidings.journal import segment as files
from tidings.journal.blocks import BLOCK_BYTES, Blocks
from tidings.journal.checked import DamagedPlace
from tidings.settings import JournalSettings
from tidings.simulator.disk import SimulatedDisk

SETTINGS = JournalSettings(segment_bytes_max=5 * BLOCK_BYTES // 2, recent_bytes_max=1)
"""Segments of a few blocks, the last one not full; everything is read from the files."""
FLIPS = 60


class RemoteDisk(SimulatedDisk):
    """A disk of another process: nothing is mapped."""

    remote = True


class Written:
    """A journal with sealed segments and one that is being written, and every body in it."""

    def __init__(self, disk: Disk, seed: int = 0) -> None:
        self.disk = disk
        self.journal = Journal.open(disk, SETTINGS)
        list(self.journal.recover().records)
        self.bodies: list[tuple[Record, bytes]] = []
        random = Random(seed)
        while len(self.journal.segments) < 2 or self.journal.end_address < self.journal.segment_address + 80_000:
            self.put(random.randbytes(random.choice((1, 300, 5_000, 70_000))))

    def put(self, body: bytes) -> None:
        if self.journal.full:
            self.journal.roll_next(b"index", b"snapshot")
        commit = self.journal.begin([Append(COMMAND, b"put", (body,))])
        self.journal.write(commit)
        self.journal.finish(commit)
        self.bodies.append((commit.records[0], body))

    def reopen(self) -> None:
        self.journal = Journal.open(self.disk, SETTINGS)
        list(self.journal.recover().records)

    def look(self) -> list[Record]:
        """Reads every body, and each in two parts; those that are refused. What is not refused must be right."""
        refused = []
        for record, body in self.bodies:
            address, half = record.body_address, len(body) // 2
            try:
                parts = [
                    bytes(self.journal.read(address, half)),
                    bytes(self.journal.read(address + half, len(body) - half)),
                ]
                assert b"".join(parts) == body
                assert bytes(self.journal.read(address, len(body))) == body
            except DamagedPlace as error:
                assert error.span.start <= record.address < error.span.end
                assert f"{error.name} is damaged at position {error.position}" in str(error)
                refused.append(record)
        return refused

    def segments(self) -> list[tuple[str, int, int]]:
        """Name, base address and size of each segment, the current one last."""
        bases = [*(each.base_address for each in self.journal.segments), self.journal.segment_address]
        ends = [*bases[1:], self.journal.end_address]
        names = map(files.journal_name, files.slots_of(self.disk.names(), files.JOURNAL_SUFFIX))
        return [(name, base, end - base) for name, base, end in zip(names, bases, ends, strict=True)]

    def at(self, address: int) -> list[Record]:
        """The record that has an address, if it is not in a segment's header."""
        return [record for record, _ in self.bodies if record.address <= address < record.end_address]


@pytest.mark.parametrize("kind", [SimulatedDisk, RemoteDisk])
def test_whatever_bit_is_flipped_only_the_record_that_has_it_is_refused(kind: type[SimulatedDisk]) -> None:
    disk = kind(Random(0))
    written = Written(disk)
    assert written.look() == []
    random = Random(1)
    for name, base_address, size in written.segments():
        for position in (*random.sample(range(files.SEGMENT_HEADER_SIZE, size), FLIPS), size - 1):
            written.reopen()  # Nothing of it is in memory.
            bit = random.randrange(8)
            disk.flip_bit(name, position, bit)
            hit = written.at(base_address + position)
            assert hit, "every byte behind the header belongs to a record"
            assert written.look() == hit, (name, position)
            assert written.look() == hit, "also once it is known"
            disk.flip_bit(name, position, bit)


def test_a_flip_in_a_header_refuses_nothing() -> None:
    disk = SimulatedDisk(Random(0))
    written = Written(disk)
    for name, *_ in written.segments():
        disk.flip_bit(name, 9)
    assert written.look() == []


def test_several_damaged_places_are_all_refused_and_told_apart() -> None:
    disk = SimulatedDisk(Random(0))
    written = Written(disk)
    hits = [written.bodies[number][0] for number in range(0, len(written.bodies), 3)]
    written.reopen()
    for record in hits:
        name, base_address, _ = max(each for each in written.segments() if each[1] <= record.address)
        disk.flip_bit(name, record.body_address - base_address)
    assert written.look() == hits


def test_damage_that_comes_later_is_found_though_the_block_was_good_before(tmp_path: Path) -> None:
    """Memory that a file is mapped into can be read from the disk again at any time, and be another then."""
    written = Written(RealDisk(tmp_path))
    assert written.look() == []
    hits = []
    for name, base_address, size in written.segments():
        record = written.at(base_address + size // 2)[0]
        position = record.body_address - base_address
        with (tmp_path / name).open("r+b") as file:
            file.seek(position)
            byte = file.read(1)[0]
            file.seek(position)
            file.write(bytes([byte ^ 1]))
        hits.append(record)
        written.journal.forget_checks()
        assert written.look() == hits
    written.journal.close()


def test_what_recovery_skips_stays_refused_also_when_the_segment_is_sealed() -> None:
    """A replica goes on behind damage in the segment that it writes; new sums must not make that good."""
    disk = SimulatedDisk(Random(0))
    written = Written(disk)
    name, base_address, _ = written.segments()[-1]
    hit = written.at(base_address + 40_000)
    disk.flip_bit(name, 40_000)
    written.journal = Journal.open(disk, SETTINGS)
    recovery = written.journal.recover(skips_damage=True)
    list(recovery.records)
    assert [span.start for span in recovery.damaged] == [hit[0].address]
    assert written.look() == hit
    sealed = len(written.journal.segments)
    while len(written.journal.segments) == sealed:
        written.put(b"more" * 5_000)
    assert written.look() == hit
    written.reopen()
    assert written.look() == hit


def test_a_segment_that_was_sealed_without_sums_is_checked_by_its_records() -> None:
    disk = SimulatedDisk(Random(0))
    written = Written(disk)
    for slot in files.slots_of(disk.names(), files.INDEX_SUFFIX):
        name = files.index_name(slot)
        old = files.decode_index(disk.map(name), name)
        rest = struct.pack("<QQQQQ", old.next_slot, *old.segment) + old.payload
        disk.replace(name, [b"TDI1" + struct.pack("<I", crc32(rest)), rest])
    written.reopen()
    assert written.look() == []
    written.reopen()
    name, base_address, size = written.segments()[0]
    disk.flip_bit(name, size // 2)
    assert written.look() == written.at(base_address + size // 2)


def test_an_index_that_is_damaged_later_does_not_make_bad_bytes_good() -> None:
    disk = SimulatedDisk(Random(0))
    written = Written(disk)
    written.reopen()
    name, base_address, size = written.segments()[0]
    disk.flip_bit(files.index_name(0), 60)
    disk.flip_bit(name, size // 2)
    assert written.look() == written.at(base_address + size // 2)


def test_the_scrub_goes_round_in_slices_and_finds_every_flip() -> None:
    disk = SimulatedDisk(Random(0))
    written = Written(disk)
    written.reopen()
    hits: dict[int, None] = {}
    for name, base_address, size in written.segments():
        position = min(size, BLOCK_BYTES) // 2
        disk.flip_bit(name, position)
        hits[written.at(base_address + position)[0].address] = None
    address = 0
    found: dict[int, None] = {}
    slices = 0
    while address or not slices:
        slices += 1
        address, damaged = written.journal.scrub(address, BLOCK_BYTES)
        found.update({each.span.start: None for each in damaged})
    assert list(found) == list(hits)
    assert slices >= written.journal.size_bytes // BLOCK_BYTES
    assert written.journal.scrub(address, BLOCK_BYTES)[1], "what is damaged is found again in the next round"


@pytest.mark.parametrize(
    "sizes", [[0], [1], [BLOCK_BYTES], [BLOCK_BYTES - 1, 1, 1], [3 * BLOCK_BYTES + 5, 7], [9] * 99]
)
def test_sums_do_not_depend_on_how_the_bytes_were_cut_up(sizes: list[int]) -> None:
    data = Random(2).randbytes(sum(sizes))
    pieces = Blocks()
    at = 0
    for size in sizes:
        pieces.extend([data[at : at + size]])
        at += size
    whole = Blocks()
    whole.extend([memoryview(data)])
    expected = [crc32(data[start : start + BLOCK_BYTES]) for start in range(0, len(data), BLOCK_BYTES)]
    assert pieces.pack() == whole.pack() == struct.pack(f"<{len(expected)}I", *expected)
    again = Blocks.unpack(whole.pack(), len(data))
    assert (list(again.sums), again.rest, again.size) == (list(whole.sums), whole.rest, whole.size)
