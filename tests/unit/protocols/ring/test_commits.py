"""Commits over several groups in one group's state: what it begins and decides, and what it holds of others (P13)."""

from __future__ import annotations

from typing import Any

import pytest

from tidings.errors import Fenced, InvalidRequest, LimitReached, Moved, NotSubscribed, OutOfSequence, TidingsError
from tidings.protocols.broker.commands import (
    BatchWrite,
    Command,
    Discard,
    Open,
    Subscribe,
    Unsubscribe,
    Write,
    encode_command,
)
from tidings.protocols.broker.machine import Machine
from tidings.protocols.broker.messages import Acknowledgement, AskSequence, Beat, Position, Stored, Target
from tidings.protocols.broker.ownership import Grown
from tidings.protocols.broker.retention import lowest_address
from tidings.protocols.ring.commands import Drop, HandOff, Seek, TakeOver, decode_command
from tidings.protocols.ring.commit_commands import BeginCommit, DecideCommit, EndCommit, HoldPart, ResolvePart
from tidings.protocols.ring.commits import DONE_MAX, Commits
from tidings.protocols.ring.key_ranges import WHOLE, KeyRanges, home_of, point_of, spots, without
from tidings.protocols.ring.messages import GroupDescriptor
from tidings.protocols.ring.ownership import Ownership
from tidings.protocols.ring.policy import RingPolicy
from tidings.settings import BrokerSettings

ONE, TWO = b"1" * 16, b"2" * 16
OTHER = GroupDescriptor(b"other", ("tcp://127.0.0.1:7600",))
NEWS = (BatchWrite((Target("news", 2),), 1, 10),)


class Story:
    """A group of a ring whose records are applied one after the other."""

    def __init__(self, ranges: KeyRanges = (WHOLE,), **settings: Any) -> None:
        self.ring = Ownership(ranges)
        self.machine = Machine(BrokerSettings(**settings), RingPolicy(self.ring))
        self._address = 0

    @property
    def commits(self) -> Commits:
        return self.ring.commits

    def apply(self, command: Command, time_ms: int = 1_000) -> Any:
        self._address += 1_000
        return self.machine.apply(decode_command(encode_command(command)), time_ms, self._address)

    def refuse(self, command: Command, error: type[TidingsError]) -> None:
        """It is refused, and nothing has changed."""
        before = self.machine.seal()
        with pytest.raises(error):
            self.apply(command)
        assert self.machine.seal() == before

    def again(self, command: Command) -> Any:
        """The same once more, which changes nothing."""
        before = self.machine.seal()
        result = self.apply(command)
        assert self.machine.seal() == before
        return result


def working(**settings: Any) -> Story:
    """A group that owns everything, with a publisher that also reads what it puts."""
    story = Story(**settings)
    story.apply(Open("ann", b"token", False))
    story.apply(Subscribe("ann", 1, ("news",), "now"))
    story.apply(Write("ann", 1, (BatchWrite((Target("news", 1),), 1, 10),)))
    return story


def elsewhere(epoch: int = 1, **settings: Any) -> Story:
    """A group that owns everything but the homes of clients."""
    story = Story(without((WHOLE,), spots(map(home_of, ("ann", "bob")))), **settings)
    story.apply(HoldPart(TWO, "ann", epoch, (BatchWrite((Target("news", 1),), 1, 10),), ()))
    story.apply(ResolvePart(TWO, "ann", True))
    return story


# The coordinator.


def test_a_commit_begins_is_decided_and_ends() -> None:
    story = working()
    begin, decide = BeginCommit(ONE, "ann", 1, (OTHER,)), DecideCommit(ONE, "ann", True)
    story.apply(begin)
    story.again(begin)
    assert story.apply(decide) is True
    assert story.again(decide) is True
    assert story.again(DecideCommit(ONE, "ann", False)) is True, "it was decided before"
    story.apply(EndCommit(ONE, "ann"))
    assert not story.commits.open


