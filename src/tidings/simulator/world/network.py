"""The network of a world, between nodes and between them and their clients: it delays, loses, reorders and breaks.

Everything that travels is bytes, as on the wire. The plan says how badly it goes: each message by itself, as on a
network without connections, or all of a connection together, which keeps the order and ends with either process, as
with TCP. (What a process sent just before it died may still arrive.)

A client has one connection, to the node that its session has chosen. It has a number, which is what the node knows of
its client; one that is made again gets a new number, and what was on its way to the client over the old one is lost.
Frames that the node is to get may still arrive then: they had left. Answers and deliveries may come twice. A request
may not: no connection makes copies of what it carries. It comes twice because the client sent it twice, over two
connections, and the older copy may be the later one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Protocol

from tidings.protocols.broker.messages import AnyRequest
from tidings.simulator.clients.client import ClientProcess
from tidings.simulator.world.faults import ClientBreak, ClientCut, FaultPlan, NodeBreak, Partition
from tidings.wire.codec import Frame, decode_answer, decode_request


class Consumer(Protocol):
    """A node, as the network knows it."""

    name: str
    life: int

    @property
    def address(self) -> str: ...

    @property
    def place(self) -> int:
        """Its number among all nodes of the world."""

    @property
    def is_up(self) -> bool:
        """Whether there is a process that hears what it is told."""

    def receive(self, peer: object, frames: list[bytes]) -> None: ...


class Eyes(Protocol):
    """Who sees what clients and nodes say to each other."""

    def on_request(self, process: ClientProcess, request: AnyRequest) -> None: ...

    def on_arrived(self, process: ClientProcess, request: AnyRequest) -> None: ...

    def on_answer(self, process: ClientProcess, answer: object) -> None: ...


class Place(Protocol):
    """What a network needs of its world."""

    random: Random
    now_ms: int
    calm: bool

    def note(self, process: str, what: str) -> None: ...

    def at(self, at_ms: int, what: Callable[[], None]) -> None: ...

    def pick(self, choice: int) -> Consumer:
        """The node that a number chooses, or one that leads."""


class Links:
    """What lies between nodes, and how long anything takes anywhere."""

    def __init__(self, world: Place, plan: FaultPlan) -> None:
        self.world = world
        self.plan = plan
        self._ready_ms: dict[object, int] = {}
        """When what is sent next from one process to another arrives at the earliest."""
        self._breaks: dict[tuple[str, str], int] = {}
        """How often the connection between two nodes has broken."""
        self._partitions: list[tuple[Partition, int, int]] = []
        """With the places of the node and the other one that each has hit."""

    def send(self, sender: Consumer, receiver: Consumer, frames: Sequence[Frame]) -> None:
        """From one node to another."""
        severing = self.plan.severing
        if severing and not receiver.is_up:
            return  # There is no connection, and what cannot be sent is dropped, as `transport.replica_peers` does.
        blocked = (held[0].until_ms for held in self._partitions if blocks(*held, sender.place, receiver.place))
        pair, life = (sender.name, receiver.name), receiver.life
        breaks, copied = self._breaks.get(pair, 0), [bytes(frame) for frame in frames]

        def arrive() -> None:
            if not severing or (receiver.life == life and self._breaks.get(pair, 0) == breaks):
                receiver.receive(sender.address, copied)

        for at_ms in self.arrivals(pair, max(blocked, default=0), self.plan.repetition):
            self.world.at(at_ms, arrive)

    def on_partition(self, fault: Partition) -> None:
        one, other = (self.world.pick(choice).place for choice in (fault.victim, fault.other))
        self.world.note("network", f"{fault.shape} {one} {other} until {fault.until_ms}")
        self._partitions.append((fault, one, other))

    def on_node_break(self, fault: NodeBreak) -> None:
        one, other = self.world.pick(fault.victim), self.world.pick(fault.other)
        self.world.note("network", f"what is under way between {one.name} and {other.name} is lost")
        for pair in ((one.name, other.name), (other.name, one.name)):
            self._breaks[pair] = self._breaks.get(pair, 0) + 1

    # How long it takes.

    def delays(self, repetition: float | None) -> list[int]:
        """How long a message takes: once, several times, or not at all."""
        plan, random = self.plan, self.world.random
        if self.world.calm:
            return [1]
        if self._happens(plan.loss):
            return []
        count = 2 if self._happens(repetition) else 1
        return [
            random.randint(1, plan.late_ms_max if self._happens(plan.late) else plan.latency_ms_max)
            for _ in range(count)
        ]

    def _happens(self, rate: float | None) -> bool:
        return rate is not None and self.world.random.random() < rate

    def arrivals(self, way: object, blocked_until_ms: int, repetition: float | None) -> list[int]:
        """When a message arrives that is sent now by some way; nothing passes there until a time."""
        plan, now_ms = self.plan, self.world.now_ms
        lost = blocked_until_ms > now_ms and not plan.holding
        if lost and not plan.asks_first:
            return []
        found = [max(now_ms + delay_ms, blocked_until_ms) for delay_ms in self.delays(repetition)]
        if lost or not found or not plan.orderly:
            return [] if lost else found
        found = [max(at_ms, self._ready_ms.get(way, 0)) for at_ms in found]
        self._ready_ms[way] = max(found)
        return found


class Connection:
    """A client's way to a node."""

    def __init__(self, number: int, process: ClientProcess, node: Consumer) -> None:
        self.number = number
        self.process = process
        self.node = node


