"""What a group owns, and what each command of a ring does and refuses."""

from __future__ import annotations

import contextlib

import msgspec
import pytest

from tidings.errors import Fenced, InvalidRequest, Moved, StorageDamaged, TidingsError
from tidings.protocols.broker import messages
from tidings.protocols.broker.broker import Broker
from tidings.protocols.broker.bulk import StageName
from tidings.protocols.broker.collecting import collect_due
from tidings.protocols.broker.commands import (
    Adopt,
    Attach,
    BatchWrite,
    Close,
    Collect,
    Command,
    DeadLetter,
    GroupAck,
    Join,
    Leave,
    LimitTopic,
    Open,
    Publish,
    Stage,
    Subscribe,
    Trim,
    Unsubscribe,
    Write,
    encode_command,
)
from tidings.protocols.broker.machine import Machine
from tidings.protocols.broker.messages import Position, Target
from tidings.protocols.broker.retention import trim_due
from tidings.protocols.broker.snapshots import SNAPSHOT_VERSION
from tidings.protocols.effects import Send
from tidings.protocols.events import Received
from tidings.protocols.ring.commands import (
    Claim,
    Drop,
    Facts,
    HandOff,
    Know,
    Load,
    LoadedBatch,
    LoadedTopic,
    Seek,
    TakeOver,
    decode_command,
)
from tidings.protocols.ring.facts import END, START, Edges, Mark
from tidings.protocols.ring.key_ranges import WHOLE, KeyRange, home_of, point_of, without
from tidings.protocols.ring.messages import GroupDescriptor
from tidings.protocols.ring.ownership import CONTACTS_MAX, HANDED_OFF_MAX, Ownership
from tidings.protocols.ring.policy import RingPolicy, ring_of
from tidings.settings import BrokerSettings

TARGET = GroupDescriptor(b"west", ("tcp://127.0.0.1:7501",))
SOURCE = b"east"


def around(point: bytes) -> KeyRange:
    """A range with this point and no other that anything in these tests lies at."""
    return KeyRange((int.from_bytes(point) - 1).to_bytes(32), point)


NEWS = (around(point_of("news")),)
HOME = (around(home_of("ann")),)


class Story:
    """A group of a ring, and short ways to say what happens next."""

    def __init__(self, *ranges: KeyRange, **settings: object) -> None:
        self.machine = Machine(BrokerSettings(**settings), RingPolicy())  # type: ignore[arg-type]
        self._address = 0
        self.apply(Claim(ranges))

    @property
    def ring(self) -> Ownership:
        ring = ring_of(self.machine)
        assert ring is not None
        return ring

    def apply(self, command: Command, time_ms: int = 1_000) -> object:
        self._address += 1_000
        return self.machine.apply(decode_command(encode_command(command)), time_ms, self._address)

    def again(self, command: Command) -> None:
        """The same once more, which changes nothing, whatever is said to it."""
        before = self.machine.seal()
        with contextlib.suppress(TidingsError):
            self.apply(command)
        assert self.machine.seal() == before

    def refuse(self, command: Command, error: type[TidingsError]) -> None:
        """It is refused, and nothing has changed."""
        before = self.machine.seal()
        with pytest.raises(error):
            self.apply(command)
        assert self.machine.seal() == before

    def put(self, topic: str, sequence: int = 1, client: str = "ann", epoch: int = 1) -> object:
        return self.apply(Write(client, epoch, (BatchWrite((Target(topic, sequence),), 1, 10),)))


def working() -> Story:
    """A group that owns everything, with a publisher, a reader and a consumer group on news, and a topic beside."""
    story = Story(WHOLE)
    story.apply(Open("ann", b"token", False))
    story.put("news")
    story.put("sport")
    story.apply(Subscribe("ann", 1, ("news",), "earliest"))
    story.apply(Subscribe("ann", 1, ("sport",), "earliest"))
    story.apply(Join("ann", 1, "red", "news", "earliest", "key"))
    return story


def loaded(first_offset: int, *offsets: int) -> Load:
    """Batches of one message each, of news."""
    return Load((LoadedTopic("news", first_offset, tuple(LoadedBatch(each, 1, 10, 7) for each in offsets)),))


