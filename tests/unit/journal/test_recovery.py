"""Z11: whatever a crash leaves, recovery gives back all that was finished, whole records only, or says what is damaged.

The owner in these tests keeps a list of entries; its snapshot is the whole list and its indexes are the
pieces of it. So the two must agree after every crash, and every body must be readable at its address.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from random import Random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidings.errors import StorageDamaged
from tidings.journal import COMMAND, Append, DiskFull, Journal
from tidings.journal.folder import INVENTORY_NAME
from tidings.journal.notes import write_note
from tidings.journal.record import HEADER_SIZE
from tidings.journal.recovery import Inventory
from tidings.journal.segment import SEGMENT_HEADER_SIZE, journal_name
from tidings.settings import JournalSettings
from tidings.simulator.disk import PowerCut, SimulatedDisk, Step

SYNCED = JournalSettings(segment_records_max=5, segment_bytes_max=100_000, recent_bytes_max=1)
UNSYNCED = JournalSettings(durability="os", segment_records_max=5, segment_bytes_max=100_000, recent_bytes_max=1)
ONE_SEGMENT = JournalSettings(recent_bytes_max=1)

SUFFIXES = (".index", ".journal", ".snapshot")

Entry = tuple[str, int]
"""A record's command, and the address of its body."""


def body_of(command: str) -> bytes:
    """A body that follows from the command, some of several sectors."""
    number = int(command)
    return b"<%d>" % number * (1 + number * number % 7 * 70)


class Owner:
    """A journal with a state that is the list of everything appended."""

    def __init__(self, disk: SimulatedDisk, settings: JournalSettings, retains: bool = False) -> None:
        self.retains = retains
        self.journal = Journal.open(disk, settings)
        recovery = self.journal.recover()
        self.entries: list[Entry] = []
        if recovery.snapshot is not None:
            self.entries = msgspec.json.decode(recovery.snapshot, type=list[Entry])
        self.sealed_count = len(self.entries)
        indexed = [entry for index in recovery.indexes for entry in msgspec.json.decode(index, type=list[Entry])]
        assert self.entries[len(self.entries) - len(indexed) :] == indexed
        self.first_readable = len(self.entries) - len(indexed)
        for record in recovery.records:
            assert record.slot == len(self.entries)
            self.entries.append((record.command.decode(), record.body_address))
        assert self.journal.next_slot == len(self.entries)

    @property
    def commands(self) -> list[str]:
        return [command for command, _ in self.entries]

    def append(self, *commands: str) -> None:
        journal = self.journal
        rolls = journal.full
        if rolls:
            index = self.entries[self.sealed_count :]
            removable = journal.segments[0].end_address if self.retains and journal.segments else 0
            journal.roll_next(msgspec.json.encode(index), msgspec.json.encode(self.entries), removable)
        commit = journal.begin([Append(COMMAND, command.encode(), (body_of(command),)) for command in commands])
        try:
            journal.write(commit)
        except DiskFull:
            journal.undo(commit)
            if commit.sealed:
                self.sealed_count = len(self.entries)
            raise
        journal.finish(commit)
        if rolls:
            self.sealed_count = len(self.entries)
        self.entries += [(record.command.decode(), record.body_address) for record in commit.records]

    def check_bodies(self) -> None:
        for command, address in self.entries[self.first_readable :]:
            assert self.journal.read(address, len(body_of(command))) == body_of(command)


def cut_at(disk: SimulatedDisk, number: int) -> None:
    """Plants a power cut before step `number` from now on."""
    count = 0

    def hook(step: Step, name: str) -> None:
        nonlocal count
        count += 1
        if count == number:
            raise PowerCut

    disk.on_step = hook


def commits(count: int, first: int = 0) -> Iterable[list[str]]:
    """`count` commits of one to three records, the commands numbered through."""
    number = first
    for commit in range(count):
        size = 1 + commit % 3
        yield [str(number + offset) for offset in range(size)]
        number += size


def run_until_cut(disk: SimulatedDisk, settings: JournalSettings, count: int, retain: bool) -> tuple[int, int]:
    """Appends until the power cut; gives back how many records were finished and how many were under way."""
    finished = under_way = 0
    try:
        owner = Owner(disk, settings, retain)
        for commands in commits(count):
            under_way = len(commands)
            owner.append(*commands)
            finished, under_way = finished + under_way, 0
    except PowerCut:
        pass
    return finished, under_way


def check_survivor(disk: SimulatedDisk, settings: JournalSettings, at_least: int, at_most: int) -> None:
    """What is there must be a prefix of all commands, readable, and good to go on with."""
    disk.on_step = None
    owner = Owner(disk, settings)
    assert at_least <= len(owner.entries) <= at_most
    assert owner.commands == [str(number) for number in range(len(owner.entries))]
    owner.check_bodies()
    check_nothing_left_over(disk)
    for commands in commits(6, first=len(owner.entries)):
        owner.append(*commands)
    again = Owner(disk, settings)
    assert again.entries == owner.entries
    again.check_bodies()


