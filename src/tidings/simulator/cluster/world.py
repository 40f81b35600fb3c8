"""A world of replica groups and their clients: virtual time, one source of randomness, nodes, a network and the faults.

The engine of a node and the ways to the peers that it names are given from outside, so that nodes which are more than
members of a group can live here too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import Any

from tidings.journal.journal import Journal
from tidings.node.engines import GroupEngine, group_engine
from tidings.node.founding import FIRST_SLOT
from tidings.node.identity import Identity
from tidings.protocols.multipaxos.joining import Member
from tidings.settings import BrokerSettings, ClientSettings, JournalSettings, ReplicaSettings
from tidings.simulator.checkers import Violation
from tidings.simulator.client import ClientProcess
from tidings.simulator.cluster.faults import ClusterPlan, DiskLoss
from tidings.simulator.cluster.flips import Flips, is_readable
from tidings.simulator.cluster.network import ClusterNetwork
from tidings.simulator.cluster.node import Carry, Frames, MakeEngine, NodeProcess
from tidings.simulator.cluster.watch import ClusterWatch
from tidings.simulator.paxos.faults import NodeEnd, Outage
from tidings.simulator.planting import PROGRESS
from tidings.simulator.populated import PopulatedWorld
from tidings.wire.replication import ReplicaPeer

PATIENCE_MS = 60_000
"""How long everything may take to come to its end once nothing goes wrong any more."""
SAME_MS_MAX = 10_000
"""How long it may take then until every node has applied everything."""
EVENTS_MAX = 400_000
LOSS_RETRY_MS = 100
"""How long a disk that is to be lost waits for a moment in which the group can bear it."""


class ClusterWorld(PopulatedWorld):
    """All processes of a run and the time they share."""

    patience_ms = PATIENCE_MS
    events_max = EVENTS_MAX

    def __init__(
        self,
        random: Random,
        plan: ClusterPlan,
        broker: BrokerSettings,
        journal: JournalSettings,
        replica: ReplicaSettings,
        client: ClientSettings,
        make_engine: MakeEngine | None = None,
        carries: Mapping[type, Carry] | None = None,
        make_watch: Callable[[PopulatedWorld, BrokerSettings], ClusterWatch] = ClusterWatch,
    ) -> None:
        super().__init__(random, client, plan.calm_ms + plan.late_ms_max)
        self.plan = plan
        self.flips: tuple[int, ...] = ()
        """At the end, when nothing else goes wrong: bits that flip on the disk of the leader, one by one."""
        self.broker_settings = broker
        self.journal_settings = journal
        self.replica_settings = replica
        self.watch: ClusterWatch = make_watch(self, broker)
        self.network = ClusterNetwork(self)
        self.make_engine = make_engine if make_engine is not None else self._make_member
        self._carries: dict[type, Carry] = {ReplicaPeer: self._carry_to_node, **(carries or {})}
        self.groups: dict[str, list[NodeProcess]] = {}
        self.by_address: dict[str, NodeProcess] = {}

    @property
    def doors(self) -> ClusterNetwork:
        return self.network

    @property
    def lives(self) -> int:
        return sum(node.life for node in self.nodes)

    @property
    def nodes(self) -> list[NodeProcess]:
        """Those that have not been switched off for good."""
        return [node for node in self.by_address.values() if not node.is_off]

    # Groups.

    def add_group(self, group: str, size: int) -> list[NodeProcess]:
        """The nodes of a new group, which have not been started yet."""
        founders = tuple(
            Member(number, f"tcp://{group}{number}:7400", f"disk of {group}{number}".encode())
            for number in range(1, size + 1)
        )
        mark = group.encode().ljust(16, b"-")
        nodes = [
            NodeProcess(
                self, group, Identity(mark, each.number, each.disk, founders, founders), len(self.by_address) + rank
            )
            for rank, each in enumerate(founders)
        ]
        self.groups[group] = nodes
        self.by_address.update({node.address: node for node in nodes})
        self.watch.on_group(group, FIRST_SLOT)
        return nodes

    def _make_member(self, node: NodeProcess, journal: Journal) -> GroupEngine:
        return group_engine(self.broker_settings, self.replica_settings, node.identity, journal, node.disk, self.random)

    def carry(self, node: NodeProcess, peer: Any, frames: Frames) -> None:
        """Takes what a node sends to a peer: a node of some kind, or the connection of a client."""
        if isinstance(peer, int):
            self.network.send_to_client(node, peer, frames)
        else:
            self._carries[type(peer)](node, peer, frames)

    def _carry_to_node(self, node: NodeProcess, peer: ReplicaPeer, frames: Frames) -> None:
        self.network.send_to_node(node, peer.address, frames)

    @property
    def serving(self) -> list[NodeProcess]:
        """The nodes that take themselves for leaders."""
        return [node for node in self.nodes if node.engine is not None and node.engine.log.serving]

    def pick(self, choice: int) -> NodeProcess:
        """The node that a number chooses, or one that leads."""
        nodes = self.nodes
        if choice < 0:
            nodes = self.serving or nodes
        return nodes[choice % len(nodes)]

    def draw_address(self) -> str:
        """Some of the nodes, or only one, in any order."""
        addresses = list(self.by_address)
        return ",".join(self.random.sample(addresses, self.random.randint(1, len(addresses))))

    def may_overlap(self, process: ClientProcess) -> bool:
        """One that still looks for the leader might find it after the next one of its name, and be the newer session.

        The checkers take the lives of a client for the order of its sessions.
        """
        return process.session.main.epoch > 0

    # The run.

    def run(self) -> None:
        """Everything that happens, then a last power cut and a look at all disks."""
        self._plan_faults()
        for node in self.nodes:
            node.start()
        for client in self.clients.values():
            self.after(0, client.start)
        deadline_ms = self.plan.calm_ms + self.patience_ms
        if not self._pass_until(self._all_done, deadline_ms):
            self.check_progress()
            self._check_done()
        self._pass_or_break(self._all_the_same, "every node")
        self._check_nodes()
        if self.flips:
            for group in self.groups:
                self._check_flipped(Flips(self, group))
        for node in self.nodes:
            node.end("power")
        for node in self.nodes:
            while node.engine is None:  # A sync that was still to fail may fail now.
                node.start()
        self._pass_or_break(self._all_the_same, "every node after a last restart")
        self._check_nodes()
        for node in self.nodes:
            assert node.engine is not None
            self.watch.on_end(node.engine)

    def _check_flipped(self, flips: Flips) -> None:
        """Everything is read, then a bit flips, then everything is read again; and so on.

        What was read from memory all the time nobody has missed then, so the disks are scrubbed before the next one.
        """
        for choice in (None, *self.flips):
            if choice is None or flips.flip(choice):
                reader = flips.new_reader()
                reader.start()
                self._pass_or_break(lambda reader=reader: reader.finished, "anyone who reads everything")  # type: ignore[misc]
                for node in self.nodes:
                    node.scrub_all()
                self._pass_or_break(lambda: all(map(is_readable, self.nodes)), "fetching what is damaged")
        self._pass_or_break(self._all_the_same, "every node after bits had flipped")
        self._check_nodes()

    def _pass_until(self, done: Callable[[], bool], deadline_ms: int) -> bool:
        """Lets things happen until something is the case; False if that does not come true in time."""
        while not done():
            next_ms = self.next_event_ms
            if next_ms is None or next_ms > deadline_ms or self.events >= self.events_max:
                return False
            self.step()
        return True

    def _pass_or_break(self, done: Callable[[], bool], who: str) -> None:
        if not self._pass_until(done, self.now_ms + SAME_MS_MAX):
            raise Violation(PROGRESS, f"{who} did not come to where the others are")

    def _all_done(self) -> bool:
        return self.calm and all(client.finished for client in self.clients.values())

    def _check_done(self) -> None:
        """What else than the clients has to have come to its end."""

    def _all_the_same(self) -> bool:
        return all(
            node.engine is not None and node.engine.log.replica.applied == self.watch.histories[node.group].next_slot
            for node in self.nodes
        )

    def _check_nodes(self) -> None:
        for node in self.nodes:
            assert node.engine is not None
            self.watch.compare(node, node.engine)

    def _plan_faults(self) -> None:
        plan, network = self.plan, self.network
        faults: list[tuple[int, Callable[[], None]]] = []
        faults += [(each.at_ms, lambda each=each: self._on_end(each)) for each in plan.ends]  # type: ignore[misc]
        faults += [(each.at_ms, lambda each=each: self._on_outage(each)) for each in plan.outages]  # type: ignore[misc]
        for pause in plan.pauses:
            faults.append((pause.at_ms, lambda each=pause: self.pick(each.victim).on_pause(each.for_ms)))  # type: ignore[misc]
        for jump in plan.clock_jumps:
            faults.append((jump.at_ms, lambda each=jump: self.pick(each.victim).on_clock_jump(each.by_ms)))  # type: ignore[misc]
        for partition in plan.partitions:
            faults.append((partition.at_ms, lambda each=partition: network.on_partition(each)))  # type: ignore[misc]
        for broken in plan.node_breaks:
            faults.append((broken.at_ms, lambda each=broken: network.on_node_break(each)))  # type: ignore[misc]
        for cut in plan.client_cuts:
            faults.append((cut.at_ms, lambda each=cut: network.on_client_cut(each)))  # type: ignore[misc]
        for lost in plan.breaks:
            faults.append((lost.at_ms, lambda each=lost: network.on_break(each)))  # type: ignore[misc]
        for end in plan.client_ends:
            faults.append((end.at_ms, lambda each=end: self.clients[each.client].on_end(each)))  # type: ignore[misc]
        for sleep in plan.client_pauses:
            faults.append((sleep.at_ms, lambda each=sleep: self.clients[each.client].on_pause(each)))  # type: ignore[misc]
        for loss in plan.losses:
            faults.append((loss.at_ms, lambda each=loss: self._on_loss(each)))  # type: ignore[misc]
        for at_ms, what in faults:
            self.at(at_ms, what)
        self.at(plan.calm_ms, self._on_calm)

    def _on_end(self, end: NodeEnd) -> None:
        self.pick(end.victim).on_end(end.how, end.steps, end.back_after_ms)

    def _on_outage(self, outage: Outage) -> None:
        self.note("world", "all lights go out")
        for node in self.nodes:
            node.on_end("power", None, self.random.randint(1, outage.back_after_ms))

    def _on_loss(self, loss: DiskLoss) -> None:
        node = self.pick(loss.victim)
        if self._can_lose_a_disk(node.group):
            node.lose_disk(loss.back_after_ms)
        elif not self.calm:
            self.after(LOSS_RETRY_MS, lambda: self._on_loss(loss))

    def _can_lose_a_disk(self, group: str) -> bool:
        """Whether every disk of a group counts, so that the rest of them are enough: what operators wait for, too."""
        nodes = self.groups[group]
        numbers = sorted(node.identity.number for node in nodes)
        if self.calm or len(nodes) < 3 or any(node.is_new or node.is_off for node in nodes):
            return False
        leaders = [node.engine.log for node in nodes if node.engine is not None and node.engine.log.serving]
        return any(leader.changes.is_confirmed and sorted(leader.voters) == numbers for leader in leaders)

    def _on_calm(self) -> None:
        self.note("world", "from here on nothing goes wrong")
        self.calm = True
        for node in self.nodes:
            node.on_calm()
        for client in self.clients.values():
            client.on_calm()
