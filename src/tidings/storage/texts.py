"""The readable files: one for each topic, one message a line (`lines` says how).

They are derived from the journal and never the truth. `positions` (in the server's folder, not among the texts)
says how far each text had come at the last checkpoint, and that much of it is on disk. So after a crash a text may
be longer than its position says, and is cut to it; the follower writes the rest again. A text that is shorter, or
gone, or that changes its size while the server runs, is written again from what the journal still holds; that it is
goes into `positions` first, so that a crash meanwhile cannot take the new lines for the old ones.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from tidings.descriptors import open_file
from tidings.errors import StorageDamaged
from tidings.journal.directory import Directory
from tidings.journal.folder import TEMPORARY_SUFFIX, make_folder, read_folder
from tidings.journal.notes import encode_note, parse_note
from tidings.storage.lines import file_name

TEXTS_NAME = "topics"
POSITIONS_NAME = "positions"
SYNCED_ONE_BY_ONE_MAX = 64


class Position(msgspec.Struct, frozen=True, array_like=True):
    """The offset of the message that comes next in a text, and the text's size in bytes."""

    next_offset: int
    size_bytes: int


class Positions(msgspec.Struct, frozen=True, array_like=True):
    """All texts at one moment, and the address up to which the journal had been followed."""

    version: int
    address: int
    texts: dict[str, Position]


class Text:
    """One topic's file: how far it has come."""

    __slots__ = ("next_offset", "path", "size_bytes")

    def __init__(self, path: Path, position: Position) -> None:
        self.path = path
        self.next_offset = position.next_offset
        self.size_bytes = position.size_bytes


class Texts:
    """All texts of a server. Everything belongs to one thread, the follower's."""

    def __init__(self, data: Path) -> None:
        self._folder = data / TEXTS_NAME
        self._directory = Directory(data)
        """Where the positions are: what somebody has put at its path since is another folder."""
        note = read_folder(data)
        self._salt = note.salt if note is not None else 0
        positions = self._load()
        self.address = positions.address
        """How far the journal had been followed at the last checkpoint."""
        self._texts = {topic: self._text(topic, position) for topic, position in positions.texts.items()}
        self._saved = {topic: position.next_offset for topic, position in positions.texts.items()}
        self._unsynced: dict[Path, None] = {}
        self._folder_seen: tuple[int, int] | None = None

    def text(self, topic: str) -> Text:
        """A topic's text, empty if it is new."""
        text = self._texts.get(topic)
        if text is None:
            text = self._texts[topic] = self._text(topic, Position(0, 0))
        return text

    def survey(self, next_offsets: Mapping[str, int]) -> bool:
        """Compares all texts with their positions and with the journal; whether some must be written again.

        What a crash left beyond a position goes. A text is written again if it is too short, or ahead of a journal
        that has lost what was never synced.
        """
        rewritten = bool(self.look_after())
        for topic, text in self._texts.items():
            size = text.path.stat().st_size if text.path.exists() else 0
            if size > text.size_bytes:
                os.truncate(text.path, text.size_bytes)
            if size < text.size_bytes or text.next_offset > next_offsets.get(topic, text.next_offset):
                text.next_offset = text.size_bytes = 0
                rewritten = True
        return rewritten

    def saved_offset(self, topic: str) -> int:
        """How far a text had come at the last checkpoint."""
        return self._saved.get(topic, 0)

    def append(self, text: Text, data: bytes, count: int) -> bool:
        """Writes lines behind a text; False if the file or its folder was not as it should be: then `look_after`."""
        try:
            descriptor = open_file(text.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW)
        except FileNotFoundError:
            return False
        try:
            if os.fstat(descriptor).st_size != text.size_bytes:
                os.ftruncate(descriptor, 0)
                self._unsynced[text.path] = None
                text.next_offset = text.size_bytes = 0
                return False
            size = text.size_bytes
            self._unsynced[text.path] = None
            try:
                _write(descriptor, data)
            except OSError:
                os.ftruncate(descriptor, size)
                raise
        finally:
            os.close(descriptor)
        text.size_bytes += len(data)
        text.next_offset += count
        return True

    def look_after(self) -> list[str]:
        """Makes the folder again if it is gone; the topics whose texts have gone and must be written again."""
        try:
            found = os.stat(self._folder)
        except FileNotFoundError:
            make_folder(self._folder.absolute())
            found = os.stat(self._folder)
        seen = (found.st_ino, found.st_mtime_ns)
        if seen == self._folder_seen:
            return []
        present = set(os.listdir(self._folder))
        self._folder_seen = seen
        gone = [topic for topic, text in self._texts.items() if text.size_bytes and text.path.name not in present]
        for topic in gone:
            self._texts[topic] = self._text(topic, Position(0, 0))
        return gone

    def checkpoint(self, address: int) -> None:
        """Brings all texts and then their positions onto the disk."""
        if len(self._unsynced) > SYNCED_ONE_BY_ONE_MAX:
            os.sync()
        else:
            for path in self._unsynced:
                _sync(path)
        self._unsynced.clear()
        texts = {topic: Position(text.next_offset, text.size_bytes) for topic, text in self._texts.items()}
        draft, content = POSITIONS_NAME + TEMPORARY_SUFFIX, msgspec.msgpack.encode(Positions(1, address, texts))
        descriptor = self._directory.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            _write(descriptor, encode_note(POSITIONS_NAME, self._salt, content))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        self._directory.rename(draft, POSITIONS_NAME)
        self.address = address
        self._saved = {topic: position.next_offset for topic, position in texts.items()}

    def close(self) -> None:
        """Nothing more is written."""
        self._directory.close()

    def _text(self, topic: str, position: Position) -> Text:
        return Text(self._folder / file_name(topic), position)

    def _load(self) -> Positions:
        try:
            note = bytes(self._directory.map(POSITIONS_NAME, None))
            positions = parse_note(POSITIONS_NAME, self._salt, note, Positions)
        except (FileNotFoundError, StorageDamaged):  # Without positions every text is written again.
            return Positions(1, 0, {})
        return positions if positions.version == 1 else Positions(1, 0, {})


def _write(descriptor: int, data: bytes) -> None:
    written = os.write(descriptor, data)
    while written < len(data):
        written += os.write(descriptor, memoryview(data)[written:])


def _sync(path: Path) -> None:
    try:
        descriptor = open_file(path, os.O_RDONLY)
    except FileNotFoundError:  # Removed meanwhile, and soon written again.
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
