"""What goes wrong in a run, as data: rates for the network, times for everything else, drawn from the seed.

Times count from the start of the run and end before `calm_ms`; from then on nothing goes wrong any more and
everything that waits must come to its end.
"""

from __future__ import annotations

from random import Random
from typing import Literal

import msgspec

End = Literal["kill", "power", "sync"]
"""kill: the process dies, the machine goes on. power: what was not synced is torn. sync: an fdatasync fails."""

Leave = Literal["kill", "close", "overlap"]


class BrokerEnd(msgspec.Struct, frozen=True):
    """The broker's process ends at a time, or at the disk's step number `steps` after it; and comes back."""

    at_ms: int
    how: End
    steps: int | None
    back_after_ms: int


class ClientEnd(msgspec.Struct, frozen=True):
    """A client's process ends and another one of the same name begins.

    kill: it dies. close: it ends in good order. overlap: it lives on beside the new one.
    """

    at_ms: int
    client: str
    back_after_ms: int
    how: Leave


class Pause(msgspec.Struct, frozen=True):
    """A client's process stands still, as if the machine slept."""

    at_ms: int
    client: str
    for_ms: int


class Partition(msgspec.Struct, frozen=True):
    """Nothing gets through between a client and the broker, in one direction or both."""

    at_ms: int
    until_ms: int
    client: str
    to_broker: bool
    to_client: bool


class Break(msgspec.Struct, frozen=True):
    """A client's connection breaks and is made again below the client's eyes, as ZeroMQ does."""

    at_ms: int
    client: str


class FullDisk(msgspec.Struct, frozen=True):
    """The broker's disk has only so much room left for a while."""

    at_ms: int
    until_ms: int
    room_bytes: int


class ClockJump(msgspec.Struct, frozen=True):
    """The broker's clock is set by so much."""

    at_ms: int
    by_ms: int


class FaultPlan(msgspec.Struct, frozen=True):
    """Everything that will go wrong in a run."""

    calm_ms: int
    orderly: bool
    """True: a connection keeps the order and loses only what is under way when it breaks, as TCP does."""
    loss: float
    repetition: float
    late: float
    """How often a message takes up to `late_ms_max` instead of `latency_ms_max`."""
    latency_ms_max: int
    late_ms_max: int
    sync_ms_max: int
    broker_ends: tuple[BrokerEnd, ...]
    client_ends: tuple[ClientEnd, ...]
    pauses: tuple[Pause, ...]
    partitions: tuple[Partition, ...]
    breaks: tuple[Break, ...]
    full_disks: tuple[FullDisk, ...]
    clock_jumps: tuple[ClockJump, ...]
    severing: bool = False
    """True: what is under way to the broker when it ends is lost, as with TCP, and does not reach its next life."""


def draw_faults(random: Random, clients: list[str], calm_ms: int, silence_ms: int) -> FaultPlan:
    """A plan for these clients. A rate is often 0, so that each kind of fault is also seen without the others."""

    def rate(most: float) -> float:
        return random.choice((0.0, 0.0, random.random() * most))

    def times(most: int) -> list[int]:
        return sorted(random.randrange(calm_ms) for _ in range(random.randint(0, most)))

    def until(at_ms: int, most_ms: int) -> int:
        return min(calm_ms, at_ms + random.randint(1, most_ms))

    broker_ends = tuple(_draw_end(random, at_ms) for at_ms in times(5))
    client_ends = tuple(_draw_leave(random, at_ms, clients, broker_ends) for at_ms in times(3))
    orderly = random.random() < 0.5
    return FaultPlan(
        calm_ms=calm_ms,
        orderly=orderly,
        loss=0.0 if orderly else rate(0.2),
        repetition=0.0 if orderly else rate(0.2),
        late=rate(0.1),
        latency_ms_max=random.choice((2, 10, 60)),
        late_ms_max=random.choice((200, 1_000, 4_000)),
        sync_ms_max=random.choice((1, 10, 80)),
        broker_ends=broker_ends,
        client_ends=client_ends,
        pauses=tuple(
            Pause(at_ms, random.choice(clients), random.choice((300, silence_ms + 500))) for at_ms in times(1)
        ),
        partitions=tuple(
            Partition(at_ms, until(at_ms, 3_000), random.choice(clients), *random.choice(_DIRECTIONS))
            for at_ms in times(2)
        ),
        breaks=tuple(Break(at_ms, random.choice(clients)) for at_ms in times(3)),
        full_disks=tuple(FullDisk(at_ms, until(at_ms, 1_500), random.randrange(2_000)) for at_ms in times(1)),
        clock_jumps=tuple(
            ClockJump(at_ms, random.choice((-1, 1)) * random.randint(1, 2 * 3_600_000)) for at_ms in times(1)
        ),
    )


_LEAVES: tuple[Leave, ...] = ("kill", "kill", "close", "overlap", "overlap")
_DIRECTIONS = ((True, False), (False, True), (True, True))


def _draw_end(random: Random, at_ms: int) -> BrokerEnd:
    how: End = random.choice(("kill", "power", "power", "sync"))
    steps = random.randint(0, 25) if random.random() < 0.5 else None
    return BrokerEnd(at_ms, how, steps, random.choice((1, random.randint(1, 1_000))))


def _draw_leave(random: Random, at_ms: int, clients: list[str], broker_ends: tuple[BrokerEnd, ...]) -> ClientEnd:
    back_after_ms = random.randint(0, 1_500)
    if broker_ends and random.random() < 0.4:  # The broker ends when the client has just come back.
        at_ms = max(0, random.choice(broker_ends).at_ms - back_after_ms - random.randint(0, 400))
    return ClientEnd(at_ms, random.choice(clients), back_after_ms, random.choice(_LEAVES))
