"""Broker and journal together, request by request."""

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.node.desk import Desk, values
from tidings.errors import (
    Fenced,
    InvalidRequest,
    InvalidTopic,
    LimitReached,
    MessageTooLarge,
    NoSuchTopic,
    NotSubscribed,
    OutOfSequence,
    Overloaded,
    ProtocolError,
    Unauthorized,
)
from tidings.message import Columns
from tidings.protocols.broker import messages
from tidings.settings import BrokerSettings, JournalSettings
from tidings.wire import codec

SMALL = JournalSettings(segment_bytes_max=2_000, segment_records_max=20)


@pytest.fixture
def desk() -> Desk:
    desk = Desk()
    desk.hello("alice")
    desk.hello("bob")
    return desk


def test_the_four_operations(desk: Desk) -> None:
    """Z1, Z6, Z15: every reply kind of the two documents has its counterpart."""
    assert desk.subscribe("alice", "news") == messages.SubscribeDone(3, (messages.Position("news", 0),), True)
    assert desk.ask(messages.Get(5, "alice", 1, "news")) == messages.Empty(5, "news")
    assert desk.put("bob", "news", 1, b"hello") == messages.PutDone(2, (messages.Stored(0),))
    assert desk.ask(messages.Get(5, "alice", 1, "news")) == messages.Article(5, "news", 0, 1)
    assert desk.ack("alice", "news", 1) == messages.AckDone(4)
    assert desk.ask(messages.Get(5, "alice", 1, "news")) == messages.Empty(5, "news")
    assert desk.ask(messages.Unsubscribe(6, "alice", 1, ("news",))) == messages.UnsubscribeDone(6)
    assert desk.ask(messages.Get(5, "alice", 1, "news")).number == NotSubscribed.number
    assert desk.ask(messages.Get(5, "alice", 1, "art")).number == NoSuchTopic.number
    assert desk.ask(messages.Bye(7, "alice", 1)) == messages.ByeDone(7)


def test_get_gives_one_message_out_of_a_batch(desk: Desk) -> None:
    desk.subscribe("alice", "news")
    desk.put("bob", "news", 1, b"a", b"b", b"c", keys=[None, b"k", None])
    desk.ack("alice", "news", 1)
    desk.say([codec.encode(messages.Get(5, "alice", 1, "news"))])
    desk.commit()
    [(_, article, [columns])] = desk.heard()
    assert (article.offset, columns.values, columns.keys) == (1, [b"b"], [b"k"])


def test_nothing_is_answered_before_it_is_durable(desk: Desk) -> None:
    """Decision 3: neither the receipt nor the delivery leaves before the commit is finished."""
    desk.subscribe("alice", "news")
    desk.flow("alice", "news")
    part = messages.Part((messages.Target("news", 1),), 1)
    desk.say([codec.encode(messages.Put(9, "bob", 1, part)), codec.encode(Columns(1, "bob", [b"x"]))])
    commit = desk.engine.begin_commit(desk.now_ms)
    assert desk.heard() == []
    desk.engine.journal.write(commit)
    assert desk.heard() == []
    desk.engine.finish_commit(desk.now_ms)
    receipt, delivery = desk.heard()
    assert isinstance(receipt[1], messages.PutDone)
    assert isinstance(delivery[1], messages.Delivery)


def test_requests_that_come_during_a_commit_share_the_next_one(desk: Desk) -> None:
    """Decision 3: group commit."""
    for client in ("alice", "bob"):
        part = messages.Part((messages.Target("news", 1),), 1)
        desk.say([codec.encode(messages.Put(9, client, 1, part)), codec.encode(Columns(1, client, [b"x"]))])
    commit = desk.engine.begin_commit(desk.now_ms)
    assert len(commit.records) == 2


