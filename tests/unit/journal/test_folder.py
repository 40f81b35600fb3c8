"""What a folder is: one process has it, in one role; a copy is known as one, and what is missing is missed."""

from __future__ import annotations

import itertools
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from zlib import crc32

import pytest

import tidings
from tidings.errors import InvalidRequest, StorageDamaged, Unavailable
from tidings.journal.disk import RealDisk
from tidings.journal.folder import (
    BROKER,
    FOLDER_NAME,
    INVENTORY_NAME,
    LOCK_NAME,
    MEMBER,
    RING,
    Folder,
    read_folder,
    role_of,
)
from tidings.journal.notes import encode_note
from tidings.journal.segment import Envelope, decode_index, decode_snapshot

ROLES = (BROKER, MEMBER, RING)


def use(path: Path, role: str = BROKER) -> None:
    folder = Folder(path, role)
    folder.enter()
    folder.close()


def copied(path: Path) -> bool:
    folder = Folder(path, BROKER)
    try:
        return folder.is_copy
    finally:
        folder.close()


def files(path: Path) -> dict[str, bytes]:
    return {each.name: each.read_bytes() for each in path.iterdir()}


# Roles.


@pytest.mark.parametrize(("owner", "other"), list(itertools.permutations(ROLES, 2)))
def test_anyone_who_comes_in_another_role_is_refused_and_changes_nothing(
    tmp_path: Path, owner: str, other: str
) -> None:
    use(tmp_path, owner)
    before = files(tmp_path)
    with pytest.raises(InvalidRequest, match="belongs to") as refused:
        RealDisk(tmp_path, other)
    assert str(tmp_path) in str(refused.value)
    assert files(tmp_path) == before
    assert role_of(tmp_path) == owner
    use(tmp_path, owner)


def test_a_role_that_this_release_does_not_know_is_not_taken_for_another(tmp_path: Path) -> None:
    use(tmp_path)
    note = read_folder(tmp_path)
    assert note is not None
    content = tidings_note(note.id, b"archive")
    (tmp_path / FOLDER_NAME).write_bytes(encode_note(FOLDER_NAME, 0, content))
    with pytest.raises(InvalidRequest, match="does not know: use a newer tidings"):
        use(tmp_path)


def tidings_note(identity: bytes, role: bytes) -> bytes:
    import msgspec

    return msgspec.msgpack.encode({"role": role.decode(), "id": identity, "inode": 0, "generation": 0})


def test_each_folder_has_a_salt_of_its_own_and_keeps_it(tmp_path: Path) -> None:
    salts = set()
    for name in ("one", "two"):
        for _ in range(2):
            folder = Folder(tmp_path / name, BROKER)
            folder.enter()
            salts.add(folder.salt)
            folder.close()
    assert len(salts) == 2


# One process.


def refused(path: Path) -> str:
    """What another process is told that wants the folder."""
    code = f"import tidings.journal.disk as d\ntry: d.RealDisk({str(path)!r})\nexcept Exception as e: print(e)"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_a_lock_that_was_removed_beside_a_running_process_does_not_let_another_in(tmp_path: Path) -> None:
    folder = Folder(tmp_path, BROKER)
    (tmp_path / LOCK_NAME).unlink()
    assert "in use by another broker" in refused(tmp_path)
    with pytest.raises(Unavailable, match="in use"):
        Folder(tmp_path, BROKER)
    folder.close()
    assert refused(tmp_path) == ""


def test_anyone_who_was_refused_leaves_the_folder_to_who_has_it(tmp_path: Path) -> None:
    folder = Folder(tmp_path, BROKER)
    for _ in range(2):
        with pytest.raises(Unavailable):
            Folder(tmp_path, BROKER)
    folder.close()
    use(tmp_path)


# A beginning.


def begun(path: Path) -> None:
    with tidings.open(path, "ann") as bus:
        bus.put("news", "hello")


@pytest.mark.parametrize("missing", [FOLDER_NAME, INVENTORY_NAME])
def test_a_journal_that_has_begun_misses_its_notes(tmp_path: Path, missing: str) -> None:
    begun(tmp_path)
    (tmp_path / missing).unlink()
    before = files(tmp_path)
    with pytest.raises(StorageDamaged, match=f"{missing} is missing"):
        tidings.open(tmp_path, "ann")
    after = files(tmp_path)
    assert {name: after.get(name) for name in before if name != "durable"} == {
        name: data for name, data in before.items() if name != "durable"
    }


def test_a_folder_of_which_only_the_lock_is_left_is_not_taken_for_a_new_one(tmp_path: Path) -> None:
    begun(tmp_path)
    for path in tmp_path.iterdir():
        if path.name != LOCK_NAME:
            path.unlink()
    with pytest.raises(StorageDamaged, match="folder is missing"):
        tidings.open(tmp_path, "ann")
    assert os.listdir(tmp_path) == [LOCK_NAME]


