"""A member that is gone for long is removed, and taken back with its folder when it is started again."""

from __future__ import annotations

from pathlib import Path

import tidings
from tests.integration.replica_group import ReplicaGroup, wait_for

SETTINGS = {"TIDINGS_REPLICA_GONE_MS": "2500", "TIDINGS_REPLICAS_MIN": "2"}


def test_a_member_that_was_killed_is_removed_and_comes_back_under_a_new_number(tmp_path: Path) -> None:
    with ReplicaGroup(tmp_path / "group", settings=SETTINGS) as group:
        with tidings.connect(group.address, "ann") as bus:
            assert bus.put("news", "one").offset == 0
        leader = wait_for("a leader", lambda: next((node for node in group.nodes if node.serves()), None))
        victim = next(node for node in group.nodes if node is not leader)
        number = victim.number
        victim.kill()

        def voters() -> list[int]:
            known = leader.members()
            return [each.number for each in known.members if each.role == "voter"] if known is not None else []

        wait_for("its removal", lambda: number not in voters())
        with tidings.connect(group.address, "ann") as bus:
            assert bus.put("news", "two").offset == 1
        victim.start()
        assert wait_for("its return", lambda: 4 in voters()) and number not in voters()
        assert victim.number == 4
        victim.kill()
        victim.start()  # Its folder says who it is now; on a slow machine it may have been gone for too long again.
        wait_for("three voters", lambda: len(voters()) == 3 and victim.number in voters())
        assert victim.number >= 4
        leader.kill()
        wait_for("another leader", lambda: any(node.running and node.serves() for node in group.nodes))
        with tidings.connect(group.address, "bob") as bus:
            bus.subscribe("news", start="earliest")
            assert [bus.get("news", timeout=10).text for _ in range(2)] == ["one", "two"]  # type: ignore[union-attr]
