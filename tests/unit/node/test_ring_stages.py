"""Stages whose topics have several owners, between real engines (D3): published all or none and once, whichever leaders
die, and wherever the topics and the query's home are by then."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.node.rings import RingNode, topic_in
from tests.unit.node.test_ring_commits import GROUPS, Commits
from tidings.errors import Fenced, InvalidRequest, OutOfSequence
from tidings.message import Columns
from tidings.protocols.broker import messages
from tidings.protocols.broker.bulk import (
    Discard,
    DiscardDone,
    Extent,
    Publish,
    PublishDone,
    Stage,
    StageDone,
    StageName,
)
from tidings.protocols.ring.commit_messages import Decision, PartPrepared, PreparePart
from tidings.protocols.ring.key_ranges import client_of
from tidings.settings import BrokerSettings


class Writer:
    """A client of a ring of three groups that writes the batches of a query to a topic of each."""

    def __init__(self, size: int = 1, home: int = 0, **settings: Any) -> None:
        self.commits = Commits(size, settings=BrokerSettings(**settings))
        self.ring, self.door, self.topics = self.commits.ring, self.commits.door, tuple(self.commits.topics)
        self.epoch = self.commits.epoch
        self.query = self.query_at(self.commits.leader(home))
        self.numbers: dict[str, int] = {}
        self.last: dict[tuple[str, str], int] = {}

    def query_at(self, node: RingNode, name: str = "query") -> str:
        """A query that has its home with the group of a node."""
        ring = node.engine.ring.ownership
        assert ring is not None
        return next(query for number in range(10_000) if ring.owns_home(client_of(query := f"{name}{number}")))

    def write(self, stage: str, topic: str, *rows: bytes, batch: int = 1, **more: Any) -> Any:
        number = self.numbers[stage] = self.numbers.get(stage, 0) + 1
        after = self.last.get((stage, topic), 0)
        self.last[stage, topic] = number
        fields = (self.query, batch, stage, number, topic, len(rows))
        request = Stage(6, "ann", self.epoch, *fields, **{"after": after} | more)
        return self.ring.ask(self.door, request, Columns(1, "ann", list(rows)))

    def stage(self, stage: str = "s", batch: int = 1, topics: tuple[str, ...] | None = None) -> StageName:
        """A finished stage with two messages for each topic."""
        topics = self.topics if topics is None else topics
        for topic in topics:
            for row in (b"one", b"two"):
                assert self.write(stage, topic, row, batch=batch) == StageDone(6)
        return StageName(stage, 2 * len(topics), topics)

    def request(self, *named: StageName, batch: int = 1, number: int = 7, **more: Any) -> Publish:
        return Publish(number, "ann", self.epoch, self.query, batch, named, **more)

    def publish(self, *named: StageName, batch: int = 1, **more: Any) -> Any:
        return self.ring.ask(self.door, self.request(*named, batch=batch, **more))

    def stored(self) -> list[list[bytes]]:
        return [self.ring.values(topic) if self.commits.has(topic) else [] for topic in self.topics]

    def staged(self) -> int:
        """How many parts of stages there are at all leaders."""
        nodes = [node for node in self.ring.nodes.values() if node.runs and node.engine.log.serving]
        return sum(len(node.engine.broker.machine.stages.stages) for node in nodes)

    def coordinator(self) -> RingNode:
        """The leader of the group that owns the query's home."""
        nodes = (node for node in self.ring.nodes.values() if node.runs and node.engine.log.serving)
        home = client_of(self.query)
        return next(node for node in nodes if (ring := node.engine.ring.ownership) and ring.owns_home(home))


WHOLE = [[b"one", b"two"]] * GROUPS


def test_stages_of_all_groups_are_published_together_and_once() -> None:
    writer = Writer()
    named = writer.stage()
    assert writer.stored() == [[]] * GROUPS
    done = PublishDone(7, False, tuple(Extent(topic, 0, 2) for topic in writer.topics))
    assert writer.publish(named) == done
    assert writer.stored() == WHOLE
    assert writer.publish(named) == PublishDone(7, True, topics=writer.topics)
    assert writer.publish(batch=0) == PublishDone(7, True), "an earlier batch"
    writer.commits.settle()
    assert writer.stored() == WHOLE and writer.staged() == 0


