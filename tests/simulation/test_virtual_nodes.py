"""Virtual nodes of groups in simulated time: whatever happened, once it is over every virtual node finds the right
group (P9).

Leaders change, messages get lost, groups join one by one and leave, and the ring is cut in two. The check is that every
live virtual node takes the group that stands first at or after a point for its root; a virtual node that does not heal
is the planted fault which it has to find.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from tidings.protocols.chord.identifiers import key_of
from tidings.protocols.ring import multicast
from tidings.protocols.ring.virtual_node import Dissemination, VirtualNode
from tidings.settings import ChordSettings
from tidings_lab.simulated_service.virtual_nodes import Group, VirtualNodeWorld, group_name, wrong_answers

POINTS = [key_of(f"point {number}") for number in range(12)]
FIND_MS = 11_000
"""Two attempts of a lookup."""
REST_MS = 20_000
SEEDS = range(3)


class Unhealing(VirtualNode):
    """The planted fault: nobody looks for virtual nodes that Chord has skipped."""

    def _heal(self) -> None:
        pass


def grow(world: VirtualNodeWorld, seed: int, count: int) -> None:
    """From a ring of one, each knowing one of those before it."""
    for number in range(count):
        contacts = [world.rng.choice(world.live).descriptor] if number else []
        world.add(group_name(number, seed), contacts).side = 0
        world.run(world.rng.randrange(3_000))


def cut(world: VirtualNodeWorld) -> None:
    for group in world.groups.values():
        group.side = world.rng.randrange(2)


def mend(world: VirtualNodeWorld) -> None:
    for group in world.groups.values():
        group.side = 0


def answers(world: VirtualNodeWorld) -> list[str]:
    """Asks in a quiet network: a lookup whose confirmations get lost may go astray in the best of rings."""
    loss, world.loss = world.loss, 0.0
    wrong = wrong_answers(world, POINTS, FIND_MS)
    world.loss = loss
    return wrong


def assert_right(world: VirtualNodeWorld) -> None:
    wrong = answers(world)
    assert not wrong, f"{len(wrong)} wrong answers: {wrong[:3]}"


@pytest.mark.parametrize("seed", SEEDS)
def test_a_ring_grows_from_one_and_shrinks_to_one(seed: int) -> None:
    world = VirtualNodeWorld(seed, loss=0.05)
    grow(world, seed, 1)
    assert_right(world)
    grow(world, seed, 20)
    world.run(REST_MS)
    assert_right(world)
    while len(world.live) > 1:
        for group in world.rng.sample(world.live, min(len(world.live) - 1, 7)):
            world.leave(group)
            world.run(world.rng.randrange(4_000))
        world.run(REST_MS)
        assert_right(world)


@pytest.mark.parametrize("seed", SEEDS)
def test_leaders_change_while_groups_join_and_messages_get_lost(seed: int) -> None:
    world = VirtualNodeWorld(seed, loss=0.1)
    grow(world, seed, 3)
    for number in range(3, 20):
        world.add(group_name(number, seed), [world.rng.choice(world.live).descriptor]).side = 0
        silent = world.rng.choice(world.live)
        world.halt(silent)
        world.run(world.rng.randrange(5_000))
        world.lead(silent)
        if world.rng.random() < 0.3:
            world.lead(world.rng.choice(world.live))
    world.run(REST_MS)
    assert_right(world)


def cut_and_mended(seed: int, make: type[VirtualNode]) -> list[str]:
    world = VirtualNodeWorld(seed, loss=0.02, make=make)
    grow(world, seed, 16)
    world.run(REST_MS)
    assert_right(world)
    cut(world)
    world.run(REST_MS)
    for group in world.rng.sample(world.live, 3):
        world.lead(group)
        world.run(2_000)
    mend(world)
    world.run(REST_MS)
    return answers(world)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_ring_that_was_cut_in_two_grows_together_again(seed: int) -> None:
    assert not cut_and_mended(seed, VirtualNode)


def test_without_healing_a_ring_that_was_cut_stays_two_rings() -> None:
    assert all(cut_and_mended(seed, Unhealing) for seed in SEEDS)


@pytest.mark.parametrize("seed", SEEDS)
def test_all_leaders_may_change_at_once(seed: int) -> None:
    world = VirtualNodeWorld(seed, loss=0.02)
    grow(world, seed, 14)
    world.run(REST_MS)
    groups = world.live
    for group in groups:
        world.halt(group)
    world.run(world.rng.randrange(10_000))
    for group in groups:
        world.lead(group)
    world.run(REST_MS)
    assert_right(world)


@pytest.mark.parametrize("seed", SEEDS)
def test_two_rings_of_which_one_virtual_node_knows_the_other_become_one(seed: int) -> None:
    world = VirtualNodeWorld(seed)
    grow(world, seed, 8)
    here = world.live
    for number in range(8, 16):
        contacts = [world.groups[group_name(number - 1, seed)].descriptor] if number > 8 else []
        world.add(group_name(number, seed), contacts).side = 0
        world.run(2_000)
    world.run(REST_MS)
    assert answers(world), "They were meant to be two rings."
    world.rng.choice(here).directory.learn_descriptor(world.rng.choice(world.live[8:]).descriptor)
    world.run(2 * REST_MS)
    assert_right(world)


def test_the_same_seed_is_the_same_world() -> None:
    counts = []
    for _ in range(2):
        world = VirtualNodeWorld(7, loss=0.1)
        grow(world, 7, 8)
        world.run(5_000)
        counts.append((world.delivered, world.size_bytes, [group.received for group in world.live]))
    assert counts[0] == counts[1]


# Multicast.


def publish_all(world: VirtualNodeWorld, publishers: list[Group], topics: list[str], count: int, every_ms: int) -> None:
    for number in range(count):
        for topic in topics:
            publisher = world.rng.choice(publishers)
            if publisher.is_live:
                world.publish(publisher, topic, b"%d" % number)
        world.run(every_ms)


@pytest.mark.parametrize("dissemination", ["scribe", "gossip"])
@pytest.mark.parametrize("seed", range(2))
def test_at_rest_every_subscribed_virtual_node_gets_every_message_once(seed: int, dissemination: Dissemination) -> None:
    world = VirtualNodeWorld(seed, dissemination=dissemination)
    grow(world, seed, 12)
    world.run(REST_MS)
    topics = ["news", "{shop}orders", "{shop}refunds"]
    wanted = []
    for topic in topics:
        for group in world.rng.sample(world.live, 8):
            world.subscribe(group, topic)
            wanted += [(group.name, topic, b"%d" % number) for number in range(20)]
    world.run(10_000)
    publish_all(world, world.live, topics, 20, every_ms=100)
    world.run(10_000)
    assert sorted(world.arrived) == sorted(wanted)


class Forgetful(multicast.Multicast):
    """The planted fault: it does not remember what came."""

    def _read(self, letter: Any) -> Any:
        self._numbers[letter.topic] = {} if letter.topic in self._numbers else self._numbers.pop(letter.topic, {})
        return super()._read(letter)


class ForgetfulVirtualNode(VirtualNode):
    def _upper_layers(self) -> list[Any]:
        return [Forgetful(self.name, self._scribe, self._rng.getrandbits(53))]


def doubles(seed: int, dissemination: Dissemination, make: type[VirtualNode] = VirtualNode) -> tuple[int, int]:
    """Messages that came twice, and how many came, while a lot went wrong."""
    world = VirtualNodeWorld(seed, loss=0.1, dissemination=dissemination, make=make, chord=ChordSettings(hop_ms=150))
    grow(world, seed, 10)
    world.run(REST_MS)
    topics = [f"topic {number}" for number in range(4)]
    lives: Counter[bytes] = Counter()
    counted: Counter[tuple[bytes, int, str, bytes]] = Counter()
    for number in range(12):
        for group in world.live:
            for topic in topics:
                world.subscribe(group, topic)
        for topic in topics:
            world.publish(world.rng.choice(world.live), topic, b"%d" % number)
        # Who leads again subscribes again, and may well get what the leader before it got.
        lucky = world.rng.choice(world.live)
        world.run(world.rng.randrange(2_000))
        counted.update((name, lives[name], topic, body) for name, topic, body in world.arrived)
        world.arrived.clear()
        world.lead(lucky)
        lives[lucky.name] += 1
    world.run(REST_MS)
    counted.update((name, lives[name], topic, body) for name, topic, body in world.arrived)
    return sum(count > 1 for count in counted.values()), len(counted)


@pytest.mark.parametrize("dissemination", ["scribe", "gossip"])
@pytest.mark.parametrize("seed", range(2))
def test_no_message_comes_twice_whatever_happens(seed: int, dissemination: Dissemination) -> None:
    twice, count = doubles(seed, dissemination)
    assert not twice
    assert count > 100, "Hardly anything came at all."


def test_the_check_for_doubles_finds_them() -> None:
    assert any(doubles(seed, "scribe", ForgetfulVirtualNode)[0] for seed in range(4))
