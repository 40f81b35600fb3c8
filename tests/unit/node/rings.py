"""A ring of replica groups without a network: frames are carried by hand, in virtual time, on simulated disks."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any

from tidings.journal.journal import Journal
from tidings.message import Columns
from tidings.node.engines import RingEngine, ring_engine
from tidings.node.identity import Identity
from tidings.protocols.broker import messages
from tidings.protocols.multipaxos.joining import Member
from tidings.protocols.ring.key_ranges import point_of
from tidings.settings import BrokerSettings, Dissemination, JournalSettings, ReplicaSettings, RingSettings
from tidings.simulator.disk import SimulatedDisk
from tidings.wire import codec
from tidings.wire.codec import Frame
from tidings.wire.replication import ReplicaPeer
from tidings.wire.ring import Node as ToNode

STEP_MS = 10
WAIT_MS_MAX = 60_000


class RingNode:
    """A process of a ring, and what clients have heard from it."""

    def __init__(self, identity: Identity, address: str, ring: RingSettings, settings: BrokerSettings) -> None:
        self.identity = identity
        self.address = address
        self.disk = SimulatedDisk(Random(address))
        self.heard: list[tuple[Any, Any, list[Columns]]] = []
        """Peer, message and batches, in the order in which they left."""
        self.runs = True
        self._ring = ring
        self._settings = settings
        self._life = 0
        self.engine = self._open(1_000)

    def _open(self, now_ms: int) -> RingEngine:
        self._life += 1
        engine = ring_engine(
            self._settings,
            ReplicaSettings(),
            self._ring,
            self.address,
            self.identity,
            Journal.open(self.disk, JournalSettings()),
            self.disk,
            Random(f"{self.address} {self._life}"),
        )
        engine.recover(now_ms)
        return engine

    def kill(self) -> None:
        self.runs = False
        self.disk.kill()

    def start(self, now_ms: int) -> None:
        self.runs = True
        self.engine = self._open(now_ms)

    def commit(self, now_ms: int) -> None:
        engine = self.engine
        while engine.has_staged or engine.committing:
            commit = engine.log.replica.commit or engine.begin_commit(now_ms)
            engine.journal.write(commit)
            engine.finish_commit(now_ms)


class Rings:
    """All nodes of a ring. The first group founds it."""

    def __init__(
        self,
        groups: int = 1,
        size: int = 1,
        settings: BrokerSettings | None = None,
        dissemination: Dissemination = "scribe",
    ) -> None:
        self.now_ms = 1_000
        self.nodes: dict[str, RingNode] = {}
        self.groups: list[list[RingNode]] = []
        self._settings = settings or BrokerSettings()
        self._dissemination = dissemination
        self._under_way: deque[tuple[str, list[Frame]]] = deque()
        self.cut: Callable[[str, str], bool] = lambda sender, receiver: False
        """Whether what one node sends another gets lost."""
        self.see: Callable[[str, list[Frame]], None] = lambda receiver, frames: None
        """Is shown what arrives at nodes from others."""
        self.sequences: dict[tuple[str, str], int] = {}
        for _ in range(groups):
            self.add_group(size)
        self.wait(lambda: all(self.owns(group) for group in self.groups), "every group owns something")

    def add_group(self, size: int) -> list[RingNode]:
        """A new group starts; it joins by the first node that there is."""
        number = len(self.groups)
        addresses = [f"tcp://127.0.0.1:{7000 + 10 * number + each}" for each in range(1, size + 1)]
        members = tuple(Member(each, address, f"disk {address}".encode()) for each, address in enumerate(addresses, 1))
        group = f"group {number}".encode().ljust(16, b".")
        ring = RingSettings(contacts=tuple(list(self.nodes)[:1]), dissemination=self._dissemination)
        nodes = []
        for member in members:
            identity = Identity(group, member.number, member.disk, members, members)
            node = RingNode(identity, member.address, ring, self._settings)
            self.nodes[member.address] = node
            nodes.append(node)
        self.groups.append(nodes)
        return nodes

    def owns(self, group: list[RingNode]) -> bool:
        """Whether a group has a leader, and owns something."""
        leader = self.leader_of(group)
        return (
            leader is not None
            and leader.engine.ring.ownership is not None
            and bool(leader.engine.ring.ownership.ranges)
        )

    def leader_of(self, group: list[RingNode]) -> RingNode | None:
        return next((node for node in group if node.runs and node.engine.log.serving), None)

    def owner_of(self, topic: str) -> RingNode:
        """The leader of the group that owns a topic; waits until there is exactly one."""
        found: list[RingNode] = []

        def look() -> bool:
            found[:] = [
                node
                for node in self.nodes.values()
                if node.runs
                and node.engine.log.serving
                and node.engine.ring.ownership
                and node.engine.ring.ownership.owns_topic(topic)
            ]
            return len(found) == 1

        self.wait(look, f"one owner of {topic}")
        return found[0]

    def strangers_to(self, topic: str) -> list[RingNode]:
        """The nodes of all other groups."""
        owner = self.owner_of(topic)
        return [node for node in self.nodes.values() if node.identity.group != owner.identity.group]

    # Time.

    def step(self) -> None:
        self.now_ms += STEP_MS
        for node in self.nodes.values():
            if node.runs:
                node.engine.tick(self.now_ms)
        self.run_until_quiet()

    def run_until_quiet(self) -> None:
        """Carries frames until nobody has anything to say."""
        while True:
            for node in list(self.nodes.values()):
                if node.runs:
                    node.engine.gather(self.now_ms)
                    node.commit(self.now_ms)
                    self._flush(node)
            if not self._under_way:
                return
            while self._under_way:
                address, frames = self._under_way.popleft()
                receiver = self.nodes.get(address)
                if receiver is not None and receiver.runs:
                    self.see(address, frames)
                    receiver.engine.receive(self.now_ms, b"node", frames)

    def _flush(self, node: RingNode) -> None:
        outgoing, node.engine.outgoing = node.engine.outgoing, []  # type: ignore[assignment]
        for peer, frames in outgoing:
            if isinstance(peer, ReplicaPeer | ToNode):
                if not self.cut(node.address, peer.address):
                    self._under_way.append((peer.address, frames))
            else:
                batches = [codec.decode_columns(body) for body in frames[1:]]
                node.heard.append((peer, codec.decode_answer(frames[0]), batches))

    def wait(self, condition: Callable[[], object], what: str) -> None:
        until_ms = self.now_ms + WAIT_MS_MAX
        while not condition():
            assert self.now_ms < until_ms, f"It never came to this: {what}"
            self.step()

    def pass_ms(self, count: int) -> None:
        until_ms = self.now_ms + count
        while self.now_ms < until_ms:
            self.step()

    # Clients.

    def say(self, node: RingNode, peer: Any, request: Any, *batches: Columns) -> None:
        node.engine.receive(self.now_ms, peer, [codec.encode(request), *map(codec.encode, batches)])

    def ask(self, node: RingNode, request: Any, *batches: Columns, peer: Any = None) -> Any:
        """The answer to a request. Without a peer it comes over connections of its own, as often as it has to."""
        until_ms = self.now_ms + WAIT_MS_MAX
        while self.now_ms < until_ms:
            who = peer if peer is not None else f"peer {self.now_ms} {len(node.heard)}".encode()
            self.say(node, who, request, *batches)
            for _ in range(60):
                self.run_until_quiet()
                answer = self.answer(node, who, request.request)
                if answer is not None:
                    break
                self.step()
            if answer is not None and (peer is not None or not isinstance(answer, messages.NotLeader)):
                return answer
            self.pass_ms(50)
        raise AssertionError(f"{request} was never answered")

    def answer(self, node: RingNode, peer: Any, request: int) -> Any:
        return next(
            (each for who, each, _ in node.heard if who == peer and getattr(each, "request", -1) in (request, 0)), None
        )

    def hello(self, node: RingNode, client: str, token: bytes = b"token") -> int:
        welcome = self.ask(node, messages.Hello(1, messages.VERSION, client, token))
        assert isinstance(welcome, messages.Welcome), welcome
        return welcome.epoch

    def put(self, node: RingNode, client: str, epoch: int, topic: str, *values: bytes) -> Any:
        """Stores the next messages of a publisher in a topic."""
        sequence = self.sequences.get((client, topic), 0) + 1
        part = messages.Part((messages.Target(topic, sequence),), len(values))
        answer = self.ask(node, messages.Put(2, client, epoch, part), Columns(1, client, list(values)))
        if isinstance(answer, messages.PutDone):
            self.sequences[client, topic] = sequence + len(values) - 1
        return answer

    def values(self, topic: str) -> list[bytes]:
        """What the owner of a topic holds of it."""
        node = self.owner_of(topic)
        known = node.engine.broker.machine.topics[topic]
        read = node.engine.journal.read
        return [
            value
            for address, size in zip(known.addresses, known.sizes, strict=True)
            for value in codec.decode_columns(read(address, size)).values
        ]


def topic_in(node: RingNode, name: str = "topic") -> str:
    """A topic that the group of a node owns."""
    ring = node.engine.ring.ownership
    assert ring is not None
    return next(topic for number in range(10_000) if ring.owns_topic(topic := f"{name}-{number}"))


__all__ = ["RingNode", "Rings", "point_of", "topic_in"]
