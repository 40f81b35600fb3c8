"""The simulated disk must lose what a real one may lose, keep what a real one must keep, and repeat itself."""

from __future__ import annotations

from random import Random

import pytest

from tidings.journal.disk import DiskFull, SyncFailed
from tidings.simulator.disk import ALLOCATED_SIZE, SECTOR_SIZE, PowerCut, SimulatedDisk, Step

SYNCED = b"s" * 700
WRITTEN = b"w" * 3000


def half_synced(seed: int = 0) -> SimulatedDisk:
    disk = SimulatedDisk(Random(seed))
    disk.create("a")
    disk.append("a", [SYNCED])
    disk.sync("a")
    disk.append("a", [WRITTEN])
    return disk


def contents(disk: SimulatedDisk) -> dict[str, bytes]:
    return {name: bytes(disk.map(name)) for name in disk.names()}


def written(disk: SimulatedDisk) -> bytes:
    """What the file holds without the room that was made ahead."""
    content = bytes(disk.map("a"))
    assert len(content) % ALLOCATED_SIZE == 0
    return content.rstrip(b"\0")


def cut_at(disk: SimulatedDisk, step_wanted: Step, name_wanted: str) -> None:
    def hook(step: Step, name: str) -> None:
        if (step, name) == (step_wanted, name_wanted):
            disk.on_step = None
            raise PowerCut

    disk.on_step = hook


def test_a_power_cut_keeps_what_was_synced_and_tears_the_rest_by_sector() -> None:
    seen = set()
    for seed in range(200):
        disk = half_synced(seed)
        disk.crash()
        content = written(disk)
        assert content.startswith(SYNCED)
        rest = content[len(SYNCED) :]
        assert len(rest) <= len(WRITTEN)
        assert set(rest) <= set(b"w\0")
        if not rest:
            seen.add("none")
        elif rest == WRITTEN:
            seen.add("all")
        elif set(rest) == set(b"w"):
            seen.add("prefix")
        else:
            seen.add("hole")
            boundary = SECTOR_SIZE - len(SYNCED) % SECTOR_SIZE
            assert len(set(rest[boundary : boundary + SECTOR_SIZE])) <= 1
    assert seen == {"none", "all", "prefix", "hole"}


def test_a_seed_repeats_its_crash() -> None:
    for seed in range(20):
        first, second = half_synced(), half_synced()
        first.crash(Random(seed))
        second.crash(Random(seed))
        assert contents(first) == contents(second)


def test_a_second_crash_takes_nothing_more() -> None:
    for seed in range(20):
        disk = half_synced(seed)
        disk.crash()
        before = contents(disk)
        disk.crash()
        assert contents(disk) == before


def test_the_end_of_the_process_alone_loses_nothing_but_is_no_sync() -> None:
    lost = False
    for seed in range(20):
        disk = half_synced(seed)
        disk.kill()
        assert written(disk) == SYNCED + WRITTEN
        disk.crash()
        lost = lost or written(disk) != SYNCED + WRITTEN
    assert lost


def test_replace_is_atomic_wherever_it_is_cut() -> None:
    steps: list[tuple[Step, str]] = []
    disk = SimulatedDisk(Random(0))
    disk.replace("a", [b"old"])
    disk.on_step = lambda step, name: steps.append((step, name))
    disk.replace("a", [b"new"])
    assert steps == [("create", "a.tmp"), ("write", "a.tmp"), ("sync", "a.tmp"), ("rename", "a"), ("sync", "")]
    for step, name in steps:
        outcomes = set()
        for seed in range(30):
            disk = SimulatedDisk(Random(seed))
            disk.replace("a", [b"old"])
            cut_at(disk, step, name)
            with pytest.raises(PowerCut):
                disk.replace("a", [b"new"])
            disk.crash()
            outcomes.add(bytes(disk.map("a")))
        assert outcomes == ({b"old", b"new"} if (step, name) == ("sync", "") else {b"old"})


@pytest.mark.parametrize("call", ["create", "remove"])
def test_a_name_whose_folder_was_not_synced_may_be_there_or_not(call: str) -> None:
    outcomes = set()
    for seed in range(30):
        disk = SimulatedDisk(Random(seed))
        if call == "remove":
            disk.create("a")
        cut_at(disk, "sync", "")
        with pytest.raises(PowerCut):
            getattr(disk, call)("a")
        disk.crash()
        outcomes.add(tuple(disk.names()))
    assert outcomes == {(), ("a",)}


