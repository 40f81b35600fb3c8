"""What happens to a replica group besides death: sleep, a cut network, lost disks, long absence, new machines."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.cuttable import CuttableNetwork
from tests.integration.group_load import Load
from tests.integration.replica_group import Node, ReplicaGroup, ask, is_rejected, wait_for
from tidings.protocols.broker.messages import AskTopics, Topics
from tidings.transport.zeromq import DealerLink
from tidings.wire.codec import decode_answer, encode


def stored(answer: object) -> int:
    """How many messages a member says that there are."""
    assert isinstance(answer, Topics)
    return sum(topic.next_offset for topic in answer.topics)


def test_a_leader_that_sleeps_is_fenced(tmp_path: Path) -> None:
    """P6, Z9: what it was asked in its sleep it answers by `NotLeader` or by the state of now, not by an older one."""
    with ReplicaGroup(tmp_path) as group:
        with Load(lambda: group.address) as load:
            for _ in range(3):
                load.wait_for(100)
                sleeper = group.leader()
                link = DealerLink(sleeper.address)
                link.send([encode(AskTopics(1))])
                assert wait_for("an answer", lambda link=link: link.receive(100)) is not None
                sleeper.freeze()
                group.leader(among=lambda node, sleeper=sleeper: node is not sleeper)
                load.wait_for(300)
                known = stored(
                    ask(group.leader(lambda node, sleeper=sleeper: node is not sleeper).address, AskTopics(1))
                )
                for number in range(2, 12):
                    link.send([encode(AskTopics(number))])
                sleeper.thaw()
                answered = 0
                while answered < 10:
                    frames = link.receive(10_000)
                    assert frames, f"only {answered} of 10 questions were answered"
                    answer = decode_answer(frames[0])
                    if answer.request:
                        answered += 1
                        assert is_rejected(answer) or stored(answer) >= known, "an old state was told"
                link.close()
            load.wait_for(100)
        load.check()
        group.wait_until_level()


@pytest.mark.parametrize("way", ["isolated", "mute", "deaf"])
def test_a_leader_that_is_cut_off(tmp_path: Path, way: str) -> None:
    """P6: the majority goes on, the minority refuses, and anyone who was cut off catches up."""
    with CuttableNetwork() as network, ReplicaGroup(tmp_path, network=network) as group:
        with Load(lambda: group.address) as load:
            load.wait_for(100)
            lonely = group.leader()
            group.cut_off(lonely, way)
            group.leader(among=lambda node: node is not lonely)
            load.wait_for(300)
            assert is_rejected(ask(lonely.address, AskTopics(1))), "a minority answers"
            network.mend()
            load.wait_for(100)
        load.check()
        group.wait_until_level()


def test_every_member_loses_its_disk_one_after_the_other(tmp_path: Path) -> None:
    """P6: each comes back as a new number, listens, then votes; at last no founder's disk is left, and all is there."""
    with ReplicaGroup(tmp_path) as group:
        with Load(lambda: group.address) as load:
            for node in list(group.nodes):
                load.wait_for(200)
                node.kill()
                node.lose_disk()
                node.start()
                members = group.wait_for_voters(3)
            load.wait_for(200)
        load.check()
        assert sorted(member.number for member in members.members) == [4, 5, 6]
        group.wait_until_level()


def first_journal(node: Node) -> str:
    """The name of the oldest segment that a member still has."""
    return min(path.name for path in node.data.glob("*.journal"))


def test_a_member_that_was_away_for_long_takes_over_files(tmp_path: Path) -> None:
    """P6: what it missed is gone as values; it copies the files of another, then leads as well as anybody."""
    small = {
        "TIDINGS_SEGMENT_BYTES_MAX": "40000",
        "TIDINGS_SEGMENT_RECORDS_MAX": "200",
        "TIDINGS_RETAIN_BYTES": "40000",
    }
    with ReplicaGroup(tmp_path, settings=small) as group:
        with Load(lambda: group.address) as load:
            load.wait_for(200)
            away = group.followers()[0]
            last = max(path.name for path in away.data.glob("*.journal"))
            away.kill()
            present = [node for node in group.nodes if node is not away]
            wait_for("old segments to go", lambda: all(first_journal(node) > last for node in present))
            away.start()
            group.wait_for_voters(3)
            load.wait_for(200)
            wait_for("the old files to go", lambda: first_journal(away) > last)
            while (leader := group.leader()) is not away:
                leader.kill()
                leader.start()
            load.wait_for(200)
        load.check()
        group.wait_until_level()


def replace_all(folder: Path, count: int, batch: int) -> None:
    """Three other machines take the place of the founders, one by one, while messages flow."""
    with ReplicaGroup(folder) as group:
        with Load(lambda: group.address, batch=batch) as load:
            for node in list(group.nodes):
                load.wait_for(count // 6)
                group.join()
                load.wait_for(count // 6)
                group.remove(node)
            load.wait_for(max(0, count - load.count))
        load.check()
        members = group.wait_for_voters(3)
        assert [member.number for member in members.members] == [4, 5, 6]


def test_all_machines_are_replaced_while_messages_flow(tmp_path: Path) -> None:
    """P6: 60,000 messages; anyone who publishes and subscribes notices nothing."""
    replace_all(tmp_path, 60_000, batch=1_000)


@pytest.mark.soak
def test_all_machines_are_replaced_while_two_million_messages_flow(tmp_path: Path) -> None:
    """P6: the same with 2,000,000."""
    replace_all(tmp_path, 2_000_000, batch=5_000)
