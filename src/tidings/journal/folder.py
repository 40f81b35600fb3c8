"""What a folder of the file system is: whose, in which role, and whether it is the original or a copy.

**One process.** The folder itself is locked, not only a file in it: somebody who removes a "stale" `lock` beside a
running broker does not let a second one in. The kernel drops the lock when the process dies, however it dies. Where a
directory cannot be locked, the file `lock` is all there is; it is locked in any case, for releases that know no other.

**One role, one format.** The note `folder` says who writes here: a broker alone, a member of a group, a node of a ring.
Another role is refused before a byte is written, unless the folder is to *grow* into it: a broker becomes a member, and
a member a node of a ring, never the other way round. The new note is that step, whole or not at all. (A storage
server keeps the journal of a broker alone, and that may come back to it.) A release that is older than the format of
the folder's files is refused too. The note also holds the folder's id, whose checksum is the salt of all the other
files' checksums.

**A beginning.** Once the first inventory of the journal is on disk, a word is written into `lock`, and the note says so
too. A folder in which either is left and the rest is not has lost it: it is not taken for a new one.

**The original.** The note also holds its own inode, and the inode's generation where the file system tells it. A copy
of the folder has others. A copy of a member's folder may be older than what the member has promised since, so it must
not vote in its place; for everybody else a copy is as good as the original.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from pathlib import Path

import msgspec
from zlib_ng.zlib_ng import crc32

from tidings.errors import InvalidRequest, StorageDamaged, StorageError, Unavailable
from tidings.journal.directory import Directory
from tidings.journal.notes import encode_note, parse_note

LOCK_NAME = "lock"
FOLDER_NAME = "folder"
INVENTORY_NAME = "inventory"
HOLDER_NAME = "holder"
"""Where a storage server notes which broker has the folder."""
TEMPORARY_SUFFIX = ".tmp"

FORMAT = 2
"""Of all the files of a folder together. Version 0.1.0 wrote 1, and no note that says so."""
BROKER = "broker"
MEMBER = "member"
RING = "ring"
_OWNERS = {
    BROKER: "a broker alone",
    MEMBER: "a member of a replica group",
    RING: "a node of a ring",
}
_GROWS_FROM = {BROKER: (), MEMBER: (BROKER,), RING: (MEMBER,)}
"""Which roles a folder may leave for another."""
_GET_VERSION = 0x80087601
"""The ioctl FS_IOC_GETVERSION of Linux: a number that is drawn when an inode is made."""
_BEGUN = b"The journal in this folder has begun: a file of it that is missing is missed.\n"


class _Format(msgspec.Struct, frozen=True):
    """What every release can read of the note, whatever else it says."""

    format: int = FORMAT


class FolderNote(msgspec.Struct, frozen=True):
    """What the note `folder` says."""

    role: str
    id: bytes
    inode: int
    generation: int
    begun: bool = False
    """Whether the journal has its inventory."""
    format: int = FORMAT

    @property
    def salt(self) -> int:
        return crc32(self.id)

    def is_of(self, birth: tuple[int, int]) -> bool:
        """Whether it was written into the file that was born so, and not copied there."""
        return birth == (self.inode, self.generation)


class Folder:
    """A folder that this process has locked and may use in its role. Made if it is missing.

    In one that is there nothing is changed before `enter`, so that its opener may look into it first. One that
    `grows` may have a role from which it can grow into this one; it keeps that until `grow`.
    """

    def __init__(self, path: Path, role: str, grows: bool = False) -> None:
        self.path = path
        accepted = (role, *_GROWS_FROM[role]) if grows else (role,)
        self._check_role(accepted)  # Also of a folder in use: to stop its owner would not help.
        directory, self._lock = _lock(path)
        self.directory = Directory(path, directory)
        try:
            self._check_role(accepted)
            self._is_new = False
            self.note = self._take(role)
        except BaseException:
            self.close()
            raise
        self.salt = self.note.salt

    def _check_role(self, accepted: tuple[str, ...]) -> None:
        try:
            owner = role_of(self.path)
        except OSError as error:
            raise _unusable(self.path, error) from error
        if owner is not None and owner not in accepted:
            raise wrong_role(self.path, owner)

    def _take(self, role: str) -> FolderNote:
        found = read_folder(self.path)
        if found is None:
            self._check_unbegun()
            self._is_new = True
            return FolderNote(role_of(self.path) or role, os.urandom(16), 0, 0)
        begun = os.fstat(self._lock).st_size or found.begun
        if begun and not self.directory.has(INVENTORY_NAME):
            raise StorageDamaged(f"The file {INVENTORY_NAME} is missing from {self.path}.")
        return found

    def enter(self) -> None:
        """Begins to use the folder: from here on it is changed. It is let go of if that fails."""
        try:
            if self._is_new:
                self.note = self._write(self.note.role, self.note.id)
                self._is_new = False
            elif self.directory.has(INVENTORY_NAME):
                self._write_word()  # Somebody may have removed `lock`.
        except BaseException:
            self.close()
            raise

    def _check_unbegun(self) -> None:
        if os.fstat(self._lock).st_size or self.directory.has(INVENTORY_NAME):
            raise StorageDamaged(
                f"The file {FOLDER_NAME} is missing from {self.path}, and perhaps others too: restore the folder "
                "from a copy, or give a member of a group an empty one."
            )

    def mark_begun(self) -> None:
        """From now on the inventory must be there."""
        self._write_word()
        if not self.note.begun and not self.is_copy:  # A copy stays one until it is adopted.
            self.note = self._write(self.note.role, self.note.id, begun=True)

    def _write_word(self) -> None:
        if not os.fstat(self._lock).st_size:
            os.pwrite(self._lock, _BEGUN, 0)
            os.fsync(self._lock)

    @property
    def is_copy(self) -> bool:
        """Whether this folder was copied from the one that its note was written for."""
        return not self.note.is_of(self._birth(FOLDER_NAME))

    def _birth(self, name: str) -> tuple[int, int]:
        """What a copy of a file does not have: its inode, and the inode's generation, 0 where nobody tells it."""
        descriptor = self.directory.open(name, os.O_RDONLY)
        try:
            answer = fcntl.ioctl(descriptor, _GET_VERSION, bytes(8))
            generation = struct.unpack("<I", answer[:4])[0]
        except OSError:
            generation = 0
        finally:
            inode = os.fstat(descriptor).st_ino
            os.close(descriptor)
        return inode, generation

    def grow(self, role: str) -> None:
        """The folder has another role from now on, and belongs to this disk."""
        assert self.note.role in _GROWS_FROM[role]
        self.note = self._write(role, self.note.id, self.note.begun)

    def adopt(self) -> None:
        """A copy counts as the original from now on."""
        self.note = self._write(self.note.role, self.note.id, self.note.begun)

    def _write(self, role: str, folder_id: bytes, begun: bool = False) -> FolderNote:
        temporary = FOLDER_NAME + TEMPORARY_SUFFIX
        descriptor = self.directory.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            note = FolderNote(role, folder_id, *self._birth(temporary), begun)
            os.write(descriptor, encode_note(FOLDER_NAME, 0, msgspec.msgpack.encode(note)))
            os.fsync(descriptor)
        except OSError as error:
            raise StorageError(
                f"The folder {self.path} cannot be written to ({error.strerror}): check its permissions and the disk."
            ) from error
        finally:
            os.close(descriptor)
        self.directory.rename(temporary, FOLDER_NAME)
        self.directory.sync()
        return note

    def close(self) -> None:
        """Drops the locks."""
        os.close(self._lock)
        self.directory.close()


