"""Commits over several groups between real engines (P8 to P10, P13): all or none and once, whichever
leaders die."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.node.rings import RingNode, Rings, topic_in
from tidings.message import Columns
from tidings.protocols.broker import messages
from tidings.protocols.broker.messages import Acknowledgement, Commit, Part, Position, Put, Stored, Target
from tidings.protocols.broker.operators import LeaveRing, RingLeft
from tidings.protocols.ring.commit_messages import CommitMessage, Decision, PartDone, PartPrepared, PreparePart
from tidings.wire import codec
from tidings.wire.ring import MARK, decode_header

GROUPS = 3


class Commits:
    """A ring in which a client of the first node puts to a topic of each group, and messages are counted or lost."""

    def __init__(self, size: int = 1, **settings: Any) -> None:
        self.ring = Rings(GROUPS, size, **settings)
        self.door = next(iter(self.ring.nodes.values()))
        self.topics = [topic_in(self.ring.leader_of(group) or group[0]) for group in self.ring.groups]
        self.lost: tuple[type, ...] = ()
        """Messages of these types get lost."""
        self.carried: list[type] = []
        """The messages between groups about commits, in their order."""
        self.until = 1 << 62
        """After so many nobody hears anything any more."""
        self._flush, self.ring._flush = self.ring._flush, self._watch  # type: ignore[method-assign]
        self.epoch = self.ring.hello(self.door, "ann")
        warm = tuple(Target(topic_in(self.leader(number), "warm"), 1) for number in range(GROUPS))
        self.ring.ask(self.door, Put(4, "ann", self.epoch, Part(warm, 1)), self.columns())  # All learn who owns what.
        self.settle()
        self.carried.clear()

    def _watch(self, node: RingNode) -> None:
        """What a node says about commits is counted, and may be lost."""
        kept = []
        for peer, frames in node.engine.outgoing:
            message = decode_header(frames).message if frames[0] == MARK else None
            if isinstance(message, CommitMessage):
                if len(self.carried) >= self.until or isinstance(message, self.lost):
                    continue
                self.carried.append(type(message))
            kept.append((peer, frames))
        node.engine.outgoing[:] = kept
        self._flush(node)

    def put(self, sequence: int = 1, request: int = 5) -> Put:
        targets = tuple(Target(topic, sequence) for topic in self.topics)
        return Put(request, "ann", self.epoch, Part(targets, 1))

    def columns(self, value: bytes = b"all") -> Columns:
        return Columns(1, "ann", [value])

    def leader(self, number: int) -> RingNode:
        leader = self.ring.leader_of(self.ring.groups[number])
        assert leader is not None
        return leader

    def coordinator(self) -> RingNode:
        """The leader of the group that owns the client's home."""
        nodes = (node for node in self.ring.nodes.values() if node.runs and node.engine.log.serving)
        return next(node for node in nodes if (ring := node.engine.ring.ownership) and ring.owns_home("ann"))

    def far_topic(self) -> str:
        """A topic of another group than the one that coordinates."""
        ring = self.coordinator().engine.ring.ownership
        assert ring is not None
        return next(topic for topic in self.topics if not ring.owns_topic(topic))

    def at_rest(self) -> bool:
        """Whether no group has anything to do with a commit."""
        rings = [node.engine.ring.ownership for node in self.ring.nodes.values() if node.runs]
        return all(ring is not None and not ring.commits.open and not ring.commits.held for ring in rings)

    def settle(self) -> None:
        self.ring.wait(self.at_rest, "all commits have come to their end")

    def stored(self) -> list[list[bytes]]:
        return [self.ring.values(topic) if self.has(topic) else [] for topic in self.topics]

    def has(self, topic: str) -> bool:
        return topic in self.ring.owner_of(topic).engine.broker.machine.topics


def test_a_put_to_topics_of_all_groups_is_stored_in_each() -> None:
    commits = Commits()
    answer = commits.ring.ask(commits.door, commits.put(), commits.columns())
    assert answer == messages.PutDone(5, (Stored(0),) * GROUPS)
    assert commits.stored() == [[b"all"]] * GROUPS
    commits.settle()


