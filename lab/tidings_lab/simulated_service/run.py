"""The whole service in virtual time: rings of replica groups, clients at all nodes, and every message counted.

    result = run_service(ServicePlan(groups=4, replicas=3, messages=25))

The engines are those of the processes, the clients are the real sessions, and every message is encoded. A run is a
function of its plan. With failures, one node of every group is killed when half of the messages have been acknowledged,
and started again when all that is owed has arrived.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import msgspec

from tidings.client import operations
from tidings.client.operations import Operation
from tidings.client.serving import Service
from tidings.errors import Unavailable
from tidings.message import Message
from tidings.node.engine import AnyEngine
from tidings.node.group import Group
from tidings.node.identity import Identity
from tidings.node.replicated import BrokerState
from tidings.protocols.multipaxos.joining import Member
from tidings.protocols.ring.key_ranges import WHOLE, KeyRange, joined
from tidings.settings import BrokerSettings, ClientSettings, Dissemination, JournalSettings, ReplicaSettings
from tidings.simulator.checkers.ledger import Ledger
from tidings.simulator.checkers.watch import Judge, Watch
from tidings.simulator.clients.client import Client, ClientProcess
from tidings.simulator.disk import SimulatedDisk
from tidings.simulator.world.engines import Engines
from tidings.simulator.world.faults import FaultPlan
from tidings.simulator.world.network import Connection
from tidings.simulator.world.node import NodeProcess, VirtualNode
from tidings.simulator.world.populated import PopulatedWorld
from tidings.wire.codec import Frame
from tidings_lab.simulated_overlay.world import without_collection
from tidings_lab.simulated_service.load import ServiceAccount, ServiceLoad, draw_load
from tidings_lab.simulated_service.message_counts import Census

LATENCY_MS_MAX = 40
AT_REST_MS = 5_000
"""How long the ring is looked at while nobody wants anything."""
QUIET_MS_MAX = 300_000
LAG_MS_MAX = 60_000
"""How long what was put may take to arrive before it is lost."""
LATE_MS = 1_000
"""How long it is waited for what comes a second time."""
ADDRESSES_MAX = 16
POLL_MS = 20


class ServicePlan(msgspec.Struct, frozen=True):
    """One run."""

    groups: int
    replicas: int
    messages: int
    """Of each client; there is one at every node."""
    failures: bool = False
    dissemination: Dissemination = "scribe"
    seed: int = 1


class Sent(msgspec.Struct, frozen=True):
    """Messages of one kind from node to node."""

    phase: str
    """rest: while nobody wanted anything; load: from the first put to the last delivery."""
    layer: str
    kind: str
    count: int
    size_bytes: int
    lasted_ms: int
    """How long the phase was."""


class GroupState(msgspec.Struct, frozen=True):
    """A group in the end."""

    group: str
    replicas: int
    agreeing: int
    """Replicas that have applied as much as the one that has applied most, and own and hold the same."""
    applied: int
    topics: int
    """Of the topics of the load, those that it owns."""


class ServiceResult(msgspec.Struct, frozen=True):
    """What came of a plan."""

    account: ServiceAccount
    killed: int
    sent: tuple[Sent, ...]
    groups: tuple[GroupState, ...]
    virtual_ms: int
    events: int


class ServiceWorld(PopulatedWorld):
    """All processes of a run, the network between them, and the time they share."""

    def __init__(self, plan: ServicePlan) -> None:
        super().__init__(Random(f"{plan}"), ClientSettings(timeout_ms=2_000, retries=60), 0)
        self.judge = Judge(Watch(self, Ledger(BrokerSettings())))
        self.watch = self.judge.watch
        self.calm = True
        self.plan = FaultPlan(0, (), LATENCY_MS_MAX, LATENCY_MS_MAX, 1, tick_ms=Group.tick_ms)
        self.service_plan = plan
        self._contacts: dict[str, tuple[str, ...]] = {}
        self._engines = Engines(
            BrokerSettings(), JournalSettings(), ReplicaSettings(), self._contacts, plan.dissemination
        )
        self.nodes: dict[str, NodeProcess] = {}
        self.groups: list[list[NodeProcess]] = []
        self.census = Census()
        self.account = ServiceAccount(draw_load(plan.groups * plan.replicas, plan.messages, plan.seed))
        self.subscribed = 0
        self.publishing = False
        self._addresses: deque[str] = deque()
        self._ready_ms: dict[tuple[object, object], int] = {}
        """When what is sent next from one process to another arrives at the earliest."""
        self._connections: dict[int, Connection] = {}
        self._connected = 0

    # Nodes.

    def add_group(self) -> list[NodeProcess]:
        """A new group starts; it joins by the first nodes that there are."""
        plan, number = self.service_plan, len(self.groups)
        addresses = [f"tcp://10.0.{number}.{each}:7500" for each in range(1, plan.replicas + 1)]
        members = tuple(Member(each, address, f"disk {address}".encode()) for each, address in enumerate(addresses, 1))
        # The same ring for every load, so that it is the load that makes the difference.
        mark = Random(f"{plan.seed} {plan.groups} {number}").randbytes(16)
        group = f"group {number}"
        self._contacts[group] = tuple(list(self.nodes)[:3])
        nodes = [
            NodeProcess(
                self,
                member.address,
                VirtualNode(group, member.address, len(self.nodes) + rank),
                Identity(mark, member.number, member.disk, members, members),
            )
            for rank, member in enumerate(members)
        ]
        self.groups.append(nodes)
        for node in nodes:
            self.nodes[node.address] = node
            node.start()
        return nodes

    def open_engine(self, node: NodeProcess, disk: SimulatedDisk) -> AnyEngine:
        return self._engines.open(node, disk, self.random)

    def carry(self, node: NodeProcess, peer: Any, frames: Sequence[Frame]) -> None:
        if isinstance(peer, int):
            self.send_to_client(node, peer, frames)
        else:
            self.send_to_node(node, peer.address, frames)

    def leader_of(self, group: Sequence[NodeProcess]) -> NodeProcess | None:
        return next((node for node in group if node.engine is not None and node.engine.log.serving), None)

    def is_whole(self) -> bool:
        """Whether every group has a leader and owns something, and nothing is without an owner."""
        ranges: list[KeyRange] = []
        for group in self.groups:
            leader = self.leader_of(group)
            owned = leader.engine.ring.ownership if leader is not None and leader.engine is not None else None
            if owned is None or not owned.ranges:
                return False
            ranges += owned.ranges
        return joined(ranges) == (WHOLE,)

    def send_to_node(self, node: NodeProcess, address: str, frames: Sequence[Frame]) -> None:
        copied = [bytes(frame) for frame in frames]
        self.census.count(copied)
        receiver = self.nodes.get(address)
        if receiver is None or receiver.engine is None:
            return
        life = receiver.life

        def arrive() -> None:
            if receiver.life == life:
                receiver.receive(node.address, copied)

        self.at(self._arrival_ms((node.address, address), self.random.randint(1, LATENCY_MS_MAX)), arrive)

    def _arrival_ms(self, way: tuple[object, object], delay_ms: int) -> int:
        at_ms = self._ready_ms[way] = max(self.now_ms + delay_ms, self._ready_ms.get(way, 0))
        return at_ms

    def on_node_died(self, node: NodeProcess) -> None:
        for connection in [each for each in self._connections.values() if each.node is node]:
            self.connect(connection.process)

    # Clients.

    @property
    def doors(self) -> ServiceWorld:
        return self

    def draw_address(self) -> str:
        """A client's own node first, and then others."""
        addresses = list(self.nodes)
        own = self._addresses.popleft() if self._addresses else addresses[0]
        place = addresses.index(own)
        return ",".join([*addresses[place:], *addresses[:place]][:ADDRESSES_MAX])

    def add_clients(self) -> None:
        self._addresses.extend(self.nodes)
        for number in range(len(self.nodes)):
            roles = [lambda me, each=number: _read(me, self, each), lambda me, each=number: _publish(me, self, each)]
            self.clients[f"client-{number}"] = client = Client(self, f"client-{number}", roles, None)  # type: ignore[arg-type]
            client.start()

    def connect(self, process: ClientProcess) -> None:
        self._connections.pop(process.connection, None)
        self._connected += 1
        process.connection = self._connected
        node = self.nodes[process.session.route.at or ""]
        self._connections[self._connected] = Connection(self._connected, process, node)

    def disconnect(self, process: ClientProcess) -> None:
        self._connections.pop(process.connection, None)

    def send_to_broker(self, process: ClientProcess, frames: Sequence[Frame]) -> None:
        connection = self._connections[process.connection]
        copied = [bytes(frame) for frame in frames]
        life = connection.node.life

        def arrive() -> None:
            if connection.node.life == life:
                connection.node.receive(connection.number, copied)

        self.at(self._arrival_ms((connection.number, "node"), 1), arrive)

    def send_to_client(self, node: NodeProcess, number: int, frames: Sequence[Frame]) -> None:
        copied = [bytes(frame) for frame in frames]
        connection = self._connections.get(number)
        if connection is None or connection.node is not node:
            return  # Nobody is at the other end any more.

        def arrive() -> None:
            if number in self._connections:
                connection.process.receive(copied)

        self.at(self._arrival_ms((number, "client"), 1), arrive)

    # Time.

    def wait(self, condition: Callable[[], bool], ms_max: int) -> bool:
        """Lets things happen until something is the case; False if that does not come true in time."""
        return self.pass_until(condition, self.now_ms + ms_max)

    def pass_ms(self, count: int) -> None:
        self.wait(lambda: False, count)

    def take_census(self, phase: str, since_ms: int) -> list[Sent]:
        """What has been sent since the last time."""
        census, self.census = self.census, Census()
        lasted_ms = self.now_ms - since_ms
        return [
            Sent(phase, layer, kind, count, census.sizes[layer, kind], lasted_ms)
            for (layer, kind), count in sorted(census.counts.items())
        ]