def test_what_has_not_begun_never_happens() -> None:
    """Who asks is told so by the journal, and a word that comes later changes nothing."""
    story = working()
    assert story.again(DecideCommit(ONE, "ann", False)) is False
    assert story.again(DecideCommit(ONE, "ann", True)) is False
    story.apply(BeginCommit(ONE, "ann", 1, (OTHER,)))
    assert story.apply(DecideCommit(ONE, "ann", False)) is False
    assert story.again(DecideCommit(ONE, "ann", True)) is False, "what was aborted stays so"


def test_what_is_not_decided_does_not_end() -> None:
    story = working()
    story.apply(BeginCommit(ONE, "ann", 1, (OTHER,)))
    story.again(EndCommit(ONE, "ann"))
    story.again(EndCommit(TWO, "ann"))


def test_a_client_has_one_commit_at_a_time() -> None:
    story = working()
    story.apply(BeginCommit(ONE, "ann", 1, (OTHER,)))
    story.refuse(BeginCommit(TWO, "ann", 1, (OTHER,)), Moved)


def test_a_newer_session_fences_what_is_not_decided() -> None:
    story = working()
    story.apply(BeginCommit(ONE, "ann", 1, (OTHER,)))
    story.apply(Open("ann", b"newer", False))
    story.refuse(DecideCommit(ONE, "ann", True), Fenced)
    assert story.apply(DecideCommit(ONE, "ann", False)) is False
    story.refuse(BeginCommit(TWO, "ann", 1, (OTHER,)), Fenced)


def test_only_the_owner_of_the_home_coordinates() -> None:
    story = elsewhere()
    story.refuse(BeginCommit(ONE, "ann", 1, (OTHER,)), Moved)
    story.refuse(DecideCommit(ONE, "ann", False), Moved)


def test_the_open_commits_have_a_bound() -> None:
    story = working(commits_max=1)
    story.apply(Open("bob", b"token", False))
    story.apply(BeginCommit(ONE, "ann", 1, (OTHER,)))
    story.refuse(BeginCommit(TWO, "bob", 1, (OTHER,)), LimitReached)


# The owners.


def test_a_part_is_held_out_of_sight_and_carried_out() -> None:
    story = working()
    acknowledged = (Acknowledgement(("news",), (Position("news", 1),)),)
    hold = HoldPart(ONE, "ann", 1, NEWS, acknowledged)
    story.apply(hold)
    held_at = story._address
    story.again(hold)
    topic, subscription = story.machine.topics["news"], story.machine.subscriptions["ann", ("news",)]
    assert (topic.next_offset, subscription.cursors) == (1, {"news": 0})
    assert story.apply(ResolvePart(ONE, "ann", True)) == Grown(("news",), ((Stored(1),),))
    assert (topic.next_offset, subscription.cursors) == (2, {"news": 1})
    assert topic.addresses[-1] == held_at, "the body stays where it was held"
    assert story.again(ResolvePart(ONE, "ann", True)) == Grown((), ((Stored(1),),))
    assert not story.commits.held and not story.machine.stages.stages


def test_a_part_that_does_not_happen_leaves_nothing() -> None:
    story = working()
    before = story.machine.seal()
    story.apply(HoldPart(ONE, "ann", 1, NEWS, ()))
    assert story.apply(ResolvePart(ONE, "ann", False)) is None
    assert story.machine.seal() == before
    assert story.again(ResolvePart(ONE, "ann", True)) is None, "it is not here any more, and nobody says where it is"


def test_what_cannot_be_carried_out_is_not_held() -> None:
    story = working()
    gap = (BatchWrite((Target("news", 7),), 1, 10),)
    story.refuse(HoldPart(ONE, "ann", 1, gap, ()), OutOfSequence)
    unknown = (Acknowledgement(("sport",), (Position("sport", 1),)),)
    with pytest.raises((NotSubscribed, TidingsError)):
        story.apply(HoldPart(ONE, "ann", 1, (), unknown))
    far = (Acknowledgement(("news",), (Position("news", 9),)),)
    story.refuse(HoldPart(ONE, "ann", 1, (), far), InvalidRequest)
    assert not story.commits.held


