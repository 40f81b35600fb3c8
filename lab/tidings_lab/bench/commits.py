"""Which commits a journal holds: how many, and how large.

All records of one commit carry the same `durable_address`, and each commit a higher one than the last, so
the files themselves tell what one write and one fdatasync had covered. The layout is that of
`journal.record` and `journal.segment`; nothing is checked here, only measured.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import msgspec

from tidings.journal.folder import read_folder
from tidings.journal.record import HEADER_SIZE, MAGIC
from tidings.journal.segment import JOURNAL_SUFFIX, SEGMENT_HEADER_SIZE, decode_header

_HEADER = struct.Struct("<4s8xII28xQ")
assert _HEADER.size == HEADER_SIZE


class Commits(msgspec.Struct, frozen=True):
    """The commits that a journal took since some address; `end_address` is where the next one begins."""

    count: int
    size_bytes: int
    records: int
    end_address: int

    @property
    def mean_bytes(self) -> int:
        """The size of a commit on average."""
        return self.size_bytes // max(1, self.count)


def commits_since(folder: Path, address: int = 0) -> Commits:
    """The commits of the journal in a folder whose records begin at or after an address."""
    count = size_bytes = records = 0
    end_address, last_durable = address, -1
    note = read_folder(folder)
    for path in sorted(folder.glob(f"*{JOURNAL_SUFFIX}")):
        for at, size, durable in _records(path, address, note.salt if note is not None else 0):
            count += durable != last_durable
            last_durable = durable
            size_bytes += size
            records += 1
            end_address = at + size
    return Commits(count, size_bytes, records, end_address)


def _records(path: Path, address: int, salt: int) -> Iterator[tuple[int, int, int]]:
    """Address, size and `durable_address` of each record in a segment from an address on."""
    with path.open("rb") as file:
        segment = decode_header(memoryview(file.read(SEGMENT_HEADER_SIZE)), path.name, salt)
        if segment is None:
            return
        position = max(SEGMENT_HEADER_SIZE, address - segment.base_address)
        while True:
            file.seek(position)
            header = file.read(HEADER_SIZE)
            if len(header) < HEADER_SIZE:
                return
            magic, command_bytes, bodies_bytes, durable = _HEADER.unpack(header)
            if magic != MAGIC:
                return
            size = HEADER_SIZE + command_bytes + bodies_bytes
            yield segment.base_address + position, size, durable
            position += size
