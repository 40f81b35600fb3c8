"""What can happen to the files of a folder while nobody looks, as data: each fault has a name and what it does.

A `Scene` is a folder as its process left it, with an older copy of itself and another folder of the same kind. Every
fault is applied to a copy of it. Then there are two outcomes: everything is there, or an error says what is not.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random, SystemRandom
from typing import NamedTuple

from tidings.errors import TidingsError
from tidings.journal.disk import HOUSEKEEPING
from tidings.journal.folder import FOLDER_NAME
from tidings.journal.record import decode
from tidings.journal.segment import SEGMENT_HEADER_SIZE
from tidings.storage.keeper import HOLDER_NAME

SMALL_BYTES = 120
"""Of files that are not larger, every byte is flipped."""
FLIPS = 8
CUTS = 3
"""Ends of records at which a segment is cut, beside the last two."""
KEPT = frozenset({*HOUSEKEEPING - {FOLDER_NAME}, HOLDER_NAME})
"""Files that say nothing about what is stored: they may change whatever happens."""


class Scene(NamedTuple):
    """A folder, what it was in the middle of its life, and one that another life has left."""

    folder: Path
    older: Path
    other: Path


class Fault(NamedTuple):
    """Something that happens to a folder."""

    name: str
    apply: Callable[[Path], None]

    def __repr__(self) -> str:
        return self.name


Start = Callable[[Path], None]
"""Opens a folder in its role and closes it again; TidingsError if it is refused."""
Check = Callable[[Path], None]
"""Looks at all that a folder holds: AssertionError if something is not there, TidingsError if that was said. One that
was refused at a read goes on where it was."""


def seed() -> int:
    """Another one in every run; a failure prints it."""
    return SystemRandom().getrandbits(32)


def faults_of_files(scene: Scene, rng: Random) -> Iterator[Fault]:
    """Everything that happens to one file of a scene."""
    for path in sorted(scene.folder.iterdir()):
        name, size = path.name, path.stat().st_size
        yield Fault(f"{name} removed", lambda folder, name=name: (folder / name).unlink())  # type: ignore[misc]
        for length in sorted(_lengths(path, rng)):
            yield Fault(f"{name} cut to {length} of {size}", _cut(name, length))
        yield Fault(f"{name} longer by one", _write(name, path.read_bytes() + b"\1"))
        for position in _positions(path, rng):
            bit = rng.randrange(8)
            yield Fault(f"{name} bit {bit} of byte {position} flipped", _flip(name, position, bit))
        if size:
            rubbish = rng.randbytes(size)
            yield Fault(f"{name} full of rubbish", _write(name, rubbish))
            yield Fault(f"{name} full of zeros", _write(name, bytes(size)))
        for what, source in (("an older one", scene.older), ("another folder's", scene.other)):
            if (source / name).exists() and (source / name).read_bytes() != path.read_bytes():
                yield Fault(f"{name} replaced by {what}", _write(name, (source / name).read_bytes()))


def faults_of_folders(scene: Scene) -> Iterator[Fault]:
    """What happens to several files at once."""
    names = sorted(path.name for path in scene.folder.iterdir())
    journals = [name for name in names if name.endswith(".journal")]
    snapshots = [name for name in names if name.endswith(".snapshot")]
    indexes = [name for name in names if name.endswith(".index")]
    yield Fault("all removed but lock", _remove(*(name for name in names if name != "lock")))
    yield Fault("all removed but lock and folder", _remove(*(name for name in names if name not in ("lock", "folder"))))
    yield Fault("all removed but folder", _remove(*(name for name in names if name != "folder")))
    yield Fault("the journal removed", _remove(*journals, *snapshots, *indexes))
    yield Fault("the journal and its inventory removed", _remove(*journals, *snapshots, *indexes, "inventory"))
    yield Fault("the journal and its mark removed", _remove(*journals, *snapshots, *indexes, "durable"))
    yield Fault("all segments removed", _remove(*journals))
    yield Fault("newest segment and snapshot removed", _remove(journals[-1], *snapshots))
    yield Fault("oldest segment removed", _remove(journals[0], *indexes[:1]))
    yield Fault("two oldest segments removed", _remove(*journals[:2], *indexes[:2]))
    yield Fault("a segment in the middle removed", _remove(journals[1], *indexes[1:2]))
    yield Fault("all indexes removed", _remove(*indexes))
    yield Fault("two segments swapped", _swap(journals[0], journals[1]))


def check_fault(scene: Scene, fault: Fault, where: Path, start: Start, check: Check) -> str:
    """Applies a fault to a copy of the scene and looks what comes of it: "" or what was said."""
    shutil.copytree(scene.folder, where)
    try:
        fault.apply(where)
        before = contents(where)
        said = refused = _said(start, where)
        if not refused:
            said = _said(check, where)
        if said:
            after = contents(where)
            for name in sorted(before.keys() - KEPT):
                # After a start that was not refused, a segment may have been sealed, and its snapshot is another then.
                assert name in after or (not refused and name.endswith(".snapshot")), f"{said} And {name} is gone."
                assert not refused or after[name] == before[name], f"{said} And {name} is not as it was."
            for path in scene.folder.iterdir():
                if before.get(path.name) != path.read_bytes():
                    shutil.copyfile(path, where / path.name)
            start(where)
            check(where)
        return said
    finally:
        shutil.rmtree(where)


def _said(look: Start | Check, folder: Path) -> str:
    """What is said about a folder: nothing, if all is well."""
    try:
        look(folder)
    except TidingsError as error:
        said = str(error)
        assert said.endswith(".") and " " in said, f"{said!r} is no sentence"
        return said
    return ""


def sweep(
    scene: Scene, faults: list[Fault], where: Path, start: Start, new_check: Callable[[], Check], seed_: int
) -> dict[str, str]:
    """All faults, one after the other; what was said to each. Whatever is wrong is told together, with the seed."""
    wrong: list[str] = []
    said: dict[str, str] = {}
    for number, fault in enumerate(faults):
        try:
            said[fault.name] = check_fault(scene, fault, where / str(number), start, new_check())
        except Exception as error:  # noqa: BLE001 - an error of any other kind is what is looked for
            wrong.append(f"{fault.name}: {type(error).__name__}: {error}"[:400])
    assert not wrong, f"seed {seed_}, {len(wrong)} of {len(wrong) + len(said)} faults:\n" + "\n".join(wrong)
    return said


def contents(folder: Path) -> dict[str, bytes]:
    """The bytes of every file."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def _lengths(path: Path, rng: Random) -> set[int]:
    size = path.stat().st_size
    lengths = {0, 1, 8, SEGMENT_HEADER_SIZE, size // 2, size - 1}
    if path.suffix == ".journal":
        ends = boundaries(path)
        lengths |= {*rng.sample(ends, min(CUTS, len(ends))), *ends[-2:]}
    return {length for length in lengths if 0 <= length < size}


def boundaries(path: Path) -> list[int]:
    """Where the records of a segment end."""
    view = memoryview(path.read_bytes())
    base_address = int.from_bytes(view[20:28], "little")
    ends, position = [], SEGMENT_HEADER_SIZE
    while (record := decode(view, position, base_address)) is not None:
        position = record.end_address - base_address
        ends.append(position)
    return ends


def _positions(path: Path, rng: Random) -> list[int]:
    size = len(path.read_bytes().rstrip(b"\0"))
    if size <= SMALL_BYTES:
        return list(range(size))
    return sorted({*rng.sample(range(size), FLIPS), *rng.sample(range(SEGMENT_HEADER_SIZE), 4), size - 1})


def _cut(name: str, length: int) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        with open(folder / name, "r+b") as file:
            file.truncate(length)

    return apply


def _flip(name: str, position: int, bit: int) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        with open(folder / name, "r+b") as file:
            file.seek(position)
            byte = file.read(1)[0]
            file.seek(position)
            file.write(bytes([byte ^ 1 << bit]))

    return apply


def _write(name: str, data: bytes) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        (folder / name).write_bytes(data)

    return apply


def _remove(*names: str) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                (folder / name).unlink()

    return apply


def _swap(one: str, other: str) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        (folder / one).rename(folder / "aside")
        (folder / other).rename(folder / one)
        (folder / "aside").rename(folder / other)

    return apply
