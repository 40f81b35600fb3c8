"""The directory of a folder, held by its descriptor.

A path may come to lead elsewhere while a broker runs: somebody moves its folder away, and a copy, an older one or
another broker's comes to stand in its place. Anyone who went by the path then would write its next segment into that
folder. So everything is done in the directory that was opened, and locked, at the start, wherever it is by now.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import threading
from collections import OrderedDict
from pathlib import Path

from tidings.descriptors import USED_UP, insist

FILE_MODE = 0o600
DESCRIPTORS_MAX = 4
PASSING = (*USED_UP, errno.ENOMEM, errno.EINTR)
"""Errors that say nothing about a file."""


class _Answer(ctypes.Structure):
    """What statx fills in; of all that, only this is asked for."""

    _fields_ = (("before", ctypes.c_char * 32), ("inode", ctypes.c_uint64), ("behind", ctypes.c_char * 216))


# Python has no statx before 3.15, and some systems have none at all. It answers from memory, so it keeps the
# interpreter's lock: getting that back would take longer.
_statx = getattr(ctypes.PyDLL(None), "statx", None)
_STATX_INO = 0x100


class Directory:
    """An open directory. `descriptor` is closed by `close`."""

    def __init__(self, path: Path, descriptor: int | None = None) -> None:
        self.descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY) if descriptor is None else descriptor
        self._answer = _Answer()
        self._where = ctypes.byref(self._answer)

    def open(self, name: str, flags: int) -> int:
        """Opens a file, with a descriptor that is kept for the journal."""
        return insist(lambda: os.open(name, flags, FILE_MODE, dir_fd=self.descriptor))

    def names(self) -> list[str]:
        """Its files, sorted."""
        return insist(self._names)

    def _names(self) -> list[str]:
        # With a descriptor of its own: two threads must not read on from where the other one has come to.
        descriptor = os.open(".", os.O_RDONLY | os.O_DIRECTORY, dir_fd=self.descriptor)
        try:
            with os.scandir(descriptor) as entries:
                return sorted(entry.name for entry in entries if entry.is_file())
        finally:
            os.close(descriptor)

    def map(self, name: str, size_max: int | None) -> memoryview:
        """A file in memory, as far as it goes: what is beyond its end must not be touched there."""
        return insist(lambda: self._map(name, size_max))

    def _map(self, name: str, size_max: int | None) -> memoryview:
        descriptor = os.open(name, os.O_RDONLY, dir_fd=self.descriptor)
        try:
            size = os.fstat(descriptor).st_size  # It has less than was written if somebody has cut it.
            if size_max is not None:
                size = min(size, size_max)
            # An empty file cannot be mapped. What is mapped has one more descriptor.
            return memoryview(mmap.mmap(descriptor, size, access=mmap.ACCESS_READ) if size else b"")
        finally:
            os.close(descriptor)

    def stat(self, name: str) -> os.stat_result:
        """What the file system says of a file."""
        return os.stat(name, dir_fd=self.descriptor)

    def has(self, name: str) -> bool:
        """Whether there is such a file."""
        try:
            self.stat(name)
        except FileNotFoundError:
            return False
        return True

    def rename(self, name: str, new_name: str) -> None:
        """Gives a file another name."""
        os.rename(name, new_name, src_dir_fd=self.descriptor, dst_dir_fd=self.descriptor)

    def unlink(self, name: str) -> None:
        """Removes a file, if it is there."""
        try:
            os.unlink(name, dir_fd=self.descriptor)
        except FileNotFoundError:
            return

    def inode(self, name: str) -> int | None:
        """Which file has this name now; None if none has. Only one thread may ask.

        Nothing else is asked about it: anyone who asks for a file's times has the next write note them again, and each
        sync write them down. A single put took a third more processor time.
        """
        if _statx is not None and not _statx(self.descriptor, name.encode(), 0, _STATX_INO, self._where):
            return int(self._answer.inode)
        try:
            return os.stat(name, dir_fd=self.descriptor).st_ino
        except FileNotFoundError:
            return None

    def sync(self) -> None:
        """Brings its entries onto the disk."""
        os.fsync(self.descriptor)

    def close(self) -> None:
        """Lets go of it, and of its lock."""
        os.close(self.descriptor)


class OpenFiles:
    """Open files of a directory by name, the least recently opened one closed to make room for another."""

    def __init__(self, directory: Directory, flags: int) -> None:
        self._directory = directory
        self._flags = flags
        # With the inode of each. One table and one step to change it: a signal's handler may raise between any two.
        self._open: OrderedDict[str, tuple[int, int]] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, name: str) -> int:
        return (self._open.get(name) or self._add(name))[0]

    def _add(self, name: str) -> tuple[int, int]:
        with self._lock:
            if len(self._open) == DESCRIPTORS_MAX:
                self._close(next(iter(self._open)))
            descriptor = self._directory.open(name, self._flags)
            opened = self._open[name] = (descriptor, os.fstat(descriptor).st_ino)
        return opened

    def is_there(self, name: str) -> bool:
        """Whether the file that is open still has this name: nobody removed it, or put another one in its place."""
        return self._directory.inode(name) == (self._open.get(name) or self._add(name))[1]

    def _close(self, name: str) -> None:
        os.close(self._open.pop(name)[0])

    def drop(self, name: str) -> None:
        with self._lock:
            if name in self._open:
                self._close(name)

    def close(self) -> None:
        for name in list(self._open):
            self.drop(name)

    def abandon(self) -> None:
        """The same in the child of a fork, where a thread that is not there may have the lock."""
        while self._open:
            os.close(self._open.popitem()[1][0])

    def read(self, name: str, position: int, size: int) -> memoryview:
        """What can be read: of a file that is gone, and of a place that the disk cannot read, nothing."""
        try:
            return memoryview(os.pread(self.of(name), size, position))
        except OSError as error:
            if error.errno in PASSING:
                raise
            return memoryview(b"")
