"""A simulation of groups, each with its virtual node in the overlay: leaders that change, lost messages, cuts that
heal.

A group is its descriptor and its virtual node here; its replicas, and what they agree on, are another world's. Each
group has three members. One leads; the one that led before it is down; and the third takes no messages, but says who
leads. A message goes to the leader that the sender's descriptor names, or without a name to any of the three.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Iterable

import msgspec

from tidings.protocols.chord.identifiers import Key
from tidings.protocols.ring.directory import Directory
from tidings.protocols.ring.messages import Between, GroupDescriptor
from tidings.protocols.ring.virtual_node import Dissemination, VirtualNode
from tidings.settings import ChordSettings, ScribeSettings
from tidings.wire.ring import decode_header, encode_message

MEMBERS = 3
LATENCY_MS = (1, 40)

VirtualNodeMaker = Callable[..., VirtualNode]


def group_name(number: int, ring: int = 0) -> bytes:
    """The name of a group; rings differ in theirs, and so in where the groups stand."""
    return ring.to_bytes(4) + number.to_bytes(4)


class Group:
    """A group as the others meet it."""

    def __init__(self, name: bytes, directory: Directory) -> None:
        self.name = name
        self.directory = directory
        members = tuple(f"tcp://{name.hex()}.{number}" for number in range(MEMBERS))
        self.descriptor = GroupDescriptor(name, members)
        self.virtual_node: VirtualNode | None = None
        """None while nobody leads."""
        self.wake_ms = 0
        self.side = 0
        """On which side of a cut it is."""
        self.received = 0
        self.sent = 0

    @property
    def is_live(self) -> bool:
        return self.virtual_node is not None

    def is_down(self, address: str) -> bool:
        """Whether nobody is there, not even somebody who knows who leads."""
        return self.descriptor.term > 1 and address == self.descriptor.members[(self.descriptor.term - 1) % MEMBERS]


class VirtualNodeWorld:
    """Groups, their virtual nodes, and a network between them, in simulated time."""

    def __init__(
        self,
        seed: int,
        chord: ChordSettings = ChordSettings(),  # noqa: B008 - it is frozen.
        scribe: ScribeSettings = ScribeSettings(),  # noqa: B008
        loss: float = 0.0,
        dissemination: Dissemination = "scribe",
        make: VirtualNodeMaker = VirtualNode,
    ) -> None:
        self.rng = random.Random(seed)
        self.now_ms = 0
        self.groups: dict[bytes, Group] = {}
        self.loss = loss
        self.delivered = 0
        self.size_bytes = 0
        """Of all messages that were sent."""
        self.arrived: list[tuple[bytes, str, bytes]] = []
        """(group, topic, body) of everything that multicast brought."""
        self.on_delivery: Callable[[Group, Group, Between], None] | None = None
        self._chord, self._scribe, self._dissemination = chord, scribe, dissemination
        self._make = make
        self._number = 0
        self._agenda: list[tuple[int, int, Group, list[bytes] | None]] = []
        """(when, number, group, the frames that come to it or None if it wakes by itself)"""

    # What happens to groups.

    def add(self, name: bytes, contacts: Iterable[GroupDescriptor], directory: Directory | None = None) -> Group:
        """A new group that knows some others."""
        group = self.groups[name] = Group(name, Directory() if directory is None else directory)
        for descriptor in contacts:
            group.directory.learn_descriptor(descriptor)
        group.side = self.rng.randrange(2)
        self.lead(group)
        return group

    def lead(self, group: Group) -> None:
        """Somebody leads from now on, with a virtual node that only knows what the directory does."""
        self.halt(group)
        term = group.descriptor.term + 1
        leader = group.descriptor.members[term % MEMBERS]
        group.descriptor = msgspec.structs.replace(
            group.descriptor, leader=leader, term=term, slot=group.descriptor.slot + 1
        )
        rng = random.Random(self.rng.getrandbits(64))
        group.virtual_node = self._make(
            group.name, group.directory, self._chord, self._scribe, rng, self._dissemination
        )
        group.virtual_node.start(self.now_ms, group.descriptor)
        self._after(group)

    def halt(self, group: Group) -> None:
        """Nobody leads: the virtual node is silent."""
        group.virtual_node = None

    def leave(self, group: Group) -> None:
        """The group leaves, and says so to those that it knows best before it is gone."""
        group.descriptor = msgspec.structs.replace(group.descriptor, left=True, slot=group.descriptor.slot + 1)
        neighbours = group.virtual_node.successors[:2] if group.virtual_node is not None else ()
        self.halt(group)
        for name in neighbours:
            self.groups[name].directory.learn_descriptor(group.descriptor)

    @property
    def live(self) -> list[Group]:
        return [group for group in self.groups.values() if group.is_live]

    # Time.

    def run(self, duration_ms: int) -> None:
        """Lets time pass."""
        end_ms = self.now_ms + duration_ms
        while self._agenda and self._agenda[0][0] <= end_ms:
            self.now_ms, _, group, frames = heapq.heappop(self._agenda)
            if frames is not None:
                self._arrive(group, frames)
            elif group.virtual_node is not None and group.wake_ms == self.now_ms:
                group.virtual_node.tick(self.now_ms, group.descriptor)
                self._after(group)
        self.now_ms = end_ms

    def ask(self, group: Group, point: Key) -> None:
        """Lets a virtual node look for a point."""
        assert group.virtual_node is not None
        group.virtual_node.find(self.now_ms, point)
        self._after(group)

    def subscribe(self, group: Group, topic: str) -> None:
        assert group.virtual_node is not None
        assert group.virtual_node.subscribe(topic)
        self._after(group)

    def publish(self, group: Group, topic: str, body: bytes) -> None:
        assert group.virtual_node is not None
        assert group.virtual_node.publish(topic, body)
        self._after(group)

    def _after(self, group: Group) -> None:
        """Takes out what a virtual node has done, and finds out when it wakes next."""
        virtual_node = group.virtual_node
        assert virtual_node is not None
        for descriptor, message in virtual_node.outgoing:
            self._send(group, descriptor, message)
        virtual_node.outgoing.clear()
        self.arrived += [(group.name, topic, body) for topic, body in virtual_node.arrived]
        virtual_node.arrived.clear()
        wake_ms = max(virtual_node.next_ms, self.now_ms + 1)
        if wake_ms != group.wake_ms or wake_ms <= self.now_ms:
            group.wake_ms = wake_ms
            self._schedule(wake_ms, group, None)

    def _schedule(self, when_ms: int, group: Group, frames: list[bytes] | None) -> None:
        self._number += 1
        heapq.heappush(self._agenda, (when_ms, self._number, group, frames))

    # The network.

    def _send(self, sender: Group, descriptor: GroupDescriptor, message: Between) -> None:
        receiver = self.groups.get(descriptor.group)
        address = descriptor.leader or self.rng.choice(descriptor.members)
        sender.sent += 1
        frames = [bytes(frame) for frame in encode_message(address, message)]
        self.size_bytes += len(frames[1])
        if receiver is not None and self.rng.random() >= self.loss:
            self._schedule(self.now_ms + self.rng.randint(*LATENCY_MS), receiver, frames)

    def _arrive(self, group: Group, frames: list[bytes]) -> None:
        # The address is the receiver's, which the real header does not need: it stands for the connection.
        address, message = msgspec.structs.astuple(decode_header(frames))
        assert isinstance(message, Between)
        sender = self.groups[message.sender.group]
        if group.virtual_node is None or group.is_down(address) or group.side != sender.side:
            return
        if address != group.descriptor.leader:
            sender.directory.learn_descriptor(group.descriptor)
            return
        self.delivered += 1
        group.received += 1
        if self.on_delivery is not None:
            self.on_delivery(sender, group, message)
        group.virtual_node.receive(self.now_ms, message)
        self._after(group)


def root_of(names: Iterable[bytes], point: Key) -> bytes:
    """The group that stands first at or after a point, if nothing moves any more."""
    ring = sorted((GroupDescriptor(name, ()).point, name) for name in names)
    return next((name for place, name in ring if place >= point), ring[0][1])


def wrong_answers(world: VirtualNodeWorld, points: Iterable[Key], wait_ms: int) -> list[str]:
    """Asks every live virtual node for every point; a sentence for each answer that is missing or wrong."""
    live = world.live
    names = [group.name for group in live]
    wanted = {point: root_of(names, point) for point in points}
    for group in live:
        assert group.virtual_node is not None
        group.virtual_node.found.clear()
        for point in wanted:
            world.ask(group, point)
    world.run(wait_ms)
    wrong = []
    for group in live:
        assert group.virtual_node is not None
        found = dict(group.virtual_node.found)
        for point, name in wanted.items():
            if found.get(point) != name:
                answer = found[point].hex() if point in found else "nobody"
                wrong.append(f"{group.name.hex()} takes {answer} for the root of {point.hex()[:8]}, not {name.hex()}")
    return wrong