def test_who_writes_a_published_batch_again_hears_it_at_each_owner() -> None:
    writer = Writer()
    writer.publish(writer.stage())
    for topic in writer.topics:
        assert writer.write("again", topic, b"one") == StageDone(6, published=True)
    assert writer.staged() == 0


@pytest.mark.parametrize("home", range(GROUPS))
def test_what_lies_with_the_querys_home_takes_one_record(home: int) -> None:
    writer = Writer(home=home)
    topics = (topic_in(writer.commits.leader(home), "one"), topic_in(writer.commits.leader(home), "two"))
    writer.commits.carried.clear()
    named = writer.stage(topics=topics)
    done = writer.publish(named, StageName("empty", 0))
    assert done == PublishDone(7, False, (Extent(topics[0], 0, 2), Extent(topics[1], 0, 2)))
    assert writer.publish(named) == PublishDone(7, True, topics=topics)
    assert writer.commits.carried == []


def test_a_batch_without_any_message_is_published() -> None:
    writer = Writer()
    assert writer.publish(StageName("empty", 0)) == PublishDone(7, False)
    assert writer.publish(StageName("empty", 0)) == PublishDone(7, True, topics=())
    assert writer.commits.carried == []


def test_a_sink_has_its_home_where_a_topic_of_its_name_lies() -> None:
    writer = Writer()
    topic = writer.topics[2]
    assert writer.write("s", topic, b"one", sink=topic) == StageDone(6)
    done = writer.publish(StageName("s", 1, (topic,)), sink=topic)
    assert done == PublishDone(7, False, (Extent(topic, 0, 1),))
    assert writer.commits.carried == []
    assert writer.publish(sink=topic) == PublishDone(7, True, topics=(topic,))


def test_without_the_topics_all_groups_are_asked() -> None:
    """As older clients do, who do not say either what came before a batch."""
    writer = Writer()
    for topic in writer.topics:
        for row in (b"one", b"two"):
            assert writer.write("s", topic, row, after=None) == StageDone(6)
    done = writer.publish(StageName("s", 2 * GROUPS))
    assert {extent.topic: (extent.first_offset, extent.next_offset) for extent in done.extents} == dict.fromkeys(
        writer.topics, (0, 2)
    )
    assert writer.stored() == WHOLE


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (lambda named: (named, StageName("gone", 1, named.topics)), "is not there"),
        (lambda named: (StageName("s", named.count + 1, named.topics),), "holds 6 messages and 7"),
        (lambda named: (StageName("s", named.count, named.topics[:2]),), "holds 4 messages and 6"),
        (lambda named: (named, named), "name each finished stage once"),
    ],
)
def test_what_is_wrong_with_one_stage_publishes_nothing(wrong: Any, text: str) -> None:
    writer = Writer()
    named = writer.stage()
    refused = writer.publish(*wrong(named))
    assert isinstance(refused, messages.Failed) and refused.number == InvalidRequest.number and text in refused.text
    writer.commits.settle()
    assert writer.stored() == [[]] * GROUPS
    assert not writer.publish(named).repeated
    assert writer.stored() == WHOLE


def test_what_one_owner_refuses_is_published_nowhere() -> None:
    writer = Writer(max_backlog=3)
    last = writer.topics[-1]
    writer.ring.ask(writer.door, messages.Subscribe(3, "ann", writer.epoch, (last,)))
    writer.publish(writer.stage("first"))
    named = writer.stage("second", batch=2)
    refused = writer.publish(named, batch=2)
    assert isinstance(refused, messages.Failed) and "max_backlog" in refused.text
    writer.commits.settle()
    assert writer.stored() == WHOLE


@pytest.mark.parametrize("who", ["coordinator", "owner"])
@pytest.mark.parametrize("until", range(11))
def test_whoever_dies_at_any_step_it_is_all_or_none_and_once(until: int, who: str) -> None:
    """After so many words between the groups one of them dies and comes back; the same is published again."""
    writer = Writer(home=1)
    ring, named = writer.ring, writer.stage()
    writer.commits.until = until
    ring.say(writer.door, b"first", writer.request(named))
    ring.run_until_quiet()
    coordinator = writer.coordinator()
    victims = [node for node in ring.nodes.values() if node is not coordinator] if who == "owner" else [coordinator]
    for node in victims:
        node.kill()
    writer.commits.until = 1 << 62
    ring.pass_ms(500)
    for node in victims:
        node.start(ring.now_ms)
    writer.commits.settle()
    stored = writer.stored()
    assert stored in ([[]] * GROUPS, WHOLE)
    again = writer.publish(named)
    assert again.repeated == bool(stored[0])
    assert writer.stored() == WHOLE
    assert writer.publish(named) == PublishDone(7, True, topics=writer.topics)
    writer.commits.settle()
    assert writer.staged() == 0


