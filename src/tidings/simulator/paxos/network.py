"""The network between replicas: it loses, repeats, delays and reorders each message by itself, and it breaks in two."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidings.simulator.paxos.faults import Partition, PaxosPlan
from tidings.wire.codec import Frame

if TYPE_CHECKING:
    from tidings.simulator.paxos.world import PaxosWorld


class Network:
    """Who reaches whom, and when."""

    def __init__(self, world: PaxosWorld, plan: PaxosPlan) -> None:
        self._world = world
        self._plan = plan
        self._partitions: list[tuple[Partition, int, int]] = []
        """With the node and the other one that each has hit."""

    def send(self, sender: int, receiver: int, frames: list[Frame]) -> None:
        """From one replica to another."""
        if not self._passes(sender, receiver):
            return
        for delay_ms in self._delays():
            self._world.after(delay_ms, lambda: self._world.deliver(receiver, frames))

    def delay_of_call(self) -> int | None:
        """When a client's question or a node's answer to it arrives; None if it is lost."""
        delays = self._delays()
        return delays[0] if delays else None

    def on_partition(self, partition: Partition) -> None:
        node, other = self._world.pick(partition.victim), self._world.pick(partition.other)
        self._world.note("network", f"{partition.shape} {node} {other} until {partition.until_ms}")
        held = (partition, node, other)
        self._partitions.append(held)
        self._world.at(partition.until_ms, lambda: self._partitions.remove(held))

    def _passes(self, sender: int, receiver: int) -> bool:
        return not any(blocks(*held, sender, receiver) for held in self._partitions)

    def _delays(self) -> list[int]:
        """How long a message takes: once, several times, or not at all."""
        plan, random = self._plan, self._world.random
        if self._world.calm:
            return [1]
        if random.random() < plan.loss:
            return []
        count = 2 if random.random() < plan.repetition else 1
        return [
            random.randint(1, plan.late_ms_max if random.random() < plan.late else plan.latency_ms_max)
            for _ in range(count)
        ]


def blocks(partition: Partition, node: int, other: int, sender: int, receiver: int) -> bool:
    """Whether a partition that has hit a node, and another one, keeps a message from its receiver."""
    match partition.shape:
        case "isolated":
            return node in (sender, receiver)
        case "mute":
            return sender == node
        case "deaf":
            return receiver == node
        case "one-way":
            return sender == node and receiver == other
    across = (partition.sides >> sender % 16) & 1 != (partition.sides >> receiver % 16) & 1
    return across and (partition.shape == "split" or node not in (sender, receiver))
