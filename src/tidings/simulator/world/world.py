"""A simulation: virtual time, one source of randomness, nodes, their clients, the network and the faults.

It is made of parts. Nodes come in groups: one broker alone, the members of one group, or the groups of a ring, which
come and go (`world.rings`). Who the clients are and what they do, `workloads` say. What happens when all of that has
come to its end is a list too (`endings`): bits flip, or somebody tampers with folders.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any, NamedTuple, Protocol

from tidings.node.engine import RETENTION_EVERY_MS, AnyEngine
from tidings.node.founding import FIRST_SLOT
from tidings.node.identity import Identity
from tidings.protocols.multipaxos.joining import Member
from tidings.settings import ClientSettings
from tidings.simulator.checkers.checker import Violation
from tidings.simulator.checkers.rules import PROGRESS
from tidings.simulator.checkers.watch import Judge, Notes
from tidings.simulator.clients.client import ClientProcess
from tidings.simulator.disk import SimulatedDisk
from tidings.simulator.world.engines import Engines
from tidings.simulator.world.faults import (
    ClientBreak,
    ClientCut,
    ClientEnd,
    ClientPause,
    ClockJump,
    DiskLoss,
    FaultPlan,
    FullDisk,
    NodeBreak,
    NodeEnd,
    NodePause,
    Outage,
    Partition,
)
from tidings.simulator.world.network import Doors, Links
from tidings.simulator.world.node import NodeProcess, VirtualNode
from tidings.simulator.world.populated import PopulatedWorld
from tidings.wire.codec import Frame

SAME_MS_MAX = 10_000
"""How long it may take at the end until every node has applied everything."""
NOWHERE = ""
"""The address of a broker alone: its clients have nothing to choose."""
LOSS_RETRY_MS = 100
"""How long a disk that is to be lost waits for a moment in which the group can bear it."""


NAPS_MAX = 20
"""How often clients, one after the other, leave their topics alone until these may go."""


class Patience(NamedTuple):
    """How long everything may take to come to its end once nothing goes wrong any more, and how much may happen."""

    calm_ms: int = 120_000
    events: int = 200_000


PATIENCE = Patience()


class Ring(Protocol):
    """What groups that are a ring add to a world."""

    def begin(self) -> None:
        """Plans who comes and goes."""

    def draw_address(self) -> str:
        """The addresses that a client is given."""

    def has_arrived(self) -> bool:
        """Whether what clients have left behind has arrived at its owners."""

    def unfinished(self) -> str:
        """What still moves, or is not where it should be; "" when the ring is at rest."""

    def on_answer(self, node: NodeProcess, peer: Any, frames: Sequence[Frame]) -> bool:
        """A node says something that is neither for a client nor for another node; False if it is."""


class World(PopulatedWorld):
    """All processes of a run and the time they share."""

    def __init__(
        self,
        random: Random,
        plan: FaultPlan,
        engines: Engines,
        client: ClientSettings,
        make_judge: Callable[[Notes], Judge],
        patience: Patience = PATIENCE,
    ) -> None:
        super().__init__(random, client, plan.calm_ms + plan.late_ms_max)
        self.plan = plan
        self.engines = engines
        if engines.broker.topic_idle_ms is not None:
            self.idle_ms = engines.broker.topic_idle_ms + 2 * RETENTION_EVERY_MS
        self.judge = make_judge(self)
        self.watch = self.judge.watch
        self._patience = patience
        self.groups: dict[str, list[NodeProcess]] = {}
        self.by_address: dict[str, NodeProcess] = {}
        self.links = Links(self, plan)
        self._doors = Doors(self.links, self.watch, self.by_address)
        self.ring: Ring | None = None
        self.when_done: list[Callable[[], None]] = []
        """What happens when all clients have come to their end."""
        self.at_last: list[Callable[[], None]] = []
        """What happens after the last power cut."""

    @property
    def doors(self) -> Doors:
        return self._doors

    @property
    def lives(self) -> int:
        return sum(node.life for node in self.nodes)

    @property
    def nodes(self) -> list[NodeProcess]:
        """Those that have not been switched off for good."""
        return [node for node in self.by_address.values() if not node.is_off]

    # Nodes.

    def add_broker(self) -> NodeProcess:
        """A broker alone, which has not been started yet."""
        return self._add_nodes("broker", [NodeProcess(self, "broker", VirtualNode("broker", NOWHERE, 0))])[0]

    def add_group(self, group: str, size: int) -> list[NodeProcess]:
        """The nodes of a new group, which have not been started yet."""
        founders = tuple(
            Member(number, f"tcp://{group}{number}:7400", f"disk of {group}{number}".encode())
            for number in range(1, size + 1)
        )
        mark = group.encode().ljust(16, b"-")
        self.judge.on_group(group, FIRST_SLOT)
        return self._add_nodes(
            group,
            [
                NodeProcess(
                    self,
                    f"{group}{each.number}",
                    VirtualNode(group, each.address, len(self.by_address) + rank),
                    Identity(mark, each.number, each.disk, founders, founders),
                )
                for rank, each in enumerate(founders)
            ],
        )

    def _add_nodes(self, group: str, nodes: list[NodeProcess]) -> list[NodeProcess]:
        self.groups[group] = nodes
        self.by_address.update({node.address: node for node in nodes})
        return nodes

    def open_engine(self, node: NodeProcess, disk: SimulatedDisk) -> AnyEngine:
        return self.engines.open(node, disk, self.random)

    def carry(self, node: NodeProcess, peer: Any, frames: Sequence[Frame]) -> None:
        if isinstance(peer, int):
            self._doors.send_to_client(node, peer, frames)
        elif self.ring is None or not self.ring.on_answer(node, peer, frames):
            self.send_to_node(node, peer.address, frames)

    def send_to_node(self, node: NodeProcess, address: str, frames: Sequence[Frame]) -> None:
        receiver = self.by_address.get(address)
        if receiver is not None:
            self.links.send(node, receiver, frames)

    def on_node_died(self, node: NodeProcess) -> None:
        self._doors.on_node_died(node)

    @property
    def serving(self) -> list[NodeProcess]:
        """The nodes that take themselves for leaders."""
        return [node for node in self.nodes if node.log is not None and node.log.serving]

    def pick(self, choice: int) -> NodeProcess:
        """The node that a number chooses, or one that leads."""
        nodes = self.nodes
        if choice < 0:
            nodes = self.serving or nodes
        return nodes[choice % len(nodes)]

    # What clients see.

    def draw_address(self) -> str:
        """Some of the nodes, or only one, in any order."""
        if self.ring is not None:
            return self.ring.draw_address()
        if self.engines.replica is None:
            return "the broker"
        addresses = list(self.by_address)
        return ",".join(self.random.sample(addresses, self.random.randint(1, len(addresses))))

    def may_overlap(self, process: ClientProcess) -> bool:
        """Of several nodes, one that still looks for the leader might find it after the next one of its name, and be
        the newer session. The checkers take the lives of a client for the order of its sessions.
        """
        return self.engines.replica is None or process.session.main.epoch > 0

    @property
    def is_quiet(self) -> bool:
        return super().is_quiet and (self.ring is None or self.ring.has_arrived())

    # The run.

    def run(self) -> None:
        """Everything that happens, until all clients have come to their end or patience has; then a last power cut and
        a look at all disks.
        """
        self._begin()
        until_ms = self.plan.calm_ms + self._patience.calm_ms + NAPS_MAX * self.idle_ms
        if not self.pass_until(self._all_done, until_ms, self._patience.events):
            self.check_progress()
            if what := self._unacked():
                self.watch.violate(PROGRESS, f"the ring did not come to rest: {what}")
        self.check_nodes("every node")
        for happen in self.when_done:
            happen()
        for node in self.nodes:
            node.end("power")
        for node in self.nodes:
            while node.engine is None:  # A sync that was still to fail may fail now.
                node.start()
        self.check_nodes("every node after a last restart")
        for node in self.nodes:
            assert node.engine is not None
            self.watch.on_end(node.engine)
        for happen in self.at_last:
            happen()

    def _begin(self) -> None:
        self.plan_all(self.plan.faults, self._handlers())
        self.at(self.plan.calm_ms, self._on_calm)
        if self.ring is not None:
            self.ring.begin()
        for node in self.nodes:
            node.start()
        for client in self.clients.values():
            self.after(0, client.start)

    def _all_done(self) -> bool:
        return self.calm and all(client.finished for client in self.clients.values()) and not self._unacked()

    def _unacked(self) -> str:
        return self.ring.unfinished() if self.ring is not None else ""

    def check_nodes(self, who: str) -> None:
        """All nodes come to where the others are, and know the same."""
        self.pass_or_break(lambda: all(map(self.judge.has_all, self.nodes)) and not self._unacked(), who)
        for node in self.nodes:
            self.judge.compare(node)

    def pass_or_break(self, done: Callable[[], bool], who: str) -> None:
        if not self.pass_until(done, self.now_ms + SAME_MS_MAX, self._patience.events):
            raise Violation(PROGRESS, f"{who} did not come to where the others are")

    # Faults.

    def _handlers(self) -> Mapping[type, Callable[[Any], None]]:
        return {
            NodeEnd: lambda fault: self.pick(fault.victim).on_end(fault),
            Outage: self._on_outage,
            NodePause: lambda fault: self.pick(fault.victim).on_pause(fault.for_ms),
            ClockJump: lambda fault: self.pick(fault.victim).on_clock_jump(fault),
            FullDisk: lambda fault: self.pick(fault.victim).on_full_disk(fault),
            DiskLoss: self._on_loss,
            Partition: self.links.on_partition,
            NodeBreak: self.links.on_node_break,
            ClientCut: self._doors.on_cut,
            ClientBreak: self._doors.on_break,
            ClientEnd: lambda fault: self.clients[fault.client].on_end(fault),
            ClientPause: lambda fault: self.clients[fault.client].on_pause(fault),
        }

    def _on_outage(self, fault: Outage) -> None:
        self.note("world", "all lights go out")
        for node in self.nodes:
            node.on_outage(self.random.randint(1, fault.back_after_ms))

    def _on_loss(self, fault: DiskLoss) -> None:
        node = self.pick(fault.victim)
        if self._can_lose_a_disk(node.group):
            node.lose_disk(fault.back_after_ms)
        elif not self.calm:
            self.after(LOSS_RETRY_MS, lambda: self._on_loss(fault))

    def _can_lose_a_disk(self, group: str) -> bool:
        """Whether every disk of a group counts, so that the rest of them are enough: what operators wait for, too."""
        nodes = self.groups[group]
        numbers = sorted(node.identity.number for node in nodes)
        if self.calm or len(nodes) < 3 or any(node.is_new or node.is_off for node in nodes):
            return False
        leaders = [node.log for node in nodes if node.log is not None and node.log.serving]
        if not any(leader.changes.is_confirmed and sorted(leader.voters) == numbers for leader in leaders):
            return False
        return self._keeps_all(nodes) or not any(node.may_remove for node in nodes)

    def _keeps_all(self, nodes: list[NodeProcess]) -> bool:
        """Whether a group is a majority without a lost disk also when somebody silent has been removed meanwhile.

        Two that are left when the third is removed need both, so three that may become two cannot bear a loss while
        that is under way. What was proposed cannot be withdrawn, as the very disk that is lost may have made it
        chosen: no protocol goes on without it, even when the third is back. It is the price of `replicas_min = 2`, as
        if one of the two had been lost later. As long as nobody is about to be removed any disk may be lost, also while
        one is silent: a leader that removed it then would have counted on the lost one.
        """
        replica, left = self.engines.replica, len(nodes) - 1
        if replica is None or replica.replica_gone_ms is None or left < replica.replicas_min:
            return True
        return 2 * (left - 1) > left

    def _on_calm(self) -> None:
        self.note("world", "from here on nothing goes wrong")
        self.calm = True
        for node in self.nodes:
            node.on_calm()
        for client in self.clients.values():
            client.on_calm()
