"""The journal in use: appending, reading back, sealing, retention and full disks, on both disks."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from tidings.errors import StorageDamaged, StorageError
from tidings.journal import COMMAND, REPLICA, Append, Commit, Disk, DiskFull, Journal, RealDisk, Record, SyncFailed
from tidings.journal import segment as files
from tidings.settings import JournalSettings
from tidings.simulator.disk import PowerCut, SimulatedDisk

SMALL = JournalSettings(segment_bytes_max=1000, mapped_segments_max=2, recent_bytes_max=300)

ENDLESS_WRITER = """
import sys
from tidings.journal import COMMAND, Append, Journal, RealDisk
from tidings.settings import JournalSettings

journal = Journal.open(RealDisk(sys.argv[1]), JournalSettings(segment_bytes_max=1000))
list(journal.recover().records)
while True:
    if journal.full:
        journal.roll_next(b"", b"%d" % journal.next_slot)
    commit = journal.begin([Append(COMMAND, b"", (b"x" * 100,))])
    journal.write(commit)
    journal.finish(commit)
    print(commit.records[0].slot, flush=True)
"""

Opened = tuple[Journal, list[Record]]


@pytest.fixture(params=["real", "simulated"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Disk]:
    disk: Disk = RealDisk(tmp_path / "data") if request.param == "real" else SimulatedDisk(Random(0))
    yield disk
    disk.close()


def opened(disk: Disk, settings: JournalSettings = SMALL) -> Opened:
    journal = Journal.open(disk, settings)
    return journal, list(journal.recover().records)


def commit(journal: Journal, *appends: Append) -> Commit:
    under_way = journal.begin(list(appends))
    journal.write(under_way)
    journal.finish(under_way)
    return under_way


def put(journal: Journal, body: bytes, time_ms: int = 0) -> Record:
    return commit(journal, Append(COMMAND, b"put", (body,), time_ms)).records[0]


def fill_segments(journal: Journal, count: int) -> list[tuple[Record, bytes]]:
    """Puts until `count` segments are sealed and the next has a record; gives back every record and its body."""
    written = []
    while len(journal.segments) < count:
        body = b"%d." % journal.next_slot * 40
        if journal.full:
            journal.roll_next(b"index", b"snapshot before %d" % journal.next_slot)
        written.append((put(journal, body, time_ms=1000 + journal.next_slot), body))
    return written


def remove_through(journal: Journal, address: int) -> int:
    """Seals the current segment and lets the older ones go up to an address; how many went."""
    before = len(journal.segments)
    journal.roll_next(b"index", b"snapshot", address)
    put(journal, b"in the next one")
    return before + 1 - len(journal.segments)


class TestAppending:
    def test_a_new_journal_is_empty(self, disk: Disk) -> None:
        journal = Journal.open(disk, SMALL)
        recovery = journal.recover()
        assert (recovery.snapshot, recovery.indexes, list(recovery.records)) == (None, [], [])
        assert journal.next_slot == 0
        assert journal.segments == []
        assert not journal.full

    def test_records_come_back_with_all_their_fields(self, disk: Disk) -> None:
        journal, _ = opened(disk)
        first = commit(
            journal,
            Append(COMMAND, b"one", (b"body", memoryview(b"another body")), 10, 3, 2),
            Append(REPLICA, b""),
        )
        second = commit(journal, Append(COMMAND, b"two", (), 30))
        assert [record.slot for record in first.records + second.records] == [0, 1, 2]
        assert journal.next_slot == 3
        recovered, records = opened(disk)
        assert records == first.records + second.records
        assert (records[0].time_ms, records[0].ballot_number, records[0].ballot_node) == (10, 3, 2)
        assert recovered.read(records[0].body_address, 4) == b"body"
        assert recovered.read(records[0].body_address + 4, 12) == b"another body"
        assert recovered.end_address == recovered.durable_address == journal.end_address

    def test_an_empty_commit_changes_nothing(self, disk: Disk) -> None:
        journal, _ = opened(disk)
        end_address = journal.end_address
        commit(journal)
        assert (journal.next_slot, journal.end_address) == (0, end_address)

    def test_nothing_exists_before_finish(self, disk: Disk) -> None:
        journal, _ = opened(disk)
        end_address = journal.end_address
        under_way = journal.begin([Append(COMMAND, b"one")])
        journal.write(under_way)
        assert (journal.next_slot, journal.end_address) == (0, end_address)
        journal.finish(under_way)
        assert (journal.next_slot, journal.end_address) == (1, under_way.end_address)

    def test_one_commit_at_a_time(self, disk: Disk) -> None:
        journal, _ = opened(disk)
        journal.begin([Append(COMMAND, b"one")])
        with pytest.raises(AssertionError):
            journal.begin([Append(COMMAND, b"two")])

    def test_appending_waits_for_the_end_of_recovery(self, disk: Disk) -> None:
        put(opened(disk)[0], b"body")
        journal = Journal.open(disk, SMALL)
        records = journal.recover().records
        next(records)
        with pytest.raises(AssertionError):
            journal.begin([])
        assert list(records) == []
        journal.begin([])

    def test_without_sync_the_durable_address_stays_where_recovery_left_it(self, disk: Disk) -> None:
        settings = JournalSettings(durability="os")
        journal, _ = opened(disk, settings)
        durable_address = journal.durable_address
        put(journal, b"body")
        assert journal.durable_address == durable_address < journal.end_address
        assert opened(disk, settings)[0].durable_address == journal.end_address


class TestReading:
    def test_recent_bodies_are_handed_out_as_they_came_in(self, disk: Disk) -> None:
        journal, _ = opened(disk)
        first, second = b"first", b"second"
        (record,) = commit(journal, Append(COMMAND, b"", (first, second))).records
        assert journal.read(record.body_address, 5) is first
        assert journal.read(record.body_address + 5, 6) is second
        assert journal.read(record.body_address, 11) == b"firstsecond"
        assert journal.read(record.body_address + 2, 5) == b"rstse"

    def test_the_recent_bodies_are_bounded(self, disk: Disk) -> None:
        journal, _ = opened(disk)
        old, large, new = b"o" * 200, b"l" * 301, b"n" * 200
        records = [put(journal, body) for body in (old, large, new)]
        for record, body, kept in zip(records, (old, large, new), (False, False, True), strict=True):
            found = journal.read(record.body_address, len(body))
            assert found == body
            assert (found is body) is kept

    def test_from_sealed_segments_and_from_the_current_one(self, disk: Disk) -> None:
        journal, _ = opened(disk)
        written = fill_segments(journal, 5)
        for reader in (journal, opened(disk)[0]):
            for record, body in [*written, *reversed(written)]:
                assert reader.read(record.body_address, len(body)) == body

    def test_a_slice_outlives_the_mapping_and_the_segment(self, disk: Disk) -> None:
        journal, _ = opened(disk)
        written = fill_segments(journal, 4)
        record, body = written[0]
        held = journal.read(record.body_address, len(body))
        for other, other_body in written:
            journal.read(other.body_address, len(other_body))
        remove_through(journal, journal.end_address)
        assert held == body

    def test_while_another_thread_writes(self, disk: Disk) -> None:
        journal, _ = opened(disk)
        written = fill_segments(journal, 2)
        for number in range(30):
            if journal.full:
                journal.roll_next(b"", b"")
            body = b"%d" % number * 100
            under_way = journal.begin([Append(COMMAND, b"", (body,))])
            thread = threading.Thread(target=journal.write, args=(under_way,))
            thread.start()
            for record, expected in written[-20:]:
                assert journal.read(record.body_address, len(expected)) == expected
            thread.join()
            journal.finish(under_way)
            written.append((under_way.records[0], body))


class TestRecordAt:
    def test_a_record_is_found_by_its_address_in_every_segment(self, disk: Disk) -> None:
        journal, _ = opened(disk)
        written = fill_segments(journal, 3)
        for _ in range(2):
            for record, body in written:
                found = journal.record_at(record.address)
                assert found is not None
                assert (found[0], bytes(found[1])) == (record, body)
            journal, _ = opened(disk)

    def test_several_bodies_come_as_one(self, disk: Disk) -> None:
        journal, _ = opened(disk)
        (record,) = commit(journal, Append(REPLICA, b"command", (b"one", b"", b"two"))).records
        found = journal.record_at(record.address)
        assert found is not None
        assert (found[0].command, bytes(found[1])) == (b"command", b"onetwo")

    def test_where_no_record_begins_there_is_none(self, disk: Disk) -> None:
        journal, _ = opened(disk)
        written = fill_segments(journal, 2)
        first, last = written[0][0], written[-1][0]
        for address in (first.address + 1, first.address - 1, first.body_address, 0, last.end_address, 10**9):
            assert journal.record_at(address) is None, address

    def test_one_whose_segment_is_gone_is_gone(self, disk: Disk) -> None:
        journal, _ = opened(disk)
        written = fill_segments(journal, 3)
        remove_through(journal, journal.segments[0].end_address)
        assert journal.record_at(written[0][0].address) is None
        assert journal.record_at(written[-1][0].address) is not None

    def test_one_that_is_not_finished_is_not_found(self, disk: Disk) -> None:
        journal, _ = opened(disk)
        under_way = journal.begin([Append(COMMAND, b"put", (b"body",))])
        journal.write(under_way)
        assert journal.record_at(under_way.records[0].address) is None
        journal.finish(under_way)
        assert journal.record_at(under_way.records[0].address) is not None

    @pytest.mark.parametrize("at", [0, 5, 12, 30, 60, 80])
    def test_one_that_is_damaged_is_not_found(self, at: int) -> None:
        disk = SimulatedDisk(Random(0))
        journal, _ = opened(disk)
        written = fill_segments(journal, 2)
        first = written[0][0]
        disk.flip_bit(files.journal_name(0), first.address + at)
        journal, _ = opened(disk)
        assert journal.record_at(first.address) is None
        assert journal.record_at(written[1][0].address) is not None
        following, damaged = journal.scrub(0, journal.size_bytes)
        assert [each.span.start for each in damaged] == [first.address]
        assert journal.scrub(following, journal.size_bytes)[1] == []


class TestRecoveringAgain:
    def test_what_is_there_then_counts(self, disk: Disk) -> None:
        """The files have been exchanged meanwhile: another journal lies in the folder."""
        other = SimulatedDisk(Random(1), salt=disk.salt)
        source, _ = opened(other)
        written = fill_segments(source, 3)
        journal, _ = opened(disk)
        own = fill_segments(journal, 2)
        journal.read(own[0][0].body_address, 3)  # Its first segment is mapped,
        journal.read(own[-1][0].body_address, 3)  # and its last record in memory.
        for name in disk.names():
            disk.remove(name)
        for name in other.names():
            disk.replace(name, [other.map(name)])
        recovery = journal.recover()
        assert recovery.snapshot is not None
        assert len(recovery.indexes) == 3
        replayed = list(recovery.records)
        assert replayed == [record for record, _ in written if record.slot >= replayed[0].slot]
        assert (journal.next_slot, journal.end_address) == (source.next_slot, source.end_address)
        assert journal.snapshot_name == source.snapshot_name
        for record, body in written:
            assert bytes(journal.read(record.body_address, len(body))) == body
        put(journal, b"more")
        assert opened(disk)[0].next_slot == source.next_slot + 1

    def test_nothing_is_recovered_while_a_commit_is_under_way(self, disk: Disk) -> None:
        journal, _ = opened(disk)
        journal.begin([Append(COMMAND, b"")])
        with pytest.raises(AssertionError, match="under way"):
            journal.recover()


class TestDamage:
    def damaged(self, disk: SimulatedDisk) -> list[Record]:
        """Five records, of which the third is damaged and was synced before the next was written."""
        journal, _ = opened(disk)
        records = [put(journal, b"%d" % number * 30) for number in range(5)]
        disk.flip_bit(files.journal_name(0), records[2].body_address)
        return records

    def test_it_is_an_error(self) -> None:
        disk = SimulatedDisk(Random(0))
        self.damaged(disk)
        with pytest.raises(StorageDamaged, match="fails its checksum"):
            opened(disk)

    def test_who_can_do_without_reads_on_behind_it(self) -> None:
        disk = SimulatedDisk(Random(0))
        records = self.damaged(disk)
        journal = Journal.open(disk, SMALL)
        recovery = journal.recover(skips_damage=True)
        assert list(recovery.records) == [*records[:2], *records[3:]]
        assert recovery.damaged == [(records[2].address, records[3].address)]
        assert put(journal, b"more").slot == 5

    def test_a_torn_tail_is_no_damage(self) -> None:
        disk = SimulatedDisk(Random(0))
        journal, _ = opened(disk)
        records = [put(journal, b"%d" % number * 30) for number in range(2)]
        under_way = journal.begin([Append(COMMAND, b"put", (b"2" * 30,))])

        def cut(step: str, _: str) -> None:
            if step == "sync":
                raise PowerCut

        disk.on_step = cut
        with pytest.raises(PowerCut):
            journal.write(under_way)
        disk.kill()
        disk.on_step = None
        disk.flip_bit(files.journal_name(0), under_way.records[0].body_address)
        recovery = Journal.open(disk, SMALL).recover(skips_damage=True)
        assert list(recovery.records) == records[:2]
        assert recovery.damaged == []

    def test_neither_end_of_the_last_commit_is_taken_for_a_torn_tail(self, disk: Disk) -> None:
        """It had been synced, and the durable mark says so: nothing is cut off, and nothing changed."""
        journal, _ = opened(disk)
        records = [put(journal, b"%d" % number * 30) for number in range(3)]
        name = files.journal_name(0)
        content = bytes(disk.map(name))[: records[-1].end_address]
        for size in (records[2].address, records[2].address + 1, len(content) - 1, records[0].address, 10, 0):
            disk.replace(name, [content[:size]])
            with pytest.raises(StorageDamaged, match=f"{name} is damaged at position"):
                opened(disk)
            assert bytes(disk.map(name)) == content[:size]


class TestSealing:
    def test_full_by_bytes_and_by_records(self, disk: Disk) -> None:
        journal, _ = opened(disk, JournalSettings(segment_bytes_max=500, segment_records_max=3))
        seen = []
        for body in (b"", b"x" * 500, b"", b"", b""):
            if journal.full:
                journal.roll_next(b"", b"")
            put(journal, body)
            seen.append(journal.full)
        assert seen == [False, True, False, False, True]

    def test_what_recovery_gives_back(self, disk: Disk) -> None:
        journal, _ = opened(disk)
        first = put(journal, b"a", time_ms=50)
        put(journal, b"b", time_ms=20)
        journal.roll_next(b"index of 0 and 1", b"state before 2")
        third = put(journal, b"c", time_ms=60)
        assert disk.names() == [
            f"{0:020d}.index",
            f"{0:020d}.journal",
            f"{2:020d}.journal",
            f"{2:020d}.snapshot",
            "inventory",
        ]
        recovered = Journal.open(disk, SMALL)
        recovery = recovered.recover()
        assert recovery.snapshot == b"state before 2"
        assert recovery.indexes == [b"index of 0 and 1"]
        assert list(recovery.records) == [third]
        for each in (journal, recovered):
            (segment,) = each.segments
            assert (segment.first_slot, segment.base_address, segment.last_time_ms) == (0, 0, 50)
            assert segment.base_address < first.body_address < segment.end_address < third.body_address
            assert each.size_bytes == each.end_address

    def test_the_newest_snapshot_and_every_index_are_kept(self, disk: Disk) -> None:
        journal, _ = opened(disk)
        fill_segments(journal, 4)
        names = disk.names()
        assert sum(name.endswith(".snapshot") for name in names) == 1
        assert sum(name.endswith(".index") for name in names) == 4
        recovered = Journal.open(disk, SMALL)
        recovery = recovered.recover()
        assert recovery.indexes == [b"index"] * 4
        assert [record.slot for record in recovery.records] == [journal.next_slot - 1]
        assert recovery.snapshot == b"snapshot before %d" % (journal.next_slot - 1)
        assert recovered.segments == journal.segments

    def test_a_commit_may_only_seal(self, disk: Disk) -> None:
        journal, _ = opened(disk)
        put(journal, b"a")
        journal.roll_next(b"index", b"state")
        commit(journal)
        assert len(journal.segments) == 1
        recovered, records = opened(disk)
        assert records == []
        assert put(recovered, b"b").slot == 1

    def test_a_segment_without_records_cannot_be_sealed(self, disk: Disk) -> None:
        journal, _ = opened(disk)
        with pytest.raises(AssertionError):
            journal.roll_next(b"", b"")


class TestRetention:
    def test_removes_whole_segments_up_to_an_address(self, disk: Disk) -> None:
        journal, _ = opened(disk)
        written = fill_segments(journal, 4)
        second = journal.segments[1]
        assert remove_through(journal, second.end_address - 1) == 1
        assert remove_through(journal, second.end_address) == 1
        assert len(journal.segments) == 4
        assert journal.size_bytes == journal.end_address - second.end_address
        with pytest.raises(StorageError, match="no longer holds address"):
            journal.read(written[0][0].body_address, 1)
        for reader in (journal, opened(disk)[0]):
            assert len(reader.segments) == 4
            for record, body in written:
                if record.body_address > second.end_address:
                    assert reader.read(record.body_address, len(body)) == body

    def test_the_current_segment_stays(self, disk: Disk) -> None:
        journal, _ = opened(disk)
        fill_segments(journal, 3)
        body = b"in the next one"
        assert remove_through(journal, journal.end_address) == 4
        recovered, (record,) = opened(disk)
        assert recovered.segments == []
        assert recovered.read(record.body_address, len(body)) == body
        assert put(recovered, b"more").slot == record.slot + 1

    def test_a_segment_missing_in_the_middle_is_damage(self, disk: Disk) -> None:
        journal, _ = opened(disk)
        fill_segments(journal, 4)
        name = f"{journal.segments[2].first_slot:020d}.journal"
        disk.remove(name)
        with pytest.raises(StorageDamaged, match=f"{name} is missing"):
            opened(disk)


class TestFaults:
    def test_a_full_disk_undoes_the_commit(self) -> None:
        disk = SimulatedDisk(Random(0))
        journal, _ = opened(disk)
        put(journal, b"kept")
        before = (journal.next_slot, journal.end_address, disk.names(), disk.size(disk.names()[0]))
        disk.capacity_bytes = sum(map(disk.size, disk.names())) + 80
        under_way = journal.begin([Append(COMMAND, b"small"), Append(COMMAND, b"large", (b"x" * 100,))])
        with pytest.raises(DiskFull):
            journal.write(under_way)
        journal.undo(under_way)
        assert (journal.next_slot, journal.end_address, disk.names(), disk.size(disk.names()[0])) == before
        assert put(journal, b"fits").slot == 1
        assert [record.slot for record in opened(disk)[1]] == [0, 1]

    @pytest.mark.parametrize("room", range(0, 500, 7))
    def test_a_full_disk_undoes_a_roll_at_any_step(self, room: int) -> None:
        disk = SimulatedDisk(Random(room))
        journal, _ = opened(disk)
        records = [record for record, _ in fill_segments(journal, 1)]
        records.append(put(journal, b"one more"))
        disk.capacity_bytes = sum(map(disk.size, disk.names())) + room
        segments, names = journal.segments, disk.names()
        older_snapshot_size = sum(disk.size(name) for name in names if name.endswith(".snapshot"))
        stale_index = f"{journal.next_slot - 2:020d}.index"
        journal.roll_next(b"index" * 10, b"snapshot" * 10)
        under_way = journal.begin([Append(COMMAND, b"new", (b"y" * 70,))])
        full = False
        try:
            journal.write(under_way)
            journal.finish(under_way)
        except DiskFull:
            full = True
            journal.undo(under_way)
        # Two envelopes of 48 bytes, a block's sum, a segment header of 28, a record header of 56, and what they hold.
        files_size = (48 + 4 + 50) + (48 + 80) + 28
        assert under_way.sealed is (room >= files_size + disk.size("inventory"))
        assert full is (room < files_size + max(disk.size("inventory"), 56 + 73 - older_snapshot_size))
        if not under_way.sealed:
            assert journal.segments == segments
            assert [name for name in disk.names() if name != stale_index] == names
        disk.capacity_bytes = None
        if full and under_way.sealed:
            commit(journal, Append(COMMAND, b"new", (b"y" * 70,)))
            full = False
        if full:
            records.append(put(journal, b"into the old segment"))
            journal.roll_next(b"fresh index", b"fresh snapshot")
            commit(journal, Append(COMMAND, b"into the new one"))
        recovered = Journal.open(disk, SMALL)
        recovery = recovered.recover()
        assert recovery.snapshot == (b"fresh snapshot" if full else b"snapshot" * 10)
        assert recovery.indexes == [b"index", b"fresh index" if full else b"index" * 10]
        assert [record.slot for record in recovery.records] == [records[-1].slot + 1]

    @pytest.mark.parametrize("fault", ["plain", "roll"])
    def test_a_failed_sync_is_raised_and_not_retried(self, fault: str) -> None:
        disk = SimulatedDisk(Random(0))
        journal, _ = opened(disk)
        put(journal, b"kept")
        if fault == "roll":
            journal.roll_next(b"", b"")
        under_way = journal.begin([Append(COMMAND, b"lost")])
        disk.fail_next_sync()
        with pytest.raises(SyncFailed):
            journal.write(under_way)

    def test_a_commit_is_one_write_and_one_sync(self) -> None:
        disk = SimulatedDisk(Random(0))
        journal, _ = opened(disk)
        steps: list[str] = []
        disk.on_step = lambda step, _: steps.append(step)
        commit(journal, *[Append(COMMAND, b"%d" % number, (b"x",)) for number in range(2000)])
        assert steps == ["write", "sync"]

    def test_a_killed_process_loses_nothing_that_was_finished(self, tmp_path: Path) -> None:
        """Z11, on the real disk: whatever was finished before kill -9 is there for the next to open the folder."""
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        with subprocess.Popen(
            [sys.executable, "-c", ENDLESS_WRITER, str(tmp_path)], stdout=subprocess.PIPE, env=environment
        ) as process:
            assert process.stdout is not None
            for _ in range(100):
                process.stdout.readline()
            process.kill()
            finished = 99 + sum(line.endswith(b"\n") for line in process.stdout)
        journal = Journal.open(RealDisk(tmp_path), SMALL)
        recovery = journal.recover()
        slots = [record.slot for record in recovery.records]
        assert recovery.snapshot is not None
        assert slots == list(range(int(recovery.snapshot), journal.next_slot))
        assert journal.next_slot > finished
        journal.close()
