"""The inbox file: marks that survive, torn ends that are cut off, damage that is reported."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tidings.client.inbox import HANDED, MAGIC, Inbox, _record
from tidings.errors import InvalidRequest, StorageDamaged, StorageError

NEWS = ("news",)
BOTH = ("news", "sport")


def filled(path: Path) -> list[int]:
    """An inbox with a few marks; where each record ends."""
    inbox = Inbox(path, "alice")
    ends = [path.stat().st_size]
    for offset in range(1, 6):
        inbox.mark(NEWS, "news", offset)
        ends.append(path.stat().st_size)
    inbox.close()
    return ends


def test_marks_are_there_for_the_next_process(tmp_path: Path) -> None:
    """Z10."""
    path = tmp_path / "inbox"
    inbox = Inbox(path, "alice")
    inbox.mark(NEWS, "news", 7)
    inbox.mark(NEWS, "news", 5)  # Never back.
    inbox.mark(BOTH, "sport", 3)
    inbox.close()
    again = Inbox(path, "alice")
    assert again.positions(NEWS) == {"news": 7}
    assert again.positions(BOTH) == {"sport": 3}
    assert again.positions(("other",)) == {}
    again.forget(NEWS)
    again.close()
    assert Inbox(path, "alice").positions(NEWS) == {}


def test_cut_anywhere_it_opens_with_the_whole_records(tmp_path: Path) -> None:
    """Z10, Z11: a crash at any byte of a write; what was synced before it is kept."""
    path = tmp_path / "inbox"
    ends = filled(path)
    data = path.read_bytes()
    for length in range(len(data)):
        path.write_bytes(data[:length])
        inbox = Inbox(path, "alice")
        whole = sum(1 for end in ends[1:] if end <= length)
        assert inbox.positions(NEWS) == ({"news": whole} if whole else {})
        inbox.mark(NEWS, "news", 9)
        inbox.close()
        again = Inbox(path, "alice")
        assert again.positions(NEWS) == {"news": 9}
        again.close()


def test_zeros_at_the_end_are_a_torn_write(tmp_path: Path) -> None:
    """Z11: a file may have grown before its bytes were written."""
    path = tmp_path / "inbox"
    filled(path)
    path.write_bytes(path.read_bytes() + bytes(20))
    inbox = Inbox(path, "alice")
    assert inbox.positions(NEWS) == {"news": 5}
    inbox.close()


def test_a_wrong_byte_is_damage_or_the_torn_last_record(tmp_path: Path) -> None:
    """Z11: damage is reported, never skipped."""
    path = tmp_path / "inbox"
    ends = filled(path)
    data = path.read_bytes()
    for at in range(len(data)):
        path.write_bytes(data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :])
        if at >= ends[-1] - 5:  # In the last record, behind its length: not to be told from a torn write.
            inbox = Inbox(path, "alice")
            assert inbox.positions(NEWS) == {"news": 4}
            inbox.close()
        else:
            with pytest.raises(StorageDamaged, match="inbox"):
                Inbox(path, "alice")


def test_two_processes_cannot_share_one(tmp_path: Path) -> None:
    inbox = Inbox(tmp_path / "inbox", "alice")
    with pytest.raises(InvalidRequest, match="in use"):
        Inbox(tmp_path / "inbox", "alice")
    inbox.close()
    Inbox(tmp_path / "inbox", "alice").close()


def test_it_belongs_to_one_client(tmp_path: Path) -> None:
    Inbox(tmp_path / "inbox", "alice").close()
    with pytest.raises(InvalidRequest, match="alice"):
        Inbox(tmp_path / "inbox", "bob")


def test_another_file_is_not_taken_for_an_inbox(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("dear diary, today")
    with pytest.raises(StorageDamaged):
        Inbox(tmp_path / "notes", "alice")
    assert (tmp_path / "notes").read_text() == "dear diary, today"


@pytest.mark.parametrize(("boot", "counts"), [("the same", False), ("another", True)])
def test_killed_before_the_hand_over_or_cut_off_from_power(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, boot: str, counts: bool
) -> None:
    """Z10: a killed process has not handed out what it had only announced; after a power cut nobody can know."""
    path = tmp_path / "inbox"
    monkeypatch.setattr("tidings.client.inbox.boot_id", lambda: "the same")
    filled(path)
    path.write_bytes(path.read_bytes()[: -len(HANDED)])
    monkeypatch.setattr("tidings.client.inbox.boot_id", lambda: boot)
    for more in (0, 9):
        inbox = Inbox(path, "alice")
        assert inbox.positions(NEWS) == {"news": more or (5 if counts else 4)}
        inbox.mark(NEWS, "news", 9)
        inbox.close()
    inbox = Inbox(path, "alice")
    assert inbox.positions(NEWS) == {"news": 9}
    inbox.close()


def test_files_of_the_first_form_open(tmp_path: Path) -> None:
    """One record for each mark, which counts as soon as it is there."""
    path = tmp_path / "inbox"
    records = [("alice",), (NEWS, "news", 3), (BOTH, "sport", 2), (NEWS, "news", 5), (BOTH, "", -1)]
    path.write_bytes(MAGIC + b"".join(map(_record, records)))
    for _ in range(2):
        inbox = Inbox(path, "alice")
        assert inbox.positions(NEWS) == {"news": 5}
        assert inbox.positions(BOTH) == {}
        inbox.mark(NEWS, "news", 4)
        inbox.close()


def test_a_large_file_is_replaced_and_stays_locked(tmp_path: Path) -> None:
    path = tmp_path / "inbox"
    inbox = Inbox(path, "alice", compact_bytes=500)
    for offset in range(1, 200):
        inbox.mark(NEWS, "news", offset)
        assert path.stat().st_size <= 500 + 50
    with pytest.raises(InvalidRequest):
        Inbox(path, "alice")
    inbox.close()
    again = Inbox(path, "alice")
    assert again.positions(NEWS) == {"news": 199}
    again.close()
    assert [each.name for each in tmp_path.iterdir()] == ["inbox"]


@contextmanager
def file_size_limit(size_bytes: int) -> Iterator[None]:
    """No file can grow beyond this, as on a disk that is full: a write stops there, the next one fails."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("room", range(0, 24, 3))
