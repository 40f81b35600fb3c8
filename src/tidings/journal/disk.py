"""The few things that the journal asks of a disk, and the real disk that does them.

Everything goes through this small interface so that the simulator's disk, which tears and forgets, can
take its place. A disk is one folder of files without subfolders, owned by one process at a time, in one role
(`folder`).

What each call promises: `create`, `replace`, `remove`, `truncate` and `seal` are on disk when they return,
directory entry included; `append` is only written, and on disk after the next `sync` of that file. Room may
be made ahead of what is appended: after a crash a file that was not sealed may have zeros at its end.
`durable_size` says how much of the newest segment must be there, also after a crash (`mark`).
`replace` is atomic: after a crash the file is the old one or the new one. A call that ends in `DiskFull`
has changed nothing; some room is kept for small writes (`reserve`). After `SyncFailed` nobody knows what the disk
holds: the kernel may have thrown away what it could not write and will not say so twice, so the process must end and
recover.

A disk may be `remote`: another process has the folder (`tidings.storage`). Then every call crosses over to it, so that
writes may wait for long and belong in a thread of their own, and a `map` is a copy of the whole file.

`append`, `commit`, `sync`, `seal`, `create`, `replace` and `truncate` are called by one thread, `read_at` and `map` by
one thread which may be another; `remove` by either, for files that the other one has done with.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple, Protocol

from tidings.errors import StorageDamaged, StorageError
from tidings.journal.directory import PASSING, Directory, OpenFiles
from tidings.journal.folder import (
    BROKER,
    FOLDER_NAME,
    HOLDER_NAME,
    INVENTORY_NAME,
    LOCK_NAME,
    TEMPORARY_SUFFIX,
    Folder,
    read_folder,
)
from tidings.journal.mark import MARK_NAME, DurableMark
from tidings.journal.reserve import RESERVE_BYTES, RESERVE_NAME, SMALL_WRITE_BYTES_MAX, Reserve

Buffer = bytes | memoryview

HOUSEKEEPING = frozenset({LOCK_NAME, FOLDER_NAME, MARK_NAME, RESERVE_NAME, FOLDER_NAME + TEMPORARY_SUFFIX})
"""Files of the folder itself, which are nobody else's business."""
ALLOCATED_BYTES = 4 * 1024 * 1024
"""Room made ahead of a file's end. A sync then has no new size to write down, and takes a quarter less time."""
SMALL_BYTES_MAX = 16 * 1024
"""What is not larger gets room of zeros that are really written. Room that was only allocated is entered into the file
system's own records block by block as it is used; to write over zeros needs no such entry. A sync of 3 KiB takes 120
instead of 160 us, and 40 instead of 55 us of processor time. To write what is large twice would cost more."""
ZEROS = bytes(256 * 1024)
BUFFERS_PER_WRITE_MAX = os.sysconf("SC_IOV_MAX")
FULL_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class DiskFull(StorageError):
    """There is no room for this; nothing was changed."""


class SyncFailed(StorageError):
    """The disk did not keep what it was given; the process must end, and recovery finds out what is there."""


class FileLocation(NamedTuple):
    """Where other processes of this machine find a file, and by which number on its device they know it again."""

    path: str
    device: int
    inode: int


