"""The state machine: what each command does, and what it refuses without changing anything."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidings.errors import (
    Fenced,
    InvalidRequest,
    LimitReached,
    NoSuchTopic,
    NotSubscribed,
    OutOfSequence,
    Overloaded,
    TidingsError,
)
from tidings.protocols.broker import machine, writing
from tidings.protocols.broker.commands import (
    Attach,
    BatchWrite,
    Carried,
    Carry,
    Close,
    Collect,
    Command,
    LimitTopic,
    Open,
    Subscribe,
    Trim,
    Unsubscribe,
    Write,
)
from tidings.protocols.broker.machine import Machine
from tidings.protocols.broker.messages import Acknowledgement, Position, Stored, Target
from tidings.settings import BrokerSettings


class Story:
    """A machine with a session of alice, and short ways to say what happens next."""

    def __init__(self, **settings: object) -> None:
        self.machine = Machine(BrokerSettings(**settings))  # type: ignore[arg-type]
        self.time_ms = 1_000
        self.address = 0
        self.apply(Open("alice", b"token", False))

    def apply(self, command: Command) -> object:
        self.address += 1_000
        return self.machine.apply(command, self.time_ms, self.address)

    def put(
        self, topic: str, sequence: int, count: int = 1, ids: tuple[str | None, ...] | None = None, epoch: int = 1
    ) -> Stored:
        batch = BatchWrite((Target(topic, sequence),), count, 10 * count, ids)
        [[stored]] = self.apply(Write("alice", epoch, (batch,)))  # type: ignore[misc]
        return stored

    def subscribe(self, *topics: str, start: object = "now") -> object:
        return self.apply(Subscribe("alice", 1, topics, start))  # type: ignore[arg-type]

    def ack(self, offset: int, *topics: str) -> object:
        positions = tuple(Position(topic, offset) for topic in topics)
        return self.apply(Write("alice", 1, (), (Acknowledgement(topics, positions),)))

    def cursor(self, *topics: str) -> dict[str, int]:
        return self.machine.subscriptions["alice", topics].cursors


def test_puts_get_consecutive_offsets() -> None:
    story = Story()
    assert story.put("news", 1, 3) == Stored(0)
    assert story.put("news", 4, 2) == Stored(3)
    assert story.machine.topics["news"].next_offset == 5


def test_a_repeated_put_is_answered_with_its_old_places() -> None:
    """Z9: the last batch and every older one, without storing anything."""
    story = Story()
    story.put("news", 1, 3)
    story.put("news", 4, 2)
    assert story.put("news", 4, 2) == Stored(None, ((0, 3), (1, 4)))
    assert story.put("news", 1, 3) == Stored(None, ((0, 0), (1, 1), (2, 2)))
    assert story.machine.topics["news"].next_offset == 5


def test_a_batch_that_overlaps_stores_only_its_new_messages() -> None:
    story = Story()
    story.put("news", 1, 3)
    assert story.put("news", 2, 4) == Stored(3, ((0, 1), (1, 2)))
    assert story.machine.topics["news"].thinned == {3: (2, 3)}
    assert story.put("news", 5) == Stored(None, ((0, 4),))


@given(
    st.lists(
        st.tuples(
            st.sampled_from(("news", "sport")),
            st.sampled_from((0, 0, 0, -1, -2, 1)),
            st.integers(1, 3),
            st.sampled_from((None, None, None, "a", "b")),
        ),
        min_size=4,
        max_size=12,
    ),
    st.none() | st.integers(3, 6),
)
def test_the_short_way_of_a_batch_that_only_follows_leads_to_the_same(
    puts: list[tuple[str, int, int, str | None]], backlog_max: int | None
) -> None:
    """Z9, Z13: the same answers and the same state as by the long way, which takes every batch."""
    ends = []
    for way in (writing.store_next, lambda *_: None):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(machine, "store_next", way)
            story = Story(max_backlog=backlog_max)
            story.subscribe("news")
            said: list[object] = []
            lasts = {"news": 0, "sport": 0}
            for topic, ahead, count, message_id in puts:
                sequence = max(1, lasts[topic] + 1 + ahead)
                try:
                    said.append(story.put(topic, sequence, count, message_id and (message_id,) * count))
                    lasts[topic] = max(lasts[topic], sequence + count - 1)
                except TidingsError as error:
                    said.append(str(error))
            ends.append((said, story.machine.seal()))
    assert ends[0] == ends[1]


def test_a_topic_may_have_a_limit_of_its_own() -> None:
    """C6: before that of all topics, also for a batch that only follows; 0 is none at all; a snapshot keeps it."""
    story = Story(max_backlog=3)
    story.subscribe("news")
    story.put("news", 1, 2)
    story.apply(LimitTopic("news", 2))
    with pytest.raises(Overloaded, match="limit of 2 "):
        story.put("news", 3)
    indexes, snapshot = story.machine.seal()
    again = Machine(story.machine.settings)
    again.restore(snapshot, [indexes])
    assert again.topics["news"].max_backlog == 2
    story.apply(LimitTopic("news", 0))
    story.put("news", 3, 5)
    story.apply(LimitTopic("news", None))
    with pytest.raises(Overloaded, match="limit of 3 "):
        story.put("news", 8)
    story.apply(LimitTopic("sport", 1))
    story.apply(Collect((), ("sport",)))
    assert "sport" in story.machine.topics, "the operator who set it would miss it"
    story.apply(LimitTopic("sport", None))
    story.apply(Collect((), ("sport",)))
    assert "sport" not in story.machine.topics


def test_a_limit_counts_for_a_broker_that_has_none() -> None:
    story = Story()
    story.subscribe("news")
    story.put("news", 1)
    story.apply(LimitTopic("news", 1))
    with pytest.raises(Overloaded):
        story.put("news", 2)


def test_a_gap_is_out_of_sequence() -> None:
    story = Story()
    story.put("news", 1)
    with pytest.raises(OutOfSequence, match="2 is the next"):
        story.put("news", 3)


def test_a_newer_session_fences_the_older() -> None:
    """Decision 9: puts and acks of the older epoch are refused, a repeated Hello is not a new session."""
    story = Story()
    assert story.apply(Open("alice", b"token", False)) == 1
    story.put("news", 1)
    assert story.apply(Open("alice", b"other", False)) == 2
    with pytest.raises(Fenced):
        story.put("news", 2)
    assert story.put("news", 2, epoch=2) == Stored(1)


def test_a_late_hello_of_an_older_session_does_not_bring_it_back() -> None:
    """Decision 9: a copy of it may have been on its way for long; the newer session stays."""
    story = Story()
    story.apply(Open("alice", b"other", False))
    with pytest.raises(Fenced):
        story.apply(Open("alice", b"token", False))
    assert story.machine.clients["alice"].epoch == 2
    assert story.apply(Open("alice", b"third", False)) == 3
    with pytest.raises(Fenced):
        story.apply(Open("alice", b"fourth", False, renews=2))
    assert story.apply(Open("alice", b"fifth", False, renews=3)) == 4


def test_a_message_id_is_stored_once_for_each_topic() -> None:
    """Z13, C13: also inside one batch, also by another publisher, until its time is over."""
    story = Story(ids_age_ms=10_000)
    assert story.put("news", 1, 3, ("a", None, "a")) == Stored(0, ((2, 0),))
    assert story.put("news", 4, 2, ("a", "b")) == Stored(2, ((0, 0),))
    assert story.put("sport", 1, 1, ("a",)) == Stored(0)
    assert story.put("news", 6, 1, ("b",)) == Stored(None, ((0, 2),))
    story.time_ms += 10_001
    assert story.put("news", 7, 1, ("a",)) == Stored(3)
    assert story.put("news", 5) == Stored(None, ((0, 2),)), "its number still leads to where its message is"


def test_too_many_ids_are_refused_and_nothing_is_stored() -> None:
    story = Story(ids_max=2)
    story.put("news", 1, 2, ("a", "b"))
    with pytest.raises(LimitReached, match="ids_max"):
        story.put("news", 3, 1, ("c",))
    assert story.machine.topics["news"].next_offset == 2


def test_a_put_to_several_topics_is_all_or_none() -> None:
    """P13."""
    story = Story(topics_max=2)
    both = BatchWrite((Target("news", 1), Target("sport", 1)), 1, 10)
    assert story.apply(Write("alice", 1, (both,))) == ((Stored(0), Stored(0)),)
    three = BatchWrite((Target("news", 2), Target("sport", 2), Target("art", 1)), 1, 10)
    with pytest.raises(LimitReached):
        story.apply(Write("alice", 1, (three,)))
    gap = BatchWrite((Target("news", 2), Target("sport", 9)), 1, 10)
    with pytest.raises(OutOfSequence):
        story.apply(Write("alice", 1, (gap,)))
    assert [topic.next_offset for topic in story.machine.topics.values()] == [1, 1]


def test_a_transaction_with_a_bad_acknowledgement_stores_nothing() -> None:
    story = Story()
    story.put("art", 1)
    batch = BatchWrite((Target("news", 1),), 1, 10)
    with pytest.raises(NotSubscribed):
        story.apply(Write("alice", 1, (batch,), (Acknowledgement(("art",), (Position("art", 1),)),)))
    assert "news" not in story.machine.topics


def test_two_batches_of_one_transaction_may_go_to_one_topic() -> None:
    story = Story()
    first = BatchWrite((Target("news", 1),), 2, 10, ("a", None))
    second = BatchWrite((Target("news", 3),), 2, 10, ("a", "b"))
    assert story.apply(Write("alice", 1, (first, second))) == ((Stored(0),), (Stored(2, ((0, 0),)),))
    assert story.apply(Write("alice", 1, (first, first)))  # Nonsense, but no reason to fall over.
    assert story.machine.topics["news"].next_offset == 3


def test_the_cursor_moves_only_forward() -> None:
    """Z7."""
    story = Story()
    story.subscribe("news")
    story.put("news", 1, 5)
    story.ack(3, "news")
    story.ack(2, "news")
    assert story.cursor("news") == {"news": 3}
    with pytest.raises(InvalidRequest, match="does not exist yet"):
        story.ack(6, "news")


def test_subscribe_is_idempotent_and_keeps_its_cursor() -> None:
    """Z5."""
    story = Story()
    assert story.subscribe("news") == ((Position("news", 0),), True)
    story.put("news", 1, 3)
    story.ack(2, "news")
    assert story.subscribe("news", start="earliest") == ((Position("news", 2),), False)


@pytest.mark.parametrize(("start", "offset"), [("now", 3), ("earliest", 0), ("last", 2), (1, 1)])
def test_where_a_subscription_starts(start: object, offset: int) -> None:
    """E4: "last" gives the topic's last message at once."""
    story = Story()
    story.put("news", 1, 3)
    assert story.subscribe("news", start=start) == ((Position("news", offset),), True)


