"""The files of a journal: their names and all of their bytes that are not records.

A segment holds consecutive records and is named by its first slot: `00000000000000000000.journal`. Every
byte of the journal has an address that never changes: the segment's base address plus the position in
the file. A segment begins at the address where the one before it ended, so addresses have no gaps, and
removing old segments moves nothing. A segment begins with a header (numbers little-endian):

    magic         4   b"TDS1"
    crc           4   CRC-32 of the rest of the header, begun with the folder's salt
    version       4   2: the layout of the records
    first_slot    8
    base_address  8

The salt is a number of the folder (`Disk.salt`), so that a file that was put in from another one fails its check.

The header is synced before the first record is written, so an unreadable header in front of
a record is damage, and one with nothing behind it belongs to a segment that never came to be.

Sealing a segment leaves two more files, both written atomically: `<its first slot>.index`, what the
segment's owner wants to know about it without reading it, and `<the next slot>.snapshot`, the
owner's state before that slot. Both have the same envelope in front of the owner's bytes:

    magic         4   b"TDI2" an index, b"TDN2" a snapshot
    crc           4   CRC-32 of all that follows, begun with the folder's salt
    next_slot     8   the slot after the last of the segment that was sealed
    first_slot    8   of that segment
    base_address  8
    end_address   8
    last_time_ms  8   the latest time among its records

and in an index there comes next what the bytes of the segment are checked by (see `blocks`):

    sums          4   each: the CRC-32 of one block of 64 KiB of the segment, as many as it has

Files of version 1 are read too, and never written: `version` 1 in a segment, b"TDI1" and b"TDN1". Their checksums are
begun with 0, and their indexes have no sums.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from zlib_ng.zlib_ng import crc32

from tidings.errors import StorageDamaged
from tidings.journal.blocks import SUM_BYTES, block_count
from tidings.journal.disk import Buffer

JOURNAL_SUFFIX = ".journal"
INDEX_SUFFIX = ".index"
SNAPSHOT_SUFFIX = ".snapshot"

VERSION = 2
_UNSALTED_VERSION = 1
_SEGMENT_MAGIC = b"TDS1"
_INDEX_MAGIC = b"TDI2"
_SNAPSHOT_MAGIC = b"TDN2"
_UNSALTED = {_INDEX_MAGIC: b"TDI1", _SNAPSHOT_MAGIC: b"TDN1"}
"""The same files in version 1."""
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
    sums: bytes = b""
    """Of the segment's blocks, in an index; none in one of version 1."""


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


def encode_header(first_slot: int, base_address: int, salt: int = 0) -> bytes:
    """The first bytes of a segment."""
    rest = _SEGMENT.pack(VERSION, first_slot, base_address)
    return _PREFIX.pack(_SEGMENT_MAGIC, crc32(rest, salt)) + rest


def decode_header(data: memoryview, name: str, salt: int = 0) -> SegmentHeader | None:
    """The header at the beginning of a segment; None if it is short or fails its check."""
    if len(data) < SEGMENT_HEADER_SIZE:
        return None
    magic, checksum = _PREFIX.unpack_from(data)
    version, first_slot, base_address = _SEGMENT.unpack_from(data, _PREFIX.size)
    seed = 0 if version == _UNSALTED_VERSION else salt
    if magic != _SEGMENT_MAGIC or crc32(data[_PREFIX.size : SEGMENT_HEADER_SIZE], seed) != checksum:
        return None
    if not _UNSALTED_VERSION <= version <= VERSION:
        # Never treated as torn: cutting off what a newer version wrote would lose it.
        raise StorageDamaged(
            f"{name} has format version {version}, and this release reads {VERSION}: use a newer tidings."
        )
    return SegmentHeader(first_slot, base_address)


def is_first_release(data: memoryview) -> bool:
    """Whether a segment was begun by the first release."""
    return len(data) >= SEGMENT_HEADER_SIZE and _SEGMENT.unpack_from(data, _PREFIX.size)[0] == _UNSALTED_VERSION


def is_first_release_snapshot(data: memoryview) -> bool:
    """Whether a snapshot was written by the first release."""
    return bytes(data[: len(_SNAPSHOT_MAGIC)]) == _UNSALTED[_SNAPSHOT_MAGIC]


def encode_index(envelope: Envelope, salt: int = 0) -> list[Buffer]:
    """The bytes of an index file."""
    assert len(envelope.sums) == _sums_size(envelope.segment)
    return _encode_envelope(_INDEX_MAGIC, envelope, salt)


def encode_snapshot(envelope: Envelope, salt: int = 0) -> list[Buffer]:
    """The bytes of a snapshot file."""
    assert not envelope.sums
    return _encode_envelope(_SNAPSHOT_MAGIC, envelope, salt)


def decode_index(data: memoryview, name: str, salt: int = 0) -> Envelope:
    """What an index file holds; StorageDamaged if it fails its check."""
    return _decode_envelope(_INDEX_MAGIC, data, name, salt)


def decode_snapshot(data: memoryview, name: str, salt: int = 0) -> Envelope:
    """What a snapshot file holds; StorageDamaged if it fails its check."""
    return _decode_envelope(_SNAPSHOT_MAGIC, data, name, salt)


def _encode_envelope(magic: bytes, envelope: Envelope, salt: int) -> list[Buffer]:
    rest = _ENVELOPE.pack(envelope.next_slot, *envelope.segment) + envelope.sums
    return [_PREFIX.pack(magic, crc32(envelope.payload, crc32(rest, salt))) + rest, envelope.payload]


def _decode_envelope(magic_wanted: bytes, data: memoryview, name: str, salt: int) -> Envelope:
    if len(data) >= _ENVELOPE_SIZE:
        magic, checksum = _PREFIX.unpack_from(data)
        unsalted = magic == _UNSALTED[magic_wanted]
        if (unsalted or magic == magic_wanted) and crc32(data[_PREFIX.size :], 0 if unsalted else salt) == checksum:
            next_slot, *fields = _ENVELOPE.unpack_from(data, _PREFIX.size)
            segment = Segment(*fields)
            payload_at = _ENVELOPE_SIZE + (_sums_size(segment) if magic == _INDEX_MAGIC else 0)
            sums = bytes(data[_ENVELOPE_SIZE:payload_at])
            if len(data) >= payload_at >= _ENVELOPE_SIZE:
                return Envelope(next_slot, segment, bytes(data[payload_at:]), sums)
    raise StorageDamaged(f"{name} is damaged: it fails its checksum.")


def _sums_size(segment: Segment) -> int:
    return SUM_BYTES * block_count(segment.end_address - segment.base_address)
