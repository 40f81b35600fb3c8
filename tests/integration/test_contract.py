"""What every bus must do, wherever its broker runs. Each test names the requirements that it proves."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest

import tidings
from tests.integration.conftest import House
from tidings.errors import InvalidRequest

PATIENCE_S = 60
"""When a test gives up on something that should have happened long ago."""

T = TypeVar("T")


def drain(bus: tidings.Bus, topic: str) -> list[str]:
    return [message.text for message in iter(lambda: bus.get(topic), None)]


def looped(loop: Callable[[], Iterable[T]], count: int) -> list[T]:
    """What comes out of a loop that ends when nothing more comes; it begins again until so many have come."""
    found, deadline = list(loop()), time.monotonic() + PATIENCE_S
    while len(found) < count and time.monotonic() < deadline:
        found += loop()
    return found


def test_the_four_operations(house: House) -> None:
    """Z1, Z6: subscribe, put, get, unsubscribe."""
    alice, bob = house.connect("alice"), house.connect("bob")
    alice.subscribe("news")
    assert alice.get("news") is None
    assert bob.put("news", "hello") == tidings.Receipt("news", 0, False)
    message = alice.get("news")
    assert message is not None
    assert (message.topic, message.offset, message.value, message.text) == ("news", 0, b"hello", "hello")
    assert (message.publisher, message.attempt, message.redelivered) == ("bob", 1, False)
    assert alice.get("news") is None
    alice.unsubscribe("news")
    with pytest.raises(tidings.NotSubscribed, match="subscribe first"):
        alice.get("news")
    with pytest.raises(tidings.NoSuchTopic):
        alice.get("nowhere")


@pytest.mark.parametrize("policy", ["auto", "on-subscribe", "on-publish"])
def test_which_operation_makes_a_topic(build: Callable[..., House], policy: str) -> None:
    """Z2."""
    bus = build(topics=policy).connect("alice")
    if policy == "on-subscribe":
        with pytest.raises(tidings.NoSuchTopic):
            bus.put("news", "hello")
        bus.subscribe("news")
        assert bus.put("news", "hello").offset == 0
    elif policy == "on-publish":
        with pytest.raises(tidings.NoSuchTopic):
            bus.subscribe("news")
        bus.put("news", "hello")
        bus.subscribe("news", start="earliest")
        assert drain(bus, "news") == ["hello"]
    else:
        bus.put("news", "hello")
        bus.subscribe("sport")
        assert [topic.name for topic in bus.topics()] == ["news", "sport"]


def test_an_inbox_counts_for_the_subscription_that_it_was_used_with(house: House, tmp_path: Path) -> None:
    """Z10: somebody else ended the subscription and made it again, and nothing of the new one is skipped."""
    first = house.connect("alice", inbox=tmp_path / "inbox")
    first.subscribe("news")
    first.put_many("news", ["a", "b"])
    assert drain(first, "news") == ["a", "b"]
    first.close()
    other = house.connect("alice")
    other.unsubscribe("news")
    other.subscribe("news", start="earliest")
    other.close()
    with house.connect("alice", inbox=tmp_path / "inbox") as again:
        assert drain(again, "news") == ["a", "b"]
        again.put("news", "c")
    with house.connect("alice", inbox=tmp_path / "inbox") as last:
        assert drain(last, "news") == ["c"]


def test_subscribers_below_a_name(house: House) -> None:
    """E1: a name sees the subscriptions of the names below it, and of nobody else; also after a restart."""
    door = house.connect("door")
    assert door.subscribers() == {}
    for name, topics in (
        ("door/1", ["news", "sport"]),
        ("door/2", ["news"]),
        ("doorway", ["news"]),
        ("door", ["news"]),
    ):
        with house.connect(name) as bus:
            for topic in topics:
                bus.subscribe(topic)
    with house.connect("door/3") as bus:
        bus.subscribe("news")
        bus.unsubscribe("news")
    house.restart()
    assert house.connect("door").subscribers() == {"door/1": [("news",), ("sport",)], "door/2": [("news",)]}


def test_subscriptions_outlive_their_subscriber_and_the_broker(house: House) -> None:
    """Z3: the process ends, messages come meanwhile, the broker is restarted, and nothing is missing."""
    alice = house.connect("alice")
    alice.subscribe("news")
    alice.close()
    house.connect("bob").put_many("news", ["one", "two"])
    house.restart()
    house.connect("bob").put("news", "three")
    house.restart()
    assert drain(house.connect("alice"), "news") == ["one", "two", "three"]


def test_a_subscriber_gets_every_message_in_order(house: House) -> None:
    """Z4: from its subscription on, by three ways of reading."""
    bus = house.connect("alice")
    bus.put("news", "before")
    subscription = bus.subscribe("news")
    expected = [f"message {number}" for number in range(3_000)]
    bus.put_many("news", expected[:1_000])
    for text in expected[1_000:1_100]:
        bus.put("news", text)
    bus.put_many("news", expected[1_100:])
    got = [bus.get("news") for _ in range(10)]
    got += list(itertools.islice(subscription.messages(timeout=1), 100))
    texts = [message.text for message in got if message is not None]

    def bodies() -> list[bytes]:
        return [value for batch in subscription.batches(timeout=0.2) for value in batch.values]

    texts += [value.decode() for value in looped(bodies, len(expected) - 109)]
    # The loop was left before the next message was asked for, so its last one was not acknowledged.
    assert texts == expected[:110] + expected[109:]
    assert bus.get("news") is None


def test_subscribe_twice_and_unsubscribe_twice(house: House) -> None:
    """Z5."""
    bus = house.connect("alice")
    bus.subscribe("news")
    bus.put("news", "one")
    bus.subscribe("news")
    assert drain(bus, "news") == ["one"]
    bus.unsubscribe("news")
    with pytest.raises(tidings.NotSubscribed):
        bus.unsubscribe("news")
    with pytest.raises(tidings.NoSuchTopic):
        bus.unsubscribe("nowhere")


def test_get_all_gives_one_message_of_each_topic(house: House) -> None:
    """Z6."""
    bus = house.connect("alice")
    for topic in ("news", "sport", "art"):
        bus.subscribe(topic)
    bus.put_many("news", ["n1", "n2"])
    bus.put("sport", "s1")
    assert {topic: message.text for topic, message in bus.get_all().items()} == {"news": "n1", "sport": "s1"}
    assert {topic: message.text for topic, message in bus.get_all().items()} == {"news": "n2"}
    assert bus.get_all() == {}


def test_the_cursor_moves_only_by_acknowledgement(house: House) -> None:
    """Z7: what was delivered and not acknowledged comes again, and says so; what was acknowledged does not."""
    first = house.connect("alice")
    subscription = first.subscribe("news")
    first.put_many("news", ["one", "two", "three"])
    assert first.get("news") is not None
    for message in subscription:
        assert message.text == "two"
        break
    second = house.connect("alice")
    again = second.get("news")
    assert again is not None
    assert (again.text, again.redelivered) == ("two", True)


def test_a_message_id_is_taken_once(house: House) -> None:
    """Z13: also from another client, also after a restart."""
    alice, bob = house.connect("alice"), house.connect("bob")
    assert alice.put("news", "hello", id="a1") == tidings.Receipt("news", 0, False)
    assert bob.put("news", "hello", id="a1") == tidings.Receipt("news", 0, True)
    house.restart()
    carol = house.connect("carol")
    assert carol.put("news", "hello", id="a1") == tidings.Receipt("news", 0, True)
    assert carol.topic("news").count == 1


def test_every_field_of_a_message_arrives(house: House) -> None:
    """Z15: the fields of seed 000 and those of ours."""
    bus = house.connect("alice")
    bus.subscribe("news")
    bus.put("news", b"\xff\x00", key="k", headers={"trace": "t1", "raw": b"\x01"}, id="m1")
    message = bus.get("news")
    assert message is not None
    assert (message.value, message.key, message.id) == (b"\xff\x00", b"k", "m1")
    assert message.headers == {"trace": b"t1", "raw": b"\x01"}
    assert message.published_at > 1.6e9


def test_one_message_to_several_topics(house: House) -> None:
    """P13: all or none; a subscription to several topics gets it once."""
    bus = house.connect("alice")
    both = bus.subscribe(["news", "sport"])
    bus.subscribe("sport")
    receipts = bus.put(["news", "sport"], "both")
    assert [(receipt.topic, receipt.offset) for receipt in receipts] == [("news", 0), ("sport", 0)]
    bus.put("sport", "only sport")
    found = [message.text for message in looped(lambda: both.messages(timeout=0.2), 2)]
    assert (found if house.ORDER_BETWEEN_TOPICS else sorted(found)) == ["both", "only sport"]
    assert drain(bus, "sport") == ["both", "only sport"]
    with pytest.raises(tidings.InvalidTopic):
        bus.put(["news", "bad\0name"], "neither")
    assert bus.topic("news").count == 1


def test_where_a_subscription_starts(house: House) -> None:
    """E4 among others: "last" gives the topic's last message at once."""
    bus = house.connect("alice")
    bus.put_many("news", ["zero", "one", "two"])
    starts: dict[str | int, list[str]] = {
        "now": [],
        "earliest": ["zero", "one", "two"],
        "last": ["two"],
        1: ["one", "two"],
    }
    for number, (start, expected) in enumerate(starts.items()):
        reader = house.connect(f"reader{number}")
        reader.subscribe("news", start=start)
        assert drain(reader, "news") == expected
    with pytest.raises(InvalidRequest):
        bus.subscribe("news", start=99)


