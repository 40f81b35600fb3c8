"""What goes wrong in a world of replicas, as data, drawn from the seed.

Whom a fault hits is a number that is counted through the nodes of its time, because nodes come and go. Times count from
the start of the run; from `calm_ms` on nothing goes wrong any more.
"""

from __future__ import annotations

from random import Random
from typing import Literal

import msgspec

from tidings.simulator.faults import End

Shape = Literal["isolated", "mute", "deaf", "one-way", "split", "bridge"]
"""isolated: a node reaches nobody and nobody reaches it. mute: nobody hears it. deaf: it hears nobody. one-way: from
one node to another nothing passes. split: two halves. bridge: two halves, and one node that reaches both.
"""
SHAPES: tuple[Shape, ...] = ("isolated", "mute", "deaf", "one-way", "split", "bridge")

Task = Literal["grow", "shrink", "replace", "lose-disk", "rash", "put-back"]
"""What an operator does. rash: several changes at once, without waiting for the first. put-back: an older copy of a
node's folder takes the place of the folder.
"""
TASKS: tuple[Task, ...] = ("grow", "shrink", "replace", "lose-disk", "lose-disk", "rash", "put-back", "put-back")


class NodeEnd(msgspec.Struct, frozen=True):
    """A node's process ends, at once or at a step of its disk, and comes back."""

    at_ms: int
    victim: int
    how: End
    steps: int | None
    back_after_ms: int


class Outage(msgspec.Struct, frozen=True):
    """All nodes lose power at once, and come back one after another."""

    at_ms: int
    back_after_ms: int


class NodePause(msgspec.Struct, frozen=True):
    """A node stands still, as if its machine slept, longer than the others wait for a leader."""

    at_ms: int
    victim: int
    """-1: the leader."""
    for_ms: int


class Partition(msgspec.Struct, frozen=True):
    at_ms: int
    until_ms: int
    shape: Shape
    victim: int
    """-1: the leader."""
    other: int
    sides: int
    """A bit for each node: on which side of a split it is."""


class ClockJump(msgspec.Struct, frozen=True):
    at_ms: int
    victim: int
    by_ms: int


class Damage(msgspec.Struct, frozen=True):
    """A bit of a record flips on a node's disk, where it is sealed and applied. It is always the same node's disk."""

    at_ms: int
    victim: int
    choice: int


class Work(msgspec.Struct, frozen=True):
    at_ms: int
    task: Task
    choice: int


class Fork(msgspec.Struct, frozen=True):
    """A copy of a node's folder is started beside the node, under the same number."""

    at_ms: int
    victim: int
    older: bool
    """Whether it is the copy that was made before, and not one of this moment."""


class PaxosPlan(msgspec.Struct, frozen=True):
    """Everything that will go wrong in a run."""

    calm_ms: int
    founders: int
    window: int
    loss: float
    repetition: float
    late: float
    latency_ms_max: int
    late_ms_max: int
    sync_ms_max: int
    slow_disk: int
    """A node whose disk takes ten times as long; one that does not exist: none."""
    piece_ends: float
    """How often a piece of another's file is followed by the end of the process, some steps of the disk later."""
    ends: tuple[NodeEnd, ...]
    outages: tuple[Outage, ...]
    pauses: tuple[NodePause, ...]
    partitions: tuple[Partition, ...]
    clock_jumps: tuple[ClockJump, ...]
    damages: tuple[Damage, ...]
    works: tuple[Work, ...]
    copies: tuple[int, ...] = ()
    """When all folders are copied."""
    forks: tuple[Fork, ...] = ()
    moved: Fork | None = None
    """At the end, when nothing else goes wrong: a copy of a folder takes the place of the folder. None: of none."""


def quiet_plan(founders: int, calm_ms: int, latency_ms_max: int, sync_ms_max: int) -> PaxosPlan:
    """A plan in which nothing goes wrong, but for what somebody does by hand."""
    return PaxosPlan(
        calm_ms=calm_ms,
        founders=founders,
        window=64,
        loss=0.0,
        repetition=0.0,
        late=0.0,
        latency_ms_max=latency_ms_max,
        late_ms_max=latency_ms_max,
        sync_ms_max=sync_ms_max,
        slow_disk=0,
        piece_ends=0.0,
        ends=(),
        outages=(),
        pauses=(),
        partitions=(),
        clock_jumps=(),
        damages=(),
        works=(),
    )


