"""A file that remembers how far messages have been handed out, so that a crash repeats none of them.

The file starts with the 8 bytes `TIDINBX1` and then holds records: the body's length as two bytes, the same
length with every bit turned over, the CRC-32 of the body as four bytes (all big-endian), and the body, msgpack
of an array. The first record is `[client]`, the name that the inbox belongs to. Others are

- `[topics, topic, next offset, boot]`: all messages of that topic below that offset are about to be handed out to the
  subscription named by its topics; `boot` names this run of the machine (see `tidings.boot`);
- `[]`: what the records before it announce has been handed out;
- `[topics, topic, next offset]`: the same in one; an offset of -1 forgets the subscription.

In place of a topic "" stands for the epoch in which the subscription was created: what is written down of one does not
count for another that was made on the same topics later.

The last record of a place counts.

Crash rules: an announcement is synced before the message is handed out, and only then `[]` is written, as the very last
thing, and not synced. A process that is killed during the sync leaves an announcement without `[]`: nothing was handed
out, and it is cut off. After a power cut, which shows in the boot, nobody can know whether `[]` had been written: the
announcement counts. An incomplete or zeroed record at the very end is cut off, with a word in the log; anything else
that fails its checks is StorageDamaged. A record for which the disk has no room is taken back, and nothing is handed
out; once there is room the inbox goes on. A file that has grown large is replaced as a whole (written aside, synced,
renamed).

The file is locked, so that two processes cannot share it. If it is removed, replaced or cut while it is open, the next
record fails. That a file which nobody had open was removed, or is an older copy, cannot be seen: messages that were
handed out since, and whose acknowledgement the broker did not get, then come again, marked `redelivered`.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import struct
import sys
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from tidings.boot import boot_id
from tidings.client import forks
from tidings.errors import InvalidRequest, StorageDamaged, StorageError

if sys.platform != "win32":
    import fcntl

MAGIC = b"TIDINBX1"
COMPACT_BYTES = 1024 * 1024
FORGET = -1
CREATED = ""
"""Stands for a topic in the mark that says in which epoch the subscription was created."""
BOOT_CHARACTERS = 8
FULL_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

_HEADER = struct.Struct(">HHI")
Mark = tuple[tuple[str, ...], str, int]
"""A subscription, one of its topics, and the offset below which everything of it has been handed out."""
ANNOUNCEMENT_FIELDS = 4
_decoder = msgspec.msgpack.Decoder(list[Any])
_log = logging.getLogger("tidings.client.inbox")


class Inbox:
    """The marks of one client in one file."""

    def __init__(self, path: str | os.PathLike[str], client: str, compact_bytes: int = COMPACT_BYTES) -> None:
        if sys.platform == "win32":
            raise InvalidRequest("An inbox needs locks that Windows does not have: leave inbox= out.")
        self.path = Path(path)
        self._client = client
        self._compact_bytes = compact_bytes
        self._marks: dict[tuple[str, ...], dict[str, int]] = {}
        try:
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise InvalidRequest(
                f"The inbox {self.path} cannot be opened ({error.strerror}): name a file that you can write to."
            ) from error
        self._boot = boot_id()[:BOOT_CHARACTERS]
        self._size_bytes = 0
        self._failed = False
        """Whether nobody knows any more what the file holds."""
        try:
            self._lock(self._file)
            if not self._is_in_place():  # The one who had the file open before has just replaced it.
                raise self._in_use()
            self._size_bytes = self._load()
        except BaseException:
            os.close(self._file)
            raise
        forks.own(self)

    def positions(self, topics: tuple[str, ...]) -> dict[str, int]:
        """How far each topic of a subscription has been handed out, and what stands for `CREATED`, if that is known."""
        return dict(self._marks.get(topics, {}))

    def mark(self, topics: tuple[str, ...], topic: str, next_offset: int) -> None:
        """Everything below `next_offset` is handed out as soon as this returns."""
        self.mark_all([(topics, topic, next_offset)])

    def mark_all(self, marks: Sequence[Mark]) -> None:
        """The same for several subscriptions at once."""
        rising = [mark for mark in marks if mark[2] > self._marks.get(mark[0], {}).get(mark[1], 0)]
        if rising:
            self._append(b"".join(_record((*mark, self._boot)) for mark in rising), HANDED)
            for mark in rising:
                self._take(*mark)

    def forget(self, topics: tuple[str, ...]) -> None:
        """The subscription is no more; a later one of the same name starts without marks."""
        if self._marks.get(topics):
            self._append(_record((topics, "", FORGET)))
        self._marks.pop(topics, None)

    def close(self) -> None:
        """Gives the file and its lock back."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def abandon(self) -> None:
        """This is the child of a fork: the parent's lock stays, and nothing more is written from here."""
        self.close()

    # The file.

    def _lock(self, file: int) -> None:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise self._in_use() from error

    def _in_use(self) -> InvalidRequest:
        return InvalidRequest(
            f"The inbox {self.path} is in use by another process: give each process an inbox of its own."
        )

    def _is_in_place(self) -> bool:
        """Whether the open file is the one that has the name."""
        try:
            return os.path.samestat(os.stat(self.path), os.fstat(self._file))
        except FileNotFoundError:
            return False

    def _load(self) -> int:
        """Reads the marks and cuts off a torn end; how long the file then is."""
        data = self.path.read_bytes()
        if len(data) < len(MAGIC) and MAGIC.startswith(data):
            return self._replace()
        if not data.startswith(MAGIC):
            raise StorageDamaged(f"{self.path} is not an inbox: give another path, or restore the file.")
        at = counted_at = len(MAGIC)
        owner: str | None = None
        announced: list[Mark] = []
        boot = ""
        while (body := self._body(data, at)) is not None:
            try:
                content = _decoder.decode(body)
                if owner is None:
                    (owner,) = msgspec.convert(content, tuple[str])
                elif len(content) == ANNOUNCEMENT_FIELDS:
                    announced.append(msgspec.convert(content[:-1], Mark))
                    boot = msgspec.convert(content[-1], str)
                else:
                    if content:
                        announced.append(msgspec.convert(content, Mark))
                    self._take_all(announced)
            except msgspec.DecodeError as error:
                raise self._damaged(at) from error
            at += _HEADER.size + len(body)
            if not announced:
                counted_at = at
        if owner is None:
            return self._replace()
        if owner != self._client:
            raise InvalidRequest(
                f"The inbox {self.path} belongs to the client {owner!r}, not to {self._client!r}: "
                "give each client an inbox of its own."
            )
        if at < len(data):
            _log.warning(
                "The inbox %s ended in %d bytes of an unfinished record, which are cut off.", self.path, len(data) - at
            )
        if boot and boot == self._boot:
            at = counted_at  # Anyone who announced it was killed before it was handed out.
        else:
            self._take_all(announced)
        if at < len(data):
            os.ftruncate(self._file, at)
            _sync(self._file)
        return at

    def _body(self, data: bytes, at: int) -> bytes | None:
        """The record's body, or None at the end or at a torn record; StorageDamaged for anything else."""
        if len(data) - at < _HEADER.size:
            return None
        length, turned, crc = _HEADER.unpack_from(data, at)
        if length ^ turned != 0xFFFF:
            if any(data[at:]):
                raise self._damaged(at)
            return None
        body = data[at + _HEADER.size : at + _HEADER.size + length]
        if len(body) < length:
            return None
        if zlib.crc32(body) != crc:
            if at + _HEADER.size + length < len(data):
                raise self._damaged(at)
            return None
        return body

    def _damaged(self, at: int) -> StorageDamaged:
        return StorageDamaged(
            f"The inbox {self.path} is damaged at byte {at}: restore it, or remove it and expect repeated messages."
        )

    def _take_all(self, marks: list[Mark]) -> None:
        for mark in marks:
            self._take(*mark)
        marks.clear()

    def _take(self, topics: tuple[str, ...], topic: str, next_offset: int) -> None:
        if next_offset == FORGET:
            self._marks.pop(topics, None)
        else:
            self._marks.setdefault(topics, {})[topic] = next_offset

    def _append(self, record: bytes, last: bytes = b"") -> None:
        """Brings a record onto the disk, all of it or nothing, and writes `last` behind it."""
        if self._file < 0 or self._failed:
            raise StorageError(f"The inbox {self.path} is closed, or its disk has failed: open the bus again.")
        if not self._is_in_place() or os.fstat(self._file).st_size != self._size_bytes:
            self._failed = True
            raise StorageDamaged(
                f"The inbox {self.path} was removed, replaced or changed while it was in use: close the bus, then put "
                "the file back, or open the bus without it and expect repeated messages."
            )
        if self._size_bytes > self._compact_bytes:
            with contextlib.suppress(StorageError):  # There is no room for another file; this one is good.
                self._size_bytes = self._replace()
            self._compact_bytes = max(self._compact_bytes, 2 * self._size_bytes)
        try:
            at = self._write(record, self._size_bytes)
            _sync(self._file)
            self._size_bytes = self._write(last, at)
        except OSError as error:
            self._take_back(error)

    def _write(self, data: bytes, at: int) -> int:
        """Writes all of it at a position; where it ends."""
        left = memoryview(data)
        while left:
            written = os.pwrite(self._file, left, at)
            at, left = at + written, left[written:]
        return at

    def _take_back(self, error: OSError) -> NoReturn:
        """A record did not get onto the disk: nothing of it may stay, or the next one would stand behind a half."""
        self._failed = True
        if error.errno in FULL_ERRORS:
            os.ftruncate(self._file, self._size_bytes)
            _sync(self._file)
            self._failed = False
        raise self._not_written(error) from error

    def _not_written(self, error: OSError) -> StorageError:
        what = "free some space, then ask again" if error.errno in FULL_ERRORS else "look after the disk, then open it"
        return StorageError(
            f"The inbox {self.path} could not be written ({error.strerror}), so no message was handed out: {what}."
        )

    def _replace(self) -> int:
        """Writes what counts into a new file and puts that in the old one's place."""
        records = [_record((self._client,))]
        for topics, places in self._marks.items():
            records += [_record((topics, topic, offset)) for topic, offset in places.items()]
        data = MAGIC + b"".join(records)
        aside = self.path.with_name(self.path.name + ".new")
        try:
            file = os.open(aside, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            try:
                self._lock(file)  # Before the new file can be seen under its name.
                with open(file, "wb", closefd=False) as writer:
                    writer.write(data)
                os.fsync(file)
                os.replace(aside, self.path)
            except BaseException:
                os.close(file)
                aside.unlink(missing_ok=True)
                raise
            os.close(self._file)
            self._file = file
            directory = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(directory)
            finally:
                os.close(directory)
        except OSError as error:
            raise self._not_written(error) from error
        return len(data)


def _sync(file: int) -> None:
    """Puts a file on the disk itself, which on macOS takes another call."""
    if sys.platform == "darwin":
        fcntl.fcntl(file, fcntl.F_FULLFSYNC)
    elif sys.platform != "win32":
        os.fdatasync(file)


def _record(content: tuple[object, ...]) -> bytes:
    body = msgspec.msgpack.encode(content)
    return _HEADER.pack(len(body), len(body) ^ 0xFFFF, zlib.crc32(body)) + body


HANDED = _record(())