def test_what_is_sent_again_is_answered_again_and_stored_once() -> None:
    commits = Commits()
    commits.ring.ask(commits.door, commits.put(), commits.columns())
    again = commits.ring.ask(commits.door, commits.put(request=6), commits.columns())
    assert again == messages.PutDone(6, (Stored(None, ((0, 0),)),) * GROUPS)
    assert commits.stored() == [[b"all"]] * GROUPS


def test_topics_of_one_group_take_one_record() -> None:
    """Nobody else is asked, though they lie at different points."""
    commits = Commits()
    node = commits.leader(1)
    topics = [topic_in(node, "one"), topic_in(node, "two")]
    part = Part(tuple(Target(topic, 1) for topic in topics), 1)
    answer = commits.ring.ask(commits.door, Put(5, "ann", commits.epoch, part), commits.columns())
    assert answer == messages.PutDone(5, (Stored(0), Stored(0)))
    assert commits.carried == []


def test_acknowledgements_and_puts_of_several_owners_are_one() -> None:
    commits = Commits()
    ring, door, (taken, answered, _) = commits.ring, commits.door, commits.topics
    ring.ask(door, messages.Subscribe(3, "ann", commits.epoch, (taken,)))
    ring.put(door, "ann", commits.epoch, taken, b"question")
    commit = Commit(
        5,
        "ann",
        commits.epoch,
        (Part((Target(answered, 1),), 1),),
        (Acknowledgement((taken,), (Position(taken, 1),)),),
    )
    assert ring.ask(door, commit, commits.columns(b"answer")) == messages.CommitDone(5, ((Stored(0),),))
    machine = ring.owner_of(taken).engine.broker.machine
    assert machine.subscriptions["ann", (taken,)].cursors == {taken: 1}
    assert ring.values(answered) == [b"answer"]


def test_what_one_owner_refuses_happens_nowhere() -> None:
    """The client hears why, as of a put to one topic; and may go on."""
    commits = Commits()
    targets = (Target(commits.topics[0], 1), Target(commits.topics[1], 9))
    refused = commits.ring.ask(commits.door, Put(5, "ann", commits.epoch, Part(targets, 1)), commits.columns())
    assert isinstance(refused, messages.Failed) and "number 9" in refused.text
    commits.settle()
    assert commits.stored() == [[]] * GROUPS
    assert isinstance(commits.ring.ask(commits.door, commits.put(), commits.columns()), messages.PutDone)


@pytest.mark.parametrize("who", ["coordinator", "owner"])
@pytest.mark.parametrize("until", range(11))
def test_whoever_dies_at_any_step_it_is_all_or_none_and_once(until: int, who: str) -> None:
    """After so many words between the groups one of them dies and comes back; the client sends the same again."""
    commits = Commits()
    ring, commits.until = commits.ring, until
    ring.say(commits.door, b"first", commits.put(), commits.columns())
    ring.run_until_quiet()
    coordinator = commits.coordinator()
    victims = [node for node in ring.nodes.values() if node is not coordinator] if who == "owner" else [coordinator]
    for node in victims:
        node.kill()
    commits.until = 1 << 62
    ring.pass_ms(500)
    for node in victims:
        node.start(ring.now_ms)
    commits.settle()
    stored = commits.stored()
    assert stored in ([[]] * GROUPS, [[b"all"]] * GROUPS)
    answer = ring.ask(commits.door, commits.put(request=6), commits.columns())
    assert isinstance(answer, messages.PutDone)
    again = Stored(None, ((0, 0),)) if stored[0] else Stored(0)
    assert answer.stored == (again,) * GROUPS
    assert commits.stored() == [[b"all"]] * GROUPS
    commits.settle()


def test_a_new_leader_of_a_group_of_three_goes_on() -> None:
    """The one that has decided dies for good: its group knows, and tells the others."""
    commits = Commits(size=3)
    ring, commits.lost = commits.ring, (Decision,)
    ring.say(commits.door, b"first", commits.put(), commits.columns())
    coordinator = commits.coordinator()
    ring.wait(lambda: any(each.happens for each in coordinator.engine.ring.ownership.commits.open.values()), "decided")
    coordinator.kill()
    commits.lost = ()
    commits.settle()
    assert [values[:1] for values in commits.stored()] == [[b"all"]] * GROUPS


