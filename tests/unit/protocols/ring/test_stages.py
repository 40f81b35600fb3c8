"""Stages in one group's state (D3): what it keeps of them, holds of a commit over several groups, and remembers."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.unit.protocols.ring.test_commits import ONE, OTHER, TWO, Story
from tidings.errors import Fenced, InvalidRequest, LimitReached, Moved, OutOfSequence, Overloaded
from tidings.protocols.broker.bulk import Extent, StageName
from tidings.protocols.broker.commands import BatchWrite, Discard, Open, Publish, Stage, Subscribe, Write
from tidings.protocols.broker.machine import Machine
from tidings.protocols.broker.messages import Target
from tidings.protocols.broker.ownership import Grown
from tidings.protocols.broker.staged import Query
from tidings.protocols.ring.commands import Claim, Drop, HandOff
from tidings.protocols.ring.commit_commands import (
    BeginCommit,
    DecideCommit,
    EndCommit,
    HoldPart,
    Publishing,
    ResolvePart,
    StagedPart,
)
from tidings.protocols.ring.key_ranges import WHOLE, KeyRanges, client_of, point_of, spots, without
from tidings.protocols.ring.policy import RingPolicy
from tidings.settings import BrokerSettings

QUERY = client_of("query")
NAMED = StageName("s", 3, ("news", "sport"))
PUBLISHING = Publishing("ann", "query", 1, "", False, (NAMED,))
DAY_MS = 24 * 3600 * 1000


def part(*topics: str, **changes: Any) -> HoldPart:
    """What a group with these topics is to hold."""
    publishing = msgspec.structs.replace(PUBLISHING, ranges=spots(map(point_of, topics)), **changes)
    return HoldPart(ONE, QUERY, 1, (), (), publishing)


def stage(number: int, topic: str, after: int | None, count: int = 1, **more: Any) -> Stage:
    fields: dict[str, Any] = {"query": "query", "batch": 1, "stage": "s"} | more
    return Stage("ann", 1, number=number, topic=topic, count=count, size_bytes=10, after=after, **fields)


def writing(ranges: KeyRanges = (WHOLE,), **settings: Any) -> Story:
    """A group with a stage of three messages, of which one is for another topic than the rest."""
    story = Story(ranges, **settings)
    story.apply(Open("ann", b"token", False))
    for number, topic, after in ((1, "news", 0), (2, "sport", 0), (3, "news", 1)):
        assert story.apply(stage(number, topic, after)) is False
    return story


def begun() -> Story:
    story = writing()
    story.apply(BeginCommit(ONE, QUERY, 1, (OTHER,), PUBLISHING))
    return story


# What is kept.


def test_each_topic_has_its_own_batches_which_follow_each_other() -> None:
    story = writing()
    assert [each.name for each in story.machine.stages.stages.values()] == ["s\nnews", "s\nsport"]
    assert story.again(stage(3, "news", 1)) is False, "it is there already"
    story.refuse(stage(5, "news", 4), OutOfSequence)
    story.refuse(stage(5, "art", 4), OutOfSequence)
    story.refuse(stage(4, "art", 0, batch=2), InvalidRequest)
    assert story.apply(stage(4, "news", None)) is False, "older clients do not say what came before"


def test_the_limits_are_those_of_the_whole_stage_here() -> None:
    story = writing(stage_bytes_max=3 * (10 + 128), stages_max=1)
    story.refuse(stage(4, "art", 0), LimitReached)
    story.refuse(stage(1, "news", 0, stage="t"), LimitReached)


def test_what_a_broker_has_staged_is_taken_apart_when_it_becomes_a_rings() -> None:
    machine = Machine(BrokerSettings(), RingPolicy())
    machine.apply(Open("ann", b"token", False), 1_000, 0)
    for number, topic in ((1, "news"), (2, "sport"), (3, "news")):
        machine.apply(stage(number, topic, None), 1_000, number * 1_000)
    machine.apply(Claim((WHOLE,)), 1_000, 9_000)
    assert machine.apply(stage(3, "news", 1), 1_000, 9_000) is False
    assert machine.apply(stage(4, "news", 3), 1_000, 9_000) is False
    named = StageName("s", 4, ("news", "sport"))
    extents = machine.apply(Publish("ann", 1, "query", 1, (named,), False), 1_000, 9_000)
    assert extents == (Extent("news", 0, 3), Extent("sport", 0, 1))


def test_one_record_publishes_what_is_all_here() -> None:
    story = writing()
    publish = Publish("ann", 1, "query", 1, (NAMED,), False)
    assert story.apply(publish) == (Extent("news", 0, 2), Extent("sport", 0, 1))
    assert story.again(publish) is None
    assert story.again(stage(1, "news", 0, stage="late")) is True
    assert story.machine.stages.topics_of("query", 1) == ("news", "sport")


# The home of the query.


def test_the_decision_is_what_remembers_the_batch() -> None:
    story = begun()
    assert not story.machine.stages.is_published("query", 1)
    decide = DecideCommit(ONE, QUERY, True, ("news", "sport"))
    assert story.apply(decide, 2_000) is True
    assert story.machine.stages.queries == {"query": Query(1, 2_000, False, ("news", "sport"))}
    assert story.again(decide) is True
    story.apply(EndCommit(ONE, QUERY))
    assert not story.commits.open
    story.refuse(BeginCommit(TWO, QUERY, 1, (OTHER,), PUBLISHING), Moved)
    assert story.again(Publish("ann", 1, "query", 1, (NAMED,), False)) is None


def test_what_does_not_happen_is_not_remembered() -> None:
    story = begun()
    assert story.apply(DecideCommit(ONE, QUERY, False)) is False
    assert not story.machine.stages.queries
    assert story.again(DecideCommit(ONE, QUERY, True)) is False
    story.apply(BeginCommit(TWO, QUERY, 1, (OTHER,), PUBLISHING))


def test_a_sink_publishes_one_batch_after_the_other_whichever_way() -> None:
    story = begun()
    story.refuse(BeginCommit(TWO, QUERY, 1, (OTHER,), PUBLISHING), Moved)
    story.refuse(Publish("ann", 1, "query", 1, (NAMED,), False), Moved)
    story.apply(stage(1, "news", 0, query="other", stage="t"))
    assert story.apply(Publish("ann", 1, "other", 1, (StageName("t", 1, ("news",)),), False)) is not None


def test_only_the_home_begins_for_a_session_that_is_the_newest_it_knows() -> None:
    begin = BeginCommit(ONE, QUERY, 1, (OTHER,), PUBLISHING)
    writing(without((WHOLE,), spots([point_of("query")]))).refuse(begin, Moved)
    story = writing()
    story.apply(begin)
    story.apply(Open("ann", b"newer", False))
    story.refuse(DecideCommit(ONE, QUERY, True), Fenced)
    assert story.apply(DecideCommit(ONE, QUERY, False)) is False
    story.refuse(BeginCommit(TWO, QUERY, 1, (OTHER,), PUBLISHING), Fenced)


def test_the_queries_have_a_bound_where_they_have_their_home() -> None:
    story = writing(queries_max=1)
    story.machine.stages.queries["first"] = Query(1, 1_000, False, ())
    story.refuse(BeginCommit(ONE, QUERY, 1, (OTHER,), PUBLISHING), LimitReached)
    story.refuse(Publish("ann", 1, "query", 1, (NAMED,), False), LimitReached)


# The owners.


def test_a_part_is_held_as_it_is_and_published() -> None:
    story = writing()
    story.apply(part("news"))
    story.again(part("news"))
    held = story.commits.held[QUERY]
    assert held.staged == (StagedPart("s", 2, ("news",)),) and held.topics == ("news",)
    assert "news" not in story.machine.topics
    grown = Grown(("news",), (), (Extent("news", 0, 2),))
    assert story.apply(ResolvePart(ONE, QUERY, True)) == grown
    assert story.again(ResolvePart(ONE, QUERY, True)) == Grown((), (), grown.extents)
    assert story.machine.topics["news"].next_offset == 2
    assert story.machine.stages.is_published("query", 1), "who writes it again hears so here, too"


def test_what_is_held_stays_until_it_is_decided() -> None:
    story = writing()
    story.apply(part("news"))
    assert story.machine.stages.discard_due(story.machine, 1 << 50) == [Discard(("s\nsport",), (), (1 << 50) - DAY_MS)]
    story.refuse(stage(4, "news", 3), Moved)
    story.refuse(stage(4, "art", 0), Moved)
    assert story.again(stage(3, "news", 1)) is False
    assert story.apply(Discard(("s",))) == ("s",)
    assert list(story.machine.stages.stages) == ["s\nnews"]
    story.refuse(HandOff(spots([point_of("news")]), OTHER), InvalidRequest)
    assert story.apply(ResolvePart(ONE, QUERY, False)) is None
    assert story.apply(Discard(("s",))) == ("s",)
    assert not story.machine.stages.stages and "news" not in story.machine.topics


def test_a_part_says_what_is_here_and_leaves_the_rest_to_others() -> None:
    """Whether that is all of it is for the coordinator to judge."""
    story = writing()
    story.apply(part("news", "art", stages=(NAMED, StageName("gone", 2, ("news",)))))
    assert story.commits.held[QUERY].staged == (StagedPart("s", 2, ("news",)), StagedPart("gone", 0, ()))


def test_a_part_without_anything_staged_holds_up_a_handoff_too() -> None:
    """P12: its group is asked what became of it, and would have gone."""
    story = Story()
    story.apply(Open("ann", b"token", False))
    story.apply(part("art"))
    assert story.commits.held[QUERY].topics == ()
    assert story.commits.is_busy(spots([point_of("art")]))
    assert not story.commits.is_busy(spots([point_of("news")]))
    story.apply(ResolvePart(ONE, QUERY, True))
    assert not story.commits.is_busy((WHOLE,))


@pytest.mark.parametrize("happens", [True, False])
def test_a_part_of_another_batch_is_none(happens: bool) -> None:
    story = writing()
    story.apply(part("news", batch=2))
    assert story.commits.held[QUERY].staged == (StagedPart("s", 0, ()),)
    story.apply(ResolvePart(ONE, QUERY, happens))
    assert "news" not in story.machine.topics


def test_a_part_that_cannot_be_carried_out_is_refused() -> None:
    writing(without((WHOLE,), spots([point_of("art")]))).refuse(part("news", "art"), Moved)
    story = writing(commits_max=1)
    other = msgspec.structs.replace(PUBLISHING, query="other", ranges=(WHOLE,))
    story.apply(HoldPart(TWO, client_of("other"), 1, (), (), other))
    story.refuse(part("news"), LimitReached)
    story = writing(max_backlog=1)
    story.apply(Subscribe("ann", 1, ("news",), "now"))
    story.refuse(part("news"), Overloaded)
    story = writing()
    story.apply(Open("ann", b"newer", False))
    story.refuse(part("news"), Fenced)


def test_what_others_fill_up_after_it_was_promised_does_not_count() -> None:
    story = writing(max_backlog=2, topics_max=2)
    story.apply(Subscribe("ann", 1, ("news",), "now"))
    story.apply(part("news", "sport"))
    story.apply(Write("ann", 1, (BatchWrite((Target("news", 1),), 2, 10),)))
    story.apply(Write("ann", 1, (BatchWrite((Target("art", 1),), 1, 10),)))
    grown = story.apply(ResolvePart(ONE, QUERY, True))
    assert grown.extents == (Extent("news", 2, 4), Extent("sport", 0, 1))


def test_a_snapshot_has_what_is_held_and_what_was_published() -> None:
    story = begun()
    story.apply(part("news", "sport"))
    index, snapshot = story.machine.seal()
    restored = Machine(BrokerSettings(), RingPolicy())
    restored.restore(snapshot, [index])
    for machine in (story.machine, restored):
        assert machine.apply(DecideCommit(ONE, QUERY, True, NAMED.topics), 2_000, 0) is True
        grown = machine.apply(ResolvePart(ONE, QUERY, True), 2_000, 0)
        assert grown == Grown(NAMED.topics, (), (Extent("news", 0, 2), Extent("sport", 0, 1)))
    index, snapshot = story.machine.seal()
    restored = Machine(BrokerSettings(), RingPolicy())
    restored.restore(snapshot, [index])
    assert restored.apply(ResolvePart(ONE, QUERY, True), 3_000, 0) == Grown((), (), grown.extents)


# Ranges that move.


def test_what_is_given_is_frozen_and_goes_with_its_topic() -> None:
    story = writing()
    story.machine.stages.queries["news"] = Query(1, 1_000, False, ())
    given = spots([point_of("news")])
    story.apply(HandOff(given, OTHER))
    story.refuse(stage(4, "news", 3), Moved)
    story.refuse(Publish("ann", 1, "query", 1, (NAMED,), False), Moved)
    story.refuse(part("news"), Moved)
    assert [each.stages for each in story.machine.stages.discard_due(story.machine, 1 << 50)] == [("s\nsport",)]
    assert story.apply(Discard(("s",), ("news",), 1 << 50)) == ("s",)
    assert list(story.machine.stages.stages) == ["s\nnews"] and "news" in story.machine.stages.queries
    story.apply(Drop(1))
    assert not story.machine.stages.stages
