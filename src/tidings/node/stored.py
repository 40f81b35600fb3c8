"""Stored batches as deliveries and answers need them: whole, thinned, picked from, unpacked, or only pointed to."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from tidings.journal.blocks import BLOCK_BYTES
from tidings.journal.checked import DamagedPlace
from tidings.journal.disk import Buffer, FileLocation
from tidings.journal.journal import Journal
from tidings.message import Columns, select
from tidings.node.unpacked import Unpacked
from tidings.protocols.broker.bulk import LOCAL_BLOCK_BYTES, LOCAL_BYTES_MAX, LocalBody, LocalFile, ReadDone
from tidings.protocols.broker.topics import Place
from tidings.wire import codec
from tidings.wire.codec import Frame

assert LOCAL_BLOCK_BYTES == BLOCK_BYTES


class StoredBatches:
    """What the journal holds, or DamagedPlace; Unavailable if it lies at a storage server that is away."""

    def __init__(self, journal: Journal, note: Callable[[DamagedPlace], None]) -> None:
        self._journal = journal
        self._note = note
        """Is told what is damaged."""
        self._unpacked = Unpacked()

    def stored(self, place: Place) -> Buffer:
        """A body as it was written."""
        try:
            return self._journal.read(place.address, place.size_bytes)
        except DamagedPlace as damage:
            self._note(damage)
            raise

    def body(self, place: Place) -> Frame:
        """A body without the messages that do not count."""
        body = self.stored(place)
        return body if place.kept is None else codec.thin(body, place.kept)

    def columns(self, place: Place) -> Columns:
        """A batch, unpacked."""
        address, size_bytes = place.address, place.size_bytes
        return self._unpacked.get(address, size_bytes, lambda: codec.decode_columns(self.stored(place)))

    def pick(self, place: Place, rows: tuple[int, ...]) -> Frame:
        """Some messages of a batch."""
        columns = self.columns(place)
        if len(rows) == len(columns.values):
            return self.stored(place)
        return codec.encode(select(columns, rows))

    def pointed(self, done: ReadDone, places: tuple[Place, ...]) -> tuple[ReadDone, tuple[Place, ...]]:
        """An answer that says where its bodies lie, for a reader that has the same files; and which have to be sent."""
        files: dict[FileLocation, int] = {}
        local: list[LocalBody | None] = []
        sent: list[Place] = []
        for place in places:
            is_pointed = place.kept is None and place.size_bytes <= LOCAL_BYTES_MAX
            found = self._journal.file_location(place.address, place.size_bytes) if is_pointed else None
            if found is None:
                local.append(None)
                sent.append(place)
            else:
                file, position, sums = found
                local.append(LocalBody(files.setdefault(file, len(files)), position, place.size_bytes, sums))
        pointed = msgspec.structs.replace(done, files=tuple(LocalFile(*file) for file in files), local=tuple(local))
        return pointed, tuple(sent)
