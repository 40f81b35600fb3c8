"""Reading ranges of offsets from a broker, request by request (D1)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

import msgspec
import pytest

from tests.unit.node.desk import Desk
from tidings.boot import boot_id
from tidings.client.reads_from_files import LocalFiles
from tidings.errors import InvalidRequest, InvalidTopic, NoSuchTopic, ProtocolError, StorageDamaged
from tidings.journal.disk import RealDisk
from tidings.message import Columns
from tidings.protocols.broker import messages
from tidings.protocols.broker.bulk import AskOffset, OffsetFound, Read, ReadDone, StoredBatch
from tidings.protocols.broker.machine import Machine
from tidings.settings import BrokerSettings, JournalSettings
from tidings.wire import codec

SMALL = JournalSettings(segment_bytes_max=2_000, segment_records_max=20)


@pytest.fixture
def desk() -> Desk:
    desk = Desk(journal=SMALL)
    desk.hello("alice")
    for number in range(4):
        desk.now_ms = 1_000 + 100 * number
        desk.put("alice", "news", 1 + 3 * number, *(b"%d" % (3 * number + each) for each in range(3)))
    return desk


def read(desk: Desk, first: int, end: int, count: int = 1_000, size_bytes: int = 1_000_000) -> tuple[ReadDone, list]:
    desk.say([codec.encode(Read(5, "news", first, end, count, size_bytes))])
    [(_, done, batches)] = desk.heard()
    assert isinstance(done, ReadDone), done
    return done, [columns.values for columns in batches]


def test_stored_batches_are_forwarded_untouched_with_their_times(desk: Desk) -> None:
    done, values = read(desk, 4, 8)
    assert done == ReadDone(5, 0, 12, (StoredBatch(3, 3, 1_100), StoredBatch(6, 3, 1_200)))
    assert values == [[b"3", b"4", b"5"], [b"6", b"7", b"8"]]
    assert read(desk, 12, 12) == (ReadDone(5, 0, 12, ()), [])


def test_an_answer_ends_at_its_bounds_but_holds_one_batch(desk: Desk) -> None:
    assert len(read(desk, 0, 12)[1]) == 4
    assert len(read(desk, 0, 12, count=3)[1]) == 1
    assert len(read(desk, 0, 12, count=4)[1]) == 2
    assert len(read(desk, 0, 12, size_bytes=1)[1]) == 1
    body = len(codec.encode(Columns(1, "alice", [b"0", b"1", b"2"])))
    assert len(read(desk, 0, 12, size_bytes=2 * body)[1]) == 2


def test_the_broker_has_a_bound_of_its_own() -> None:
    desk = Desk(BrokerSettings(read_bytes_max=1))
    desk.hello("alice")
    for number in range(3):
        desk.put("alice", "news", 1 + number, b"x")
    assert len(read(desk, 0, 3)[1]) == 1


@pytest.mark.parametrize(
    ("question", "error"),
    [
        (Read(5, "art", 0, 1, 10, 10), NoSuchTopic),
        (Read(5, "", 0, 1, 10, 10), InvalidTopic),
        (Read(5, "news", 0, 13, 10, 10), InvalidRequest),
        (Read(5, "news", 13, 13, 10, 10), InvalidRequest),
        (Read(5, "news", 5, 4, 10, 10), InvalidRequest),
        (Read(5, "news", -1, 4, 10, 10), ProtocolError),
        (Read(5, "news", 0, 4, 0, 10), InvalidRequest),
        (Read(5, "news", 0, 4, 10, 0), InvalidRequest),
        (AskOffset(5, "art", 0), NoSuchTopic),
    ],
)
def test_what_cannot_be_read_is_refused(desk: Desk, question: messages.AnyRequest, error: type) -> None:
    answer = desk.ask(question)  # type: ignore[arg-type]
    assert answer.number == error.number


def test_what_retention_removed_is_refused_with_what_is_left() -> None:
    desk = Desk(BrokerSettings(retain_bytes=1), SMALL)
    desk.hello("alice")
    for number in range(4):
        desk.put("alice", "news", 1 + number, b"x")
    desk.engine.tick(10_000)
    desk.commit()
    answer = desk.ask(Read(5, "news", 0, 4, 10, 10))
    assert answer.number == InvalidRequest.number and "it holds 3 to 4" in answer.text
    assert read(desk, 3, 4)[1] == [[b"x"]]


def test_the_offset_of_a_time(desk: Desk) -> None:
    for time_ms, offset in ((0, 0), (1_000, 0), (1_001, 3), (1_100, 3), (1_300, 9), (1_301, 12)):
        assert desk.ask(AskOffset(5, "news", time_ms)) == OffsetFound(5, offset, 0, 12)


def test_times_are_there_after_restarts_and_never_fall() -> None:
    desk = Desk(journal=SMALL)
    desk.hello("alice")
    for number in range(60):  # Several segments.
        desk.now_ms = 1_000 + 10 * number
        desk.put("alice", "news", 1 + number, b"x" * 50)
    before = read(desk, 0, 60)
    desk.restart()
    assert read(desk, 0, 60) == before
    desk.now_ms = 500  # The clock was set back between two lives.
    desk.put("alice", "news", 61, b"late")
    assert read(desk, 60, 61)[0].batches == (StoredBatch(60, 1, 1_590),)
    assert desk.ask(AskOffset(5, "news", 1_590)).offset == 59


def test_messages_that_do_not_count_are_left_out() -> None:
    desk = Desk()
    desk.hello("alice")
    desk.put("alice", "news", 1, b"a", b"b", ids=["1", "2"])
    desk.put("alice", "news", 3, b"b", b"c", ids=["2", "3"])
    done, values = read(desk, 0, 3)
    assert values == [[b"a", b"b"], [b"c"]]
    assert [batch.count for batch in done.batches] == [2, 1]


def test_a_folder_from_before_times_were_kept_opens() -> None:
    """Its batches have no time, and count as stored before everything else."""
    desk = Desk(journal=SMALL)
    desk.hello("alice")
    desk.put("alice", "news", 1, b"a")
    index, snapshot = desk.engine.broker.machine.seal()
    fields = msgspec.msgpack.decode(index)
    fields[0] = [topic[:7] for topic in fields[0]]
    old = msgspec.msgpack.decode(snapshot)
    old[0] = 1
    machine = Machine(BrokerSettings())
    machine.restore(msgspec.msgpack.encode(old[:6]), [msgspec.msgpack.encode(fields)])
    assert list(machine.topics["news"].times) == [0]
    assert machine.topics["news"].offset_at(1) == 1
    old[0] = 99
    with pytest.raises(StorageDamaged, match="use a newer tidings"):
        Machine(BrokerSettings()).restore(msgspec.msgpack.encode(old), [])


# Readers on the same machine.


@pytest.fixture
def local(tmp_path: Path) -> Iterator[Desk]:
    """A broker on a real disk: several segments, and in the last one a batch of which one message is a duplicate."""
    desk = Desk(journal=SMALL, disk=RealDisk(tmp_path))
    desk.hello("alice")
    for number in range(60):
        desk.put("alice", "news", 1 + number, b"%d" % number * 20)
    desk.put("alice", "news", 61, b"60", ids=["sixty"])
    desk.put("alice", "news", 62, b"61", b"60 again", b"62", ids=[None, "sixty", None])
    yield desk
    desk.disk.close()


def read_local(desk: Desk, first: int, end: int, boot: str) -> tuple[ReadDone, list[bytes]]:
    desk.say([codec.encode(Read(5, "news", first, end, 1_000, 1_000_000, boot))])
    [(_, frames)] = desk.engine.outgoing
    desk.engine.outgoing = []
    done = codec.decode_answer(frames[0])
    assert isinstance(done, ReadDone), done
    return done, [bytes(frame) for frame in frames[1:]]


def test_a_reader_on_the_same_machine_is_told_where_the_batches_lie(local: Desk) -> None:
    """D1: and reads the same there as it would have been sent."""
    told, sent = read_local(local, 0, 63, boot_id())
    assert len(told.files) > 2 and {Path(file.path).suffix for file in told.files} == {".journal"}
    assert [each is None for each in told.local] == [False] * 61 + [True], "a batch with a duplicate is cut, and sent"
    usual, bodies = read_local(local, 0, 63, "")
    assert (told.batches, usual.local, len(sent)) == (usual.batches, (), 1)
    files = LocalFiles()
    assert files.bodies(told, sent) == bodies
    files.close()


def test_after_a_restart_the_files_are_the_same(local: Desk, tmp_path: Path) -> None:
    before = read_local(local, 0, 63, boot_id())
    local.disk.close()
    local.disk = RealDisk(tmp_path)
    local.restart()
    assert read_local(local, 0, 63, boot_id()) == before


@pytest.mark.parametrize("boot", ["", "another machine"])
def test_anyone_who_is_elsewhere_is_sent_everything(local: Desk, boot: str) -> None:
    told, sent = read_local(local, 0, 63, boot)
    assert (told.files, told.local, len(sent)) == ((), (), 62)


def test_files_that_only_the_broker_can_read_are_not_pointed_to(desk: Desk) -> None:
    """A disk in memory here; a storage server's is the same."""
    told, sent = read_local(desk, 0, 12, boot_id())
    assert (told.files, told.local, len(sent)) == ((), (None,) * 4, 4)


