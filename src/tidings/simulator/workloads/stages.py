"""The world of stages: queries write their batches, others read ranges, publish and subscribe beside them."""

from __future__ import annotations

from functools import partial
from random import Random

import msgspec

from tidings.simulator.clients.client import Client
from tidings.simulator.clients.stage_writers import Query, Row, ranging, writing
from tidings.simulator.workloads.topics import (
    SILENCE_MS,
    Ending,
    draw_broker,
    draw_client,
    draw_journal,
    draw_publisher,
    make_lone_world,
)
from tidings.simulator.world.engines import Engines
from tidings.simulator.world.faults import ClientEnd
from tidings.simulator.world.plans import draw_lone_plan
from tidings.simulator.world.world import World

TOPICS = ["a", "b"]
QUERIES = ["dan", "mia"]
READERS = ["rex"]
PUBLISHERS = ["ann"]


def make_stage_world(random: Random, calm_ms: int, ending: Ending | None = None) -> World:
    """A world of stages, before anything has happened in it."""
    queries = QUERIES[: random.randint(1, 2)]
    publishers = PUBLISHERS[: random.randint(0, 1)]
    plan = draw_lone_plan(random, [*queries, *queries, *READERS, *publishers], calm_ms, SILENCE_MS)
    ends = tuple(
        ClientEnd(
            random.randrange(calm_ms),
            random.choice(queries),
            random.randint(0, 800),
            random.choice(("kill", "kill", "overlap")),
        )
        for _ in range(random.randint(0, 4))
    )
    plan = msgspec.structs.replace(plan, faults=(*plan.faults, *ends))
    broker = msgspec.structs.replace(
        draw_broker(random),
        read_bytes_max=random.choice((1, 500, 100_000)),
        stage_age_ms=random.choice((500, 86_400_000, 86_400_000)),
    )
    world = make_lone_world(random, plan, Engines(broker, draw_journal(random)), draw_client(random), ending)
    world.watch.checkers += [world.watch.batches, world.watch.ranges]
    for name in queries:
        add_query(world, random, name, TOPICS)
    for name in publishers:
        role = draw_publisher(world, random, name, TOPICS)
        world.clients[name] = Client(world, name, [role], None)
    for name in READERS:
        readers = [partial(ranging, topic=topic, pace_ms=random.choice((20, 300))) for topic in TOPICS]
        world.clients[name] = Client(world, name, list(readers), None)
    return world


def add_query(world: World, random: Random, name: str, topics: list[str]) -> None:
    """A client that writes the batches of a query to some topics."""
    watch = world.watch
    batches: list[list[Row]] = []
    for number in range(random.randint(2, 8)):
        rows = [(random.choice(topics), f"{name}{number}.{row}") for row in range(random.randint(0, 9))]
        batches.append(rows)
        watch.ledger.intended.update({row: (topic,) for topic, row in rows})
    query = Query(
        f"{name}-query",
        batches,
        pace_ms=random.choice((5, 150, 500)),
        padding_max=random.choice((10, 200, 800)),
        failing=random.choice((0.0, 0.2, 0.5)),
    )
    world.scripts.append(query)
    watch.batches.queries[query.publisher] = query
    world.clients[name] = Client(world, name, [partial(writing, query=query)], None)
