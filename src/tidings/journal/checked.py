"""A segment as it is read: no byte of it leaves unless its checksum has been seen to be right.

Whatever is wanted is checked by the sums of the blocks that it lies in (see `blocks`). A block that was found good is
taken for good until `forget`, so that many who read the same bytes pay for one check. A block that is not as it was
written usually has both: a damaged record and others that are whole. Then all records of the segment are walked
through, once, and only what touches a damaged one is refused, as `DamagedPlace`.

Segments that were sealed without sums are walked through when they are first read, and summed up then.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from zlib_ng.zlib_ng import crc32

from tidings.errors import StorageDamaged
from tidings.journal.blocks import BLOCK_BYTES, SUM_BYTES, Blocks, block_count, pack_sums
from tidings.journal.disk import Disk, ReadFolder
from tidings.journal.recovery import Span, check


class DamagedPlace(StorageDamaged):
    """What was to be read fails its checksum: in which file, where in it, and which addresses the damage covers."""

    def __init__(self, name: str, position: int, span: Span) -> None:
        super().__init__(f"{name} is damaged at position {position}: the record there fails its checksum.")
        self.name = name
        self.position = position
        self.span = span


class Checked:
    """One segment. `blocks` may grow, if it is the one that is being written; None: it was sealed without sums."""

    def __init__(self, disk: Disk | ReadFolder, name: str, base_address: int, blocks: Blocks | None) -> None:
        self._disk = disk
        self._name = name
        self._base_address = base_address
        self._view: memoryview | None = None
        self._piece = (0, memoryview(b""))
        """What was read last of a file that is not mapped, and where it begins: it has been checked."""
        self._good = bytearray()
        self._seen: dict[int, int] = {}
        """Blocks that are not as they were written: the sums that they had when the records were walked through."""
        self._spans: list[Span] = []
        """The damaged records that were found then."""
        self.sealed = True
        self._blocks = blocks if blocks is not None else self._sum_up()

    def _sum_up(self) -> Blocks:
        """The sums of a segment that was sealed without any; what is damaged in it gets wrong ones."""
        try:
            view = self._disk.map(self._name)
        except StorageDamaged:  # It is gone, and so is all that is wanted of it.
            view = memoryview(b"")
        blocks = Blocks()
        blocks.extend([view])
        for span in check(view, self._base_address):
            blocks.spoil(span.start - self._base_address, span.end - self._base_address)
        return blocks

    def read(self, position: int, size: int) -> memoryview:
        """These bytes of the file, or DamagedPlace."""
        if not size:
            return memoryview(b"")
        first, last = position // BLOCK_BYTES, (position + size - 1) // BLOCK_BYTES
        view = self._view
        if view is not None and self._good.count(1, first, last + 1) == last + 1 - first:
            return view[position : position + size]
        start, piece = self._piece
        if start <= position and position + size <= start + len(piece):
            return piece[position - start : position - start + size]
        start, blocks = first * BLOCK_BYTES, self._blocks
        if position + size > blocks.size:  # It was shorter already when it was summed up.
            raise self._damaged(Span(self._base_address + position, self._base_address + position + size))
        data, mapped = self._fetch(start, min((last + 1) * BLOCK_BYTES, blocks.size))
        # Only what stays in memory need not be checked again; and a block that grows has another sum each time.
        lasting = 0 if not mapped else block_count(blocks.size) if self.sealed else len(blocks.sums)
        if len(self._good) < lasting:
            self._good.extend(bytes(lasting - len(self._good)))
        bad: dict[int, int] = {}
        for number in range(first, last + 1):
            found = crc32(data[number * BLOCK_BYTES - start : (number + 1) * BLOCK_BYTES - start])
            if found != self._sum(number):
                bad[number] = found
            elif number < lasting:
                self._good[number] = 1
        if self._disk.remote and not bad:
            self._piece = (start, data)
        data = data[position - start : position - start + size]
        return self._read_around(position, size, data, bad) if bad else data

    def _read_around(self, position: int, size: int, data: memoryview, bad: dict[int, int]) -> memoryview:
        """Bytes of blocks that are not as they were written, unless they belong to what is damaged in them."""
        if any(self._seen.get(number) != found for number, found in bad.items()):
            data = self._walk()[position : position + size]
        address = self._base_address + position
        for span in self._spans:
            if span.start < address + size and address < span.end:
                raise self._damaged(span)
        return data

    def _walk(self) -> memoryview:
        """Looks at every record, and takes note of what is damaged."""
        size = self._blocks.size
        try:
            view = self._disk.map(self._name)[:size]
        except StorageDamaged:  # It is gone.
            view = memoryview(b"")
        if not self._disk.remote:
            self._view, self._good = view, bytearray()
        self._spans = list(check(view, self._base_address))
        if len(view) < size:
            self._spans.append(Span(self._base_address + len(view), self._base_address + size))
        self._seen = {}
        for number in range(block_count(size)):
            found = crc32(view[number * BLOCK_BYTES : (number + 1) * BLOCK_BYTES])
            if found != self._sum(number):
                self._seen[number] = found
        return view

    def scrub(self, number: int) -> bool:
        """Reads a block from the disk again; whether it is as it was written."""
        start, end = number * BLOCK_BYTES, min((number + 1) * BLOCK_BYTES, self._blocks.size)
        found = crc32(self._disk.read_at(self._name, start, end - start))
        if found == self._sum(number):
            return True
        if self._seen.get(number) != found:
            self._walk()
        return False

    @property
    def damaged(self) -> Iterator[DamagedPlace]:
        """What is known to be damaged."""
        return map(self._damaged, self._spans)

    def sums(self, position: int, size: int) -> bytes | None:
        """The sums of the blocks that have these bytes, for others to check them by; None if one is still growing."""
        first, last = position // BLOCK_BYTES, (position + size - 1) // BLOCK_BYTES
        if not size or last < len(self._blocks.sums):
            return pack_sums(self._blocks.sums[first : last + 1])
        return self._blocks.pack()[SUM_BYTES * first :] if self.sealed else None

    def forget(self) -> None:
        """What was found good is checked again when it is next read."""
        self._good = bytearray(len(self._good))
        self._piece = (0, memoryview(b""))

    def unmap(self) -> None:
        """Lets go of the file: anyone who holds a slice of it keeps it alive."""
        self._view, self._good = None, bytearray()

    def _fetch(self, start: int, end: int) -> tuple[memoryview, bool]:
        """What is to be checked, and whether it lies in mapped memory, so that it stays as it is found to be.

        That the file still has it is seen first: to touch in memory what somebody has cut off would end the process.
        """
        if self._disk.remote or not self._disk.read_at(self._name, end - 1, 1):
            return self._disk.read_at(self._name, start, end - start), False
        if self._view is None or len(self._view) < end:
            with contextlib.suppress(StorageDamaged):
                self._view = self._disk.map(self._name)
                if self.sealed:  # One that grows is mapped again and again; the disk sees to it that it is the same.
                    self._good = bytearray()
        view = self._view
        if view is None or len(view) < end:
            return self._disk.read_at(self._name, start, end - start), False
        return view[start:end], True

    def _sum(self, number: int) -> int:
        sums = self._blocks.sums
        return sums[number] if number < len(sums) else self._blocks.rest

    def _damaged(self, span: Span) -> DamagedPlace:
        return DamagedPlace(self._name, span.start - self._base_address, span)