ON_NEWS: list[Command] = [
    Write("ann", 1, (BatchWrite((Target("news", 2),), 1, 10),)),
    Subscribe("ann", 1, ("news",), "now"),
    Unsubscribe("ann", 1, ("news",)),
    Attach("ann", 1, ("news",), ()),
    Join("ann", 1, "red", "news", "now", "key"),
    Leave("ann", 1, "red", "news"),
    GroupAck("ann", 1, "red", "news", ((0, 1),)),
    DeadLetter("red", "news", 0, "sport", 10),
    LimitTopic("news", 5),
]


@pytest.mark.parametrize("command", ON_NEWS, ids=lambda command: type(command).__name__)
def test_anyone_who_does_not_own_a_topic_refuses_every_command_for_it(command: Command) -> None:
    """P7: also when the state knows the topic, because it is frozen."""
    story = working()
    story.apply(HandOff(NEWS, TARGET))
    story.refuse(command, Moved)
    story.apply(Drop(1))
    story.refuse(command, Moved)


def test_who_does_not_own_a_home_gives_no_epochs() -> None:
    story = Story(*without([WHOLE], HOME))
    story.refuse(Open("ann", b"token", False), Moved)
    assert story.apply(Open("bob", b"token", False)) == 1


def test_topics_that_may_come_apart_are_not_used_together() -> None:
    story = working()
    story.refuse(Subscribe("ann", 1, ("news", "sport"), "now"), InvalidRequest)
    story.apply(Subscribe("ann", 1, ("{shop}orders", "{shop}refunds"), "now"))


def test_only_the_owner_stages_and_publishes() -> None:
    story = Story(*NEWS, *HOME)
    story.apply(Open("ann", b"token", False))
    story.apply(Stage("ann", 1, "sport", 1, "stage", 1, "news", 1, 10))
    story.refuse(Stage("ann", 1, "sport", 1, "stage", 2, "sport", 1, 10), Moved)
    story.refuse(Publish("ann", 1, "sport", 1, (StageName("stage", 1, ("news",)),), False), Moved)
    story.refuse(Publish("ann", 1, "news", 1, (StageName("stage", 2, ("news", "sport")),), False), Moved)
    story.refuse(Publish("ann", 1, "news", 1, (StageName("stage", 1),), False), Moved)


def test_only_the_first_claim_counts() -> None:
    story = Story(*NEWS)
    story.again(Claim((WHOLE,)))
    assert story.ring.ranges == NEWS


def test_without_a_claim_there_is_no_ring() -> None:
    with pytest.raises(InvalidRequest):
        Machine(BrokerSettings(), RingPolicy()).apply(HandOff(NEWS, TARGET), 0, 0)


# Epochs.


def test_an_epoch_is_adopted_if_it_is_higher() -> None:
    story = Story(*without([WHOLE], HOME))
    assert story.apply(Adopt("ann", 3)) == 3
    assert story.apply(Adopt("ann", 2)) == 3
    with pytest.raises(Fenced):
        story.put("news", epoch=2)
    story.put("news", epoch=3)
    assert not story.machine.clients["ann"].anonymous
    not_leader = Story(around(point_of("news")))
    not_leader.apply(Adopt("worker/0123456789abcdef", 1))
    assert not_leader.machine.clients["worker/0123456789abcdef"].anonymous


def test_where_epochs_are_given_none_is_adopted() -> None:
    story = Story(WHOLE)
    story.again(Adopt("ann", 5))
    assert "ann" not in story.machine.clients
    story.apply(Open("ann", b"token", False))
    assert story.apply(Adopt("ann", 5)) == 1


# Giving.


def test_what_is_given_is_owned_no_more_and_stays_as_it_is() -> None:
    story = working()
    story.apply(HandOff(NEWS, TARGET))
    assert story.ring.ranges == without([WHOLE], NEWS)
    assert story.ring.handing_off is not None and story.ring.handing_off.number == 1
    assert [gone.descriptor for gone in story.ring.gone] == [TARGET]
    for command in (Trim((Position("news", 1),)), Collect((("red", "news"),), ("news",)), HandOff(NEWS, TARGET)):
        story.again(command)
    assert story.machine.topics["news"].next_offset == 1


def test_one_transfer_after_the_other() -> None:
    story = working()
    story.apply(HandOff(NEWS, TARGET))
    story.refuse(HandOff(HOME, TARGET), InvalidRequest)
    story.again(Drop(2))
    story.apply(Drop(1))
    story.again(Drop(1))
    story.refuse(HandOff(NEWS, TARGET), Moved)
    story.apply(HandOff(HOME, TARGET))
    assert story.ring.handing_off is not None and story.ring.handing_off.number == 2


