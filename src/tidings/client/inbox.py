"""A file that remembers how far messages have been handed out, so that a crash repeats none of them.

The file starts with the 8 bytes `TIDINBX1` and then holds records: the body's length as two bytes, the same
length with every bit turned over, the CRC-32 of the body as four bytes (all big-endian), and the body, msgpack
of an array. The first record is `[client]`, the name that the inbox belongs to. Every other one is
`[topics, topic, next offset]`, all messages of that topic below that offset having been handed out to the
subscription named by its topics; an offset of -1 forgets the subscription. The last record of a place counts.

Crash rules: a record is written with one write and synced before the message is handed out. An incomplete or
zeroed record at the very end was therefore never acted upon, and is cut off. Anything else that fails its
checks is StorageDamaged. A file that has grown large is replaced as a whole (written aside, synced, renamed).
The file is locked, so that two processes cannot share it.
"""

from __future__ import annotations

import fcntl
import os
import struct
import zlib
from pathlib import Path

import msgspec

from tidings.errors import InvalidRequest, StorageDamaged

MAGIC = b"TIDINBX1"
COMPACT_BYTES = 1024 * 1024
FORGET = -1

_HEADER = struct.Struct(">HHI")
_Mark = tuple[tuple[str, ...], str, int]
_mark_decoder = msgspec.msgpack.Decoder(_Mark)
_owner_decoder = msgspec.msgpack.Decoder(tuple[str])


class Inbox:
    """The marks of one client in one file."""

    def __init__(self, path: str | os.PathLike[str], client: str, compact_bytes: int = COMPACT_BYTES) -> None:
        self.path = Path(path)
        self._client = client
        self._compact_bytes = compact_bytes
        self._marks: dict[tuple[str, ...], dict[str, int]] = {}
        try:
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise InvalidRequest(
                f"The inbox {self.path} cannot be opened ({error.strerror}): name a file in a folder of yours."
            ) from error
        try:
            self._lock(self._file)
            self._size_bytes = self._load()
        except BaseException:
            os.close(self._file)
            raise

    def positions(self, topics: tuple[str, ...]) -> dict[str, int]:
        """How far each topic of a subscription has been handed out; topics without a mark are missing."""
        return dict(self._marks.get(topics, {}))

    def mark(self, topics: tuple[str, ...], topic: str, next_offset: int) -> None:
        """Everything below `next_offset` is about to be handed out; on disk when this returns."""
        places = self._marks.setdefault(topics, {})
        if next_offset <= places.get(topic, 0):
            return
        self._append(_record((topics, topic, next_offset)))
        places[topic] = next_offset

    def forget(self, topics: tuple[str, ...]) -> None:
        """The subscription is no more; a later one of the same name starts without marks."""
        if self._marks.pop(topics, None):
            self._append(_record((topics, "", FORGET)))

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
            raise InvalidRequest(
                f"The inbox {self.path} is in use by another process: give each process an inbox of its own."
            ) from error

    def _load(self) -> int:
        """Reads the marks and cuts off a torn end; how long the file then is."""
        data = self.path.read_bytes()
        if len(data) < len(MAGIC) and MAGIC.startswith(data):
            return self._replace()
        if not data.startswith(MAGIC):
            raise StorageDamaged(f"{self.path} is not an inbox: give another path, or restore the file.")
        at = len(MAGIC)
        owner: str | None = None
        while (body := self._body(data, at)) is not None:
            try:
                if owner is None:
                    (owner,) = _owner_decoder.decode(body)
                else:
                    self._take(*_mark_decoder.decode(body))
            except msgspec.DecodeError as error:
                raise self._damaged(at) from error
            at += _HEADER.size + len(body)
        if owner is None:
            return self._replace()
        if owner != self._client:
            raise InvalidRequest(
                f"The inbox {self.path} belongs to the client {owner!r} and not to {self._client!r}: "
                "give each client an inbox of its own."
            )
        if at < len(data):
            os.ftruncate(self._file, at)
            os.fdatasync(self._file)
        os.lseek(self._file, at, os.SEEK_SET)
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

    def _take(self, topics: tuple[str, ...], topic: str, next_offset: int) -> None:
        if next_offset == FORGET:
            self._marks.pop(topics, None)
        else:
            self._marks.setdefault(topics, {})[topic] = next_offset

    def _append(self, record: bytes) -> None:
        written = os.write(self._file, record)
        if written != len(record):
            raise StorageDamaged(f"The inbox {self.path} took only part of a record: is the disk full?")
        os.fdatasync(self._file)
        self._size_bytes += written
        if self._size_bytes > self._compact_bytes:
            self._size_bytes = self._replace()
            self._compact_bytes = max(self._compact_bytes, 2 * self._size_bytes)

    def _replace(self) -> int:
        """Writes what counts into a new file and puts that in the old one's place."""
        records = [_record((self._client,))]
        for topics, places in self._marks.items():
            records += [_record((topics, topic, offset)) for topic, offset in places.items()]
        data = MAGIC + b"".join(records)
        aside = self.path.with_name(self.path.name + ".new")
        file = os.open(aside, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            self._lock(file)  # Before the new file can be seen under its name.
            with open(file, "wb", closefd=False) as writer:
                writer.write(data)
            os.fsync(file)
            os.replace(aside, self.path)
            directory = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(directory)
            finally:
                os.close(directory)
        except BaseException:
            os.close(file)
            raise
        os.close(self._file)
        self._file = file
        os.lseek(file, len(data), os.SEEK_SET)
        return len(data)


def _record(content: tuple[object, ...]) -> bytes:
    body = msgspec.msgpack.encode(content)
    return _HEADER.pack(len(body), len(body) ^ 0xFFFF, zlib.crc32(body)) + body
