"""The inbox file: marks that survive, torn ends that are cut off, damage that is reported."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidings.client.inbox import Inbox
from tidings.errors import InvalidRequest, StorageDamaged

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
        if at >= ends[-2] + 4:  # In the last record, behind its length: not to be told from a torn write.
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
