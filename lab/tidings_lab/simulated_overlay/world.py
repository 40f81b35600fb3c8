"""The world of an overlay: nodes, virtual time, and a network that delays, loses, cuts and breaks.

Events happen one after another in the order of their times and, at the same time, in the order in which they were
planned. Randomness comes from one seeded source, and nothing depends on the order of a set or on `hash()`, so a seed
replays a run exactly.

The network is not orderly: two messages between the same nodes may overtake each other. What is sent to a
node that is down is answered by a broken connection (`PeerDown`) one latency later; what is sent across a cut, or
lost, is just gone.

The world can play the failure detector itself: a stack built with `outside=WATCHING` leaves `Watch` and `Unwatch`
to it. It then tells exactly what heartbeats would have found out (a watched peer that is down, cut off, or does not
watch back), after `silence_ms`, without sending a single beat; a crash is told at once, as a kernel closes
the connections of a process that died.
"""

from __future__ import annotations

import gc
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import repeat
from typing import Any, TypeVar

import msgspec

from tidings.protocols.heartbeat import Unwatch, Watch
from tidings.protocols.stack import (
    Ask,
    CancelTimer,
    Effect,
    Message,
    NodeId,
    Notification,
    Notify,
    PeerDown,
    Request,
    Requested,
    Send,
    SetTimer,
    Stack,
    Timer,
    TimerFired,
)
from tidings.simulator.world.trace import Trace
from tidings_lab.simulated_overlay.agenda import Agenda, Entry
from tidings_lab.simulated_overlay.latency import TABLE_BITS, Latency, Uniform
from tidings_lab.simulated_overlay.rng import Rng

WATCHING = (Watch, Unwatch)
"""The requests that the world can serve."""

MESSAGE, TIMER, DOWN, CALL = range(4)


class NetworkModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the network behaves when nobody has cut it."""

    latency: Latency = Uniform()
    """From node to node. Half of it is the line of each of the two, drawn once for each life of a node."""
    jitter_ms: float = 5.0
    """Every message takes up to this much longer, by lot: messages may overtake each other."""
    loss: float = 0.0
    """The share of messages that never arrive."""
    silence_ms: int = 5_000
    """How long a watched peer is silent before it is suspected."""
    encode: bool = False
    """True sends every message through its bytes, so that a codec's bugs show. For small worlds: it is slow."""


class Node:
    """One life of a node."""

    __slots__ = ("alive", "line_us", "name", "number", "stack", "started_us", "timers", "watches")

    def __init__(self, number: int, name: NodeId, stack: Stack, started_us: int, line_us: int) -> None:
        self.number = number
        """Tells this life from all others of any node."""
        self.name = name
        self.stack = stack
        self.alive = True
        self.started_us = started_us
        self.line_us = line_us
        """How long a message takes to or from this node, to the middle of the network."""
        self.timers: dict[Timer, Entry] = {}
        """Each timer that is set, with the entry that fires it: an older entry of the same timer fires nothing."""
        self.watches: dict[NodeId, int] = {}
        """Since when a watched peer may have been silent, in microseconds."""


AnyMessage = TypeVar("AnyMessage", bound=Message)
AnyNotification = TypeVar("AnyNotification", bound=Notification)


