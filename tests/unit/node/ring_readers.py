"""Readers of topics at the nodes of a ring, and what the nodes send each other for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tests.unit.node.rings import RingNode, Rings
from tidings.protocols.broker import messages
from tidings.settings import BrokerSettings, Dissemination
from tidings.wire.codec import Frame
from tidings.wire.ring import MARK, decode_header

CREDIT_BYTES = 64 * 1024 * 1024


class Sent(NamedTuple):
    """A message from one node to another, beside what replicas of a group say."""

    sender: str
    receiver: str
    message: object
    frames: list[Frame]

    @property
    def size_bytes(self) -> int:
        return sum(map(len, self.frames))


class Traffic(Rings):
    """A ring whose nodes' messages are seen, and may get lost."""

    def __init__(self, groups: int, size: int, dissemination: Dissemination = "scribe") -> None:
        self.sent: list[Sent] = []
        self.lose: Callable[[Sent], bool] = lambda sent: False
        super().__init__(groups, size, BrokerSettings(), dissemination)

    def _flush(self, node: RingNode) -> None:
        known = len(self._under_way)
        super()._flush(node)
        new = [self._under_way.pop() for _ in range(len(self._under_way) - known)][::-1]
        for address, frames in new:
            if frames[0] == MARK:
                sent = Sent(node.address, address, decode_header(frames).message, frames)
                self.sent.append(sent)
                if self.lose(sent):
                    continue
            self._under_way.append((address, frames))

    def count(self, kind: type, receiver: RingNode | None = None) -> int:
        """How many messages of a kind were sent, to anybody or to one."""
        addresses = (None, receiver.address) if receiver is not None else None
        return sum(
            isinstance(each.message, kind) and (addresses is None or each.receiver in addresses) for each in self.sent
        )

    def crossings(self, body: bytes) -> dict[str, int]:
        """How often a body was sent to each node, in whatever message."""
        counts: dict[str, int] = {}
        for each in self.sent:
            times = sum(bytes(frame).count(body) for frame in each.frames)
            if times:
                counts[each.receiver] = counts.get(each.receiver, 0) + times
        return counts


class Reader:
    """A client that reads one topic at a node, and comes again over a new connection when it is sent away."""

    def __init__(self, ring: Rings, node: RingNode, name: str, topic: str) -> None:
        self.ring = ring
        self.node = node
        self.name = name
        self.topic = topic
        self.position = 0
        self.values: list[bytes] = []
        self.sent_away = 0
        self._stream = 0
        self._looked = len(node.heard)
        self.epoch = ring.hello(node, name)
        done = ring.ask(node, messages.Subscribe(3, name, self.epoch, (topic,), "earliest"))
        assert isinstance(done, messages.SubscribeDone), done
        self.connect()

    def connect(self) -> None:
        """Opens the stream over a new connection, where it stood."""
        self._stream += 1
        self.peer = f"{self.name} {self._stream}".encode()
        self.grant(100_000)

    def grant(self, count: int) -> None:
        """Lets so many messages come on this stream, from its start."""
        position = (messages.Position(self.topic, self.position),)
        flow = messages.Flow(
            100 + self._stream, self.name, self.epoch, (self.topic,), self._stream, position, count, CREDIT_BYTES
        )
        self.ring.say(self.node, self.peer, flow)

    def look(self) -> list[bytes]:
        """What has come in all. Every message comes once and in order, or this fails."""
        heard, self._looked = self.node.heard[self._looked :], len(self.node.heard)
        is_away = False
        for who, answer, batches in heard:
            if who != self.peer:
                continue
            assert not is_away, "Something came over a connection that was given up."
            match answer:
                case messages.NotLeader():
                    is_away = True
                case messages.Delivery(stream, _, since, first, following):
                    assert stream == self._stream
                    assert since == self.position, f"{since} was delivered where {self.position} was expected."
                    values = [value for batch in batches for value in batch.values]
                    assert len(values) == following - first
                    self.values += values[since - first :]
                    self.position = following
        if is_away:
            self.sent_away += 1
            self.connect()
        return self.values


def readers_at(ring: Rings, topic: str, *nodes: RingNode, each: int = 1) -> list[Reader]:
    """Some readers of a topic at each of several nodes, all of them reading."""
    readers = [
        Reader(ring, node, f"reader {place} {number}", topic)
        for place, node in enumerate(nodes)
        for number in range(each)
    ]
    ring.pass_ms(1_500)  # Until the trees have grown.
    for reader in readers:
        assert ring.answer(reader.node, reader.peer, 101) is not None
    return readers