def test_dropping_forgets_what_was_given_and_nothing_else() -> None:
    story = working()
    story.apply(HandOff(NEWS, TARGET))
    story.apply(Drop(1))
    machine = story.machine
    assert list(machine.topics) == ["sport"] and not machine.groups and not machine.groups_of
    assert list(machine.subscriptions) == [("ann", ("sport",))] == list(machine.owned["ann"])
    assert list(machine.clients["ann"].tracks) == ["sport"] and machine.clients["ann"].token == b"token"
    assert [(gone.key_range, gone.descriptor) for gone in story.ring.handed_off] == [(NEWS[0], TARGET)]


def test_a_home_that_was_given_leaves_only_the_epoch() -> None:
    story = working()
    story.apply(HandOff(HOME, TARGET))
    story.apply(Drop(1))
    assert (story.machine.clients["ann"].epoch, story.machine.clients["ann"].token) == (1, b"")
    story.put("news", 2)
    story.apply(HandOff((WHOLE,), TARGET))
    story.apply(Drop(2))
    assert not story.machine.clients and story.ring.has_left


def test_a_session_that_ends_leaves_what_is_frozen() -> None:
    """Otherwise the facts of a transfer would change after some of them were sent."""
    name = "worker/0123456789abcdef"
    story = Story(WHOLE)
    story.apply(Open(name, b"token", True))
    for topic in ("news", "sport"):
        story.put(topic, client=name)
        story.apply(Subscribe(name, 1, (topic,), "earliest"))
        story.apply(Join(name, 1, "red", topic, "earliest", "key"))
    story.apply(HandOff(NEWS, TARGET))
    story.apply(Close(name, 1, ()))
    machine = story.machine
    assert list(machine.clients[name].tracks) == ["news"]
    assert list(machine.subscriptions) == [(name, ("news",))]
    assert [list(group.members) for group in machine.groups.values()] == [[name], []]
    story.apply(Drop(1))
    assert story.ring.owns_home(name) and not machine.clients[name].tracks


def test_hints_have_a_bound() -> None:
    story = Story(WHOLE)
    for number in range(HANDED_OFF_MAX + 5):
        story.apply(HandOff((around(point_of(f"topic {number}")),), TARGET))
        story.apply(Drop(number + 1))
    assert len(story.ring.handed_off) == HANDED_OFF_MAX
    assert story.ring.handed_off[-1].key_range == around(point_of(f"topic {HANDED_OFF_MAX + 4}"))


# Taking.


def test_only_what_is_being_taken_is_loaded_and_nobody_sees_it() -> None:
    story = Story(*without([WHOLE], NEWS))
    story.refuse(loaded(0, 0), Moved)
    story.apply(Seek(SOURCE, NEWS))
    story.apply(loaded(0, 0, 1))
    assert story.machine.topics["news"].next_offset == 2
    story.apply(Open("ann", b"token", False))
    with pytest.raises(Moved):
        story.put("news")
    story.again(Trim((Position("news", 2),)))
    story.apply(Seek(b"", ()))
    assert not story.machine.topics and story.ring.taking_over is None


def test_batches_are_loaded_once_and_without_gaps() -> None:
    story = Story()
    story.apply(Seek(SOURCE, NEWS))
    story.apply(loaded(0, 0, 1))
    story.again(loaded(0, 0, 1))
    story.refuse(loaded(0, 3), InvalidRequest)
    story.apply(loaded(0, 1, 2))
    topic = story.machine.topics["news"]
    assert (topic.first_offset, topic.next_offset, list(topic.times)) == (0, 3, [7, 7, 7])
    story.apply(loaded(9, 9, 10))
    topic = story.machine.topics["news"]
    assert (topic.first_offset, topic.next_offset, list(topic.offsets)) == (9, 11, [9, 10])


def test_what_is_owned_or_not_yet_forgotten_cannot_be_taken() -> None:
    story = working()
    story.refuse(Seek(SOURCE, NEWS), InvalidRequest)
    story.apply(HandOff(NEWS, TARGET))
    story.refuse(Seek(SOURCE, NEWS, 1), InvalidRequest)
    story.apply(Drop(1))
    story.apply(Seek(SOURCE, NEWS, 1))
    story.refuse(Seek(b"north", HOME), InvalidRequest)
    story.refuse(Seek(b"", ()), InvalidRequest)