class World:
    """All nodes and the time they share."""

    def __init__(self, seed: int, network: NetworkModel | None = None, trace: bool = False) -> None:
        self.network = network or NetworkModel()
        self.random = Rng(seed)
        self.now_us = 0
        self.nodes: dict[NodeId, Node] = {}
        """The current or last life of each node."""
        self.trace = Trace() if trace else None
        self.lives = 0
        self.delivered = 0
        """Messages that reached a live node."""
        self.sent: defaultdict[type[Message], int] = defaultdict(int)
        """Messages sent, by type; a message to three peers is three."""
        self._live: list[NodeId] = []
        self._places: dict[NodeId, int] = {}
        """Where each live node stands in that list."""
        self._observers: dict[type[Notification], list[Callable[..., None]]] = {}
        self._agenda = Agenda()
        self._lines_us = [delay_us // 2 for delay_us in self.network.latency.table_us()]
        jitters_us = Uniform(0.0, self.network.jitter_ms).table_us()
        self._jitters_us = map(jitters_us.__getitem__, map(self.random.getrandbits, repeat(TABLE_BITS)))
        """Draws, one after another, without end."""
        self._silence_us = self.network.silence_ms * 1000
        self._sides: dict[NodeId, int] | None = None
        self._rough = self.network.loss > 0
        """Whether a message may fail to get through to a live node."""
        self._decoder: msgspec.msgpack.Decoder[Any] | None = None

    @property
    def now_ms(self) -> int:
        return self.now_us // 1000

    @property
    def live(self) -> list[NodeId]:
        """The nodes that are up, in the order in which they came, but for who took the place of one that crashed."""
        return list(self._live)

    def draw_live(self, count: int) -> list[NodeId]:
        """Some of the nodes that are up; fewer if there are not so many. Its cost does not grow with the world."""
        return self.random.sample(self._live, min(count, len(self._live)))

    def in_flight(self, kind: type[AnyMessage]) -> list[tuple[NodeId, AnyMessage]]:
        """The messages of a type that are under way to live nodes, with their senders; the next to arrive is first."""
        return [
            (sender, message)
            for _, what, target, sender, message in self._agenda.entries()
            if what == MESSAGE and target.alive and isinstance(message, kind)
        ]

    def observe(self, kind: type[AnyNotification], observer: Callable[[int, Node, AnyNotification], None]) -> None:
        """From now on an observer is told of what nodes notify their applications of, with the time in microseconds."""
        self._observers.setdefault(kind, []).append(observer)

    # What a scenario does to the world.

    def start(self, name: NodeId, stack: Stack) -> None:
        """A node comes up, for the first time or again."""
        assert name not in self.nodes or not self.nodes[name].alive, f"{name} is up already."
        if self.network.encode and self._decoder is None:
            self._decoder = msgspec.msgpack.Decoder(_union(stack.messages))
        self.lives += 1
        line_us = self._lines_us[self.random.getrandbits(TABLE_BITS)]
        node = self.nodes[name] = Node(self.lives, name, stack, self.now_us, line_us)
        self._places[name] = len(self._live)
        self._live.append(name)
        self._note(name, "starts")
        self._apply(node, stack.start(self.now_ms))

    def crash(self, name: NodeId) -> None:
        """A node is gone at once, with all that it knew."""
        node = self.nodes[name]
        assert node.alive, f"{name} is down already."
        node.alive = False
        last = self._live.pop()
        place = self._places.pop(name)
        if last != name:
            self._live[place] = last
            self._places[last] = place
        self._note(name, "crashes")
        for peer in node.watches:
            other = self.nodes.get(peer)
            if other is not None and name in other.watches and not self._is_cut(peer, name):
                self._plan(self._delay_us(node, other), DOWN, other, name)

    def request(self, name: NodeId, request: Request) -> None:
        """The application of a live node asks its stack for something."""
        node = self.nodes[name]
        assert node.alive, f"{name} is down."
        self._note(name, f"is asked for {request!r}")
        self._apply(node, node.stack.handle(Requested(self.now_ms, request)))

    def cut(self, sides: Mapping[NodeId, int]) -> None:
        """From now on nodes reach only those of their own side; who is not named is on side 0."""
        self._sides = dict(sides)
        self._rough = True
        self._note("network", "is cut")
        for node in self.nodes.values():
            for peer in node.watches:
                if self._is_cut(node.name, peer):
                    self._suspect_later(node, peer)

    def heal(self) -> None:
        """Everybody reaches everybody again."""
        self._sides = None
        self._rough = self.network.loss > 0
        self._note("network", "is whole")

    def at(self, at_ms: int, what: Callable[[], None]) -> None:
        """Plans something for a time to come."""
        assert at_ms * 1000 >= self.now_us
        self._plan(at_ms * 1000 - self.now_us, CALL, what)

    def after(self, delay_ms: int, what: Callable[[], None]) -> None:
        self.after_us(delay_ms * 1000, what)

    def after_us(self, delay_us: int, what: Callable[[], None]) -> None:
        self._plan(delay_us, CALL, what)

    # What happens by itself.

    def run_until(self, until_ms: int) -> None:
        """Lets everything happen up to a time."""
        until_us = until_ms * 1000
        with without_collection():
            while entries := self._agenda.open(until_us):
                now_ms = entries[-1][0] // 1000
                while entries:
                    entry = entries.pop()
                    at_us, kind, target, first, second = entry
                    if at_us > until_us:
                        self._agenda.put_back(entry)
                        break
                    self.now_us = at_us
                    if kind != MESSAGE:
                        self._happen(entry)
                    elif target.alive:
                        self.delivered += 1
                        if self.trace is not None:
                            self._note(target.name, f"<- {first} {second!r}")
                        effects = target.stack.receive(now_ms, first, second)
                        if effects:
                            self._apply(target, effects)
                    else:
                        self._bounce(first, target.name)
        self.now_us = max(self.now_us, until_us)

    def run_for(self, span_ms: int) -> None:
        self.run_until(self.now_ms + span_ms)

    def _happen(self, entry: Entry) -> None:
        """Anything but a message."""
        _, kind, target, first, _ = entry
        if kind == TIMER:
            if target.alive and target.timers.get(first) is entry:
                del target.timers[first]
                if self.trace is not None:
                    self._note(target.name, repr(TimerFired(self.now_ms, first)))
                self._apply(target, target.stack.fire(self.now_ms, first))
        elif kind == DOWN:
            if target.alive:
                target.watches.pop(first, None)
                event = PeerDown(self.now_ms, first)
                if self.trace is not None:
                    self._note(target.name, repr(event))
                self._apply(target, target.stack.handle(event))
        else:
            target()

    def _apply(self, node: Node, effects: list[Effect]) -> None:
        for effect in effects:
            kind = type(effect)
            if kind is Send:
                self._send(node, effect.peers, effect.message)  # type: ignore[attr-defined]
            elif kind is SetTimer:
                delay_us = effect.delay_ms * 1000  # type: ignore[attr-defined]
                node.timers[effect.timer] = self._plan(delay_us, TIMER, node, effect.timer)  # type: ignore[attr-defined]
            elif kind is CancelTimer:
                node.timers.pop(effect.timer, None)  # type: ignore[attr-defined]
            elif kind is Notify:
                notification = effect.notification  # type: ignore[attr-defined]
                for observer in self._observers.get(type(notification), ()):
                    observer(self.now_us, node, notification)
            elif kind is Ask:
                self._serve(node, effect.request)  # type: ignore[attr-defined]
            else:
                raise AssertionError(f"A stack must not hand out {effect!r}.")

    def _send(self, node: Node, peers: tuple[NodeId, ...], message: Message) -> None:
        self.sent[type(message)] += len(peers)
        if self._rough:
            peers = self._survivors(node.name, peers)
        if self._decoder is not None:
            message = self._decoder.decode(msgspec.msgpack.encode(message))
        nodes, agenda, jitters_us = self.nodes, self._agenda, self._jitters_us
        sender = node.name
        leaves_us = self.now_us + node.line_us
        for peer in peers:
            target = nodes.get(peer)
            if target is not None:
                arrives_us = leaves_us + target.line_us + next(jitters_us)
                agenda[arrives_us // 1000].append((arrives_us, MESSAGE, target, sender, message))
            else:
                self._bounce(sender, peer)

    def _survivors(self, sender: NodeId, peers: tuple[NodeId, ...]) -> tuple[NodeId, ...]:
        """Those that a message gets through to, as far as loss and cuts decide."""
        loss, draw = self.network.loss, self.random.random
        return tuple([peer for peer in peers if not (loss and draw() < loss) and not self._is_cut(sender, peer)])

    def _bounce(self, sender: NodeId, peer: NodeId) -> None:
        """A connection to a node that is down cannot be made, or breaks: the sender notices."""
        if not self._is_cut(sender, peer):
            node = self.nodes[sender]
            self._plan(self._delay_us(node, node), DOWN, node, peer)

    # The failure detector that the world plays.

    def _serve(self, node: Node, request: Request) -> None:
        match request:
            case Watch(peer):
                self._suspect_later(node, peer)
            case Unwatch(peer):
                node.watches.pop(peer, None)
                other = self.nodes.get(peer)
                if other is not None and node.name in other.watches:
                    self._suspect_later(other, node.name)
            case _:
                raise AssertionError(f"The world does not serve {request!r}.")

    def _suspect_later(self, node: Node, peer: NodeId) -> None:
        """A peer may be silent from now on: unless it turns out to be linked, it is suspected in time."""
        since_us = node.watches[peer] = self.now_us

        def check() -> None:
            if node.alive and node.watches.get(peer) == since_us and not self._is_linked(node.name, peer):
                self._plan(0, DOWN, node, peer)

        self._plan(self._silence_us, CALL, check)

    def _is_linked(self, name: NodeId, peer: NodeId) -> bool:
        """Whether a peer would beat a node: it is up, watches it, and is not cut off."""
        other = self.nodes.get(peer)
        return other is not None and other.alive and name in other.watches and not self._is_cut(name, peer)

    def _is_cut(self, one: NodeId, other: NodeId) -> bool:
        sides = self._sides
        return sides is not None and sides.get(one, 0) != sides.get(other, 0)

    def _delay_us(self, one: Node, other: Node) -> int:
        return one.line_us + other.line_us + next(self._jitters_us)

    def _plan(self, delay_us: int, kind: int, target: Any, first: Any = None) -> Entry:
        at_us = self.now_us + delay_us
        entry = (at_us, kind, target, first, None)
        self._agenda[at_us // 1000].append(entry)
        return entry

    def _note(self, process: str, what: str) -> None:
        if self.trace is not None:
            self.trace.add(self.now_us, process, what)


def _union(kinds: tuple[type, ...]) -> Any:
    union: Any = kinds[0]
    for kind in kinds[1:]:
        union = union | kind
    return union


@contextmanager
def without_collection() -> Iterator[None]:
    """Millions of live objects and hardly a cycle: looking for garbage again and again would take much of the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
