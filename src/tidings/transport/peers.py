"""The sockets of a node of an overlay: one door for everybody, and one connection to each peer it speaks to.

The door is a ROUTER bound at the node's address. Messages of peers and commands of clients come in there; answers to
clients go out there. To each peer that the node sends something it has a DEALER of its own, made when it is first
needed and closed when it has not been used for a while. So a connection carries messages one way, and who opened it
is who sends.

ZeroMQ reconnects by itself and says nothing about it, but the protocols must hear when a peer is gone: what was on
its way is lost, and the process behind the same address may be another one. So our DEALERs never reconnect
(RECONNECT_IVL = -1), and the socket's monitor tells when a connection ended or could not be made. A killed process is
noticed so in milliseconds, as the kernel closes its connections. ZMTP heartbeats end a connection to a machine that
fell silent. Both see no more than the other side's kernel and I/O thread: a process that hangs is noticed by the
protocols' own beats and questions.

What cannot be sent, or is not what it should be, is dropped and counted (`refused`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import zmq

from tidings.errors import InvalidRequest, ProtocolError, Unauthorized, Unavailable
from tidings.settings import PeerSettings
from tidings.transport import curve, frames
from tidings.transport.bell import Bell
from tidings.wire.peers import check_address, decode_header, encode_header

LINGER_MS = 1_000
"""What was handed to a connection that is closed in good order may still go out for this long."""

BROKEN = (
    zmq.EVENT_DISCONNECTED
    | zmq.EVENT_CLOSED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)

Client = bytes | tuple[bytes]
"""A DEALER's identity, or that of a REQ wrapped in a tuple: its frames have an empty one in front."""


class FromPeer(NamedTuple):
    """A message of a peer, not yet decoded."""

    sender: str
    is_reborn: bool
    """The sender is another process than the one that was known under its address."""
    frame: bytes


class FromClient(NamedTuple):
    """A command of a client, not yet decoded."""

    client: Client
    frame: bytes


class Link:
    """The connection to one peer."""

    __slots__ = ("monitor", "socket", "used_ms")

    def __init__(self, socket: zmq.Socket[bytes], monitor: zmq.Socket[bytes], used_ms: int) -> None:
        self.socket = socket
        self.monitor = monitor
        self.used_ms = used_ms

    def close(self, linger_ms: int) -> None:
        self.socket.disable_monitor()
        self.monitor.close(linger=0)
        self.socket.close(linger=linger_ms)