def test_bits_that_flip_in_the_files_are_seen_by_anyone_who_reads_them_there(tmp_path: Path) -> None:
    """Z11: a body that fails its check is not taken from the file; the broker is asked for it, and refuses it."""
    desk = Desk(journal=JournalSettings(segment_bytes_max=150_000, recent_bytes_max=1), disk=RealDisk(tmp_path))
    desk.hello("alice")
    random = Random(3)
    bodies = [random.randbytes(random.choice((10, 3_000, 9_000, 30_000))) for _ in range(40)]
    for number, body in enumerate(bodies, 1):
        desk.put("alice", "news", number, body)
    told, sent = read_local(desk, 0, 40, boot_id())
    assert 0 < len(sent) < 10, "what lies in a block that still grows is sent"
    _, good = read_local(desk, 0, 40, "")
    refused = 0
    for path in sorted(tmp_path.glob("*.journal")):
        for position in random.sample(range(path.stat().st_size), 40):
            files = LocalFiles()
            flip(path, position)
            found = files.bodies(told, sent)
            flip(path, position)
            files.close()
            assert found is None or found == good, (path, position)
            refused += found is None
    assert refused > 50
    files = LocalFiles()
    assert files.bodies(told, sent) == good
    without = msgspec.structs.replace(
        told, local=tuple(each and msgspec.structs.replace(each, sums=b"") for each in told.local)
    )
    assert files.bodies(without, sent) is None, "what cannot be checked is not taken"
    files.close()
    desk.disk.close()


def flip(path: Path, position: int) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ 4]))
