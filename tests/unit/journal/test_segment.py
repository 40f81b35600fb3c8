"""The journal's files besides their records: names, segment headers, indexes and snapshots."""

from __future__ import annotations

import struct
from zlib import crc32

import pytest

from tidings.errors import StorageDamaged
from tidings.journal import segment as files
from tidings.journal.segment import Envelope, Segment, SegmentHeader

ENVELOPE = Envelope(30, Segment(20, 5000, 9000, 123456), b"what the owner wants to know")
SUMMED = ENVELOPE._replace(sums=b"sums")
SALT = 0x12345678


def first_version(magic: bytes, envelope: Envelope) -> bytes:
    """A file as it was written when there were neither salts nor sums."""
    rest = struct.pack("<QQQQQ", envelope.next_slot, *envelope.segment) + envelope.payload
    return magic + struct.pack("<I", crc32(rest)) + rest


def test_names_sort_as_their_slots_do() -> None:
    slots = [0, 9, 10, 12345, 2**63]
    names = [files.journal_name(slot) for slot in slots]
    assert names == sorted(names)
    assert names[3] == "00000000000000012345.journal"
    assert files.slots_of(names[::-1], files.JOURNAL_SUFFIX) == slots


def test_files_of_other_people_are_left_alone() -> None:
    names = ["notes.journal", "1.journal", files.index_name(1), files.journal_name(2) + ".tmp", files.journal_name(3)]
    assert files.slots_of(names, files.JOURNAL_SUFFIX) == [3]


def test_header_round_trip_and_every_flip_and_truncation_is_seen() -> None:
    data = files.encode_header(7, 4096)
    assert len(data) == files.SEGMENT_HEADER_SIZE
    assert files.decode_header(memoryview(data + b"records"), "x") == SegmentHeader(7, 4096)
    for position in range(len(data)):
        assert files.decode_header(memoryview(data[:position]), "x") is None
        flipped = bytearray(data)
        flipped[position] ^= 16
        assert files.decode_header(memoryview(flipped), "x") is None


def test_a_newer_format_is_refused_rather_than_cut_off() -> None:
    rest = struct.pack("<IQQ", 3, 0, 0)
    data = b"TDS1" + struct.pack("<I", crc32(rest)) + rest
    with pytest.raises(StorageDamaged, match="x has format version 3, and this release reads 2: use a newer tidings"):
        files.decode_header(memoryview(data), "x")


def test_files_of_the_first_version_are_still_read_whatever_the_salt() -> None:
    rest = struct.pack("<IQQ", 1, 7, 4096)
    header = b"TDS1" + struct.pack("<I", crc32(rest)) + rest
    assert files.decode_header(memoryview(header), "x", SALT) == SegmentHeader(7, 4096)
    index, snapshot = first_version(b"TDI1", ENVELOPE), first_version(b"TDN1", ENVELOPE)
    assert files.decode_index(memoryview(index), "x", SALT) == ENVELOPE
    assert files.decode_snapshot(memoryview(snapshot), "x", SALT) == ENVELOPE


def test_envelope_round_trip() -> None:
    index, snapshot = b"".join(files.encode_index(SUMMED)), b"".join(files.encode_snapshot(ENVELOPE))
    assert files.decode_index(memoryview(index), "x") == SUMMED
    assert files.decode_snapshot(memoryview(snapshot), "x") == ENVELOPE
    with pytest.raises(StorageDamaged):
        files.decode_snapshot(memoryview(index), "x")


def test_a_file_of_another_folder_fails_its_check() -> None:
    header = files.encode_header(7, 4096, SALT)
    index = b"".join(files.encode_index(SUMMED, SALT))
    snapshot = b"".join(files.encode_snapshot(ENVELOPE, SALT))
    assert files.decode_header(memoryview(header), "x", SALT) == SegmentHeader(7, 4096)
    assert files.decode_index(memoryview(index), "x", SALT) == SUMMED
    assert files.decode_snapshot(memoryview(snapshot), "x", SALT) == ENVELOPE
    assert files.decode_header(memoryview(header), "x", SALT + 1) is None
    with pytest.raises(StorageDamaged):
        files.decode_index(memoryview(index), "x", SALT + 1)
    with pytest.raises(StorageDamaged):
        files.decode_snapshot(memoryview(snapshot), "x", SALT + 1)


def test_every_flip_and_truncation_of_an_envelope_is_damage() -> None:
    data = b"".join(files.encode_index(SUMMED))
    for position in range(len(data)):
        flipped = bytearray(data)
        flipped[position] ^= 1
        for bad in (data[:position], bytes(flipped)):
            with pytest.raises(StorageDamaged, match=r"some\.index is damaged"):
                files.decode_index(memoryview(bad), "some.index")
