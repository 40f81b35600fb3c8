"""A ring of replica groups and their clients: groups join and leave while everything goes wrong."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import NamedTuple

import msgspec

from tidings.journal.journal import Journal
from tidings.node.engines import RingEngine, ring_engine
from tidings.protocols.broker import messages, operators
from tidings.protocols.ring.policy import ring_of
from tidings.settings import BrokerSettings, ClientSettings, JournalSettings, ReplicaSettings, RingSettings
from tidings.simulator.cluster.faults import ClusterPlan
from tidings.simulator.cluster.node import Carry, NodeProcess
from tidings.simulator.cluster.ring_watch import RingWatch
from tidings.simulator.cluster.world import ClusterWorld
from tidings.simulator.planting import PROGRESS
from tidings.simulator.populated import QUIET_MS
from tidings.wire import codec
from tidings.wire.codec import Frame
from tidings.wire.ring import Node

RING_PATIENCE_MS = 120_000
RING_EVENTS_MAX = 1_500_000
ASK_AGAIN_MS = 700


class Joining(msgspec.Struct, frozen=True):
    """A group of some size starts; the first one of all founds the ring."""

    at_ms: int
    group: str
    size: int


class Leaving(msgspec.Struct, frozen=True):
    """A group is told to leave; when it has, its nodes are switched off after a while."""

    at_ms: int
    group: str
    off_after_ms: int


class RingPlan(msgspec.Struct, frozen=True):
    """Who comes and goes."""

    joins: tuple[Joining, ...]
    leaves: tuple[Leaving, ...]


class Desk(NamedTuple):
    """The connection of an operator."""

    number: int


class Operator:
    """Asks the nodes of a group to leave the ring, until one says that this is done."""

    def __init__(self, world: RingWorld, number: int, leaving: Leaving) -> None:
        self._world = world
        self._desk = Desk(number)
        self._leaving = leaving
        self._asked = 0
        self.done = False

    def ask(self) -> None:
        world = self._world
        if self.done:
            return
        world.after(ASK_AGAIN_MS, self.ask)
        if world.somebody_would_be_lost():
            return
        self._asked += 1
        world.note("operator", f"asks {self._leaving.group} to leave")
        frames = [codec.encode(operators.LeaveRing(self._asked))]
        for node in world.groups.get(self._leaving.group, ()):
            world.after(1, lambda node=node: node.receive(self._desk, frames))  # type: ignore[misc]

    def on_answer(self, node: NodeProcess, answer: object) -> None:
        if not isinstance(answer, messages.NotLeader):
            self._world.note("operator", f"hears from {node.name}: {answer}")
        if isinstance(answer, operators.RingLeft) and not self.done:
            self.done = True
            self._world.after(self._leaving.off_after_ms, self._switch_off)

    def _switch_off(self) -> None:
        for node in self._world.groups[self._leaving.group]:
            node.switch_off()


class RingWorld(ClusterWorld):
    """All processes of a run and the time they share."""

    patience_ms = RING_PATIENCE_MS
    events_max = RING_EVENTS_MAX
    watch: RingWatch

    def __init__(
        self,
        random: Random,
        plan: ClusterPlan,
        ring_plan: RingPlan,
        broker: BrokerSettings,
        journal: JournalSettings,
        replica: ReplicaSettings,
        client: ClientSettings,
    ) -> None:
        carries: dict[type, Carry] = {Node: self._carry_along, Desk: self._carry_to_operator}
        super().__init__(random, plan, broker, journal, replica, client, self._make_node, carries, RingWatch)
        self.ring_plan = ring_plan
        self._waited_ms = 0
        """When something last waited at a door, or moved on the ring, of what the clients have left."""
        self._contacts: dict[str, tuple[str, ...]] = {}
        self._operators = [Operator(self, number, leaving) for number, leaving in enumerate(ring_plan.leaves)]
        self._leavers = {leaving.group for leaving in ring_plan.leaves}
        for joining in ring_plan.joins:
            if joining.at_ms == 0:
                self._make_group(joining)

    def _make_group(self, joining: Joining) -> list[NodeProcess]:
        """Anyone who joins knows a node of each group that was there at first, of which one stays, and perhaps
        others."""
        founder, *others = (each for each in self.ring_plan.joins if each.at_ms == 0)
        first = [f"tcp://{each.group}1:7400" for each in (founder, *others) if each != joining]
        here = list(self.by_address)
        some = self.random.sample(here, self.random.randint(0, min(2, len(here))))
        self._contacts[joining.group] = () if joining == founder else tuple(dict.fromkeys((*some, *first)))
        return self.add_group(joining.group, joining.size)

    def somebody_would_be_lost(self) -> bool:
        """Whether a group that has not come yet knows only groups that leave: these have to wait for it, or else it
        would never find the ring, and an operator would have to name it another node.
        """
        for group, contacts in self._contacts.items():
            ring = ring_of(self.watch.ring.of[group].reference) if group in self.watch.ring.of else None
            has_come = ring is not None and (ring.ranges or ring.taken_over)
            if contacts and not has_come and all(self.by_address[each].group in self._leavers for each in contacts):
                return True
        return False

    def _make_node(self, node: NodeProcess, journal: Journal) -> RingEngine:
        return ring_engine(
            self.broker_settings,
            self.replica_settings,
            RingSettings(contacts=self._contacts[node.group]),
            node.address,
            node.identity,
            journal,
            node.disk,
            self.random,
        )

    def _carry_along(self, node: NodeProcess, peer: Node, frames: Sequence[Frame]) -> None:
        self.network.send_to_node(node, peer.address, frames)

    def _carry_to_operator(self, node: NodeProcess, peer: Desk, frames: Sequence[Frame]) -> None:
        self._operators[peer.number].on_answer(node, codec.decode_answer(bytes(frames[0])))

    def draw_address(self) -> str:
        """Some of the nodes; one of them belongs to a group that stays."""
        stays = [node.address for node in self.nodes if node.group not in self._leavers]
        here = [node.address for node in self.nodes]
        chosen = self.random.sample(here, self.random.randint(1, min(4, len(here))))
        if not any(address in stays for address in chosen):
            chosen.append(self.random.choice(stays))
        return ",".join(chosen)

    # The run.

    def _plan_faults(self) -> None:
        super()._plan_faults()
        for joining in self.ring_plan.joins:
            if joining.at_ms:
                self.at(joining.at_ms, lambda each=joining: self._on_joining(each))  # type: ignore[misc]
        for operator, leaving in zip(self._operators, self.ring_plan.leaves, strict=True):
            self.at(leaving.at_ms, operator.ask)

    def _on_joining(self, joining: Joining) -> None:
        nodes = self._make_group(joining)
        self.note("world", f"{joining.group} joins with {joining.size} by {self._contacts[joining.group]}")
        for node in nodes:
            node.start()

    @property
    def is_quiet(self) -> bool:
        """Also what waited at a door until its owner was known has arrived, and has had time to be dealt with."""
        if not super().is_quiet:
            return False
        if self.unfinished() or self._somebody_waits():
            self._waited_ms = self.now_ms
        return self.now_ms - self._waited_ms > QUIET_MS

    def _somebody_waits(self) -> bool:
        proxies = (node.engine.ring.proxy for node in self.nodes if node.engine is not None)
        return any(connection.held for proxy in proxies for connection in proxy.connections)

    def unfinished(self) -> str:
        """What still moves, or is not where it should be; "" when the ring is at rest."""
        for joining in self.ring_plan.joins:
            group = joining.group
            ring = ring_of(self.watch.ring.of[group].reference) if group in self.watch.ring.of else None
            if ring is None:
                return f"{group} has not come"
            if ring.handing_off is not None or ring.taking_over is not None:
                return f"{group} gives {ring.handing_off} and takes {ring.taking_over}"
            if bool(ring.ranges) == (group in self._leavers):
                return f"{group} owns {ring.ranges}"
        if not all(operator.done for operator in self._operators):
            return "an operator waits"
        return "" if self.watch.owners.is_whole() else "some points have no owner"

    def _all_done(self) -> bool:
        return super()._all_done() and not self.unfinished()

    def _all_the_same(self) -> bool:
        return super()._all_the_same() and not self.unfinished()

    def _check_done(self) -> None:
        if what := self.unfinished():
            self.watch.violate(PROGRESS, f"the ring did not come to rest: {what}")
