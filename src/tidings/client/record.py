"""Delivery records: files in which a subscriber writes down every message that it hands to its application.

An audit compares them with what was published (docs/audit.md). A folder may be shared by any number of clients,
because each session writes files of its own, `SESSION-NUMBER.handed`: the session is 16 random hexadecimal digits,
and a file is ended at FILE_BYTES or FILE_ROWS, so that Spark can read a folder in many tasks.

A file starts with the 8 bytes `TIDIREC1` and then holds entries: the body's length and the CRC-32 of the body, four
bytes each, big-endian, and the body, msgpack of an array with the fields of `Entry`. Columns of many numbers are
little-endian 64-bit integers in a row, so that Arrow takes them as they are. One entry speaks of all messages that
were handed out together, so a batch costs one write, whatever its size.

Crash rules: an entry is written with one write *before* its messages are handed out and before they are acknowledged,
so whatever was handed out or acknowledged is in the file, however the process ends; what is in the file and was not
handed out comes again, marked as a later attempt. Files are not synced: a power cut may take the last moments of
them. The first entry names the boot of the machine, and the last one of a session that was closed says so. An
incomplete entry at the very end of a file is passed over by readers; anything else that fails its checks is
StorageDamaged.
"""

from __future__ import annotations

import errno
import os
import struct
import sys
import zlib
from array import array
from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from itertools import chain
from pathlib import Path

import msgspec

from tidings.boot import boot_id
from tidings.client import forks
from tidings.errors import InvalidRequest, StorageDamaged, StorageError
from tidings.message import Batch, Share
from tidings.protocols.broker.messages import LaneKind

MAGIC = b"TIDIREC1"
SUFFIX = ".handed"
FILE_BYTES = 16 * 1024 * 1024
FILE_ROWS = 4_000_000
ENTRY_BYTES_MAX = 64 * 1024 * 1024
LANE_NUMBERS_KEPT_MAX = 65_536

BEGUN, HANDED, RETURNED, STANDS, ENDED = range(5)
"""What an entry says: a file begins; messages are handed out; messages that were handed out came back and will be
handed out again; everything below an offset needs no delivery any more; the session was closed."""

_FRAME = struct.Struct(">II")


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """One entry of a record. `first_offset` and `count` say which offsets, if `offsets` does not list them."""

    kind: int
    subscription: str
    """The client or the group. With BEGUN the client, whose machine's boot is in `topic`."""
    group: bool = False
    topic: str = ""
    epoch: int = 0
    """The session's, as the broker counts the sessions of a name."""
    handed_us: int = 0
    """When, by this machine's clock, in microseconds since 1970; it never falls within a session."""
    sequence: int = 0
    """How many messages the session had handed out before."""
    attempt: int = 1
    first_offset: int = 0
    count: int = 0
    offsets: bytes | None = None
    lanes: bytes | None = None
    """A hash of each message's lane, 0 if it has none; only for groups."""
    publisher: str = ""
    published_us: int | bytes = 0


class Subscriber(msgspec.Struct, frozen=True):
    """Whose deliveries they are."""

    name: str
    group: bool = False
    lanes: LaneKind = "key"


class LaneNumbers(dict[bytes, int]):
    """A hash of each key, computed once for keys that come often.

    >>> lanes = LaneNumbers()
    >>> lanes[b"red"] == lanes[b"red"] != lanes[b"blue"]
    True
    """

    def __missing__(self, key: bytes) -> int:
        if len(self) >= LANE_NUMBERS_KEPT_MAX:
            self.clear()
        number = int.from_bytes(blake2b(key, digest_size=8).digest(), "big", signed=True) or 1
        self[key] = number
        return number


