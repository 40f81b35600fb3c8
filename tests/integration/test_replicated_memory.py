"""A member whose folder was exchanged for an older copy of itself is told so by the others, and ends."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import tidings
from tests.integration.replica_group import Node, ReplicaGroup, wait_for

TOPIC = "kept"


def put(group: ReplicaGroup, first: int, count: int) -> None:
    with tidings.connect(group.address, "publisher", timeout=1.0, retries=60) as bus:
        for number in range(first, first + count):
            assert bus.put(TOPIC, str(number)).offset == number


def stored(group: ReplicaGroup) -> list[str]:
    with tidings.connect(group.address, timeout=1.0, retries=60) as bus:
        return [value.decode() for batch in bus.read(TOPIC) for value in batch.values]


def put_back(copy: Path, folder: Path) -> None:
    """The bytes of a copy in the files that are there: no file is another one than before."""
    for path in folder.iterdir():
        if not (copy / path.name).exists():
            path.unlink()
    for path in copy.iterdir():
        with (folder / path.name).open("r+b" if (folder / path.name).exists() else "wb") as file:
            file.write(path.read_bytes())
            file.truncate()


def check_it_ends(node: Node) -> None:
    """It says what is wrong, what to do, and ends."""
    node.launch()
    wait_for("its end", lambda: node.has_ended)
    assert node.wait() == 1, node.log
    assert "knows less than member" in node.log[-1]
    assert node.log[-1].endswith("give it an empty folder, and let it join again.\n")


@pytest.mark.parametrize("who", ["leader", "follower"])
@pytest.mark.parametrize("others", ["stay", "restart"])
def test_an_older_copy_of_a_folder_does_not_vote(tmp_path: Path, who: str, others: str) -> None:
    """P6: what was acknowledged with its vote stays, no matter who has been away meanwhile."""
    with ReplicaGroup(tmp_path / "group") as group:
        put(group, 0, 10)
        group.wait_until_level()
        victim = group.leader() if who == "leader" else group.followers()[0]
        assert victim.stop() == 0
        shutil.copytree(victim.data, tmp_path / "copy")
        victim.start()
        if who == "leader":
            while (leader := group.leader()) is not victim:
                leader.stop()
                leader.start()
        away = next(node for node in group.followers() if node is not victim)
        away.kill()
        put(group, 10, 30)
        assert victim.stop() == 0
        put_back(tmp_path / "copy", victim.data)
        if others == "restart":
            witness = next(node for node in group.nodes if node not in (victim, away))
            assert witness.stop() == 0
            witness.start()
        check_it_ends(victim)
        away.start()
        assert stored(group) == [str(number) for number in range(40)]
        victim.lose_disk()
        victim.start()
        members = group.wait_for_voters(3)
        assert max(member.number for member in members.members) == 4
        assert stored(group) == [str(number) for number in range(40)]
