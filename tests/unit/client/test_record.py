"""Delivery records: what a subscriber is handed is written down first, and what comes back is too (D4)."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

import tidings
from tidings.client.record import (
    BEGUN,
    ENDED,
    HANDED,
    RETURNED,
    STANDS,
    Entry,
    LaneNumbers,
    Recorder,
    Subscriber,
    read_entries,
    record_files,
)
from tidings.errors import InvalidRequest, StorageDamaged, StorageError
from tidings.message import Batch, Columns, Share

ALICE = Subscriber("alice")


def entries(folder: Path, *kinds: int) -> list[Entry]:
    found = [entry for path in record_files([folder]) for entry in read_entries(path)]
    return [entry for entry in found if entry.kind in (kinds or (HANDED, RETURNED))]


def offsets(entry: Entry) -> list[int]:
    if entry.offsets is None:
        return list(range(entry.first_offset, entry.first_offset + entry.count))
    return list(memoryview(entry.offsets).cast("q"))


def net(folder: Path) -> list[int]:
    """Which offsets were handed out and did not come back, in order."""
    found: list[int] = []
    for entry in entries(folder):
        if entry.kind == HANDED:
            found += offsets(entry)
        else:
            for offset in offsets(entry):
                found.remove(offset)
    return found


def recorder(folder: Path, **limits: int) -> Recorder:
    return Recorder(folder, "alice", lambda: 5, lambda: 3, **limits)


def batch(first: int, count: int) -> Batch:
    return Batch("news", first, Columns(1, "bob", [b"x"] * count, published_us=9))


def test_a_batch_is_one_entry_with_its_columns(tmp_path: Path) -> None:
    record = recorder(tmp_path)
    record.handed(ALICE, batch(10, 1000), 0, 1000)
    jobs = Share("jobs", (3, 7), Columns(1, "bob", [b"a", b"b"], [b"red", None], published_us=[1, 2]), attempt=2)
    record.handed(Subscriber("workers", group=True), jobs, 0, 2)
    record.close()
    begun, first, second, ended = entries(tmp_path, BEGUN, HANDED, ENDED)
    assert (begun.subscription, ended.epoch) == ("alice", 3)
    assert (first.subscription, first.group, first.topic, first.first_offset) == ("alice", False, "news", 10)
    assert (first.count, first.attempt, first.publisher, first.published_us, first.handed_us) == (1000, 1, "bob", 9, 5)
    assert (second.subscription, second.group, second.sequence, second.attempt) == ("workers", True, 1000, 2)
    assert offsets(second) == [3, 7]
    assert second.lanes is not None
    assert list(memoryview(second.lanes).cast("q")) == [LaneNumbers()[b"red"], 0]
    assert list(memoryview(second.published_us).cast("q")) == [1, 2]


def test_a_torn_end_is_passed_over_and_damage_is_not(tmp_path: Path) -> None:
    record = recorder(tmp_path)
    for first in range(3):
        record.handed(ALICE, batch(first, 1), 0, 1)
    [path] = record_files([tmp_path])
    whole = path.read_bytes()
    for cut in range(len(whole)):
        path.write_bytes(whole[:cut])
        found = entries(tmp_path)
        assert [entry.first_offset for entry in found] == list(range(len(found)))
    path.write_bytes(whole + bytes(100))
    assert len(entries(tmp_path)) == 3, "zeroes are what a power cut leaves"
    path.write_bytes(whole[:60] + bytes([whole[60] ^ 1]) + whole[61:])
    with pytest.raises(StorageDamaged, match="is damaged at byte"):
        entries(tmp_path)
    path.write_bytes(b"something else")
    with pytest.raises(StorageDamaged, match="is not a delivery record"):
        entries(tmp_path)


def test_files_are_ended_by_size_and_by_rows(tmp_path: Path) -> None:
    record = recorder(tmp_path / "rows", file_rows=10)
    for first in range(0, 40, 5):
        record.handed(ALICE, batch(first, 5), 0, 5)
    assert len(record_files([tmp_path / "rows"])) == 4
    assert net(tmp_path / "rows") == list(range(40))
    record = recorder(tmp_path / "bytes", file_bytes=150)
    for first in range(10):
        record.handed(ALICE, batch(first, 1), 0, 1)
    assert len(record_files([tmp_path / "bytes"])) > 2
    with pytest.raises(InvalidRequest, match="cannot be recorded"):
        recorder(record_files([tmp_path])[0] / "below a file")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "deliveries"


def filled(tmp_path: Path, folder: Path, count: int = 20) -> tidings.Bus:
    bus = tidings.open(tmp_path / "data", client_id="alice", record=folder)
    bus.subscribe("news", start="earliest")
    bus.put_many("news", [b"%d" % number for number in range(count)])
    return bus


def test_every_way_to_take_a_message_is_recorded(tmp_path: Path, folder: Path) -> None:
    with filled(tmp_path, folder) as bus:
        assert bus.get("news") is not None
        assert list(bus.get_all()) == ["news"]
        with bus.transaction() as tx:
            assert tx.get("news") is not None
        for number, _ in enumerate(bus.subscribe("news").messages(timeout=0)):
            if number == 4:
                break
        seen: list[int] = []

        @bus.on("news")
        def handler(message: tidings.Message) -> None:
            seen.append(message.offset)
            if message.offset == 9:
                bus.stop()

        bus.run()
        assert seen == [7, 8, 9], "the message in flight when the loop ended comes again"
        assert sum(len(each) for each in bus.subscribe("news").batches(timeout=0)) == 10
    assert net(folder) == list(range(20))
    [begun, ended] = entries(folder, STANDS)
    assert (begun.first_offset, ended.first_offset) == (0, 20)


def take_and_give_up(bus: tidings.Bus) -> None:
    with bus.transaction() as tx:
        for _ in range(3):
            tx.get("news")
        raise RuntimeError


def test_what_comes_back_is_recorded_as_returned(tmp_path: Path, folder: Path) -> None:
    with filled(tmp_path, folder) as bus:
        with pytest.raises(RuntimeError):
            take_and_give_up(bus)
        for _ in bus.subscribe("news").batches(timeout=0):
            break

        @bus.on("news")
        def handler(message: tidings.Message) -> None:
            raise LookupError

        for _ in range(2):
            with pytest.raises(LookupError):
                bus.run()
        assert net(folder) == []
        assert [message.offset for message in bus.subscribe("news").messages(timeout=0)] == list(range(20))
    assert net(folder) == list(range(20))


def test_members_of_a_group(tmp_path: Path, folder: Path) -> None:
    with tidings.open(tmp_path / "data", client_id="ada") as bus:
        jobs = bus.subscribe("jobs", group="workers", record=folder)
        bus.put_many("jobs", [b"%d" % number for number in range(30)], [b"k%d" % (number % 3) for number in range(30)])
        first = jobs.get(timeout=10)
        assert first is not None
        jobs.ack(first)
        taken = 0
        for _ in jobs.messages(timeout=0):
            taken += 1
            if taken == 5:
                break
        for share in jobs.batches(timeout=0):
            taken += len(share)
    assert sorted(net(folder)) == list(range(30))
    found = entries(folder, HANDED)
    assert {(entry.subscription, entry.group, entry.topic) for entry in found} == {("workers", True, "jobs")}
    lanes = {offset: lane for entry in found for offset, lane in zip(offsets(entry), _lanes(entry), strict=True)}
    assert len(set(lanes.values())) == 3
    assert all(lanes[offset] == lanes[offset % 3] for offset in range(30))


def _lanes(entry: Entry) -> list[int]:
    assert entry.lanes is not None
    return list(memoryview(entry.lanes).cast("q"))


def test_an_inbox_and_a_second_session(tmp_path: Path, folder: Path) -> None:
    for expected in (0, 1):
        with tidings.open(tmp_path / "data", client_id="alice", record=folder, inbox=tmp_path / "inbox") as bus:
            subscription = bus.subscribe("news", start="earliest")
            bus.put("news", "x")
            assert [message.offset for message in subscription.messages(timeout=0)] == [expected]
    assert sorted(net(folder)) == [0, 1]
    epochs = {entry.first_offset: entry.epoch for entry in entries(folder, HANDED)}
    assert epochs[0] < epochs[1]
    assert [entry.first_offset for entry in entries(folder, STANDS)].count(1) == 2


def test_a_full_disk_leaves_whole_entries_and_whole_files(tmp_path: Path) -> None:
    """What does not fit is taken back, also the beginning of a new file, and the record goes on."""
    record = recorder(tmp_path, file_rows=2)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    size = 0
    for number in range(6):
        for room in (0, 3, 11, 20):
            resource.setrlimit(resource.RLIMIT_FSIZE, (size + room, before[1]))
            try:
                with pytest.raises(StorageError, match="free some space"):
                    record.handed(ALICE, batch(number, 1), 0, 1)
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, before)
        record.handed(ALICE, batch(number, 1), 0, 1)
        size = 0 if number % 2 else record_files([tmp_path])[-1].stat().st_size
    record.close()
    assert net(tmp_path) == list(range(6))
    assert len(record_files([tmp_path])) == 4  # In the last there is only the end.


def test_a_wrong_length_is_damage_and_not_the_end(tmp_path: Path) -> None:
    """A flipped bit must not hide everything behind it."""
    record = recorder(tmp_path)
    ends = []
    for number in range(5):
        record.handed(ALICE, batch(number, 1), 0, 1)
        (path,) = record_files([tmp_path])
        ends.append(path.stat().st_size)
    record.close()
    data = path.read_bytes()
    for bit in range(32):
        wrong = bytearray(data)
        wrong[ends[1] + bit // 8] ^= 1 << bit % 8  # The length of the third.
        path.write_bytes(wrong)
        with pytest.raises(StorageDamaged, match=f"at byte {ends[1]}"):
            list(read_entries(path))
    for end in range(ends[1] + 1, ends[2]):
        path.write_bytes(data[:end])
        assert len(list(read_entries(path))) == 3  # The beginning, and two of them.
