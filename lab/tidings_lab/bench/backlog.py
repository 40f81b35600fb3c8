"""The backlog scenario: what it costs to have much stored.

Two brokers stand side by side, one with little and one with much, and the same work is done on each in
turns. A design that pays for what is stored, and not only for what is asked, shows a ratio above 1. The
little one grows by what the probes put into it, which stays far below the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from tidings_lab.bench.figures import Figure, Limit, Target, at_most, median, quantity, ratio_at_most
from tidings_lab.bench.plan import Plan
from tidings_lab.bench.processes import BrokerProcess, Worker
from tidings_lab.bench.stage import Stage

MEMORY_BYTES_MAX = 400e6
READY_SECONDS_MAX = 5.0
COST_RATIO_MAX = 1.3
SINGLE_MESSAGES_MAX = 300
READS_PER_ROUND = 3
"""A read of the probe is over in a few hundredths of a second, so one of them says little."""
WARM_BYTES = 256 * 1024 * 1024

Costs = dict[str, list[float]]


def steps(plan: Plan) -> int:
    """How many steps the scenario takes."""
    return 2 * plan.rounds + 6


def run(on: Stage) -> list[Figure]:
    """Much stored in one topic, then much stored in many topics."""
    return _stored(on) + _topics(on)


class _Side:
    """A broker and its client."""

    def __init__(self, on: Stage, name: str) -> None:
        self.name = name
        self.broker: BrokerProcess = on.broker(name)
        self.client: Worker = on.worker(self.broker.address, "prober")

    def stop(self) -> None:
        self.client.stop()
        self.broker.stop()


# Many messages.


def _stored(on: Stage) -> list[Figure]:
    plan = on.plan
    size, count = plan.value_bytes, plan.backlog_messages
    few, many = _Side(on, "few"), _Side(on, "many")
    memory: dict[str, Any] = on.raw.setdefault("memory", {})
    memory["empty"] = msgspec.to_builtins(many.broker.memory())
    few.client.ask("publish", topic="news", count=plan.backlog_few_messages, size=size)
    on.step(f"publishing {count:,} messages")
    on.warm(int(count * size * 1.2) + WARM_BYTES)
    began, ended = many.client.ask("publish", topic="news", count=count, size=size)
    on.raw["publish_messages_per_second"] = count / (ended - began)
    published = many.broker.memory()
    on.step(f"consuming {count:,} messages")
    began, ended = many.client.ask(
        "consume_batches", address=many.broker.address, client="all", topic="news", start="earliest", count=count
    )
    on.raw["consume_messages_per_second"] = count / (ended - began)
    consumed = many.broker.memory()
    costs = _probe_stored(on, few, many)
    on.step("killing the broker and starting it again")
    many.client.stop()
    many.broker.kill()
    ready_seconds = many.broker.start()
    restarted = many.broker.memory()
    with on.worker(many.broker.address, "prober") as client:
        stored = client.ask("next_offset", topic="news")
    assert stored >= count, f"{stored} of {count} messages are there after the restart"
    memory.update(
        published=msgspec.to_builtins(published),
        consumed=msgspec.to_builtins(consumed),
        restarted=msgspec.to_builtins(restarted),
    )
    few.stop()
    many.broker.stop()
    much = f"{quantity(count, '').strip()}"
    return [
        _figure(f"broker's memory, {much} published", published.resident_bytes, "B", at_most(MEMORY_BYTES_MAX)),
        _figure(f"broker's memory, {much} consumed", consumed.resident_bytes, "B", at_most(MEMORY_BYTES_MAX)),
        _figure(f"restart after a kill, {much} stored", ready_seconds, "s", at_most(READY_SECONDS_MAX)),
        *_compared(costs, f"{much} stored", f"{quantity(plan.backlog_few_messages, '').strip()} stored"),
    ]


def _probe_stored(on: Stage, few: _Side, many: _Side) -> dict[str, tuple[Costs, str]]:
    """The same puts and gets on both sides in turns."""
    plan = on.plan
    count, size = plan.backlog_probe_messages, plan.value_bytes
    single = min(plan.put_messages, SINGLE_MESSAGES_MAX)
    costs: dict[str, Costs] = {name: {"few": [], "many": []} for name in ("put_many", "batches", "put", "get")}
    for side in (few, many):
        side.client.ask("subscribe", topics=["news"], start="now")
    for number in range(plan.rounds):
        on.step(f"round {number + 1} of {plan.rounds}: the same work with little and with much stored")
        on.warm(int(2 * count * size * 1.2) + WARM_BYTES)
        for side in (few, many):
            before = side.client.ask("next_offset", topic="news")
            began, ended = side.client.ask("publish", topic="probe", count=count, size=size)
            costs["put_many"][side.name].append((ended - began) / count)
            costs["put"][side.name].append(median(side.client.ask("put", topics=["news"], count=single, size=size)))
            costs["get"][side.name].append(median(side.client.ask("get", topics=["news"], count=single)))
            for again in range(READS_PER_ROUND):
                began, ended = side.client.ask(
                    "consume_batches",
                    address=side.broker.address,
                    client=f"reader-{number}-{again}",
                    topic="probe",
                    start=number * count,
                    count=count,
                )
                costs["batches"][side.name].append((ended - began) / count)
            assert side.client.ask("next_offset", topic="news") == before + single
    return {
        "put_many": (costs["put_many"], "s/message"),
        "batches": (costs["batches"], "s/message"),
        "put": (costs["put"], "s"),
        "get": (costs["get"], "s"),
    }


# Many topics.


def _topics(on: Stage) -> list[Figure]:
    plan = on.plan
    size, count = plan.value_bytes, plan.topics_probe_messages
    at_once = plan.topics_few
    playing: dict[str, tuple[_Side, list[str]]] = {}
    for name, topics_count in (("few", plan.topics_few), ("many", plan.topics_many)):
        on.step(f"making {topics_count:,} topics, each with a subscription that is being read")
        side = _Side(on, f"topics-{name}")
        topics = [f"topic-{number}" for number in range(topics_count)]
        side.client.ask("subscribe", topics=topics, start="now")
        side.client.ask("put_at_once", topics=topics, count=topics_count, size=size, at_once=at_once)
        side.client.ask("get", topics=topics, count=topics_count)
        playing[name] = (side, scattered(topics, SINGLE_MESSAGES_MAX))
    costs: dict[str, Costs] = {name: {"few": [], "many": []} for name in ("put", "get", "at once")}
    for number in range(plan.rounds):
        on.step(f"round {number + 1} of {plan.rounds}: the same work with few and with many topics")
        for name, (side, topics) in playing.items():
            ask = side.client.ask
            costs["put"][name].append(median(ask("put", topics=topics, count=count, size=size)))
            costs["get"][name].append(median(ask("get", topics=topics, count=count)))
            began, ended = ask("put_at_once", topics=topics, count=count, size=size, at_once=at_once)
            costs["at once"][name].append((ended - began) / count)
            ask("get", topics=topics, count=count)
    memory = {f"topics_{name}": msgspec.to_builtins(side.broker.memory()) for name, (side, _) in playing.items()}
    on.raw.setdefault("memory", {}).update(memory)
    return _compared(
        {
            "put": (costs["put"], "s"),
            "get": (costs["get"], "s"),
            f"{at_once} puts at once": (costs["at once"], "s/message"),
        },
        f"{plan.topics_many:,} topics",
        f"{plan.topics_few:,} topics",
    )


def scattered(topics: list[str], count: int) -> list[str]:
    """At most so many of the topics, taken evenly from all over the list.

    >>> scattered(["a", "b", "c", "d"], 2)
    ['a', 'c']
    """
    return topics[:: max(1, len(topics) // count)][:count]


def _figure(name: str, value: float, unit: str, target: Target) -> Figure:
    return Figure(scenario="backlog", name=name, value=float(value), unit=unit, target=target)


def _compared(costs: Mapping[str, tuple[Costs, str]], much: str, little: str) -> list[Figure]:
    """A figure for each kind of work: its cost with much, beside its cost with little."""
    return [
        Figure(
            scenario="backlog",
            name=f"{work}, {much}",
            value=best(sides["many"]),
            unit=unit,
            limit=Limit(f"the same, {little}", best(sides["few"])),
            target=ratio_at_most(COST_RATIO_MAX),
            samples=tuple(sides["many"]),
            limit_samples=tuple(sides["few"]),
        )
        for work, (sides, unit) in costs.items()
    ]


def best(samples: Sequence[float]) -> float:
    """The cheapest round."""
    return min(samples)
