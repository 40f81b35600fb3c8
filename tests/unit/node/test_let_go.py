"""What waits while retention lets go of the messages that it wants to read: nothing ends, and nobody waits forever."""

from __future__ import annotations

from tests.unit.node.desk import Desk
from tests.unit.node.test_groups import Shop
from tidings.node.engine import places_of
from tidings.protocols.broker import messages
from tidings.protocols.broker.bulk import Read
from tidings.protocols.effects import Effect, Examine
from tidings.protocols.events import Received
from tidings.settings import BrokerSettings, JournalSettings

SMALL = JournalSettings(segment_bytes_max=2_000, segment_records_max=20, recent_bytes_max=1)


def fill(desk: Desk, start: int, end: int) -> None:
    for number in range(start, end):
        desk.put("bob", "news", number, b"%d" % number * 20)
        desk.now_ms += 1_000
        desk.engine.tick(desk.now_ms)
        desk.commit()


def wanted_by(desk: Desk, request: messages.AnyRequest) -> list[Effect]:
    """What a request leads to, not done yet: a member's answer waits until it is certain that it leads."""
    return desk.engine.broker.handle(Received(desk.now_ms, "peer", request, (), (), None))


def test_an_answer_that_waited_too_long_is_not_sent_and_the_question_is_answered_anew() -> None:
    desk = Desk(BrokerSettings(retain_bytes=1_000), SMALL)
    desk.hello("bob")
    fill(desk, 1, 21)
    wanted = wanted_by(desk, Read(9, "news", 0, 20, 1_000, 100_000))
    fill(desk, 21, 201)
    assert desk.engine.journal.segments[0].base_address > places_of(wanted[0])[0].address
    desk.engine.run(wanted)
    assert desk.heard() == []
    told = desk.ask(Read(9, "news", 0, 20, 1_000, 100_000))
    assert isinstance(told, messages.Failed) and "it holds" in told.text


def test_a_group_reads_where_its_messages_were_copied_to_meanwhile() -> None:
    shop = Shop(settings=BrokerSettings(retain_bytes=1_000, lease_ms=600_000))
    shop.journal_settings = SMALL  # What was written last is not kept in memory.
    shop.restart()
    shop.publish(*(("k", f"owed {number}") for number in range(5)))
    shop.join("ann")
    work = messages.Work(5, "ann", shop.epochs["ann"], "workers", "jobs", 1, 100, (), True, None)
    wanted = wanted_by(shop, work)
    [examine] = [each for each in wanted if isinstance(each, Examine)]
    shop.hello("bob")
    fill(shop, 1, 201)
    assert shop.engine.journal.segments[0].base_address > examine.places[0].address
    shop.engine.run(wanted)
    shop.listen()
    assert shop.values("peer") == [f"owed {number}" for number in range(5)]
