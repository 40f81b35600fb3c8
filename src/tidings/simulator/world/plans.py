"""What each world may draw of the faults: one broker with its clients, groups with theirs, and bits at the end."""

from __future__ import annotations

from random import Random

import msgspec

from tidings.simulator.world.faults import (
    LEAVES,
    SHAPES,
    ClientBreak,
    ClientCut,
    ClientEnd,
    ClientPause,
    ClockJump,
    DiskLoss,
    End,
    FaultPlan,
    FullDisk,
    NodeBreak,
    NodeEnd,
    NodePause,
    Outage,
    Partition,
    aside,
)

REPLACED_AFTER_MS = 2_500
"""About how long it takes until a new disk counts: its old number is removed, the new one is added, and votes."""
_ENDS: tuple[End, ...] = ("kill", "power", "power", "sync")
_DIRECTIONS = ((True, False), (False, True), (True, True))


class Drawing:
    """One plan as it is drawn: what happens when, and to whom, before the world is calm."""

    def __init__(self, random: Random, calm_ms: int, clients: list[str]) -> None:
        self.random = random
        self.calm_ms = calm_ms
        self._clients = clients

    def rate(self, most: float) -> float:
        """Often 0, so that each kind of fault is also seen without the others."""
        return self.random.choice((0.0, 0.0, self.random.random() * most))

    def times(self, most: int) -> list[int]:
        return sorted(self.random.randrange(self.calm_ms) for _ in range(self.random.randint(0, most)))

    def until(self, at_ms: int, least_ms: int, most_ms: int) -> int:
        return min(self.calm_ms, at_ms + self.random.randint(least_ms, most_ms))

    def victim(self) -> int:
        """A node, or one that leads."""
        return self.random.choice((-1, self.random.randrange(16)))

    def client(self) -> str:
        return self.random.choice(self._clients)

    def ends(self, most: int) -> list[NodeEnd]:
        """Ends of nodes, often of one that leads."""
        return [self._end(at_ms) for at_ms in self.times(most)]

    def _end(self, at_ms: int) -> NodeEnd:
        how = self.random.choice(_ENDS)
        steps = self.random.randint(0, 12) if self.random.random() < 0.5 else None
        return NodeEnd(at_ms, self.victim(), how, steps, self.random.choice((1, 300, 1_500)))

    def outages(self) -> list[Outage]:
        return [Outage(at_ms, self.random.randint(1, 500)) for at_ms in self.times(1)]

    def pauses(self, most: int, lengths_ms: tuple[int, ...]) -> list[NodePause]:
        return [NodePause(at_ms, self.victim(), self.random.choice(lengths_ms)) for at_ms in self.times(most)]

    def partitions(self, most: int) -> list[Partition]:
        """Now one node is hit, now another, or for the whole time the leader."""
        random, times = self.random, self.times(most)
        hunt_ms = random.choice((0, 0, random.randint(300, 1_000)))
        if hunt_ms:
            hits = [(at_ms, -1) for at_ms in range(hunt_ms, self.calm_ms, hunt_ms)]
        else:
            hits = [(at_ms, self.victim()) for at_ms in times]
        return [self._partition(at_ms, victim) for at_ms, victim in hits]

    def _partition(self, at_ms: int, victim: int) -> Partition:
        random, until_ms = self.random, self.until(at_ms, 100, 2_000)
        return Partition(at_ms, until_ms, random.choice(SHAPES), victim, random.randrange(16), random.getrandbits(16))

    def clock_jumps(self, most: int, by_ms_max: int) -> list[ClockJump]:
        random = self.random
        return [
            ClockJump(at_ms, random.randrange(16), random.choice((-1, 1)) * random.randint(1, by_ms_max))
            for at_ms in self.times(most)
        ]

    def client_ends(self) -> list[ClientEnd]:
        random = self.random
        return [
            ClientEnd(at_ms, self.client(), random.randint(0, 1_500), random.choice(LEAVES)) for at_ms in self.times(3)
        ]

    def client_pauses(self, silence_ms: int) -> list[ClientPause]:
        return [
            ClientPause(at_ms, self.client(), self.random.choice((300, silence_ms + 500))) for at_ms in self.times(1)
        ]

    def client_breaks(self) -> list[ClientBreak]:
        return [ClientBreak(at_ms, self.client()) for at_ms in self.times(3)]


# One broker.


