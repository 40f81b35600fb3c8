"""What happens in a world of a ring: groups that come and go, and clients of topics that lie all over the circle."""

from __future__ import annotations

from random import Random

import msgspec

from tidings.simulator.checkers.ring_cluster import RingJudge
from tidings.simulator.clients.client import Client
from tidings.simulator.paxos.world import draw_replica
from tidings.simulator.workloads.cluster import ASKER, NAMES, asking
from tidings.simulator.workloads.topics import SILENCE_MS, draw_broker, draw_client, draw_journal, populate
from tidings.simulator.world.engines import Engines
from tidings.simulator.world.plans import draw_group_plan, with_losses
from tidings.simulator.world.rings import Joining, Leaving, RingOfGroups, RingPlan
from tidings.simulator.world.world import Patience, World

FAMILIES = [["{shop}orders", "{shop}refunds"], ["{a}x", "{a}y"], ["b"], ["c"], ["news"], ["k7"]]
"""Topics that lie together, and apart from those of the other families."""
GROUPS = "abcdefghkmnpqrtuvwxyz"
CALM_MS_RANGE = (3_000, 9_000)


def make_ring_world(random: Random) -> World:
    """A ring of one to three groups, before anything has happened in it."""
    names = NAMES[: random.randint(2, 4)]
    plan = draw_group_plan(random, [*names, ASKER], SILENCE_MS, CALM_MS_RANGE)
    replica = msgspec.structs.replace(draw_replica(random), unanswered_beats_max=random.choice((4, 12, 25)))
    ring_plan = draw_ring_plan(random, plan.calm_ms)
    plan = with_losses(random, plan)
    engines = Engines(draw_broker(random), draw_journal(random), replica, {})
    client = draw_client(random)
    world = World(
        random, plan, engines, client, lambda world: RingJudge(world, engines.broker), Patience(events=1_500_000)
    )
    assert isinstance(world.judge, RingJudge)
    world.ring = RingOfGroups(world, world.judge, ring_plan)
    families = random.sample(FAMILIES, random.randint(1, 3))
    populate(world, names, families)
    world.clients[ASKER] = Client(world, ASKER, [asking], None)
    return world


def draw_ring_plan(random: Random, calm_ms: int) -> RingPlan:
    """Who comes and goes. Of the groups that are there at first, one stays."""
    groups = random.sample(GROUPS, 5)
    first = random.randint(1, 3)
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
    return RingPlan(tuple(joins), tuple(leaves))
