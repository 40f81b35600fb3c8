"""How a replica that is far behind takes over the files of another one.

What it missed is no longer in anybody's journal as values, or it has nothing at all. So it copies the sealed segments
of another replica's journal, with their indexes and the newest snapshot, and begins a segment of its own behind them.
Addresses, which differ from journal to journal, come right by that. Sealed files never change: when another segment is
sealed meanwhile, only that one and the new snapshot are fetched too.

Every checksum of a file begins with a number of its folder, so what has been checked with the other's number is
written down with our own: a segment's header as it comes, the indexes and the snapshot when all is there.

The files come in beside our own, under a suffix. Once all are there and synced, a file that lists them (`exchange`)
makes them count, in one step: whatever interrupts the renaming, `finish` does the rest before the journal is opened.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import msgspec

from tidings.errors import StorageDamaged
from tidings.journal import segment as files
from tidings.journal.blocks import Blocks
from tidings.journal.disk import LocalDisk
from tidings.journal.folder import INVENTORY_NAME
from tidings.journal.journal import Journal
from tidings.journal.notes import read_note, write_note
from tidings.journal.recovery import Inventory, Span, check
from tidings.node.places import Places
from tidings.node.snapshot_header import Piece, SnapshotHeader, decode_piece, decode_snapshot_header, encode
from tidings.protocols.multipaxos.messages import FetchFile, File, Offer
from tidings.protocols.multipaxos.messages import Piece as FilePiece
from tidings.settings import ReplicaSettings

INCOMING_SUFFIX = ".incoming"
LIST_NAME = "exchange"
FILES_MAX = 200_000


class FileCopy:
    """Both sides of it: what is given to others, and what is taken from one."""

    def __init__(self, disk: LocalDisk, journal: Journal, settings: ReplicaSettings, life: int) -> None:
        self._disk = disk
        self._journal = journal
        self._settings = settings
        self._life = life
        self.node = 0
        """From whom files are taken; 0: from nobody."""
        self._offer = Offer(0, 0, ())
        self._pieces: list[FilePiece] = []
        self._asked: FetchFile | None = None
        self._asked_at_ms = 0
        self._sizes: dict[str, int] = {}
        """What has come of each file."""
        self._damaged: dict[str, list[Span]] = {}
        """Where segments that have come are damaged, if nobody needs what was there."""

    # To others.

    def offer(self) -> Offer | None:
        """The files of the newest snapshot and of everything that it refers to; None if there is no snapshot yet, or
        only one from before there was a group."""
        snapshot_name, disk = self._journal.snapshot_name, self._disk
        snapshot_header = self._header_of(snapshot_name, disk.salt) if snapshot_name is not None else None
        if snapshot_name is None or snapshot_header is None:
            return None
        listed = []
        for segment in self._journal.segments:
            listed.append(File(files.journal_name(segment.first_slot), segment.end_address - segment.base_address))
            index_name = files.index_name(segment.first_slot)
            listed.append(File(index_name, disk.size(index_name)))
        listed.append(File(snapshot_name, disk.size(snapshot_name)))
        return Offer(snapshot_header.snapshot.next_slot, self._life, tuple(listed), disk.salt)

    def serve(self, wanted: FetchFile) -> FilePiece | None:
        """A piece of a file that was offered; None if it is gone."""
        present = (
            wanted.name == self._journal.snapshot_name
            or wanted.name in (files.journal_name(segment.first_slot) for segment in self._journal.segments)
            or wanted.name in (files.index_name(segment.first_slot) for segment in self._journal.segments)
        )
        if not present or wanted.life != self._life:
            return None
        data = self._disk.read_at(wanted.name, wanted.position, self._settings.piece_bytes_max)
        return FilePiece(wanted.name, wanted.position, bytes(data))

    # From another.

    def take_offer(self, now_ms: int, node: int, offer: Offer) -> None:
        """Another replica has what we miss. What it offered before and still offers need not come again."""
        if not _is_whole(offer):
            return
        comes = self._asked is not None and 0 <= now_ms - self._asked_at_ms < self._settings.fetch_retry_ms
        if comes and (node != self.node or offer == self._offer):
            return  # Several may offer theirs, again and again: anyone who began again with each would never be done.
        if (node, offer.life) != (self.node, self._offer.life):
            self.drop()
            self.node = node
        self._offer = offer
        self._asked = None

    def take(self, node: int, piece: FilePiece) -> None:
        if node == self.node and self._asked is not None and piece.position == self._asked.position:
            self._pieces = [piece]

    def go_on(self, now_ms: int) -> tuple[tuple[int, ...], FetchFile] | None:
        """Writes down what has come; the next question, if one is to be asked. Not while the journal is written."""
        pieces, self._pieces = self._pieces, []
        for piece in pieces:
            self._write(piece)
        for file in self._offer.files:
            size = self._sizes.get(file.name, 0)
            if size != file.size_bytes:
                if size > file.size_bytes:  # A file that never changes does not shrink: these do not belong together.
                    self.drop()
                    return None
                question = FetchFile(file.name, size, self._offer.life)
                if question == self._asked:
                    return None
                self._asked, self._asked_at_ms = question, now_ms
                return (self.node,), question
        return None

    def _write(self, piece: FilePiece) -> None:
        size = self._sizes.get(piece.name, 0)
        if self._asked is None or piece.name != self._asked.name or piece.position != size or not piece.data:
            return
        name = piece.name + INCOMING_SUFFIX
        if not size:
            self._disk.create(name)
        self._disk.append(name, [piece.data if size else self._with_our_header(piece)])
        self._sizes[piece.name] = size + len(piece.data)

    def _with_our_header(self, piece: FilePiece) -> bytes:
        """The beginning of a file; a segment's has our number in its checksum instead of the other's."""
        data = memoryview(piece.data)
        if piece.name.endswith(files.JOURNAL_SUFFIX):
            with contextlib.suppress(StorageDamaged):  # What cannot be read stays as it is, and is found damaged.
                header = files.decode_header(data, piece.name, self._offer.salt)
                if header is not None:
                    return files.encode_header(*header, self._disk.salt) + data[files.SEGMENT_HEADER_SIZE :]
        return piece.data

    @property
    def is_complete(self) -> bool:
        listed = self._offer.files
        return bool(listed) and all(self._sizes.get(file.name) == file.size_bytes for file in listed)

    def header(self) -> SnapshotHeader | None:
        """What the snapshot says that has come; None if something has come damaged that it needs."""
        try:
            snapshot_header = self._header_of(self._offer.files[-1].name + INCOMING_SUFFIX, self._offer.salt)
            if snapshot_header is None:
                return None
            places = Places()
            places.load(self.pieces(), snapshot_header.snapshot.next_slot)
            # Damage must not spread: anyone who has it finds it, has it mended, and offers its files again.
            self._damaged = dict(self.damaged())
            found = (span for spans in self._damaged.values() for span in spans)
            return None if any(places.within(*span) for span in found) else snapshot_header
        except (StorageDamaged, msgspec.DecodeError):
            return None

    def pieces(self) -> list[Piece]:
        """What the indexes say that have come."""
        names = [file.name for file in self._offer.files if file.name.endswith(files.INDEX_SUFFIX)]
        return [self._piece_of(name + INCOMING_SUFFIX) for name in names]

    def _piece_of(self, name: str) -> Piece:
        return decode_piece(files.decode_index(self._disk.map(name), name, self._offer.salt).payload)

    def damaged(self) -> Iterator[tuple[str, list[Span]]]:
        """Where each of the segments is damaged that have come."""
        for file in self._offer.files:
            if file.name.endswith(files.JOURNAL_SUFFIX):
                view = self._disk.map(file.name + INCOMING_SUFFIX)
                header = files.decode_header(view, file.name, self._disk.salt)
                if header is None:
                    raise StorageDamaged(f"{file.name} arrived without its header: it is fetched again.")
                yield file.name, list(check(view[: file.size_bytes], header.base_address))

    def _header_of(self, name: str, salt: int) -> SnapshotHeader | None:
        return decode_snapshot_header(files.decode_snapshot(self._disk.map(name), name, salt).payload)

    def install(self, snapshot_header: SnapshotHeader) -> None:
        """The files that have come take the place of our own, with `snapshot_header` in their snapshot."""
        disk = self._disk
        listed = [file.name for file in self._offer.files]
        for name in listed:
            disk.seal(name + INCOMING_SUFFIX)
            disk.sync(name + INCOMING_SUFFIX)
            if name.endswith(files.INDEX_SUFFIX):
                self._install_index(name + INCOMING_SUFFIX)
        snapshot_name = listed[-1] + INCOMING_SUFFIX
        envelope = files.decode_snapshot(disk.map(snapshot_name), snapshot_name, self._offer.salt)
        disk.replace(
            snapshot_name, files.encode_snapshot(envelope._replace(payload=encode(snapshot_header)), disk.salt)
        )
        last_name = files.journal_name(envelope.next_slot)
        header = files.encode_header(envelope.next_slot, envelope.segment.end_address, disk.salt)
        disk.replace(last_name + INCOMING_SUFFIX, [header])
        write_note(disk, LIST_NAME, [*listed, last_name])
        self._life += 1  # Files of the same names are others now.
        self._forget()
        self.finish()

    def _install_index(self, name: str) -> None:
        """An index under our number, with sums of the segment as it is here: all of that has been checked."""
        disk = self._disk
        envelope = files.decode_index(disk.map(name), name, self._offer.salt)
        segment_name, base_address = files.journal_name(envelope.segment.first_slot), envelope.segment.base_address
        blocks = Blocks()
        blocks.extend([disk.map(segment_name + INCOMING_SUFFIX)])
        for span in self._damaged.get(segment_name, ()):
            blocks.spoil(span.start - base_address, span.end - base_address)
        disk.replace(name, files.encode_index(envelope._replace(sums=blocks.pack()), disk.salt))

    def drop(self) -> None:
        """Forgets what has come."""
        self._forget()
        self._remove_incoming()

    def _forget(self) -> None:
        self.node, self._offer = 0, Offer(0, 0, ())
        self._pieces, self._asked, self._sizes, self._damaged = [], None, {}, {}

    def finish(self) -> None:
        """Finishes a copy that was interrupted after its list was written; call it before the journal is opened."""
        disk, names = self._disk, self._disk.names()
        if LIST_NAME in names:
            listed = read_note(disk, LIST_NAME, list[str]) or []
            for name in listed:
                if name + INCOMING_SUFFIX in names:
                    disk.rename(name + INCOMING_SUFFIX, name)
            for name in names:
                if _is_ours(name) and name not in listed:
                    disk.remove(name)
            slots = files.slots_of(listed, files.JOURNAL_SUFFIX)
            write_note(disk, INVENTORY_NAME, Inventory(slots[0], slots[-1]))
            disk.remove(LIST_NAME)
        self._remove_incoming()

    def _remove_incoming(self) -> None:
        for name in self._disk.names():
            if name.endswith(INCOMING_SUFFIX):
                self._disk.remove(name)


def _is_ours(name: str) -> bool:
    """Whether a name is one that the journal gives."""
    stem, dot, suffix = name.partition(".")
    return (
        len(stem) == 20
        and stem.isdecimal()
        and stem.isascii()
        and dot + suffix in (files.JOURNAL_SUFFIX, files.INDEX_SUFFIX, files.SNAPSHOT_SUFFIX)
    )


def _is_whole(offer: Offer) -> bool:
    """Whether these can be the files of a journal: the names are somebody else's words, and become names here."""
    names = [file.name for file in offer.files]
    return (
        0 < len(names) <= FILES_MAX
        and len(set(names)) == len(names)
        and all(map(_is_ours, names))
        and all(file.size_bytes > 0 for file in offer.files)
        and [name.endswith(files.SNAPSHOT_SUFFIX) for name in names] == [False] * (len(names) - 1) + [True]
    )
