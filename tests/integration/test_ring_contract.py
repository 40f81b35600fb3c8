"""What a ring asks of its users beyond the contract, and gives them for it: tags, and refusals that say what to do."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

import tidings
from tests.integration.ring_house import RingHouse
from tests.integration.test_contract import drain, looped
from tidings.admin.survey import RingView
from tidings.protocols.ring.key_ranges import point_of


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


def test_one_message_to_topics_of_several_groups(ring: RingHouse) -> None:
    """P13 where the topics have different owners: all or none, in order, and known after every node was killed."""
    bus = ring.connect("alice")
    view = ring.trial.view()
    names = [topic_of(view, number) for number in range(len(view.groups))]
    for name in names:
        bus.subscribe(name)
    bus.put(names[0], "before")
    receipts = bus.put(names, "all")
    assert [(receipt.topic, receipt.offset) for receipt in receipts] == [
        (names[0], 1),
        *((name, 0) for name in names[1:]),
    ]
    pending = [bus.put_soon(topic, text) for topic, text in ((names, "soon"), (names[1], "alone"), (names, "last"))]
    bus.flush()
    assert all(each.result() for each in pending)
    again = [bus.put(names, "once", id="one") for _ in range(2)]
    assert [[receipt.duplicate for receipt in each] for each in again] == [[False] * len(names), [True] * len(names)]
    ring.restart()
    bus = ring.connect("alice")
    assert drain(bus, names[0]) == ["before", "all", "soon", "last", "once"]
    assert drain(bus, names[1]) == ["all", "soon", "alone", "last", "once"]
    with pytest.raises(tidings.InvalidTopic):
        bus.put([*names, "bad\0name"], "none")
    with bus.publisher("import") as publisher:
        publisher.put(names, "imported")
        assert [publisher.last_sequence(name) for name in names] == [1] * len(names)


def test_a_transaction_over_several_groups(ring: RingHouse) -> None:
    """P8 to P10: what is taken at one owner and what is put to others happens together, once."""
    bus = ring.connect("alice")
    view = ring.trial.view()
    orders, invoices, mails = (
        topic_of(view, 0, "orders{}"),
        topic_of(view, 1, "invoices{}"),
        topic_of(view, 0, "mails{}"),
    )
    bus.subscribe(orders)
    bus.put_many(orders, ["one", "two", "three"])

    def fail_half_way() -> None:
        with bus.transaction() as tx:
            assert tx.get(orders) is not None
            tx.put([invoices, mails], "never")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_half_way()
    with bus.transaction() as tx:
        for _ in range(2):
            message = tx.get(orders)
            assert message is not None
            tx.put(invoices, message.text.upper())
            tx.put([mails, invoices], f"sent {message.text}")
    assert [[receipt.topic for receipt in each] for each in tx.receipts] == [[invoices], [mails, invoices]] * 2
    ring.restart()
    reader = ring.connect("reader")
    for name in (invoices, mails):
        reader.subscribe(name, start="earliest")
    assert drain(reader, invoices) == ["ONE", "sent one", "TWO", "sent two"]
    assert drain(reader, mails) == ["sent one", "sent two"]
    assert drain(ring.connect("alice"), orders) == ["three"]


def test_the_awaiting_bus_commits_over_several_groups(ring: RingHouse) -> None:
    """The same calls, awaited."""
    view = ring.trial.view()
    names = [topic_of(view, number) for number in range(2)]

    async def commit() -> list[list[tidings.Receipt]]:
        async with await tidings.aconnect(ring.trial.bus, "bob") as bus:
            await bus.subscribe(names[0])
            await bus.put(names, "both")
            async with bus.transaction() as tx:
                message = await tx.get(names[0], timeout=30)
                assert message is not None and message.text == "both"
                tx.put(names[1], "answer")
            assert await bus.get(names[0]) is None
            return tx.receipts

    assert asyncio.run(commit()) == [[tidings.Receipt(names[1], 1)]]


def apart(ring: RingHouse, form: str = "topic{}") -> list[str]:
    """Two topics of different groups, and one that lies with the first."""
    view = ring.trial.view()
    return [topic_of(view, 0, form), topic_of(view, 1, form), topic_of(view, 0, f"{form}-too")]


def test_one_subscription_to_topics_of_several_groups(ring: RingHouse) -> None:
    """P13: every message once, what went to several topics too, in order within each; also after all nodes died."""
    bus = ring.connect("alice")
    names = apart(ring)
    both = bus.subscribe(names)
    assert bus.subscriptions() == [tuple(sorted(names))]
    for number in range(20):
        bus.put(names[number % 3], f"alone {number}")
        bus.put(names, f"all {number}")
    found = [message.text for message in looped(lambda: both.messages(timeout=2), 40)]
    assert sorted(found) == sorted(f"{kind} {number}" for number in range(20) for kind in ("alone", "all"))
    for place in range(3):
        alone = [f"alone {number}" for number in range(place, 20, 3)]
        assert [text for text in found if text in alone] == alone
    assert [text for text in found if text.startswith("all")] == [f"all {number}" for number in range(20)]
    ring.restart()
    bus = ring.connect("alice")
    assert bus.get(names, timeout=0.5) is None, "what was acknowledged is not handed out again"
    bus.put(names, "after")
    message = bus.get(names, timeout=30)
    assert message is not None and (message.topic, message.text) == (min(names), "after")
    assert bus.get(names, timeout=0.5) is None


def test_where_a_subscription_over_several_groups_starts(ring: RingHouse) -> None:
    """What was there before comes through every topic that has it; what is put later comes once."""
    bus = ring.connect("alice")
    names = apart(ring)[:2]
    for text in ("zero", "one", "two"):
        bus.put(names, text)
    starts: dict[str | int, list[str]] = {
        "now": [],
        "earliest": ["zero", "zero", "one", "one", "two", "two"],
        "last": ["two", "two"],
        1: ["one", "one", "two", "two"],
    }
    readers = [ring.connect(f"reader{number}") for number in range(len(starts))]
    for reader, (start, expected) in zip(readers, starts.items(), strict=True):
        subscription = reader.subscribe(names, start=start)  # type: ignore[arg-type]
        found = [message.text for message in looped(lambda each=subscription: each.messages(timeout=1), len(expected))]
        assert sorted(found) == sorted(expected)
    bus.put(names, "new")
    for reader in readers:
        message = reader.get(names, timeout=30)
        assert message is not None and message.text == "new"
        assert reader.get(names, timeout=0.3) is None


def test_a_transaction_on_a_subscription_over_several_groups(ring: RingHouse) -> None:
    """P8 to P10: what is taken from topics of several owners, and the answers, happen together or not at all."""
    bus = ring.connect("alice")
    names, answers = apart(ring)[:2], apart(ring, "answers{}")[1]
    bus.subscribe(names)
    for number in range(3):
        for name in names:
            bus.put(name, f"{name} {number}")

    def fail_half_way() -> None:
        with bus.transaction() as tx:
            assert tx.get(names, timeout=30) is not None and tx.get(names, timeout=30) is not None
            tx.put(answers, "never")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_half_way()
    with bus.transaction() as tx:
        for _ in range(6):
            message = tx.get(names, timeout=30)
            assert message is not None
            tx.put(answers, message.text.upper())
    ring.restart()
    reader = ring.connect("reader")
    reader.subscribe(answers, start="earliest")
    found = drain(reader, answers)
    for name in names:
        mine = [f"{name} {number}".upper() for number in range(3)]
        assert [text for text in found if text in mine] == mine
    assert len(found) == 6
    assert ring.connect("alice").get(names, timeout=0.5) is None


def test_the_awaiting_bus_reads_topics_of_several_groups(ring: RingHouse) -> None:
    """The same calls, awaited; and handlers."""
    names = apart(ring)[:2]
    handled: list[str] = []

    async def read() -> list[str]:
        async with await tidings.aconnect(ring.trial.bus, "bob") as bus:
            subscription = await bus.subscribe(names)
            await bus.put(names, "both")
            await bus.put(names[1], "alone")
            found = []
            async for message in subscription:
                found.append(message.text)
                if len(found) == 2:
                    break
            await bus.unsubscribe(names)
            assert await bus.subscriptions() == []
            return found

    assert sorted(asyncio.run(read())) == ["alone", "both"]
    bus = ring.connect("carol")

    @bus.on(names)
    def show(message: tidings.Message) -> None:
        handled.append(message.text)
        if len(handled) == 3:
            bus.stop()

    other = ring.connect("dave")
    for text in ("one", "two", "three"):
        other.put(names, text)
    bus.run(timeout=30)
    assert handled == ["one", "two", "three"]


def test_an_ended_subscription_leaves_nothing_with_any_owner(ring: RingHouse) -> None:
    bus = ring.connect("alice")
    names = apart(ring)
    for _ in range(2):
        bus.subscribe(names)
        assert [topic.subscriptions for topic in bus.topics()] == [1, 1, 1]
        bus.unsubscribe(names)
        assert [topic.subscriptions for topic in bus.topics()] == [0, 0, 0]
        assert bus.subscriptions() == []
        with pytest.raises(tidings.NotSubscribed):
            bus.get(names)
        with pytest.raises(tidings.NotSubscribed):
            bus.unsubscribe(names)
    nobody = ring.connect()
    nobody.subscribe(names)
    nobody.close()
    assert [topic.subscriptions for topic in bus.topics()] == [0, 0, 0]


def both_topics(ring: RingHouse) -> tuple[str, str]:
    """A topic of each group."""
    view = ring.trial.view()
    return topic_of(view, 0), topic_of(view, 1)


def values(bus: tidings.Bus, topic: str) -> list[bytes]:
    return [value for batch in bus.read(topic) for value in batch.values]


def test_stages_with_topics_of_several_owners_are_published_once(ring: RingHouse) -> None:
    """D3 on a ring: all or none, also when every node is killed between the steps."""
    bus, topics = ring.connect("alice"), both_topics(ring)
    lost = bus.stage("query", 1, "attempt-0")
    for topic in topics:
        lost.write(topic, [b"half"])
    lost.finish()
    good = bus.stage("query", 1, "attempt-1")
    for topic in topics:
        good.write(topic, [b"%d" % number for number in range(20_000)])
    named = [good.finish()]
    assert bus.topics() == []
    ring.restart()
    bus = ring.connect("bob")
    done = bus.publish("query", 1, named)
    assert not done.repeated
    assert [(each.topic, each.first_offset, each.next_offset) for each in done.extents] == [
        (topic, 0, 20_000) for topic in topics
    ]
    ring.restart()
    bus = ring.connect("eve")
    again = bus.publish("query", 1, named)
    assert again.repeated and again.topics == topics
    for topic in topics:
        assert values(bus, topic) == [b"%d" % number for number in range(20_000)]
    late = bus.stage("query", 1, "attempt-2")
    for topic in topics:
        late.write(topic, [b"late"])
    late.finish()
    assert late.published
    assert bus.discard(["attempt-0", "attempt-1", "attempt-2"]) == 0


def test_a_stage_that_is_not_whole_is_published_nowhere(ring: RingHouse) -> None:
    bus, topics = ring.connect("alice"), both_topics(ring)
    stages = [bus.stage("query", 1, name) for name in ("one", "two")]
    for stage in stages:
        for topic in topics:
            stage.write(topic, [b"row"])
    one, two = [stage.finish() for stage in stages]
    assert bus.discard(["two"]) == 1
    with pytest.raises(tidings.InvalidRequest, match="'two' of batch 1 of 'query' is not there"):
        bus.publish("query", 1, [one, two])
    assert bus.topics() == []
    assert [extent.topic for extent in bus.publish("query", 1, [one]).extents] == list(topics)
    assert bus.discard(["one", "two"]) == 0


def test_staged_writes_to_a_ring_that_grows(ring: RingHouse) -> None:
    """A group joins while a query writes batch after batch, each of them twice."""
    bus = ring.connect("alice", retries=20)
    topics = [f"topic{number}" for number in range(12)]
    for batch in range(12):
        if batch == 3:
            ring.trial.add()
        for attempt in range(2):
            stage = bus.stage("query", batch, f"{batch}-{attempt}")
            for topic in topics:
                stage.write(topic, [b"%d" % batch])
            assert bus.publish("query", batch, [stage.finish()]).repeated == bool(attempt)
    assert len(ring.trial.view().groups) == 3
    for topic in topics:
        assert values(bus, topic) == [b"%d" % batch for batch in range(12)]


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
