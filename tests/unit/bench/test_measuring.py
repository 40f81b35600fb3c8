"""Plans, bare limits, and what a journal tells about its commits."""

from __future__ import annotations

import threading
from pathlib import Path

import msgspec
import pytest

from tidings.errors import InvalidRequest
from tidings.journal.disk import RealDisk
from tidings.journal.journal import Journal
from tidings.journal.record import COMMAND, Append
from tidings.settings import JournalSettings
from tidings_lab.bench import limits
from tidings_lab.bench.backlog import scattered
from tidings_lab.bench.commits import commits_since
from tidings_lab.bench.neighbours import Spent, others_share, spent
from tidings_lab.bench.plan import QUICK, Plan, plan
from tidings_lab.bench.scenarios import put_sizes
from tidings_lab.bench.stage import filesystem_of


def test_plan_is_full_or_quick() -> None:
    assert plan(quick=False, scale=1) == Plan()
    assert plan(quick=True, scale=1) == QUICK
    assert Plan().backlog_messages == 10_000_000
    assert (QUICK.backlog_messages, QUICK.topics_many) == (1_000_000, 1_000)


def test_scaled_plan_keeps_every_count_above_zero() -> None:
    small = plan(quick=True, scale=0.0001)
    assert all(getattr(small, name) > 0 for name in Plan.__struct_fields__)
    assert small.value_bytes == 100
    assert small.topics_many > small.topics_few
    assert small.backlog_messages > small.backlog_few_messages


@pytest.mark.parametrize("scale", [0.0, -1.0, 1e9, float("nan")])
def test_scale_that_makes_no_sense(scale: float) -> None:
    with pytest.raises(InvalidRequest):
        plan(quick=True, scale=scale)


def append(journal: Journal, *sizes: int) -> int:
    """One commit with a record for each size; gives back how many bytes it took."""
    before = journal.end_address
    commit = journal.begin([Append(COMMAND, b"command", (bytes(size),), 1) for size in sizes])
    journal.write(commit)
    journal.finish(commit)
    return journal.end_address - before


def test_commits_are_read_from_the_journal(tmp_path: Path) -> None:
    journal = Journal.open(RealDisk(tmp_path), JournalSettings())
    list(journal.recover().records)
    assert commits_since(tmp_path).count == 0
    first = append(journal, 100, 200, 300)
    middle = commits_since(tmp_path).end_address
    second = append(journal, 1_000)
    third = append(journal, 10, 10)
    journal.close()
    every, later = commits_since(tmp_path), commits_since(tmp_path, middle)
    assert (every.count, every.records, every.size_bytes) == (3, 6, first + second + third)
    assert (later.count, later.records, later.size_bytes) == (2, 3, second + third)
    assert every.mean_bytes == (first + second + third) // 3
    assert commits_since(tmp_path, every.end_address).count == 0


def test_commits_are_read_across_segments(tmp_path: Path) -> None:
    journal = Journal.open(RealDisk(tmp_path), JournalSettings(segment_bytes_max=500))
    list(journal.recover().records)
    sizes = append(journal, 600)
    journal.roll_next(b"index", b"snapshot")
    append(journal, 700, 50)
    middle = commits_since(tmp_path, 0)
    journal.close()
    assert (middle.count, middle.records) == (2, 3)
    assert middle.size_bytes > sizes
    assert len(list(tmp_path.glob("*.journal"))) == 2


def test_disk_limit_times_every_block_and_leaves_nothing(tmp_path: Path) -> None:
    times = limits.write_and_sync(tmp_path, 1_000, 7)
    assert len(times) == 7
    assert min(times) > 0
    assert list(tmp_path.iterdir()) == []


def test_memory_limit() -> None:
    assert min(limits.memory_copy(2)) > 0


def test_echo_and_stream(tmp_path: Path) -> None:
    server = limits.EchoServer(tmp_path)
    thread = threading.Thread(target=server.serve)
    thread.start()
    client = limits.EchoClient(server.address, callers=2)
    assert len(client.echo([60, 120], 5)) == 5
    assert len(client.echo([60, 120], 5, record_bytes=200)) == 5
    assert (tmp_path / "echo.bin").stat().st_size == 1_000
    assert client.echo_all([60, 120], 0.02) > 0
    assert client.stream(10_000, 40) > 0
    client.close(stop_server=True)
    thread.join(10)
    assert not thread.is_alive()
    assert list(tmp_path.iterdir()) == []


def test_put_is_larger_than_its_message() -> None:
    frames, record_bytes = put_sizes(100)
    assert len(frames) == 2
    assert 100 < frames[1] < record_bytes


def test_topics_are_taken_from_all_over() -> None:
    topics = [str(number) for number in range(1_000)]
    found = scattered(topics, 10)
    assert len(found) == 10
    assert int(found[-1]) >= 900
    assert scattered(topics[:3], 10) == topics[:3]


def test_filesystem_of_the_nearest_mount() -> None:
    mounts = "a / ext4 rw 0 0\nb /run tmpfs rw 0 0\nc /run/user\\0401 xfs rw 0 0"
    assert filesystem_of(Path("/run/x"), mounts) == "tmpfs"
    assert filesystem_of(Path("/run/user 1/x"), mounts) == "xfs"
    assert filesystem_of(Path("/runaway"), mounts) == "ext4"


def test_others_had_what_neither_we_nor_nobody_had() -> None:
    stat = "cpu  {} 0 {} 700 0 0 50 0\ncpu0 1 2 3 4"
    before, after = spent(stat.format(100, 100)), spent(stat.format(200, 200))
    assert before is not None
    assert after is not None
    assert others_share(before, msgspec.structs.replace(after, own=before.own)) == pytest.approx(1.0)
    half = msgspec.structs.replace(after, own=before.own + (after.programs - before.programs) / 2)
    assert others_share(before, half) == pytest.approx(0.5)


def test_our_own_work_is_not_that_of_others() -> None:
    before = Spent(programs=10.0, stolen=0.0, total=100.0, own=5.0)
    assert others_share(before, Spent(programs=14.0, stolen=0.0, total=110.0, own=9.0)) == 0.0
    assert others_share(before, Spent(programs=14.0, stolen=0.0, total=110.0, own=9.5)) == 0.0
    assert others_share(before, Spent(programs=14.0, stolen=2.0, total=110.0, own=9.0)) == pytest.approx(0.2)
    assert others_share(before, Spent(programs=14.0, stolen=0.0, total=110.0, own=8.0)) == pytest.approx(0.1)
    assert others_share(before, Spent(programs=14.0, stolen=0.0, total=110.0, own=8.0), unseen=1.0) == 0.0
    assert others_share(before, before) == 0.0
    assert others_share(None, before) == 0.0


def test_what_is_spent_only_grows() -> None:
    before, after = spent(), spent()
    if before is not None and after is not None:
        assert after.total >= before.total
        assert after.own >= before.own > 0
