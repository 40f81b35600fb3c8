"""What happens in a world of one replica group: the clients of a broker, and one that asks what there is."""

from __future__ import annotations

from functools import partial
from random import Random

import msgspec

from tidings.client import operations
from tidings.client.operations import Operation
from tidings.settings import ReplicaSettings
from tidings.simulator.checkers.cluster import GroupJudge
from tidings.simulator.checkers.ledger import Ledger
from tidings.simulator.clients.client import Client, ClientProcess
from tidings.simulator.clients.publishers import insist
from tidings.simulator.endings.flips import Flips
from tidings.simulator.workloads.topics import (
    SILENCE_MS,
    draw_broker,
    draw_client,
    draw_journal,
    drawn_aside,
    populate,
)
from tidings.simulator.world.engines import Engines
from tidings.simulator.world.faults import DiskLoss
from tidings.simulator.world.plans import draw_flips, draw_group_plan, with_losses
from tidings.simulator.world.world import Patience, World

NAMES = ["ann", "bob", "eve", "kim"]
ASKER = "pia"


def make_cluster_world(random: Random) -> World:
    """A world of one group, before anything has happened in it."""
    names = NAMES[: random.randint(2, 4)]
    plan = with_losses(random, draw_group_plan(random, [*names, ASKER], SILENCE_MS))
    # A leader that is cut off believes in itself for long, and clients that stay with it ask it meanwhile.
    replica = msgspec.structs.replace(draw_replica(random), unanswered_beats_max=random.choice((4, 12, 25)))
    aside = drawn_aside(random)
    if aside.random() < 0.4:
        gone_ms = 2 * replica.election_ms + aside.randint(100, 1_000)
        replica = msgspec.structs.replace(replica, replica_gone_ms=gone_ms, replicas_min=aside.choice((2, 2, 3)))
    broker, journal = draw_broker(random), draw_journal(random)
    if len(plan.of(DiskLoss)) > 1:  # Files that are seldom sealed know nobody who has come meanwhile.
        journal = msgspec.structs.replace(journal, segment_bytes_max=1_000_000, segment_records_max=100_000)
    engines, client = Engines(broker, journal, replica), draw_client(random)
    flips = draw_flips(random)
    judge = partial(GroupJudge, ledger=Ledger(broker))
    world = World(random, plan, engines, client, judge, Patience(60_000, 400_000))
    world.add_group("n", random.choice((3, 3, 3, 5)))
    if flips:
        world.when_done.append(Flips(world, "n", flips).run)
    populate(world, names)
    world.clients[ASKER] = Client(world, ASKER, [asking], None)
    return world


def asking(me: ClientProcess) -> Operation[None]:
    """Asks again and again which topics there are, and how much is in them."""
    while not me.world.calm:
        yield from insist(me, lambda: operations.topics(me.core))
        yield from me.sleep(me.world.random.randint(1, 150))


def draw_replica(random: Random) -> ReplicaSettings:
    """Tiny, so that snapshots, full batches and lost turns are met in nearly every run."""
    return ReplicaSettings(
        beat_ms=80,
        election_ms=random.choice((100, 200, 350)),
        unanswered_beats_max=random.choice((4, 8)),
        fetch_retry_ms=100,
        queue_max=random.choice((2, 100)),
        batch_values_max=random.choice((1, 3, 10)),
        batches_open_max=random.choice((1, 2, 4)),
        undecided_bytes_max=random.choice((100, 10_000)),
        piece_bytes_max=random.choice((300, 2_000)),
        witness_ms=random.choice((20, 100, 500)),
    )