def test_a_commit_ends_when_it_is_large_and_the_rest_goes_into_the_next() -> None:
    """Decision 10: a commit is bounded, and nothing staged is lost or changes places."""
    desk = Desk(journal=JournalSettings(commit_bytes_max=1_000))
    clients = ("alice", "bob", "carol")
    for client in clients:
        desk.hello(client)
    for client in clients:
        part = messages.Part((messages.Target("news", 1),), 1)
        desk.say([codec.encode(messages.Put(9, client, 1, part)), codec.encode(Columns(1, client, [b"x" * 400]))])
    sizes = []
    while desk.engine.has_staged:
        commit = desk.engine.begin_commit(desk.now_ms)
        sizes.append(len(commit.records))
        desk.engine.journal.write(commit)
        desk.engine.finish_commit(desk.now_ms)
    assert sizes == [2, 1]
    assert desk.engine.staged_bytes == 0
    assert [answer.stored[0].first_offset for _, answer, _ in desk.heard()] == [0, 1, 2]


def test_everything_is_there_after_a_restart(desk: Desk) -> None:
    """Z3, Z9, Z11: topics, messages, subscriptions, cursors, sequence numbers and sessions."""
    desk.subscribe("alice", "news")
    desk.put("bob", "news", 1, b"a", b"b")
    desk.ack("alice", "news", 1)
    assert desk.restart() > 0
    assert desk.put("bob", "news", 1, b"a", b"b").stored[0].repeated == ((0, 0), (1, 1))
    assert desk.put("bob", "news", 3, b"c").stored == (messages.Stored(2),)
    assert values(desk.flow("alice", "news")) == [b"b", b"c"]
    assert desk.subscribe("alice", "news").created is False


def test_recovery_over_many_segments_replays_only_the_last() -> None:
    """Snapshots bound the time of recovery."""
    desk = Desk(journal=SMALL)
    desk.hello("bob")
    desk.hello("alice")
    desk.subscribe("alice", "news")
    for number in range(1, 201):
        desk.put("bob", "news", number, b"%d" % number)
    assert desk.restart() <= 20
    assert values(desk.flow("alice", "news", messages_room=10_000)) == [b"%d" % number for number in range(1, 201)]
    assert desk.put("bob", "news", 7, b"7").stored[0].repeated == ((0, 6),)


def test_credit_bounds_what_is_sent(desk: Desk) -> None:
    """Decision 10: a slow reader holds up nobody and fills no queue."""
    desk.subscribe("alice", "news")
    for number in range(1, 11):
        desk.put("bob", "news", number, b"%d" % number)
    assert len(values(desk.flow("alice", "news", messages_room=3))) == 3
    assert desk.put("bob", "news", 11, b"11").stored == (messages.Stored(10),)
    assert values(desk.flow("alice", "news", messages_room=5)) == [b"4", b"5"]
    assert values(desk.flow("alice", "news", messages_room=100)) == [b"%d" % number for number in range(6, 12)]


def test_credit_in_bytes_lets_at_least_one_batch_through(desk: Desk) -> None:
    desk.subscribe("alice", "news")
    for number in (1, 2):
        desk.put("bob", "news", number, bytes(1000))
    assert len(values(desk.flow("alice", "news", bytes_room=10))) == 1


def test_a_stream_starts_again_only_with_a_higher_number(desk: Desk) -> None:
    desk.subscribe("alice", "news")
    desk.put("bob", "news", 1, b"a")
    assert values(desk.flow("alice", "news", stream=5)) == [b"a"]
    assert values(desk.flow("alice", "news", stream=5)) == []
    assert desk.flow("alice", "news", stream=4) == []
    assert values(desk.flow("alice", "news", stream=6)) == [b"a"]
    at_end = (messages.Position("news", 1),)
    assert values(desk.flow("alice", "news", stream=7, positions=at_end)) == []


