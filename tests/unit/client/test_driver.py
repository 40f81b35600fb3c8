"""What the blocking shell does between calls, over a fake link with a small broker behind it."""

from __future__ import annotations

from tests.unit.client.peer import TOKEN, SmallBroker
from tidings.client import operations
from tidings.client.driver import Driver
from tidings.client.operations import Core, Operation
from tidings.client.puts import Record
from tidings.client.session import Session
from tidings.protocols.broker import messages as m
from tidings.settings import ClientSettings


def test_what_nobody_waits_for_looks_for_answers_once_a_millisecond() -> None:
    broker = SmallBroker()
    session = Session("alice", TOKEN, True, ClientSettings(), broker.address)
    driver = Driver(broker, session, broker.clock)
    core = Core(session, None, broker.clock, driver.perform)

    def hand_over(value: bytes) -> Operation[Record]:
        yield from ()
        return operations.give(core, operations.make_record(core, "news", value))

    driver.perform(operations.start(core))
    records = [driver.perform(hand_over(value), soon=True) for value in (b"a", b"b", b"c", b"d")]
    assert broker.topics["news"] == [b"a", b"b"]  # The second put looked, and found the answer to the first.
    broker.clock.now_ms += 1
    records.append(driver.perform(hand_over(b"e"), soon=True))
    assert [put.part.count for put in broker.asked(m.Put)] == [1, 1, 3]
    driver.perform(operations.receipts(core, records[-1]))
    assert broker.topics["news"] == [b"a", b"b", b"c", b"d", b"e"]
    assert all(record.future.done for record in records)
