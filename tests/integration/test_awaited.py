"""The awaiting bus, at a broker and embedded: put_soon, blocks, cancelled calls, and what goes wrong."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import tidings
from tests.integration.broker_process import BrokerProcess
from tests.integration.programs import run_program
from tidings.client.opening import Opening
from tidings.node.embedded_watched import WatchedEmbeddedLink

PATIENCE_S = 60


class Place:
    """Where the tests run: in a folder of this process, or at a broker."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.folder = folder
        self.broker = BrokerProcess(folder).start() if kind == "served" else None

    def open(self, client_id: str | None = None, **options: Any) -> Opening:
        if self.broker is None:
            return tidings.aopen(self.folder, client_id, **options)
        return tidings.aconnect(self.broker.address, client_id, **options)


@pytest.fixture(params=["embedded", "served"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path / "data", request.param)
    yield place
    if place.broker is not None:
        place.broker.kill()


def run(story: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        await asyncio.wait_for(story(), PATIENCE_S)

    asyncio.run(main())


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


def test_a_block_or_a_value(place: Place) -> None:
    """`async with aconnect(...)`, `await aconnect(...)`, and the two together: one bus, closed at the end."""

    async def story() -> None:
        async with place.open("alice") as bus:
            await bus.subscribe("news")
            assert await bus.put("news", "one") == tidings.Receipt("news", 0)
        with pytest.raises(tidings.InvalidRequest, match="closed"):
            await bus.topics()
        bus = await place.open("alice")
        async with bus:
            message = await bus.get("news")
            assert message is not None
            assert message.text == "one"
        async with await asyncio.create_task(place.open("bob")) as other:
            assert [info.name for info in await other.topics()] == ["news"]

    run(story)


def test_it_is_sent_while_the_program_does_other_things(place: Place) -> None:
    """Nothing else is called on the bus that has put."""

    async def story() -> None:
        async with place.open("alice") as alice, place.open("bob") as bob:
            subscription = await alice.subscribe("news")
            soon = [await bob.put_soon("news", str(number)) for number in range(2)]
            for number in range(2):
                message = await subscription.get(timeout=None)
                assert message is not None
                assert message.text == str(number)
            await until(lambda: all(each.done for each in soon))
            assert [(await each.result()).offset for each in soon] == [0, 1]

    run(story)


def test_many_put_soon_share_their_requests_and_leave_the_loop_to_others(place: Place) -> None:
    async def story() -> None:
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        async with place.open("alice") as bus:
            counting = asyncio.create_task(count())
            begun = asyncio.get_running_loop().time()
            soon = [await bus.put_soon("news", str(number)) for number in range(20_000)]
            elapsed_ms = 1000 * (asyncio.get_running_loop().time() - begun)
            assert turns >= min(5, elapsed_ms / 10)
            counting.cancel()
            await bus.flush()
            assert all(each.done for each in soon)
            assert (await soon[-1].result()).offset == 19_999
            values = [value async for batch in bus.read("news") for value in batch.values]
            stored = [value async for each in bus.read_stored("news") for value in each.batch().values]
            assert values == stored == [b"%d" % number for number in range(20_000)]

    run(story)


def test_put_soon_waits_for_room(place: Place) -> None:
    """Memory is bounded: what is handed over and not sent is never more than the setting says."""

    async def story() -> None:
        async with place.open("alice", waiting_messages_max=10, in_flight_max=1) as bus:
            outboxes = [who.outbox for who in bus._session.identities.values()]
            for number in range(500):
                await bus.put_soon("news", str(number))
                assert sum(outbox.waiting_count for outbox in outboxes) <= 10
            await bus.flush()
            assert len(bus._background.soons.waiting) <= 500
            last = await bus.put_soon("news", "last")
            assert len(bus._background.soons.waiting) == 1
            tasks = [asyncio.create_task(bus.put_soon("news", str(number))) for number in range(500)]
            several = await asyncio.gather(*tasks)
        receipts = [await soon.result() for soon in [last, *several]]  # They are known, though the bus is closed.
        assert sorted(receipt.offset for receipt in receipts if receipt.offset is not None) == list(range(500, 1001))

    run(story)


def test_publishers_put_soon(place: Place) -> None:
    """Under a name of their own, with numbers; the end of the block waits for what was put."""

    async def story() -> None:
        async with place.open("alice") as bus:
            async with bus.publisher("import-7") as publisher:
                soon = [await publisher.put_soon("news", str(number)) for number in range(10)]
                both = await publisher.put_soon(["news", "sport"], "both")
            assert all(each.done for each in soon)
            assert [receipt.topic for receipt in await both.result()] == ["news", "sport"]
            async with bus.publisher("import-7") as publisher:
                assert await publisher.last_sequence("news") == 11
                again = await publisher.put_soon("news", "9", sequence=10)
                assert (await again.result()).duplicate
            with pytest.raises(tidings.InvalidRequest, match="closed"):
                await publisher.put_soon("news", "x")

    run(story)


def test_an_error_reaches_flush_close_and_result(tmp_path: Path) -> None:
    async def story() -> None:
        async with tidings.aopen(tmp_path, "alice", max_backlog=1) as alice:
            await alice.subscribe("news")
            await alice.put("news", "one")
            seen = await alice.put_soon("news", "two")
            with pytest.raises(tidings.Overloaded):
                await seen.result()
            await alice.flush()  # It has been seen.
            publisher = alice.publisher("import-7")
            await publisher.put_soon("news", "three")
            with pytest.raises(tidings.Overloaded):
                await publisher.close()
            await alice.put_soon("news", "four")
            with pytest.raises(tidings.Overloaded):
                await alice.flush()
        bus = await tidings.aopen(tmp_path, "bob", max_backlog=1)
        await bus.put_soon("news", "five")
        with pytest.raises(tidings.Overloaded):
            await bus.close()
        with pytest.raises(tidings.InvalidRequest, match="closed"):
            await bus.topics()

    run(story)


def test_a_program_that_ends_without_close_has_sent_everything(place: Place) -> None:
    """Although its event loop has ended before."""
    text = """
        import asyncio, sys
        import tidings

        async def main():
            bus = await (tidings.aconnect if "://" in sys.argv[1] else tidings.aopen)(sys.argv[1], "alice")
            for number in range(1000):
                await bus.put_soon("news", str(number))
            await bus.publisher("import-7").put_soon("sport", "one")

        asyncio.run(main())
    """
    ended = run_program(text, place.folder if place.broker is None else place.broker.address)
    assert (ended.returncode, ended.stderr) == (0, "")

    async def story() -> None:
        async with place.open("bob") as bus:
            assert {info.name: info.count for info in await bus.topics()} == {"news": 1000, "sport": 1}

    run(story)


def test_a_program_that_ends_says_what_was_not_stored(tmp_path: Path) -> None:
    text = """
        import asyncio, sys
        import tidings

        async def main():
            bus = await tidings.aopen(sys.argv[1], "alice", max_backlog=1)
            await bus.subscribe("news")
            await bus.put("news", "one")
            await bus.put_soon("news", "two")

        asyncio.run(main())
    """
    ended = run_program(text, tmp_path / "data")
    assert ended.returncode == 0
    assert ended.stderr.startswith("tidings: 1 message that was put with put_soon may not be stored: ")


def test_tasks_of_an_embedded_bus_share_their_syncs(tmp_path: Path) -> None:
    async def story() -> None:
        async with tidings.aopen(tmp_path, "alice") as bus, tidings.aopen(tmp_path, "bob") as other:
            receipts = await asyncio.gather(*(each.put("news", "x") for each in (bus, other) for _ in range(100)))
            assert sorted(receipt.offset for receipt in receipts if receipt.offset is not None) == list(range(200))
            with tidings.open(tmp_path) as blocking:  # They share one broker with blocking buses, too.
                assert blocking.topic("news").count == 200

    run(story)
    assert [each for each in threading.enumerate() if each.name == "tidings-embedded"] == []


def test_an_embedded_broker_that_fails_ends_every_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that fails is found out by the thread: the loop's calls say so, and none waits for ever."""

    async def story() -> None:
        bus = await tidings.aopen(tmp_path, "alice")
        await bus.subscribe("news")
        waiting = asyncio.create_task(bus.get("news", timeout=None))
        soon = await bus.put_soon("news", "one")
        await soon.result()
        assert await waiting is not None
        waiting = asyncio.create_task(bus.get("news", timeout=None))
        link = bus._driver._link
        assert isinstance(link, WatchedEmbeddedLink)
        link._node.failed = tidings.StorageError("The disk is gone: open it again.")
        last = await bus.put_soon("news", "two")
        with pytest.raises(tidings.StorageError, match="gone"):
            await waiting
        with pytest.raises(tidings.StorageError, match="gone"):
            await last.result()
        with pytest.raises(tidings.StorageError, match="gone"):
            await bus.close()

    run(story)


def test_a_cancelled_put_says_what_may_have_happened(place: Place) -> None:
    """The bus goes on, and the publisher's last sequence tells what became of it."""

    async def story() -> None:
        async with place.open("alice") as bus, bus.publisher("import-7") as publisher:
            await publisher.put("news", "one")
            for task in (
                asyncio.create_task(publisher.put("news", "two")),
                asyncio.create_task(bus.put("sport", "one")),
            ):
                await asyncio.sleep(0)  # It has handed over what it puts.
                task.cancel()
                with pytest.raises(asyncio.CancelledError) as caught:
                    await task
                (note,) = caught.value.__notes__
                assert "may be stored" in note
            assert await publisher.last_sequence("news") == 2
            assert (await publisher.put("news", "three")).offset == 2
            assert (await bus.put("sport", "two")).offset == 1

    run(story)


def test_a_cancelled_put_many_takes_no_more_values(place: Place) -> None:
    async def story() -> None:
        taken = 0

        def values() -> Iterator[str]:
            nonlocal taken
            while True:
                taken += 1
                yield "x" * 100

        async with place.open("alice") as bus:
            task = asyncio.create_task(bus.put_many("news", values()))
            await until(lambda: taken > 10_000)
            task.cancel()
            with pytest.raises(asyncio.CancelledError) as caught:
                await task
            assert "may be stored" in caught.value.__notes__[0]
            before = taken
            offset = (await bus.put("news", "last")).offset
            assert taken == before
            assert offset is not None
            assert 0 < offset <= taken

    run(story)


def test_a_cancelled_commit_is_brought_to_its_end(place: Place) -> None:
    """What it took comes again only if it did not happen."""

    async def story() -> None:
        async with place.open("alice") as bus:
            await bus.subscribe("orders")
            await bus.put_many("orders", ["1", "2"])

            async def work() -> bool:
                async with bus.transaction() as tx:
                    message = await tx.get("orders")
                    if message is not None:
                        tx.put("invoices", message.value)
                        taken.set()
                return message is not None

            taken = asyncio.Event()
            task = asyncio.create_task(work())
            await taken.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            while await work():
                pass
            assert [value async for batch in bus.read("invoices") for value in batch.values] == [b"1", b"2"]

    run(story)


def test_a_cancelled_open_leaves_the_folder_free(tmp_path: Path) -> None:
    async def story() -> None:
        opening = asyncio.create_task(tidings.aopen(tmp_path, "alice", max_backlog=1))
        await asyncio.sleep(0)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        while True:
            with contextlib.suppress(tidings.InvalidRequest):  # The thread that opens it may not have come to its end.
                async with tidings.aopen(tmp_path, "alice", max_backlog=2) as bus:
                    await bus.put("news", "one")
                    return

    run(story)
