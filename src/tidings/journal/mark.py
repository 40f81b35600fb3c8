"""The durable mark: how much of the newest segment must be there.

After every sync the mark is written, without a sync of its own: whatever of it a power cut leaves, it never says more
than was on disk when it was written. A process that is killed leaves it exact, because the kernel keeps what was
written; a clean stop and an idle moment sync it. So recovery may cut off a tail only behind the mark, and a segment
that is shorter than its mark has lost something.

What was written without a sync is marked too, with the boot of the machine: as long as the machine has not been
started again, the kernel has all of that, however the process ended.

The file `durable` has two entries, 512 bytes apart and written in turns, so that a torn one leaves the other:

    crc       4   CRC-32 of the rest, begun with the folder's salt
    number    8   rising: the valid entry with the higher one counts
    slot      8   the segment, by its first slot
    size      8   so many bytes of it are on disk
    written   8   so many bytes of it were written, on disk or not
    boot      4   by then the machine had been started this time: the CRC-32 of its boot id
"""

from __future__ import annotations

import os
import struct
from pathlib import Path

from zlib_ng.zlib_ng import crc32

from tidings.boot import boot_id

MARK_NAME = "durable"
_ENTRY = struct.Struct("<QQQQI")
_CRC = struct.Struct("<I")
_APART = 512


class DurableMark:
    """The mark of one folder; every call is for the thread that writes."""

    def __init__(self, path: Path, salt: int) -> None:
        self._salt = salt
        self._descriptor = os.open(path / MARK_NAME, os.O_RDWR | os.O_CREAT, 0o600)
        self._boot = crc32(boot_id().encode())
        self._number = self.slot = self.size = self._written = 0
        for position in (0, _APART):
            entry = self._read(position)
            if entry is not None and entry[0] > self._number:
                self._number, self.slot, self.size, self._written, boot = entry
                if boot != self._boot or not boot_id():  # Whatever was not synced may be gone.
                    self._written = self.size

    def _read(self, position: int) -> tuple[int, int, int, int, int] | None:
        data = os.pread(self._descriptor, _CRC.size + _ENTRY.size, position)
        if len(data) < _CRC.size + _ENTRY.size or crc32(data[_CRC.size :], self._salt) != _CRC.unpack_from(data)[0]:
            return None
        number, slot, size, written, boot = _ENTRY.unpack_from(data, _CRC.size)
        return number, slot, size, written, boot

    @property
    def due(self) -> int:
        """So many bytes of the segment must be there."""
        return max(self.size, self._written)

    def set(self, slot: int, size: int) -> None:
        """So many bytes of a segment are on disk."""
        self._set(slot, size, size)

    def set_written(self, slot: int, size: int) -> None:
        """So many bytes of a segment are written, and perhaps not on disk."""
        self._set(slot, self.size if slot == self.slot else 0, size)

    def _set(self, slot: int, size: int, written: int) -> None:
        self._number += 1
        self.slot, self.size, self._written = slot, size, written
        entry = _ENTRY.pack(self._number, slot, size, written, self._boot)
        os.pwrite(self._descriptor, _CRC.pack(crc32(entry, self._salt)) + entry, (self._number & 1) * _APART)

    def lower(self, slot: int, size: int) -> None:
        """A segment is about to be shorter than it was; on disk, so that no older entry comes back."""
        if slot == self.slot and size < self.due:
            for _ in range(2):
                self._set(slot, min(size, self.size), size)
            self.sync()

    def sync(self) -> None:
        """Brings the mark itself onto the disk."""
        os.fdatasync(self._descriptor)

    def close(self) -> None:
        os.close(self._descriptor)
