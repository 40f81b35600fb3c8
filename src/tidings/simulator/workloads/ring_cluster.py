"""What happens in a world of a ring: groups that come and go, and clients of topics that lie all over the circle."""

from __future__ import annotations

from functools import partial
from random import Random
from typing import Literal

import msgspec

from tidings.simulator.checkers.ring_cluster import RingJudge
from tidings.simulator.clients.client import Client
from tidings.simulator.clients.stage_writers import ranging
from tidings.simulator.workloads.cluster import ASKER, NAMES, asking, draw_replica
from tidings.simulator.workloads.stages import QUERIES, add_query
from tidings.simulator.workloads.topics import SILENCE_MS, draw_broker, draw_client, draw_journal, populate
from tidings.simulator.world.engines import Engines
from tidings.simulator.world.faults import ClientEnd
from tidings.simulator.world.plans import draw_group_plan, with_losses
from tidings.simulator.world.rings import Joining, Leaving, RingOfGroups, RingPlan
from tidings.simulator.world.world import Patience, World

FAMILIES = [["{shop}orders", "{shop}refunds"], ["{a}x", "{a}y"], ["b"], ["c"], ["news"], ["k7"]]
"""Topics that lie together, and apart from those of the other families."""
GROUPS = "abcdefghkmnpqrtuvwxyz"
READER = "rex"
ENDS: tuple[Literal["kill", "overlap"], ...] = ("kill", "kill", "overlap")
COMMIT_STEPS = 60
"""Among so many first steps of commits over several groups are those at which leaders die."""
CALM_MS_RANGE = (3_000, 9_000)


def make_ring_world(random: Random) -> World:
    """A ring of one to three groups, before anything has happened in it."""
    names = NAMES[: random.randint(2, 4)]
    plan = draw_group_plan(random, [*names, ASKER], SILENCE_MS, CALM_MS_RANGE)
    replica = msgspec.structs.replace(draw_replica(random), unanswered_beats_max=random.choice((4, 12, 25)))
    ring_plan = draw_ring_plan(random, plan.calm_ms)
    plan = with_losses(random, plan)
    chooser = Random(repr(random.getstate()))  # So that worlds without writers in stages are what they would be.
    writers = QUERIES[: chooser.choice((0, 0, 1, 1, 2))]
    ends = [
        ClientEnd(chooser.randrange(plan.calm_ms), chooser.choice(writers), chooser.randint(0, 800), how)
        for how in chooser.sample(ENDS, chooser.randint(0, 3) if writers else 0)
    ]
    plan = msgspec.structs.replace(plan, faults=(*plan.faults, *ends))
    broker = draw_broker(random)
    if writers:
        stage_age_ms = chooser.choice((2_000, 86_400_000, 86_400_000))
        broker = msgspec.structs.replace(
            broker, read_bytes_max=chooser.choice((1, 500, 100_000)), stage_age_ms=stage_age_ms
        )
    engines = Engines(broker, draw_journal(random), replica, {})
    client = draw_client(random)
    world = World(
        random, plan, engines, client, lambda world: RingJudge(world, engines.broker), Patience(events=1_500_000)
    )
    assert isinstance(world.judge, RingJudge)
    world.ring = RingOfGroups(world, world.judge, ring_plan)
    families = random.sample(FAMILIES, random.randint(2, len(FAMILIES)))
    populate(world, names, families)
    world.clients[ASKER] = Client(world, ASKER, [asking], None)
    for name in writers:
        add_query(world, chooser, name, chooser.sample([each[0] for each in families], min(3, len(families))))
    if writers:
        topics = chooser.sample([each[0] for each in families], 2)
        readers = [partial(ranging, topic=topic, pace_ms=chooser.choice((50, 500))) for topic in topics]
        world.clients[READER] = Client(world, READER, list(readers), None)
    return world


def draw_ring_plan(random: Random, calm_ms: int) -> RingPlan:
    """Who comes and goes. Of the groups that are there at first, one stays."""
    groups = random.sample(GROUPS, 5)
    first = random.choice((1, 2, 3, 3))
    later = random.randint(0 if first > 1 else 1, 2)
    joins = [Joining(0, group, random.choice((1, 1, 3))) for group in groups[:first]]
    for group in groups[first : first + later]:
        joins.append(Joining(random.randrange(200, calm_ms), group, random.choice((1, 1, 3))))
    stays = random.randrange(first)
    leavers = [joining for number, joining in enumerate(joins) if number != stays]
    leaves = [
        Leaving(random.randrange(each.at_ms + 100, calm_ms + 200), each.group, random.choice((0, 200, 3_000)))
        for each in random.sample(leavers, min(len(leavers), random.choice((0, 1, 1, 2))))
    ]
    commit_ends = tuple(random.randint(1, COMMIT_STEPS) for _ in range(random.choice((0, 1, 3, 8))))
    return RingPlan(tuple(joins), tuple(leaves), commit_ends)