class Disk(Protocol):
    """A folder of files, as the journal sees it. The module's text says what each call promises."""

    remote: bool
    """Whether the folder is in use by another process."""
    salt: int
    """A number of the folder's own, from which its files' checksums begin."""

    @property
    def short_of_room(self) -> bool:
        """Whether only what frees room may still be written."""

    def names(self) -> list[str]:
        """The files that are there, sorted."""

    def size(self, name: str) -> int:
        """How many bytes a file has."""

    def create(self, name: str) -> None:
        """Makes a new, empty file."""

    def append(self, name: str, buffers: Sequence[Buffer]) -> None:
        """Writes the buffers at the end of a file: all of them, or none and DiskFull."""

    def commit(self, name: str, buffers: Sequence[Buffer]) -> None:
        """Appends and syncs in one step: everything is on disk, or nothing and DiskFull."""

    def sync(self, name: str) -> None:
        """Brings all that was appended to a file onto the disk, or raises SyncFailed."""

    def durable_size(self, name: str) -> int:
        """So many bytes of a segment must be there: synced, or written since the machine was started; 0 if unknown."""

    def sync_mark(self) -> None:
        """Brings what is known to be durable onto the disk too; all the rest is there already."""

    def restock(self) -> None:
        """Tries to take back the room that is kept for what frees room, if it had to be given."""

    def seal(self, name: str) -> None:
        """Nothing more will be appended to a file: it ends where its last byte is."""

    def truncate(self, name: str, size: int) -> None:
        """Cuts a file to its first `size` bytes."""

    def replace(self, name: str, buffers: Sequence[Buffer]) -> None:
        """Gives a file new contents, atomically; makes it if it was not there."""

    def remove(self, name: str) -> None:
        """Removes a file."""

    def read_at(self, name: str, position: int, size: int) -> memoryview:
        """The bytes of a file from `position` on, as many of `size` as there are."""

    def map(self, name: str) -> memoryview:
        """All bytes that a file has now, without reading them; valid as long as any slice of it is held."""

    def file_location(self, name: str) -> FileLocation | None:
        """Where the file is; None if other processes cannot read it, or not on this machine."""

    def tend(self) -> None:
        """To be called now and then by the thread that writes, when it has nothing to write."""

    def close(self) -> None:
        """Lets go of the folder."""


class LocalDisk(Disk, Protocol):
    """A folder in use by this process."""

    def rename(self, name: str, new_name: str) -> None:
        """Gives a file that is on disk another name, atomically, in place of one that had it."""