def test_a_transfer_is_taken_when_all_its_facts_are_here_in_order() -> None:
    """P8: a list that ends early, or has a hole, makes nobody an owner."""
    story = Story()
    story.apply(Seek(SOURCE, NEWS))
    story.refuse(Facts(SOURCE, 1, START, END, ()), InvalidRequest)
    story.apply(Seek(SOURCE, NEWS, 1))
    middle = Mark(0, "news", 1)
    first = Facts(SOURCE, 1, START, middle, (Edges("news", 0, 2, 1, 5, 9),))
    story.refuse(first, InvalidRequest)
    story.apply(loaded(0, 0, 1))
    story.refuse(Facts(SOURCE, 1, middle, END, ()), InvalidRequest)
    story.refuse(Facts(SOURCE, 2, START, END, ()), InvalidRequest)
    story.apply(first)
    story.again(first)
    story.refuse(TakeOver(SOURCE, 1), InvalidRequest)
    story.apply(Facts(SOURCE, 1, middle, END, ()))
    story.refuse(TakeOver(SOURCE, 2), InvalidRequest)
    story.apply(TakeOver(SOURCE, 1))
    assert story.ring.ranges == NEWS and story.ring.taking_over is None
    assert (story.machine.topics["news"].acked_offset, story.machine.topics["news"].max_backlog) == (1, 9)
    for late in (TakeOver(SOURCE, 1), Seek(SOURCE, NEWS, 1), loaded(0, 0, 1), first):
        story.again(late)


def test_a_transfer_is_not_taken_twice_even_if_it_was_given_on() -> None:
    """P7: otherwise what its first owner had frozen would come back to life."""
    story = Story()
    story.apply(Seek(SOURCE, NEWS, 1))
    story.apply(Facts(SOURCE, 1, START, END, ()))
    story.apply(TakeOver(SOURCE, 1))
    story.apply(HandOff(NEWS, GroupDescriptor(b"north", ())))
    story.apply(Drop(1))
    story.again(Seek(SOURCE, NEWS, 1))
    assert story.ring.taking_over is None
    story.apply(Seek(SOURCE, NEWS, 2))
    assert story.ring.taking_over is not None


def test_what_comes_back_is_no_hint_any_more() -> None:
    story = Story(WHOLE)
    story.apply(HandOff((*NEWS, *HOME), TARGET))
    story.apply(Drop(1))
    story.apply(Seek(b"west", NEWS, 1))
    story.apply(Facts(b"west", 1, START, END, ()))
    story.apply(TakeOver(b"west", 1))
    assert [gone.key_range for gone in story.ring.gone] == list(HOME)


# What retention and questions see.


def test_retention_leaves_alone_what_is_not_owned() -> None:
    story = Story(WHOLE, retain_bytes=10, collect_after_ms=1_000)
    story.apply(Open("ann", b"token", False))
    for topic in ("news", "sport"):
        for sequence in (1, 2, 3):
            story.put(topic, sequence)
    story.apply(Join("ann", 1, "red", "stars", "now", "key"))
    story.apply(Leave("ann", 1, "red", "stars"))
    trim, collect = trim_due(story.machine, 1_000, []), collect_due(story.machine, 10**9)
    assert trim is not None and [each.topic for each in trim.positions] == ["news", "sport"]
    assert collect is not None and collect.groups == (("red", "stars"),)
    story.apply(HandOff((*NEWS, around(point_of("stars"))), TARGET))
    trim = trim_due(story.machine, 1_000, [])
    assert trim is not None and [each.topic for each in trim.positions] == ["sport"]
    assert collect_due(story.machine, 10**9) is None


def answer(story: Story, message: object) -> object:
    [effect] = Broker(story.machine.settings, story.machine).handle(Received(2_000, "peer", message))  # type: ignore[arg-type]
    assert isinstance(effect, Send)
    return effect.message


