"""P7: a member that has lost files, or that an older copy took the place of, has no vote: it does not start.

With it and one that was away a majority would know nothing of what was acknowledged last. When the third is back,
everything is there.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import tidings
from tests.integration.replica_group import Node, ReplicaGroup
from tidings.admin.ports import free_address

SETTINGS = {"TIDINGS_SEGMENT_RECORDS_MAX": "40"}


def put(group: ReplicaGroup, first: int, last: int) -> None:
    with tidings.connect(group.address, "ann") as bus:
        for number in range(first, last):
            assert bus.put("news", str(number)).offset == number


def journal_files(node: Node) -> dict[str, bytes]:
    """All but the room that was made ahead, which a start may give back."""
    return {path.name: path.read_bytes().rstrip(b"\0") for path in node.data.iterdir() if path.stem.isdecimal()}


def lose_journal(node: Node, older: Path) -> None:
    for suffix in ("journal", "index", "snapshot"):
        for path in node.data.glob(f"*.{suffix}"):
            path.unlink()


def lose_newest_segment(node: Node, older: Path) -> None:
    newest = max(node.data.glob("*.journal"))
    newest.unlink()
    newest.with_suffix(".snapshot").unlink(missing_ok=True)


def lose_all_but_member(node: Node, older: Path) -> None:
    for path in node.data.iterdir():
        if path.name != "member":
            path.unlink()


def go_back(node: Node, older: Path) -> None:
    shutil.rmtree(node.data)
    shutil.copytree(older, node.data)


@pytest.mark.parametrize(
    ("happen", "said"),
    [
        (lose_journal, "is missing"),
        (lose_newest_segment, "is missing"),
        (lose_all_but_member, "belongs to another folder"),
        (go_back, "is a copy of the folder"),
    ],
)
def test_who_has_lost_what_it_said_does_not_vote(
    tmp_path: Path, happen: Callable[[Node, Path], None], said: str
) -> None:
    with ReplicaGroup(tmp_path / "group", settings=SETTINGS) as group:
        faulty, away, third = group.nodes
        put(group, 0, 40)
        group.wait_until_level()
        shutil.copytree(faulty.data, tmp_path / "older")
        away.kill()
        put(group, 40, 80)
        faulty.kill()
        third.kill()
        happen(faulty, tmp_path / "older")
        before = journal_files(faulty)
        faulty.launch()
        away.launch()
        away.wait_until_ready()
        assert faulty.wait() != 0
        assert said in faulty.log[-1], faulty.log
        assert "join its group again" in faulty.log[-1]
        assert journal_files(faulty) == before
        third.start()
        with tidings.connect(group.address, "bob") as bus:
            found = [message.text for batch in bus.read("news") for message in batch]
        assert found == [str(number) for number in range(80)]
        put(group, 80, 81)


def test_a_copy_that_somebody_vouches_for_takes_the_members_place(tmp_path: Path) -> None:
    """With --trust-copy: a folder that was moved to another disk while its member stood still."""
    with ReplicaGroup(tmp_path / "group", settings=SETTINGS) as group:
        put(group, 0, 40)
        moved, away, _ = group.nodes
        moved.kill()
        go_back_to = tmp_path / "older"
        shutil.copytree(moved.data, go_back_to)
        go_back(moved, go_back_to)
        moved._command = (*moved._command, "--trust-copy")
        moved.start()
        away.kill()
        put(group, 40, 60)
        moved.kill()
        moved._command = moved._command[:-1]
        moved.start()  # It counts as the original from then on.
        put(group, 60, 61)


def test_a_copy_of_a_group_of_one_is_taken_as_it_is(tmp_path: Path) -> None:
    """There is nobody whom it could join again, and nobody else has been promised anything."""
    address = free_address()
    node = Node(tmp_path / "one", address, "--group", address).start()
    with tidings.connect(address, "ann") as bus:
        bus.put("news", "kept")
    node.kill()
    shutil.copytree(tmp_path / "one", tmp_path / "copy")
    copy = Node(tmp_path / "copy", address).start()
    with tidings.connect(address, "bob") as bus:
        assert [message.text for batch in bus.read("news") for message in batch] == ["kept"]
    copy.kill()