class PeerSockets:
    """All sockets of a node, for one thread."""

    def __init__(self, settings: PeerSettings, life: int) -> None:
        curve.check_bind(settings.bind, settings.keys)
        self._settings = settings
        self._links: dict[str, Link] = {}
        """The least recently used first."""
        self._lost: dict[str, None] = {}
        self._lives: dict[str, int] = {}
        self._speakers: dict[bytes, str] = {}
        """Whom each connection to the door speaks for."""
        self._numbers = 0
        self.refused: Counter[str] = Counter()
        """Frames that were dropped, by the reason."""
        self._context = zmq.Context()
        self._authenticator: curve.Authenticator | None = None
        self._door = self._context.socket(zmq.ROUTER)
        try:
            self._bind()
        except BaseException:
            self._close_door()
            raise
        self._header = encode_header(self.address, life)
        self._bell = Bell()
        self._poller = zmq.Poller()
        self._poller.register(self._door, zmq.POLLIN)
        self._poller.register(self._bell.ear, zmq.POLLIN)

    def _bind(self) -> None:
        settings, door = self._settings, self._door
        door.linger = 0
        door.maxmsgsize = settings.frame_bytes_max
        door.sndhwm = door.rcvhwm = settings.queued_messages_max
        door.ipv6 = "[" in settings.bind
        door.setsockopt(zmq.HEARTBEAT_IVL, settings.link_beat_ms)
        door.setsockopt(zmq.HEARTBEAT_TIMEOUT, settings.link_silence_ms_max)
        if settings.keys is not None:
            self._authenticator = curve.Authenticator(self._context, Path(settings.keys))
            curve.configure_server(door, Path(settings.keys))
        try:
            door.bind(settings.bind)
        except zmq.ZMQError as error:
            if error.errno == zmq.EADDRINUSE:
                raise Unavailable(
                    f"{settings.bind} is already in use by another process: stop it, or bind another address."
                ) from error
            raise InvalidRequest(f"{settings.bind!r} cannot be bound ({error}): give tcp://HOST:PORT.") from error
        bound = bytes(door.getsockopt(zmq.LAST_ENDPOINT)).rstrip(b"\0").decode()
        self.address = settings.address or bound
        host = self.address.rpartition(":")[0]
        if host in ("tcp://0.0.0.0", "tcp://[::]", "tcp://*"):
            raise InvalidRequest(
                f"Other nodes cannot connect to {self.address}: give --address one that they can reach."
            )
        try:
            check_address(self.address)
        except ProtocolError as error:
            raise InvalidRequest(str(error)) from error
        self._curve = None
        if settings.keys is not None:
            self._curve = curve.client_options(Path(settings.keys), self.address)

    # Waiting.

    @property
    def wake_descriptor(self) -> int:
        """Where a byte may be written to end a wait, by a signal handler for instance."""
        return self._bell.rope

    def wake(self) -> None:
        """Ends a wait; may be called from any thread, also when all is closed."""
        self._bell.ring()

    def wait(self, timeout_ms: int) -> None:
        """Waits until something has come, a connection has broken, or `wake` was called."""
        ready = dict(self._poller.poll(timeout_ms))
        if self._bell.ear in ready:
            self._bell.hush()
        if len(ready) > (self._door in ready) + (self._bell.ear in ready):
            for peer in [peer for peer, link in self._links.items() if link.monitor in ready]:
                self._lose(peer)

    # Peers.

    @property
    def links(self) -> int:
        return len(self._links)

    def send(self, now_ms: int, peers: Sequence[str], frame: bytes) -> None:
        """Sends a message to some peers without waiting. What cannot be sent is lost."""
        if len(frame) > self._settings.frame_bytes_max:
            self.refused["too large to send"] += len(peers)
            return
        for peer in peers:
            link = self._links.pop(peer, None) or self._connect(peer, now_ms)
            if link is None:
                continue
            self._links[peer] = link  # Behind all others: it was used last.
            link.used_ms = now_ms
            try:
                frames.send(link.socket, (self._header, frame))
            except zmq.Again:
                self.refused["the peer's queue is full"] += 1

    def _connect(self, peer: str, now_ms: int) -> Link | None:
        """A connection to a peer; None if there cannot be one, and then the peer is lost."""
        settings = self._settings
        try:
            check_address(peer)
            if settings.keys is None and not curve.is_loopback(peer):
                raise Unauthorized("without keys a node connects only to its own machine")
        except (ProtocolError, Unauthorized):
            self.refused["an address that may not be called"] += 1
            self._lost[peer] = None
            return None
        if len(self._links) >= settings.links_max:
            oldest = next(iter(self._links))
            self._disconnect(oldest, LINGER_MS)
        self._numbers += 1
        monitor_at = f"inproc://tidings.peer.{self._numbers}"
        dealer = self._context.socket(zmq.DEALER)
        monitor = self._context.socket(zmq.PAIR)
        link = Link(dealer, monitor, now_ms)
        try:
            # libzmq gives a connection that broke and must not reconnect up by itself, and by this option. With the
            # default, which is without a limit, what is queued there keeps the context from ending, however the socket
            # is closed later.
            dealer.linger = 0
            dealer.ipv6 = "[" in peer
            dealer.maxmsgsize = 1_024  # Nothing ever comes back on it.
            dealer.sndhwm = settings.queued_messages_max
            dealer.setsockopt(zmq.RECONNECT_IVL, -1)
            dealer.setsockopt(zmq.CONNECT_TIMEOUT, settings.connect_ms)
            dealer.setsockopt(zmq.HEARTBEAT_IVL, settings.link_beat_ms)
            dealer.setsockopt(zmq.HEARTBEAT_TIMEOUT, settings.link_silence_ms_max)
            if self._curve is not None:
                self._curve.apply(dealer)
            dealer.monitor(monitor_at, BROKEN)
            monitor.connect(monitor_at)
            dealer.connect(peer)
        except zmq.ZMQError:
            link.close(0)
            self.refused["an address that may not be called"] += 1
            self._lost[peer] = None
            return None
        self._poller.register(monitor, zmq.POLLIN)
        return link

    def _disconnect(self, peer: str, linger_ms: int) -> None:
        link = self._links.pop(peer)
        self._poller.unregister(link.monitor)
        link.close(linger_ms)

    def _lose(self, peer: str) -> None:
        self._disconnect(peer, 0)
        self._lives.pop(peer, None)
        self._lost[peer] = None

    def lost(self) -> list[str]:
        """The peers whose connection has broken, or could not be made, since this was last asked."""
        lost, self._lost = list(self._lost), {}
        return lost

    def tend(self, now_ms: int) -> None:
        """Closes connections that nobody uses."""
        earliest_ms = now_ms - self._settings.idle_ms
        while self._links:
            peer, link = next(iter(self._links.items()))
            if link.used_ms >= earliest_ms:
                return
            self._disconnect(peer, LINGER_MS)

    # The door.

    def receive(self, count_max: int) -> Iterator[FromPeer | FromClient]:
        """What has come to the door, up to a number."""
        for _ in range(count_max):
            try:
                identity, *parts = frames.receive(self._door)
            except zmq.Again:
                return
            if len(parts) == 1:
                yield FromClient(identity.bytes, parts[0].bytes)
            elif len(parts) == 2 and not len(parts[0]):
                yield FromClient((identity.bytes,), parts[1].bytes)
            elif len(parts) == 2:
                arrival = self._from_peer(identity.bytes, parts[0], parts[1])
                if arrival is not None:
                    yield arrival
            else:
                self.refused["neither a message nor a command"] += 1

    def _from_peer(self, identity: bytes, header: zmq.Frame, message: zmq.Frame) -> FromPeer | None:
        try:
            said = decode_header(header.bytes)
        except ProtocolError:
            self.refused["no header of a node"] += 1
            return None
        sender = said.sender
        if sender == self.address or self._speakers.setdefault(identity, sender) != sender:
            self.refused["a wrong sender"] += 1
            return None
        if self._curve is not None and curve.sender(header) != sender:
            self.refused["a sender with another's key"] += 1
            return None
        before = self._lives.pop(sender, said.life)
        self._lives[sender] = max(before, said.life)
        self._bound()
        if said.life < before:
            self.refused["a sender that has ended"] += 1
            return None
        if said.life > before and sender in self._links:
            self._disconnect(sender, 0)  # What waits there was for the process before.
        return FromPeer(sender, said.life > before, message.bytes)

    def _bound(self) -> None:
        """Forgets who has not been heard for longest, beyond the limit."""
        if len(self._lives) > self._settings.senders_max:
            del self._lives[next(iter(self._lives))]
        if len(self._speakers) > self._settings.senders_max:
            del self._speakers[next(iter(self._speakers))]

    def answer(self, client: Client, frame: bytes) -> None:
        """Answers a client; one that is gone, or does not read, misses it."""
        envelope = [client] if isinstance(client, bytes) else [client[0], b""]
        try:
            frames.send(self._door, [*envelope, frame])
        except zmq.Again:
            self.refused["the client's queue is full"] += 1

    # The end.

    def close(self) -> None:
        """Ends all connections; what was handed to them may still go out for a moment."""
        for peer in list(self._links):
            self._disconnect(peer, LINGER_MS)
        self._close_door()
        self._bell.close()

    def _close_door(self) -> None:
        self._door.close(linger=LINGER_MS)
        if self._authenticator is not None:
            self._authenticator.close()
        self._context.term()

    def __enter__(self) -> PeerSockets:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