def test_bad_topic_names_are_refused(house: House) -> None:
    bus = house.connect("alice")
    for topic in ("", "x" * 129, "a\0b", "line\nbreak"):
        for operation in (partial(bus.put, topic, "x"), partial(bus.subscribe, topic), partial(bus.get, topic)):
            with pytest.raises(tidings.InvalidTopic):
                operation()
    assert bus.topics() == []


def test_odd_topic_names_are_only_names(house: House) -> None:
    bus = house.connect("alice")
    for topic in ("../x", "/etc/passwd", "a b", "ü✓", "x" * 128, "."):
        bus.subscribe(topic)
        bus.put(topic, "hello")
        assert drain(bus, topic) == ["hello"], topic
    folders = {house.data, house.data / "topics"}  # A storage server keeps a text for each topic (E5).
    assert all(part.parent in folders for part in house.data.rglob("*"))


def test_a_message_above_the_limit_is_refused(house: House) -> None:
    bus = house.connect("alice")
    bus.put("news", bytes(2**20))
    sentence = r"A message of 1048577 bytes is above message_bytes_max \(1048576\): split it, or raise that setting"
    with pytest.raises(tidings.MessageTooLarge, match=sentence):
        bus.put("news", bytes(2**20 + 1))
    with pytest.raises(tidings.MessageTooLarge, match=sentence):
        bus.put_many("news", [b"small", bytes(2**20 + 1)])
    assert bus.put("news", "after").offset is not None


