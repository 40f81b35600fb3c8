"""What every disk promises, checked on the real one and on the simulated one; then what only the real one has."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest

from tidings.errors import StorageDamaged, StorageError, Unavailable
from tidings.journal.directory import DESCRIPTORS_MAX
from tidings.journal.disk import (
    ALLOCATED_BYTES,
    BUFFERS_PER_WRITE_MAX,
    SMALL_BYTES_MAX,
    ZEROS,
    Disk,
    DiskFull,
    LocalDisk,
    RealDisk,
    SyncFailed,
)
from tidings.simulator.disk import SimulatedDisk


@pytest.fixture(params=["real", "simulated"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LocalDisk]:
    disk: LocalDisk = RealDisk(tmp_path / "data") if request.param == "real" else SimulatedDisk(Random(0))
    yield disk
    disk.close()


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """Makes the kernel refuse to let any file grow beyond `size`: a full disk without filling one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


class TestContract:
    def test_appended_buffers_are_read_back(self, disk: Disk) -> None:
        disk.create("a")
        disk.append("a", [b"one", memoryview(b"-two-")[1:4], b""])
        disk.append("a", [b"three"])
        disk.sync("a")
        assert disk.size("a") == 11
        assert bytes(disk.read_at("a", 3, 3)) == b"two"
        assert bytes(disk.read_at("a", 9, 100)) == b"ee"
        assert bytes(disk.map("a")) == b"onetwothree"

    def test_more_buffers_than_one_call_takes(self, disk: Disk) -> None:
        disk.create("a")
        buffers = [str(number).encode() for number in range(BUFFERS_PER_WRITE_MAX * 2 + 5)]
        disk.append("a", buffers)
        assert bytes(disk.map("a")) == b"".join(buffers)

    def test_names_are_sorted_and_removed_files_are_gone(self, disk: Disk) -> None:
        for name in ("c", "a", "b"):
            disk.create(name)
        disk.remove("b")
        assert disk.names() == ["a", "c"]

    def test_an_empty_file_maps_to_nothing(self, disk: Disk) -> None:
        disk.create("a")
        assert len(disk.map("a")) == 0

    def test_replace_makes_and_replaces(self, disk: Disk) -> None:
        disk.replace("a", [b"old"])
        assert bytes(disk.read_at("a", 0, 10)) == b"old"
        disk.replace("a", [b"ne", b"w"])
        assert bytes(disk.read_at("a", 0, 10)) == b"new"
        assert disk.names() == ["a"]

    def test_rename_takes_the_place_of_another_file(self, disk: LocalDisk) -> None:
        disk.replace("a", [b"old, and longer"])
        disk.create("b")
        disk.append("b", [b"new"])
        disk.seal("b")
        disk.sync("b")
        disk.append("a", [b"!"])  # It is open, and has room ahead.
        assert bytes(disk.read_at("a", 0, 3)) == b"old"
        disk.rename("b", "a")
        assert disk.names() == ["a"]
        assert bytes(disk.map("a")) == b"new"
        disk.append("a", [b"er"])
        assert bytes(disk.read_at("a", 0, 10)) == b"newer"
        disk.create("b")
        assert disk.size("b") == 0, "the name is free"

    def test_truncate_cuts_and_appending_goes_on_from_there(self, disk: Disk) -> None:
        disk.create("a")
        disk.append("a", [b"abcdef"])
        disk.truncate("a", 2)
        disk.append("a", [b"X"])
        assert bytes(disk.map("a")) == b"abX"

    def test_a_slice_of_a_mapping_outlives_mapping_and_file(self, disk: Disk) -> None:
        disk.create("a")
        disk.append("a", [b"abcdef"])
        part = disk.map("a")[1:3]
        disk.remove("a")
        assert bytes(part) == b"bc"

    def test_many_files_are_appended_to_in_turn(self, disk: Disk) -> None:
        names = [f"file{number}" for number in range(DESCRIPTORS_MAX * 2)]
        for name in names:
            disk.create(name)
        for _ in range(3):
            for name in names:
                disk.append(name, [b"x"])
                assert bytes(disk.read_at(name, 0, 1)) == b"x"
        assert [disk.size(name) for name in names] == [3] * len(names)