class RealDisk:
    """A folder of the file system, locked before or now. Made if missing; refused if another process has it open."""

    remote = False

    def __init__(self, folder: str | Path | Folder, role: str = BROKER, reserve_bytes: int = RESERVE_BYTES) -> None:
        self.home = folder if isinstance(folder, Folder) else Folder(Path(folder).absolute(), role)
        self._folder = self.home.path
        self.salt = self.home.salt
        self._directory = self.home.directory
        self.home.enter()
        try:
            self._mark = DurableMark(self._folder, self.salt)
        except OSError as error:
            self.home.close()
            raise _failed(MARK_NAME, error) from error
        self._reserve = Reserve(self._folder, reserve_bytes, self._directory.descriptor)
        # Writers and readers are two threads: with a table each, neither closes under the other.
        self._writers = OpenFiles(self._directory, os.O_WRONLY)
        self._readers = OpenFiles(self._directory, os.O_RDONLY)
        self._sizes: dict[str, int] = {}
        self._allocated: dict[str, int] = {}
        """How large the files are that have room made ahead."""
        self._found: dict[str, FileLocation] = {}
        # A process that was killed may have left entries that only the page cache knows.
        self._sync_directory()

    @property
    def short_of_room(self) -> bool:
        return self._reserve.short

    def restock(self) -> None:
        if self._reserve.short:
            self._reserve.restock()

    def names(self) -> list[str]:
        return _names(self._directory)

    def size(self, name: str) -> int:
        size = self._sizes.get(name)
        return self._directory.stat(name).st_size if size is None else size

    def create(self, name: str) -> None:
        try:
            os.close(self._directory.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
        except OSError as error:
            raise _full_or_failed(name, error) from error
        self._sync_directory()

    def append(self, name: str, buffers: Sequence[Buffer]) -> None:
        self._append(name, buffers)
        slot = _segment_slot(name)
        if slot is not None:
            try:
                self._check_there(name)
                self._mark.set_written(slot, self._sizes[name])
            except OSError as error:
                raise _failed(MARK_NAME, error) from error

    def _append(self, name: str, buffers: Sequence[Buffer]) -> None:
        descriptor = self._writers.of(name)
        size_before = self._sizes.get(name)
        if size_before is None:
            size_before = os.fstat(descriptor).st_size
        size_after = size_before + sum(map(len, buffers))
        if size_after > self._allocated.get(name, 0) and not self._reserve.short:
            self._make_room(name, descriptor, size_before, size_after)
        try:
            _write_all(descriptor, buffers, size_before, size_after)
        except OSError as error:
            if error.errno in FULL_ERRORS:
                # Synced, so that a power cut cannot bring back records whose writer was told "not stored".
                self.truncate(name, size_before)
                if size_after - size_before <= SMALL_WRITE_BYTES_MAX and self._reserve.release():
                    self._append(name, buffers)
                    return
            raise _full_or_failed(name, error) from error
        self._sizes[name] = size_after

    def _make_room(self, name: str, descriptor: int, size_before: int, size_after: int) -> None:
        """Makes a file larger than it needs to be; without room, or where files cannot, it stays as it is."""
        try:
            if size_after - size_before > SMALL_BYTES_MAX:
                os.posix_fallocate(descriptor, size_before, size_after + ALLOCATED_BYTES - size_before)
                self._allocated[name] = size_after + ALLOCATED_BYTES
            elif os.pwrite(descriptor, ZEROS, size_after) == len(ZEROS):
                self._allocated[name] = size_after + len(ZEROS)
            else:
                os.ftruncate(descriptor, size_before)
        except OSError as error:
            if error.errno in FULL_ERRORS:
                os.ftruncate(descriptor, size_before)

    def commit(self, name: str, buffers: Sequence[Buffer]) -> None:
        self._append(name, buffers)
        self.sync(name)

    def sync(self, name: str) -> None:
        try:
            os.fdatasync(self._writers.of(name))
            slot = _segment_slot(name)
            if slot is not None:
                self._check_there(name)
                self._mark.set(slot, self.size(name))
        except OSError as error:
            raise _failed(name, error) from error

    def _check_there(self, name: str) -> None:
        """What goes into a file that somebody has removed, or put another one in the place of, is not stored."""
        if not self._writers.is_there(name):
            raise SyncFailed(f"{name} was removed or replaced while it was in use: find out by what")

    def durable_size(self, name: str) -> int:
        return self._mark.due if self._mark.slot == _segment_slot(name) else 0

    def sync_mark(self) -> None:
        try:
            self._mark.sync()
        except OSError as error:
            raise _failed(MARK_NAME, error) from error

    def seal(self, name: str) -> None:
        if name in self._allocated:
            self.truncate(name, self._sizes[name])

    def truncate(self, name: str, size: int) -> None:
        descriptor = self._writers.of(name)
        self._allocated.pop(name, None)
        try:
            self._lower_mark(name, size)
            os.ftruncate(descriptor, size)
            os.fsync(descriptor)
        except OSError as error:
            raise _failed(name, error) from error
        self._sizes[name] = size

    def replace(self, name: str, buffers: Sequence[Buffer]) -> None:
        temporary, directory = name + TEMPORARY_SUFFIX, self._directory
        try:
            descriptor = directory.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            try:
                _write_all(descriptor, buffers, 0, sum(map(len, buffers)))
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            directory.rename(temporary, name)
        except OSError as error:
            directory.unlink(temporary)
            if error.errno in FULL_ERRORS and self._reserve.release():
                self.replace(name, buffers)
                return
            raise _full_or_failed(name, error) from error
        self._forget(name)
        self._sync_directory()
        if name == INVENTORY_NAME:
            self.home.mark_begun()

    def rename(self, name: str, new_name: str) -> None:
        self._lower_mark(new_name, 0)
        self._forget(name)
        self._directory.rename(name, new_name)
        self._forget(new_name)
        self._sync_directory()

    def remove(self, name: str) -> None:
        self._lower_mark(name, 0)
        self._forget(name)
        self._directory.unlink(name)
        self._sync_directory()

    def read_at(self, name: str, position: int, size: int) -> memoryview:
        written = self._sizes.get(name)
        if written is not None:
            size = max(0, min(size, written - position))
        return self._readers.read(name, position, size)

    def map(self, name: str) -> memoryview:
        try:
            return self._directory.map(name, self._sizes.get(name))
        except FileNotFoundError as error:
            raise StorageDamaged(f"The file {name} is missing.") from error
        except OSError as error:
            if error.errno in PASSING:
                raise
            raise StorageDamaged(f"The file {name} cannot be read ({error.strerror}).") from error

    def file_location(self, name: str) -> FileLocation | None:
        found = self._found.get(name)
        if found is None:
            try:
                stat = self._directory.stat(name)
            except OSError:
                return None
            found = self._found[name] = FileLocation(str(self._folder / name), stat.st_dev, stat.st_ino)
        return found

    def tend(self) -> None:
        pass

    def close(self) -> None:
        with contextlib.ExitStack() as last_first:
            last_first.callback(self.home.close)  # Drops the locks, when nothing of ours is open any more.
            for part in (self._reserve, self._mark, self._readers, self._writers):
                last_first.callback(part.close)
            for name in self._allocated:
                # Room that was made ahead may stay: the next start knows it. A file without a size was being written.
                with contextlib.suppress(OSError, KeyError):
                    os.ftruncate(self._writers.of(name), self._sizes[name])

    def _lower_mark(self, name: str, size: int) -> None:
        slot = _segment_slot(name)
        if slot is not None:
            self._mark.lower(slot, size)

    def abandon(self) -> None:
        """In the child of a fork: closes its copies of what is open, touches no file and leaves the parent's lock."""
        self._writers.abandon()
        self._readers.abandon()
        self._mark.close()
        self.home.close()

    def _forget(self, name: str) -> None:
        self._writers.drop(name)
        self._readers.drop(name)
        self._sizes.pop(name, None)
        self._allocated.pop(name, None)
        self._found.pop(name, None)

    def _sync_directory(self) -> None:
        try:
            self._directory.sync()
        except OSError as error:
            raise _failed(str(self._folder), error) from error


def lone_disk(folder: str | Path) -> RealDisk:
    """The folder of a broker alone. If a storage server kept it, the broker that was served there has it no longer.

    Without that, it would take what is written from now on for what it had not been told of yet, and cut it off.
    """
    disk = RealDisk(folder, BROKER)
    if HOLDER_NAME in disk.names():
        disk.remove(HOLDER_NAME)
    return disk


class ReadFolder:
    """A look into a folder that somebody else writes, in another thread: with open files of its own.

    It has what `Checked` reads by. The files are not this thread's to map, since the other one cuts them.
    """

    remote = True

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(folder)
        note = read_folder(self._folder)
        self.salt = note.salt if note is not None else 0
        self._directory = Directory(self._folder)
        self._readers = OpenFiles(self._directory, os.O_RDONLY)

    def names(self) -> list[str]:
        """The files that are there, sorted."""
        return _names(self._directory)

    def size(self, name: str) -> int:
        """How many bytes a file has."""
        return self._directory.stat(name).st_size

    def read_at(self, name: str, position: int, size: int) -> memoryview:
        """The bytes of a file from `position` on, as many of `size` as there are."""
        return self._readers.read(name, position, size)

    def map(self, name: str) -> memoryview:
        """All of a file, as it is now."""
        return self.read_at(name, 0, self.size(name))

    def close(self) -> None:
        """Closes its files."""
        self._readers.close()
        self._directory.close()


def _names(directory: Directory) -> list[str]:
    return [name for name in directory.names() if name not in HOUSEKEEPING]


@lru_cache(maxsize=64)
def _segment_slot(name: str) -> int | None:
    """The slot that names a segment; None if the name is another file's."""
    return int(name[:20]) if name.endswith(".journal") and name[:20].isdecimal() else None


def _write_all(descriptor: int, buffers: Sequence[Buffer], position: int, end: int) -> None:
    """Writes every byte of the buffers from a position on, in as few calls as the kernel allows."""
    written = os.pwritev(descriptor, buffers[:BUFFERS_PER_WRITE_MAX], position)
    position += written
    if position == end:
        return
    rest, first = [memoryview(buffer) for buffer in buffers], 0
    while position < end:
        while written >= len(rest[first]):
            written -= len(rest[first])
            first += 1
        rest[first] = rest[first][written:]
        written = os.pwritev(descriptor, rest[first : first + BUFFERS_PER_WRITE_MAX], position)
        position += written


def _failed(name: str, error: OSError) -> SyncFailed:
    return SyncFailed(f"The disk did not keep {name} ({error.strerror}): look after the disk, then start again.")


def _full_or_failed(name: str, error: OSError) -> StorageError:
    if error.errno in FULL_ERRORS:
        return DiskFull(f"There is no room on the disk for {name} ({error.strerror}): free some space.")
    return _failed(name, error)