def test_a_newer_session_fences_the_older(house: House) -> None:
    """Decision 9: refused, never guessed at."""
    older = house.connect("alice")
    older.subscribe("news")
    older.put("news", "one")
    newer = house.connect("alice")
    with pytest.raises(tidings.Fenced, match="newer session"):
        older.put("news", "two")
    with pytest.raises(tidings.Fenced):
        older.get("news")
    newer.put("news", "two")
    assert drain(newer, "news") == ["one", "two"]


def test_a_transaction_is_all_or_nothing(house: House) -> None:
    """Get, work, put: the acknowledgement and the result are one record."""
    bus = house.connect("alice")
    bus.subscribe("orders")
    bus.put_many("orders", ["one", "two"])

    def fail_half_way() -> None:
        with bus.transaction() as tx:
            message = tx.get("orders")
            assert message is not None
            tx.put("invoices", message.text.upper())
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_half_way()
    assert "invoices" not in [topic.name for topic in bus.topics()]
    with bus.transaction() as tx:
        for _ in range(2):
            message = tx.get("orders")
            assert message is not None
            tx.put("invoices", message.text.upper())
    house.restart()
    reader = house.connect("reader")
    reader.subscribe("invoices", start="earliest")
    assert drain(reader, "invoices") == ["ONE", "TWO"]
    assert drain(house.connect("alice"), "orders") == []


def test_a_publisher_goes_on_where_it_stopped(house: House) -> None:
    """A reader of a file resumes exactly, in another process and after a restart of the broker."""
    lines = [f"line {number}" for number in range(10)]
    with house.connect("alice").publisher("import-7") as publisher:
        publisher.put_many("news", lines[:4])
    house.restart()
    with house.connect("alice").publisher("import-7") as publisher:
        done = publisher.last_sequence("news")
        assert done == 4
        publisher.put_many("news", lines[done:])
    bus = house.connect("reader")
    bus.subscribe("news", start="earliest")
    assert drain(bus, "news") == lines