def test_a_new_session_is_told_what_may_come_twice(desk: Desk) -> None:
    """Z10: attempt 2 for what the older session was sent and did not acknowledge, 1 for the rest."""
    desk.subscribe("alice", "news")
    for number in range(1, 5):
        desk.put("bob", "news", number, b"%d" % number)
    desk.flow("alice", "news", messages_room=3)
    desk.ack("alice", "news", 1)
    desk.hello("alice", b"second")
    attempts = {message.since: message.attempt for _, message, _ in desk.flow("alice", "news", messages_room=2)}
    assert attempts == {1: 2}
    desk.hello("alice", b"third")
    attempts = {message.since: message.attempt for _, message, _ in desk.flow("alice", "news")}
    assert attempts == {1: 3, 3: 1}


def test_a_session_that_said_goodbye_leaves_an_exact_account(desk: Desk) -> None:
    """Z10: after a restart only what was really sent counts as redelivered."""
    desk.subscribe("alice", "news")
    desk.put("bob", "news", 1, b"1")
    desk.flow("alice", "news")
    desk.ask(messages.Bye(7, "alice", 1))
    desk.put("bob", "news", 2, b"2")
    desk.restart()
    desk.hello("alice", b"second")
    attempts = {message.since: message.attempt for _, message, _ in desk.flow("alice", "news")}
    assert attempts == {0: 2, 1: 1}


def test_a_session_that_goes_on_after_a_restart_is_still_told_what_an_older_one_had(desk: Desk) -> None:
    """Z10: the deliveries of the second session were lost with the broker; they may still be the third copy."""
    desk.subscribe("alice", "news")
    desk.put("bob", "news", 1, b"1")
    desk.flow("alice", "news")
    desk.hello("alice", b"second")
    desk.flow("alice", "news")
    desk.restart()
    desk.put("bob", "news", 2, b"2")
    attempts = {message.since: message.attempt for _, message, _ in desk.flow("alice", "news", stream=2)}
    assert attempts == {0: 2, 1: 1}


def test_a_message_to_several_topics_comes_once(desk: Desk) -> None:
    """P13."""
    desk.subscribe("alice", "news", "sport")
    part = messages.Part((messages.Target("news", 1), messages.Target("sport", 1)), 1)
    done = desk.ask(messages.Put(2, "bob", 1, part), Columns(1, "bob", [b"both"]))
    assert done.stored == (messages.Stored(0), messages.Stored(0))
    desk.put("bob", "sport", 2, b"sport")
    desk.put("bob", "news", 2, b"news")
    assert values(desk.flow("alice", "sport", "news")) == [b"both", b"sport", b"news"]


def test_a_message_put_before_one_topic_was_joined_still_comes(desk: Desk) -> None:
    desk.put("bob", "news", 1, b"old")
    part = messages.Part((messages.Target("news", 2), messages.Target("sport", 1)), 1)
    desk.ask(messages.Put(2, "bob", 1, part), Columns(1, "bob", [b"both"]))
    desk.subscribe("alice", "news", "sport", start="last")
    assert values(desk.flow("alice", "sport", "news")) == [b"both"]


def test_a_batch_to_several_topics_that_began_before_the_subscription_comes_once(desk: Desk) -> None:
    """P13: the subscription begins in the middle of the batch, elsewhere in each topic."""
    part = messages.Part((messages.Target("b", 1), messages.Target("c", 1), messages.Target("a", 1)), 3)
    desk.ask(messages.Put(2, "bob", 1, part), Columns(1, "bob", [b"0", b"1", b"2"]))
    desk.put("bob", "b", 4, b"3")
    desk.subscribe("alice", "a", "b", "c", start=1)
    assert values(desk.flow("alice", "a", "b", "c")) == [b"1", b"2", b"3"]
    desk.hello("carol")
    desk.subscribe("carol", "a", "b", "c", start="last")
    assert sorted(values(desk.flow("carol", "a", "b", "c"))) == [b"2", b"3"]


