"""The network of a world of nodes and clients: connections that keep the order, and break.

Between two processes messages stay in order, as on TCP, however long each of them takes. A connection ends with
either process, and when a fault breaks it; what is under way on it is lost then. (What a process sent just before it
died may still arrive.) Nodes have a connection to each other node and drop what they cannot send, as
`transport.replica_peers` does. A client has one connection, to the node that its session has chosen; when that breaks
below its eyes it is made again, and the node knows it under a new number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tidings.simulator.client import ClientProcess
from tidings.simulator.cluster.faults import ClientCut, NodeBreak
from tidings.simulator.cluster.node import NodeProcess
from tidings.simulator.faults import Break
from tidings.simulator.network import described
from tidings.simulator.paxos.faults import Partition
from tidings.simulator.paxos.network import blocks
from tidings.wire.codec import Frame, decode_answer, decode_request

if TYPE_CHECKING:
    from tidings.simulator.cluster.world import ClusterWorld


class Connection:
    """A client's way to a node."""

    def __init__(self, number: int, process: ClientProcess, node: NodeProcess) -> None:
        self.number = number
        self.process = process
        self.node = node


class ClusterNetwork:
    """Who reaches whom, and when."""

    def __init__(self, world: ClusterWorld) -> None:
        self._world = world
        self._connections: dict[int, Connection] = {}
        """Those that are open, by the number under which a node knows its client."""
        self._owners: dict[int, ClientProcess] = {}
        """Whose each connection is or was."""
        self._last = 0
        self._ready_ms: dict[tuple[object, object], int] = {}
        """When what is sent next from one process to another arrives at the earliest."""
        self._breaks: dict[tuple[str, str], int] = {}
        """How often the connection between two nodes has broken."""
        self._partitions: list[tuple[Partition, int, int]] = []
        self._cuts: list[tuple[ClientCut, NodeProcess]] = []

    # Between nodes.

    def send_to_node(self, sender: NodeProcess, address: str, frames: Sequence[Frame]) -> None:
        """From one node to another; what cannot be sent is dropped."""
        receiver = self._world.by_address.get(address)
        if receiver is None or not receiver.is_up:
            return
        until_ms = max(
            (held[0].until_ms for held in self._partitions if blocks(*held, sender.place, receiver.place)),
            default=None,
        )
        at_ms = self._arrival_ms((sender.name, receiver.name), until_ms)
        if at_ms is None:
            return
        copied = [bytes(frame) for frame in frames]
        pair, life = (sender.name, receiver.name), receiver.life
        breaks = self._breaks.get(pair, 0)

        def arrive() -> None:
            if receiver.life == life and self._breaks.get(pair, 0) == breaks:
                receiver.receive(sender.address, copied)

        self._world.at(at_ms, arrive)

    def on_partition(self, partition: Partition) -> None:
        places = [self._world.pick(choice).place for choice in (partition.victim, partition.other)]
        held = (partition, places[0], places[1])
        self._world.note("network", f"{partition.shape} {places[0]} {places[1]} until {partition.until_ms}")
        self._partitions.append(held)
        self._world.at(partition.until_ms, lambda: self._partitions.remove(held))

    def on_node_break(self, fault: NodeBreak) -> None:
        one, other = self._world.pick(fault.victim), self._world.pick(fault.other)
        self._world.note("network", f"what is under way between {one.name} and {other.name} is lost")
        for pair in ((one.name, other.name), (other.name, one.name)):
            self._breaks[pair] = self._breaks.get(pair, 0) + 1

    # Between clients and nodes.

    def connect(self, process: ClientProcess) -> None:
        """A new connection, to the node that the session has chosen; the old one, if any, is gone."""
        self._connections.pop(process.connection, None)
        self._last += 1
        process.connection = self._last
        node = self._world.by_address[process.session.route.at or ""]
        self._connections[self._last] = Connection(self._last, process, node)
        self._owners[self._last] = process
        self._world.note(process.label, f"connects to {node.name}")

    def disconnect(self, process: ClientProcess) -> None:
        """The process has gone."""
        self._connections.pop(process.connection, None)

    def on_node_died(self, node: NodeProcess) -> None:
        """Every connection to it will be a new one."""
        self._reconnect(lambda each: each.node is node)

    def on_break(self, fault: Break) -> None:
        self._world.note("network", f"the connection of {fault.client} breaks")
        self._reconnect(lambda each: each.process.name == fault.client)

    def on_client_cut(self, fault: ClientCut) -> None:
        node = self._world.pick(fault.victim)
        ways = " and ".join(way for way, cut in (("to", fault.to_node), ("from", fault.to_client)) if cut)
        who = fault.client or "everybody"
        self._world.note("network", f"{who} is cut off, {ways} {node.name}, until {fault.until_ms}")
        held = (fault, node)
        self._cuts.append(held)
        self._world.at(fault.until_ms, lambda: self._cuts.remove(held))

    def _reconnect(self, affected: Callable[[Connection], bool]) -> None:
        for connection in [each for each in self._connections.values() if affected(each)]:
            self.connect(connection.process)

    def send_to_broker(self, process: ClientProcess, frames: Sequence[Frame]) -> None:
        copied = [bytes(frame) for frame in frames]
        request = decode_request(copied[0])
        connection = self._connections[process.connection]
        node = connection.node
        self._world.note(process.label, f"-> {node.name} {described(request, copied)}")
        self._world.watch.on_request(process, request)
        # What is sent while there is no process waits for the next one, and for no later one.
        life = node.life if node.is_up else node.life + 1
        at_ms = self._arrival_ms((connection.number, "node"), self._cut_until_ms(connection, to_node=True))
        if at_ms is None:
            return

        def arrive() -> None:
            if node.is_up and node.life == life:
                self._world.watch.on_arrived(process, request)
                node.receive(connection.number, copied)

        self._world.at(at_ms, arrive)

    def send_to_client(self, node: NodeProcess, number: int, frames: Sequence[Frame]) -> None:
        copied = [bytes(frame) for frame in frames]
        answer = decode_answer(copied[0])
        self._world.watch.on_answer(self._owners[number], answer)
        connection = self._connections.get(number)
        if connection is None or connection.node is not node:
            return  # Nobody is at the other end any more.
        self._world.note(node.name, f"-> {connection.process.label} {described(answer, copied)}")
        at_ms = self._arrival_ms((number, "client"), self._cut_until_ms(connection, to_node=False))
        if at_ms is None:
            return

        def arrive() -> None:
            if number in self._connections:
                connection.process.receive(copied)

        self._world.at(at_ms, arrive)

    def _cut_until_ms(self, connection: Connection, to_node: bool) -> int | None:
        return max(
            (
                cut.until_ms
                for cut, node in self._cuts
                if node is connection.node
                and cut.client in ("", connection.process.name)
                and (cut.to_node if to_node else cut.to_client)
            ),
            default=None,
        )

    # How long it takes.

    def _arrival_ms(self, way: tuple[object, object], blocked_until_ms: int | None) -> int | None:
        """When a message arrives that is sent now; None if it does not."""
        world, plan = self._world, self._world.plan
        if blocked_until_ms is not None and not plan.holding:
            return None
        if world.calm:
            delay_ms = 1
        else:
            late = plan.late and world.random.random() < plan.late
            delay_ms = world.random.randint(1, plan.late_ms_max if late else plan.latency_ms_max)
        at_ms = max(world.now_ms + delay_ms, self._ready_ms.get(way, 0), blocked_until_ms or 0)
        self._ready_ms[way] = at_ms
        return at_ms
