"""What the blocking shell does between calls, over a fake link with a small broker behind it."""

from __future__ import annotations

import pytest

from tests.unit.client.peer import TOKEN, SmallBroker
from tidings.client import operations
from tidings.client.driver import Driver
from tidings.client.operations import Core, Operation, Until
from tidings.client.puts import Record
from tidings.client.session import Session
from tidings.errors import InvalidRequest
from tidings.protocols.broker import messages as m
from tidings.settings import ClientSettings
from tidings.wire.codec import Frame


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


class BrokenOff(SmallBroker):
    """Whoever sends is broken off in the middle of it, and its broker goes no further."""

    broken = False

    def send(self, frames: list[Frame]) -> None:
        if self.broken:
            raise InvalidRequest("This broker was interrupted.")
        self.broken = True
        raise KeyboardInterrupt


def test_a_call_that_is_broken_off_raises_what_broke_it_off() -> None:
    broker = BrokenOff()
    session = Session("alice", TOKEN, True, ClientSettings(), broker.address)
    driver = Driver(broker, session, broker.clock)

    def send_two() -> Operation[None]:
        session.outgoing.append([b"first"])
        try:
            yield Until(lambda: False, None)
        finally:
            session.outgoing.append([b"what it leaves behind"])

    with pytest.raises(KeyboardInterrupt):
        driver.perform(send_two())
    with pytest.raises(InvalidRequest, match="broken off by KeyboardInterrupt"):
        driver.perform(send_two())
