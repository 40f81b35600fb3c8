"""What goes wrong in a world of replicas beside the usual: damage, copies of folders, and an operator at bad times."""

from __future__ import annotations

from random import Random
from typing import Literal

import msgspec

from tidings.simulator.world.faults import FaultPlan, aside
from tidings.simulator.world.plans import Drawing

Task = Literal["grow", "shrink", "replace", "lose-disk", "rash", "put-back"]
"""What an operator does. rash: several changes at once, without waiting for the first. put-back: an older copy of a
node's folder takes the place of the folder.
"""
TASKS: tuple[Task, ...] = ("grow", "shrink", "replace", "lose-disk", "lose-disk", "rash", "put-back", "put-back")


class Damage(msgspec.Struct, frozen=True):
    """A bit of a record flips on a node's disk, where it is sealed and applied. It is always the same node's disk."""

    at_ms: int
    victim: int
    choice: int


class Work(msgspec.Struct, frozen=True):
    at_ms: int
    task: Task
    choice: int


class FolderCopies(msgspec.Struct, frozen=True):
    """All folders are copied."""

    at_ms: int


class Fork(msgspec.Struct, frozen=True):
    """A copy of a node's folder is started beside the node, under the same number."""

    at_ms: int
    victim: int
    older: bool
    """Whether it is the copy that was made before, and not one of this moment."""


class PaxosPlan(msgspec.Struct, frozen=True):
    """The group that is founded, and everything that will go wrong in a run."""

    founders: int
    window: int
    faults: FaultPlan
    piece_ends: float = 0.0
    """How often a piece of another's file is followed by the end of the process, some steps of the disk later."""
    moved: Fork | None = None
    """At the end, when nothing else goes wrong: a copy of a folder takes the place of the folder. None: of none."""


def quiet_plan(founders: int, calm_ms: int, latency_ms_max: int, sync_ms_max: int) -> PaxosPlan:
    """A plan in which nothing goes wrong, but for what somebody does by hand."""
    faults = FaultPlan(
        calm_ms,
        (),
        latency_ms_max,
        latency_ms_max,
        sync_ms_max,
        loss=0.0,
        repetition=0.0,
        late=0.0,
        orderly=False,
        holding=False,
        severing=False,
    )
    return PaxosPlan(founders, 64, faults)


def draw_plan(random: Random) -> PaxosPlan:
    """A plan. A rate is often 0, so that each kind of fault is also seen without the others."""
    draw = Drawing(random, random.randint(2_000, 5_000), [])

    def rate(most: float) -> float:
        return random.choice((0.0, random.random() * most))

    founders, window = random.choice((3, 3, 5)), random.choice((2, 4, 8))
    faults = FaultPlan(
        calm_ms=draw.calm_ms,
        faults=(),
        orderly=False,
        holding=False,
        severing=False,
        loss=rate(0.3),
        repetition=rate(0.2),
        late=rate(0.15),
        latency_ms_max=random.choice((2, 10, 40)),
        late_ms_max=random.choice((200, 1_000, 3_000)),
        sync_ms_max=random.choice((1, 10, 60)),
        slow_disk=random.randrange(12),
    )
    piece_ends = rate(0.1)
    usual = [
        *draw.ends(6),
        *draw.outages(),
        *draw.pauses(2, (200, 900, 2_000)),
        *draw.partitions(5),
        *draw.clock_jumps(2, 3_600_000),
        *_draw_damages(random, [*draw.times(2), draw.calm_ms - 1]),
    ]
    works = [Work(at_ms, random.choice(TASKS), random.randrange(16)) for at_ms in draw.times(4)]
    copies = [FolderCopies(at_ms) for at_ms in draw.times(4)]
    forks, moved = _draw_forks(random, draw.calm_ms)
    faults = msgspec.structs.replace(faults, faults=(*usual, *forks, *copies, *works))
    return PaxosPlan(founders, window, faults, piece_ends, moved)


def _draw_forks(random: Random, calm_ms: int) -> tuple[list[Fork], Fork | None]:
    """Copies of folders that somebody starts, in half of all worlds beside their originals; and one at the end."""
    random = aside(random, "forks")

    def fork(at_ms: int) -> Fork:
        return Fork(at_ms, random.choice((-1, random.randrange(16))), random.random() < 0.5)

    times = sorted(random.randrange(calm_ms) for _ in range(random.choice((0, 0, 1, 3))))
    moved = random.choice((None, None, fork(calm_ms)))
    return [fork(at_ms) for at_ms in times], moved


def _draw_damages(random: Random, times: list[int]) -> list[Damage]:
    victim = random.randrange(16)
    return [Damage(at_ms, victim, random.getrandbits(32)) for at_ms in times]
