"""What a ring asks of its users beyond the contract, and gives them for it: tags, and refusals that say what to do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import tidings
from tests.integration.ring_house import RingHouse
from tests.integration.test_contract import drain, looped
from tidings.protocols.ring.key_ranges import point_of
from tidings.ring.survey import RingView


@pytest.fixture
def ring(tmp_path: Path) -> Iterator[RingHouse]:
    house = RingHouse(tmp_path / "data")
    try:
        yield house
    finally:
        house.close()


def owner_of(view: RingView, topic: str) -> str:
    (owner,) = [group.group for group in view.groups if any(point_of(topic) in key_range for key_range in group.ranges)]
    return owner


def topic_of(view: RingView, number: int, form: str = "topic{}") -> str:
    """A topic that a certain group owns."""
    group = view.groups[number].group
    return next(name for name in map(form.format, range(100_000)) if owner_of(view, name) == group)


def test_one_message_to_several_topics_with_a_tag(ring: RingHouse) -> None:
    """P13 on a ring: all or none; a subscription to several topics gets it once."""
    bus = ring.connect("alice")
    news, sport = "{daily}news", "{daily}sport"
    both = bus.subscribe([news, sport])
    bus.subscribe(sport)
    receipts = bus.put([news, sport], "both")
    assert [(receipt.topic, receipt.offset) for receipt in receipts] == [(news, 0), (sport, 0)]
    bus.put(sport, "only sport")
    assert [message.text for message in looped(lambda: both.messages(timeout=0.2), 2)] == ["both", "only sport"]
    assert drain(bus, sport) == ["both", "only sport"]


def test_a_transaction_with_a_tag_is_all_or_nothing(ring: RingHouse) -> None:
    """P8 to P10: get, work, put as one record of the owner; also after every node was killed."""
    bus = ring.connect("alice")
    orders, invoices = "{shop}orders", "{shop}invoices"
    bus.subscribe(orders)
    bus.put_many(orders, ["one", "two"])

    def fail_half_way() -> None:
        with bus.transaction() as tx:
            message = tx.get(orders)
            assert message is not None
            tx.put(invoices, message.text.upper())
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_half_way()
    assert invoices not in [topic.name for topic in bus.topics()]
    with bus.transaction() as tx:
        for _ in range(2):
            message = tx.get(orders)
            assert message is not None
            tx.put(invoices, message.text.upper())
    ring.restart()
    reader = ring.connect("reader")
    reader.subscribe(invoices, start="earliest")
    assert drain(reader, invoices) == ["ONE", "TWO"]
    assert drain(ring.connect("alice"), orders) == []


def test_topics_that_lie_apart_are_refused_with_advice(ring: RingHouse) -> None:
    bus = ring.connect("alice")
    view = ring.trial.view()
    names = [topic_of(view, 0), topic_of(view, 1)]
    with pytest.raises(tidings.InvalidRequest, match="same tag in braces"):
        bus.put(names, "both")
    with pytest.raises(tidings.InvalidRequest, match="same tag in braces"):
        bus.subscribe(names)
    assert [topic.name for topic in bus.topics()] == []


def test_staged_writes_are_refused_with_advice(ring: RingHouse) -> None:
    stage = ring.connect("alice").stage("query", 1, "attempt-0")

    def write_all() -> None:
        stage.write("news", [b"one"])
        stage.finish()

    with pytest.raises(tidings.InvalidRequest, match="staged writes"):
        write_all()


def test_every_node_serves_what_any_group_owns(ring: RingHouse) -> None:
    """P8, P9: the owner of a topic, it is the same topic at every door; all topics are found at each."""
    view = ring.trial.view()
    assert len(view.groups) == 2
    names = [topic_of(view, 0), topic_of(view, 1)]
    buses = [tidings.connect(address, f"client{number}") for number, address in enumerate(ring.trial.addresses)]
    try:
        for bus in buses:
            for name in names:
                bus.subscribe(name)
        for bus in buses:
            for name in names:
                bus.put(name, f"{name} by {bus.client_id}")
        for bus in buses:
            for name in names:
                assert drain(bus, name) == [f"{name} by {other.client_id}" for other in buses]
            assert [topic.name for topic in bus.topics()] == sorted(names)
            assert sorted(bus.subscriptions()) == sorted((name,) for name in names)
    finally:
        for bus in buses:
            bus.close()


def test_a_newer_session_fences_the_older_at_every_owner(ring: RingHouse) -> None:
    """P9: one of the topics lies elsewhere than the client's home, which gives the epochs; the same holds there."""
    view = ring.trial.view()
    older = ring.connect("alice")
    for number in range(2):
        older.put(topic_of(view, number), "one")
    newer = ring.connect("alice")
    for number in range(2):
        with pytest.raises(tidings.Fenced, match="newer session"):
            older.put(topic_of(view, number), "two")
        assert newer.put(topic_of(view, number), "two").offset == 1


def test_an_anonymous_client_leaves_no_subscription_with_any_owner(ring: RingHouse) -> None:
    """P9: a goodbye is answered when every owner that has heard of the name has forgotten it."""
    view = ring.trial.view()
    names = [topic_of(view, number) for number in range(2)]
    for _ in range(5):
        nobody = ring.connect()
        for name in names:
            nobody.subscribe(name)
        nobody.close()
        assert [topic.subscriptions for topic in ring.connect("alice").topics()] == [0, 0]


def test_no_topic_becomes_a_path_in_any_folder(ring: RingHouse) -> None:
    bus = ring.connect("alice")
    for topic in ("../x", "/etc/passwd", "{../y}z"):
        bus.put(topic, "hello")
    folders = {ring.folder, *(Path(node.folder) for node in ring.trial.record.nodes)}
    assert all(part.parent in folders for part in ring.folder.rglob("*"))
