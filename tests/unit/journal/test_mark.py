"""The durable mark: it never says more than is there, and a killed process leaves it exact."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tidings.journal import mark
from tidings.journal.disk import RealDisk
from tidings.journal.mark import MARK_NAME, DurableMark
from tidings.journal.segment import journal_name

SALT = 7
NAME = journal_name(40)


def again(path: Path, salt: int = SALT) -> tuple[int, int]:
    """What the next process finds: the segment, and how much of it must be there."""
    found = DurableMark(path, salt)
    try:
        return found.slot, found.due
    finally:
        found.close()


@pytest.fixture
def marked(tmp_path: Path) -> DurableMark:
    return DurableMark(tmp_path, SALT)


def test_there_is_none_at_first(tmp_path: Path) -> None:
    assert again(tmp_path) == (0, 0)


def test_the_last_word_counts(tmp_path: Path, marked: DurableMark) -> None:
    for size in (28, 100, 4_000):
        marked.set(40, size)
        assert again(tmp_path) == (40, size)
    marked.set(80, 28)
    assert again(tmp_path) == (80, 28)


@pytest.mark.parametrize("position", range(0, 512 + 40, 7))
def test_a_torn_or_damaged_entry_leaves_the_one_before(tmp_path: Path, marked: DurableMark, position: int) -> None:
    marked.set(40, 100)
    marked.set(40, 200)
    data = bytearray((tmp_path / MARK_NAME).read_bytes())
    if position >= len(data):
        return
    data[position] ^= 0x10
    (tmp_path / MARK_NAME).write_bytes(data)
    assert again(tmp_path) in ((40, 100), (40, 200))


@pytest.mark.parametrize("size", [0, 1, 39, 512, 520])
def test_a_mark_that_was_cut_says_less_and_never_more(tmp_path: Path, marked: DurableMark, size: int) -> None:
    marked.set(40, 100)
    marked.set(40, 200)
    os.truncate(tmp_path / MARK_NAME, size)
    assert again(tmp_path)[1] in (0, 100, 200)


def test_another_folders_mark_says_nothing(tmp_path: Path, marked: DurableMark) -> None:
    marked.set(40, 100)
    assert again(tmp_path, SALT + 1) == (0, 0)


def test_what_is_cut_off_comes_back_by_no_older_entry(tmp_path: Path, marked: DurableMark) -> None:
    marked.set(40, 100)
    marked.set(40, 200)
    marked.lower(40, 50)
    assert again(tmp_path) == (40, 50)
    data = bytearray((tmp_path / MARK_NAME).read_bytes())
    for start in (0, 512):
        torn = data[:]
        torn[start : start + 4] = b"torn"
        (tmp_path / MARK_NAME).write_bytes(torn)
        assert again(tmp_path) == (40, 50)


def test_another_segment_is_not_lowered(tmp_path: Path, marked: DurableMark) -> None:
    marked.set(40, 100)
    marked.lower(0, 10)
    marked.lower(40, 100)
    assert again(tmp_path) == (40, 100)


def test_what_was_written_counts_until_the_machine_is_started_again(
    tmp_path: Path, marked: DurableMark, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel keeps what a killed process wrote; a power cut takes it."""
    marked.set(40, 100)
    marked.set_written(40, 300)
    assert again(tmp_path) == (40, 300)
    monkeypatch.setattr(mark, "boot_id", lambda: "another")
    assert again(tmp_path) == (40, 100)
    monkeypatch.setattr(mark, "boot_id", lambda: "")
    assert again(tmp_path) == (40, 100)


def test_where_the_boot_has_no_name_only_what_was_synced_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mark, "boot_id", lambda: "")
    marked = DurableMark(tmp_path, SALT)
    marked.set(40, 100)
    marked.set_written(40, 300)
    assert again(tmp_path) == (40, 100)


def test_a_segment_that_was_only_written_has_nothing_on_disk(
    tmp_path: Path, marked: DurableMark, monkeypatch: pytest.MonkeyPatch
) -> None:
    marked.set(0, 4_000)
    marked.set_written(40, 300)
    monkeypatch.setattr(mark, "boot_id", lambda: "another")
    assert again(tmp_path) == (40, 0)


# On a disk.


def test_a_disk_says_what_must_be_there(tmp_path: Path) -> None:
    disk = RealDisk(tmp_path, reserve_bytes=0)
    disk.create(NAME)
    disk.commit(NAME, [b"header"])
    assert disk.durable_size(NAME) == 6
    disk.append(NAME, [b" and more"])
    assert disk.durable_size(NAME) == 15
    assert disk.durable_size(journal_name(0)) == 0
    disk.truncate(NAME, 10)
    assert disk.durable_size(NAME) == 10
    disk.close()
    disk = RealDisk(tmp_path, reserve_bytes=0)
    assert disk.durable_size(NAME) == 10
    disk.remove(NAME)
    assert disk.durable_size(NAME) == 0
    disk.close()


def test_files_that_are_no_segments_have_no_mark(tmp_path: Path) -> None:
    disk = RealDisk(tmp_path, reserve_bytes=0)
    for name in ("note", NAME + ".incoming"):
        disk.create(name)
        disk.commit(name, [b"content"])
        disk.append(name, [b"more"])
        assert disk.durable_size(name) == 0
    disk.close()
