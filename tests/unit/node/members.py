"""A group of brokers without a network: frames are carried by hand, in virtual time, on simulated disks."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any

from tidings.journal.journal import Journal
from tidings.message import Columns
from tidings.node.engines import GroupEngine, group_engine
from tidings.node.identity import Identity
from tidings.protocols.broker import messages
from tidings.protocols.multipaxos.joining import Member
from tidings.settings import BrokerSettings, JournalSettings, ReplicaSettings
from tidings.simulator.disk import SimulatedDisk
from tidings.wire import codec
from tidings.wire.codec import Frame
from tidings.wire.replication import MARK, ReplicaPeer, decode_message

GROUP = b"0123456789abcdef"
STEP_MS = 10
WAIT_MS_MAX = 30_000


def address_of(number: int) -> str:
    return f"tcp://127.0.0.1:{7000 + number}"


FOUNDERS = tuple(Member(number, address_of(number), f"disk {number}".encode()) for number in (1, 2, 3))


class Node:
    """A process, and what clients have heard from it."""

    def __init__(
        self,
        identity: Identity,
        address: str,
        broker: BrokerSettings,
        journal: JournalSettings,
        replica: ReplicaSettings,
        disk: Any = None,
    ) -> None:
        self.identity = identity
        self.address = address
        self.disk = disk or SimulatedDisk(Random(identity.number))
        self.heard: list[tuple[Any, Any, list[Columns]]] = []
        """Peer, message and batches, in the order in which they left."""
        self.disk_is_slow = False
        """While it is, a commit begins and does not end."""
        self._rng = Random(f"fate of {identity.number}")
        self._settings = (broker, journal, replica)
        self._life = 0
        self.engine = self._open(1_000)

    def _open(self, now_ms: int) -> GroupEngine:
        self._life += 1
        broker, journal_settings, replica = self._settings
        journal = Journal.open(self.disk, journal_settings)
        random = Random(f"{self.identity.number} {self._life}")
        engine = group_engine(broker, replica, self.identity, journal, self.disk, random)
        engine.recover(now_ms)
        return engine

    def restart(self, now_ms: int, power_cut: bool = False) -> None:
        """The process ends; what was being written may or may not have been."""
        if self.engine.log.replica.commit is not None and self._rng.random() < 0.5:
            self.engine.journal.write(self.engine.log.replica.commit)
        if power_cut:
            self.disk.crash()
        else:
            self.disk.kill()
        self.engine = self._open(now_ms)

    def commit(self, now_ms: int) -> None:
        engine = self.engine
        while True:
            under_way = engine.log.replica.commit
            if under_way is None and engine.has_staged:
                under_way = engine.begin_commit(now_ms)
            if under_way is None or self.disk_is_slow:
                return
            engine.journal.write(under_way)
            engine.finish_commit(now_ms)


class Members:
    """The members of a group, and anyone else who speaks to them."""

    def __init__(
        self,
        founders: tuple[Member, ...] = FOUNDERS,
        broker: BrokerSettings | None = None,
        journal: JournalSettings | None = None,
        replica: ReplicaSettings | None = None,
        disks: dict[int, Any] | None = None,
    ) -> None:
        """`disks` are other ones than simulated, by the members' numbers."""
        self._disks = disks or {}
        self._settings = (broker or BrokerSettings(), journal or JournalSettings(), replica or ReplicaSettings())
        self.now_ms = 1_000
        self.nodes: dict[int, Node] = {}
        self.cut: set[int] = set()
        """Those that no other member reaches, nor they them. Clients reach everybody."""
        self.lost: tuple[type, ...] = ()
        """Messages of these kinds get lost on their way to other members."""
        self.to_strangers: list[tuple[str, Any]] = []
        """What was sent to addresses where no member is."""
        self.carried: list[tuple[int, int, object]] = []
        """Sender, receiver and message of all that was said between members."""
        self._under_way: deque[tuple[int, list[Frame]]] = deque()
        for member in founders:
            self.start(Identity(GROUP, member.number, member.disk, founders, founders), member.address)

    def start(self, identity: Identity, address: str) -> Node:
        node = self.nodes[identity.number] = Node(identity, address, *self._settings, self._disks.get(identity.number))
        return node

    # Time.

    def step(self) -> None:
        """Ten milliseconds pass, and all that is said in them arrives."""
        self.now_ms += STEP_MS
        for node in self.nodes.values():
            node.engine.tick(self.now_ms)
        self.run_until_quiet()

    def run_until_quiet(self) -> None:
        """Carries frames until nobody has anything to say."""
        while True:
            for number, node in list(self.nodes.items()):
                node.engine.gather(self.now_ms)
                node.commit(self.now_ms)
                self._flush(number, node)
            if not self._under_way:
                return
            while self._under_way:
                receiver, frames = self._under_way.popleft()
                if receiver in self.nodes:
                    self.nodes[receiver].engine.receive(self.now_ms, b"replica", frames)

    def _flush(self, number: int, node: Node) -> None:
        outgoing, node.engine.outgoing = node.engine.outgoing, []
        for peer, frames in outgoing:
            if not isinstance(peer, ReplicaPeer):
                batches = [codec.decode_columns(body) for body in frames[1:]]
                node.heard.append((peer, codec.decode_answer(frames[0]), batches))
                continue
            assert frames[0] == MARK
            header = decode_message(frames)
            receivers = [other for other, each in self.nodes.items() if each.address == peer.address]
            if not receivers:
                self.to_strangers.append((peer.address, header.message))
            for receiver in receivers:
                self.carried.append((number, receiver, header.message))
                if not {number, receiver} & self.cut and not isinstance(header.message, self.lost):
                    self._under_way.append((receiver, frames))

    def wait(self, condition: Callable[[], object], what: str) -> None:
        until_ms = self.now_ms + WAIT_MS_MAX
        while not condition():
            assert self.now_ms < until_ms, f"It never came to this: {what}"
            self.step()

    def pass_ms(self, count: int) -> None:
        until_ms = self.now_ms + count
        while self.now_ms < until_ms:
            self.step()

    # Who leads.

    def serving(self) -> list[int]:
        return [number for number, node in self.nodes.items() if node.engine.log.serving]

    def leader(self) -> Node:
        """The one that serves, once there is one whom others can reach."""
        self.wait(lambda: set(self.serving()) - self.cut, "somebody serves")
        (number,) = set(self.serving()) - self.cut
        return self.nodes[number]

    def followers(self) -> list[Node]:
        leader = self.leader()
        return [node for number, node in self.nodes.items() if node is not leader and number not in self.cut]

    def change_leader(self) -> tuple[Node, Node]:
        """The leader is cut off until the others have another one; both."""
        old = self.leader()
        self.cut = {old.identity.number}
        return old, self.leader()

    # Clients.

    def say(self, node: Node, request: messages.Request, *batches: Columns, peer: str = "peer") -> None:
        node.engine.receive(self.now_ms, peer, [codec.encode(request), *map(codec.encode, batches)])

    def ask(self, node: Node, request: messages.Request, *batches: Columns, peer: str = "peer") -> Any:
        """The answer to a request; what this peer heard before it is dropped."""
        node.heard = [each for each in node.heard if each[0] != peer]
        self.say(node, request, *batches, peer=peer)
        self.run_until_quiet()
        number = request.request
        return next((each for who, each, _ in node.heard if who == peer and each.request == number), None)

    def hello(self, node: Node, client: str, token: bytes = b"token") -> int:
        welcome = self.ask(node, messages.Hello(1, messages.VERSION, client, token), peer=client)
        assert isinstance(welcome, messages.Welcome), welcome
        return welcome.epoch


def put(
    client: str, epoch: int, sequence: int, *values: bytes, request: int = 2, topic: str = "news"
) -> tuple[messages.Put, Columns]:
    part = messages.Part((messages.Target(topic, sequence),), len(values))
    return messages.Put(request, client, epoch, part), Columns(1, client, list(values))