def test_a_vanished_client_frees_what_it_held(desk: Desk) -> None:
    """Z12: its stream ends after the silence, its subscription stays."""
    desk.subscribe("alice", "news")
    desk.flow("alice", "news")
    desk.now_ms += desk.settings.session_silence_ms_max + 1
    desk.engine.tick(desk.now_ms)
    assert desk.ask(messages.AskStatus(1)).numbers["streams"] == 0
    assert desk.ask(messages.Beat(8, "alice", 1, (1,))) == messages.BeatDone(8, (1,))
    assert desk.subscribe("alice", "news").created is False


def test_an_anonymous_client_is_forgotten_after_a_day(desk: Desk) -> None:
    desk.hello("nobody", anonymous=True)
    desk.engine.tick(desk.now_ms)
    desk.now_ms += 24 * 3600 * 1000 + 1
    desk.engine.tick(desk.now_ms)
    desk.commit()
    assert "nobody" not in desk.engine.broker.machine.clients
    assert "bob" in desk.engine.broker.machine.clients


def test_only_an_admin_may_stop_the_broker() -> None:
    """Z14: by name without keys, by the key's name with them."""
    desk = Desk(BrokerSettings(admins=("root",)))
    desk.hello("alice")
    desk.hello("root")
    assert desk.ask(messages.Shutdown(1, "alice", 1)).number == Unauthorized.number
    assert desk.ask(messages.Shutdown(1, "root", 1), user="alice").number == Unauthorized.number
    assert not desk.engine.stopping
    assert desk.ask(messages.Shutdown(1, "root", 1), user="root") == messages.ShutdownDone(1)
    assert desk.engine.stopping


def test_with_keys_nobody_speaks_for_another(desk: Desk) -> None:
    """The key's own name and names below it are allowed, for every request."""
    for refused in (
        messages.Hello(1, 1, "alice", b"x"),
        messages.AskSubscriptions(1, "alice", 1),
        messages.AskSubscribers(1, "alice", 1),
        messages.Hello(1, 1, "mallorys", b"x"),
    ):
        assert desk.ask(refused, user="mallory").number == Unauthorized.number
    assert isinstance(desk.ask(messages.Hello(1, 1, "mallory/import", b"x"), user="mallory"), messages.Welcome)
    assert isinstance(desk.ask(messages.AskTopics(1), user="mallory"), messages.Topics)


def test_a_full_disk_refuses_cleanly_and_goes_on(desk: Desk) -> None:
    desk.put("bob", "news", 1, b"a")
    desk.disk.capacity_bytes = sum(desk.disk.size(name) for name in desk.disk.names()) + 100
    refused = desk.put("bob", "news", 2, bytes(1000))
    assert refused.number == Overloaded.number
    assert "disk is full" in refused.text
    desk.disk.capacity_bytes = None
    assert desk.put("bob", "news", 2, bytes(1000)).stored == (messages.Stored(1),)
    desk.restart()
    assert desk.put("bob", "news", 3, b"c").stored == (messages.Stored(2),)


def test_retention_removes_segments_and_carries_what_is_owed() -> None:
    """Segments go whole; a quiet topic's owed message moves to the journal's end first."""
    desk = Desk(BrokerSettings(drop_acknowledged=True), SMALL)
    for client in ("alice", "bob"):
        desk.hello(client)
    desk.subscribe("alice", "news")
    desk.subscribe("alice", "quiet")
    desk.put("bob", "quiet", 1, b"owed")
    for number in range(1, 301):
        desk.put("bob", "news", number, bytes(50))
        desk.ack("alice", "news", number)
        if number % 20 == 0:
            desk.now_ms += 6_000
            desk.engine.tick(desk.now_ms)
            desk.commit()
    assert desk.engine.journal.segments[0].base_address > 0
    assert len(desk.disk.names()) < 12
    assert values(desk.flow("alice", "quiet")) == [b"owed"]
    desk.restart()
    desk.hello("alice", b"second")
    assert values(desk.flow("alice", "quiet")) == [b"owed"]
    assert desk.ask(messages.AskTopics(1, "news")).topics[0].next_offset == 300
    assert desk.put("bob", "news", 5, bytes(50)).stored[0].first_offset is None, "a duplicate stays one"