def test_what_was_put_before_is_carried_out_as_a_repetition() -> None:
    story = working()
    story.apply(HoldPart(ONE, "ann", 1, (BatchWrite((Target("news", 1),), 1, 10),), ()))
    assert story.apply(ResolvePart(ONE, "ann", True)).stored == ((Stored(None, ((0, 0),)),),)
    assert story.machine.topics["news"].next_offset == 1


@pytest.mark.parametrize("happens", [True, False])
def test_nothing_else_of_the_client_is_served_while_a_part_is_held(happens: bool) -> None:
    story = working()
    story.apply(HoldPart(ONE, "ann", 1, NEWS, ()))
    following = Write("ann", 1, (BatchWrite((Target("news", 3 if happens else 2),), 1, 10),))
    story.refuse(following, Moved)
    story.refuse(HoldPart(TWO, "ann", 1, NEWS, ()), Moved)
    for message in (AskSequence(1, "ann", 1, "news"), AskSequence(1, "ann", 2, "sport")):
        with pytest.raises(Moved):
            story.machine.ownership.check_request(message)
    story.machine.ownership.check_request(Beat(1, "ann", 1, ()))
    story.machine.ownership.check_request(AskSequence(1, "bob", 1, "news"))
    story.apply(ResolvePart(ONE, "ann", happens))
    story.apply(following)


@pytest.mark.parametrize("own_limit", [None, 1])
def test_limits_that_others_reach_meanwhile_do_not_count(own_limit: int | None) -> None:
    """Topics, messages that wait, ids: by the settings, and by the limit that a topic has of its own."""
    story = elsewhere(topics_max=2, max_backlog=None if own_limit else 1, ids_max=1)
    story.apply(Subscribe("ann", 1, ("news",), "now"))
    story.machine.topics["news"].max_backlog = own_limit
    batch = BatchWrite((Target("sport", 1), Target("news", 2)), 1, 10, ("mine",))
    story.apply(HoldPart(ONE, "ann", 1, (batch,), ()))
    story.machine.make_topic("art", 1_000)
    news = story.machine.topics["news"]
    news.append(1, 10, 1, None, None, 1_000)
    news.remember_ids([("theirs", 1)], 1_000)
    with pytest.raises(TidingsError):
        story.apply(HoldPart(TWO, "bob", 1, (BatchWrite((Target("news", 1),), 1, 10),), ()))
    assert story.apply(ResolvePart(ONE, "ann", True)).stored == ((Stored(0), Stored(2)),)
    assert sorted(story.machine.topics) == ["art", "news", "sport"]


def test_a_subscription_that_ends_meanwhile_is_passed_over() -> None:
    story = working()
    story.apply(HoldPart(ONE, "ann", 1, NEWS, (Acknowledgement(("news",), (Position("news", 1),)),)))
    story.apply(Unsubscribe("ann", 1, ("news",)))
    assert story.apply(ResolvePart(ONE, "ann", True)).stored == ((Stored(1),),)


def test_an_owner_learns_the_epoch_with_the_part_and_refuses_older_ones() -> None:
    story = elsewhere(epoch=3)
    assert story.machine.clients["ann"].epoch == 3
    story.refuse(HoldPart(ONE, "ann", 2, NEWS, ()), Fenced)
    story.apply(HoldPart(ONE, "ann", 4, NEWS, ()))
    assert story.machine.clients["ann"].epoch == 4


def test_a_part_is_held_only_where_all_its_topics_are_owned() -> None:
    story = Story(without((WHOLE,), spots([point_of("sport")])))
    story.apply(Open("ann", b"token", False))
    both = (BatchWrite((Target("news", 1), Target("sport", 1)), 1, 10),)
    story.refuse(HoldPart(ONE, "ann", 1, both, ()), Moved)


