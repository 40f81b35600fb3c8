"""Bodies in a ring (P8, P9, P12): once to each node, however many read them there, and to every reader in order."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from random import Random
from typing import Any

import pytest

from tests.unit.node.ring_readers import Reader, Sent, Traffic, readers_at
from tests.unit.node.rings import RingNode, topic_in
from tidings.message import Columns
from tidings.node.ring.body_cache import FETCH_AFTER_MS, FETCH_AGAIN_MS, WAIT_MS_MAX, BodyCache
from tidings.node.ring.contents import CAST_BYTES_MAX, MISSED_MS, Contents
from tidings.node.ring.interest import SILENCE_MS_MAX
from tidings.protocols.broker import messages
from tidings.protocols.ring.messages import Between, Bodies, FetchBodies, Ref, Shown
from tidings.settings import Dissemination
from tidings.wire import codec
from tidings.wire.ring import encode_message

WAYS: list[Dissemination] = ["scribe", "gossip"]
SHAPES = [(1, 3), (3, 1), (2, 3)]


class Scene:
    """A ring, a topic of its first group, and a writer at the owner."""

    def __init__(self, groups: int, size: int, way: Dissemination = "scribe") -> None:
        self.ring = Traffic(groups, size, way)
        self.ring.pass_ms(2_000)  # Until the virtual nodes have their places.
        leader = self.ring.leader_of(self.ring.groups[0])
        assert leader is not None
        self.owner = leader
        self.topic = topic_in(leader)
        self.others = [node for node in self.ring.nodes.values() if node is not leader]
        self.epoch = self.ring.hello(leader, "writer")
        self.put(b"first")

    def put(self, *values: bytes) -> None:
        done = self.ring.put(self.owner, "writer", self.epoch, self.topic, *values)
        assert isinstance(done, messages.PutDone), done

    def read(self, *nodes: RingNode, each: int = 1) -> list[Reader]:
        readers = readers_at(self.ring, self.topic, *nodes, each=each)
        for reader in readers:
            reader.look()
        assert not self.ring.count(Shown), "Who catches up is served straight."
        self.ring.sent.clear()
        return readers


def carries_bodies(sent: Sent) -> bool:
    """What brings bodies by itself: from virtual node to virtual node, and to the nodes of a group."""
    return isinstance(sent.message, Bodies | Between)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("groups", "size"), SHAPES)
def test_a_body_crosses_once_to_each_node_and_every_reader_has_it(groups: int, size: int, way: Dissemination) -> None:
    """P8, P9: ten readers at each node, and each node is sent the body once."""
    scene = Scene(groups, size, way)
    readers = scene.read(*scene.ring.nodes.values(), each=10)
    values = [b"marker %d." % number for number in range(5)]
    for value in values:
        scene.put(value)
    assert all(reader.look()[-5:] == values for reader in readers)
    assert not scene.ring.count(FetchBodies)
    assert scene.ring.count(Shown) == 5 * 10 * len(scene.others)
    crossings = scene.ring.crossings(values[-1])
    if way == "scribe":  # The owner itself may be on the way down a tree whose root is another virtual node.
        assert {crossings.pop(node.address) for node in scene.others} == {1}
        assert sum(crossings.values()) <= 1
    else:  # Gossip has redundant links, which are fewer than readers.
        assert all(1 <= crossings[node.address] <= groups for node in scene.others)


@pytest.mark.parametrize(("groups", "size"), SHAPES)
def test_readers_at_one_node_get_the_bodies_with_their_deliveries(groups: int, size: int) -> None:
    scene = Scene(groups, size)
    readers = scene.read(scene.others[-1], each=3)
    scene.put(b"marker.")
    assert all(reader.look()[-1] == b"marker." for reader in readers)
    assert scene.ring.crossings(b"marker.") == {scene.others[-1].address: 3}
    assert not scene.ring.count(Shown)


def test_old_messages_go_straight_to_anyone_who_catches_up() -> None:
    scene = Scene(1, 3)
    scene.put(b"marker.")
    readers = scene.read(*scene.others)
    assert [reader.values for reader in readers] == [[b"first", b"marker."]] * 2


@pytest.mark.parametrize("groups", [1, 3])
def test_large_bodies_go_with_their_deliveries(groups: int) -> None:
    scene = Scene(groups, 3 if groups == 1 else 1)
    readers = scene.read(*scene.others)
    overhead = len(codec.encode(Columns(1, "writer", [bytes(CAST_BYTES_MAX - 100)]))) - (CAST_BYTES_MAX - 100)
    scene.put(bytes(CAST_BYTES_MAX - overhead))
    assert scene.ring.count(Shown) == 2
    scene.put(bytes(CAST_BYTES_MAX - overhead + 1))
    assert scene.ring.count(Shown) == 2
    assert [len(value) for value in readers[0].look()[-2:]] == [
        CAST_BYTES_MAX - overhead,
        CAST_BYTES_MAX - overhead + 1,
    ]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("groups", "size"), SHAPES)
def test_a_lost_body_is_fetched_from_its_owner(groups: int, size: int, way: Dissemination) -> None:
    """P12: what a multicast loses costs a moment, and no message."""
    scene = Scene(groups, size, way)
    readers = scene.read(*scene.others, each=2)
    scene.ring.lose = carries_bodies
    scene.put(b"marker.")
    assert all(reader.look()[-1] != b"marker." for reader in readers)
    scene.ring.lose = lambda sent: isinstance(sent.message, Between)
    scene.ring.pass_ms(FETCH_AFTER_MS + 20)
    assert all(reader.look()[-1] == b"marker." for reader in readers)
    assert scene.ring.count(FetchBodies) == len(scene.others)
    # The way over the virtual nodes seems to be broken: for a while nothing is sent that way, and so nothing is missed.
    asked = scene.ring.count(FetchBodies)
    scene.put(b"next.")
    assert all(reader.look()[-1] == b"next." for reader in readers)
    assert scene.ring.count(FetchBodies) == asked
    scene.ring.lose = lambda sent: False
    scene.ring.pass_ms(max(MISSED_MS, 10_000))
    scene.ring.sent.clear()
    scene.put(b"whole again.")
    assert all(reader.look()[-1] == b"whole again." for reader in readers)
    assert scene.ring.count(Shown) == len(readers)


def test_a_body_is_asked_for_again_until_it_comes() -> None:
    scene = Scene(1, 3)
    readers = scene.read(*scene.others)
    scene.ring.lose = carries_bodies
    scene.put(b"marker.")
    scene.ring.pass_ms(FETCH_AFTER_MS + 2 * FETCH_AGAIN_MS + 50)
    assert scene.ring.count(FetchBodies) == 3 * len(readers)
    scene.ring.lose = lambda sent: False
    scene.ring.pass_ms(FETCH_AGAIN_MS + 20)
    assert all(reader.look()[-1] == b"marker." and not reader.sent_away for reader in readers)


def test_a_connection_whose_body_never_comes_is_given_up_and_the_client_comes_again() -> None:
    scene = Scene(1, 3)
    readers = scene.read(*scene.others)
    scene.ring.lose = carries_bodies
    scene.put(b"marker.")
    scene.ring.pass_ms(WAIT_MS_MAX - 20)
    assert not any(reader.look()[-1:] == [b"marker."] or reader.sent_away for reader in readers)
    scene.ring.pass_ms(40)
    for reader in readers:
        reader.look()
    assert all(reader.sent_away == 1 for reader in readers)
    scene.ring.pass_ms(100)  # The new stream begins where the old one stood, and catches up straight.
    assert all(reader.look()[-1] == b"marker." for reader in readers)


def test_answers_wait_behind_a_delivery_whose_body_is_missing() -> None:
    """P12: nothing overtakes on one connection."""
    scene = Scene(1, 3)
    readers = scene.read(*scene.others)
    scene.ring.lose = carries_bodies
    scene.put(b"marker.")
    for reader in readers:
        scene.ring.say(reader.node, reader.peer, messages.Beat(77, reader.name, reader.epoch, ()))
    scene.ring.run_until_quiet()
    assert all(scene.ring.answer(reader.node, reader.peer, 77) is None for reader in readers)
    scene.ring.lose = lambda sent: False
    scene.ring.pass_ms(FETCH_AFTER_MS + FETCH_AGAIN_MS)
    for reader in readers:
        kinds = [type(each) for who, each, _ in reader.node.heard if who == reader.peer]
        assert kinds[-2:] == [messages.Delivery, messages.BeatDone]


def test_only_stored_batches_can_be_fetched() -> None:
    """A reference is looked up before anything is read: nobody reads a journal at any address."""
    scene = Scene(1, 3)
    topic = scene.owner.engine.broker.machine.topics[scene.topic]
    right = Ref(scene.topic, 0, topic.addresses[0], topic.sizes[0])
    wrong = (
        Ref("other", 0, right.address, right.size_bytes),
        Ref(scene.topic, 1, right.address, right.size_bytes),
        Ref(scene.topic, 0, right.address + 1, right.size_bytes),
        Ref(scene.topic, 0, right.address, right.size_bytes + 1),
        Ref(scene.topic, 1 << 60, 0, 64),
    )
    asker = scene.others[0].address
    scene.owner.engine.receive(scene.ring.now_ms, b"node", encode_message(asker, FetchBodies((*wrong, right))))
    scene.ring.run_until_quiet()
    (answer,) = [each for each in scene.ring.sent if isinstance(each.message, Bodies)]
    assert answer.message == Bodies(scene.owner.address, (right,)) and len(answer.frames) == 3


@pytest.mark.parametrize("way", WAYS)
def test_a_virtual_node_subscribes_to_what_the_nodes_of_its_group_read(way: Dissemination) -> None:
    scene = Scene(2, 3, way)
    group = scene.ring.groups[1]
    leader = scene.ring.leader_of(group)
    assert leader is not None and leader.engine.ring.leading is not None
    follower = next(node for node in group if node is not leader)
    (reader,) = scene.read(follower)
    leading, virtual_node = leader.engine.ring.leading, leader.engine.ring.leading.virtual_node
    assert list(virtual_node.topics) == [scene.topic] and leading.interests.proxies(scene.topic) == (follower.address,)
    assert scene.owner.engine.ring.leading is not None and not scene.owner.engine.ring.leading.virtual_node.topics
    for connection in follower.engine.ring.proxy.connections:
        follower.engine.ring.proxy.give_up(connection)
    scene.ring.pass_ms(SILENCE_MS_MAX + 3_000)
    assert not virtual_node.topics and not leading.interests.topics
    reader.look()
    assert reader.sent_away == 1
    scene.ring.pass_ms(100)
    assert list(virtual_node.topics) == [scene.topic]


def test_names_that_no_topic_can_have_interest_nobody() -> None:
    scene = Scene(2, 1, "gossip")
    node = scene.others[0]
    epoch = scene.ring.hello(node, "joker")
    scene.ring.say(node, b"joker", messages.Flow(5, "joker", epoch, ("new\nline",), 1, (), 10, 1_000))
    scene.ring.pass_ms(1_500)
    assert node.engine.ring.leading is not None and not node.engine.ring.leading.interests.topics


def storm(seed: int, way: Dissemination, groups: int, size: int) -> Iterator[list[Reader]]:
    """Writes of all sizes while bodies and questions get lost, then calm; yields the readers after each step."""
    rng = Random(seed)
    scene = Scene(groups, size, way)
    readers = scene.read(*scene.ring.nodes.values(), each=2)
    yield readers
    for step in range(40):
        loss = rng.choice((0.0, 0.3, 1.0))
        scene.ring.lose = lambda sent, loss=loss: (
            isinstance(sent.message, Bodies | Between | FetchBodies) and rng.random() < loss
        )
        for number in range(rng.randrange(3)):
            scene.put(b"%d %d " % (step, number) + bytes(rng.choice((10, 1_000, 50_000))))
        reader = rng.choice(readers)
        scene.ring.say(reader.node, reader.peer, messages.Beat(1_000 + step, reader.name, reader.epoch, ()))
        scene.ring.pass_ms(rng.choice((10, 50, 400)))
        yield readers
    scene.ring.lose = lambda sent: False
    for _ in range(8):
        scene.ring.pass_ms(500)
        yield readers
    stored = scene.ring.values(scene.topic)
    for reader in readers:
        assert reader.values == stored


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("groups", "size"), [(1, 3), (3, 1)])
@pytest.mark.parametrize("seed", range(4))
def test_every_reader_gets_everything_once_and_in_order(seed: int, groups: int, size: int, way: Dissemination) -> None:
    """P9, P12: whatever is lost on the way of bodies."""
    weather(storm(seed, way, groups, size))


def weather(storm: Iterator[list[Reader]]) -> list[Reader]:
    """Looks at every reader after every step."""
    readers: list[Reader] = []
    for readers in storm:
        for reader in readers:
            reader.look()
    return readers


def test_the_storms_are_storms() -> None:
    """Bodies are cast in them, fetched, and missed for too long; else the tests above would prove little."""
    sent_away = fetched = shown = 0
    for seed in range(4):
        readers = weather(storm(seed, "scribe", 1, 3))
        nodes = {reader.node.address: reader.node for reader in readers}.values()
        fetched += sum(node.engine.ring.proxy.body_cache.fetched for node in nodes)
        sent_away += sum(reader.sent_away for reader in readers)
        ring = readers[0].ring
        assert isinstance(ring, Traffic)
        shown += ring.count(Shown)
    assert shown > 100 and fetched > 10 and sent_away > 0


# The checks above, with faults planted.


def test_a_body_cache_that_lets_deliveries_overtake_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    stand = BodyCache._stand

    def overtake(self: BodyCache, connection: int, waiting: Any) -> None:
        if waiting.missing:
            stand(self, connection, waiting)
        else:
            self._answer(connection, waiting.frames)

    monkeypatch.setattr(BodyCache, "_stand", overtake)
    with pytest.raises(AssertionError, match="was expected"):
        weather(chain.from_iterable(storm(seed, "scribe", 1, 3) for seed in range(4)))


def test_a_proxy_that_never_asks_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Contents, "fetch", lambda self, owner, refs: None)
    with pytest.raises(AssertionError):
        test_a_lost_body_is_fetched_from_its_owner(1, 3, "scribe")


def test_a_proxy_that_lets_answers_overtake_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BodyCache, "has_line", lambda self, connection: False)
    with pytest.raises(AssertionError):
        test_answers_wait_behind_a_delivery_whose_body_is_missing()