def test_a_start_outside_of_the_topic_is_refused() -> None:
    story = Story()
    with pytest.raises(InvalidRequest, match="cannot start at 7"):
        story.subscribe("news", start=7)
    assert "news" not in story.machine.topics


def test_unsubscribe_of_what_is_not_there_is_a_clear_error() -> None:
    """Z5."""
    story = Story()
    with pytest.raises(NoSuchTopic, match="no topic 'news'"):
        story.apply(Unsubscribe("alice", 1, ("news",)))
    story.put("news", 1)
    with pytest.raises(NotSubscribed, match="not subscribed to 'news'"):
        story.apply(Unsubscribe("alice", 1, ("news",)))


@pytest.mark.parametrize(
    ("policy", "put_makes", "subscribe_makes"),
    [("auto", True, True), ("on-subscribe", False, True), ("on-publish", True, False)],
)
def test_which_operation_makes_a_topic(policy: str, put_makes: bool, subscribe_makes: bool) -> None:
    """Z2."""
    for operation, makes in (
        (lambda story: story.put("news", 1), put_makes),
        (lambda story: story.subscribe("news"), subscribe_makes),
    ):
        story = Story(topics=policy)
        if makes:
            operation(story)
        else:
            with pytest.raises(NoSuchTopic):
                operation(story)
        assert ("news" in story.machine.topics) == makes


