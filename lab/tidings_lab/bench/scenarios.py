"""The scenarios, each in turns with the limit that it is compared to.

Of the rounds of one side the best one counts: on a machine that others use too, the best round is the one
that they disturbed least. Both sides are treated alike.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from tidings.journal.record import HEADER_SIZE
from tidings.message import Columns
from tidings.protocols.broker import messages
from tidings.protocols.broker.commands import BatchWrite, Write, encode_command
from tidings.wire import codec
from tidings_lab.bench import backlog, group, groups, neighbours, overlay, ring, sockets, spark, spark_rows, storage
from tidings_lab.bench.commits import commits_since
from tidings_lab.bench.figures import (
    Figure,
    Limit,
    Target,
    at_least,
    median,
    percentile,
    quantity,
    ratio_at_least,
    ratio_at_most,
)
from tidings_lab.bench.plan import Plan
from tidings_lab.bench.stage import Notice, Stage, stage

PUBLISHING_PROCESSES = 2
CONSUMING_PROCESSES = 3
WARM_BYTES = 256 * 1024 * 1024
"""Memory that a round needs besides what it stores: buffers on both sides, and the file of the bare loop."""


def publish(on: Stage) -> list[Figure]:
    """One publisher, put_many, fdatasync before every receipt."""
    plan = on.plan
    broker = on.broker()
    publisher, disk = on.worker(broker.address, "publisher"), on.worker()
    count, size = plan.publish_messages, plan.value_bytes
    publisher.ask("make_values", count=min(count, 1_000_000), size=size)
    publisher.ask("publish", topic="warm-up", count=max(1, count // 10), size=size)
    rates: list[float] = []
    limits: list[float] = []
    blocks: list[int] = []
    for number in range(plan.rounds):
        on.step(f"round {number + 1} of {plan.rounds}: {count:,} messages, then the bare disk")
        on.warm(int(count * size * 1.2) + WARM_BYTES)
        before = commits_since(broker.data).end_address
        busy = broker.processor_seconds()
        began, ended = publisher.ask("publish", topic="news", count=count, size=size)
        commits = commits_since(broker.data, before)
        times = disk.ask(
            "write_and_sync", folder=str(on.folder), block_bytes=commits.mean_bytes, count=max(3, commits.count)
        )
        rates.append(count / (ended - began))
        limits.append(commits.mean_bytes * len(times) / sum(times))
        blocks.append(commits.mean_bytes)
        on.raw.setdefault("commits", []).append(msgspec.to_builtins(commits))
        on.raw.setdefault("broker_processor_seconds", []).append(broker.processor_seconds() - busy)
    best = max(rates)
    return [
        Figure(
            scenario="publish",
            name="put_many, durable",
            value=best,
            unit="messages/s",
            target=at_least(2e6),
            samples=tuple(rates),
        ),
        Figure(
            scenario="publish",
            name="put_many, bytes of messages",
            value=best * size,
            unit="B/s",
            limit=Limit(f"write + fdatasync, {quantity(median(blocks), 'B')} blocks", max(limits)),
            target=ratio_at_least(0.5),
            samples=tuple(rate * size for rate in rates),
            limit_samples=tuple(limits),
        ),
    ]


def consume(on: Stage) -> list[Figure]:
    """A backlog, read in batches and read one by one, each time by a new subscriber."""
    plan = on.plan
    broker = on.broker()
    count, size = plan.consume_messages, plan.value_bytes
    publisher = on.worker(broker.address, "publisher")
    on.step(f"publishing {count:,} messages")
    publisher.ask("publish", topic="news", count=count, size=size)
    publisher.stop()
    commits = commits_since(broker.data)
    block_bytes = max(1, commits.size_bytes // max(1, commits.records))
    message_bytes = commits.size_bytes / count
    reader, caller = on.worker(), on.worker()
    caller.ask("echo_connect", address=on.echo_server())
    rates: dict[str, list[float]] = {"consume_batches": [], "consume_messages": [], "stream": [], "copy": []}
    for number in range(plan.rounds):
        on.step(f"round {number + 1} of {plan.rounds}: batches, one by one, a bare stream, memory copy")
        for job in ("consume_batches", "consume_messages"):
            began, ended = reader.ask(
                job, address=broker.address, client=f"{job}-{number}", topic="news", start="earliest", count=count
            )
            rates[job].append(count / (ended - began))
        streamed = caller.ask("echo_stream", block_bytes=block_bytes, count=max(8, commits.records))
        rates["stream"].append(streamed / message_bytes)
        rates["copy"].append(max(caller.ask("memory_copy", count=2)) / message_bytes)
    on.raw["rates"] = rates
    on.raw["block_bytes"] = block_bytes
    limit = Limit(f"ZeroMQ stream, {quantity(block_bytes, 'B')} blocks", max(rates["stream"]))
    on.raw["memory_copy_messages_per_second"] = max(rates["copy"])
    return [
        Figure(
            scenario="consume",
            name=name,
            value=max(rates[job]),
            unit="messages/s",
            limit=limit,
            target=at_least(bound),
            samples=tuple(rates[job]),
            limit_samples=tuple(rates["stream"]),
        )
        for name, job, bound in (
            ("backlog, batches()", "consume_batches", 4e6),
            ("backlog, one by one", "consume_messages", 1e6),
        )
    ]


def put_sizes(size: int) -> tuple[list[int], int]:
    """The frames of a single put, and its record in the journal: their sizes in bytes."""
    client, topic = "publisher", "news"
    body = codec.encode(Columns(1, client, [bytes(size)], published_us=1_700_000_000_000_000))
    target = (messages.Target(topic, 1_000),)
    header = codec.encode(messages.Put(1_000, client, 1, messages.Part(target, 1)))
    command = encode_command(Write(client, 1, (BatchWrite(target, 1, len(body)),)))
    return [len(header), len(body)], HEADER_SIZE + len(command) + len(body)


def put(on: Stage) -> list[Figure]:
    """A single synchronous put: there, on the disk, and back."""
    plan = on.plan
    broker = on.broker()
    publisher, caller = on.worker(broker.address, "publisher"), on.worker()
    caller.ask("echo_connect", address=on.echo_server())
    frames, record_bytes = put_sizes(plan.value_bytes)
    count = plan.put_messages
    times: dict[str, list[list[float]]] = {"put": [], "echo": [], "sync": [], "both": []}
    publisher.ask("put", topics=["news"], count=max(5, count // 4), size=plan.value_bytes)
    for number in range(plan.rounds):
        on.step(f"round {number + 1} of {plan.rounds}: {count} puts, echoes, syncs, echoes that sync")
        times["put"].append(publisher.ask("put", topics=["news"], count=count, size=plan.value_bytes))
        times["echo"].append(caller.ask("echo", sizes=frames, count=count))
        times["sync"].append(caller.ask("write_and_sync", folder=str(on.folder), block_bytes=record_bytes, count=count))
        times["both"].append(caller.ask("echo", sizes=frames, count=count, record_bytes=record_bytes))
    on.raw["frame_bytes"], on.raw["record_bytes"] = frames, record_bytes
    on.raw["p50"] = {name: [median(each) for each in rounds] for name, rounds in times.items()}
    best = {
        name: {part: min(percentile(each, share) for each in times[part]) for part in times}
        for name, share in (("p50", 0.5), ("p99", 0.99))
    }
    samples = tuple(median(each) for each in times["put"])

    def figure(name: str, limit: Limit, target: Target | None = None) -> Figure:
        return Figure(
            scenario="put",
            name=f"synchronous put, {name}",
            value=best[name]["put"],
            unit="s",
            limit=limit,
            target=target,
            samples=samples,
        )

    return [
        figure("p50", Limit("echo + fdatasync", best["p50"]["echo"] + best["p50"]["sync"]), ratio_at_most(1.6)),
        figure("p50", Limit("echo that syncs", best["p50"]["both"])),
        figure("p99", Limit("echo that syncs", best["p99"]["both"])),
    ]


def many(on: Stage) -> list[Figure]:
    """Many publishers at once, each waiting for every receipt."""
    plan = on.plan
    broker = on.broker()
    publishers, callers = on.workers(PUBLISHING_PROCESSES), on.workers(PUBLISHING_PROCESSES)
    each = max(1, plan.many_publishers // PUBLISHING_PROCESSES)
    echo = on.echo_server()
    frames, _ = put_sizes(plan.value_bytes)
    for caller in callers:
        caller.ask("echo_connect", address=echo, callers=each)
    rates: list[float] = []
    limits: list[float] = []
    for number in range(plan.rounds):
        on.step(f"round {number + 1} of {plan.rounds}: {each * len(publishers)} publishers, then bare echoes")
        before = commits_since(broker.data).end_address
        for worker in publishers:
            worker.send(
                "publish_many",
                address=broker.address,
                publishers=each,
                seconds=plan.many_seconds,
                topic="news",
                size=plan.value_bytes,
            )
        done = [worker.answer() for worker in publishers]
        span = max(ended for _, _, ended in done) - min(began for _, began, _ in done)
        rates.append(sum(puts for puts, _, _ in done) / span)
        on.raw.setdefault("commits", []).append(msgspec.to_builtins(commits_since(broker.data, before)))
        seconds = min(1.0, plan.many_seconds)
        for caller in callers:
            caller.send("echo_all", sizes=frames, seconds=seconds)
        limits.append(sum(caller.answer() for caller in callers) / seconds)
    return [
        Figure(
            scenario="many",
            name=f"single puts, {each * len(publishers)} publishers",
            value=max(rates),
            unit="puts/s",
            limit=Limit(f"bare echo, {each * len(publishers)} callers", max(limits)),
            target=at_least(15_000),
            samples=tuple(rates),
            limit_samples=tuple(limits),
        )
    ]


def fanout(on: Stage) -> list[Figure]:
    """One topic, many exclusive subscriptions, read while it is published."""
    plan = on.plan
    broker = on.broker()
    count, size, subscriptions = plan.fanout_messages, plan.value_bytes, plan.fanout_subscriptions
    publisher, caller = on.worker(broker.address, "publisher"), on.worker()
    publisher.ask("make_values", count=count, size=size)
    caller.ask("echo_connect", address=on.echo_server())
    readers = on.workers(min(CONSUMING_PROCESSES, subscriptions))
    on.step(f"{subscriptions} subscriptions")
    for number, reader in enumerate(readers):
        names = [f"reader-{each}" for each in range(number, subscriptions, len(readers))]
        reader.send("fan_subscribe", address=broker.address, topic="news", clients=names)
    for reader in readers:
        reader.answer()
    rates: list[float] = []
    limits: list[float] = []
    stored: list[float] = []
    for number in range(plan.rounds):
        on.step(f"round {number + 1} of {plan.rounds}: {count:,} messages to each, then a bare stream")
        before = commits_since(broker.data).end_address
        for reader in readers:
            reader.send("fan_consume", count=count)
        began, _ = publisher.ask("publish", topic="news", count=count, size=size)
        done = [reader.answer() for reader in readers]
        rates.append(sum(deliveries for deliveries, _ in done) / (max(ended for _, ended in done) - began))
        commits = commits_since(broker.data, before)
        stored.append(commits.size_bytes)
        on.raw.setdefault("commits", []).append(msgspec.to_builtins(commits))
        block_bytes = min(commits.size_bytes, 256 * 1024)
        streamed = caller.ask("echo_stream", block_bytes=block_bytes, count=max(8, 2**28 // block_bytes))
        limits.append(streamed / size)
    return [
        Figure(
            scenario="fanout",
            name=f"deliveries, {subscriptions} subscriptions",
            value=max(rates),
            unit="messages/s",
            limit=Limit("ZeroMQ stream, 262 kB blocks", max(limits)),
            target=at_least(3e6),
            samples=tuple(rates),
            limit_samples=tuple(limits),
        ),
        Figure(
            scenario="fanout",
            name="journal, all subscriptions",
            value=min(stored),
            unit="B",
            limit=Limit("every message once", float(count * size)),
            target=ratio_at_most(1.3),
            samples=tuple(stored),
        ),
    ]


class Scenario(msgspec.Struct, frozen=True):
    """What it is about, how many steps it takes, and how it is done."""

    title: str
    steps: Callable[[Plan], int]
    run: Callable[[Stage], list[Figure]]


SCENARIOS: dict[str, Scenario] = {
    "publish": Scenario("durable put_many of one publisher", lambda plan: plan.rounds, publish),
    "consume": Scenario("a backlog in batches and one by one", lambda plan: plan.rounds + 1, consume),
    "put": Scenario("the time of a single synchronous put", lambda plan: plan.rounds, put),
    "many": Scenario("32 publishers of single messages", lambda plan: plan.rounds, many),
    "fanout": Scenario("100 exclusive subscriptions of one topic", lambda plan: plan.rounds + 1, fanout),
    "groups": Scenario("sharing, a death and a join", lambda plan: groups.steps(plan.rounds), groups.run),
    "sockets": Scenario("texts and deliveries of the door for sockets", lambda plan: plan.rounds, sockets.run),
    "storage": Scenario("a broker on a storage server", lambda plan: plan.rounds, storage.run),
    "backlog": Scenario("memory, restart and costs with much stored", backlog.steps, backlog.run),
}


ON_REQUEST: dict[str, Scenario] = {
    "group": Scenario("three replicas beside a broker alone", group.steps, group.run),
    "ring": Scenario("a message over a ring beside one replica group", ring.steps, ring.run),
    "overlay": Scenario("messages that the simulator of overlays delivers", overlay.steps, overlay.run),
    "spark": Scenario("topics as tables and streams in Spark", spark.steps, spark.run),
    "spark-rows": Scenario("the cost of a row in Spark with many rows", spark_rows.steps, spark_rows.run),
}
"""What is measured only when it is named: it takes minutes, or needs more than tidings itself."""


class Results(msgspec.Struct):
    """What a run has measured."""

    figures: list[Figure]
    limits: list[Figure]
    raw: dict[str, Any]


def machine_limits(plan: Plan, folder: Path, notice: Notice) -> list[Figure]:
    """The machine by itself: disk, echo and memory, for comparison with other machines."""
    with stage("machine", plan, folder, notice) as on:
        on.step("disk, echo and memory")
        worker = on.worker()
        worker.ask("echo_connect", address=on.echo_server())
        frames, record_bytes = put_sizes(plan.value_bytes)
        count = max(20, plan.put_messages)
        sync = worker.ask("write_and_sync", folder=str(on.folder), block_bytes=record_bytes, count=count)
        block = worker.ask("write_and_sync", folder=str(on.folder), block_bytes=1 << 20, count=max(8, count // 10))
        echo = worker.ask("echo", sizes=frames, count=count)
        copy = worker.ask("memory_copy", count=8)

    def line(name: str, value: float, unit: str, samples: Sequence[float] = ()) -> Figure:
        return Figure(scenario="machine", name=name, value=value, unit=unit, samples=tuple(samples))

    return [
        line(f"write + fdatasync of {record_bytes} bytes, p50", median(sync), "s"),
        line(f"write + fdatasync of {record_bytes} bytes, p99", percentile(sync, 0.99), "s"),
        line("write + fdatasync of 1 MiB blocks", (1 << 20) / median(block), "B/s"),
        line("ZeroMQ echo of a put's frames, p50", median(echo), "s"),
        line("memory copy", max(copy), "B/s", copy),
    ]


def run(names: Sequence[str], plan: Plan, folder: Path, notice: Notice) -> Results:
    """Runs scenarios one after another, and notes for each how much of the machine others had meanwhile."""
    results = Results([], [], {})
    before = neighbours.spent()
    limits = machine_limits(plan, folder, notice)
    notice("machine", "")
    results.limits = _noted(limits, before, 0.0)
    for name in names:
        before = neighbours.spent()
        with stage(name, plan, folder, notice) as on:
            figures = (SCENARIOS | ON_REQUEST)[name].run(on)
            results.raw[name] = on.raw
        # Only now, when the processes of the scenario have ended, is it known what they spent.
        results.figures += _noted(figures, before, on.unseen)
        notice(name, "")
    return results


def _noted(figures: list[Figure], before: neighbours.Spent | None, unseen: float) -> list[Figure]:
    others = neighbours.others_share(before, neighbours.spent(), unseen)
    return [msgspec.structs.replace(figure, others=others) for figure in figures]
