"""A disk in memory that forgets what was not synced, tears what was half written, and can be told to fail.

It keeps apart what a file holds now and what of it has been synced, and the same for the names in the
folder. `crash` is a power cut: appended bytes that were not synced survive by sector, at random, and a
name made or removed without a sync may be there or not. `kill` is the end of the process alone: the
kernel keeps all that was written. Everything is decided by the `random.Random` that is given, so a seed
replays a run.

A call takes several steps, the ones that the real disk takes. `on_step` is called before each with the
step and the file's name, and may raise `PowerCut` to end the process there; then call `crash` or `kill`.
A write that is cut short this way has written some of its bytes.

A mapped file shows what is on the disk, as `mmap` does: a bit that flips does so in every map of the file too.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from random import Random

import msgspec

from tidings.journal.disk import Buffer, DiskFull, SyncFailed
from tidings.journal.folder import MEMBER, TEMPORARY_SUFFIX, FolderNote

SECTOR_SIZE = 512
ALLOCATED_SIZE = 4096

Step = str
"""One of "write", "sync", "create", "rename", "remove", "truncate"."""


class PowerCut(BaseException):
    """The world ends here. Raised by a step hook, and no error: only the one who planted it may catch it."""


class _Map(bytearray):
    """What a map of a file shows; a plain bytearray cannot be referred to weakly."""


class _File:
    """The bytes of a file, and how many of them have been synced."""

    def __init__(self) -> None:
        self.content = bytearray()
        self.synced_size = 0
        self.cut_off = b""
        """Synced bytes that a truncation removed which has not been synced itself."""
        self.grows = False
        """Whether it has room made ahead, of which a crash leaves zeros."""
        self._maps: list[weakref.ref[_Map]] = []

    def map(self) -> memoryview:
        shown = _Map(self.content)
        self._maps = [each for each in self._maps if each() is not None]
        self._maps.append(weakref.ref(shown))
        return memoryview(shown).toreadonly()

    def flip(self, position: int, bit: int) -> None:
        for shown in (self.content, *(each() for each in self._maps)):
            if shown is not None and position < len(shown):
                shown[position] ^= 1 << bit

    def truncate(self, size: int) -> None:
        if size < self.synced_size:
            self.cut_off = bytes(self.content[size : self.synced_size]) + self.cut_off
            self.synced_size = size
        del self.content[size:]

    def sync(self) -> None:
        self.synced_size = len(self.content)
        self.cut_off = b""

    def crash(self, random: Random) -> None:
        if self.cut_off and random.random() < 0.5:
            del self.content[self.synced_size :]
            self.content += self.cut_off
        else:
            _tear(self.content, self.synced_size, random)
        self.show_room()
        self.sync()

    def show_room(self) -> None:
        """Nobody is left who knows where the bytes end that were written."""
        if self.grows:
            self.content += bytes(-len(self.content) % ALLOCATED_SIZE)
            self.grows = False


class SimulatedFolder:
    """What `journal.folder` knows of a real folder: the note in it, and which file it was written into."""

    def __init__(self, births: Iterator[int], note: FolderNote | None = None) -> None:
        self._births = births
        self._birth = (next(births), 0)
        self._note = note if note is not None else FolderNote(MEMBER, bytes(16), *self._birth)

    @property
    def is_copy(self) -> bool:
        return not self._note.is_of(self._birth)

    def adopt(self) -> None:
        inode, generation = self._birth
        self._note = msgspec.structs.replace(self._note, inode=inode, generation=generation)

    def copied(self) -> SimulatedFolder:
        """The same note in another file."""
        return SimulatedFolder(self._births, self._note)

    def imaged(self) -> SimulatedFolder:
        """The same note in the same file."""
        image = self.copied()
        image._birth = self._birth
        return image


class SimulatedDisk:
    """The `Disk` of the simulator. `capacity_bytes` may be changed at any time; None is no limit."""

    remote = False
    short_of_room = False

    def __init__(self, random: Random, capacity_bytes: int | None = None, salt: int = 0) -> None:
        self.capacity_bytes = capacity_bytes
        self.salt = salt
        self.on_step: Callable[[Step, str], None] | None = None
        self.skip_syncs = False
        """A planted bug: sync says that it has and has not."""
        self._random = random
        self._files: dict[str, _File] = {}
        self._files_synced: dict[str, _File] = {}
        self._durable: dict[str, int] = {}
        """The durable mark: so much of a file has been synced."""
        self._durable_acked: dict[str, int] = {}
        """The mark as a power cut may leave it at the earliest."""
        self._fail_next_sync = False
        self.home = SimulatedFolder(count(1))

    # What the journal asks.

    def names(self) -> list[str]:
        return sorted(self._files)

    def size(self, name: str) -> int:
        return len(self._files[name].content)

    def create(self, name: str) -> None:
        assert name not in self._files, f"{name} is there already"
        self._step("create", name)
        self._files[name] = _File()
        self._sync_directory()

    def append(self, name: str, buffers: Sequence[Buffer]) -> None:
        size_before = self.size(name)
        self._files[name].grows = True
        if not self._write(name, b"".join(buffers)):
            self.truncate(name, size_before)
            raise DiskFull(f"There is no room on the disk for {name}: free some space.")

    def commit(self, name: str, buffers: Sequence[Buffer]) -> None:
        self.append(name, buffers)
        self.sync(name)

    def sync(self, name: str) -> None:
        self._step("sync", name)
        self._check_sync(name)
        if not self.skip_syncs:
            self._files[name].sync()
        if name.endswith(".journal"):
            self._durable = {name: self.size(name)}

    def durable_size(self, name: str) -> int:
        return self._durable.get(name, 0)

    def sync_mark(self) -> None:
        self._step("sync", "durable")
        self._durable_acked = self._durable

    def restock(self) -> None:
        pass

    def _lower_mark(self, name: str, size: int) -> None:
        if self._durable.get(name, 0) > size or self._durable_acked.get(name, 0) > size:
            self._durable = self._durable_acked = {}

    def seal(self, name: str) -> None:
        if self._files[name].grows:
            self.truncate(name, self.size(name))

    def truncate(self, name: str, size: int) -> None:
        self._step("truncate", name)
        self._lower_mark(name, size)
        self._files[name].truncate(size)
        self._files[name].grows = False
        self.sync(name)

    def replace(self, name: str, buffers: Sequence[Buffer]) -> None:
        temporary = name + TEMPORARY_SUFFIX
        self._step("create", temporary)
        self._files[temporary] = _File()
        if not self._write(temporary, b"".join(buffers)):
            self._step("remove", temporary)
            del self._files[temporary]
            raise DiskFull(f"There is no room on the disk for {name}: free some space.")
        self.sync(temporary)
        self._step("rename", name)
        self._files[name] = self._files.pop(temporary)
        self._sync_directory()

    def rename(self, name: str, new_name: str) -> None:
        self._step("rename", new_name)
        self._lower_mark(new_name, 0)
        self._files[new_name] = self._files.pop(name)
        self._sync_directory()

    def remove(self, name: str) -> None:
        self._step("remove", name)
        self._lower_mark(name, 0)
        del self._files[name]
        self._sync_directory()

    def read_at(self, name: str, position: int, size: int) -> memoryview:
        return memoryview(bytes(self._files[name].content[position : position + size]))

    def map(self, name: str) -> memoryview:
        return self._files[name].map()

    def file_location(self, name: str) -> None:
        return None

    def tend(self) -> None:
        pass

    def close(self) -> None:
        pass

    # What the simulator does to it.

    def crash(self, random: Random | None = None) -> None:
        """A power cut: what was synced stays, of the rest each piece survives or not, at random."""
        random = random or self._random
        survivors: dict[str, _File] = {}
        for name in sorted({*self._files, *self._files_synced}):
            now, synced = self._files.get(name), self._files_synced.get(name)
            file = now if random.random() < 0.5 else synced
            if file is not None:
                survivors[name] = file
        self._keep_renamed(survivors, random)
        torn: list[_File] = []
        for file in survivors.values():
            if any(file is other for other in torn):  # A rename half way: one file under two names.
                continue
            file.crash(random)
            torn.append(file)
        self._files = survivors
        self._files_synced = dict(survivors)
        self._durable = self._durable_acked = random.choice((self._durable, self._durable_acked))
        self._fail_next_sync = False

    def _keep_renamed(self, survivors: dict[str, _File], random: Random) -> None:
        """A rename that was not synced has happened, or not, or half: but the file is there under one name at least."""
        for old_name, file in self._files_synced.items():
            new_name = next((name for name, now in self._files.items() if now is file), None)
            if new_name is not None and not any(file is survivor for survivor in survivors.values()):
                survivors[random.choice((old_name, new_name))] = file

    def kill(self) -> None:
        """The process dies and the machine goes on: everything written is kept, though not yet synced."""
        for file in self._files.values():
            file.show_room()
        # Names count as synced, because opening a folder syncs it first.
        self._files_synced = dict(self._files)
        self._fail_next_sync = False

    def copied(self) -> SimulatedDisk:
        """Another disk with all that is written on this one, as a copy of the folder would have it."""
        copy = self.imaged()
        copy.home = self.home.copied()
        return copy

    def imaged(self) -> SimulatedDisk:
        """The same as an image of the whole volume would have it, in which every file is the one that it was."""
        copy = SimulatedDisk(self._random, salt=self.salt)
        copy.home = self.home.imaged()
        copy._durable = copy._durable_acked = dict(self._durable)
        for name, file in self._files.items():
            copy._files[name] = twin = _File()
            twin.content, twin.grows = bytearray(file.content), file.grows
            twin.show_room()
            twin.sync()
        copy._files_synced = dict(copy._files)
        return copy

    def fail_next_sync(self) -> None:
        """Makes the next sync, of a file or of the folder, raise SyncFailed."""
        self._fail_next_sync = True

    def flip_bit(self, name: str, position: int, bit: int = 0) -> None:
        """Damages one bit of a file, as a bad sector would."""
        self._files[name].flip(position, bit)

    def lose(self, name: str) -> None:
        """Removes a file behind its owner's back."""
        del self._files[name]
        self._files_synced.pop(name, None)

    def image(self) -> dict[str, bytes]:
        """What is in all files, for `put_back`."""
        return {name: bytes(file.content) for name, file in sorted(self._files.items())}

    def put_back(self, files: Mapping[str, bytes]) -> None:
        """Puts what was once in files of these names in the place of what is in them now."""
        for name, content in files.items():
            file = self._files[name] = self._files_synced[name] = _File()
            file.content += content
            file.sync()

    # How it does it.

    def _step(self, step: Step, name: str) -> None:
        if self.on_step is not None:
            self.on_step(step, name)

    def _write(self, name: str, data: bytes) -> bool:
        """Writes as much of the data as there is room for; says whether that was all."""
        content = self._files[name].content
        try:
            self._step("write", name)
        except PowerCut:
            content += data[: self._random.randint(0, len(data))]
            raise
        room = len(data)
        if self.capacity_bytes is not None:
            room = max(0, self.capacity_bytes - sum(len(file.content) for file in self._files.values()))
        content += data[:room]
        return room >= len(data)

    def _sync_directory(self) -> None:
        self._step("sync", "")
        self._check_sync("the folder")
        if not self.skip_syncs:
            self._files_synced = dict(self._files)

    def _check_sync(self, name: str) -> None:
        if self._fail_next_sync:
            self._fail_next_sync = False
            raise SyncFailed(f"The disk did not keep {name}: look after the disk, then start again.")


def _tear(content: bytearray, synced_size: int, random: Random) -> None:
    """Leaves of the bytes behind `synced_size` what a power cut may leave."""
    size = len(content)
    match random.choice(("all", "none", "prefix", "sectors")):
        case "none":
            del content[synced_size:]
        case "prefix":
            del content[random.randint(synced_size, size) :]
        case "sectors":
            start = synced_size
            while start < size:
                end = min(size, (start // SECTOR_SIZE + 1) * SECTOR_SIZE)
                if random.random() < 0.5:
                    content[start:end] = bytes(end - start)
                start = end
            if random.random() < 0.5:
                del content[random.randint(synced_size, size) :]