def test_limits_have_names() -> None:
    """Decision 10."""
    story = Story(topics_max=1, clients_max=1, subscriptions_max=1)
    story.subscribe("news")
    for refused in (Subscribe("alice", 1, ("news", "sport"), "now"), Open("bob", b"t", False)):
        with pytest.raises(LimitReached, match="_max"):
            story.apply(refused)
    with pytest.raises(LimitReached, match="topics_max"):
        story.put("sport", 1)


def test_an_anonymous_client_leaves_nothing_behind() -> None:
    story = Story()
    story.apply(Open("nobody", b"t", True))
    story.apply(Subscribe("nobody", 1, ("news",), "now"))
    story.apply(Close("nobody", 1, ()))
    assert "nobody" not in story.machine.clients
    assert story.machine.subscriptions == {}
    assert story.machine.readers["news"] == {}


def test_retention_never_takes_what_is_owed_nor_the_last_message() -> None:
    story = Story()
    story.subscribe("news")
    for number in range(1, 6):
        story.put("news", number)
    story.ack(2, "news")
    story.apply(Trim((Position("news", 4), Position("gone", 1))))
    assert story.machine.topics["news"].first_offset == 2
    story.ack(5, "news")
    story.apply(Trim((Position("news", 5),)))
    assert story.machine.topics["news"].first_offset == 4
    assert story.put("news", 1) == Stored(None, ((0, None),)), "a duplicate stays one when its first copy is gone"


