"""The awaiting bus over the same fake link."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.unit.client.peer import SmallBroker
from tidings.client.aio import AsyncBus
from tidings.client.bus import monotonic_ms
from tidings.errors import InvalidRequest, Unavailable
from tidings.message import Message, Receipt, Receipts
from tidings.protocols.broker import messages as m
from tidings.settings import ClientSettings


class LoopBroker(SmallBroker):
    """A link whose waiting is done by the event loop, in real time."""

    def __init__(self) -> None:
        super().__init__()
        self._ear, self._bell = socket.socketpair()
        self._ear.setblocking(False)
        self._bell.setblocking(False)

    def receive(self, timeout_ms: int) -> list[bytes] | None:
        assert timeout_ms == 0
        with contextlib.suppress(BlockingIOError):
            self._ear.recv(4096)
        return self._answers.popleft() if self._answers else None

    def fileno(self) -> int:
        return self._ear.fileno()

    def _ring(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._bell.send(b"!")

    def close(self) -> None:
        super().close()
        self._ear.close()
        self._bell.close()


def run(story: Callable[[AsyncBus, LoopBroker], Awaitable[None]], **settings: Any) -> None:
    async def main() -> None:
        broker = LoopBroker()
        async with AsyncBus(broker, "alice", ClientSettings(**settings), clock=monotonic_ms) as bus:
            await story(bus, broker)
        assert broker.closed

    asyncio.run(asyncio.wait_for(main(), 60))


def test_the_same_operations_awaited() -> None:
    """Z1, Z6, Z7."""

    async def story(bus: AsyncBus, broker: LoopBroker) -> None:
        await bus.start()
        await bus.subscribe("news")
        assert await bus.put("news", "a") == Receipt("news", 0)
        assert await bus.put(["news", "sport"], "b") == [Receipt("news", 1), Receipt("sport", 0)]
        assert await bus.put_many("news", ["c"]) == Receipts("news", 2, 1)
        message = await bus.get("news")
        assert message is not None
        assert message.text == "a"
        assert broker.cursors[("news",)] == {"news": 1}
        assert {topic: each.text for topic, each in (await bus.get_all()).items()} == {"news": "b"}
        assert [info.name for info in await bus.topics()] == ["news", "sport"]
        assert (await bus.topic("news")).count == 3
        assert await bus.subscriptions() == [("news",)]
        assert await bus.status() == {"topics": 2}
        async with bus.publisher("import-7") as publisher:
            await publisher.put("news", "d")
            assert await publisher.last_sequence("news") == 1
        await bus.unsubscribe("news")
        await bus.shutdown()

    run(story)


def test_tasks_share_their_requests() -> None:
    """The first goes alone, the pile goes as one."""

    async def story(bus: AsyncBus, broker: LoopBroker) -> None:
        await bus.put("news", "first")
        receipts = await asyncio.gather(*(bus.put("news", str(i)) for i in range(100)))
        assert [receipt.offset for receipt in receipts] == list(range(1, 101))
        assert [put.part.count for put in broker.asked(m.Put)] == [1, 1, 99]

    run(story)


def test_the_end_of_a_block_ends_its_loops() -> None:
    async def story(bus: AsyncBus, broker: LoopBroker) -> None:
        async with await bus.subscribe("news") as subscription:
            broker.add("news", b"a")
            assert [message.text async for message in subscription.messages(timeout=0)] == ["a"]
            waiting = asyncio.create_task(anext(subscription.messages()))
            await asyncio.sleep(0)
        with pytest.raises(StopAsyncIteration):
            await waiting

    run(story)


def test_async_for_and_break() -> None:
    """Z7, C1."""

    async def story(bus: AsyncBus, broker: LoopBroker) -> None:
        subscription = await bus.subscribe("news")
        broker.add("news", b"a", b"b", b"c")
        async for message in subscription:
            if message.text == "b":
                break
        again = await bus.get("news")
        assert again is not None
        assert again.text == "b"
        assert [message.text async for message in subscription.messages(timeout=0)] == ["c"]
        assert broker.cursors[("news",)] == {"news": 3}
        broker.add("news", b"d", b"e")
        assert [batch.values async for batch in subscription.batches(timeout=0)] == [[b"d", b"e"]]

    run(story)


def test_waiting_tasks_are_woken_by_what_comes() -> None:
    async def story(bus: AsyncBus, broker: LoopBroker) -> None:
        subscription = await bus.subscribe("news")
        waiting = asyncio.create_task(bus.get("news", timeout=None))
        second = asyncio.create_task(bus.get("news", timeout=None))
        while not broker.asked(m.Flow):
            await asyncio.sleep(0)
        await bus.put("news", "a")
        await bus.put("news", "b")
        texts = [message.text for message in await asyncio.gather(waiting, second) if message is not None]
        assert sorted(texts) == ["a", "b"]
        assert await bus.get("news", timeout=0.01) is None
        closing = asyncio.get_running_loop().call_soon(subscription.close)
        assert [message async for message in subscription] == []
        closing.cancel()

    run(story)


def test_a_cancelled_get_leaves_the_message() -> None:
    async def story(bus: AsyncBus, broker: LoopBroker) -> None:
        await bus.subscribe("news")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await bus.get("news", timeout=None)
        broker.add("news", b"a")
        message = await bus.get("news")
        assert message is not None

    run(story)


def test_time_outs_resends_and_unavailable() -> None:
    """Z8, Z9."""

    async def story(bus: AsyncBus, broker: LoopBroker) -> None:
        await bus.put("news", "a")
        broker.filter = lambda request: "unanswered" if isinstance(request, m.Put) else True
        with pytest.raises(Unavailable) as caught:
            await bus.put("news", "b")
        assert broker.reopened == 3
        broker.filter = lambda request: True
        assert (await caught.value.resend()).duplicate
        assert broker.topics["news"] == [b"a", b"b"]

    run(story, timeout_ms=10)


def test_transactions() -> None:
    """Z10."""

    async def story(bus: AsyncBus, broker: LoopBroker) -> None:
        await bus.subscribe("orders")
        broker.add("orders", b"1", b"2")

        async def take_and_fail() -> None:
            async with bus.transaction() as tx:
                await tx.get("orders")
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await take_and_fail()
        async with bus.transaction() as tx:
            for _ in range(2):
                message = await tx.get("orders")
                assert message is not None
                tx.put("invoices", message.value)
        assert broker.topics["invoices"] == [b"1", b"2"]
        assert tx.receipts == [[Receipt("invoices", 0)], [Receipt("invoices", 1)]]

    run(story)


def test_handlers_plain_and_async() -> None:
    """C1."""

    async def story(bus: AsyncBus, broker: LoopBroker) -> None:
        seen = []

        @bus.on("news", start="earliest")
        async def show(message: Message) -> None:
            await asyncio.sleep(0)
            seen.append(message.text)

        @bus.on("sport", start="earliest")
        def stop(message: Message) -> None:
            seen.append(message.text)
            bus.stop()

        broker.add("news", b"a")
        broker.add("sport", b"s")
        await bus.run()
        assert sorted(seen) == ["a", "s"]

    run(story)


def test_close_ends_anyone_who_waits() -> None:
    async def main() -> None:
        broker = LoopBroker()
        bus = AsyncBus(broker, "alice", clock=monotonic_ms)
        await bus.subscribe("news")
        waiting = asyncio.create_task(bus.get("news", timeout=None))
        await asyncio.sleep(0)
        await bus.close()
        with pytest.raises(InvalidRequest):
            await waiting
        with pytest.raises(InvalidRequest):
            await bus.put("news", "x")

    asyncio.run(asyncio.wait_for(main(), 60))