def test_a_new_leader_of_a_group_of_three_goes_on() -> None:
    """The decision outlives the one who made it, and the client who asked for it."""
    writer = Writer(size=3)
    ring, named = writer.ring, writer.stage()
    writer.commits.lost = (Decision,)
    ring.say(writer.door, b"first", writer.request(named))
    coordinator = writer.coordinator()
    ring.wait(lambda: any(each.happens for each in coordinator.engine.ring.ownership.commits.open.values()), "decided")
    coordinator.kill()
    writer.commits.lost = ()
    writer.commits.settle()
    assert [values[:2] for values in writer.stored()] == WHOLE


def test_everybody_dies_between_all_steps() -> None:
    writer = Writer()
    ring, named = writer.ring, writer.stage()

    def restart() -> None:
        for node in ring.nodes.values():
            node.kill()
            node.start(ring.now_ms)

    restart()
    assert not writer.publish(named).repeated
    restart()
    assert writer.publish(named) == PublishDone(7, True, topics=writer.topics)
    assert writer.stored() == WHOLE


def test_one_that_comes_while_it_is_decided_is_answered_when_all_can_be_read() -> None:
    writer = Writer()
    ring, named = writer.ring, writer.stage()
    writer.commits.lost = (Decision,)
    ring.say(writer.door, b"first", writer.request(named))
    ring.wait(
        lambda: any(each.happens for each in writer.coordinator().engine.ring.ownership.commits.open.values()), ""
    )
    other = StageName("other", 1, writer.topics[:1])
    ring.say(writer.door, b"second", writer.request(other, number=8))
    for _ in range(20):
        ring.step()
    assert ring.answer(writer.door, b"second", 8) is None
    writer.commits.lost = ()
    ring.wait(lambda: ring.answer(writer.door, b"second", 8), "an answer")
    assert ring.answer(writer.door, b"second", 8) == PublishDone(8, True, topics=writer.topics)
    assert writer.stored() == WHOLE


def test_what_is_about_to_be_published_is_neither_dropped_nor_written_to() -> None:
    writer = Writer()
    ring, named = writer.ring, writer.stage()
    writer.commits.lost = (PartPrepared,)
    ring.say(writer.door, b"first", writer.request(named))
    ring.run_until_quiet()
    assert all(node.engine.ring.ownership.commits.held for node in ring.nodes.values())
    assert ring.ask(writer.door, Discard(9, "ann", writer.epoch, ("s",))) == DiscardDone(9, 0)
    late = Stage(10, "ann", writer.epoch, writer.query, 1, "s", 9, writer.topics[0], 1, after=2)
    ring.say(writer.door, b"late", late, Columns(1, "ann", [b"late"]))
    for _ in range(20):
        ring.step()
    assert not isinstance(ring.answer(writer.door, b"late", 10), StageDone)
    writer.commits.lost = ()
    writer.commits.settle()
    assert writer.stored() == WHOLE


def test_a_fenced_session_publishes_nothing() -> None:
    writer = Writer()
    ring, named = writer.ring, writer.stage()
    writer.commits.lost = (PreparePart,)
    ring.say(writer.door, b"older", writer.request(named))
    ring.run_until_quiet()
    epoch = ring.hello(writer.door, "ann", b"newer")
    writer.commits.lost = ()
    writer.commits.settle()
    assert writer.stored() == [[]] * GROUPS
    refused = writer.publish(named)
    assert isinstance(refused, messages.Failed) and refused.number == Fenced.number
    writer.epoch = epoch
    assert not writer.publish(named).repeated


def test_a_discard_reaches_every_owner_and_counts_each_stage_once() -> None:
    writer = Writer()
    writer.stage("one")
    writer.stage("two", topics=writer.topics[:1])
    assert writer.staged() == GROUPS + 1
    discard = Discard(9, "ann", writer.epoch, ("one", "two", "three"))
    assert writer.ring.ask(writer.door, discard) == DiscardDone(9, 2)
    assert writer.staged() == 0
    assert writer.ring.ask(writer.door, discard) == DiscardDone(9, 0)
    refused = writer.write("one", writer.topics[0], b"three")
    assert isinstance(refused, messages.Failed) and refused.number == OutOfSequence.number


