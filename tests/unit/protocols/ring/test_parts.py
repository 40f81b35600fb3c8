"""Parts of a subscription in one owner's state: what each is, hands out and leaves to an earlier one (P7, P8, P13)."""

from __future__ import annotations

import msgspec
import pytest

from tests.unit.protocols.ring.test_commits import ONE, Story
from tidings.errors import InvalidRequest, NotSubscribed
from tidings.protocols.broker.commands import Attach, BatchWrite, Close, Detach, Open, Subscribe, Unsubscribe, Write
from tidings.protocols.broker.delivery import Dispatcher
from tidings.protocols.broker.machine import Machine
from tidings.protocols.broker.messages import Acknowledgement, Position, Target
from tidings.protocols.broker.subscriptions import Subscription, canonical, key_of
from tidings.protocols.broker.topics import Place
from tidings.protocols.broker.withheld import Withheld
from tidings.protocols.effects import Forward
from tidings.protocols.ring.commit_commands import HoldPart, PartWrite, ResolvePart
from tidings.protocols.ring.parts import divided, parts_of, whole_of
from tidings.protocols.ring.policy import RingPolicy
from tidings.settings import BrokerSettings

WHOLE = ("news", "sport", "weather")
SPORT = key_of("ann", ("sport",), WHOLE)


def working() -> Story:
    """An owner of everything, with a publisher and an ordinary subscription to sport."""
    story = Story()
    story.apply(Open("ann", b"token", False))
    story.apply(Subscribe("ann", 1, ("sport",), "now"))
    return story


def put(story: Story, sequence: int, *topics: str) -> None:
    """A message for sport under this number, and as the first one of other topics."""
    targets = tuple(Target(topic, sequence if topic == "sport" else 1) for topic in topics)
    story.apply(Write("ann", 1, (BatchWrite(targets, 1, 10),)))


def commit(story: Story, sequence: int, *other_topics: str) -> None:
    """A message for sport that other owners get too."""
    batch = PartWrite((Target("sport", sequence),), 1, 10, None, other_topics)
    story.apply(HoldPart(ONE[:-1] + bytes([sequence]), "ann", 1, (batch,), ()))
    story.apply(ResolvePart(ONE[:-1] + bytes([sequence]), "ann", True))


def handed(machine: Machine, key: object = SPORT) -> list[tuple[int, int, int]]:
    """Since, until and how many bodies: what a reader of the part is sent."""
    dispatcher = Dispatcher(machine, Withheld())
    stream = dispatcher.open(1, "ann", machine.subscriptions[key], ())  # type: ignore[index]
    stream.messages_limit = stream.bytes_limit = 1_000
    sent = [each for each in dispatcher.pump(stream) if isinstance(each, Forward)]
    return [(each.message.since, each.message.next_offset, len(each.places)) for each in sent]  # type: ignore[union-attr]


def test_a_part_is_another_subscription_than_one_to_its_topics() -> None:
    story = working()
    positions, created = story.apply(Subscribe("ann", 1, ("sport",), "now", WHOLE))
    assert (positions, created) == ((Position("sport", 0),), True)
    assert not story.again(Subscribe("ann", 1, ("sport",), "now", WHOLE))[1]
    put(story, 1, "sport")
    taken = (Position("sport", 1),)
    story.apply(Write("ann", 1, (), (Acknowledgement(("sport",), taken, 1, WHOLE),)))
    subscriptions = story.machine.subscriptions
    assert subscriptions[SPORT].cursors == {"sport": 1} and subscriptions["ann", ("sport",)].cursors == {"sport": 0}
    assert subscriptions[SPORT].all_topics == WHOLE
    story.apply(Attach("ann", 1, ("sport",), (), WHOLE))
    assert subscriptions[SPORT].reading and not subscriptions["ann", ("sport",)].reading
    story.apply(Close("ann", 1, (Detach(("sport",), taken, WHOLE),)))
    assert not subscriptions[SPORT].reading
    story.apply(Unsubscribe("ann", 1, ("sport",), WHOLE))
    assert list(subscriptions) == [("ann", ("sport",))]
    story.refuse(Unsubscribe("ann", 1, ("sport",), WHOLE), NotSubscribed)


