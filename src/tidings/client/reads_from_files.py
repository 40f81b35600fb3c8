"""Bulk reads served from files: a reader on the broker's machine takes bodies out of the journal's files by itself.

The broker only points to them: that spares it the reading, and both the way over a socket. A finished record never
changes, and neither does the file that has it, so anyone who has opened the right file reads the right bytes, also when
retention has removed it since. That it is the right file is seen by its number on its device, which no two files of a
machine share; that the disk has kept the bytes, by the checksums of the blocks that they lie in, which the broker says.
So whole blocks are read, those of bodies that lie side by side in one piece. Whatever cannot be read here, or fails its
check, the broker is asked to send: it says so, if it cannot do better.
"""

from __future__ import annotations

import os
import stat
from array import array
from collections.abc import Iterator, Sequence
from io import FileIO
from sys import byteorder

from zlib_ng.zlib_ng import crc32

from tidings.client.link import Frame
from tidings.errors import ProtocolError
from tidings.protocols.broker.bulk import LOCAL_BLOCK_BYTES, LOCAL_BYTES_MAX, LocalBody, LocalFile, ReadDone

FILES_MAX = 8
"""Open files of one reader: it goes through them one after another."""
WINDOW_BYTES_MAX = 8 * 1024 * 1024
"""Read in one piece, but for a body that is larger."""


class _Window:
    """Neighbouring blocks of one file, with the sums that they must have."""

    def __init__(self, file: int, first: int) -> None:
        self.file = file
        self.first = first
        self.sums: array[int] = array("I")
        self.bodies: list[LocalBody] = []

    def take(self, local: LocalBody) -> bool:
        """Makes room for one more body; False if it lies elsewhere."""
        first, sums = local.position // LOCAL_BLOCK_BYTES, _sums(local)
        known = self.first + len(self.sums) - first
        if (
            local.file != self.file
            or first < self.first
            or known < 0
            or (self.bodies and (first + len(sums) - self.first) * LOCAL_BLOCK_BYTES > WINDOW_BYTES_MAX)
        ):
            return False
        self.sums.extend(sums[known:])
        self.bodies.append(local)
        return True

    def cut(self, data: memoryview) -> list[Frame] | None:
        """The bodies out of the blocks; None if one of these is not as it was written."""
        for number, expected in enumerate(self.sums):
            if crc32(data[number * LOCAL_BLOCK_BYTES : (number + 1) * LOCAL_BLOCK_BYTES]) != expected:
                return None
        found: list[Frame] = []
        for local in self.bodies:
            start = local.position - self.first * LOCAL_BLOCK_BYTES
            found.append(data[start : start + local.size_bytes])
            if len(found[-1]) != local.size_bytes:
                return None
        return found


class LocalFiles:
    """The files of a journal that one reader has opened."""

    def __init__(self) -> None:
        self._open: dict[LocalFile, FileIO] = {}

    def bodies(self, done: ReadDone, sent: Sequence[Frame]) -> list[Frame] | None:
        """A body for each batch of an answer, those that were sent among them; None if one of them cannot be read."""
        read: list[Frame] = []
        for window in _windows(done):
            found = self._read(done.files[window.file], window)
            if found is None:
                return None
            read += found
        rest, local = iter(sent), iter(read)
        bodies = [next(rest, None) if each is None else next(local) for each in done.local]
        return None if None in bodies else [body for body in bodies if body is not None]

    def _read(self, wanted: LocalFile, window: _Window) -> list[Frame] | None:
        size = len(window.sums) * LOCAL_BLOCK_BYTES
        try:
            file = self._file(wanted)
            data = b"" if file is None else os.pread(file.fileno(), size, window.first * LOCAL_BLOCK_BYTES)
        except OSError:
            return None
        return window.cut(memoryview(data))

    def _file(self, wanted: LocalFile) -> FileIO | None:
        file = self._open.get(wanted)
        if file is None:
            # Without O_NONBLOCK, opening what is no file might wait for ever.
            file = FileIO(os.open(wanted.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK))
            found = os.fstat(file.fileno())
            if (found.st_dev, found.st_ino) != (wanted.device, wanted.inode) or not stat.S_ISREG(found.st_mode):
                file.close()
                return None
            while len(self._open) >= FILES_MAX:
                self._open.pop(next(iter(self._open))).close()
            self._open[wanted] = file
        return file

    def close(self) -> None:
        """Closes the files."""
        while self._open:
            self._open.popitem()[1].close()


def _windows(done: ReadDone) -> Iterator[_Window]:
    """What to read, for all bodies that are not sent, in their order."""
    window: _Window | None = None
    for local in done.local:
        if local is None:
            continue
        if not (
            0 <= local.file < len(done.files)
            and local.position >= 0
            and 0 <= local.size_bytes <= LOCAL_BYTES_MAX
            and len(local.sums) % 4 == 0
        ):
            raise ProtocolError(f"The broker named a body at {local}, which is impossible: is that a tidings broker?")
        if window is None or not window.take(local):
            if window is not None:
                yield window
            window = _Window(local.file, local.position // LOCAL_BLOCK_BYTES)
            window.take(local)
    if window is not None:
        yield window


def _sums(local: LocalBody) -> array[int]:
    """What the blocks of a body have to be checked by; too few if the broker does not say."""
    sums: array[int] = array("I", local.sums)
    if byteorder == "big":
        sums.byteswap()
    return sums
