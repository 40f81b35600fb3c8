"""A program that uses every public name, for a strict type checker; it runs, too, on a folder that it is given."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

import tidings
from tidings.testing import Broker, ManualClock

KINDS: tuple[type[tidings.TidingsError], ...] = (
    *(tidings.LocalError, tidings.RemoteError, tidings.StorageError, tidings.StorageDamaged, tidings.Moved),
    *(tidings.NoSuchTopic, tidings.NotSubscribed, tidings.InvalidTopic, tidings.MessageTooLarge, tidings.Fenced),
    *(tidings.OutOfSequence, tidings.LimitReached, tidings.Unauthorized, tidings.InvalidRequest),
    *(tidings.Unavailable, tidings.Overloaded, tidings.ProtocolError),
)
start: tidings.Start = "earliest"
beginning: tidings.RangeStart = 0
lanes: tidings.LaneKind = "key"
when: tidings.When = datetime(2026, 1, 1, tzinfo=UTC)
value: tidings.Value = b"bytes"
headers: tidings.Headers = {"trace": b"t1"}
given: Mapping[str, tidings.Value] = {"trace": "t1"}
texts: list[str] = []


def show(message: tidings.Message) -> None:
    texts.append(f"{message.topic} {message.offset} {message.text} {message.key!r} {message.headers} {message.id}")
    texts.append(f"{message.publisher} {message.published_at:.0f} {message.attempt} {message.redelivered}")


async def ashow(message: tidings.Message) -> None:
    show(message)


handler: tidings.Handler = show


def put(bus: tidings.Bus) -> None:
    one: tidings.Receipt = bus.put("news", value, key="k", headers=given, id="order-17", wait=1.0)
    two: list[tidings.Receipt] = bus.put(["news", "sport"], "both")
    many: tidings.Receipts = bus.put_many("news", ["a"], ["k"], 1.0, [None], [None])
    soon: tidings.Soon[tidings.Receipt] = bus.put_soon("news", "soon")
    both: tidings.Soon[list[tidings.Receipt]] = bus.put_soon(("news", "sport"), "soon")
    bus.flush()
    first: tidings.Receipt = soon.result()
    last: list[tidings.Receipt] = both.result()
    texts.append(
        f"{one.offset} {one.duplicate} {two[0].topic} {many.count} {first} {last} {soon.done} {soon.failed} {soon.seen}"
    )
    with bus.publisher("import-7") as publisher:
        named: tidings.Publisher = publisher
        under: tidings.Receipt = named.put("news", "x", sequence=named.last_sequence("news") + 1)
        later: tidings.Soon[tidings.Receipt] = named.put_soon("news", "y")
        named.flush()
        texts.append(f"{named.name} {under} {later.result()} {named.put_many('news', ['z']).first_offset}")
    with bus.transaction() as tx:
        together: tidings.Transaction = tx
        order = together.get("news", timeout=0.0)
        if order is not None:
            together.put("invoices", order.value, headers=order.headers)
            together.ack(order)
    for receipts in tx.receipts:
        texts.append(repr(receipts))


def read(bus: tidings.Bus) -> None:
    with bus.subscribe("news") as subscription:
        named: tidings.Subscription = subscription
        for message in named.messages(timeout=0):
            show(message)
        for batch in named.batches(timeout=0):
            texts.append(f"{batch.values} {batch.keys} {batch.first_offset} {batch.next_offset} {batch.size_bytes}")
        texts.append(repr(named.get(timeout=0.0)))
    jobs: tidings.GroupSubscription = bus.subscribe("jobs", start=start, group="workers", lanes=lanes)
    bus.put("jobs", "x")
    bus.put("jobs", "y")
    job = jobs.get(timeout=5.0)
    if job is not None:
        jobs.extend(job)
        jobs.nack(job, delay=0.0)
    for share in jobs.batches(timeout=0):
        shared: tidings.Share = share
        texts.append(f"{list(shared.offsets)} {shared.attempt} {jobs.refused} {jobs.topics}")
    if (job := jobs.get()) is not None:
        jobs.ack(job)
    jobs.close(leave=True)
    everything: dict[str, tidings.Message] = bus.get_all()
    texts.append(repr(everything) + repr(bus.get("news", timeout=0.0)))
    for found in bus.read("news", beginning, 2):
        stored: tidings.Batch = found
        columns: tidings.Columns = stored.columns
        texts.append(f"{stored.stored_at} {columns.publisher}")
    for raw in bus.read_stored("news"):
        packed: tidings.Stored = raw
        even: tidings.Even | None = packed.even()
        texts.append(f"{packed.batch()} {even and even.count}")
    texts.append(str(bus.offset_at("news", when)))

    @bus.on("sport", start=start)
    def stop(message: tidings.Message) -> None:
        show(message)
        bus.stop()

    bus.on("sport")(handler)
    bus.run(timeout=5)
    kept: Callable[[tidings.Message], None] = stop
    texts.append(repr(kept))


def look(bus: tidings.Bus) -> None:
    topics: list[tidings.TopicInfo] = [*bus.topics(), bus.topic("news")]
    groups: list[tidings.GroupInfo] = bus.groups()
    members: list[tidings.MemberInfo] = [member for group in groups for member in group.members]
    stage: tidings.Stage = bus.stage("import", 7, "attempt")
    stage.write("news", [b"one"], headers=[headers])
    name: tidings.StageName = stage.finish()
    done: tidings.PublishDone = bus.publish("import", 7, [name])
    texts.append(f"{topics} {members} {done.repeated} {stage.published} {bus.discard(['other'])}")
    texts.append(f"{bus.subscriptions()} {bus.subscribers()} {bus.status()} {bus.client_id} {bus.lost}")
    bus.limit_topic("sport", 1_000)
    bus.unsubscribe("sport")
    bus.be_patient(10.0)


async def aput(bus: tidings.AsyncBus) -> None:
    one: tidings.Receipt = await bus.put("news", value, key="k", headers=given, id="order-18", wait=1.0)
    two: list[tidings.Receipt] = await bus.put(["news", "sport"], "both")
    many: tidings.Receipts = await bus.put_many("news", ["a"], ["k"], 1.0, [None], [None])
    soon: tidings.AsyncSoon[tidings.Receipt] = await bus.put_soon("news", "soon")
    both: tidings.AsyncSoon[list[tidings.Receipt]] = await bus.put_soon(("news", "sport"), "soon")
    await bus.flush()
    first: tidings.Receipt = await soon.result()
    last: list[tidings.Receipt] = await both.result()
    texts.append(f"{one.offset} {two[0].topic} {many.count} {first} {last} {soon.done}")
    async with bus.publisher("import-8") as publisher:
        named: tidings.AsyncPublisher = publisher
        under: tidings.Receipt = await named.put("news", "x", sequence=await named.last_sequence("news") + 1)
        later: tidings.AsyncSoon[tidings.Receipt] = await named.put_soon("news", "y")
        await named.flush()
        texts.append(f"{named.name} {under} {await later.result()} {(await named.put_many('news', ['z'])).count}")
    async with bus.transaction() as tx:
        together: tidings.AsyncTransaction = tx
        order = await together.get("news", timeout=0.0)
        if order is not None:
            together.put("invoices", order.value)
            together.ack(order)
    texts.append(repr(tx.receipts))


async def aread(bus: tidings.AsyncBus) -> None:
    async with await bus.subscribe("news") as subscription:
        named: tidings.AsyncSubscription = subscription
        messages: tidings.AsyncMessages = named.messages(timeout=0)
        async for message in messages:
            show(message)
        batches: tidings.AsyncBatches = named.batches(timeout=0)
        async for batch in batches:
            texts.append(repr(batch.values))
        texts.append(repr(await named.get(timeout=0.0)))
    jobs: tidings.AsyncGroupSubscription = await bus.subscribe("jobs", start=start, group="workers", lanes=lanes)
    await bus.put("jobs", "x")
    job = await jobs.get(timeout=5.0)
    if job is not None:
        await jobs.extend(job)
        await jobs.nack(job, delay=0.0)
    if (job := await jobs.get(timeout=5.0)) is not None:
        await jobs.ack(job)
    await jobs.close(leave=True)
    texts.append(repr(await bus.get_all()) + repr(await bus.get("news", timeout=0.0)))
    async for stored in bus.read("news", beginning, 2):
        texts.append(repr(stored.stored_at))
    async for raw in bus.read_stored("news"):
        texts.append(repr(raw.batch()))
    texts.append(str(await bus.offset_at("news", when)))

    @bus.on("sport", start=start)
    def stop(message: tidings.Message) -> None:
        show(message)
        bus.stop()

    bus.on("sport")(ashow)
    await bus.run(timeout=5)
    texts.append(repr(stop))


async def alook(bus: tidings.AsyncBus) -> None:
    topics: list[tidings.TopicInfo] = [*await bus.topics(), await bus.topic("news")]
    stage: tidings.AsyncStage = bus.stage("import", 8, "attempt")
    await stage.write("news", [b"one"])
    done: tidings.PublishDone = await bus.publish("import", 8, [await stage.finish()])
    texts.append(f"{topics} {await bus.groups()} {done.repeated} {stage.published} {await bus.discard(['other'])}")
    texts.append(
        f"{await bus.subscriptions()} {await bus.subscribers()} {await bus.status()} {bus.client_id} {bus.lost}"
    )
    await bus.limit_topic("sport", None)
    await bus.unsubscribe("sport")
    bus.be_patient(10.0)


async def awaited(folder: str, address: str) -> None:
    async with tidings.aopen(folder, "bob") as bus:
        await bus.subscribe("news")
        await aput(bus)
        await aread(bus)
        await alook(bus)
    opening: tidings.Opening = tidings.aconnect(address, "bob", timeout=2.5)
    other: tidings.AsyncBus = await opening
    await other.subscribe("news")
    await other.shutdown()
    await other.close(bye=False)


def main(folder: str) -> None:
    clock = ManualClock()
    with tidings.open(folder, "alice", clock=clock) as bus:
        bus.subscribe("news")
        put(bus)
        clock.advance(1.0)
        read(bus)
        look(bus)
    with Broker(f"{folder}/broker", admins=("alice", "bob")) as broker:
        bus = tidings.connect(broker.address, "alice", timeout=2.5, retries=3)
        try:
            bus.topic("nowhere")
        except tidings.NoSuchTopic as error:
            texts.append(f"{error.number} {error}")
        except tidings.Unavailable as error:
            error.resend()
        except KINDS as error:
            texts.append(f"{error.receipts}")
        bus.close(bye=True)
        broker.connect("carol").close()
        asyncio.run(awaited(folder, broker.address))
    with Broker(f"{folder}/other", admins=("alice",)) as broker, broker.connect("alice") as bus:
        bus.shutdown()
    print(len(texts))


if __name__ == "__main__":
    main(sys.argv[1])
