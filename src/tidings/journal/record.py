"""A record of the journal: how it is laid out, and how one is told from rubbish after a crash.

A record is a fixed header, then the command, then the bodies one after another. All numbers are
little-endian and unsigned; sizes are in bytes:

    magic            4   b"TDJ1": a record of format version 1
    crc              4   CRC-32 of all that follows, header and payload
    kind             1   1 a command, 2 a replica's record, 3 a replica's own housekeeping
    flags            1   0
    reserved         2   0
    command_size     4
    bodies_size      4   of all bodies together
    slot             8   the record's number in the journal
    ballot_number    8   the ballot that was promised when it was written, 0 in a group of one
    ballot_node      4
    time_ms          8   since 1970, from the clock of its proposer
    durable_address  8   up to here the journal was known to be on disk when this was written

The CRC does not start from 0 but from the low 32 bits of the record's own address, so that a record is
valid only where it was written: a message that quotes a piece of a journal is not mistaken for one.

**After a crash.** All records of one commit are written by one call and synced together. A power cut
before the sync has ended may keep any part of them: nothing, the beginning, or a late sector and not an
early one. So the first invalid record, at address `p` of the last segment, is either that torn tail or
damage to something that had been synced, and must not be cut off in the second case. `durable_address`
tells them apart: whatever was written after a sync that covered `p` says so. If a valid record with
`durable_address > p` is found anywhere behind `p`, or the durable mark is beyond `p` (see `mark`), then `p`
had been on disk and is damaged; if not, then nothing behind `p` was ever answered for, and all of it is
cut off, with a line in the log.

What this cannot see: a power cut may leave an older mark, so that damage inside the very last commit before
it looks like a torn tail. With durability "os" everything since the last sync counts as tail then: since a segment was
sealed, an idle moment or a clean stop.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import msgspec
from zlib_ng.zlib_ng import crc32, crc32_combine

from tidings.errors import StorageDamaged
from tidings.journal.blocks import Blocks
from tidings.journal.disk import Buffer

MAGIC = b"TDJ1"
COMMAND = 1
"""A command of a broker alone."""
REPLICA = 2
"""A record of `protocols.multipaxos.records`; if it holds a command, that is the body."""
LOCAL = 3
"""A command that a replica gives itself, outside the agreement."""

SUMMED_ONCE_MIN = 8 * 1024
"""Smaller bodies are read twice for the sums of record and blocks: that costs less than to put pieces together."""

_PREFIX = struct.Struct("<4sI")
_REST = struct.Struct("<BBHIIQQIQQ")
_HEADER = struct.Struct("<4sIBBHIIQQIQQ")
HEADER_SIZE = _HEADER.size
assert HEADER_SIZE == _PREFIX.size + _REST.size == 56

_pack_prefix = _PREFIX.pack
_pack_rest = _REST.pack
_unpack_header = _HEADER.unpack_from


class Append(msgspec.Struct, gc=False):
    """What somebody wants appended. The bodies are written as they are and must not change until then."""

    kind: int
    command: bytes
    bodies: tuple[Buffer, ...] = ()
    time_ms: int = 0
    ballot_number: int = 0
    ballot_node: int = 0


class Record(msgspec.Struct, frozen=True, gc=False):
    """An appended record. Its bodies stay where they are: one after another from `body_address` on."""

    slot: int
    kind: int
    time_ms: int
    ballot_number: int
    ballot_node: int
    command: bytes
    body_address: int
    bodies_size: int

    @property
    def address(self) -> int:
        """The address of the record's first byte."""
        return self.body_address - len(self.command) - HEADER_SIZE

    @property
    def end_address(self) -> int:
        """The address after the record's last byte."""
        return self.body_address + self.bodies_size


def encode(append: Append, record: Record, durable_address: int, buffers: list[Buffer]) -> None:
    """Puts the bytes of a record behind `buffers`. Bodies are not copied."""
    rest = _rest(append, record, durable_address)
    checksum = crc32(rest, record.address & 0xFFFFFFFF)
    for body in append.bodies:
        checksum = crc32(body, checksum)
    buffers.append(_pack_prefix(MAGIC, checksum) + rest)
    buffers.extend(append.bodies)


