"""Room that is kept: small writes find it when the disk is full, large ones do not, and it is taken back."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from tests.integration.full_disk import FullOs
from tidings.journal import disk as disks
from tidings.journal import reserve
from tidings.journal.disk import DiskFull, RealDisk
from tidings.journal.reserve import RESERVE_NAME, SMALL_WRITE_BYTES_MAX, Reserve

MIB = 1024 * 1024
NAME = "00000000000000000000.journal"


@pytest.fixture
def full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FullOs:
    """A disk of 4 MiB."""
    found = FullOs(tmp_path, 4 * MIB)
    monkeypatch.setattr(disks, "os", found)
    monkeypatch.setattr(reserve, "os", found)
    monkeypatch.setattr(reserve, "RESTOCK_SECONDS", 0.0)
    return found


@pytest.fixture
def disk(tmp_path: Path, full: FullOs) -> RealDisk:
    """On which 2 MiB are kept."""
    found = RealDisk(tmp_path, reserve_bytes=2 * MIB)
    found.create(NAME)
    return found


def commit_until_full(disk: RealDisk, size: int) -> None:
    with contextlib.suppress(DiskFull):
        while True:
            disk.commit(NAME, [bytes(size)])


def fill(disk: RealDisk) -> None:
    """Until a large write is refused."""
    commit_until_full(disk, SMALL_WRITE_BYTES_MAX + 1)


def test_large_writes_do_not_use_it(tmp_path: Path, disk: RealDisk) -> None:
    fill(disk)
    assert not disk.short_of_room
    assert (tmp_path / RESERVE_NAME).stat().st_size == 2 * MIB


def test_small_writes_do_and_then_the_disk_is_short(tmp_path: Path, disk: RealDisk) -> None:
    fill(disk)
    size = disk.size(NAME)
    for number in range(20):
        disk.commit(NAME, [b"%8d" % number * 8_000])
    assert disk.short_of_room
    assert not (tmp_path / RESERVE_NAME).exists()
    assert bytes(disk.map(NAME))[size : size + 8] == b"       0", "it was written once"
    assert disk.size(NAME) == size + 20 * 64_000


def test_indexes_and_snapshots_of_any_size_use_it(disk: RealDisk) -> None:
    fill(disk)
    disk.replace("00000000000000000009.snapshot", [bytes(MIB)])
    assert disk.size("00000000000000000009.snapshot") == MIB
    assert disk.short_of_room


def test_when_it_is_used_up_everything_is_refused_and_nothing_changed(disk: RealDisk) -> None:
    fill(disk)
    commit_until_full(disk, 60_000)
    size, content = disk.size(NAME), bytes(disk.map(NAME))
    for _ in range(3):
        with pytest.raises(DiskFull):
            disk.commit(NAME, [bytes(60_000)])
    with pytest.raises(DiskFull):
        disk.replace("00000000000000000009.snapshot", [bytes(MIB)])
    assert (disk.size(NAME), bytes(disk.map(NAME))) == (size, content)
    assert "00000000000000000009.snapshot" not in disk.names()


def test_it_is_taken_back_when_there_is_room_again(tmp_path: Path, disk: RealDisk, full: FullOs) -> None:
    fill(disk)
    while not disk.short_of_room:
        disk.commit(NAME, [bytes(60_000)])
    disk.restock()
    assert disk.short_of_room, "there is no room yet"
    assert not (tmp_path / RESERVE_NAME).exists()
    full.capacity_bytes += 4 * MIB
    disk.restock()
    assert not disk.short_of_room
    assert (tmp_path / RESERVE_NAME).stat().st_size == 2 * MIB


def test_a_disk_without_room_for_it_is_short_from_the_start(tmp_path: Path, full: FullOs) -> None:
    full.capacity_bytes = MIB
    disk = RealDisk(tmp_path, reserve_bytes=2 * MIB)
    assert disk.short_of_room
    disk.create(NAME)
    disk.commit(NAME, [b"small"])
    disk.close()


def test_a_stop_gives_the_room_back(tmp_path: Path) -> None:
    kept = Reserve(tmp_path, MIB)
    assert (tmp_path / RESERVE_NAME).stat().st_size == MIB
    kept.close()
    assert not (tmp_path / RESERVE_NAME).exists()


def test_a_folder_may_keep_none(tmp_path: Path) -> None:
    kept = Reserve(tmp_path, 0)
    assert not kept.short
    assert not (tmp_path / RESERVE_NAME).exists()
