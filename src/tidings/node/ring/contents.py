"""Bodies go to each node once, however many clients read them there.

The picture: a newspaper is printed once and sent by the bundle; what every subscriber's own letter says is only which
pages are meant. The owner's half, the `Caster`, looks at the deliveries of one commit: bodies that go to clients at two
or more nodes it *casts*, over the topic's multicast between virtual nodes and straight to the nodes of its own group.
Each of these clients' deliveries is then `Shown`: its header, with references to the bodies. The proxy's half, the
`BodyCache`, keeps what arrives for a while and puts header and bodies together.

A cast is fast and forgets, so a body may be missing. Then the delivery waits, and everything for that client behind it,
since the order is what a client relies on. Soon the body is asked for at its owner, who has it in its journal; at last
the connection is given up and the client comes again. An owner that is asked sends bodies to that node's clients with
their deliveries for `MISSED_MS`: the way over the virtual nodes seems to be broken.

Nothing here is more than a faster way for bodies: what is delivered, to whom and in which order is decided before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from tidings.errors import ProtocolError, StorageDamaged, Unavailable
from tidings.node.ring.body_cache import FETCH_MAX
from tidings.node.ring.leading import Leading
from tidings.node.ring.proxy import Proxy
from tidings.node.ring.roles import RingNode
from tidings.protocols.broker.machine import Machine
from tidings.protocols.broker.messages import Delivery
from tidings.protocols.broker.topics import Place
from tidings.protocols.effects import Effect, Forward
from tidings.protocols.ring.messages import Bodies, FetchBodies, Interest, Ref, Shown
from tidings.wire.codec import Frame
from tidings.wire.ring import Cast, RemoteClient, decode_cast, encode_cast

CAST_BYTES_MAX = 48 * 1024
"""A larger body goes to each reader by itself; smaller ones share a cast up to this. Gossip takes 64 KiB at most."""
CAST_BODIES_MAX = 32
MISSED_MS = 2_000
MISSED_MAX = 10_000


class Show(Effect, frozen=True):
    """A delivery of which some bodies, or all, are cast."""

    remote_client: RemoteClient
    message: Delivery
    refs: tuple[Ref | None, ...]
    places: tuple[Place, ...]
    """The bodies that are not."""


class Caster:
    """The owner's half."""

    def __init__(
        self,
        address: str,
        read: Callable[[Place], Frame],
        hand: Callable[[int, str, Bodies, list[Frame]], None],
        publish: Callable[[int, str, bytes], bool],
    ) -> None:
        self._address = address
        self._read = read
        self._hand = hand
        """Sends bodies to a node of our own group."""
        self._publish = publish
        """Sends a payload to the virtual nodes that want a topic; False if that cannot be done."""
        self._missed: dict[str, int] = {}
        """Nodes that had to ask for a body, and when they last did."""

    def plan(
        self, now_ms: int, machine: Machine, find_replica_peers: Callable[[], Sequence[str]], effects: list[Effect]
    ) -> list[Effect]:
        """Casts what several nodes need, and says what is left to be done. The replica peers are the nodes of our
        group."""
        deliveries: list[tuple[int, RemoteClient, Delivery, tuple[Place, ...]]] = []
        for number, effect in enumerate(effects):
            match effect:
                case Forward(RemoteClient() as remote_client, Delivery() as delivery, places):
                    deliveries.append((number, remote_client, delivery, places))
        if len({remote_client.proxy for _, remote_client, _, _ in deliveries}) < 2:
            return effects
        named: dict[tuple[str, tuple[Place, ...]], tuple[Ref | None, ...]] = {}
        shared: dict[Ref, dict[str, None]] = {}
        for _, remote_client, delivery, places in deliveries:
            if (delivery.topic, places) not in named:
                named[delivery.topic, places] = _refs(machine, delivery, places)
            for ref in filter(None, named[delivery.topic, places]):
                shared.setdefault(ref, {})[remote_client.proxy] = None
        try:
            reached = self._cast(
                now_ms, find_replica_peers(), {ref: proxies for ref, proxies in shared.items() if len(proxies) > 1}
            )
        except (Unavailable, StorageDamaged):
            # The storage server is away: these deliveries are lost, and asked for again. Or something is damaged: each
            # delivery is then seen to by itself.
            return effects
        planned = list(effects)
        for number, remote_client, delivery, places in deliveries:
            refs = [
                ref if ref is not None and remote_client.proxy in reached.get(ref, ()) else None
                for ref in named[delivery.topic, places]
            ]
            if any(refs):
                left = tuple([place for place, ref in zip(places, refs, strict=True) if ref is None])
                planned[number] = Show(remote_client, delivery, tuple(refs), left)
        return planned

    def _cast(
        self, now_ms: int, replica_peers: Sequence[str], shared: dict[Ref, dict[str, None]]
    ) -> dict[Ref, dict[str, None]]:
        """Sends bodies once to each node that needs them; which nodes will have which. This node needs none sent."""
        reached: dict[Ref, dict[str, None]] = {ref: {} for ref in shared}
        bodies = {ref: bytes(self._read(Place(ref.address, ref.size_bytes))) for ref in shared}
        own: dict[str, list[Ref]] = {}
        far: dict[str, list[Ref]] = {}
        for ref, proxies in shared.items():
            for proxy in proxies:
                if proxy in replica_peers and proxy != self._address:
                    own.setdefault(proxy, []).append(ref)
            if any(self._is_reached(now_ms, replica_peers, proxy) for proxy in proxies):
                far.setdefault(ref.topic, []).append(ref)
        for proxy, refs in own.items():
            for piece in _pieces(refs):
                self._hand(now_ms, proxy, Bodies(self._address, piece), [bodies[ref] for ref in piece])
                for ref in piece:
                    reached[ref][proxy] = None
        for topic, refs in far.items():
            for piece in _pieces(refs):
                cast = Cast(self._address, piece, tuple([bodies[ref] for ref in piece]))
                if self._publish(now_ms, topic, encode_cast(cast)):
                    for ref in piece:
                        proxies = shared[ref]
                        reached[ref].update(
                            {each: None for each in proxies if self._is_reached(now_ms, replica_peers, each)}
                        )
        return reached

    def _is_reached(self, now_ms: int, replica_peers: Sequence[str], proxy: str) -> bool:
        """Whether a node gets what its virtual node gets."""
        return proxy not in replica_peers and now_ms - self._missed.get(proxy, -MISSED_MS) >= MISSED_MS

    def fetch(self, now_ms: int, machine: Machine, proxy: str, refs: Sequence[Ref]) -> tuple[Bodies, list[Frame]]:
        """Bodies that did not come to a node, as far as they are stored batches; anything else is not read.

        A batch that was copied elsewhere in the meantime is not found. That happens to old ones only.
        """
        self._missed.pop(proxy, None)
        self._missed[proxy] = now_ms
        if len(self._missed) > MISSED_MAX:
            del self._missed[next(iter(self._missed))]
        found = tuple([ref for ref in refs[:FETCH_MAX] if _is_stored(machine, ref)])
        try:
            frames = [self._read(Place(ref.address, ref.size_bytes)) for ref in found]
        except (Unavailable, StorageDamaged):
            return Bodies(self._address, ()), []
        return Bodies(self._address, found), frames


