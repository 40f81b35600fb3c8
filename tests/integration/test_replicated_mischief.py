"""A replica group to which anything happens, in any order: a walk by lot, which the number of the test repeats."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.integration.cuttable import CuttableNetwork
from tests.integration.group_load import Load
from tests.integration.replica_group import Node, ReplicaGroup

STEPS = 20


class Mischief:
    """What may happen to a group at work. At the end of each everybody runs again."""

    def __init__(self, group: ReplicaGroup, network: CuttableNetwork, load: Load, rng: random.Random) -> None:
        self._group = group
        self._network = network
        self._load = load
        self._rng = rng

    def happen(self) -> None:
        self._load.wait_for(self._rng.choice([1, 50, 500]))
        deaths = (self._leader_dies, self._follower_dies, self._two_die, self._all_die, self._one_ends)
        others = (self._one_sleeps, self._one_loses_its_disk, self._one_is_cut_off)
        self._rng.choice((*deaths, *others))()

    def _anybody(self) -> Node:
        return self._rng.choice([self._group.leader(), *self._group.followers()])

    def _die(self, *nodes: Node) -> None:
        for node in nodes:
            node.kill()
        for node in nodes:
            node.launch()
        for node in nodes:
            node.wait_until_ready()

    def _leader_dies(self) -> None:
        leader = self._group.leader()
        leader.kill()
        if self._rng.random() < 0.5:
            self._load.wait_for(self._rng.choice([1, 100]))
        leader.start()

    def _follower_dies(self) -> None:
        self._die(self._group.followers()[0])

    def _two_die(self) -> None:
        self._die(*self._rng.sample(self._group.nodes, 2))

    def _all_die(self) -> None:
        self._die(*self._group.nodes)

    def _one_ends(self) -> None:
        node = self._anybody()
        assert node.stop() == 0, node.log
        node.start()

    def _one_sleeps(self) -> None:
        node = self._anybody()
        node.freeze()
        self._load.wait_for(self._rng.choice([1, 300]))
        node.thaw()

    def _one_loses_its_disk(self) -> None:
        self._group.wait_for_voters(3)
        node = self._rng.choice(self._group.nodes)
        node.kill()
        node.lose_disk()
        node.start()
        self._group.wait_for_voters(3)

    def _one_is_cut_off(self) -> None:
        self._group.cut_off(self._anybody(), self._rng.choice(["isolated", "mute", "deaf"]))
        self._load.wait_for(self._rng.choice([1, 300]))
        self._network.mend()


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(20))
def test_anything_happens(tmp_path: Path, seed: int) -> None:
    """P6, Z9, Z10, Z11: small segments, so that files are sealed, removed and taken over all the time."""
    rng = random.Random(seed)
    small = {
        "TIDINGS_SEGMENT_BYTES_MAX": "100000",
        "TIDINGS_SEGMENT_RECORDS_MAX": str(rng.choice([60, 300, 2_000])),
        "TIDINGS_DROP_ACKNOWLEDGED": rng.choice(["true", "false"]),
    }
    with CuttableNetwork() as network, ReplicaGroup(tmp_path, settings=small, network=network) as group:
        with Load(lambda: group.address, batch=rng.choice([10, 100, 1_000])) as load:
            mischief = Mischief(group, network, load, rng)
            for _ in range(STEPS):
                mischief.happen()
            load.wait_for(200)
        load.check()
        group.wait_until_level()