def test_the_parts_have_a_bound_and_so_has_what_is_remembered_of_them() -> None:
    story = working(commits_max=1)
    story.apply(HoldPart(ONE, "ann", 1, NEWS, ()))
    story.apply(Open("bob", b"token", False))
    story.refuse(HoldPart(TWO, "bob", 1, (BatchWrite((Target("news", 1),), 1, 10),), ()), LimitReached)
    story.apply(ResolvePart(ONE, "ann", True))
    for number in range(DONE_MAX):
        commit = number.to_bytes(16, "big")
        story.apply(HoldPart(commit, "ann", 1, (BatchWrite((Target("news", 3 + number),), 1, 10),), ()))
        story.apply(ResolvePart(commit, "ann", True))
    assert len(story.commits.done) == DONE_MAX
    assert story.again(ResolvePart(ONE, "ann", True)) is None


def test_bodies_are_kept_while_a_part_is_held_and_nobody_drops_them_as_stages() -> None:
    story = working()
    story.apply(HoldPart(ONE, "ann", 1, NEWS, ()))
    story.machine.topics["news"].trim(1)
    assert lowest_address(story.machine, 1 << 40) == story._address
    assert story.machine.stages.discard_due(story.machine, 1 << 50) == []
    assert story.apply(Discard(tuple(story.machine.stages.stages))) == ()


# What moves, and what lasts.


@pytest.mark.parametrize("busy", ["home", "topic"])
def test_a_handoff_waits_for_commits(busy: str) -> None:
    story = working()
    point = home_of("ann") if busy == "home" else point_of("news")
    if busy == "home":
        story.apply(BeginCommit(ONE, "ann", 1, (OTHER,)))
    else:
        story.apply(HoldPart(ONE, "ann", 1, NEWS, ()))
    story.refuse(HandOff(spots([point]), OTHER), InvalidRequest)
    story.apply(HandOff(spots([point_of("elsewhere")]), OTHER))
    story.apply(Drop(1))
    if busy == "home":
        story.apply(DecideCommit(ONE, "ann", True))
        story.refuse(HandOff(spots([point]), OTHER), InvalidRequest)
        story.apply(EndCommit(ONE, "ann"))
    else:
        story.apply(ResolvePart(ONE, "ann", True))
    story.apply(HandOff(spots([point]), OTHER))


def test_a_client_that_was_forgotten_with_a_handoff_still_has_its_part() -> None:
    story = Story(without((WHOLE,), spots([home_of("ann")])))
    story.apply(HoldPart(ONE, "ann", 1, (BatchWrite((Target("news", 1),), 1, 10),), ()))
    story.apply(ResolvePart(ONE, "ann", True))
    story.apply(HoldPart(TWO, "ann", 1, (BatchWrite((Target("sport", 1),), 1, 10),), ()))
    story.apply(HandOff(spots([point_of("news")]), OTHER))
    story.apply(Drop(1))
    assert "ann" not in story.machine.clients
    assert story.apply(ResolvePart(TWO, "ann", True)).stored == ((Stored(0),),)
    assert story.machine.clients["ann"].epoch == 1


def test_a_snapshot_has_commits_and_parts() -> None:
    story = working()
    story.apply(BeginCommit(TWO, "ann", 1, (OTHER,)))
    story.apply(HoldPart(ONE, "ann", 1, NEWS, ()))
    index, snapshot = story.machine.seal()
    copy = Machine(BrokerSettings(), RingPolicy())
    copy.restore(snapshot, [index])
    assert copy.seal()[1] == snapshot
    wanted = story.apply(ResolvePart(ONE, "ann", True))
    assert copy.apply(ResolvePart(ONE, "ann", True), 1_000, 0) == wanted
    assert copy.apply(DecideCommit(TWO, "ann", True), 1_000, 0) is True


def test_a_transfer_to_this_group_does_not_touch_its_parts() -> None:
    story = Story(without((WHOLE,), spots([point_of("art")])))
    story.apply(Open("ann", b"token", False))
    story.apply(HoldPart(ONE, "ann", 1, (BatchWrite((Target("news", 1),), 1, 10),), ()))
    story.apply(Seek(b"other", spots([point_of("art")]), 1))
    with pytest.raises(InvalidRequest):
        story.apply(TakeOver(b"other", 1))
    assert story.apply(ResolvePart(ONE, "ann", True)).stored == ((Stored(0),),)