def read_folder(path: Path) -> FolderNote | None:
    """What the note of a folder says, no matter who has it locked; None if there is no such note."""
    try:
        data = (path / FOLDER_NAME).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    format_ = parse_note(FOLDER_NAME, 0, data, _Format).format
    if format_ > FORMAT:
        raise InvalidRequest(
            f"{path} has format {format_}, and this release reads up to {FORMAT}: use a newer tidings, or name another "
            "folder."
        )
    note = parse_note(FOLDER_NAME, 0, data, FolderNote)
    if note.role not in _OWNERS:
        raise InvalidRequest(f"{path} belongs to {note.role!r}, which this release does not know: use a newer tidings.")
    return note


def role_of(path: Path) -> str | None:
    """In which role a folder is used; None if in none yet."""
    note = read_folder(path)
    return note.role if note is not None else _first_release_role(path)


def _first_release_role(path: Path) -> str | None:
    """The role of a folder without a note, by the files that the first release left in it."""
    for name, role in (("ring", RING), ("member", MEMBER)):
        if (path / name).exists():
            return role
    return BROKER if path.is_dir() and any(path.glob("*.journal")) else None


def wrong_role(path: Path, owner: str | None) -> InvalidRequest:
    """The error of anyone who comes to a folder in another role than its own."""
    return InvalidRequest(
        f"{path} belongs to {_OWNERS[owner or BROKER]}: start that with `tidings serve --data {path}`, or name another "
        "folder."
    )


def _lock(path: Path) -> tuple[int, int]:
    """Opens a folder and its file `lock`, and locks both."""
    opened: list[int] = []
    try:
        make_folder(path)
        opened.append(os.open(path, os.O_RDONLY | os.O_DIRECTORY))
        try:
            fcntl.flock(opened[0], fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                raise
        opened.append(os.open(path / LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o600))
        fcntl.flock(opened[1], fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        for descriptor in opened:
            os.close(descriptor)
        if isinstance(error, BlockingIOError):
            raise Unavailable(
                f"The folder {path} is in use by another broker: stop it first, or connect to it."
            ) from error
        raise _unusable(path, error) from error
    return opened[0], opened[1]


def _unusable(path: Path, error: OSError) -> StorageError:
    return StorageError(
        f"The folder {path} cannot be used ({error.strerror}): choose another or change its permissions."
    )


def make_folder(folder: Path) -> None:
    """Makes a folder and its parents; each new entry is synced into the folder that holds it."""
    if folder.is_dir():
        return
    make_folder(folder.parent)
    folder.mkdir(mode=0o700, exist_ok=True)
    parent = os.open(folder.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(parent)
    finally:
        os.close(parent)
