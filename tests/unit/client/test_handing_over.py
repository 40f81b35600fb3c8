"""With an inbox or a record, what a process that dies or a disk that is full does to the message in between."""

from __future__ import annotations

import contextlib
import resource
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.client.peer import SmallBroker
from tidings.client.bus import Bus
from tidings.client.record import HANDED, RETURNED, read_entries
from tidings.errors import StorageError
from tidings.message import Message
from tidings.protocols.broker import messages as m
from tidings.settings import ClientSettings

NEWS = ("news",)
PATIENCE = ClientSettings(timeout_ms=100)


@pytest.fixture
def broker() -> SmallBroker:
    return SmallBroker()


@contextlib.contextmanager
def file_size_limit(size_bytes: int) -> Iterator[None]:
    """No file can grow beyond this, as on a disk that is full: a write stops there, the next one fails."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


class Died(BaseException):
    """The process has died, at this very point of it."""


@pytest.mark.parametrize("reading", ["get", "get_all", "loop", "batches", "run"])
def test_with_an_inbox_no_request_stands_between_the_inbox_and_the_caller(
    broker: SmallBroker, tmp_path: Path, reading: str
) -> None:
    """Z10: whichever request a process dies with, what it was not handed comes again, and nothing comes twice."""
    broker.topics["news"] = [b"a", b"b", b"c", b"d"]
    handed: list[str] = []
    for life in range(60):
        sent = 0

        def die(request: Any, last: int = life) -> bool:
            nonlocal sent
            sent += 1
            if sent > last // 2:
                raise Died
            return True

        broker.filter = die if life < 40 else lambda request: True
        broker.reopen()
        broker.granted = 0
        bus = Bus(broker, "alice", PATIENCE, tmp_path / "inbox", clock=broker.clock, token=b"%016d" % life)
        try:
            with contextlib.suppress(Died):
                subscription = bus.subscribe("news", start="earliest")
                if reading == "get":
                    while (message := bus.get("news")) is not None:
                        handed.append(message.text)
                elif reading == "get_all":
                    while found := bus.get_all():
                        handed.append(found["news"].text)
                elif reading == "loop":
                    handed.extend(message.text for message in subscription.messages(timeout=0))
                elif reading == "batches":
                    for batch in subscription.batches(timeout=0):
                        handed.extend(value.decode() for value in batch.values)
                else:
                    bus.on("news")(lambda message: handed.append(message.text))
                    bus.run(timeout=1)
        finally:
            bus._core.inbox.close()  # type: ignore[union-attr]  # As the process's death would.
    assert handed == ["a", "b", "c", "d"]
    assert broker.cursors[NEWS] == {"news": 4}


def test_get_with_an_inbox_does_not_wait_for_the_acknowledgement(broker: SmallBroker, tmp_path: Path) -> None:
    """It goes out with the next call, and with `close`."""
    bus = Bus(broker, "alice", PATIENCE, tmp_path / "inbox", clock=broker.clock)
    bus.subscribe("news")
    broker.add("news", b"a", b"b")
    assert bus.get("news").text == "a"  # type: ignore[union-attr]
    assert broker.asked(m.Ack) == []
    assert bus.get("news").text == "b"  # type: ignore[union-attr]
    assert broker.cursors[NEWS] == {"news": 1}
    bus.close()
    assert broker.cursors[NEWS] == {"news": 2}


TAKES: dict[str, Callable[[Bus], Message | None]] = {
    "get": lambda bus: bus.get("news"),
    "get_all": lambda bus: bus.get_all().get("news"),
    "loop": lambda bus: next(bus.subscribe("news").messages(timeout=0)),
    "batches": lambda bus: next(bus.subscribe("news").batches(timeout=0))[0],
}


@pytest.mark.parametrize("take", list(TAKES))
@pytest.mark.parametrize("room", [0, 1, 9, 30])
def test_a_message_for_which_the_disk_has_no_room_is_not_lost(
    broker: SmallBroker, tmp_path: Path, take: str, room: int
) -> None:
    """Z10, Z11: neither the inbox nor the record goes on behind a half entry, and both say what happened once."""
    bus = Bus(broker, "alice", PATIENCE, tmp_path / "inbox", clock=broker.clock, record=tmp_path / "record")
    bus.subscribe("news")
    broker.topics["news"] = []
    for number in range(4):
        broker.topics["news"].append(b"%d" % number)
        with file_size_limit((tmp_path / "inbox").stat().st_size + room):
            for _ in range(2):
                with pytest.raises(StorageError, match="free some space"):
                    TAKES[take](bus)
        message = TAKES[take](bus)
        assert message is not None
        assert message.offset == number
    assert bus.get("news") is None
    bus.close()
    again = Bus(broker, "alice", PATIENCE, tmp_path / "inbox", clock=broker.clock, record=tmp_path / "record")
    assert again.get("news") is None
    again.close()
    handed: Counter[int] = Counter()
    for path in (tmp_path / "record").iterdir():
        for entry in read_entries(path):
            offsets = range(entry.first_offset, entry.first_offset + entry.count)
            if entry.kind == HANDED:
                handed.update(offsets)
            elif entry.kind == RETURNED:
                handed.subtract(offsets)
    assert handed == dict.fromkeys(range(4), 1)
