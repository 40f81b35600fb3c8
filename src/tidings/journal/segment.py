"""The files of a journal: their names and all of their bytes that are not records.

A segment holds consecutive records and is named by its first slot: `00000000000000000000.journal`. Every
byte of the journal has an address that never changes: the segment's base address plus the position in
the file. A segment begins at the address where the one before it ended, so addresses have no gaps, and
removing old segments moves nothing. A segment begins with a header (numbers little-endian):

    magic         4   b"TDS1"
    crc           4   CRC-32 of the rest of the header
    version       4   1: the layout of the records
    first_slot    8
    base_address  8

The header is synced before the first record is written, so an unreadable header in front of
a record is damage, and one with nothing behind it belongs to a segment that never came to be.

Sealing a segment leaves two more files, both written atomically: `<its first slot>.index`, what the
segment's owner wants to know about it without reading it, and `<the next slot>.snapshot`, the
owner's state before that slot. Both have the same envelope in front of the owner's bytes:

    magic         4   b"TDI1" an index, b"TDN1" a snapshot
    crc           4   CRC-32 of all that follows
    next_slot     8   the slot after the last of the segment that was sealed
    first_slot    8   of that segment
    base_address  8
    end_address   8
    last_time_ms  8   the latest time among its records
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from zlib_ng.zlib_ng import crc32

from tidings.errors import StorageDamaged
from tidings.journal.disk import Buffer

JOURNAL_SUFFIX = ".journal"
INDEX_SUFFIX = ".index"
SNAPSHOT_SUFFIX = ".snapshot"

VERSION = 1
_SEGMENT_MAGIC = b"TDS1"
_INDEX_MAGIC = b"TDI1"
_SNAPSHOT_MAGIC = b"TDN1"
_PREFIX = struct.Struct("<4sI")
_SEGMENT = struct.Struct("<IQQ")
_ENVELOPE = struct.Struct("<QQQQQ")
SEGMENT_HEADER_SIZE = _PREFIX.size + _SEGMENT.size
_ENVELOPE_SIZE = _PREFIX.size + _ENVELOPE.size


class Segment(NamedTuple):
    """A sealed segment: its first slot, its addresses and the latest time among its records."""

    first_slot: int
    base_address: int
    end_address: int
    last_time_ms: int


class Envelope(NamedTuple):
    """An index or a snapshot: made when `segment` was sealed before `next_slot`, with the owner's bytes."""

    next_slot: int
    segment: Segment
    payload: bytes


class SegmentHeader(NamedTuple):
    """What a segment says about itself."""

    first_slot: int
    base_address: int


def journal_name(first_slot: int) -> str:
    """The segment that begins with a slot."""
    return f"{first_slot:020d}{JOURNAL_SUFFIX}"


def index_name(first_slot: int) -> str:
    """The index of the segment that begins with a slot."""
    return f"{first_slot:020d}{INDEX_SUFFIX}"


def snapshot_name(next_slot: int) -> str:
    """The snapshot of the state before a slot."""
    return f"{next_slot:020d}{SNAPSHOT_SUFFIX}"


def slots_of(names: list[str], suffix: str) -> list[int]:
    """The slots that name the files with a suffix, ascending; other files are not ours and left alone."""
    stems = (name.removesuffix(suffix) for name in names if name.endswith(suffix))
    return sorted(int(stem) for stem in stems if len(stem) == 20 and stem.isdecimal() and stem.isascii())


def encode_header(first_slot: int, base_address: int) -> bytes:
    """The first bytes of a segment."""
    rest = _SEGMENT.pack(VERSION, first_slot, base_address)
    return _PREFIX.pack(_SEGMENT_MAGIC, crc32(rest)) + rest


def decode_header(data: memoryview, name: str) -> SegmentHeader | None:
    """The header at the beginning of a segment; None if it is short or fails its check."""
    if len(data) < SEGMENT_HEADER_SIZE:
        return None
    magic, checksum = _PREFIX.unpack_from(data)
    if magic != _SEGMENT_MAGIC or crc32(data[_PREFIX.size : SEGMENT_HEADER_SIZE]) != checksum:
        return None
    version, first_slot, base_address = _SEGMENT.unpack_from(data, _PREFIX.size)
    if version != VERSION:
        # Never treated as torn: cutting off what a newer version wrote would lose it.
        raise StorageDamaged(f"{name} has format version {version}, and this is {VERSION}: use a newer tidings.")
    return SegmentHeader(first_slot, base_address)


def is_first_release(data: memoryview) -> bool:
    """Whether a segment was begun by the first release."""
    return False


def encode_index(envelope: Envelope) -> list[Buffer]:
    """The bytes of an index file."""
    return _encode_envelope(_INDEX_MAGIC, envelope)


def encode_snapshot(envelope: Envelope) -> list[Buffer]:
    """The bytes of a snapshot file."""
    return _encode_envelope(_SNAPSHOT_MAGIC, envelope)


def decode_index(data: memoryview, name: str) -> Envelope:
    """What an index file holds; StorageDamaged if it fails its check."""
    return _decode_envelope(_INDEX_MAGIC, data, name)


def decode_snapshot(data: memoryview, name: str) -> Envelope:
    """What a snapshot file holds; StorageDamaged if it fails its check."""
    return _decode_envelope(_SNAPSHOT_MAGIC, data, name)


def _encode_envelope(magic: bytes, envelope: Envelope) -> list[Buffer]:
    rest = _ENVELOPE.pack(envelope.next_slot, *envelope.segment)
    return [_PREFIX.pack(magic, crc32(envelope.payload, crc32(rest))) + rest, envelope.payload]


def _decode_envelope(magic_wanted: bytes, data: memoryview, name: str) -> Envelope:
    if len(data) >= _ENVELOPE_SIZE:
        magic, checksum = _PREFIX.unpack_from(data)
        if magic == magic_wanted and crc32(data[_PREFIX.size :]) == checksum:
            next_slot, *segment = _ENVELOPE.unpack_from(data, _PREFIX.size)
            return Envelope(next_slot, Segment(*segment), bytes(data[_ENVELOPE_SIZE:]))
    raise StorageDamaged(f"{name} is damaged: it fails its checksum.")
