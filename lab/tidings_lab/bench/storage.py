"""A broker on a storage server beside one with a journal of its own: the same work in turns.

Here the medians of both sides count, not the best rounds: the storage server writes its texts behind the commits, which
disturbs some rounds more than others, and that is part of what it costs. Before the next round begins, the texts are
complete, so that no round pays for another.
"""

from __future__ import annotations

import time

from tidings.storage import questions
from tidings_lab.bench.figures import Figure, Limit, median, ratio_at_least
from tidings_lab.bench.processes import ServerProcess, Worker
from tidings_lab.bench.stage import Stage

EMBEDDED, STORED = "embedded", "stored"
LOOK_SECONDS = 0.01
WARM_BYTES = 256 * 1024 * 1024


def run(on: Stage) -> list[Figure]:
    """Durable put_many and single puts, on either broker in turns."""
    plan = on.plan
    server = on.storage()
    brokers = {EMBEDDED: on.broker(EMBEDDED), STORED: on.broker(STORED, storage=server.address)}
    publishers = {name: on.worker(broker.address, "publisher") for name, broker in brokers.items()}
    count, size = plan.publish_messages, plan.value_bytes
    for publisher in publishers.values():
        publisher.ask("make_texts", count=min(count, 1_000_000), size=size)
        publisher.ask("publish", topic="warm-up", count=max(1, count // 10), size=size)
    rates: dict[str, list[float]] = {EMBEDDED: [], STORED: []}
    puts: dict[str, list[float]] = {EMBEDDED: [], STORED: []}
    behind: list[float] = []
    for number in range(plan.rounds):
        on.step(f"round {number + 1} of {plan.rounds}: {count:,} messages on each broker")
        # The one that comes first in a round comes last in the next one.
        for name in (EMBEDDED, STORED) if number % 2 == 0 else (STORED, EMBEDDED):
            on.warm(int(count * size * 2.4) + WARM_BYTES)
            rates[name].append(_publish(publishers[name], count, size))
            behind += [_wait_for_texts(server)] if name == STORED else []
            puts[name].append(median(publishers[name].ask("put", topics=["news"], count=plan.put_messages, size=size)))
    on.raw["texts_complete_after_seconds"] = behind
    on.raw["storage_processor_seconds"] = server.processor_seconds()
    return [
        Figure(
            scenario="storage",
            name="put_many, durable, on a storage server",
            value=median(rates[STORED]),
            unit="messages/s",
            limit=Limit("the same, embedded journal", median(rates[EMBEDDED])),
            target=ratio_at_least(0.6),
            samples=tuple(rates[STORED]),
            limit_samples=tuple(rates[EMBEDDED]),
        ),
        Figure(
            scenario="storage",
            name="synchronous put, p50, on a storage server",
            value=median(puts[STORED]),
            unit="s",
            limit=Limit("the same, embedded journal", median(puts[EMBEDDED])),
            samples=tuple(puts[STORED]),
            limit_samples=tuple(puts[EMBEDDED]),
        ),
        Figure(
            scenario="storage",
            name=f"texts complete after {count:,} messages",
            value=median(behind),
            unit="s",
            samples=tuple(behind),
        ),
    ]


def _publish(publisher: Worker, count: int, size: int) -> float:
    began, ended = publisher.ask("publish", topic="news", count=count, size=size)
    return float(count / (ended - began))


def _wait_for_texts(server: ServerProcess) -> float:
    """Until every message is in its topic's text; the seconds that took."""
    began = time.perf_counter()
    while questions.status(server.address)["texts_behind_bytes"]:
        time.sleep(LOOK_SECONDS)
    return time.perf_counter() - began
