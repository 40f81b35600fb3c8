"""The door of a member of a group: that of a broker, and a connection to each other member.

A connection carries messages one way: what a member sends goes over a DEALER of its own to the other's door. What
cannot be sent because the other one is away is dropped: replicas say again what matters, and the latest counts.

Nodes of a ring speak in the same way over connections of their own, so that what proxies relay never stands before
what replicas say. Of a node that nobody has spoken to yet the first messages wait until there is a connection.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

import zmq

from tidings.descriptors import spare
from tidings.settings import NodeSettings
from tidings.transport import curve, frames
from tidings.transport.router import COPY_BYTES_MAX, Peer, Router
from tidings.wire.codec import Frame
from tidings.wire.replication import REPLICA_PEER_NAME, ReplicaPeer
from tidings.wire.ring import Node

REPLICA_PEERS_MAX = 256
"""Connections to others; one more, and the one that was made first is closed."""
REPLICA_QUEUE_MAX = 1_000
"""Messages that wait for one member; a window of slots fits many times."""
NODE_QUEUE_MAX = 10_000


class _NoSocket(Exception):
    """The system gives no socket now: what was to be sent is lost, as if the other one were away."""


class ReplicaRouter(Router):
    """A bound ROUTER, and DEALERs to the other members."""

    def __init__(self, settings: NodeSettings, frame_bytes_max: int) -> None:
        self._replica_peers: dict[ReplicaPeer | Node, zmq.Socket[bytes]] = {}
        self._peer_options = (
            curve.client_options(Path(settings.keys), REPLICA_PEER_NAME) if settings.keys is not None else None
        )
        super().__init__(settings, frame_bytes_max)

    def send_all(self, outgoing: Sequence[tuple[Peer | ReplicaPeer | Node, list[Frame]]]) -> None:
        """Sends frames in order, to clients and to other members; what cannot be sent is dropped."""
        clients: list[tuple[Peer, list[Frame]]] = []
        shared: dict[int, zmq.Frame] = {}
        for peer, parts in outgoing:
            if isinstance(peer, ReplicaPeer | Node):
                self._send_peer(peer, parts, shared)
            else:
                clients.append((peer, parts))
        super().send_all(clients)

    def _send_peer(self, replica_peer: ReplicaPeer | Node, parts: list[Frame], shared: dict[int, zmq.Frame]) -> None:
        whole: list[Frame | zmq.Frame] = []
        for part in parts:
            if len(part) <= COPY_BYTES_MAX:
                whole.append(part)
                continue
            frame = shared.get(id(part))
            if frame is None:  # The same bytes go to several members: libzmq counts references.
                frame = shared[id(part)] = zmq.Frame(part, copy=False)
            whole.append(frame)
        with contextlib.suppress(zmq.Again, _NoSocket):
            frames.send(self._connection(replica_peer), whole)

    def _connection(self, to: ReplicaPeer | Node) -> zmq.Socket[bytes]:
        replica_peer = self._replica_peers.get(to)
        if replica_peer is None:
            if len(self._replica_peers) >= REPLICA_PEERS_MAX:
                oldest = next(iter(self._replica_peers))
                self._replica_peers.pop(oldest).close(linger=0)
            address = to.address
            replica_peer = self._replica_peers[to] = self._open()
            replica_peer.linger = 0
            replica_peer.sndhwm = REPLICA_QUEUE_MAX if isinstance(to, ReplicaPeer) else NODE_QUEUE_MAX
            replica_peer.ipv6 = "[" in address
            replica_peer.immediate = isinstance(to, ReplicaPeer)  # Nothing is kept for a member who is not there.
            replica_peer.setsockopt(zmq.RECONNECT_IVL, 20)
            replica_peer.setsockopt(zmq.RECONNECT_IVL_MAX, 200)
            replica_peer.setsockopt(zmq.HEARTBEAT_IVL, 1_000)
            replica_peer.setsockopt(zmq.HEARTBEAT_TIMEOUT, 3_000)
            if self._peer_options is not None:
                self._peer_options.apply(replica_peer)
            replica_peer.connect(address)
        return replica_peer

    def _open(self) -> zmq.Socket[bytes]:
        try:
            with spare():
                return self._context.socket(zmq.DEALER)
        except zmq.ZMQError as error:
            raise _NoSocket from error

    def close(self, linger_ms: int) -> None:
        for replica_peer in self._replica_peers.values():
            replica_peer.close(linger=linger_ms)
        self._replica_peers.clear()
        super().close(linger_ms)