def test_a_carried_batch_moves_to_its_new_address() -> None:
    story = Story()
    story.put("news", 1)
    story.apply(Carry((Carried("news", 0, 10),)))
    assert story.machine.topics["news"].addresses[0] == story.address


def test_what_is_known_of_publishers_moves_with_a_batch() -> None:
    """The segment that it has left may go, with its index: the next piece says again where each number went."""
    story = Story()
    story.put("news", 1)
    first = story.machine.topics["news"].addresses[0]
    _, snapshot = story.machine.seal()
    story.machine.mark_sealed()
    story.machine.move(first, 10, 5_000)
    index, snapshot = story.machine.seal()
    again = Machine(BrokerSettings())
    again.restore(snapshot, [index])
    assert list(again.topics["news"].addresses) == [5_000]
    assert again.clients["alice"].tracks["news"].find(1) == 0


def _some_command(rng: random.Random, step: int) -> Command:
    client = rng.choice(["alice", "bob"])
    epoch = rng.randint(1, 3)
    topics = tuple(sorted(rng.sample(["news", "sport", "art"], rng.randint(1, 2))))
    offset = rng.randint(0, 10)
    ids = tuple(rng.choice([None, "a", "b", f"id{step}"]) for _ in range(2)) if rng.random() < 0.4 else None
    batch = BatchWrite(tuple(Target(topic, rng.randint(1, 8)) for topic in topics), 2, 20, ids)
    acknowledgement = Acknowledgement(topics, tuple(Position(topic, offset) for topic in topics))
    return rng.choice(
        [
            Open(client, bytes([rng.randint(1, 30)]), False),
            Write(client, epoch, (batch,)),
            Write(client, epoch, (batch,)),
            Write(client, epoch, (), (acknowledgement,)),
            Write(client, epoch, (batch,), (acknowledgement,)),
            Subscribe(client, epoch, topics, rng.choice(["now", "earliest", "last", offset])),
            Unsubscribe(client, epoch, topics),
            Attach(client, epoch, topics, ()),
            Trim((Position(topics[0], offset),)),
        ]
    )


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32))
def test_a_restored_machine_goes_on_like_the_first(seed: int) -> None:
    """Z11: snapshots and index pieces, taken anywhere, give the same answers to everything that follows."""
    rng = random.Random(seed)
    machine = Machine(BrokerSettings(ids_age_ms=40))
    pieces: list[bytes] = []
    for step in range(120):
        if rng.random() < 0.08:
            piece, snapshot = machine.seal()
            machine.mark_sealed()
            pieces.append(piece)
            restored = Machine(machine.settings)
            restored.restore(snapshot, pieces)
            assert restored.seal()[1] == snapshot
            machine = restored
            continue
        command = _some_command(rng, step)
        before = machine.seal()
        try:
            machine.apply(command, step, step * 1000)
        except TidingsError:
            if not isinstance(command, Write):  # A write also lets old ids go, refused or not.
                assert machine.seal() == before, "a refusal changes nothing"


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32))
def test_the_same_records_give_the_same_answers(seed: int) -> None:
    """Decision 4: the machine is deterministic."""
    runs = []
    for _ in range(2):
        rng = random.Random(seed)
        machine = Machine(BrokerSettings())
        answers: list[object] = []
        for step in range(80):
            try:
                answers.append(repr(machine.apply(_some_command(rng, step), step, step * 1000)))
            except TidingsError as error:
                answers.append(repr(error))
        runs.append((answers, machine.seal()))
    assert runs[0] == runs[1]