def test_without_retention_nothing_is_moved_or_removed() -> None:
    """Small messages leave a segment almost empty by their bodies; it is kept all the same."""
    desk = Desk(journal=SMALL)
    desk.hello("bob")
    for number in range(1, 101):
        desk.put("bob", "news", number, b"x")
        desk.now_ms += 6_000
        desk.engine.tick(desk.now_ms)
        desk.commit()
    assert desk.engine.journal.segments[0].first_slot == 0
    assert desk.engine.journal.next_slot == 101


def test_retention_by_size_and_by_age() -> None:
    for limits in ({"retain_bytes": 1_000}, {"retain_age_ms": 20_000}):
        desk = Desk(BrokerSettings(**limits), SMALL)
        desk.hello("bob")
        for number in range(1, 201):
            desk.put("bob", "news", number, bytes(50))
            desk.now_ms += 1_000
            desk.engine.tick(desk.now_ms)
            desk.commit()
        first = desk.ask(messages.AskTopics(1, "news")).topics[0].first_offset
        assert 100 < first < 200, limits


@pytest.mark.parametrize("limits", [{"retain_age_ms": 20_000, "retain_bytes": 1_000}, {"retain_bytes": 100}])
def test_a_small_topic_beside_a_busy_one_expires_however_often_it_is_copied_forward(limits: dict[str, int]) -> None:
    """The age of a message is its own; a restart does not make it young either."""
    desk = Desk(BrokerSettings(**limits), SMALL)
    desk.hello("bob")
    for number in (1, 2):
        desk.put("bob", "small", number, bytes(60))

    def busy(seconds: int) -> int:
        for _ in range(seconds):
            desk.now_ms += 1_000
            for _ in range(5):  # Segment after segment, each young when the small topic's messages come there.
                busy_topic = desk.engine.broker.machine.topics.get("busy")
                desk.put("bob", "busy", (busy_topic.next_offset if busy_topic else 0) + 1, bytes(50))
            desk.engine.tick(desk.now_ms)
            desk.commit()
        return int(desk.ask(messages.AskTopics(1, "small")).topics[0].first_offset)

    if "retain_age_ms" in limits:
        assert busy(15) == 0
        assert desk.engine.broker.machine.topics["small"].scattered, "it has been copied forward"
        desk.restart()
    assert busy(15) == 1, "the last one stays"


@pytest.mark.parametrize(
    ("error", "request_"),
    [
        (Fenced, messages.Put(1, "alice", 9, messages.Part((messages.Target("news", 1),), 1))),
        (Fenced, messages.Put(1, "nobody", 1, messages.Part((messages.Target("news", 1),), 1))),
        (OutOfSequence, messages.Put(1, "alice", 1, messages.Part((messages.Target("news", 2),), 1))),
        (InvalidTopic, messages.Put(1, "alice", 1, messages.Part((messages.Target("", 1),), 1))),
        (InvalidTopic, messages.Put(1, "alice", 1, messages.Part((messages.Target("x" * 129, 1),), 1))),
        (InvalidTopic, messages.Put(1, "alice", 1, messages.Part((messages.Target("a\0b", 1),), 1))),
        (ProtocolError, messages.Put(1, "alice", 1, messages.Part((messages.Target("news", 1),), 2))),
        (ProtocolError, messages.Put(1, "alice", 1, messages.Part((messages.Target("news", 0),), 1))),
        (ProtocolError, messages.Put(1, "bob", 1, messages.Part((messages.Target("news", 1),), 1))),
        (LimitReached, messages.Put(1, "alice", 1, messages.Part((), 1))),
        (InvalidRequest, messages.Put(1, "alice", 1, messages.Part((messages.Target("a", 1),) * 2, 1))),
    ],
)
def test_what_is_wrong_with_a_put_has_a_name(desk: Desk, error: type, request_: messages.Put) -> None:
    answer = desk.ask(request_, Columns(1, "alice", [b"x"]))
    assert answer.number == error.number
    assert answer.text.rstrip().endswith(".")
    assert desk.engine.broker.machine.topics == {}