def test_a_part_waits_for_its_coordinator_however_long_that_takes() -> None:
    """No timer of an owner's drops it; and when the coordinator is back it hears that nothing was decided."""
    commits = Commits()
    ring, commits.lost = commits.ring, (PartPrepared,)
    ring.say(commits.door, b"first", commits.put(), commits.columns())
    ring.run_until_quiet()
    coordinator = commits.coordinator()
    coordinator.kill()
    others = [node for node in ring.nodes.values() if node is not coordinator]
    ring.pass_ms(20_000)
    assert all(node.engine.ring.ownership.commits.held for node in others)
    commits.lost = ()
    coordinator.start(ring.now_ms)
    commits.settle()
    assert commits.stored() == [[]] * GROUPS


def test_a_commit_does_not_wait_for_the_word_of_a_group_that_has_left() -> None:
    """P12: it carried out its part and said so, which nobody heard; then it left, and was switched off."""
    commits = Commits()
    ring, coordinator, commits.lost = commits.ring, commits.coordinator(), (PartDone,)
    ring.say(commits.door, b"first", commits.put(), commits.columns())
    leaver = next(node for node in ring.nodes.values() if node not in (coordinator, commits.door))
    part = next(topic for number, topic in enumerate(commits.topics) if commits.leader(number) is leaver)
    ring.wait(lambda: commits.has(part) and ring.values(part) == [b"all"], "the part is carried out")
    assert isinstance(ring.ask(leaver, LeaveRing(7)), RingLeft)
    leaver.kill()
    assert not commits.at_rest()
    commits.lost = ()
    commits.settle()
    assert all(ring.values(topic) == [b"all"] for topic in commits.topics)


def test_what_a_client_puts_after_a_commit_does_not_overtake_it() -> None:
    """Neither at its door, which sends it later, nor at an owner that knows of the commit."""
    commits = Commits()
    ring, topic = commits.ring, commits.far_topic()
    commits.lost = (Decision,)
    following = Put(6, "ann", commits.epoch, Part((Target(topic, 2),), 1))
    ring.say(commits.door, b"one", commits.put(), commits.columns())
    ring.say(commits.door, b"one", following, commits.columns(b"after"))
    ring.run_until_quiet()
    ring.say(commits.door, b"two", following, commits.columns(b"after"))
    for _ in range(20):
        ring.step()
    assert ring.answer(commits.door, b"one", 6) is None and ring.answer(commits.door, b"two", 6) is None
    commits.lost = ()
    assert isinstance(ring.ask(commits.door, following, commits.columns(b"after")), messages.PutDone)
    assert ring.values(topic) == [b"all", b"after"]


def test_a_commit_does_not_overtake_what_was_put_before_it() -> None:
    commits = Commits()
    ring, topic = commits.ring, commits.topics[1]
    first = Put(4, "ann", commits.epoch, Part((Target(topic, 1),), 1))
    targets = (Target(commits.topics[0], 1), Target(topic, 2))
    both = Put(5, "ann", commits.epoch, Part(targets, 1))
    ring.say(commits.door, b"one", first, commits.columns(b"before"))
    ring.say(commits.door, b"one", both, commits.columns())
    ring.wait(lambda: ring.answer(commits.door, b"one", 5) is not None, "both are answered")
    assert ring.values(topic) == [b"before", b"all"]


def test_a_newer_session_hears_of_a_commit_when_it_is_decided() -> None:
    """Its question for the last number waits, and the answer counts what the older session has decided."""
    commits = Commits()
    ring, commits.lost = commits.ring, (Decision,)
    ring.say(commits.door, b"older", commits.put(), commits.columns())
    ring.run_until_quiet()
    epoch = ring.hello(commits.door, "ann", b"newer")
    assert epoch == commits.epoch + 1
    question = messages.AskSequence(7, "ann", epoch, commits.far_topic())
    ring.say(commits.door, b"newer", question)
    for _ in range(20):
        ring.step()
    assert ring.answer(commits.door, b"newer", 7) is None
    commits.lost = ()
    assert ring.ask(commits.door, question) == messages.Sequence(7, 1)