def check_nothing_left_over(disk: SimulatedDisk) -> None:
    """At most one snapshot, and no index but those of the segments that are there."""
    stems = {suffix: [name[:20] for name in disk.names() if name.endswith(suffix)] for suffix in SUFFIXES}
    assert sum(map(len, stems.values())) + len(["inventory"]) == len(disk.names())
    assert len(stems[".snapshot"]) <= 1
    assert set(stems[".index"]) <= set(stems[".journal"])


class TestCrashAtEveryStep:
    """Z11: the process or the power ends before any step of a workload that seals, retains and appends."""

    COMMITS = 12

    def steps(self, settings: JournalSettings, retain: bool) -> int:
        disk = SimulatedDisk(Random(0))
        steps: list[Step] = []
        disk.on_step = lambda step, _: steps.append(step)
        run_until_cut(disk, settings, self.COMMITS, retain)
        assert {*steps} == {"write", "sync", "create", "rename", "remove", "truncate"}
        return len(steps)

    @pytest.mark.parametrize("retain", [False, True])
    def test_kill_keeps_all_that_was_finished(self, retain: bool) -> None:
        """Z11: kill -9 before any step; a record under way is there whole or not at all."""
        for chosen in (SYNCED, UNSYNCED):
            for step in range(1, self.steps(chosen, retain) + 1):
                disk = SimulatedDisk(Random(step))
                cut_at(disk, step)
                finished, under_way = run_until_cut(disk, chosen, self.COMMITS, retain)
                disk.kill()
                check_survivor(disk, chosen, finished, finished + under_way)

    @pytest.mark.parametrize("retain", [False, True])
    @pytest.mark.parametrize("seed", range(6))
    def test_power_cut_keeps_all_that_was_finished(self, seed: int, retain: bool) -> None:
        """Z11: the power ends before any step and unsynced sectors are lost at random."""
        for step in range(1, self.steps(SYNCED, retain) + 1):
            disk = SimulatedDisk(Random(step * 1000 + seed))
            cut_at(disk, step)
            finished, under_way = run_until_cut(disk, SYNCED, self.COMMITS, retain)
            disk.crash()
            check_survivor(disk, SYNCED, finished, finished + under_way)

    @pytest.mark.parametrize("seed", range(6))
    def test_power_cut_without_sync_keeps_a_prefix(self, seed: int) -> None:
        """Durability "os" may lose the newest records, never one in the middle, and always starts again."""
        for step in range(1, self.steps(UNSYNCED, False) + 1):
            disk = SimulatedDisk(Random(step * 1000 + seed))
            cut_at(disk, step)
            finished, under_way = run_until_cut(disk, UNSYNCED, self.COMMITS, False)
            disk.crash()
            check_survivor(disk, UNSYNCED, 0, finished + under_way)

    @pytest.mark.parametrize("seed", range(3))
    def test_recovery_itself_may_be_cut(self, seed: int) -> None:
        """Z11: a second crash before any step of the recovery from the first loses nothing more."""
        for step in range(1, self.steps(SYNCED, True) + 1, 3):
            for second in range(1, 12):
                disk = SimulatedDisk(Random(step * 1000 + second * 10 + seed))
                cut_at(disk, step)
                finished, under_way = run_until_cut(disk, SYNCED, self.COMMITS, True)
                if (step + second) % 2:
                    disk.crash()
                else:
                    disk.kill()
                cut_at(disk, second)
                try:
                    Owner(disk, SYNCED)
                except PowerCut:
                    disk.crash()
                check_survivor(disk, SYNCED, finished, finished + under_way)

    @pytest.mark.parametrize("chosen", [SYNCED, UNSYNCED])
    def test_what_was_recovered_once_stays(self, chosen: JournalSettings) -> None:
        """Z11: records that a killed process had only written are durable once they have been recovered."""
        for step in range(1, self.steps(chosen, False) + 1):
            disk = SimulatedDisk(Random(step))
            cut_at(disk, step)
            run_until_cut(disk, chosen, self.COMMITS, False)
            disk.kill()
            disk.on_step = None
            owner = Owner(disk, chosen)
            count = len(owner.entries)
            cut_at(disk, 2)
            with suppress(PowerCut):
                owner.append(str(count), str(count + 1))
            disk.crash()
            check_survivor(disk, chosen, count, count + 2)

    def test_a_full_disk_and_then_a_crash(self) -> None:
        """Z11: the crash comes before any step while a full disk has a commit and its roll undone."""
        for room in range(0, 3000, 150):
            for step in range(1, 25):
                disk = SimulatedDisk(Random(room + step))
                owner = Owner(disk, SYNCED)
                owner.append(*map(str, range(5)))
                owner.append("5")
                owner.append(*map(str, range(6, 10)))
                assert owner.journal.full
                disk.capacity_bytes = sum(map(disk.size, disk.names())) + room
                cut_at(disk, step)
                at_most = 10
                try:
                    owner.append("10", "11", "12")
                    at_most = 13
                except DiskFull:
                    pass
                except PowerCut:
                    at_most = 13
                disk.crash()
                disk.capacity_bytes = None
                check_survivor(disk, SYNCED, 10, at_most)

    def test_the_checks_would_notice_a_disk_that_only_pretends_to_sync(self) -> None:
        noticed = 0
        for seed in range(20):
            disk = SimulatedDisk(Random(seed))
            owner = Owner(disk, ONE_SEGMENT)
            disk.skip_syncs = True
            for commands in commits(5):
                owner.append(*commands)
            disk.crash()
            disk.skip_syncs = False
            try:
                noticed += len(Owner(disk, ONE_SEGMENT).entries) < len(owner.entries)
            except StorageDamaged:
                noticed += 1
        assert noticed > 5

    @settings(max_examples=60, deadline=None)
    @given(
        st.lists(st.integers(0, 4), min_size=1, max_size=12), st.integers(1, 150), st.integers(0, 2**32), st.booleans()
    )
    def test_any_sizes_any_step(self, sizes: list[int], step: int, seed: int, kill: bool) -> None:
        """Z11, for commits of any sizes."""
        disk = SimulatedDisk(Random(seed))
        cut_at(disk, step)
        finished = under_way = 0
        try:
            owner = Owner(disk, SYNCED)
            for size in sizes:
                under_way = size
                owner.append(*[str(finished + offset) for offset in range(size)])
                finished, under_way = finished + size, 0
        except PowerCut:
            pass
        if kill:
            disk.kill()
        else:
            disk.crash()
        check_survivor(disk, SYNCED, finished, finished + under_way)