class Doors:
    """What lies between nodes and clients."""

    def __init__(self, links: Links, eyes: Eyes, nodes: Mapping[str, Consumer]) -> None:
        self._links = links
        self._world = links.world
        self._eyes = eyes
        self._nodes = nodes
        """By their addresses."""
        self._connections: dict[int, Connection] = {}
        """Those that are open, by the number under which a node knows its client."""
        self._owners: dict[int, ClientProcess] = {}
        """Whose each connection is or was."""
        self._last = 0
        self._cuts: list[tuple[ClientCut, Consumer]] = []

    def connect(self, process: ClientProcess) -> None:
        """A new connection, to the node that the session has chosen; the old one, if any, is gone."""
        self._connections.pop(process.connection, None)
        self._last += 1
        process.connection = self._last
        node = self._nodes[process.session.route.at or ""]
        self._connections[self._last] = Connection(self._last, process, node)
        self._owners[self._last] = process
        self._world.note(process.label, f"connects to {node.name}")

    def disconnect(self, process: ClientProcess) -> None:
        """The process has gone."""
        self._connections.pop(process.connection, None)

    def on_node_died(self, node: Consumer) -> None:
        """Every connection to it will be a new one."""
        self._reconnect(lambda each: each.node is node)

    def on_break(self, fault: ClientBreak) -> None:
        self._world.note("network", f"the connection of {fault.client} breaks")
        self._reconnect(lambda each: each.process.name == fault.client)

    def _reconnect(self, affected: Callable[[Connection], bool]) -> None:
        for connection in [each for each in self._connections.values() if affected(each)]:
            self.connect(connection.process)

    def on_cut(self, fault: ClientCut) -> None:
        node = self._world.pick(fault.victim)
        ways = " and ".join(way for way, cut in (("to", fault.to_node), ("from", fault.to_client)) if cut)
        who = fault.client or "everybody"
        self._world.note("network", f"{who} is cut off, {ways} {node.name}, until {fault.until_ms}")
        self._cuts.append((fault, node))

    def send_to_broker(self, process: ClientProcess, frames: Sequence[Frame]) -> None:
        copied = [bytes(frame) for frame in frames]
        request = decode_request(copied[0])
        connection = self._connections[process.connection]
        node = connection.node
        self._world.note(process.label, f"-> {node.name} {described(request, copied)}")
        self._eyes.on_request(process, request)
        # What is sent while there is no process waits for the next one, and for no later one.
        life = node.life if node.is_up else node.life + 1
        severing = self._links.plan.severing

        def arrive() -> None:
            if node.is_up and (not severing or node.life == life):
                self._eyes.on_arrived(process, request)
                node.receive(connection.number, copied)

        for at_ms in self._links.arrivals((connection.number, "node"), self._cut_until_ms(connection, True), None):
            self._world.at(at_ms, arrive)

    def send_to_client(self, node: Consumer, number: int, frames: Sequence[Frame]) -> None:
        copied = [bytes(frame) for frame in frames]
        answer = decode_answer(copied[0])
        self._eyes.on_answer(self._owners[number], answer)
        connection = self._connections.get(number)
        if connection is None or connection.node is not node:
            return  # Nobody is at the other end any more.
        self._world.note(node.name, f"-> {connection.process.label} {described(answer, copied)}")

        def arrive() -> None:
            if number in self._connections:
                connection.process.receive(copied)

        until_ms, repetition = self._cut_until_ms(connection, False), self._links.plan.repetition
        for at_ms in self._links.arrivals((number, "client"), until_ms, repetition):
            self._world.at(at_ms, arrive)

    def _cut_until_ms(self, connection: Connection, to_node: bool) -> int:
        found = (
            cut.until_ms
            for cut, node in self._cuts
            if node is connection.node
            and cut.client in ("", connection.process.name)
            and (cut.to_node if to_node else cut.to_client)
        )
        return max(found, default=0)


def described(message: object, frames: list[bytes]) -> str:
    """A message as it is shown in a trace."""
    return f"{message!r} +{len(frames) - 1}" if len(frames) > 1 else repr(message)


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