def _read(me: ClientProcess, world: ServiceWorld, number: int) -> Operation[None]:
    """Subscribes, and takes whatever comes."""
    account = world.account
    topics = account.load.subscriptions[number]
    for topic in topics:
        yield from operations.subscribe(me.core, topic, "now")
    world.subscribed += 1

    def take(message: Message) -> None:
        account.on_delivered(number, message.topic, message.text, world.now_ms)

    service = Service(me.core, {(topic,): [take] for topic in topics}, None)
    while (found := (yield from service.step())) is not None:
        message, handlers = found
        for handler in handlers:
            handler(message)


def _publish(me: ClientProcess, world: ServiceWorld, number: int) -> Operation[None]:
    """Puts one message after another, as soon as everybody has subscribed."""
    account = world.account
    while not world.publishing:
        yield from me.sleep(POLL_MS)
    for index in range(world.service_plan.messages):
        topic, text = account.on_put(number, index, world.now_ms)
        yield from operations.put(me.core, topic, text)
        account.on_acknowledged(world.now_ms)


def run_service(plan: ServicePlan) -> ServiceResult:
    """Carries out a plan; the same plan gives the same result.

    >>> result = run_service(ServicePlan(groups=2, replicas=1, messages=2))
    >>> result.account.lost, result.account.doubled, result.account.is_over
    (0, 0, True)
    """
    with without_collection():
        return _run(ServiceWorld(plan))