class ReadingNode(RingNode, Protocol):
    """A node whose clients read: by way of its proxy, and of its group's virtual node while it leads."""

    proxy: Proxy
    leading: Leading | None

    def after_ring(self, now_ms: int) -> None:
        """Sends what the virtual node has to say."""


class Contents:
    """What one node does about bodies: as an owner, as the virtual node of its group, and as a proxy."""

    def __init__(self, node: ReadingNode) -> None:
        self._node = node
        self._caster = Caster(node.address, node.engine.batches.body, self._hand, self._publish)

    def plan(self, now_ms: int, effects: list[Effect]) -> list[Effect]:
        """Casts what several nodes need, and says what is left to be done."""
        if len(effects) < 2:
            return effects
        return self._caster.plan(now_ms, self._node.engine.broker.machine, self._node.group.addresses, effects)

    def receive(
        self,
        now_ms: int,
        sender: str,
        message: Shown | Bodies | FetchBodies | Interest,
        frames: Sequence[Frame],
    ) -> None:
        """What another node says of bodies."""
        node = self._node
        match message:
            case Shown():
                node.proxy.on_shown(now_ms, sender, message, frames)
            case Bodies():
                node.proxy.body_cache.on_bodies(now_ms, message, frames)
            case FetchBodies(refs):
                node.send_node(sender, *self._caster.fetch(now_ms, node.engine.broker.machine, sender, refs))
            case Interest(topics):
                self.learn_interest(now_ms, sender, topics)

    def fetch(self, owner: str, refs: tuple[Ref, ...]) -> None:
        self._node.send_node(owner, FetchBodies(refs))

    def on_cast(self, now_ms: int, topic: str, payload: bytes) -> None:
        """Bodies have come to our virtual node, for the nodes of our group that want them. Our own went there
        straight."""
        node = self._node
        try:
            cast = decode_cast(payload)
        except ProtocolError:
            return
        if node.leading is not None and cast.owner != node.address:
            for proxy in node.leading.interests.proxies(topic):
                self._hand(now_ms, proxy, Bodies(cast.owner, cast.refs), cast.bodies)

    def _hand(self, now_ms: int, address: str, bodies: Bodies, frames: Sequence[Frame]) -> None:
        if address == self._node.address:
            self._node.proxy.body_cache.on_bodies(now_ms, bodies, frames)
        else:
            self._node.send_node(address, bodies, frames)

    def _publish(self, now_ms: int, topic: str, payload: bytes) -> bool:
        leading = self._node.leading
        if leading is None or not leading.publish(topic, payload):
            return False
        self._node.after_ring(now_ms)
        return True

    # Who reads what.

    def tell_interest(self, now_ms: int, leader: str, topics: tuple[str, ...]) -> None:
        if leader == self._node.address:
            self.learn_interest(now_ms, leader, topics)
        else:
            self._node.send_node(leader, Interest(topics))

    def learn_interest(self, now_ms: int, proxy: str, topics: tuple[str, ...]) -> None:
        """Clients of a node read these topics; that matters to the leader of its group."""
        node = self._node
        if node.leading is not None and proxy in node.group.addresses():
            node.leading.learn_interest(now_ms, proxy, topics)
            node.after_ring(now_ms)


