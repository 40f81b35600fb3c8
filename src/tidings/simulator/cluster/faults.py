"""What goes wrong in a world of groups of nodes and their clients, as data, drawn from the seed.

Which node a fault hits is a number that is counted through the nodes, or -1 for one that leads. Times count from the
start of the run; from `calm_ms` on nothing goes wrong any more. Whatever ends comes back, and disks are lost one at a
time, so no group loses its majority for good.
"""

from __future__ import annotations

from random import Random

import msgspec

from tidings.simulator.faults import Break, ClientEnd, Leave, Pause
from tidings.simulator.paxos.faults import (
    ClockJump,
    NodeEnd,
    NodePause,
    Outage,
    Partition,
    draw_cuts,
    draw_end,
    draw_partition,
)


class NodeBreak(msgspec.Struct, frozen=True):
    """The connections between two nodes break, and what is under way on them is lost."""

    at_ms: int
    victim: int
    other: int


class ClientCut(msgspec.Struct, frozen=True):
    """Nothing passes between a node and a client, or all of them, in one direction or both."""

    at_ms: int
    until_ms: int
    client: str
    """"" is everybody."""
    victim: int
    to_node: bool
    to_client: bool


class DiskLoss(msgspec.Struct, frozen=True):
    """A node's machine is gone. Another one comes in its place, with an empty disk, once the group can bear it."""

    at_ms: int
    victim: int
    back_after_ms: int


class ClusterPlan(msgspec.Struct, frozen=True):
    """Everything that will go wrong in a run."""

    calm_ms: int
    late: float
    """How often a message takes up to `late_ms_max` instead of `latency_ms_max`, with all that follow it."""
    latency_ms_max: int
    late_ms_max: int
    sync_ms_max: int
    tick_ms: int
    """How often a node looks at the clock, at most: a busy one does it late."""
    slow_disk: int
    """A node whose disk takes ten times as long; one that does not exist: none."""
    holding: bool
    """True: what cannot pass waits until it can, as with TCP for a while. False: the connection is gone with it."""
    ends: tuple[NodeEnd, ...]
    outages: tuple[Outage, ...]
    pauses: tuple[NodePause, ...]
    partitions: tuple[Partition, ...]
    """Between nodes only; clients may reach both sides."""
    node_breaks: tuple[NodeBreak, ...]
    clock_jumps: tuple[ClockJump, ...]
    client_ends: tuple[ClientEnd, ...]
    client_pauses: tuple[Pause, ...]
    client_cuts: tuple[ClientCut, ...]
    breaks: tuple[Break, ...]
    losses: tuple[DiskLoss, ...] = ()


REPLACED_AFTER_MS = 2_500
"""About how long it takes until a new disk counts: its old number is removed, the new one is added, and votes."""
_LEAVES: tuple[Leave, ...] = ("kill", "kill", "close", "overlap", "overlap")
_DIRECTIONS = ((True, False), (False, True), (True, True), (True, True))


def draw_plan(
    random: Random, clients: list[str], silence_ms: int, calm_ms_range: tuple[int, int] = (2_000, 6_000)
) -> ClusterPlan:
    """A plan. A rate is often 0, so that each kind of fault is also seen without the others."""
    calm_ms = random.randint(*calm_ms_range)

    def times(most: int) -> list[int]:
        return sorted(random.randrange(calm_ms) for _ in range(random.randint(0, most)))

    def victim() -> int:
        return random.choice((-1, random.randrange(16)))

    def until(at_ms: int, most_ms: int) -> int:
        return min(calm_ms, at_ms + random.randint(100, most_ms))

    return ClusterPlan(
        calm_ms=calm_ms,
        late=random.choice((0.0, 0.0, random.random() * 0.1)),
        latency_ms_max=random.choice((2, 10, 40)),
        late_ms_max=random.choice((200, 1_000)),
        sync_ms_max=random.choice((1, 10, 60)),
        tick_ms=random.choice((10, 20, 40)),
        slow_disk=random.randrange(8),
        holding=random.random() < 0.5,
        ends=tuple(draw_end(random, at_ms) for at_ms in times(5)),
        outages=tuple(Outage(at_ms, random.randint(1, 500)) for at_ms in times(1)),
        pauses=tuple(NodePause(at_ms, victim(), random.choice((200, 600, 900, 2_000))) for at_ms in times(3)),
        partitions=tuple(
            draw_partition(random, at_ms, calm_ms, hit) for at_ms, hit in draw_cuts(random, times(4), calm_ms)
        ),
        node_breaks=tuple(NodeBreak(at_ms, victim(), random.randrange(16)) for at_ms in times(3)),
        clock_jumps=tuple(
            ClockJump(at_ms, random.randrange(16), random.choice((-1, 1)) * random.randint(1, 3_600_000))
            for at_ms in times(1)
        ),
        client_ends=tuple(
            ClientEnd(at_ms, random.choice(clients), random.randint(0, 1_500), random.choice(_LEAVES))
            for at_ms in times(3)
        ),
        client_pauses=tuple(
            Pause(at_ms, random.choice(clients), random.choice((300, silence_ms + 500))) for at_ms in times(1)
        ),
        client_cuts=tuple(
            ClientCut(at_ms, until(at_ms, 2_000), random.choice(("", *clients)), victim(), *random.choice(_DIRECTIONS))
            for at_ms in times(3)
        ),
        breaks=tuple(Break(at_ms, random.choice(clients)) for at_ms in times(3)),
    )


def with_losses(plan: ClusterPlan) -> ClusterPlan:
    """The plan, and in half of all worlds some disks that are lost, with the time that it takes to replace each.

    They are drawn by a generator of their own: what else goes wrong in a world stays what it is.
    """
    random = Random(f"losses of {plan}")
    count = random.choice((0, 0, 0, 1, 2, 4))
    calm_ms = plan.calm_ms + count * REPLACED_AFTER_MS
    times = sorted(random.randrange(calm_ms) for _ in range(count))
    losses = (DiskLoss(at_ms, random.choice((-1, random.randrange(16))), random.randint(1, 800)) for at_ms in times)
    return msgspec.structs.replace(plan, calm_ms=calm_ms, losses=tuple(losses))


def draw_flips(plan: ClusterPlan) -> tuple[int, ...]:
    """Bits that flip at the end of half of all worlds; by a generator of their own, as losses are."""
    random = Random(f"flips of {plan}")
    return tuple(random.getrandbits(32) for _ in range(random.choice((0, 0, 1, 3))))