class TestTornTail:
    """Z11: a torn tail is repaired."""

    def journal_with_tail(self) -> tuple[bytes, int]:
        """The bytes of a journal of two commits, and where the second one begins."""
        disk = SimulatedDisk(Random(0))
        owner = Owner(disk, ONE_SEGMENT)
        owner.append("0", "7")
        begin = owner.journal.end_address
        owner.append("14", "1", "21")
        return bytes(disk.map(journal_name(0))), begin

    def recovered(self, content: bytes) -> tuple[SimulatedDisk, Owner]:
        disk = SimulatedDisk(Random(0))
        write_note(disk, INVENTORY_NAME, Inventory(0, 0))
        disk.create(journal_name(0))
        disk.append(journal_name(0), [content])  # Not synced: the durable mark says nothing of it.
        return disk, Owner(disk, ONE_SEGMENT)

    def test_every_truncation_of_the_last_commit_is_cut_off_to_whole_records(self) -> None:
        content, begin = self.journal_with_tail()
        seen = set()
        for size in range(begin, len(content) + 1):
            disk, owner = self.recovered(content[:size])
            assert owner.commands == ["0", "7", "14", "1", "21"][: len(owner.entries)]
            assert len(owner.entries) >= 2
            assert disk.size(journal_name(0)) == owner.journal.end_address <= size
            seen.add(len(owner.entries))
            owner.append("2")
            assert Owner(disk, ONE_SEGMENT).commands == owner.commands
        assert seen == {2, 3, 4, 5}

    def test_a_late_sector_that_survived_does_not_save_the_commit(self) -> None:
        content, begin = self.journal_with_tail()
        for start in range(begin, len(content) - 1):
            torn = bytearray(content)
            torn[start : start + 16] = bytes(len(torn[start : start + 16]))
            if torn == content:
                continue
            disk, owner = self.recovered(bytes(torn))
            assert owner.commands == ["0", "7", "14", "1", "21"][: len(owner.entries)]
            assert 2 <= len(owner.entries) < 5
            assert disk.size(journal_name(0)) == owner.journal.end_address

    def test_rubbish_and_zeros_behind_the_end_are_cut_off(self) -> None:
        content, _ = self.journal_with_tail()
        for rubbish in (b"\0" * 5000, b"TDJ1" * 100, content[SEGMENT_HEADER_SIZE:], b"\xff"):
            disk, owner = self.recovered(content + rubbish)
            assert len(owner.entries) == 5
            assert disk.size(journal_name(0)) == len(content)

    def test_a_segment_that_never_came_to_be_is_made_again(self) -> None:
        for left in (b"", b"\0", b"\0" * SEGMENT_HEADER_SIZE, b"TDS1", b"\0" * 512):
            disk, owner = self.recovered(left)
            assert owner.entries == []
            owner.append("0")
            assert Owner(disk, ONE_SEGMENT).commands == ["0"]