def test_questions_are_answered_from_what_is_owned() -> None:
    story = working()
    story.apply(HandOff((*NEWS, *HOME), TARGET))
    topics = answer(story, messages.AskTopics(1))
    assert isinstance(topics, messages.Topics) and [each.name for each in topics.topics] == ["sport"]
    assert answer(story, messages.AskGroups(1)) == messages.Groups(1, ())
    assert answer(story, messages.AskSubscriptions(1, "ann", 1)) == messages.Subscriptions(1, (("sport",),))
    status = answer(story, messages.AskStatus(1))
    assert isinstance(status, messages.Status)
    shown = {name: count for name, count in status.numbers.items() if count}
    assert shown == {"topics": 1, "subscriptions": 1, "messages": 1, "size_bytes": 10}


@pytest.mark.parametrize(
    "message",
    [
        messages.Hello(1, messages.VERSION, "ann", b"token", False),
        messages.Subscribe(1, "ann", 1, ("news",), "now"),
        messages.Get(1, "ann", 1, "news"),
        messages.AskTopics(1, "news"),
        messages.AskGroups(1, "news"),
        messages.AskSequence(1, "ann", 1, "news"),
    ],
    ids=lambda message: type(message).__name__,
)
def test_a_request_for_what_is_frozen_is_refused(message: object) -> None:
    """P7: also one that could be answered without the journal."""
    story = working()
    story.apply(HandOff((*NEWS, *HOME), TARGET))
    failed = answer(story, message)
    assert isinstance(failed, messages.Failed) and failed.number == Moved.number


# Snapshots.


def restored(story: Story) -> Machine:
    index, snapshot = story.machine.seal()
    machine = Machine(story.machine.settings, RingPolicy())
    machine.restore(snapshot, [index])
    return machine


@pytest.mark.parametrize(
    ("ring", "error"),
    [(None, Fenced), (Ownership((WHOLE,)), Fenced), (Ownership(), Moved)],
    ids=["alone", "home", "not home"],
)
def test_a_client_that_is_not_known_is_shut_out_only_where_its_epochs_are_given(
    ring: Ownership | None, error: type[Exception]
) -> None:
    """P12: elsewhere it was forgotten with what was given away, while a request of its was on its way."""
    machine = Machine(BrokerSettings(), RingPolicy(ring))
    with pytest.raises(error):
        machine.check_session("ann", 1)


def test_groups_that_left_are_remembered_beside_the_others() -> None:
    """P12: they do not push out those that are there."""
    story = working()
    descriptors = [GroupDescriptor(b"%d" % number, (), left=number % 2 == 1) for number in range(6 * CONTACTS_MAX)]
    story.apply(Know(tuple(descriptors)))
    kept = [int(descriptor.group) for descriptor in story.ring.contacts]
    last = range(4 * CONTACTS_MAX, 6 * CONTACTS_MAX)
    assert kept == [*last[::2], *last[1::2]]
    assert story.ring.knows_left(b"%d" % last[-1]) and not story.ring.knows_left(b"%d" % last[-2])
    assert not story.ring.knows_left(b"1")


def test_a_snapshot_has_everything_of_a_ring() -> None:
    story = working()
    story.apply(HandOff(NEWS, TARGET))
    story.apply(Drop(1))
    story.apply(Seek(SOURCE, NEWS, 4))
    story.apply(loaded(0, 0, 1))
    story.apply(Facts(SOURCE, 4, START, Mark(0, "news", 1), (Edges("news", 0, 2, 0, 5),)))
    story.apply(HandOff(HOME, TARGET))
    story.apply(Know((TARGET,)))
    machine = restored(story)
    ring = ring_of(machine)
    assert ring is not None and ring.state() == story.ring.state()
    assert machine.seal()[1] == story.machine.seal()[1]
    assert [machine.owns("news"), machine.owns("sport")] == [False, True]


@pytest.mark.parametrize(("version", "fields"), [(1, 6), (2, 7)])
def test_a_snapshot_of_before_there_were_rings_is_read(version: int, fields: int) -> None:
    story = working()
    _, snapshot = story.machine.seal()
    older = msgspec.msgpack.encode([version, *msgspec.msgpack.decode(snapshot)[1:fields]])
    machine = Machine(BrokerSettings(), RingPolicy())
    machine.restore(older, [])
    assert ring_of(machine) is None and list(machine.topics) == ["news", "sport"]
    newer = msgspec.msgpack.encode([SNAPSHOT_VERSION + 1, *msgspec.msgpack.decode(snapshot)[1:]])
    with pytest.raises(StorageDamaged):
        Machine(BrokerSettings(), RingPolicy()).restore(newer, [])
