"""What happens in a world of one replica group: the clients of a broker, and one that asks what there is."""

from __future__ import annotations

from random import Random

import msgspec

from tidings.client import operations
from tidings.client.operations import Operation
from tidings.simulator.client import Client, ClientProcess
from tidings.simulator.cluster.faults import draw_flips, draw_plan, with_losses
from tidings.simulator.cluster.world import ClusterWorld
from tidings.simulator.paxos.world import draw_replica
from tidings.simulator.publishers import insist
from tidings.simulator.workload import SILENCE_MS, draw_broker, draw_client, draw_journal, populate

NAMES = ["ann", "bob", "eve", "kim"]
ASKER = "pia"


def make_cluster_world(random: Random) -> ClusterWorld:
    """A world of one group, before anything has happened in it."""
    names = NAMES[: random.randint(2, 4)]
    plan = with_losses(draw_plan(random, [*names, ASKER], SILENCE_MS))
    # A leader that is cut off believes in itself for long, and clients that stay with it ask it meanwhile.
    replica = msgspec.structs.replace(draw_replica(random), unanswered_beats_max=random.choice((4, 12, 25)))
    broker, journal = draw_broker(random), draw_journal(random)
    if len(plan.losses) > 1:  # Files that are seldom sealed know nobody who has come meanwhile.
        journal = msgspec.structs.replace(journal, segment_bytes_max=1_000_000, segment_records_max=100_000)
    world = ClusterWorld(random, plan, broker, journal, replica, draw_client(random))
    world.flips = draw_flips(plan)
    world.add_group("n", random.choice((3, 3, 3, 5)))
    populate(world, names)
    world.clients[ASKER] = Client(world, ASKER, [asking], None)
    return world


def asking(me: ClientProcess) -> Operation[None]:
    """Asks again and again which topics there are, and how much is in them."""
    while not me.world.calm:
        yield from insist(me, lambda: operations.topics(me.core))
        yield from me.sleep(me.world.random.randint(1, 150))