def test_handlers_are_pushed_to(house: House) -> None:
    """C1: a callable gets messages as they arrive; one that fails keeps its message."""
    bus, publisher = house.connect("alice"), house.connect("bob")
    seen: list[str] = []

    @bus.on("news")
    def show(message: tidings.Message) -> None:
        if message.text == "bad" and "bad!" not in seen:
            seen.append("bad!")
            raise ZeroDivisionError
        seen.append(message.text)
        if message.text == "last":
            bus.stop()

    for text in ("one", "bad", "last"):
        publisher.put("news", text)
    with pytest.raises(ZeroDivisionError):
        bus.run()
    bus.run()
    assert seen == ["one", "bad!", "bad", "last"]


def test_a_waiting_get_is_woken_by_a_put(house: House) -> None:
    bus, publisher = house.connect("alice"), house.connect("bob")
    bus.subscribe("news")
    got: list[str] = []

    def wait() -> None:
        message = bus.get("news", timeout=60)
        assert message is not None
        got.append(message.text)

    waiting = threading.Thread(target=wait)
    waiting.start()
    publisher.put("news", "wake up")
    waiting.join(60)
    assert got == ["wake up"]


def test_puts_that_pile_up_keep_their_order_and_their_receipts(house: House) -> None:
    """Decision 1: what is put while something is in flight is packed."""
    bus = house.connect("alice")
    pending = [bus.put_soon("news", str(number)) for number in range(500)]
    bus.flush()
    assert [each.result().offset for each in pending] == list(range(500))
    bus.subscribe("news", start="earliest")
    assert drain(bus, "news") == [str(number) for number in range(500)]


def test_a_topic_may_have_a_limit_of_its_own(house: House) -> None:
    """C6: it holds at once, for this topic alone, and after a restart, until somebody says otherwise."""
    bus = house.connect("alice")
    bus.subscribe("jobs")
    bus.limit_topic("jobs", 2)
    bus.put_many("jobs", ["one", "two"])
    bus.put_many("others", [str(number) for number in range(10)])
    with pytest.raises(tidings.Overloaded, match="limit of 2 "):
        bus.put("jobs", "three")
    house.restart()
    bus = house.connect("alice")
    assert [(info.name, info.max_backlog) for info in bus.topics()] == [("jobs", 2), ("others", None)]
    with pytest.raises(tidings.Overloaded, match="limit of 2 "):
        bus.put("jobs", "three")
    assert drain(bus, "jobs") == ["one", "two"]
    bus.put("jobs", "three")
    bus.limit_topic("jobs", 0)
    bus.put_many("jobs", ["four", "five", "six"])
    bus.limit_topic("jobs", None)
    assert bus.topic("jobs").max_backlog is None
    with pytest.raises(InvalidRequest, match="max_backlog"):
        bus.limit_topic("jobs", -1)


def test_topics_are_discovered(house: House) -> None:
    """C2: listed with counts, looked up by name, there at once when new."""
    bus = house.connect("alice")
    assert bus.topics() == []
    bus.put_many("news", ["one", "two"])
    bus.subscribe("news")
    bus.subscribe("sport")
    assert [(topic.name, topic.count, topic.subscriptions) for topic in bus.topics()] == [
        ("news", 2, 1),
        ("sport", 0, 1),
    ]
    assert bus.topic("news").next_offset == 2
    with pytest.raises(tidings.NoSuchTopic):
        bus.topic("nowhere")


def test_an_anonymous_client_leaves_no_subscription(house: House) -> None:
    nobody = house.connect()
    nobody.subscribe("news")
    nobody.close()
    assert house.connect("alice").topic("news").subscriptions == 0


def test_large_and_small_messages_mix(house: House) -> None:
    bus = house.connect("alice")
    subscription = bus.subscribe("news")
    values = [bytes([number]) * size for number, size in enumerate([1, 2**20, 10, 300_000, 5, 2**19, 1])]
    bus.put_many("news", values)
    for value in values:
        bus.put("news", value)
    found = looped(lambda: subscription.messages(timeout=0.3), 2 * len(values))
    assert [message.value for message in found] == values * 2


def test_ranges_are_read_wherever_they_lie(house: House) -> None:
    """D1: both ways, one of which goes through the journal's files where they are at hand."""
    bus = house.connect("alice")
    values = [b"%d" % number * 20 for number in range(10_000)]
    bus.put_many("numbers", values)
    for reader in (house.connect("bob"), house.connect("eve")):
        assert [value for batch in reader.read("numbers") for value in batch.values] == values
        assert [value for each in reader.read_stored("numbers", 7) for value in each.batch().values] == values[7:]