def _run(world: ServiceWorld) -> ServiceResult:
    plan, account = world.service_plan, world.account
    for _ in range(plan.groups):
        world.add_group()
        _require(world.wait(world.is_whole, QUIET_MS_MAX), f"{len(world.groups)} groups did not become a ring")
    world.add_clients()
    _require(world.wait(lambda: world.subscribed == len(world.nodes), QUIET_MS_MAX), "not everybody could subscribe")
    world.pass_ms(AT_REST_MS)
    world.take_census("", 0)
    since_ms = world.now_ms
    world.pass_ms(AT_REST_MS)
    sent = world.take_census("rest", since_ms)
    since_ms = world.now_ms
    world.publishing = True
    killed: list[NodeProcess] = []
    if plan.failures:
        world.wait(lambda: 2 * account.acknowledged >= account.published, QUIET_MS_MAX)
        killed = [world.random.choice(group) for group in world.groups]
        for node in killed:
            node.switch_off()
    _require(world.wait(lambda: account.is_published, QUIET_MS_MAX), "not everything could be put")
    world.wait(lambda: account.is_over, LAG_MS_MAX)
    sent += world.take_census("load", since_ms)
    world.pass_ms(LATE_MS)
    for node in killed:
        node.switch_on()
    world.wait(lambda: all(state.agreeing == state.replicas for state in states(world)), QUIET_MS_MAX)
    return ServiceResult(account, len(killed), tuple(sent), tuple(states(world)), world.now_ms, world.events)


def states(world: ServiceWorld) -> list[GroupState]:
    """What the replicas of each group have applied, own and hold."""
    return [_state(group, world.account.load) for group in world.groups]


def _state(group: Sequence[NodeProcess], load: ServiceLoad) -> GroupState:
    engines = [node.engine for node in group if node.engine is not None]
    best = max(engines, key=lambda engine: engine.log.replica.applied)
    same = [engine for engine in engines if _held(engine) == _held(best)]
    ownership = best.ring.ownership
    owned = sum(ownership is not None and ownership.owns_topic(topic) for topic in load.topics)
    return GroupState(group[0].identity.group.hex(), len(group), len(same), best.log.replica.applied, owned)


def _held(engine: AnyEngine) -> object:
    """What replicas have to have in common."""
    state = engine.log.replica.state
    assert isinstance(state, BrokerState)
    ends = {topic: (known.first_offset, known.next_offset) for topic, known in state.machine.topics.items()}
    owned = engine.ring.ownership
    return engine.log.replica.applied, owned.ranges if owned is not None else None, ends


def _require(condition: bool, otherwise: str) -> None:
    if not condition:
        raise Unavailable(f"The ring was not at work in time: {otherwise}.")