class Recorder:
    """The record of one session in one folder.

    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> recorder = Recorder(folder, "alice", now_us=lambda: 1, epoch=lambda: 1)
    >>> from tidings.message import Columns
    >>> recorder.handed(Subscriber("alice"), Batch("news", 7, Columns(1, "bob", [b"a", b"b"])), 0, 2)
    >>> recorder.close()
    >>> [(entry.kind, entry.first_offset, entry.count) for entry in read_entries(next(Path(folder).iterdir()))]
    [(0, 0, 0), (1, 7, 2), (4, 0, 0)]
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        client: str,
        now_us: Callable[[], int],
        epoch: Callable[[], int],
        file_bytes: int = FILE_BYTES,
        file_rows: int = FILE_ROWS,
    ) -> None:
        self.folder = Path(folder)
        self._client = client
        self._now_us = now_us
        self._epoch = epoch
        self._file_bytes = file_bytes
        self._file_rows = file_rows
        self._session = os.urandom(8).hex()
        self._number = 0
        self._file = -1
        self._size_bytes = self._rows = 0
        self._handed = 0
        self._at_us = 0
        self._lanes = LaneNumbers()
        self._abandoned = False
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidRequest(
                f"Deliveries cannot be recorded in {self.folder} ({error.strerror}): name one that you can write to."
            ) from error
        forks.own(self)

    def handed(self, who: Subscriber, batch: Batch, start: int, end: int) -> None:
        """The rows of a batch from `start` to `end` are about to be handed out."""
        columns, offsets = batch.columns, batch.offsets if isinstance(batch, Share) else None
        self._at_us = max(self._at_us, self._now_us())
        times = columns.published_us
        self._write(
            Entry(
                HANDED,
                who.name,
                who.group,
                batch.topic,
                self._epoch(),
                self._at_us,
                self._handed,
                batch.attempt,
                batch.first_offset + start if offsets is None else offsets[start],
                end - start,
                None if offsets is None else _packed(offsets[start:end]),
                self._lanes_of(who, batch, start, end) if who.group else None,
                columns.publisher,
                times if isinstance(times, int) else _packed(times[start:end]),
            )
        )
        self._handed += end - start
        self._rows += end - start

    def returned(self, who: Subscriber, topic: str, offsets: Sequence[int]) -> None:
        """Messages that were handed out have come back unused, and will be handed out again."""
        if offsets:
            plain = isinstance(offsets, range)
            packed = None if plain else _packed(offsets)
            where = (offsets[0], len(offsets), packed)
            self._write(
                Entry(RETURNED, who.name, who.group, topic, self._epoch(), self._at_us, self._handed, 1, *where)
            )

    def stands(self, who: Subscriber, topic: str, offset: int) -> None:
        """Whatever is below the offset has been dealt with, or was never this subscription's."""
        self._write(Entry(STANDS, who.name, who.group, topic, self._epoch(), self._at_us, self._handed, 1, offset))

    def close(self) -> None:
        """Ends the record in good order."""
        if self._file >= 0:
            try:
                self._write(Entry(ENDED, self._client, epoch=self._epoch()))
            finally:
                os.close(self._file)
                self._file = -1

    def abandon(self) -> None:
        """This is the child of a fork: nothing more is written, and the file is the parent's."""
        self._abandoned = True
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _lanes_of(self, who: Subscriber, batch: Batch, start: int, end: int) -> bytes | None:
        keys = batch.columns.keys
        if keys is None and who.lanes == "key":
            return None
        chosen = batch.keys[start:end]
        prefix = b"" if who.lanes == "key" else batch.columns.publisher.encode() + b"\0"
        lanes = self._lanes
        if prefix or None in chosen:
            return _packed([0 if key is None else lanes[prefix + key] for key in chosen])
        return _packed(list(map(lanes.__getitem__, chosen)))  # type: ignore[arg-type]

    def _write(self, entry: Entry) -> None:
        if self._abandoned:
            return
        if self._file < 0 or self._size_bytes >= self._file_bytes or self._rows >= self._file_rows:
            self._next_file()
        self._append(entry)

    def _next_file(self) -> None:
        """Goes on in a new file, or in the old one if there is no room for the beginning of another."""
        path = self.folder / f"{self._session}-{self._number:06}{SUFFIX}"
        before = self._file, self._size_bytes, self._rows
        try:
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise self._not_written(error) from error
        self._file, self._size_bytes, self._rows = file, 0, 0
        begun = Entry(BEGUN, self._client, topic=boot_id(), epoch=self._epoch(), handed_us=self._now_us())
        try:
            self._append(begun, MAGIC)
        except BaseException:
            os.close(file)
            path.unlink(missing_ok=True)
            self._file, self._size_bytes, self._rows = before
            raise
        self._number += 1
        if before[0] >= 0:
            os.close(before[0])

    def _append(self, entry: Entry, prefix: bytes = b"") -> None:
        body = msgspec.msgpack.encode(entry)
        data = prefix + _FRAME.pack(len(body), zlib.crc32(body)) + body
        try:
            written = os.write(self._file, data)
            if written != len(data):
                os.ftruncate(self._file, self._size_bytes)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            raise self._not_written(error) from error
        self._size_bytes += written

    def _not_written(self, error: OSError) -> StorageError:
        return StorageError(
            f"The record in {self.folder} could not be written ({error.strerror}), so nothing was handed out: "
            "free some space, then ask again."
        )


def _packed(numbers: Sequence[int]) -> bytes:
    packed = array("q", numbers)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


_decoder = msgspec.msgpack.Decoder(Entry)


def read_entries(path: Path) -> Iterator[Entry]:
    """The entries of one file up to the last whole one; StorageDamaged if something else than the end is broken."""
    data = path.read_bytes()
    if not data.startswith(MAGIC):
        if MAGIC.startswith(data[: len(MAGIC)]):
            return  # It had just been made.
        raise StorageDamaged(f"{path} is not a delivery record: remove it from the folder.")
    at, view = len(MAGIC), memoryview(data)
    while len(data) - at >= _FRAME.size:
        length, crc = _FRAME.unpack_from(data, at)
        end = at + _FRAME.size + length
        body = view[at + _FRAME.size : end]
        if end > len(data) and length <= ENTRY_BYTES_MAX and not _begins_with(body, crc):
            return
        if not 0 < length <= ENTRY_BYTES_MAX or zlib.crc32(body) != crc:
            if end == len(data) or not any(view[at:]):
                return  # The end of a file that a power cut has torn.
            raise StorageDamaged(
                f"The record {path} is damaged at byte {at}: restore it, or remove it from the folder."
            )
        yield _decoder.decode(body)
        at = end


def _begins_with(data: memoryview, crc: int) -> bool:
    """Whether some beginning of this has that CRC: then an entry is whole, and only its length is wrong."""
    found = 0
    for at in range(len(data)):
        found = zlib.crc32(data[at : at + 1], found)
        if found == crc:
            return True
    return False


def record_files(folders: Sequence[Path]) -> list[Path]:
    """All record files in these folders and below, in order."""
    return sorted(chain.from_iterable(folder.rglob(f"*{SUFFIX}") for folder in folders))