def test_a_newer_session_fences_what_is_not_decided() -> None:
    commits = Commits()
    ring, commits.lost = commits.ring, (PreparePart,)
    ring.say(commits.door, b"older", commits.put(), commits.columns())
    ring.run_until_quiet()
    epoch = ring.hello(commits.door, "ann", b"newer")
    commits.lost = ()
    commits.settle()
    assert commits.stored() == [[]] * GROUPS
    assert ring.ask(commits.door, messages.AskSequence(7, "ann", epoch, commits.topics[1])) == messages.Sequence(7, 0)


def test_a_copy_of_a_commit_that_is_under_way_is_answered_with_it() -> None:
    commits = Commits()
    ring, commits.lost = commits.ring, (PartPrepared,)
    for peer in (b"one", b"two"):
        ring.say(commits.door, peer, commits.put(), commits.columns())
    ring.run_until_quiet()
    commits.lost = ()
    for peer in (b"one", b"two"):
        ring.wait(lambda peer=peer: ring.answer(commits.door, peer, 5), "an answer")  # type: ignore[misc]
        assert ring.answer(commits.door, peer, 5) == messages.PutDone(5, (Stored(0),) * GROUPS)
    assert commits.carried.count(Decision) <= 2 * GROUPS


def test_the_home_of_a_client_does_not_move_while_its_commit_is_open() -> None:
    """A group that joins takes it when the commit is over, and decides the next ones."""
    commits = Commits()
    ring = commits.ring
    ring.ask(commits.door, commits.put(), commits.columns())
    for number in range(2, 40):
        if number == 3:
            ring.add_group(1)
        answer = ring.ask(commits.door, commits.put(number, 5 + number), commits.columns(b"%d" % number))
        assert isinstance(answer, messages.PutDone) and answer.stored == (Stored(number - 1),) * GROUPS
        ring.pass_ms(50)
    ring.wait(lambda: ring.owns(ring.groups[-1]), "the group that joined owns something")
    wanted = [b"all", *(b"%d" % number for number in range(2, 40))]
    assert commits.stored() == [wanted] * GROUPS


def test_a_batch_that_is_not_as_it_says_is_refused_by_the_coordinator() -> None:
    commits = Commits()
    targets = tuple(Target(topic, 1) for topic in commits.topics)
    for wrong in (
        Put(5, "ann", commits.epoch, Part(targets, 2)),
        Put(5, "ann", commits.epoch, Part((*targets, targets[0]), 1)),
        Put(5, "ann", commits.epoch, Part((*targets[:2], Target(commits.topics[2], 0)), 1)),
        Commit(5, "ann", commits.epoch, (Part(targets, 1), Part(targets, 1)), ()),
    ):
        assert isinstance(commits.ring.ask(commits.door, wrong, commits.columns()), messages.Failed)
    assert commits.carried == []


def test_what_waits_behind_a_commit_is_passed_on_once() -> None:
    """Also at the node that coordinates, where the answer to the one before may be there at once."""
    commits = Commits()
    ring, door = commits.ring, commits.coordinator()
    wrong = Part(tuple(Target(topic, 1) for topic in commits.topics), 1)
    commits.lost = (PartPrepared,)
    ring.say(door, b"one", commits.put(1, 5), commits.columns())
    for request in (6, 7, 8):
        put = Put(request, "ann", commits.epoch, wrong)
        door.engine.receive(ring.now_ms, b"one", [codec.encode(put), b"no batch"])
    ring.say(door, b"one", commits.put(2, 9), commits.columns(b"last"))
    ring.run_until_quiet()
    commits.lost = ()
    ring.wait(lambda: ring.answer(door, b"one", 9), "the last one is answered")
    answers = [(message.request, type(message).__name__) for peer, message, _ in door.heard if peer == b"one"]
    assert answers == [(5, "PutDone"), *((request, "Failed") for request in (6, 7, 8)), (9, "PutDone")]
    assert commits.stored() == [[b"all", b"last"]] * GROUPS
