"""The checksums of a segment's blocks, so that any few bytes of it can be checked without reading all of a record.

A file is counted off in blocks of 64 KiB from its first byte, its header included; the last block is what is left. The
CRC-32 of each is reckoned from the very buffers that are written, in one pass with that of their record, and goes into
the segment's index when it is sealed. After a restart those of the last segment are reckoned again from the file, when
every record in it has passed its own check. What was damaged by then must not become good by that: the sums of its
blocks are spoiled, and stay so.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from zlib_ng.zlib_ng import crc32, crc32_combine

from tidings.journal.disk import Buffer

BLOCK_BYTES = 64 * 1024
SUM_BYTES = 4
JOINED_BYTES_MAX = 32 * 1024
"""Up to this size many small buffers are put together first: to copy them costs less than a call for each."""
_SPOILED = 0xFFFFFFFF

assert array("I").itemsize == SUM_BYTES


def block_count(size: int) -> int:
    """How many blocks a file of this size has.

    >>> block_count(0), block_count(1), block_count(BLOCK_BYTES), block_count(BLOCK_BYTES + 1)
    (0, 1, 1, 2)
    """
    return -(-size // BLOCK_BYTES)


class Blocks:
    """The sums of a file's blocks, for as much of it as there is by now.

    >>> blocks = Blocks()
    >>> blocks.extend([bytes(BLOCK_BYTES - 1), b"abc"])
    >>> blocks.size, list(blocks.sums) == [crc32(bytes(BLOCK_BYTES - 1) + b"a")], blocks.rest == crc32(b"bc")
    (65538, True, True)
    """

    __slots__ = ("rest", "size", "sums")

    def __init__(self, size: int = 0, rest: int = 0) -> None:
        self.size = size
        self.sums: array[int] = array("I")
        """Of the blocks that are full."""
        self.rest = rest
        """Of the last one, which is not."""

    def extend(self, buffers: Sequence[Buffer]) -> None:
        """These bytes come behind what there was."""
        rest, room = self.rest, BLOCK_BYTES - self.size % BLOCK_BYTES
        added = sum(map(len, buffers))
        if added < room and added <= JOINED_BYTES_MAX:
            self.rest = crc32(b"".join(buffers), rest)
            self.size += added
            return
        for buffer in buffers:
            size = len(buffer)
            if size < room:
                rest = crc32(buffer, rest)
                room -= size
                continue
            view, at = memoryview(buffer), 0
            while size - at >= room:
                self.sums.append(crc32(view[at : at + room], rest))
                at, rest, room = at + room, 0, BLOCK_BYTES
            if at < size:
                rest = crc32(view[at:], 0)
                room -= size - at
        self.size += added
        self.rest = rest

    def pieces(self, buffers: Sequence[Buffer], skipped: int) -> list[tuple[int, int]]:
        """What `extend_pieces` takes when `skipped` bytes have come: the CRC-32 and size of each piece of a block.

        >>> blocks = Blocks(BLOCK_BYTES - 2)
        >>> blocks.pieces([b"abc"], 1) == [(crc32(b"a"), 1), (crc32(b"bc"), 2)]
        True
        """
        found = []
        room = BLOCK_BYTES - (self.size + skipped) % BLOCK_BYTES
        for buffer in buffers:
            view, at, size = memoryview(buffer), 0, len(buffer)
            while at < size:
                taken = min(room, size - at)
                found.append((crc32(view[at : at + taken]), taken))
                at += taken
                room = room - taken or BLOCK_BYTES
        return found

    def extend_pieces(self, pieces: Sequence[tuple[int, int]]) -> None:
        """Bytes come behind what there was of which only their sums are wanted: see `pieces`."""
        for found, size in pieces:
            self.rest = crc32_combine(self.rest, found, size) if self.size % BLOCK_BYTES else found
            self.size += size
            if not self.size % BLOCK_BYTES:
                self.sums.append(self.rest)
                self.rest = 0

    def end(self) -> Blocks:
        """What continues these, reckoned aside; `join` takes it in."""
        return Blocks(self.size, self.rest)

    def join(self, more: Blocks) -> None:
        """Takes in what was begun as `end`."""
        self.sums.extend(more.sums)
        self.size, self.rest = more.size, more.rest

    def spoil(self, start: int, end: int) -> None:
        """The bytes from one position to another are damaged: no block that has any of them is good."""
        for number in range(start // BLOCK_BYTES, block_count(min(end, self.size))):
            if number < len(self.sums):
                self.sums[number] ^= _SPOILED
            else:  # Whatever comes behind, a sum that began wrong stays wrong.
                self.rest ^= _SPOILED

    @classmethod
    def unpack(cls, data: bytes, size: int) -> Blocks:
        """What `pack` made of a file of this size."""
        blocks = cls(size)
        blocks.sums = unpack_sums(data)
        if size % BLOCK_BYTES:
            blocks.rest = blocks.sums.pop()
        return blocks

    def pack(self) -> bytes:
        """All sums, the last block's too, as they are in an index: 4 bytes each, little-endian."""
        sums = self.sums[:]
        if self.size % BLOCK_BYTES:
            sums.append(self.rest)
        return pack_sums(sums)


def pack_sums(sums: array[int]) -> bytes:
    """Sums as they are in files and messages: 4 bytes each, little-endian."""
    return sums.tobytes() if _LITTLE else _swapped(sums).tobytes()


def unpack_sums(data: bytes | memoryview) -> array[int]:
    """What `pack_sums` made."""
    sums: array[int] = array("I")
    sums.frombytes(data)
    return sums if _LITTLE else _swapped(sums)


def _swapped(sums: array[int]) -> array[int]:
    swapped = sums[:]
    swapped.byteswap()
    return swapped


_LITTLE = array("I", [1]).tobytes()[0] == 1