def test_the_word_comes_back_into_a_lock_that_was_removed(tmp_path: Path) -> None:
    begun(tmp_path)
    word = (tmp_path / LOCK_NAME).read_bytes()
    assert word
    (tmp_path / LOCK_NAME).unlink()
    tidings.open(tmp_path, "ann").close()
    assert (tmp_path / LOCK_NAME).read_bytes() == word


def test_a_folder_that_was_only_made_may_be_made_again(tmp_path: Path) -> None:
    use(tmp_path)
    (tmp_path / FOLDER_NAME).unlink()
    use(tmp_path, MEMBER)
    assert role_of(tmp_path) == MEMBER


@pytest.mark.parametrize("bit", range(8))
def test_every_flipped_bit_of_the_note_is_noticed(tmp_path: Path, bit: int) -> None:
    use(tmp_path)
    note = (tmp_path / FOLDER_NAME).read_bytes()
    for position in range(len(note)):
        damaged = bytearray(note)
        damaged[position] ^= 1 << bit
        (tmp_path / FOLDER_NAME).write_bytes(damaged)
        with pytest.raises(StorageDamaged):
            use(tmp_path)


# The original and its copies.


def test_a_copy_is_known_until_it_is_adopted(tmp_path: Path) -> None:
    original, copy = tmp_path / "original", tmp_path / "copy"
    use(original)
    assert not copied(original)
    shutil.copytree(original, copy)
    assert copied(copy)
    assert not copied(original)
    folder = Folder(copy, BROKER)
    folder.adopt()
    folder.close()
    assert not copied(copy)


@pytest.mark.parametrize(
    "command",
    ["cp -r original copy", "cp -a original copy", "mkdir copy && tar -C original -cf - . | tar -C copy -xf -"],
)
def test_copies_made_by_commands_are_known(tmp_path: Path, command: str) -> None:
    use(tmp_path / "original")
    subprocess.run(["sh", "-c", command], cwd=tmp_path, check=True)
    assert copied(tmp_path / "copy")


def test_an_older_copy_that_is_put_back_in_place_is_known(tmp_path: Path) -> None:
    folder, older = tmp_path / "folder", tmp_path / "older"
    use(folder)
    shutil.copytree(folder, older)
    shutil.rmtree(folder)
    shutil.copytree(older, folder)
    assert copied(folder)


def test_a_folder_that_was_renamed_is_no_copy(tmp_path: Path) -> None:
    use(tmp_path / "before")
    (tmp_path / "before").rename(tmp_path / "after")
    assert not copied(tmp_path / "after")


# Folders of the first release: other versions of all files, and no notes.


def to_first_release(path: Path) -> None:
    """Makes the files of a folder what the first release would have written."""
    note = read_folder(path)
    assert note is not None
    for each in path.iterdir():
        data = each.read_bytes()
        if each.suffix == ".journal":
            rest = struct.pack("<I", 1) + data[12:28]
            each.write_bytes(b"TDS1" + struct.pack("<I", crc32(rest)) + rest + data[28:])
        elif each.suffix == ".index":
            each.write_bytes(unsalted(b"TDI1", decode_index(memoryview(data), each.name, note.salt)))
        elif each.suffix == ".snapshot":
            each.write_bytes(unsalted(b"TDN1", decode_snapshot(memoryview(data), each.name, note.salt)))
        else:
            each.unlink()
    (path / LOCK_NAME).touch()


def unsalted(magic: bytes, envelope: Envelope) -> bytes:
    rest = struct.pack("<QQQQQ", envelope.next_slot, *envelope.segment) + envelope.payload
    return magic + struct.pack("<I", crc32(rest)) + rest


def test_a_folder_of_the_first_release_is_adopted(tmp_path: Path) -> None:
    """Everything is there; what is written from then on has the checksums of its own folder."""
    with tidings.open(tmp_path, "ann", segment_records_max=8) as bus:
        for number in range(30):
            bus.put("news", str(number))
    to_first_release(tmp_path)
    assert role_of(tmp_path) == BROKER
    for first, last in ((30, 40), (40, 50)):
        with tidings.open(tmp_path, "ann", segment_records_max=8) as bus:
            found = [message.text for batch in bus.read("news") for message in batch]
            assert found == [str(number) for number in range(first)]
            for number in range(first, last):
                assert bus.put("news", str(number)).offset == number
    assert role_of(tmp_path) == BROKER
    assert (tmp_path / INVENTORY_NAME).exists()
    (tmp_path / INVENTORY_NAME).unlink()
    with pytest.raises(StorageDamaged, match="inventory is missing"):
        tidings.open(tmp_path, "ann")


@pytest.mark.parametrize(("name", "owner"), [("ring", RING), ("member", MEMBER), ("holder", BROKER)])
def test_a_folder_of_the_first_release_keeps_its_role(tmp_path: Path, name: str, owner: str) -> None:
    begun(tmp_path)
    to_first_release(tmp_path)
    (tmp_path / name).write_bytes(b"whatever it said")
    before = files(tmp_path)
    for role in ROLES:
        if role != owner:
            with pytest.raises(InvalidRequest, match="belongs to"):
                use(tmp_path, role)
    assert files(tmp_path) == before
    use(tmp_path, owner)
