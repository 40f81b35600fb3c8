"""What happens in a world of a ring: groups that come and go, and clients of topics that lie all over the circle."""

from __future__ import annotations

from random import Random

import msgspec

from tidings.protocols.ring.key_ranges import tag_of
from tidings.simulator.client import Client, MemoryInbox, Role
from tidings.simulator.cluster.faults import draw_plan, with_losses
from tidings.simulator.cluster.ring_world import Joining, Leaving, RingPlan, RingWorld
from tidings.simulator.cluster.workload import ASKER, NAMES, asking
from tidings.simulator.paxos.world import draw_replica
from tidings.simulator.subscribers import waiting
from tidings.simulator.workload import (
    SILENCE_MS,
    draw_broker,
    draw_client,
    draw_journal,
    draw_publisher,
    draw_subscriber,
)

FAMILIES = [["{shop}orders", "{shop}refunds"], ["{a}x", "{a}y"], ["b"], ["c"], ["news"], ["k7"]]
"""Topics that lie together, and apart from those of the other families."""
GROUPS = "abcdefghkmnpqrtuvwxyz"
CALM_MS_RANGE = (3_000, 9_000)


def make_ring_world(random: Random) -> RingWorld:
    """A ring of one to three groups, before anything has happened in it."""
    names = NAMES[: random.randint(2, 4)]
    plan = draw_plan(random, [*names, ASKER], SILENCE_MS, CALM_MS_RANGE)
    replica = msgspec.structs.replace(draw_replica(random), unanswered_beats_max=random.choice((4, 12, 25)))
    ring_plan = draw_ring_plan(random, plan.calm_ms)
    plan = with_losses(plan)
    world = RingWorld(random, plan, ring_plan, draw_broker(random), draw_journal(random), replica, draw_client(random))
    families = random.sample(FAMILIES, random.randint(1, 3))
    for number, name in enumerate(names):
        _add_client(world, random, number, name, families)
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


def _add_client(world: RingWorld, random: Random, number: int, name: str, families: list[list[str]]) -> None:
    topics = [topic for family in families for topic in family]
    roles: list[Role] = []
    inbox = None
    waits_for: tuple[str, ...] | None = None
    if number == 0 or (number > 1 and random.random() < 0.5):
        roles.append(draw_publisher(world, random, name, topics, families))
    if number == 1 or (number > 1 and (not roles or random.random() < 0.4)):
        inbox = MemoryInbox() if random.random() < 0.3 else None
        family = random.choice(families)
        answers = f"{{{tag_of(family[0])}}}{name}-answers"
        kind, chosen, role = draw_subscriber(world, random, name, family, inbox, answers)
        roles.append(role)
        if kind is waiting:
            waits_for = chosen
    world.clients[name] = Client(world, name, roles, inbox)
    world.clients[name].waits_for = waits_for
