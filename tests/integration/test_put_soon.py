"""What was put with put_soon is sent while the program idles and when it ends, or the program is told."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import tidings
from tests.integration.broker_process import ROOT, BrokerProcess
from tests.integration.conftest import House
from tests.integration.programs import run_program
from tests.integration.replica_group import wait_for

LONG = 60.0
"""Seconds within which something that happens by itself has happened."""


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    broker = BrokerProcess(tmp_path / "data").start()
    yield broker
    broker.kill()


def wait_for_the_thread() -> None:
    """Until the thread that sends has nothing more to do. One whose start another test has broken off never begins."""
    for thread in threading.enumerate():
        if thread.name == "tidings-soon" and thread.is_alive():
            thread.join(LONG)
            assert not thread.is_alive()


def test_it_is_sent_while_the_program_idles(house: House) -> None:
    """Nobody calls anything on the bus that has put; another one sees the messages come."""
    alice, bob = house.connect("alice"), house.connect("bob")
    alice.subscribe(["news", "sport"])
    soon = [bob.put_soon(topic, f"{topic} {number}") for number in range(100) for topic in ("news", "sport")]
    texts = set()
    for _ in soon:
        message = alice.get(["news", "sport"], timeout=LONG)
        assert message is not None
        texts.add(message.text)
    assert texts == {f"{topic} {number}" for number in range(100) for topic in ("news", "sport")}
    wait_for_the_thread()
    assert all(each.done for each in soon)  # The answers were taken in as well.
    assert bob.put_soon("news", "again").result().offset == 100


def test_nothing_else_need_be_called(house: House) -> None:
    """Not even on another bus, whose calls would move an embedded broker that both share."""
    bus = house.connect("bob")
    soon = [bus.put_soon("news", str(number)) for number in range(100)]
    wait_for("the answers", lambda: all(each.done for each in soon))
    assert [each.result().offset for each in soon] == list(range(100))


BLOCKING = """
    import sys
    import tidings

    bus = tidings.connect(sys.argv[1], "bob")
    bus.put_soon("news", "one")
    bus.put_soon("news", "two")
    sys.stdin.read()
"""
AWAITED = """
    import asyncio, sys
    import tidings

    async def main():
        async with tidings.aconnect(sys.argv[1], "bob") as bus:
            await bus.put_soon("news", "one")
            await bus.put_soon("news", "two")
            await asyncio.sleep(600)

    asyncio.run(main())
