"""What goes wrong in a run, as data: rates for the network, and faults, each at its time, all drawn from the seed.

Times count from the start of the run and end before `calm_ms`; from then on nothing goes wrong any more and everything
that waits must come to its end. Which node a fault hits is a number that is counted through the nodes of its time, or
-1 for one that leads: nodes come and go. A world draws what it can bear, and handles what it draws.
"""

from __future__ import annotations

from random import Random
from typing import Literal

import msgspec

from tidings.simulator.world.timeline import Fault

End = Literal["kill", "power", "sync"]
"""kill: the process dies, the machine goes on. power: what was not synced is torn. sync: an fdatasync fails."""

Leave = Literal["kill", "close", "overlap"]
LEAVES: tuple[Leave, ...] = ("kill", "kill", "close", "overlap", "overlap")

Shape = Literal["isolated", "mute", "deaf", "one-way", "split", "bridge"]
"""isolated: a node reaches nobody and nobody reaches it. mute: nobody hears it. deaf: it hears nobody. one-way: from
one node to another nothing passes. split: two halves. bridge: two halves, and one node that reaches both.
"""
SHAPES: tuple[Shape, ...] = ("isolated", "mute", "deaf", "one-way", "split", "bridge")

# Nodes.


class NodeEnd(msgspec.Struct, frozen=True):
    """A node's process ends, at once or at the disk's step number `steps` from then on; and comes back."""

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
    for_ms: int


class ClockJump(msgspec.Struct, frozen=True):
    """A machine's clock is set by so much."""

    at_ms: int
    victim: int
    by_ms: int


class FullDisk(msgspec.Struct, frozen=True):
    """A disk has only so much room left for a while."""

    at_ms: int
    until_ms: int
    victim: int
    room_bytes: int


class DiskLoss(msgspec.Struct, frozen=True):
    """A node's machine is gone. Another one comes in its place, with an empty disk, once the group can bear it."""

    at_ms: int
    victim: int
    back_after_ms: int


# Between nodes.


class Partition(msgspec.Struct, frozen=True):
    """Between nodes only; clients may reach both sides."""

    at_ms: int
    until_ms: int
    shape: Shape
    victim: int
    other: int
    sides: int
    """A bit for each node: on which side of a split it is."""


class NodeBreak(msgspec.Struct, frozen=True):
    """The connections between two nodes break, and what is under way on them is lost."""

    at_ms: int
    victim: int
    other: int


# Clients.


class ClientEnd(msgspec.Struct, frozen=True):
    """A client's process ends and another one of the same name begins.

    kill: it dies. close: it ends in good order. overlap: it lives on beside the new one.
    """

    at_ms: int
    client: str
    back_after_ms: int
    how: Leave


class ClientPause(msgspec.Struct, frozen=True):
    """A client's process stands still, as if the machine slept."""

    at_ms: int
    client: str
    for_ms: int


class ClientBreak(msgspec.Struct, frozen=True):
    """A client's connection breaks and is made again below the client's eyes, as ZeroMQ does."""

    at_ms: int
    client: str


class ClientCut(msgspec.Struct, frozen=True):
    """Nothing passes between a node and a client, or all of them, in one direction or both."""

    at_ms: int
    until_ms: int
    client: str
    """"" is everybody."""
    victim: int
    to_node: bool
    to_client: bool


class FaultPlan(msgspec.Struct, frozen=True):
    """Everything that will go wrong in a run. A rate of None is of what never happens: chance is not even asked."""

    calm_ms: int
    faults: tuple[Fault, ...]
    """Those of one millisecond happen in this order."""
    latency_ms_max: int
    late_ms_max: int
    sync_ms_max: int
    loss: float | None = None
    repetition: float | None = None
    """How often an answer, or a message between nodes, comes twice."""
    late: float | None = None
    """How often a message takes up to `late_ms_max` instead of `latency_ms_max`."""
    orderly: bool = True
    """Whether a connection keeps the order, as TCP does, so that what is late delays all that follows it."""
    holding: bool = True
    """Whether what cannot pass waits until it can, as with TCP for a while. False: it is lost."""
    severing: bool = True
    """Whether what is under way to a node when it ends is lost, as with TCP, and does not reach its next life."""
    asks_first: bool = False
    """Whether chance is asked about what cannot pass, too: each message meets its own fate before it meets a cut."""
    slow_disk: int = -1
    """The place of a node whose disk takes ten times as long; one that does not exist: none."""
    tick_ms: int = 1_000
    """How often a node looks at the clock, at most: a busy one does it late."""

    def of(self, *kinds: type) -> list[Fault]:
        """The faults of some kinds."""
        return [each for each in self.faults if isinstance(each, kinds)]


def aside(random: Random, what: str) -> Random:
    """A chance of its own for something, decided by the other one, which goes on as if nobody had asked."""
    twin = Random()
    twin.setstate(random.getstate())
    return Random(f"{what} {twin.getrandbits(64)}")