def test_a_full_disk_leaves_no_half_record(tmp_path: Path, room: int, caplog: pytest.LogCaptureFixture) -> None:
    """Z11: what does not fit is taken back, and the inbox goes on where there is room again."""
    path = tmp_path / "inbox"
    ends = filled(path)
    inbox = Inbox(path, "alice")
    with file_size_limit(ends[-1] + room):
        for _ in range(3):
            with pytest.raises(StorageError, match=r"could not be written .*: free some space"):
                inbox.mark(("a long name of a topic",), "a long name of a topic", 9)
    assert path.stat().st_size == ends[-1]
    assert inbox.positions(("a long name of a topic",)) == {}
    inbox.mark(NEWS, "news", 9)
    inbox.close()
    again = Inbox(path, "alice")
    assert again.positions(NEWS) == {"news": 9}
    again.close()
    assert not caplog.records


def test_a_disk_too_full_for_another_file_is_no_reason_to_stop(tmp_path: Path) -> None:
    """The file is replaced some other time, and what was written aside does not stay."""
    path = tmp_path / "inbox"
    inbox = Inbox(path, "alice", compact_bytes=200)
    for number in range(6):
        inbox.mark((f"topic {number}",), "news", 1)
    size = path.stat().st_size
    inbox._compact_bytes = 1
    aside = path.with_name("inbox.new")
    aside.mkdir()  # As good as no room.
    inbox.mark(NEWS, "news", 2)
    assert path.stat().st_size > size
    aside.rmdir()
    inbox.close()
    again = Inbox(path, "alice")
    assert again.positions(NEWS) == {"news": 2}
    assert again.positions(("topic 5",)) == {"news": 1}
    again.close()


def test_no_room_for_a_new_inbox(tmp_path: Path) -> None:
    path = tmp_path / "inbox"
    with file_size_limit(4), pytest.raises(StorageError, match="free some space"):
        Inbox(path, "alice")
    assert [each.name for each in tmp_path.iterdir()] == ["inbox"]
    Inbox(path, "alice").close()


def test_what_is_cut_off_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Z11: never in silence."""
    path = tmp_path / "inbox"
    ends = filled(path)
    path.write_bytes(path.read_bytes()[: ends[-1] - 3])
    Inbox(path, "alice").close()
    (record,) = caplog.records
    assert f"ended in {len(HANDED) - 3} bytes of an unfinished record" in record.getMessage()
    assert str(path) in record.getMessage()


@pytest.mark.parametrize("how", ["removed", "replaced", "cut", "grown"])
def test_a_file_that_is_tampered_with_while_it_is_open(tmp_path: Path, how: str) -> None:
    """Marks in a file that nobody will find again would be repeated messages, or lost ones."""
    path = tmp_path / "inbox"
    filled(path)
    older = path.read_bytes()
    inbox = Inbox(path, "alice")
    inbox.mark(NEWS, "news", 8)
    if how == "removed":
        path.unlink()
    elif how == "replaced":
        (tmp_path / "older").write_bytes(older)
        (tmp_path / "older").rename(path)
    elif how == "cut":
        path.write_bytes(older)
    else:
        with path.open("ab") as file:
            file.write(b"more")
    with pytest.raises(StorageDamaged, match="while it was in use"):
        inbox.mark(NEWS, "news", 9)
    with pytest.raises(StorageError):
        inbox.mark(NEWS, "news", 9)
    inbox.close()
