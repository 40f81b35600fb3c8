"""Bodies that a reader on the broker's machine takes out of the journal's files by itself.

The broker only points to them: that spares it the reading, and both the way over a socket. A finished record never
changes, and neither does the file that has it, so whoever has opened the right file reads the right bytes, also when
retention has removed it since. That it is the right file is seen by its number on its device, which no two files of a
machine share. Whatever cannot be read here, for instance in a container that does not see the folder, the broker sends.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from io import FileIO

from tidings.client.link import Frame
from tidings.errors import ProtocolError
from tidings.protocols.broker.bulk import NearBody, NearFile, ReadDone

FILES_MAX = 8
"""Open files of one reader: it goes through them one after another."""
BODY_BYTES_MAX = 64 * 1024 * 1024
"""A larger body is sent."""


class NearFiles:
    """The files of a journal that one reader has opened."""

    def __init__(self) -> None:
        self._open: dict[NearFile, FileIO] = {}

    def bodies(self, done: ReadDone, sent: Sequence[Frame]) -> list[Frame] | None:
        """A body for each batch of an answer, those that were sent among them; None if one of them cannot be read."""
        rest = iter(sent)
        found: list[Frame] = []
        for each in done.near:
            body = next(rest, None) if each is None else self._read(done.files, each)
            if body is None:
                return None
            found.append(body)
        return found

    def _read(self, files: tuple[NearFile, ...], near: NearBody) -> bytes | None:
        if not (0 <= near.file < len(files) and near.position >= 0 and near.size_bytes >= 0):
            raise ProtocolError(f"The broker points to a body at {near}, which cannot be: is that a tidings broker?")
        if near.size_bytes > BODY_BYTES_MAX:
            return None
        try:
            file = self._file(files[near.file])
            body = b"" if file is None else os.pread(file.fileno(), near.size_bytes, near.position)
        except OSError:
            return None
        return body if len(body) == near.size_bytes else None

    def _file(self, wanted: NearFile) -> FileIO | None:
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
