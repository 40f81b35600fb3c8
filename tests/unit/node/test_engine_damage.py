"""A broker alone on a disk that has flipped a bit: that batch is withheld, and all else goes on (Z11)."""

from __future__ import annotations

import msgspec
import pytest

from tests.unit.node.desk import Desk, values
from tidings.errors import StorageDamaged
from tidings.journal import segment as files
from tidings.protocols.broker import messages
from tidings.settings import BrokerSettings, JournalSettings

SMALL = JournalSettings(segment_bytes_max=2_000, recent_bytes_max=1)


def filled(broker: BrokerSettings | None = None, count: int = 30) -> Desk:
    desk = Desk(broker, SMALL)
    desk.hello("ann")
    for number in range(count):
        desk.put("ann", "news", number + 1, b"message %02d" % number * 5)
    assert len(desk.engine.journal.segments) > 1
    return desk


def flip(desk: Desk, offset: int, topic: str = "news") -> None:
    """Flips a bit of a stored message, of which nothing is in memory."""
    journal = desk.engine.journal
    address = desk.engine.broker.machine.topics[topic].addresses[offset]
    segment = next(each for each in journal.segments if each.base_address <= address < each.end_address)
    desk.disk.flip_bit(files.journal_name(segment.first_slot), address - segment.base_address + 20)  # type: ignore[union-attr]
    journal._checked.clear()
    journal._mapped.clear()


def expected(start: int, end: int) -> list[bytes]:
    return [b"message %02d" % number * 5 for number in range(start, end)]


def test_a_stream_gets_what_comes_before_and_each_flow_is_answered_with_the_error() -> None:
    desk = filled()
    desk.hello("bob")
    desk.subscribe("bob", "news", start="earliest")
    flip(desk, 5)
    heard = desk.flow("bob", "news", request=7)
    assert values(heard) == expected(0, 5)
    for _ in range(3):
        heard = desk.flow("bob", "news", stream=2, request=8)
        failed = heard[-1][1]
        assert isinstance(failed, messages.Failed), "and the stream is not opened again for it"
        assert failed.number == StorageDamaged.number
        assert "is damaged at position" in failed.text
        assert "from offset 6" in failed.text
        assert values(heard) in (expected(0, 5), [])
    desk.ack("bob", "news", 5)
    assert desk.engine.broker.machine.subscriptions["bob", ("news",)].cursors == {"news": 5}


def test_of_a_subscription_to_several_topics_the_others_go_on() -> None:
    desk = filled()
    desk.put("ann", "other", 1, b"one")
    desk.hello("bob")
    desk.subscribe("bob", "news", "other", start="earliest")
    flip(desk, 0)
    desk.flow("bob", "news", "other", request=7)  # What was under way behind it leaves a gap, and is dropped.
    heard = desk.flow("bob", "news", "other", stream=2, request=8)
    assert values(heard) == [b"one"]
    assert isinstance(heard[-1][1], messages.Failed)


def test_get_is_answered_with_the_error() -> None:
    desk = filled()
    desk.hello("bob")
    desk.subscribe("bob", "news", start="earliest")
    flip(desk, 0)
    for _ in range(2):
        answer = desk.ask(messages.Get(5, "bob", desk.epochs["bob"], "news"))
        assert isinstance(answer, messages.Failed)
        assert answer.number == StorageDamaged.number


def test_the_scrub_finds_it_without_a_reader_and_the_status_says_where(caplog: pytest.LogCaptureFixture) -> None:
    desk = filled()
    flip(desk, 3)
    for _ in range(100):
        desk.now_ms += 100
        desk.engine.tick(desk.now_ms)
    status = desk.ask(messages.AskStatus(5))
    assert status.numbers["damaged"] == len(status.damaged) == 1
    name, _, position = status.damaged[0].partition(":")
    told = [line for line in caplog.messages if "is damaged" in line]
    assert len(told) == 1, "once, however often it comes by"
    assert told[0].startswith(f"tidings: {name} is damaged at position {position}: ")


def test_what_is_damaged_is_never_copied_forward_and_its_segment_stays() -> None:
    """Retention empties a segment by copying what little it still owes; damage would become good by that."""
    desk = Desk(BrokerSettings(drop_acknowledged=True), SMALL)
    for client in ("alice", "bob"):
        desk.hello(client)
    desk.subscribe("alice", "news")
    desk.subscribe("alice", "quiet")
    desk.put("bob", "quiet", 1, b"owed, and damaged before it could be copied")
    address = desk.engine.broker.machine.topics["quiet"].addresses[0]
    for number in range(1, 121):
        desk.put("bob", "news", number, bytes(50))
        desk.ack("alice", "news", number)
        if number == 50:
            flip(desk, 0, "quiet")
        if number > 50 and number % 20 == 0:
            desk.now_ms += 6_000
            desk.engine.tick(desk.now_ms)
            desk.commit()
    assert desk.engine.broker.machine.topics["quiet"].addresses[0] == address
    assert desk.engine.journal.segments[0].base_address <= address
    desk.flow("alice", "quiet", request=7)
    assert isinstance(desk.flow("alice", "quiet", stream=2, request=8)[-1][1], messages.Failed)
    assert desk.put("bob", "news", 121, b"all else goes on").stored[0].first_offset == 120


def test_many_damaged_places_are_all_told_and_bounded() -> None:
    desk = filled(count=60)
    for offset in range(0, 40, 2):
        flip(desk, offset)
    for _ in range(100):
        desk.now_ms += 100
        desk.engine.tick(desk.now_ms)
    status = desk.ask(messages.AskStatus(5))
    assert status.numbers["damaged"] == 20
    assert len(status.damaged) == messages.DAMAGED_MAX


def test_a_group_whose_very_first_batch_is_damaged_is_told_and_the_broker_goes_on() -> None:
    desk = filled()
    flip(desk, 0)
    desk.hello("bob")
    desk.ask(messages.Join(1, "bob", desk.epochs["bob"], "workers", "news", start="earliest"))
    work = messages.Work(5, "bob", desk.epochs["bob"], "workers", "news", 1, 100, (), True, None)
    desk.ask(work)
    told = desk.ask(msgspec.structs.replace(work, request=6, begins=False))
    assert isinstance(told, messages.Failed) and told.number == StorageDamaged.number
    assert "from offset 0 to 0 cannot be read" in told.text
    assert desk.put("ann", "news", 31, b"more").stored[0].first_offset == 30
