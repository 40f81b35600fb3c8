"""Reading ranges and writing in stages, over a broker process and embedded (D1, D3)."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import tidings
from tests.integration.broker_process import BrokerProcess
from tests.integration.conftest import House, StoredHouse
from tidings.client import connect_worker, reads_from_files
from tidings.client.bus import Bus
from tidings.errors import InvalidRequest, MessageTooLarge, NoSuchTopic, OutOfSequence, Unavailable
from tidings.protocols.broker import bulk
from tidings.settings import ClientSettings
from tidings.transport import curve
from tidings.transport.zeromq import DealerLink
from tidings.wire import codec


def flat(bus: tidings.Bus, *arguments: Any) -> list[bytes]:
    return [value for batch in bus.read(*arguments) for value in batch.values]


def test_any_range_can_be_read(house: House) -> None:
    bus = house.connect("alice")
    values = [b"%d" % number for number in range(20_000)]
    bus.put_many("numbers", values)
    assert flat(bus, "numbers") == values
    for start, end in ((0, 0), (0, 1), (4_095, 4_097), (19_999, 20_000), (20_000, 20_000), (123, 17_777)):
        assert flat(bus, "numbers", start, end) == values[start:end]
    expected = 5
    for batch in bus.read("numbers", 5, 9_000):
        assert batch.first_offset == expected
        expected = batch.next_offset
    assert expected == 9_000


def stored(bus: tidings.Bus, *arguments: Any) -> list[bytes]:
    return [value for batch in bus.read_stored(*arguments) for value in batch.batch().values]


def test_a_reader_in_bulk_takes_the_batches_out_of_the_files(
    build: Callable[..., House], monkeypatch: pytest.MonkeyPatch
) -> None:
    """D1: where it can, without being sent them; a storage server's files are not the broker's to point to."""
    house = build(segment_bytes_max=1024 * 1024)
    bus = house.connect("alice")
    values = [b"%d" % number * 20 for number in range(30_000)]
    bus.put_many("numbers", values)
    read: list[int] = []
    take = os.pread

    def counted(descriptor: int, size: int, position: int) -> bytes:
        read.append(size)
        return take(descriptor, size, position)

    with monkeypatch.context() as patched:
        patched.setattr(reads_from_files.os, "pread", counted)
        for start, end in ((0, 30_000), (4_095, 4_097), (29_999, 30_000), (123, 17_777)):
            assert stored(bus, "numbers", start, end) == values[start:end]
    in_files = not isinstance(house, StoredHouse)
    assert (sum(read) > sum(map(len, values))) == in_files
    house.restart()
    assert stored(house.connect("bob"), "numbers") == values


@pytest.mark.parametrize("fault", ["gone", "another", "short", "forbidden", "no file"])
def test_files_that_cannot_be_read_here_are_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    """D1: as in a container that does not see the folder, or sees another one under its name. Nothing is lost."""
    other = tmp_path / "other"
    other.write_bytes(bytes(10_000_000))
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    find, take = os.open, os.pread
    asked: list[str] = []

    def opened(path: str, flags: int) -> int:
        asked.append(path)
        match fault:
            case "gone":
                raise FileNotFoundError(path)
            case "forbidden":
                raise PermissionError(path)
            case "another":
                return find(other, flags)
            case "no file":
                return find(pipe, flags)
        return find(path, flags)

    def taken(descriptor: int, size: int, position: int) -> bytes:
        return take(descriptor, size - 1 if fault == "short" else size, position)

    with BrokerProcess(tmp_path / "data") as broker, tidings.connect(broker.address, "alice") as bus:
        values = [b"%d" % number * 20 for number in range(30_000)]
        bus.put_many("numbers", values)
        monkeypatch.setattr(reads_from_files.os, "open", opened)
        monkeypatch.setattr(reads_from_files.os, "pread", taken)
        assert stored(bus, "numbers") == values
    assert len(asked) == 1, "once is enough to see that it cannot"


def test_a_range_is_read_while_others_write_and_after_a_restart(house: House) -> None:
    bus = house.connect("alice")
    bus.put_many("numbers", [b"x" * 1_000] * 5_000)
    reader = bus.read("numbers", 0, 5_000)
    count = len(next(reader))
    bus.put_many("numbers", [b"late"] * 10)
    count += sum(map(len, reader))
    assert count == 5_000
    house.restart()
    bus = house.connect("bob")
    assert len(flat(bus, "numbers", 0, 5_010)) == 5_010


def test_a_reader_that_leaves_early_disturbs_nobody(house: House) -> None:
    bus = house.connect("alice")
    bus.put_many("numbers", [b"x" * 1_000] * 5_000)
    for _ in range(3):
        for batch in bus.read("numbers"):
            assert batch.first_offset == 0
            break
    assert bus.topic("numbers").next_offset == 5_000


def test_what_cannot_be_read(house: House) -> None:
    bus = house.connect("alice")
    with pytest.raises(NoSuchTopic):
        bus.read("nowhere")
    bus.put("news", "hello")
    with pytest.raises(InvalidRequest, match="it holds 0 to 1"):
        list(bus.read("news", 0, 2))
    for wrong in ("latest", -1, True):
        with pytest.raises(InvalidRequest, match="must start at"):
            bus.read("news", wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="must end at"):
        bus.read("news", 0, -1)


def test_times(house: House) -> None:
    bus = house.connect("alice")
    began = time.time()
    bus.put("news", "one")
    [batch] = bus.read("news")
    assert batch.stored_at is not None
    # The broker's clock is as good as ours, in milliseconds.
    assert began - 1 <= batch.stored_at <= time.time() + 1
    assert bus.offset_at("news", batch.stored_at) == 0
    assert bus.offset_at("news", datetime.fromtimestamp(batch.stored_at, UTC)) == 0
    assert bus.offset_at("news", batch.stored_at + 0.001) == 1
    with pytest.raises(InvalidRequest, match="number of seconds"):
        bus.offset_at("news", -1)


def test_a_failed_attempt_leaves_nothing_and_a_repeated_commit_changes_nothing(house: House) -> None:
    bus = house.connect("alice")
    lost = bus.stage("query", 0, "attempt-0")
    lost.write("news", [b"half"])
    lost.finish()
    good = bus.stage("query", 0, "attempt-1")
    good.write("news", [b"a", b"b"], keys=[b"k", None], headers=[{"h": b"v"}, None], ids=["1", None])
    good.write("art", [b"c"])
    named = [good.finish()]
    house.restart()
    bus = house.connect("bob")
    assert not bus.publish("query", 0, named).repeated
    house.restart()
    bus = house.connect("eve")
    assert bus.publish("query", 0, named).repeated
    [batch] = bus.read("news")
    first, second = batch
    assert (first.value, first.key, first.headers, first.id) == (b"a", b"k", {"h": b"v"}, "1")
    assert (second.value, second.key, second.publisher) == (b"b", None, "alice")
    again = bus.stage("query", 0, "attempt-2")
    again.write("news", [b"a"])
    again.finish()
    assert again.published
    assert bus.discard(["attempt-0", "attempt-1"]) == 0


def test_large_stages_are_cut_into_batches(build: Callable[..., House]) -> None:
    house = build(batch_bytes_max=200_000, message_bytes_max=50_000)
    bus = house.connect("alice")
    stage = bus.stage("query", 0, "a")
    values = [b"%06d" % number * 100 for number in range(3_000)]
    stage.write("news", values, headers=[{"pad": b"x" * 100}] * 3_000)
    stage.write("news", [])
    assert bus.publish("query", 0, [stage.finish()]).extents == (bulk.Extent("news", 0, 3_000),)
    assert flat(bus, "news") == values


def test_a_message_too_large_for_a_stage_names_the_setting_that_counts(build: Callable[..., House]) -> None:
    bus = build(batch_bytes_max=200_000, message_bytes_max=50_000).connect("alice")

    def store(values: list[bytes], headers: list[dict[str, bytes] | None] | None = None) -> None:
        stage = bus.stage("query", 0, "attempt")
        stage.write("news", values, headers=headers)
        stage.finish()

    for size in (50_001, 300_000):
        with pytest.raises(MessageTooLarge, match=rf"A message of {size} bytes is above message_bytes_max \(50000\)"):
            store([b"small", bytes(size)])
    with pytest.raises(MessageTooLarge, match=r"with key and headers has 2\d+ bytes, above batch_bytes_max \(200000\)"):
        store([b"small"], [{"large": bytes(200_000)}])


def test_a_stage_says_what_is_wrong(house: House) -> None:
    bus = house.connect("alice")
    with pytest.raises(InvalidRequest, match="differ in length"):
        bus.stage("q", 0, "a").write("news", [b"x"], keys=[])
    with pytest.raises(InvalidRequest, match="must be a number from 0 on"):
        bus.stage("q", -1, "a")
    stage = bus.stage("q", 0, "a")
    stage.write("news", [b"x"])
    stage.finish()
    bus.discard(["a"])
    stage.write("news", [b"y"])
    with pytest.raises(OutOfSequence, match="begin again"):
        stage.finish()


class ForgetfulLink(DealerLink):
    """Loses every third answer of the kinds that store, after the broker has acted on them."""

    seen = 0

    def receive(self, timeout_ms: int) -> list[bytes] | None:
        frames = super().receive(timeout_ms)
        if frames is not None and isinstance(codec.decode_answer(frames[0]), bulk.StageDone | bulk.PublishDone):
            self.seen += 1
            if self.seen % 3 == 1:
                return None
        return frames


def test_lost_replies_double_nothing(tmp_path: Path) -> None:
    """Z8 for stages: the same request again stores nothing again."""
    broker = BrokerProcess(tmp_path).start()
    try:
        link = ForgetfulLink(broker.address)
        with Bus(link, "alice", ClientSettings(timeout_ms=200, retries=10)) as bus:
            stage = bus.stage("query", 0, "a")
            for number in range(7):
                stage.write("news", [b"%d" % number])
            bus.publish("query", 0, [stage.finish()])
            assert flat(bus, "news") == [b"%d" % number for number in range(7)]
        assert link.seen > 8
    finally:
        broker.kill()


def test_a_patient_bus_waits_for_a_broker_that_comes_back(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path).start()
    try:
        with connect_worker(broker.address, timeout=0.1, retries=500) as bus:
            bus.be_patient(0.3)
            broker.kill()
            with pytest.raises(Unavailable, match=r"after 3 tries of 0\.1 s"):
                bus.topics()
            bus.be_patient(60)
            again = threading.Timer(0.5, broker.start)
            again.start()
            assert bus.topics() == []
            again.join()
    finally:
        broker.kill()


def test_the_awaited_bus_reads_too(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path).start()

    async def story() -> None:
        async with await tidings.aconnect(broker.address) as bus:
            await bus.put_many("numbers", [b"x" * 1_000] * 3_000)
            assert sum([len(batch) async for batch in bus.read("numbers", 5)]) == 2_995
            assert await bus.offset_at("numbers", 0) == 0
            async for batch in bus.read("numbers"):
                assert batch.first_offset == 0
                break
            with pytest.raises(InvalidRequest):
                _ = [batch async for batch in bus.read("numbers", 0, 9_999)]

    try:
        asyncio.run(story())
    finally:
        broker.kill()


def test_the_awaited_bus_writes_in_stages(tmp_path: Path) -> None:
    """D3: what an attempt left is dropped, and a batch is published once, over a restart of the broker."""
    broker = BrokerProcess(tmp_path).start()

    async def story() -> None:
        async with await tidings.aconnect(broker.address, "alice", retries=20) as bus:
            lost = bus.stage("query", 0, "attempt-0")
            await lost.write("news", [b"half"])
            await lost.finish()
            good = bus.stage("query", 0, "attempt-1")
            await good.write("news", [b"%d" % number for number in range(20_000)], keys=[b"k"] * 20_000)
            await good.write("art", [b"c"], headers=[{"h": b"v"}], ids=["1"])
            named = [await good.finish()]
            with pytest.raises(NoSuchTopic):
                await bus.topic("news")
            assert not (await bus.publish("query", 0, named)).repeated
            broker.kill()
            broker.start()
            assert (await bus.publish("query", 0, named)).repeated
            found = [batch async for batch in bus.read("news")]
            assert [value for batch in found for value in batch.values] == [b"%d" % n for n in range(20_000)]
            again = bus.stage("query", 0, "attempt-2")
            await again.write("news", [b"a"])
            await again.finish()
            assert again.published
            other = bus.stage("query", 1, "attempt-0")
            await other.write("news", [b"never"])
            await other.finish()
            assert await bus.discard(["attempt-0", "attempt-1"]) == 1
            assert (await bus.topic("news")).count == 20_000
            with pytest.raises(InvalidRequest, match="differ in length"):
                await bus.stage("q", 0, "a").write("news", [b"x"], keys=[])

    try:
        asyncio.run(story())
    finally:
        broker.kill()


def test_workers_share_a_users_key(tmp_path: Path) -> None:
    """Many at once under one key, none of which fences another."""
    keys = tmp_path / "keys"
    curve.create_server_keys(keys)
    curve.create_client_keys(keys, "etl")
    broker = BrokerProcess(tmp_path / "data", "--keys", str(keys)).start()
    try:
        with pytest.raises(InvalidRequest, match="user"):
            connect_worker(broker.address, keys=keys)
        one, two = (connect_worker(broker.address, "etl", keys=keys) for _ in range(2))
        with one, two:
            one.put("news", "one")
            two.put("news", "two")
            assert flat(one, "news") == [b"one", b"two"]
            assert one.client_id.startswith("etl/")
        with pytest.raises(Unavailable):
            connect_worker(broker.address, timeout=0.2, retries=1)
    finally:
        broker.kill()
