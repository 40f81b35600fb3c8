"""Notes: the small files beside the journal that say what a folder is and what must be in it.

A note is written whole (`Disk.replace`) and has a checksum in front of what it says:

    magic   4   b"TDF1"
    crc     4   CRC-32 of the note's name and of all that follows, begun with the folder's salt

The salt is a number of the folder's own, so a note that was copied here from another folder, or that stands under
another name, fails its check as one with a flipped bit does. Notes of the first release have no such beginning.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Protocol, TypeVar

import msgspec
from zlib_ng.zlib_ng import crc32

from tidings.errors import StorageDamaged

T = TypeVar("T")

_MAGIC = b"TDF1"
_PREFIX = struct.Struct("<4sI")


class Files(Protocol):
    """What a note needs of a disk."""

    salt: int

    def names(self) -> list[str]: ...

    def map(self, name: str) -> memoryview: ...

    def replace(self, name: str, buffers: Sequence[bytes]) -> None: ...


def encode_note(name: str, salt: int, content: bytes) -> bytes:
    """The bytes of a note.

    >>> decode_note("ring", 7, encode_note("ring", 7, b"hello"))
    b'hello'
    """
    return _PREFIX.pack(_MAGIC, crc32(content, crc32(name.encode(), salt))) + content


def decode_note(name: str, salt: int, data: bytes) -> bytes:
    """What a note says; StorageDamaged if it fails its check. A note of the first release is taken as it is."""
    if data[: len(_MAGIC)] != _MAGIC:
        return data
    content = data[_PREFIX.size :]
    if data != encode_note(name, salt, content):
        raise StorageDamaged(f"The file {name} is damaged, or belongs to another folder: it fails its checksum.")
    return content


def write_note(disk: Files, name: str, content: object) -> None:
    """Gives a note new contents, atomically."""
    disk.replace(name, [encode_note(name, disk.salt, msgspec.msgpack.encode(content))])


def read_note(disk: Files, name: str, kind: type[T]) -> T | None:
    """What a note says; None if there is none."""
    if name not in disk.names():
        return None
    return parse_note(name, disk.salt, bytes(disk.map(name)), kind)


def parse_note(name: str, salt: int, data: bytes, kind: type[T]) -> T:
    """The same for the bytes of a note."""
    try:
        return msgspec.msgpack.decode(decode_note(name, salt, data), type=kind)
    except msgspec.DecodeError as error:
        raise StorageDamaged(f"The file {name} is damaged: it cannot be read ({error}).") from error
