"""Room that is kept for what frees room.

A disk that is full to the last byte could take no acknowledgement, no new session and no snapshot, so nothing could
ever be let go. The file `reserve` holds some room as long as there is any. When a small write finds no other, the file
goes, and the disk is `short` until the room can be taken back; meanwhile puts have to be refused. A clean stop gives
the room back, for nobody writes then.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

RESERVE_NAME = "reserve"
RESTOCK_SECONDS = 1.0
"""How often a full disk is looked at again."""
RESERVE_BYTES = 16 * 1024 * 1024
SMALL_WRITE_BYTES_MAX = 256 * 1024
"""Larger writes may not use the reserve. Snapshots and indexes may: sealing a segment is what lets others go."""


class Reserve:
    """The reserve of one folder."""

    def __init__(self, path: Path, size_bytes: int, directory: int | None = None) -> None:
        self._path = str(path / RESERVE_NAME) if directory is None else RESERVE_NAME
        self._directory = directory
        self._size_bytes = size_bytes
        self.short = False
        """Whether there is none: the disk was full, and is still."""
        self._tried_at = 0.0
        self.restock()

    def release(self) -> bool:
        """Gives the room to a write that found no other; False if there was none to give."""
        if self.short:
            return False
        self.short = True
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path, dir_fd=self._directory)
        return True

    def restock(self) -> None:
        """Takes the room back, if there is enough again."""
        if not self._size_bytes or (self.short and time.monotonic() - self._tried_at < RESTOCK_SECONDS):
            return
        self._tried_at = time.monotonic()
        descriptor = -1
        try:
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT, 0o600, dir_fd=self._directory)
            os.posix_fallocate(descriptor, 0, self._size_bytes)
            self.short = False
        except OSError:
            self.short = True
            with contextlib.suppress(OSError):
                os.unlink(self._path, dir_fd=self._directory)
        finally:
            if descriptor >= 0:
                os.close(descriptor)

    def close(self) -> None:
        """Gives the room back."""
        if not self.short:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path, dir_fd=self._directory)