def draw_plan(random: Random) -> PaxosPlan:
    """A plan. A rate is often 0, so that each kind of fault is also seen without the others."""
    calm_ms = random.randint(2_000, 5_000)

    def rate(most: float) -> float:
        return random.choice((0.0, random.random() * most))

    def times(most: int) -> list[int]:
        return sorted(random.randrange(calm_ms) for _ in range(random.randint(0, most)))

    def victim() -> int:
        return random.choice((-1, random.randrange(16)))

    plan = PaxosPlan(
        calm_ms=calm_ms,
        founders=random.choice((3, 3, 5)),
        window=random.choice((2, 4, 8)),
        loss=rate(0.3),
        repetition=rate(0.2),
        late=rate(0.15),
        latency_ms_max=random.choice((2, 10, 40)),
        late_ms_max=random.choice((200, 1_000, 3_000)),
        sync_ms_max=random.choice((1, 10, 60)),
        slow_disk=random.randrange(12),
        piece_ends=rate(0.1),
        ends=tuple(draw_end(random, at_ms) for at_ms in times(6)),
        outages=tuple(Outage(at_ms, random.randint(1, 500)) for at_ms in times(1)),
        pauses=tuple(NodePause(at_ms, victim(), random.choice((200, 900, 2_000))) for at_ms in times(2)),
        partitions=tuple(
            draw_partition(random, at_ms, calm_ms, victim) for at_ms, victim in draw_cuts(random, times(5), calm_ms)
        ),
        clock_jumps=tuple(
            ClockJump(at_ms, random.randrange(16), random.choice((-1, 1)) * random.randint(1, 3_600_000))
            for at_ms in times(2)
        ),
        damages=_draw_damages(random, [*times(2), calm_ms - 1]),
        works=tuple(Work(at_ms, random.choice(TASKS), random.randrange(16)) for at_ms in times(4)),
        copies=tuple(times(4)),
    )
    return with_forks(plan)


def with_forks(plan: PaxosPlan) -> PaxosPlan:
    """The plan, and copies of folders that somebody starts, in half of all worlds beside their originals.

    They are drawn by a generator of their own: what else goes wrong in a world stays what it is.
    """
    random = Random(f"forks of {plan}")

    def fork(at_ms: int) -> Fork:
        return Fork(at_ms, random.choice((-1, random.randrange(16))), random.random() < 0.5)

    times = sorted(random.randrange(plan.calm_ms) for _ in range(random.choice((0, 0, 1, 3))))
    moved = random.choice((None, None, fork(plan.calm_ms)))
    return msgspec.structs.replace(plan, forks=tuple(map(fork, times)), moved=moved)


def _draw_damages(random: Random, times: list[int]) -> tuple[Damage, ...]:
    victim = random.randrange(16)
    return tuple(Damage(at_ms, victim, random.getrandbits(32)) for at_ms in times)


def draw_cuts(random: Random, times: list[int], calm_ms: int) -> list[tuple[int, int]]:
    """When something is cut off, and whom: now one, now another, or for the whole time the leader."""
    hunt_ms = random.choice((0, 0, random.randint(300, 1_000)))
    if hunt_ms:
        return [(at_ms, -1) for at_ms in range(hunt_ms, calm_ms, hunt_ms)]
    return [(at_ms, random.choice((-1, random.randrange(16)))) for at_ms in times]


def draw_end(random: Random, at_ms: int) -> NodeEnd:
    """The end of some node, often of one that leads."""
    how: End = random.choice(("kill", "power", "power", "sync"))
    steps = random.randint(0, 12) if random.random() < 0.5 else None
    return NodeEnd(at_ms, random.choice((-1, random.randrange(16))), how, steps, random.choice((1, 300, 1_500)))


def draw_partition(random: Random, at_ms: int, calm_ms: int, victim: int) -> Partition:
    """A partition of some shape that is over before the world is calm."""
    until_ms = min(calm_ms, at_ms + random.randint(100, 2_000))
    return Partition(at_ms, until_ms, random.choice(SHAPES), victim, random.randrange(16), random.getrandbits(16))
