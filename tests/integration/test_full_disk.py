"""A full disk refuses what would fill it further, and takes everything that frees room: then it goes on by itself."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import tidings
from tests.integration.broker_process import ServerProcess
from tests.integration.full_disk import FullOs
from tests.integration.replica_group import wait_for
from tidings import Bus, Overloaded
from tidings.journal import disk, folder, mark, reserve
from tidings.node import engine
from tidings.settings import MIB

CAPACITY = reserve.RESERVE_BYTES + 3 * MIB
SETTINGS = {"segment_bytes_max": 256 * 1024, "drop_acknowledged": True}
VARIABLES = {"TIDINGS_SEGMENT_BYTES_MAX": str(256 * 1024), "TIDINGS_DROP_ACKNOWLEDGED": "true"}
OpenBus = Callable[[str], Bus]


class FullServer(ServerProcess):
    """A command of tidings on a disk that holds only so much."""

    def __init__(self, data: Path, *command: str) -> None:
        super().__init__(*command, "--data", str(data), settings=VARIABLES)
        data.mkdir()
        self._program = ("-m", "tests.integration.full_disk", str(data), str(CAPACITY))


@pytest.fixture
def embedded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OpenBus:
    full = FullOs(tmp_path, CAPACITY)
    for module in (disk, folder, mark, reserve):
        monkeypatch.setattr(module, "os", full)
    monkeypatch.setattr(engine, "RETENTION_EVERY_MS", 0)
    monkeypatch.setattr(reserve, "RESTOCK_SECONDS", 0.0)
    return lambda client: tidings.open(tmp_path, client, **SETTINGS)


@pytest.fixture
def process(tmp_path: Path) -> Iterator[OpenBus]:
    with FullServer(tmp_path / "data", "serve") as broker:
        yield lambda client: tidings.connect(broker.address, client)


@pytest.fixture
def stored(tmp_path: Path) -> Iterator[OpenBus]:
    with (
        FullServer(tmp_path / "data", "storage") as storage,
        ServerProcess("serve", "--storage", storage.address, settings=VARIABLES) as broker,
    ):
        yield lambda client: tidings.connect(broker.address, client)


@pytest.mark.parametrize("where", ["embedded", "process", "stored"])
def test_a_full_disk_takes_what_frees_room_and_then_puts_again(where: str, request: pytest.FixtureRequest) -> None:
    open_bus: OpenBus = request.getfixturevalue(where)
    value = bytes(range(256)) * 128
    with open_bus("reader") as reader, open_bus("writer") as writer:
        reader.subscribe("news")
        reader.subscribe("sport")
        count = 0
        with contextlib.suppress(Overloaded):
            while True:
                assert writer.put("news", value).offset == count
                count += 1
        assert count > 2 * MIB // len(value), "the room beside the reserve was used"
        for _ in range(3):
            with pytest.raises(Overloaded, match="disk is full"):
                writer.put("news", value)

        with open_bus("newcomer") as newcomer:  # A session, a subscription and its end are small.
            newcomer.subscribe("sport")
            newcomer.unsubscribe("sport")
        reader.unsubscribe("sport")
        for offset in range(count):
            message = reader.get("news", timeout=10)
            assert message is not None
            assert (message.offset, message.value) == (offset, value)

        def put_next(offset: int) -> bool:
            assert (
                reader.get("news") is None
            )  # Says what it has handled; a broker without a thread looks for room then.
            try:
                assert writer.put("news", value).offset == offset
            except Overloaded:
                return False
            return True

        wait_for("room", lambda: put_next(count))
        for offset in range(count, 2 * count):
            message = reader.get("news", timeout=10)
            assert message is not None
            assert message.offset == offset
            wait_for("room", lambda offset=offset: put_next(offset + 1))  # type: ignore[misc]
    with open_bus("checker") as checker:
        assert checker.topic("news").next_offset == 2 * count + 1