def test_an_unsynced_truncation_may_not_have_happened() -> None:
    outcomes = set()
    for seed in range(30):
        disk = half_synced(seed)
        disk.sync("a")
        cut_at(disk, "sync", "a")
        with pytest.raises(PowerCut):
            disk.truncate("a", 10)
        assert disk.size("a") == 10
        disk.crash()
        outcomes.add(bytes(disk.map("a")))
    assert outcomes == {SYNCED[:10], SYNCED + WRITTEN}


def test_a_write_that_is_cut_has_written_some() -> None:
    sizes = set()
    for seed in range(50):
        disk = SimulatedDisk(Random(seed))
        disk.create("a")
        cut_at(disk, "write", "a")
        with pytest.raises(PowerCut):
            disk.append("a", [b"abc"])
        disk.kill()
        sizes.add(len(written(disk)))
    assert sizes == {0, 1, 2, 3}


def test_a_sealed_file_has_no_room_ahead() -> None:
    for end in (SimulatedDisk.kill, SimulatedDisk.crash):
        disk = half_synced()
        disk.seal("a")
        end(disk)
        assert bytes(disk.map("a")) == SYNCED + WRITTEN


def test_a_full_disk_changes_nothing() -> None:
    disk = SimulatedDisk(Random(0), capacity_bytes=10)
    disk.create("a")
    disk.append("a", [b"12345678"])
    steps: list[Step] = []
    disk.on_step = lambda step, _: steps.append(step)
    with pytest.raises(DiskFull):
        disk.append("a", [b"abc"])
    assert steps == ["write", "truncate", "sync"]
    with pytest.raises(DiskFull):
        disk.replace("b", [b"abc"])
    assert contents(disk) == {"a": b"12345678"}
    disk.capacity_bytes = None
    disk.append("a", [b"abc"])
    assert contents(disk) == {"a": b"12345678abc"}


def test_a_planted_sync_failure_comes_once() -> None:
    disk = half_synced()
    disk.fail_next_sync()
    with pytest.raises(SyncFailed):
        disk.sync("a")
    disk.sync("a")


def test_a_disk_that_only_pretends_to_sync_loses_what_it_promised() -> None:
    lost = False
    for seed in range(20):
        disk = half_synced(seed)
        disk.skip_syncs = True
        disk.sync("a")
        disk.crash()
        lost = lost or disk.map("a") != SYNCED + WRITTEN
    assert lost


def test_a_flipped_bit_is_there_to_stay() -> None:
    disk = half_synced()
    disk.sync("a")
    disk.flip_bit("a", 3, bit=1)
    disk.crash()
    assert bytes(disk.read_at("a", 2, 3)) == b"sqs"


def test_a_flipped_bit_shows_in_what_was_mapped_before() -> None:
    disk = half_synced()
    mapped = disk.map("a")
    short = disk.map("a")[:3]
    disk.flip_bit("a", 3, bit=1)
    assert bytes(mapped[2:5]) == b"sqs"
    assert bytes(short) == b"sss"
    disk.append("a", [b"more"])
    disk.flip_bit("a", len(mapped))
    assert bytes(disk.read_at("a", len(mapped), 1)) == b"l"


def test_a_lost_file_is_gone_and_a_copy_that_is_put_back_is_there_to_stay() -> None:
    disk = half_synced()
    disk.sync("a")
    older = disk.image()
    disk.append("a", [b"more"])
    disk.sync("a")
    newer = disk.image()
    disk.put_back(older)
    disk.crash()
    assert contents(disk)["a"][: len(older["a"])] == older["a"]
    assert len(newer["a"]) > len(older["a"])
    disk.lose("a")
    disk.crash()
    assert contents(disk) == {}


def test_a_copy_goes_its_own_way() -> None:
    disk = half_synced()
    disk.seal("a")
    copy = disk.copied()
    assert copy.image() == disk.image()
    copy.append("a", [b"more"])
    copy.crash()
    disk.append("a", [b"and more"])
    assert bytes(disk.map("a")) == SYNCED + WRITTEN + b"and more"