"""


@pytest.mark.parametrize("text", [BLOCKING, AWAITED], ids=["blocking", "awaited"])
def test_a_program_that_sleeps_has_its_messages_stored(broker: BrokerProcess, text: str) -> None:
    """It does nothing more of its own accord, and is killed in its sleep."""
    program = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(text), broker.address],
        stdin=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
    )
    try:
        with tidings.connect(broker.address, "alice") as bus:
            subscription = bus.subscribe("news", start="earliest")
            got = [subscription.get(timeout=LONG) for _ in range(2)]
        assert [message and message.text for message in got] == ["one", "two"]
        assert program.poll() is None
    finally:
        program.kill()
        program.communicate()


def test_calls_go_on_beside_it(house: House) -> None:
    """The thread steps back for whatever else the bus is asked, from any thread."""
    bus = house.connect("alice")
    bus.subscribe("news")
    offsets: list[int | None] = []

    def put() -> None:
        offsets.extend(bus.put("news", f"put {number}").offset for number in range(50))

    threads = [threading.Thread(target=put) for _ in range(2)]
    for thread in threads:
        thread.start()
    soon = [bus.put_soon("news", f"soon {number}") for number in range(500)]
    for thread in threads:
        thread.join()
    wait_for_the_thread()
    offsets += [each.result().offset for each in soon]
    assert sorted(offset for offset in offsets if offset is not None) == list(range(600))
    got = [message.text for message in bus.subscribe("news").messages(timeout=0)]
    assert [text for text in got if text.startswith("soon")] == [f"soon {number}" for number in range(500)]


def test_a_bus_that_has_gone_out_of_sight_sends_what_it_has(broker: BrokerProcess) -> None:
    """In a program of its own, because there is nobody left to close it."""
    text = """
        import gc, sys
        import tidings

        with tidings.connect(sys.argv[1], "alice") as bus:
            bus.subscribe("news")
            tidings.connect(sys.argv[1], "bob").put_soon("news", "one")
            gc.collect()
            print(bus.get("news", timeout=60.0).text)
    """
    ended = run_program(text, broker.address)
    assert (ended.returncode, ended.stdout) == (0, "one\n"), ended.stderr


def put_and_leave(bus: tidings.Bus, *values: str, before: Callable[[], None] | None = None) -> None:
    """A block that puts and asks for no result."""
    with bus:
        if before is not None:
            before()
        for value in values:
            bus.put_soon("news", value)


def test_leaving_the_block_says_what_was_refused(build: Callable[..., House]) -> None:
    house = build(max_backlog=2)
    house.connect("alice").subscribe("news")
    bus = house.connect("bob")
    with pytest.raises(tidings.Overloaded):
        put_and_leave(bus, "1", "2", "3", "4", "5")
    with pytest.raises(tidings.InvalidRequest):
        bus.topics()  # It is closed all the same.


def test_a_publisher_puts_soon(build: Callable[..., House]) -> None:
    """Under its own numbers; what fails reaches the result, the publisher's flush or close, or else the bus's."""
    house = build(max_backlog=5)
    house.connect("alice").subscribe("news")
    bus = house.connect("bob")
    with bus.publisher("import-7") as publisher:
        soon = [publisher.put_soon("news", str(number)) for number in range(5)]
    assert [each.result().offset for each in soon] == list(range(5))
    with bus.publisher("import-7") as publisher:
        assert publisher.last_sequence("news") == 5
        assert publisher.put_soon("news", "4", sequence=5).result().duplicate
        publisher.put_soon("news", "too much")
        bus.put_soon("sport", "of the bus itself")
        with pytest.raises(tidings.Overloaded):
            publisher.flush()
        publisher.put_soon("news", "too much")
        with pytest.raises(tidings.Overloaded):
            publisher.close()
    publisher = bus.publisher("import-8")
    publisher.put_soon("news", "too much")
    with pytest.raises(tidings.Overloaded):
        bus.close()


def test_an_error_that_was_seen_is_not_said_again(build: Callable[..., House]) -> None:
    house = build(max_backlog=1)
    house.connect("alice").subscribe("news")
    with house.connect("bob") as bus:
        bus.put("news", "one")
        with pytest.raises(tidings.Overloaded):
            bus.put_soon("news", "two").result()


def test_another_error_is_not_hidden_by_what_was_not_sent(broker: BrokerProcess) -> None:
    def fail() -> None:
        with tidings.connect(broker.address, "alice", timeout=2, retries=1) as bus:
            broker.kill()
            bus.put_soon("news", "one")
            raise KeyError("mine")

    with pytest.raises(KeyError) as caught:
        fail()
    (note,) = caught.value.__notes__
    assert "No answer" in note


def test_leaving_the_block_waits_for_a_broker_that_comes_back(broker: BrokerProcess) -> None:
    """As long as a put would: `retries` times the time-out, not one."""
    with tidings.connect(broker.address, "alice", timeout=0.5, retries=100) as bus:
        broker.kill()
        soon = bus.put_soon("news", "one")
        broker.launch()
    assert soon.done
    broker.wait_until_ready()
    with tidings.connect(broker.address) as bus:
        assert bus.topic("news").count == 1


def test_leaving_the_block_without_a_broker_is_unavailable(broker: BrokerProcess) -> None:
    bus = tidings.connect(broker.address, "alice", timeout=1, retries=2)
    with pytest.raises(tidings.Unavailable) as caught:
        put_and_leave(bus, "one", "two", before=broker.kill)
    assert caught.value.__notes__ == ["2 messages of put_soon ended like this."]


def test_a_program_that_ends_without_close_has_sent_everything(broker: BrokerProcess, tmp_path: Path) -> None:
    """Also what went out of sight, and what is in a folder of this process."""
    text = """
        import sys
        import tidings

        bus = tidings.connect(sys.argv[1], "alice")
        for number in range(1000):
            bus.put_soon("news", str(number))
        tidings.connect(sys.argv[1]).put_soon("sport", "one")
        tidings.open(sys.argv[2], "alice").put_soon("news", "one")
    """
    ended = run_program(text, broker.address, tmp_path / "folder")
    assert (ended.returncode, ended.stderr) == (0, "")
    with tidings.connect(broker.address) as bus:
        assert [value for batch in bus.read("news") for value in batch.values] == [b"%d" % each for each in range(1000)]
        assert bus.topic("sport").count == 1
    with tidings.open(tmp_path / "folder") as bus:
        assert bus.topic("news").count == 1


def test_a_program_that_ends_without_close_says_what_it_could_not_send(broker: BrokerProcess) -> None:
    text = """
        import os, signal, sys
        import tidings

        bus = tidings.connect(sys.argv[1], "alice", timeout=1, retries=2)
        os.kill(int(sys.argv[2]), signal.SIGKILL)
        for number in range(7):
            bus.put_soon("news", str(number))
        sys.exit(5)
    """
    ended = run_program(text, broker.address, broker.pid)
    assert ended.returncode == 5
    assert ended.stderr.startswith("tidings: 7 messages that were put with put_soon may not be stored: No answer from")
    assert ended.stderr.count("\n") == 1


def test_a_program_that_ends_is_told_what_had_failed_before(tmp_path: Path) -> None:
    text = """
        import sys
        import tidings

        bus = tidings.open(sys.argv[1], "alice", max_backlog=1)
        bus.subscribe("news")
        bus.put("news", "one")
        bus.put_soon("news", "two")
        bus.topics()
        try:
            bus.put_soon("news", "three").result()
        except tidings.Overloaded:
            pass
    """
    ended = run_program(text, tmp_path / "data")
    assert ended.returncode == 0
    assert ended.stderr.startswith("tidings: 1 message that was put with put_soon may not be stored: 2 messages would")
