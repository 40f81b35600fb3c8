"""Rings of real processes: nodes die, groups come and go, and no user of the ring loses anything."""

from __future__ import annotations

from pathlib import Path

import pytest

import tidings
from tests.integration.group_load import check_subscriber
from tests.integration.ring_load import RingLoad
from tidings.admin.trial import Trial


def disturb(
    folder: Path,
    *,
    groups: int,
    topics: int,
    clients: int,
    leaders_killed: int,
    between: int,
) -> RingLoad:
    """Kills leaders of groups, adds a group and removes one, under load; what everybody was told and saw is right."""
    with Trial(folder) as trial:
        trial.up(groups, 3)
        with RingLoad(lambda: trial.addresses, topics, clients, clients) as load:
            load.wait_for(between)
            killed = []
            for group in list(trial.record.groups)[:leaders_killed]:
                killed.append(trial.kill(trial.leader(group).name).name)
                load.wait_for(between)
            newcomer = trial.add()
            load.wait_for(between)
            busy = {group.group for group in trial.view().groups if group.topics}
            trial.remove("a" if leaders_killed < groups else "b")
            load.wait_for(between)
            for name in killed:
                if name in [node.name for node in trial.record.nodes]:
                    trial.start(name)
            load.wait_for(between)
        load.check()
        view = trial.view()
        assert view.covered, view.problems
        assert newcomer in trial.record.groups and len(view.groups) == groups
        assert sum(group.topics for group in view.groups) == topics
        # Where groups stand on the circle is drawn: of two that are left, one may own next to nothing.
        busy |= {group.group for group in view.groups if group.topics}
        assert len(busy) > 1, "one group has owned every topic all along, so nothing was shared"
    print(
        f"{load.count:,} messages in {topics} topics from {clients} publishers, each to two of {clients} readers: all "
        f"came once and in order; the longest put took {load.longest_wait:.2f} s ({load.longest_topic})"
    )
    return load


@pytest.mark.timeout(600)
def test_a_leader_dies_a_group_comes_and_another_goes(tmp_path: Path) -> None:
    """P7 to P10, P12: 2 groups of 3, 20 topics, 6 publishers and 6 subscribers; all is delivered once and in order."""
    disturb(tmp_path / "ring", groups=2, topics=20, clients=6, leaders_killed=1, between=200)


@pytest.mark.soak
def test_every_group_loses_its_leader_while_groups_come_and_go(tmp_path: Path) -> None:
    """P7 to P10, P12: 4 groups of 3, 200 topics, 40 publishers and 40 subscribers."""
    disturb(tmp_path / "ring", groups=4, topics=200, clients=40, leaders_killed=4, between=2_000)


def test_a_ring_goes_on_after_every_node_was_killed(tmp_path: Path) -> None:
    """P8, P10: the groups find each other again, and everything that was acknowledged is there."""
    with Trial(tmp_path / "ring") as trial:
        trial.up(3, 1)
        with RingLoad(lambda: trial.addresses, topics=12, publishers=3, subscribers=4) as load:
            load.wait_for(100)
        load.check()
        before = sorted((group.group, group.ranges, group.topics) for group in trial.view().groups)
        trial.kill_all()
        trial.up()
        after = sorted((group.group, group.ranges, group.topics) for group in trial.view().groups)
        assert after == before
        with tidings.connect(trial.bus, "auditor") as bus:
            for topic, offsets in load.offsets.items():
                bus.subscribe(topic, start="earliest")
                rows = iter(lambda topic=topic: bus.get(topic), None)
                check_subscriber(offsets, [(message.offset, message.text) for message in rows])


def planted(load: RingLoad, fault: str) -> None:
    """Makes a load look as if something had gone wrong."""
    (key, rows), *_ = [(key, rows) for key, rows in load.seen.items() if rows]
    if fault == "lost":
        rows.pop()
    elif fault == "doubled":
        rows.append(rows[-1])
    elif fault == "moved":
        load.offsets[key[1]][rows[0][1]] = 99
    else:
        rows.append((len(rows), "stranger:0"))


@pytest.mark.parametrize("fault", ["lost", "doubled", "moved", "strange"])
def test_the_check_finds_what_is_planted(fault: str) -> None:
    load = RingLoad(list, topics=4, publishers=1, subscribers=2)
    for topic in load.topics:
        for number in range(3):
            load.offsets[topic][f"publisher0:{number}"] = number
    for (_, topic), rows in load.seen.items():
        rows += [(offset, value) for value, offset in load.offsets[topic].items() if offset is not None]
    load.check()
    planted(load, fault)
    with pytest.raises(AssertionError):
        load.check()
