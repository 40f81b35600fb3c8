"""Stages: stored, not visible, published once (D3). Request by request on the simulated disk."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.unit.node.desk import Desk, values
from tidings.errors import (
    Fenced,
    InvalidRequest,
    InvalidTopic,
    LimitReached,
    NoSuchTopic,
    OutOfSequence,
    Overloaded,
    ProtocolError,
)
from tidings.message import Columns
from tidings.protocols.broker import bulk, commands, messages
from tidings.protocols.broker.bulk import Discard, Extent, Publish, PublishDone, Read, Stage, StageDone, StageName
from tidings.protocols.broker.commands import decode_command
from tidings.protocols.broker.staged import StagesState
from tidings.protocols.broker.stages import Stages
from tidings.settings import BrokerSettings, JournalSettings
from tidings.wire import codec

SMALL = JournalSettings(segment_bytes_max=2_000, segment_records_max=20)
DAY_MS = 24 * 3600 * 1000


@pytest.fixture
def desk() -> Desk:
    desk = Desk()
    desk.hello("alice")
    return desk


def stage(
    desk: Desk,
    name: str,
    number: int,
    *rows: bytes,
    batch: int = 0,
    topic: str = "news",
    query: str = "q",
    sink: str = "",
    **more: Any,
) -> Any:
    request = Stage(6, "alice", desk.epochs["alice"], query, batch, name, number, topic, len(rows), sink)
    return desk.ask(request, Columns(1, "alice", list(rows), **more))


def publish(
    desk: Desk, *stages: tuple[str, int], batch: int = 0, query: str = "q", once: bool = False, sink: str = ""
) -> Any:
    named = tuple(StageName(*each) for each in stages)
    return desk.ask(Publish(7, "alice", desk.epochs["alice"], query, batch, named, once, sink))


def stored(desk: Desk, topic: str = "news") -> list[bytes]:
    held = desk.engine.broker.machine.topics[topic]
    desk.say([codec.encode(Read(8, topic, held.first_offset, held.next_offset, 10_000, 1_000_000))])
    return [value for _, _, batches in desk.heard() for columns in batches for value in columns.values]


def test_what_is_staged_becomes_visible_when_it_is_published_and_once(desk: Desk) -> None:
    assert stage(desk, "a", 1, b"1", b"2") == StageDone(6)
    assert stage(desk, "a", 2, b"3") == StageDone(6)
    assert stage(desk, "b", 1, b"4", topic="art") == StageDone(6)
    assert "news" not in desk.engine.broker.machine.topics
    assert desk.ask(messages.AskStatus(9)).numbers["stages"] == 2
    desk.now_ms = 5_000
    done = PublishDone(7, False, (Extent("art", 0, 1), Extent("news", 0, 3)))
    assert publish(desk, ("b", 1), ("a", 3)) == done
    assert stored(desk) == [b"1", b"2", b"3"] and stored(desk, "art") == [b"4"]
    assert publish(desk, ("b", 1), ("a", 3)) == PublishDone(7, True, topics=("art", "news"))
    assert stage(desk, "again", 1, b"1") == StageDone(6, published=True)
    assert desk.ask(messages.AskStatus(9)).numbers["stages"] == 0
    assert list(desk.engine.broker.machine.topics["news"].times) == [5_000, 5_000]


def test_a_request_that_is_sent_again_stores_nothing_twice(desk: Desk) -> None:
    for _ in range(2):
        stage(desk, "a", 1, b"1")
    for _ in range(2):
        stage(desk, "a", 2, b"2")
    stage(desk, "a", 1, b"1")
    assert publish(desk, ("a", 2)).extents == (Extent("news", 0, 2),)
    assert stored(desk) == [b"1", b"2"]


def test_published_messages_reach_subscribers_at_once(desk: Desk) -> None:
    desk.subscribe("alice", "news")
    desk.flow("alice", "news")
    stage(desk, "a", 1, b"1")
    named = (StageName("a", 1),)
    desk.say([codec.encode(Publish(7, "alice", desk.epochs["alice"], "q", 0, named))])
    desk.commit()
    assert values(desk.heard()) == [b"1"]


def test_leftovers_go_with_the_next_batch_of_their_query(desk: Desk) -> None:
    stage(desk, "failed", 1, b"x")
    stage(desk, "good", 1, b"y")
    stage(desk, "ahead", 1, b"z", batch=1)
    stage(desk, "other", 1, b"o", query="r")
    publish(desk, ("good", 1))
    assert list(desk.engine.broker.machine.stages.stages) == ["ahead", "other"]
    assert stored(desk) == [b"y"]


def test_a_batch_below_the_last_changes_nothing(desk: Desk) -> None:
    publish(desk, batch=5)
    assert stage(desk, "a", 1, b"x", batch=4) == StageDone(6, published=True)
    assert publish(desk, ("a", 1), batch=4) == PublishDone(7, True)
    assert publish(desk, batch=6) == PublishDone(7, False)


@pytest.mark.parametrize(
    ("stages", "error"),
    [
        ([("b", 1)], InvalidRequest),
        ([("a", 3)], InvalidRequest),
        ([("a", 2), ("a", 2)], InvalidRequest),
        ([("other", 1)], InvalidRequest),
    ],
)
def test_a_publish_that_does_not_fit_changes_nothing(desk: Desk, stages: list, error: type) -> None:
    stage(desk, "a", 1, b"1", b"2")
    stage(desk, "other", 1, b"1", query="r")
    assert publish(desk, *stages).number == error.number
    assert "news" not in desk.engine.broker.machine.topics
    assert publish(desk, ("a", 2), ("without messages", 0)).extents == (Extent("news", 0, 2),)


def test_what_a_stage_refuses(desk: Desk) -> None:
    stage(desk, "a", 1, b"1")
    assert stage(desk, "a", 3, b"3").number == OutOfSequence.number
    assert stage(desk, "new", 2, b"3").number == OutOfSequence.number
    assert stage(desk, "a", 2, b"2", batch=1).number == InvalidRequest.number
    assert stage(desk, "a", 0, b"2").number == ProtocolError.number
    assert stage(desk, "a", 2, b"2", batch=-1).number == ProtocolError.number
    assert stage(desk, "a", 2).number == ProtocolError.number
    assert stage(desk, "a", 2, b"x", topic="").number == InvalidTopic.number
    assert stage(desk, "", 1, b"x").number == InvalidRequest.number
    assert (
        desk.ask(Stage(6, "alice", 9, "q", 0, "a", 2, "news", 1), Columns(1, "alice", [b"x"])).number == Fenced.number
    )
    assert desk.ask(Stage(6, "alice", 1, "q", 0, "a", 2, "news", 1)).number == ProtocolError.number
    assert desk.ask(Publish(6, "alice", 9, "q", 0, ())).number == Fenced.number
    assert desk.ask(Publish(6, "alice", 1, "q", -1, ())).number == ProtocolError.number
    assert stage(desk, "a", 2, b"2") == StageDone(6)


def test_limits() -> None:
    desk = Desk(BrokerSettings(stages_max=2, stage_bytes_max=400, queries_max=1, topics_max=1, max_backlog=3))
    desk.hello("alice")
    stage(desk, "a", 1, b"1")
    assert stage(desk, "a", 2, b"x" * 300).number == LimitReached.number
    stage(desk, "b", 1, b"1", topic="art")
    assert stage(desk, "c", 1, b"1").number == LimitReached.number
    assert publish(desk, ("a", 1), ("b", 1)).number == LimitReached.number  # Two topics, and one may be.
    assert publish(desk, ("a", 1)).extents == (Extent("news", 0, 1),)
    assert publish(desk, query="r").number == LimitReached.number
    desk.subscribe("alice", "news", start="earliest")
    stage(desk, "d", 1, b"1", b"2", b"3", batch=1)
    assert publish(desk, ("d", 3), batch=1).number == Overloaded.number
    desk.ack("alice", "news", 1)
    assert publish(desk, ("d", 3), batch=1).extents == (Extent("news", 1, 4),)


def test_topics_only_by_subscription() -> None:
    desk = Desk(BrokerSettings(topics="on-subscribe"))
    desk.hello("alice")
    assert stage(desk, "a", 1, b"1").number == NoSuchTopic.number


def test_ids_count_when_the_stage_is_published(desk: Desk) -> None:
    """Z13 holds for staged messages too."""
    desk.put("alice", "news", 1, b"old", ids=["1"])
    stage(desk, "a", 1, b"again", b"new", b"plain", ids=["1", "2", None])
    stage(desk, "a", 2, b"new again", ids=["2"])
    assert publish(desk, ("a", 4)).extents == (Extent("news", 1, 3),)
    assert stored(desk) == [b"old", b"new", b"plain"]


def test_stages_and_queries_grow_old(desk: Desk) -> None:
    stage(desk, "a", 1, b"1")
    publish(desk, query="job", once=True)
    publish(desk, query="stream")
    desk.engine.tick(desk.now_ms + DAY_MS)
    desk.commit()
    machine = desk.engine.broker.machine
    assert list(machine.stages.stages) == ["a"] and list(machine.stages.queries) == ["job", "stream"]
    desk.engine.tick(desk.now_ms + DAY_MS + 10_000)
    desk.commit()
    assert not machine.stages.stages and list(machine.stages.queries) == ["stream"]
    desk.engine.tick(desk.now_ms + 91 * DAY_MS)
    desk.commit()
    assert not machine.stages.queries


def test_stages_can_be_discarded(desk: Desk) -> None:
    stage(desk, "a", 1, b"1")
    stage(desk, "b", 1, b"1")
    assert desk.ask(Discard(8, "alice", 1, ("a", "a", "x"))) == bulk.DiscardDone(8, 1)
    assert publish(desk, ("a", 1)).number == InvalidRequest.number
    assert publish(desk, ("b", 1)).extents == (Extent("news", 0, 1),)


@pytest.mark.parametrize("published_first", [False, True])
def test_everything_survives_restarts_and_snapshots(published_first: bool) -> None:
    desk = Desk(journal=SMALL)
    desk.hello("alice")
    stage(desk, "a", 1, b"1", ids=["one"])
    stage(desk, "a", 2, b"2", batch=0)
    if published_first:
        publish(desk, ("a", 2))
    for number in range(60):  # Several segments, so that the snapshot has to say it.
        desk.put("alice", "noise", 1 + number, b"x" * 50)
    desk.restart()
    if not published_first:
        assert publish(desk, ("a", 2)).extents == (Extent("news", 0, 2),)
        desk.restart()
    assert publish(desk, ("a", 2)).repeated
    assert stored(desk) == [b"1", b"2"]
    for number in range(60, 120):
        desk.put("alice", "noise", 1 + number, b"x" * 50)
    desk.restart()
    assert stored(desk) == [b"1", b"2"]


def test_staged_bodies_keep_their_segment_and_are_carried_forward() -> None:
    """What is staged is live for retention: its segment stays, or the body moves, and publishing finds it."""
    desk = Desk(BrokerSettings(retain_bytes=200), SMALL)
    desk.hello("alice")
    stage(desk, "a", 1, b"kept")
    first = desk.engine.broker.machine.stages.stages["a"].batches[0].address
    for number in range(120):
        desk.put("alice", "noise", 1 + number, b"x" * 50)
        if number % 20 == 0:
            desk.now_ms += 6_000
            desk.engine.tick(desk.now_ms)
            desk.commit()
    moved = desk.engine.broker.machine.stages.stages["a"].batches[0].address
    assert moved > first, "the body was carried forward"
    assert desk.engine.journal.segments[0].base_address > first, "its first segment is gone"
    desk.restart()
    publish(desk, ("a", 1))
    assert stored(desk) == [b"kept"]


def test_a_published_batch_in_an_old_segment_keeps_that_segment() -> None:
    desk = Desk(BrokerSettings(retain_bytes=100_000), SMALL)
    desk.hello("alice")
    desk.put("alice", "news", 1, b"first")
    stage(desk, "a", 1, b"staged long ago")
    for number in range(60):
        desk.put("alice", "noise", 1 + number, b"x" * 50)
    desk.put("alice", "news", 2, b"second")
    publish(desk, ("a", 1))
    desk.put("alice", "news", 3, b"third")
    for number in range(60, 200):
        desk.put("alice", "noise", 1 + number, b"x" * 50)
        desk.now_ms += 500
        desk.engine.tick(desk.now_ms)
        desk.commit()
    wanted = [b"first", b"second", b"staged long ago", b"third"]
    assert stored(desk) == wanted
    desk.restart()
    assert stored(desk) == wanted


def test_age_counts_from_the_publishing() -> None:
    desk = Desk(BrokerSettings(retain_age_ms=60_000), SMALL)
    desk.hello("alice")
    stage(desk, "a", 1, b"staged long ago")
    for number in range(60):
        desk.put("alice", "noise", 1 + number, b"x" * 50)
    desk.now_ms += 3_600_000
    publish(desk, ("a", 1))
    stage(desk, "b", 1, b"new", batch=1)
    publish(desk, ("b", 1), batch=1)
    desk.engine.tick(desk.now_ms + 6_000)
    desk.commit()
    assert stored(desk) == [b"staged long ago", b"new"]


def test_each_sink_of_a_query_has_batches_of_its_own() -> None:
    """D3: the same batch of a query may go to several places, and to each of them once, also after a restart."""
    desk = Desk(journal=SMALL)
    desk.hello("alice")
    for life in range(2):
        for number, topic in enumerate(("news", "art")):
            repeated = life > 0
            assert stage(desk, f"a{number}", 1, b"1", b"2", topic=topic, sink=topic).published is repeated
            done = publish(desk, (f"a{number}", 2), sink=topic)
            assert (done.repeated, done.topics) == (repeated, (topic,) if repeated else None)
        for _ in range(30):  # Into a segment of its own, so that the snapshot has to know it.
            desk.ask(Discard(9, "alice", desk.epochs["alice"], ("x",)))
        desk.restart()
    assert [stored(desk, topic) for topic in ("news", "art")] == [[b"1", b"2"]] * 2
    assert stage(desk, "b", 1, b"3", batch=1, topic="news", sink="news") == StageDone(6)
    refused = publish(desk, ("b", 1), batch=1, sink="art")
    assert refused.number == InvalidRequest.number, "the stage is another sink's"
    assert publish(desk, ("b", 1), batch=1, sink="news").repeated is False


def test_a_batch_from_before_sinks_were_told_apart_counts_for_all_of_them() -> None:
    """D3: a folder of an earlier version is read, and nothing that it knows to be written is written again."""
    old = msgspec.msgpack.encode(["publish", "alice", 1, "q", 5, [], False])
    command = decode_command(old)
    assert isinstance(command, commands.Publish)
    assert command.sink == ""
    stages = Stages()
    stages.restore(msgspec.msgpack.decode(msgspec.msgpack.encode([[], {"q": [5, 1_000, False]}]), type=StagesState))
    assert stages.is_published("q", 5, "news")
    assert not stages.is_published("q", 6, "news")
    assert stages.topics_of("q", 5) is None


def test_a_finished_stage_names_its_topics_if_they_are_few() -> None:
    """Only a ring needs them, and it can do without."""
    many = tuple(f"topic{number}" for number in range(bulk.TOPICS_NAMED_MAX + 1))
    assert bulk.name_stage("s", 2, many[:2]) == StageName("s", 2, many[:2])
    assert bulk.name_stage("s", 65, many) == StageName("s", 65)
