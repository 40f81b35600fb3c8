"""Nodes of a ring for experiments in virtual time: the real engines on simulated disks, and a count of what they send.

Nothing goes wrong here but what an experiment does. Messages between two nodes take 1 to `LATENCY_MS_MAX` and stay in
their order, a client is 1 ms from its node, and a commit takes `COMMIT_MS`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec

from tidings.journal.journal import Journal
from tidings.node.engines import RingEngine, ring_engine
from tidings.node.identity import Identity
from tidings.protocols.ring.handoff_messages import HandoffMessage
from tidings.protocols.ring.messages import (
    AskWord,
    Back,
    Between,
    Bodies,
    FetchBodies,
    Find,
    Interest,
    NotOwner,
    Relay,
    Shown,
    Word,
)
from tidings.protocols.stack import Message
from tidings.settings import BrokerSettings, JournalSettings, ReplicaSettings, RingSettings
from tidings.simulator.disk import SimulatedDisk
from tidings.simulator.process import START_MS
from tidings.wire.codec import Frame
from tidings.wire.replication import MARK as REPLICA_MARK
from tidings.wire.replication import ReplicaPeer, decode_message
from tidings.wire.ring import Node as ToNode
from tidings.wire.ring import decode_header

if TYPE_CHECKING:
    from tidings.simulator.ring.service import ServiceWorld

COMMIT_MS = 1

LAYERS: dict[type, str] = {
    **dict.fromkeys((Relay, Back, NotOwner), "relay"),
    **dict.fromkeys((Shown, Bodies, FetchBodies, Interest), "bodies"),
    **dict.fromkeys((Word, AskWord, Find), "finding"),
}
"""What messages between the nodes of a ring are for: carrying what clients say and hear, bodies for several readers at
once, and finding owners. Those between virtual nodes are counted by the layers of the overlay.
"""
OVERLAY = ("chord", "scribe", "gossip", "hyparview", "heartbeat", "pubsub")


class ServiceNode:
    """A process of a ring: an address, a disk and an engine, which may be gone for a while."""

    def __init__(self, world: ServiceWorld, identity: Identity, address: str, ring: RingSettings) -> None:
        self._world = world
        self.identity = identity
        self.address = address
        self._ring = ring
        self.disk = SimulatedDisk(world.random)
        self.engine: RingEngine | None = None
        """None while there is no process."""
        self.life = 0
        self._round_planned = False

    def start(self) -> None:
        self.life += 1
        self._round_planned = False
        self.engine = ring_engine(
            BrokerSettings(),
            ReplicaSettings(),
            self._ring,
            self.address,
            self.identity,
            Journal.open(self.disk, JournalSettings()),
            self.disk,
            self._world.random,
        )
        self.engine.recover(self.clock())
        self._tick(self.life)

    def kill(self) -> None:
        """The process is gone; what it had written stays."""
        self.engine = None
        self.disk.kill()
        self._world.on_node_died(self)

    def clock(self) -> int:
        return START_MS + self._world.now_ms

    def receive(self, peer: object, frames: Sequence[Frame]) -> None:
        if self.engine is not None:
            self.engine.receive(self.clock(), peer, frames)
            self._plan_round()

    def _tick(self, life: int) -> None:
        if self.engine is not None and self.life == life:
            self.engine.tick(self.clock())
            self._plan_round()
            self._world.after(self.engine.tick_ms, lambda: self._tick(life))

    def _plan_round(self) -> None:
        """What comes in the same millisecond goes into the same round, as in `node.loop`."""
        if not self._round_planned:
            self._round_planned = True
            self._world.after(0, self._in_this_life(self._go_round))

    def _in_this_life(self, what: Callable[[RingEngine], None]) -> Callable[[], None]:
        life = self.life

        def go() -> None:
            if self.engine is not None and self.life == life:
                what(self.engine)

        return go

    def _go_round(self, engine: RingEngine) -> None:
        self._round_planned = False
        if engine.gather(self.clock()):
            self._flush(engine)
        if engine.has_staged and not engine.committing:
            engine.begin_commit(self.clock())
            self._world.after(COMMIT_MS, self._in_this_life(self._end_commit))
        self._flush(engine)

    def _end_commit(self, engine: RingEngine) -> None:
        commit = engine.log.replica.commit
        assert commit is not None
        engine.journal.write(commit)
        engine.finish_commit(self.clock())
        self._plan_round()

    def _flush(self, engine: RingEngine) -> None:
        outgoing, engine.outgoing = engine.outgoing, []
        for peer, frames in outgoing:
            copied = [bytes(frame) for frame in frames]
            if isinstance(peer, ReplicaPeer | ToNode):
                self._world.send_to_node(self, peer.address, copied)
            else:
                self._world.send_to_client(self, peer, copied)


class Census:
    """Messages between nodes, by what they are for and by their kind."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()
        self.sizes: Counter[tuple[str, str]] = Counter()
        self._overlay = {kind.__name__: layer for kind in _kinds(Message) if (layer := _layer_of(kind)) in OVERLAY}

    def count(self, frames: Sequence[bytes]) -> None:
        kind = self._kind_of(frames)
        self.counts[kind] += 1
        self.sizes[kind] += sum(map(len, frames))

    def _kind_of(self, frames: Sequence[bytes]) -> tuple[str, str]:
        if frames[0] == REPLICA_MARK:
            return "paxos", type(decode_message(frames).message).__name__
        message = decode_header(frames).message
        if isinstance(message, Between):
            name = str(msgspec.msgpack.decode(message.message)[0])
            return self._overlay[name], name
        if isinstance(message, HandoffMessage):
            return "hand-over", type(message).__name__
        return LAYERS[type(message)], type(message).__name__


def _kinds(kind: type) -> list[type]:
    below: list[type] = kind.__subclasses__()
    return [kind, *(each for one in below for each in _kinds(one))]


def _layer_of(kind: type) -> str:
    """The protocol whose message it is: tidings.protocols.chord.messages is chord's."""
    return kind.__module__.removeprefix("tidings.protocols.").partition(".")[0]
