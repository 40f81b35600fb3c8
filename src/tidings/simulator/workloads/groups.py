"""The world of groups: a few members share one topic that two publishers fill, and nothing goes as it should.

Leases are short and rooms are small, so that members lose their work and get it back many times in a run.
"""

from __future__ import annotations

from functools import partial
from random import Random

import msgspec

from tidings.protocols.broker.consumer_groups.members import LaneSettings
from tidings.protocols.broker.messages import LaneKind
from tidings.settings import BrokerSettings, ClientSettings
from tidings.simulator.checkers.groups import group_checkers
from tidings.simulator.checkers.in_flight import TOPIC
from tidings.simulator.clients.client import Client
from tidings.simulator.clients.members import Habits, Working, batching, handling, looping, membership, one_by_one
from tidings.simulator.clients.publishers import Item, Script, careless, keyed, resuming
from tidings.simulator.workloads.topics import Ending, draw_client, draw_journal, make_lone_world
from tidings.simulator.world.engines import Engines
from tidings.simulator.world.faults import ClientEnd, ClientPause, FaultPlan
from tidings.simulator.world.plans import draw_lone_plan
from tidings.simulator.world.world import World

PUBLISHERS = ["ann", "bob"]
MEMBERS = ["kim", "lea", "max", "zoe"]
LANES_COUNT = 10
DEAD_LETTERS = "dead"


def make_group_world(random: Random, calm_ms: int, ending: Ending | None = None) -> World:
    """A world of groups, before anything has happened in it."""
    members = MEMBERS[: random.randint(2, 4)]
    lease_ms = random.randint(400, 800)
    plan = _draw_faults(random, members, calm_ms, lease_ms)
    dead_letter = DEAD_LETTERS if random.random() < 0.2 else None
    broker = BrokerSettings(
        session_silence_ms_max=2_500,
        lease_ms=lease_ms,
        room_messages_max=random.choice((3, 1_000)),
        max_backlog=random.choice((None, None, 8)),
        drop_acknowledged=random.random() < 0.4,
        dead_letter=dead_letter,
        deliveries_max=4,
    )
    lanes = LaneSettings(
        batch_messages_max=random.choice((2, 1_000)),
        redelivery_ms=random.choice((300, 1_000, 30_000)),
        slow_ack_ms=random.choice((50, 5_000)),
        attempts_max=4 if dead_letter is not None else None,
    )
    plan = msgspec.structs.replace(plan, tick_ms=random.choice((20, 100)))
    engines = Engines(broker, draw_journal(random), lanes=lanes)
    world = make_lone_world(random, plan, engines, _draw_client(random), ending)
    world.watch.checkers += group_checkers(world.watch.in_flight, lease_ms, world.nodes[0].clock)
    lane_kind: LaneKind = random.choice(("key", "key", "publisher"))
    for name in PUBLISHERS:
        _add_publisher(world, random, name, lane_kind)
    for name in members:
        _add_member(world, random, name, lane_kind)
    return world


def _draw_faults(random: Random, members: list[str], calm_ms: int, lease_ms: int) -> FaultPlan:
    """The usual faults, and more of them for members: ends, and pauses around and beyond the lease."""
    plan = draw_lone_plan(random, PUBLISHERS + members + members, calm_ms, 2_500)
    ends = tuple(
        ClientEnd(
            random.randrange(calm_ms),
            random.choice(members),
            random.choice((0, random.randint(0, 1_500))),
            random.choice(("kill", "kill", "close", "overlap")),
        )
        for _ in range(random.randint(0, 3))
    )
    pauses = tuple(
        ClientPause(random.randrange(calm_ms), random.choice(members), random.randint(lease_ms // 2, 3 * lease_ms))
        for _ in range(random.randint(0, 3))
    )
    return msgspec.structs.replace(
        plan,
        severing=True,  # No connection outlives the broker, and what was under way on it is lost.
        faults=(*plan.faults, *ends, *pauses),
    )


def _draw_client(random: Random) -> ClientSettings:
    return msgspec.structs.replace(
        draw_client(random), beat_ms=random.choice((60, 150)), room_messages=random.choice((1, 3, 8, 30))
    )


def _add_publisher(world: World, random: Random, name: str, lane_kind: LaneKind) -> None:
    items: list[Item] = [((TOPIC,), f"{name}{number}") for number in range(random.randint(10, 40))]
    script = Script(
        name,
        items,
        window=random.randint(1, 6),
        pace_ms=random.choice((5, 100, 300)),
        padding_max=random.choice((10, 200)),
    )
    lanes = world.watch.in_flight.lanes
    for _, item in items:
        if random.random() < 0.8:
            key = b"%d" % random.randrange(LANES_COUNT)
            script.keys[item] = key
            lanes[item] = (name, key) if lane_kind == "publisher" else key
    world.scripts.append(script)
    kind = random.choice((resuming, keyed, careless))
    world.clients[name] = Client(world, name, [partial(kind, script=script)], None)


def _add_member(world: World, random: Random, name: str, lane_kind: LaneKind) -> None:
    style: Working = random.choice((looping, batching, handling, one_by_one, one_by_one))
    habits = Habits(
        lane_kind,
        pace_ms=random.choice((0, 10, 60, 200)),
        failing=random.choice((0.0, 0.1, 0.3)),
        crashing=random.choice((0.0, 0.0, 0.05)),
        leaving=random.choice((0.0, 0.0, 0.1)),
    )
    world.clients[name] = Client(world, name, [partial(membership, style=style, habits=habits)], None)