def test_a_batch_that_is_sent_again_is_stored_once() -> None:
    writer = Writer()
    named = writer.stage()
    for number in range(1, 2 * GROUPS + 1):
        topic = writer.topics[(number - 1) // 2]
        fields = (writer.query, 1, "s", number, topic, 1)
        request = Stage(6, "ann", writer.epoch, *fields, after=0 if number % 2 else number - 1)
        assert writer.ring.ask(writer.door, request, Columns(1, "ann", [b"more"])) == StageDone(6)
    writer.publish(named)
    assert writer.stored() == WHOLE


def test_stages_of_other_attempts_go_with_the_next_batch_and_old_ones_by_their_age() -> None:
    writer = Writer(stage_age_ms=20_000)
    writer.stage("lost")
    writer.publish(writer.stage("good"))
    writer.commits.settle()
    assert writer.staged() == 0
    writer.stage("never", batch=2)
    assert writer.staged() == GROUPS
    writer.ring.wait(lambda: not writer.staged(), "what is old goes")


@pytest.mark.parametrize("moves", ["before", "after"])
def test_what_is_staged_and_published_moves_with_its_topic(moves: str) -> None:
    """Groups join between stage and publish, or between a publish and its repetition."""
    writer = Writer()
    ring = writer.ring
    topics = tuple(f"many-{number}" for number in range(24))
    writer.topics = topics
    queries = [f"query-{number}" for number in range(8)]
    names: dict[str, StageName] = {}
    for query in queries:
        writer.query = query
        names[query] = writer.stage(query, topics=topics[:12])
    if moves == "after":
        for query in queries:
            writer.query = query
            assert not writer.publish(names[query]).repeated
        writer.commits.settle()
    before = {topic: ring.owner_of(topic).identity.group for topic in topics}
    homes = {query: writer_home(writer, query) for query in queries}
    for _ in range(2):
        group = ring.add_group(1)
        ring.wait(lambda group=group: ring.owns(group), "it owns something")  # type: ignore[misc]
    ring.pass_ms(3_000)
    assert any(ring.owner_of(topic).identity.group != before[topic] for topic in topics[:12])
    assert any(writer_home(writer, query) != homes[query] for query in queries)
    for query in queries:
        writer.query = query
        assert writer.publish(names[query]).repeated == (moves == "after")
        assert writer.publish(names[query]) == PublishDone(7, True, topics=topics[:12])
    assert writer.stored() == [[b"one", b"two"] * len(queries)] * 12 + [[]] * 12
    writer.commits.settle()
    assert writer.staged() == 0


def test_large_stages_move_in_several_pieces_and_everybody_may_die_meanwhile() -> None:
    writer = Writer()
    ring = writer.ring
    writer.topics = topics = tuple(f"many-{number}" for number in range(16))
    rows = [bytes([65 + number]) * 400_000 for number in range(4)]
    for topic in topics:
        for row in rows:
            assert writer.write("s", topic, row) == StageDone(6)
    before = [ring.owner_of(topic).identity.group for topic in topics]
    for _ in range(2):
        ring.add_group(1)
        for _ in range(100):
            ring.step()
            if ring.now_ms % 200 == 0:
                for node in ring.nodes.values():
                    node.kill()
                    node.start(ring.now_ms)
        ring.wait(lambda: all(map(ring.owns, ring.groups)), "every group owns something")
    assert before != [ring.owner_of(topic).identity.group for topic in topics]
    for node in ring.nodes.values():
        node.kill()
        node.start(ring.now_ms)
    assert not writer.publish(StageName("s", 64, topics)).repeated
    assert writer.stored() == [rows] * 16


def writer_home(writer: Writer, query: str) -> bytes:
    writer.query = query
    return writer.coordinator().identity.group


def test_batches_are_published_while_a_group_joins() -> None:
    writer = Writer()
    ring = writer.ring
    for batch in range(1, 40):
        if batch == 3:
            ring.add_group(1)
        done = writer.publish(writer.stage(f"s{batch}", batch=batch), batch=batch)
        assert not done.repeated and [each.first_offset for each in done.extents] == [2 * batch - 2] * GROUPS
        ring.pass_ms(50)
    ring.wait(lambda: ring.owns(ring.groups[-1]), "the group that joined owns something")
    assert writer.stored() == [[b"one", b"two"] * 39] * GROUPS