def test_a_name_that_looks_like_a_path_is_only_a_name(desk: Desk) -> None:
    assert desk.put("bob", "../x", 1, b"hello").stored == (messages.Stored(0),)
    assert all("x" not in name for name in desk.disk.names())


def test_wrong_versions_names_and_tokens_are_refused(desk: Desk) -> None:
    assert desk.ask(messages.Hello(1, 99, "carol", b"t")).number == ProtocolError.number
    assert desk.ask(messages.Hello(1, 1, "", b"t")).number == InvalidRequest.number
    assert desk.ask(messages.Hello(1, 1, "carol", b"")).number == ProtocolError.number
    assert desk.ask(messages.Subscribe(1, "alice", 1, ())).number == InvalidRequest.number


def test_messages_and_batches_have_limits() -> None:
    desk = Desk(BrokerSettings(message_bytes_max=100, batch_bytes_max=1_000, batch_messages_max=5))
    desk.hello("bob")
    assert desk.put("bob", "news", 1, bytes(101)).number == MessageTooLarge.number
    assert desk.put("bob", "news", 1, *[b"x"] * 6).number == MessageTooLarge.number
    assert desk.put("bob", "news", 1, bytes(100)).stored == (messages.Stored(0),)


@pytest.mark.parametrize(
    "frames",
    [
        [],
        [b""],
        [b"\xc1"],
        [b"\x93\xa3put"],
        [codec.encode(["no-such-kind", 7])],
        [codec.encode(["put", 7, "alice"])],
        [codec.encode(["put", 7, "alice", 1, [[["news", 1]], 1]]), b"\xff"],
        [codec.encode(["put", 7, "alice", 1, [[["news", 1]], 1]]), codec.encode([2, "alice", [b"x"]])],
        [codec.encode(["put", 7, "alice", 1, [[["news", 1]], 1]]), codec.encode([1, "alice", [b"x"], [b"k", b"k"]])],
        [codec.encode(["put", 7, "alice", 1, [[["news", 1]], 1]])],
        [b"\x91" * 100_000],
    ],
)
def test_bad_frames_get_their_error_and_the_broker_lives(desk: Desk, frames: list[bytes]) -> None:
    desk.say(frames)
    [(_, answer, _)] = desk.heard()
    assert answer.number == ProtocolError.number
    assert desk.put("bob", "news", 1, b"fine").stored == (messages.Stored(0),)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.binary(max_size=60), max_size=4), st.integers(0, 2**32))
def test_random_and_broken_bytes_never_hurt(frames: list[bytes], seed: int) -> None:
    """A fuzzer over the broker's decoders: random frames, and valid ones with flipped bytes."""
    desk = Desk()
    desk.hello("alice")
    desk.say(frames)
    part = messages.Part((messages.Target("news", 1),), 1)
    good = [codec.encode(messages.Put(1, "alice", 1, part)), codec.encode(Columns(1, "alice", [b"x" * 5]))]
    where = seed % (len(good[0]) + len(good[1]))
    broken = [bytearray(frame) for frame in good]
    target, index = (broken[0], where) if where < len(good[0]) else (broken[1], where - len(good[0]))
    target[index] ^= 1 + (seed >> 8) % 255
    desk.say([bytes(frame) for frame in broken])
    desk.commit()
    assert all(isinstance(message, messages.Answer) for _, message, _ in desk.heard())
    assert desk.ask(messages.AskStatus(1)).numbers["clients"] >= 1


def test_the_status_counts(desk: Desk) -> None:
    desk.subscribe("alice", "news")
    desk.put("bob", "news", 1, os.urandom(10))
    numbers = desk.ask(messages.AskStatus(1)).numbers
    assert (numbers["topics"], numbers["subscriptions"], numbers["messages"], numbers["clients"]) == (1, 1, 1, 2)