def _refs(machine: Machine, delivery: Delivery, places: tuple[Place, ...]) -> tuple[Ref | None, ...]:
    """What the bodies of a delivery are called; nothing for those that cannot be cast."""
    topic = machine.topics.get(delivery.topic)
    if topic is None or not topic.first_offset <= delivery.first_offset < topic.next_offset:
        return (None,) * len(places)
    entry = topic.find(delivery.first_offset)
    refs: list[Ref | None] = []
    for place, offset in zip(places, topic.offsets[entry : entry + len(places)], strict=False):
        ref = Ref(delivery.topic, offset, place.address, place.size_bytes)
        is_whole = place.kept is None and place.size_bytes <= CAST_BYTES_MAX
        refs.append(ref if is_whole and _is_stored(machine, ref) else None)
    return (*refs, *(None,) * (len(places) - len(refs)))


def _is_stored(machine: Machine, ref: Ref) -> bool:
    """Whether a reference is to a batch that a topic has, all of it."""
    topic = machine.topics.get(ref.topic)
    if topic is None or not topic.first_offset <= ref.offset < topic.next_offset:
        return False
    entry = topic.find(ref.offset)
    return topic.offsets[entry] == ref.offset and topic.place(entry) == Place(ref.address, ref.size_bytes)


def _pieces(refs: list[Ref]) -> Iterator[tuple[Ref, ...]]:
    """As much at a time as one cast takes."""
    piece: list[Ref] = []
    size = 0
    for ref in refs:
        if piece and (len(piece) >= CAST_BODIES_MAX or size + ref.size_bytes > CAST_BYTES_MAX):
            yield tuple(piece)
            piece, size = [], 0
        piece.append(ref)
        size += ref.size_bytes
    if piece:
        yield tuple(piece)