class TestFolder:
    def test_a_missing_folder_is_made_with_its_parents(self, tmp_path: Path) -> None:
        RealDisk(tmp_path / "a" / "b" / "c").close()
        assert (tmp_path / "a" / "b" / "c").is_dir()

    def test_a_second_opener_is_refused_and_told_what_to_do(self, tmp_path: Path) -> None:
        disk = RealDisk(tmp_path)
        with pytest.raises(Unavailable, match="is in use by another broker: stop it first, or connect to it"):
            RealDisk(tmp_path)
        disk.close()
        RealDisk(tmp_path).close()

    def test_a_killed_process_leaves_no_lock_behind(self, tmp_path: Path) -> None:
        """Z11: after kill -9 the folder can be opened again at once."""
        program = (
            "import sys, tidings.journal.disk as d; x = d.RealDisk(sys.argv[1]); print('open', flush=True); input()"
        )
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        with subprocess.Popen(
            [sys.executable, "-c", program, str(tmp_path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"open\n"
            with pytest.raises(Unavailable):
                RealDisk(tmp_path)
            process.kill()
        RealDisk(tmp_path).close()

    def test_a_folder_that_cannot_be_made_is_an_error_that_says_so(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_bytes(b"")
        with pytest.raises(StorageError, match="cannot be used"):
            RealDisk(tmp_path / "file" / "data")

    def test_the_lock_is_not_listed(self, tmp_path: Path) -> None:
        disk = RealDisk(tmp_path)
        assert disk.names() == []
        disk.close()


class TestRoomAhead:
    """Z11: a file that grows is larger than what was appended; only a crash may show it."""

    @pytest.mark.parametrize(
        ("data", "room_bytes"), [(b"abc", len(ZEROS)), (b"x" * (SMALL_BYTES_MAX + 1), ALLOCATED_BYTES)]
    )
    def test_a_crash_leaves_zeros_and_closing_leaves_none(self, data: bytes, room_bytes: int, tmp_path: Path) -> None:
        disk = RealDisk(tmp_path)
        disk.create("a")
        disk.append("a", [data])
        assert (tmp_path / "a").stat().st_size == len(data) + room_bytes
        assert (tmp_path / "a").read_bytes().rstrip(b"\0") == data
        disk.close()
        assert (tmp_path / "a").read_bytes() == data

    def test_what_follows_goes_into_either_kind_of_room(self, tmp_path: Path) -> None:
        disk = RealDisk(tmp_path)
        for name, data in (("small", b"x"), ("large", b"x" * (SMALL_BYTES_MAX + 1))):
            disk.create(name)
            disk.commit(name, [data])
            disk.commit(name, [b"y"])
            disk.commit(name, [b"z"])
            assert (tmp_path / name).read_bytes().rstrip(b"\0") == data + b"yz"
        disk.close()

    def test_a_sealed_file_ends_where_its_last_byte_is(self, tmp_path: Path) -> None:
        disk = RealDisk(tmp_path)
        disk.create("a")
        disk.append("a", [b"abc"])
        disk.seal("a")
        assert (tmp_path / "a").read_bytes() == b"abc"
        disk.append("a", [b"def"])  # Sealing may have been in vain: the disk was full behind it.
        assert bytes(disk.map("a")) == b"abcdef"
        disk.close()

    def test_without_room_ahead_it_goes_on_without(self, tmp_path: Path) -> None:
        disk = RealDisk(tmp_path)
        disk.create("a")
        with file_size_limit(1000):
            disk.append("a", [b"abc"])
            disk.append("a", [b"def"])
            disk.sync("a")
        assert (tmp_path / "a").read_bytes() == b"abcdef"
        disk.close()


class TestRealFaults:
    def test_a_full_disk_changes_nothing(self, tmp_path: Path) -> None:
        disk = RealDisk(tmp_path)
        disk.create("a")
        disk.append("a", [b"kept"])
        with file_size_limit(1000), pytest.raises(DiskFull, match="no room on the disk for a"):
            disk.append("a", [b"x" * 500, b"y" * 5000])
        assert bytes(disk.map("a")) == b"kept"
        disk.append("a", [b"!"])
        assert bytes(disk.map("a")) == b"kept!"
        disk.close()

    def test_a_full_disk_leaves_the_old_file_in_place_of_a_replacement(self, tmp_path: Path) -> None:
        disk = RealDisk(tmp_path)
        disk.replace("a", [b"old"])
        with file_size_limit(1000), pytest.raises(DiskFull):
            disk.replace("a", [b"x" * 5000])
        assert disk.names() == ["a"]
        assert bytes(disk.map("a")) == b"old"
        disk.close()

    def test_a_failed_sync_is_raised(self, tmp_path: Path) -> None:
        """What the kernel refuses to sync is never taken for synced. /dev/null is such a file."""
        disk = RealDisk(tmp_path)
        (tmp_path / "a").symlink_to("/dev/null")
        with pytest.raises(SyncFailed, match="did not keep a"):
            disk.sync("a")
        disk.close()

    @pytest.mark.parametrize("replaced", [False, True])
    @pytest.mark.parametrize("synced", [False, True])
    def test_nothing_counts_as_stored_in_a_file_that_somebody_took_away(
        self, synced: bool, replaced: bool, tmp_path: Path
    ) -> None:
        disk, name = RealDisk(tmp_path), "00000000000000000000.journal"
        disk.create(name)
        disk.commit(name, [b"before"])
        copy = (tmp_path / name).read_bytes()
        (tmp_path / name).unlink()
        if replaced:
            (tmp_path / name).write_bytes(copy)
        with pytest.raises(SyncFailed, match=f"{name} was removed or replaced while it was in use"):
            (disk.commit if synced else disk.append)(name, [b"after"])
        disk.close()

    def test_what_cannot_be_read_is_read_as_nothing(self, tmp_path: Path) -> None:
        disk = RealDisk(tmp_path)
        (tmp_path / "a folder").mkdir()
        assert bytes(disk.read_at("missing", 0, 10)) == b""
        assert bytes(disk.read_at("a folder", 0, 10)) == b""
        with pytest.raises(StorageDamaged, match="missing"):
            disk.map("missing")
        disk.close()
