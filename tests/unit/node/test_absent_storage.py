"""What the engine does when stored batches cannot be read because the storage server is away."""

from __future__ import annotations

import pytest

from tests.unit.node.desk import Desk, values
from tests.unit.node.test_groups import Shop
from tidings.errors import Unavailable
from tidings.node.unpacked import Unpacked
from tidings.protocols.broker import messages
from tidings.settings import BrokerSettings, JournalSettings


class Absence:
    """Makes a desk's disk that of a storage server, which comes and goes; nothing is in the broker's memory."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self.away = False
        self.refused = 0
        self._read_at = desk.disk.read_at
        desk.disk.read_at = self._read  # type: ignore[method-assign]
        desk.disk.remote = True  # type: ignore[misc]
        desk.journal_settings = JournalSettings(recent_bytes_max=1)
        desk.restart()

    def begin(self) -> None:
        """It goes away, and nothing that was read from it is in memory."""
        self.away = True
        self._desk.engine.journal.forget_checks()

    def _read(self, name: str, position: int, size: int) -> memoryview:
        if self.away:
            self.refused += 1
            raise Unavailable("The storage server is away.")
        return self._read_at(name, position, size)


def test_a_delivery_gets_lost_and_is_made_when_the_reader_asks_again() -> None:
    """E5: for the reader it is a message that the network lost, and for those it knows what to do."""
    desk = Desk()
    absence = Absence(desk)
    desk.hello("alice")
    desk.subscribe("alice", "news", start="earliest")
    desk.put("alice", "news", 1, b"one", b"two")
    desk.flow("alice", "news", messages_room=0)
    absence.begin()
    assert values(desk.flow("alice", "news", stream=2)) == []
    assert absence.refused
    absence.away = False
    assert values(desk.flow("alice", "news", stream=3)) == [b"one", b"two"]


def test_a_get_stays_unanswered_and_is_answered_when_it_comes_again() -> None:
    """E5."""
    desk = Desk()
    absence = Absence(desk)
    desk.hello("alice")
    desk.subscribe("alice", "news", start="earliest")
    desk.put("alice", "news", 1, b"one")
    get = messages.Get(7, "alice", desk.epochs["alice"], "news")
    assert isinstance(desk.ask(get), messages.Article)
    absence.begin()
    with pytest.raises(IndexError):  # There is no answer.
        desk.ask(get)
    absence.away = False
    assert isinstance(desk.ask(get), messages.Article)


def test_a_group_is_served_by_itself_when_the_storage_is_back() -> None:
    """E5: its members cannot know that the broker could not look at their work, so nobody has to ask again."""
    shop = Shop("ann")
    absence = Absence(shop)
    shop.now_ms += 1_000
    shop.work("ann")
    absence.begin()
    shop.publish(("k", "one"), ("k", "two"))
    assert absence.refused
    assert shop.got == {}
    absence.away = False
    shop.now_ms += 200
    shop.engine.tick(shop.now_ms)
    shop.listen()
    assert [row for _, _, rows in shop.got["ann"] for row in rows] == [(0, b"one"), (1, b"two")]


def test_a_dead_letter_waits() -> None:
    """E5: it goes to its topic when it can be read."""
    shop = Shop("ann", settings=BrokerSettings(dead_letter="dead", deliveries_max=1))
    absence = Absence(shop)
    shop.now_ms += 1_000
    shop.work("ann")
    shop.publish(("", "bad"))
    [(batch, _, _)] = shop.got["ann"]
    absence.begin()
    shop.engine.batches._unpacked = Unpacked()
    ack = messages.BatchRanges(batch, ((0, 1),))
    release = messages.GroupNack(6, "ann", shop.epochs["ann"], "workers", "jobs", shop.streams["ann"], ack)
    shop.ask(release, peer="ann")
    shop.now_ms += 200
    shop.engine.tick(shop.now_ms)
    shop.commit()
    assert "dead" not in shop.engine.broker.machine.topics
    absence.away = False
    for _ in range(3):
        shop.now_ms += 200
        shop.engine.tick(shop.now_ms)
        shop.commit()
    assert shop.engine.broker.machine.topics["dead"].next_offset == 1