def encode_all(appends: list[Append], records: list[Record], durable_address: int, blocks: Blocks) -> list[Buffer]:
    """The bytes of a commit; `blocks` has the sums of what comes before, and then of all."""
    buffers: list[Buffer] = []
    summed = 0
    for append, record in zip(appends, records, strict=True):
        if record.bodies_size < SUMMED_ONCE_MIN:
            encode(append, record, durable_address, buffers)
            continue
        blocks.extend(buffers[summed:])
        _encode_summed(append, record, durable_address, buffers, blocks)
        summed = len(buffers)
    blocks.extend(buffers[summed:])
    return buffers


def _encode_summed(append: Append, record: Record, durable_address: int, buffers: list[Buffer], blocks: Blocks) -> None:
    """`encode`, and the sums of the blocks that the record comes to lie in: its bodies are read once for both."""
    rest = _rest(append, record, durable_address)
    checksum = crc32(rest, record.address & 0xFFFFFFFF)
    pieces = blocks.pieces(append.bodies, _PREFIX.size + len(rest))
    for found, size in pieces:
        checksum = crc32_combine(checksum, found, size)
    header = _pack_prefix(MAGIC, checksum) + rest
    blocks.extend((header,))
    blocks.extend_pieces(pieces)
    buffers.append(header)
    buffers.extend(append.bodies)


def _rest(append: Append, record: Record, durable_address: int) -> bytes:
    """All that the checksum covers but for the bodies."""
    command = append.command
    return (
        _pack_rest(
            append.kind,
            0,
            0,
            len(command),
            record.bodies_size,
            record.slot,
            append.ballot_number,
            append.ballot_node,
            append.time_ms,
            durable_address,
        )
        + command
    )


def size_at(view: Buffer) -> int:
    """The size of the record that begins a view, unchecked; 0 if none does."""
    if len(view) < HEADER_SIZE:
        return 0
    magic, _, _, _, _, command_size, bodies_size, *_ = _unpack_header(view)
    return HEADER_SIZE + command_size + bodies_size if magic == MAGIC else 0


def decode(view: memoryview, position: int, base_address: int) -> Record | None:
    """The record at a position of a segment that starts at `base_address`; None if no valid one is there."""
    if position + HEADER_SIZE > len(view):
        return None
    (magic, checksum, kind, _, _, command_size, bodies_size, slot, number, node, time_ms, _) = _unpack_header(
        view, position
    )
    command_at = position + HEADER_SIZE
    bodies_at = command_at + command_size
    end = bodies_at + bodies_size
    if magic != MAGIC or end > len(view):
        return None
    if crc32(view[position + _PREFIX.size : end], (base_address + position) & 0xFFFFFFFF) != checksum:
        return None
    return Record(
        slot, kind, time_ms, number, node, bytes(view[command_at:bodies_at]), base_address + bodies_at, bodies_size
    )


def scan(view: memoryview, position: int, base_address: int, slot: int, name: str) -> Iterator[Record]:
    """Every record from a position on, up to the end or the first invalid one. Slots must follow `slot`."""
    while (record := decode(view, position, base_address)) is not None:
        if record.slot != slot:
            raise StorageDamaged(
                f"{name} is damaged at position {position}: slot {record.slot} is there instead of {slot}."
            )
        yield record
        position = record.end_address - base_address
        slot += 1


def next_valid(view: memoryview, position: int, base_address: int) -> int | None:
    """Where the first valid record at or behind a position begins."""
    for found in _marks(view, position):
        if decode(view, found, base_address) is not None:
            return found
    return None


def synced_behind(view: memoryview, position: int, base_address: int) -> bool:
    """Whether a valid record at or behind `position` says that the byte at `position` had been synced."""
    address = base_address + position
    return any(
        found + HEADER_SIZE <= len(view)
        and address < _unpack_header(view, found)[-1] <= base_address + found
        and decode(view, found, base_address) is not None
        for found in _marks(view, position)
    )


def _marks(view: memoryview, position: int) -> Iterator[int]:
    """Every place at or behind a position at which a record might begin."""
    # `find` wants bytes, and those of a whole segment are too many to copy at once.
    window_size = 1 << 20
    for start in range(position, len(view), window_size):
        window = bytes(view[start : start + window_size + len(MAGIC) - 1])
        at = window.find(MAGIC)
        while at >= 0:
            yield start + at
            at = window.find(MAGIC, at + 1)