class TestDamage:
    """Z11: damage elsewhere is reported, never skipped."""

    @pytest.mark.parametrize("mark", [False, True])
    def test_every_bit_before_the_last_commit(self, mark: bool) -> None:
        """With the durable mark also every bit of the last commit."""
        disk = SimulatedDisk(Random(0))
        owner = Owner(disk, ONE_SEGMENT)
        for command in ("0", "7", "14"):
            owner.append(command)
        begin = owner.journal.end_address
        owner.append("21", "28")
        name = journal_name(0)
        if not mark:
            disk._durable = {}
        for position in range(owner.journal.end_address if mark else begin):
            for bit in range(8):
                disk.flip_bit(name, position, bit)
                with pytest.raises(StorageDamaged, match=name):
                    Owner(disk, ONE_SEGMENT)
                disk.flip_bit(name, position, bit)
        assert Owner(disk, ONE_SEGMENT).entries == owner.entries

    def test_every_bit_of_a_header_in_front_of_a_single_commit(self) -> None:
        disk = SimulatedDisk(Random(0))
        owner = Owner(disk, SYNCED)
        owner.append(*map(str, range(5)))
        owner.append("5")
        for name in (journal_name(0), journal_name(5)):
            for position in range(SEGMENT_HEADER_SIZE * 8):
                disk.flip_bit(name, position // 8, position % 8)
                with pytest.raises(StorageDamaged, match=name):
                    Owner(disk, SYNCED)
                disk.flip_bit(name, position // 8, position % 8)

    def test_damage_names_the_position(self) -> None:
        disk = SimulatedDisk(Random(0))
        owner = Owner(disk, ONE_SEGMENT)
        owner.append("0")
        position = owner.journal.end_address
        owner.append("1")
        owner.append("2")
        disk.flip_bit(journal_name(0), position + HEADER_SIZE)
        with pytest.raises(StorageDamaged, match=f"{journal_name(0)} is damaged at position {position}"):
            Owner(disk, ONE_SEGMENT)

    def test_nothing_is_changed_on_a_damaged_disk(self) -> None:
        disk = SimulatedDisk(Random(0))
        owner = Owner(disk, ONE_SEGMENT)
        for command in "0123":
            owner.append(command)
        disk.flip_bit(journal_name(0), 40)
        before = bytes(disk.map(journal_name(0)))
        with pytest.raises(StorageDamaged):
            Owner(disk, ONE_SEGMENT)
        assert bytes(disk.map(journal_name(0))) == before

    def sealed(self) -> SimulatedDisk:
        disk = SimulatedDisk(Random(0))
        owner = Owner(disk, SYNCED)
        for commands in commits(8):
            owner.append(*commands)
        assert len(owner.journal.segments) == 2
        return disk

    def test_every_byte_of_an_index_and_a_snapshot(self) -> None:
        disk = self.sealed()
        for name in disk.names():
            if name.endswith((".index", ".snapshot")):
                for position in range(disk.size(name)):
                    disk.flip_bit(name, position, position % 8)
                    with pytest.raises(StorageDamaged, match=name):
                        Owner(disk, SYNCED)
                    disk.flip_bit(name, position, position % 8)

    def test_the_header_and_the_size_of_a_sealed_segment(self) -> None:
        disk = self.sealed()
        name = journal_name(0)
        for position in range(SEGMENT_HEADER_SIZE):
            disk.flip_bit(name, position)
            with pytest.raises(StorageDamaged, match=name):
                Owner(disk, SYNCED)
            disk.flip_bit(name, position)
        disk.truncate(name, disk.size(name) - 1)
        with pytest.raises(StorageDamaged, match=name):
            Owner(disk, SYNCED)

    @pytest.mark.parametrize("suffix", [".index", ".snapshot"])
    def test_a_missing_index_or_snapshot(self, suffix: str) -> None:
        disk = self.sealed()
        name = next(name for name in disk.names() if name.endswith(suffix))
        disk.remove(name)
        with pytest.raises(StorageDamaged, match=f"{name} is missing"):
            Owner(disk, SYNCED)

    def test_all_segments_missing(self) -> None:
        disk = self.sealed()
        for name in disk.names():
            if name.endswith(".journal"):
                disk.remove(name)
        with pytest.raises(StorageDamaged, match=r"\.journal is missing"):
            Owner(disk, SYNCED)

    def test_sealed_segments_are_not_read(self) -> None:
        """Recovery is bounded by one segment: damage in a sealed body does not stop the start."""
        disk = self.sealed()
        disk.flip_bit(journal_name(0), disk.size(journal_name(0)) - 1)
        Owner(disk, SYNCED)