def test_what_went_to_an_earlier_part_is_left_to_it() -> None:
    """P13: whether that part's topics have the same owner or another one, and not if it is a later part."""
    story = working()
    story.apply(Subscribe("ann", 1, ("sport",), "now", WHOLE))
    put(story, 1, "sport", "news")
    put(story, 2, "sport")
    put(story, 3, "sport", "weather")
    commit(story, 4, "news")
    commit(story, 5, "weather")
    commit(story, 6, "weather", "other")
    assert handed(story.machine) == [(0, 1, 0), (1, 2, 1), (2, 3, 1), (3, 4, 0), (4, 5, 1), (5, 6, 1)]
    assert sum(bodies for *_, bodies in handed(story.machine, ("ann", ("sport",)))) == 6


def test_what_was_there_before_the_part_was_made_is_left_to_nobody() -> None:
    story = working()
    put(story, 1, "sport", "news")
    commit(story, 2, "news")
    story.apply(Subscribe("ann", 1, ("sport",), "earliest", WHOLE))
    commit(story, 3, "news")
    assert handed(story.machine) == [(0, 1, 1), (1, 2, 1), (2, 3, 0)]


def test_a_snapshot_and_its_indexes_keep_all_of_that() -> None:
    story = working()
    commit(story, 1, "news")
    story.apply(Subscribe("ann", 1, ("sport",), "earliest", WHOLE))
    commit(story, 2, "news")
    index, snapshot = story.machine.seal()
    machine = Machine(BrokerSettings(), RingPolicy())
    machine.restore(snapshot, [index])
    assert machine.subscriptions[SPORT] == story.machine.subscriptions[SPORT]
    assert handed(machine) == handed(story.machine) == [(0, 1, 1), (1, 2, 0)]


def test_what_older_releases_wrote_is_read() -> None:
    """They knew of no parts, and a batch of a commit did not say where else it goes."""
    old = {"client": "ann", "topics": ["a"], "cursors": {"a": 1}, "starts": {"a": 0}}
    subscription = msgspec.msgpack.decode(msgspec.msgpack.encode(old), type=Subscription)
    assert (subscription.key, subscription.all_topics, subscription.earlier) == (("ann", ("a",)), ("a",), ())
    assert not subscription.leaves("a", 5, ("b",))
    batch = msgspec.msgpack.encode(BatchWrite((Target("a", 1),), 1, 10))
    assert msgspec.msgpack.decode(batch, type=PartWrite).other_topics == ()


def test_topics_with_one_tag_are_one_part_wherever_they_stand() -> None:
    topics = ("sport", "b{x}", "a{x}", "news")
    assert parts_of(topics) == (("a{x}", "b{x}"), ("news",), ("sport",))
    whole = whole_of(parts_of(topics))
    acknowledgement = Acknowledgement(topics, (Position("b{x}", 3), Position("sport", 4)), 2)
    assert divided(acknowledgement) == (
        Acknowledgement(("a{x}", "b{x}"), (Position("b{x}", 3),), 2, whole),
        Acknowledgement(("sport",), (Position("sport", 4),), 2, whole),
    )
    assert divided(Acknowledgement(topics, ())) == (Acknowledgement(("a{x}", "b{x}"), (), 0, whole),)
    assert divided(acknowledgement := Acknowledgement(("b{x}", "a{x}"), ())) == (acknowledgement,)


@pytest.mark.parametrize("topics", [("other",), ("news", "weather"), ("news", "other")])
def test_topics_that_are_no_part_are_refused(topics: tuple[str, ...]) -> None:
    with pytest.raises(InvalidRequest, match="no part"):
        canonical(topics, WHOLE)
    assert canonical(("sport", "news"), WHOLE) == ("news", "sport")


def test_a_place_that_another_owner_gave_is_looked_up_nowhere() -> None:
    story = working()
    commit(story, 1, "news")
    topic = story.machine.topics["sport"]
    assert [place.topic for place in topic.shared[0]] == ["sport", "news"]
    assert topic.place(0) == Place(topic.addresses[0], 10)
