"""Subscriptions whose topics have several owners, between real engines (P7, P8, P13)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.node.rings import RingNode, Rings, topic_in
from tidings.errors import NoSuchTopic, NotSubscribed
from tidings.message import Columns
from tidings.protocols.broker import messages
from tidings.protocols.broker.messages import Acknowledgement, Part, Position, Target
from tidings.protocols.broker.subscriptions import Subscription
from tidings.protocols.ring.parts import parts_of, whole_of
from tidings.settings import BrokerSettings

CREDIT = (1_000, 1 << 20)


class Readers:
    """A ring, and a client at its first node with a topic of each group."""

    def __init__(self, groups: int = 3, size: int = 1, **settings: Any) -> None:
        self.ring = Rings(groups, size, BrokerSettings(**settings))
        self.door = next(iter(self.ring.nodes.values()))
        self.topics = tuple(sorted(topic_in(self.leader(number), f"t{number}") for number in range(groups)))
        self.epoch = self.ring.hello(self.door, "ann")
        self._sequences: dict[str, int] = {}
        self._request = 100
        self.positions: dict[str, int] = {}
        self.stream = 0
        self.peer = b""
        self._looked = 0

    def leader(self, number: int) -> RingNode:
        return self.ring.leader_of(self.ring.groups[number]) or self.ring.groups[number][0]

    def ask(self, kind: Any, *rest: Any) -> Any:
        self._request += 1
        return self.ring.ask(self.door, kind(self._request, "ann", self.epoch, *rest))

    def subscribe(self, start: messages.Start = "now") -> Any:
        return self.ask(messages.Subscribe, self.topics, start)

    def put(self, topics: tuple[str, ...], value: bytes) -> Any:
        targets = tuple(Target(topic, self._sequences.get(topic, 0) + 1) for topic in topics)
        self._request += 1
        put = messages.Put(self._request, "ann", self.epoch, Part(targets, 1))
        done = self.ring.ask(self.door, put, Columns(1, "ann", [value]))
        assert isinstance(done, messages.PutDone), done
        self._sequences.update((target.topic, target.sequence) for target in targets)
        return done

    def parts(self) -> dict[str, Subscription]:
        """What the owner of each topic has of the subscription."""
        found: dict[str, Subscription] = {}
        for topic in self.topics:
            machine = self.ring.owner_of(topic).engine.broker.machine
            readers = list(machine.readers.get(topic, {}).values())
            assert len(readers) <= 1
            found.update((topic, each) for each in readers)
        return found

    def open(self) -> Any:
        """Opens the stream over a connection of its own, with room for everything."""
        self.stream += 1
        self.peer = f"reader {self.stream}".encode()
        start = self._flow(0, 0)
        if isinstance(start, messages.Flowing):
            for each in start.sent:
                self.positions.setdefault(each.topic, each.offset)
            self._flow(*CREDIT)
        return start

    def _flow(self, count: int, size_bytes: int) -> Any:
        self._request += 1
        positions = tuple(Position(topic, offset) for topic, offset in self.positions.items())
        flow = (self._request, "ann", self.epoch, self.topics, self.stream, positions, count, size_bytes)
        return self.ring.ask(self.door, messages.Flow(*flow), peer=self.peer)

    def read(self) -> list[tuple[str, bytes]]:
        """What has come since this was last asked."""
        self.ring.pass_ms(300)
        found: list[tuple[str, bytes]] = []
        heard, self._looked = self.door.heard[self._looked :], len(self.door.heard)
        for who, answer, batches in heard:
            if who == self.peer and isinstance(answer, messages.NotLeader):
                self.open()
                return found + self.read()
            if who != self.peer or not isinstance(answer, messages.Delivery) or answer.stream != self.stream:
                continue
            assert answer.since <= self.positions[answer.topic]
            values = [value for batch in batches for value in batch.values]
            found += [(answer.topic, value) for value in values[self.positions[answer.topic] - answer.since :]]
            self.positions[answer.topic] = max(self.positions[answer.topic], answer.next_offset)
        return found


def test_every_owner_keeps_a_part() -> None:
    """P8: it is listed once, and found again."""
    readers = Readers()
    done = readers.subscribe()
    assert isinstance(done, messages.SubscribeDone) and done.created
    assert done.positions == tuple(Position(topic, 0) for topic in readers.topics)
    parts = readers.parts()
    assert [each.topics for each in parts.values()] == [(topic,) for topic in readers.topics]
    assert {each.whole for each in parts.values()} == {readers.topics}
    assert not readers.subscribe().created
    assert readers.ask(messages.AskSubscriptions).subscriptions == (readers.topics,)


def test_a_message_to_several_topics_comes_once_and_through_the_first() -> None:
    """P13: also if the first one is not among them."""
    readers = Readers()
    first, second, third = readers.topics
    readers.subscribe()
    assert isinstance(readers.open(), messages.Flowing)
    readers.put(readers.topics, b"all")
    readers.put((third, second), b"two")
    readers.put((third,), b"alone")
    assert sorted(readers.read()) == [(first, b"all"), (second, b"two"), (third, b"alone")]


def test_what_was_there_before_comes_through_every_topic() -> None:
    readers = Readers()
    readers.put(readers.topics, b"before")
    readers.subscribe("earliest")
    readers.put(readers.topics, b"after")
    readers.open()
    assert sorted(readers.read()) == sorted(
        [*((topic, b"before") for topic in readers.topics), (readers.topics[0], b"after")]
    )


def test_an_acknowledgement_and_a_transaction_reach_every_part() -> None:
    """P8, P9: each moves its own cursor, and what is said of a topic that is not among them is refused."""
    readers = Readers()
    first, second, third = readers.topics
    readers.subscribe()
    for topic in readers.topics:
        readers.put((topic,), b"one")
    positions = (Position(first, 1), Position(third, 1))
    acknowledgement = Acknowledgement(readers.topics, positions)
    assert isinstance(readers.ask(messages.Ack, acknowledgement), messages.AckDone)
    assert {topic: part.cursors[topic] for topic, part in readers.parts().items()} == {first: 1, second: 0, third: 1}
    taken = Acknowledgement(readers.topics, (Position(second, 1),))
    commit = messages.Commit(99, "ann", readers.epoch, (Part((Target("answers", 1),), 1),), (taken,))
    done = readers.ring.ask(readers.door, commit, Columns(1, "ann", [b"answer"]))
    assert isinstance(done, messages.CommitDone)
    assert {part.cursors[topic] for topic, part in readers.parts().items()} == {1}
    wrong = readers.ask(messages.Ack, Acknowledgement(readers.topics, (Position("other", 1),)))
    assert isinstance(wrong, messages.Failed) and wrong.number == NotSubscribed.number


def test_an_unsubscribe_leaves_no_part_and_mends_what_was_left_half_ended() -> None:
    readers = Readers()
    for _ in range(2):
        readers.subscribe()
        assert isinstance(readers.ask(messages.Unsubscribe, readers.topics), messages.UnsubscribeDone)
        assert readers.parts() == {}
    again = readers.ask(messages.Unsubscribe, readers.topics)
    assert isinstance(again, messages.Failed) and again.number == NotSubscribed.number
    readers.subscribe()
    last = readers.topics[-1:]
    assert isinstance(readers.ask(messages.Unsubscribe, last, readers.topics), messages.UnsubscribeDone)
    assert isinstance(readers.ask(messages.Unsubscribe, readers.topics), messages.UnsubscribeDone)
    assert readers.parts() == {}


def test_a_half_made_subscription_is_completed() -> None:
    readers = Readers()
    first = readers.topics[:1]
    readers.ask(messages.Subscribe, first, "now", readers.topics)
    readers.put(first, b"one")
    done = readers.subscribe()
    assert done.created, "or the client would go on with what it knows of an older one"
    assert list(readers.parts()) == list(readers.topics)
    readers.open()
    assert readers.read() == [(first[0], b"one")]


def test_a_part_that_is_refused_takes_the_others_with_it() -> None:
    """Nothing keeps messages for a reader that was told that there is no subscription."""
    readers = Readers(topics="on-publish")
    readers.put(readers.topics[:2], b"these are there")
    refused = readers.subscribe()
    assert isinstance(refused, messages.Failed) and refused.number == NoSuchTopic.number
    readers.ring.pass_ms(300)
    machines = [node.engine.broker.machine for node in readers.ring.nodes.values()]
    assert not any(machine.subscriptions for machine in machines)


def test_a_lost_part_is_reported_by_the_beat() -> None:
    readers = Readers()
    readers.subscribe()
    readers.open()
    assert (
        readers.ring.ask(readers.door, messages.Beat(50, "ann", readers.epoch, (1,)), peer=readers.peer).missing == ()
    )
    owner = readers.ring.owner_of(readers.topics[1])
    owner.engine.broker.dispatcher.close(readers.parts()[readers.topics[1]].key)
    readers.ring.ask(readers.door, messages.Beat(51, "ann", readers.epoch, (1,)), peer=readers.peer)
    readers.ring.pass_ms(100)
    beat = messages.Beat(52, "ann", readers.epoch, (1,))
    assert readers.ring.ask(readers.door, beat, peer=readers.peer).missing == (1,)


def test_parts_move_with_their_ranges() -> None:
    """P7: a group that joins takes the parts of the topics that it gets; nothing is lost, and nothing comes twice."""
    readers = Readers(1)
    readers.topics = tuple(sorted(f"topic-{number}" for number in range(12)))
    readers.put(readers.topics, b"before")
    readers.subscribe("earliest")
    readers.open()
    assert sorted(readers.read()) == [(topic, b"before") for topic in readers.topics]
    for number in range(2):
        readers.ring.add_group(1)
        group = readers.ring.groups[-1]
        readers.ring.wait(lambda group=group: readers.ring.owns(group), "it owns something")  # type: ignore[misc]
        readers.put(readers.topics, b"all %d" % number)
        readers.put(readers.topics[-2:], b"two %d" % number)
        wanted = [(readers.topics[0], b"all %d" % number), (readers.topics[-2], b"two %d" % number)]
        assert sorted(readers.read()) == sorted(wanted)
        parts = readers.parts()
        assert list(parts) == list(readers.topics)
        assert {each.made[topic] for topic, each in parts.items()} == {1}
    owners = {readers.ring.owner_of(topic).address for topic in readers.topics}
    assert len(owners) > 1
    for node in readers.ring.nodes.values():
        machine = node.engine.broker.machine
        assert all(machine.owns(each.topics[0]) for each in machine.subscriptions.values())


def test_a_leader_that_dies_is_followed() -> None:
    readers = Readers(2, 3)
    readers.subscribe()
    readers.open()
    readers.put(readers.topics, b"one")
    assert readers.read() == [(readers.topics[0], b"one")]
    for topic in readers.topics:
        leader = readers.ring.owner_of(topic)
        if leader is readers.door:
            continue
        leader.kill()
        readers.ring.wait(lambda topic=topic: readers.ring.owner_of(topic), "another leader")  # type: ignore[misc]
        readers.put((topic,), topic.encode())
    found = [*readers.read(), *readers.read()]
    assert found == [(topic, topic.encode()) for topic, _ in found] and found


@pytest.mark.parametrize("topics", [("a",), ("{a}x", "{a}y")])
def test_topics_that_share_a_tag_need_no_parts(topics: tuple[str, ...]) -> None:
    assert parts_of(topics) == (topics,) and whole_of(parts_of(topics)) == ()
    readers = Readers(2)
    readers.topics = topics
    assert readers.subscribe().created
    assert {(each.topics, each.whole) for each in readers.parts().values()} == {(topics, ())}


def test_what_one_topic_had_already_comes_through_the_other_also_after_they_moved() -> None:
    """P7: topics of one tag, and a batch of which one of them takes less, because it knows an id."""
    ring = Rings(1)
    door = next(iter(ring.nodes.values()))
    epoch = ring.hello(door, "ann")
    pairs = [(f"{{t{number}}}a", f"{{t{number}}}b") for number in range(6)]
    for pair in pairs:
        ring.ask(door, messages.Subscribe(10, "ann", epoch, pair))
        first = messages.Put(11, "ann", epoch, Part((Target(pair[0], 1),), 1))
        ring.ask(door, first, Columns(1, "ann", [b"X"], ids=["x"]))
        both = messages.Put(12, "ann", epoch, Part((Target(pair[0], 2), Target(pair[1], 1)), 2))
        ring.ask(door, both, Columns(1, "ann", [b"X", b"Y"], ids=["x", "y"]))
    ring.add_group(1)
    ring.wait(lambda: ring.owns(ring.groups[-1]), "it owns something")
    ring.pass_ms(500)
    assert len({ring.owner_of(first).address for first, _ in pairs}) == 2
    for number, pair in enumerate(pairs, 1):
        positions = tuple(Position(topic, 0) for topic in pair)
        ring.ask(door, messages.Flow(20, "ann", epoch, pair, number, positions, *CREDIT))
        ring.pass_ms(100)
        deliveries = [
            (answer.topic, value)
            for _, answer, batches in door.heard
            if isinstance(answer, messages.Delivery) and answer.stream == number
            for batch in batches
            for value in batch.values
        ]
        assert deliveries == [(pair[0], b"X"), (pair[0], b"Y"), (pair[1], b"X")]