def draw_lone_plan(random: Random, clients: list[str], calm_ms: int, silence_ms: int) -> FaultPlan:
    """A plan for one broker and these clients. Half of them keep the order on a connection; the others lose, delay and
    reorder each message by itself.
    """
    draw = Drawing(random, calm_ms, clients)
    ends = [_draw_lone_end(random, at_ms) for at_ms in draw.times(5)]
    client_ends = [_draw_leave(draw, at_ms, ends) for at_ms in draw.times(3)]
    orderly = random.random() < 0.5
    plan = FaultPlan(
        calm_ms=calm_ms,
        faults=(),
        orderly=orderly,
        holding=orderly,
        severing=False,
        asks_first=True,
        loss=0.0 if orderly else draw.rate(0.2),
        repetition=0.0 if orderly else draw.rate(0.2),
        late=draw.rate(0.1),
        latency_ms_max=random.choice((2, 10, 60)),
        late_ms_max=random.choice((200, 1_000, 4_000)),
        sync_ms_max=random.choice((1, 10, 80)),
    )
    pauses = draw.client_pauses(silence_ms)
    cuts = [
        ClientCut(at_ms, draw.until(at_ms, 1, 3_000), draw.client(), 0, *random.choice(_DIRECTIONS))
        for at_ms in draw.times(2)
    ]
    breaks = draw.client_breaks()
    full = [FullDisk(at_ms, draw.until(at_ms, 1, 1_500), 0, random.randrange(2_000)) for at_ms in draw.times(1)]
    jumps = [ClockJump(at_ms, 0, random.choice((-1, 1)) * random.randint(1, 2 * 3_600_000)) for at_ms in draw.times(1)]
    return msgspec.structs.replace(plan, faults=(*ends, *client_ends, *pauses, *cuts, *breaks, *full, *jumps))


def _draw_lone_end(random: Random, at_ms: int) -> NodeEnd:
    how = random.choice(_ENDS)
    steps = random.randint(0, 25) if random.random() < 0.5 else None
    return NodeEnd(at_ms, 0, how, steps, random.choice((1, random.randint(1, 1_000))))


def _draw_leave(draw: Drawing, at_ms: int, ends: list[NodeEnd]) -> ClientEnd:
    random = draw.random
    back_after_ms = random.randint(0, 1_500)
    if ends and random.random() < 0.4:  # The broker ends when the client has just come back.
        at_ms = max(0, random.choice(ends).at_ms - back_after_ms - random.randint(0, 400))
    return ClientEnd(at_ms, draw.client(), back_after_ms, random.choice(LEAVES))


# Groups.


def draw_group_plan(
    random: Random, clients: list[str], silence_ms: int, calm_ms_range: tuple[int, int] = (2_000, 6_000)
) -> FaultPlan:
    """A plan for groups of nodes and these clients: all is said over connections. Whatever ends comes back, and disks
    are lost one at a time, so no group loses its majority for good.
    """
    draw = Drawing(random, random.randint(*calm_ms_range), clients)
    plan = FaultPlan(
        calm_ms=draw.calm_ms,
        faults=(),
        late=random.choice((None, None, random.random() * 0.1)),
        latency_ms_max=random.choice((2, 10, 40)),
        late_ms_max=random.choice((200, 1_000)),
        sync_ms_max=random.choice((1, 10, 60)),
        tick_ms=random.choice((10, 20, 40)),
        slow_disk=random.randrange(8),
        holding=random.random() < 0.5,
    )
    faults = [
        *draw.ends(5),
        *draw.outages(),
        *draw.pauses(3, (200, 600, 900, 2_000)),
        *draw.partitions(4),
        *[NodeBreak(at_ms, draw.victim(), random.randrange(16)) for at_ms in draw.times(3)],
        *draw.clock_jumps(1, 3_600_000),
        *draw.client_ends(),
        *draw.client_pauses(silence_ms),
        *[_draw_cut(draw, at_ms, ["", *clients]) for at_ms in draw.times(3)],
        *draw.client_breaks(),
    ]
    return msgspec.structs.replace(plan, faults=tuple(faults))


def _draw_cut(draw: Drawing, at_ms: int, clients: list[str]) -> ClientCut:
    random, until_ms = draw.random, draw.until(at_ms, 100, 2_000)
    who, victim = random.choice(clients), draw.victim()
    return ClientCut(at_ms, until_ms, who, victim, *random.choice((*_DIRECTIONS, _DIRECTIONS[-1])))


def with_losses(random: Random, plan: FaultPlan) -> FaultPlan:
    """The plan, and in half of all worlds some disks that are lost, with the time that it takes to replace each."""
    random = aside(random, "disks lost")
    count = random.choice((0, 0, 0, 1, 2, 4))
    calm_ms = plan.calm_ms + count * REPLACED_AFTER_MS
    times = sorted(random.randrange(calm_ms) for _ in range(count))
    losses = (DiskLoss(at_ms, random.choice((-1, random.randrange(16))), random.randint(1, 800)) for at_ms in times)
    return msgspec.structs.replace(plan, calm_ms=calm_ms, faults=(*plan.faults, *losses))


def draw_flips(random: Random) -> tuple[int, ...]:
    """Bits that flip at the end of half of all worlds."""
    random = aside(random, "flips")
    return tuple(random.getrandbits(32) for _ in range(random.choice((0, 0, 1, 3))))
