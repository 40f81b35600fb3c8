"""A disk that is full at some size: the os module, but that a folder may hold only so many bytes.

As a program it runs any command of tidings on such a disk: `python -m tests.integration.full_disk FOLDER BYTES serve
--data FOLDER ...`.
"""

from __future__ import annotations

import errno
import os
import sys
import types
from pathlib import Path

from tidings.journal import disk, folder, mark, reserve


class FullOs(types.ModuleType):
    """The os module on a disk that holds only so much of one folder. `capacity_bytes` may change."""

    def __init__(self, path: Path, capacity_bytes: int) -> None:
        super().__init__("os")
        self._path = path
        self.capacity_bytes = capacity_bytes

    def install(self) -> None:
        for module in (disk, folder, mark, reserve):
            module.os = self  # type: ignore[attr-defined]

    def __getattr__(self, name: str) -> object:
        return getattr(os, name)

    def pwritev(self, descriptor: int, buffers: list[bytes], position: int) -> int:
        self._need(descriptor, position + sum(map(len, buffers)))
        return os.pwritev(descriptor, buffers, position)

    def pwrite(self, descriptor: int, data: bytes, position: int) -> int:
        self._need(descriptor, position + len(data))
        return os.pwrite(descriptor, data, position)

    def posix_fallocate(self, descriptor: int, position: int, size: int) -> None:
        self._need(descriptor, position + size)
        os.posix_fallocate(descriptor, position, size)

    def _need(self, descriptor: int, end: int) -> None:
        more = end - os.fstat(descriptor).st_size
        if more > 0 and more + self.used() > self.capacity_bytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def used(self) -> int:
        total = 0
        for entry in os.scandir(self._path):
            try:
                total += entry.stat().st_size
            except FileNotFoundError:
                continue
        return total


if __name__ == "__main__":
    from tidings.cli import main
    from tidings.node import engine

    FullOs(Path(sys.argv[1]), int(sys.argv[2])).install()
    engine.RETENTION_EVERY_MS = 100
    reserve.RESTOCK_SECONDS = 0.0
    sys.exit(main(sys.argv[3:]))
