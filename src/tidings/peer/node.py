"""One node: a stack of protocols, its sockets and a clock, in one loop and one thread.

The loop waits for whatever comes first: a message, a broken connection, a timer, a signal. Each becomes an event for
the stack, and what the stack wants done is done before the next event. Nothing here decides anything about the
protocols.

A message that cannot be read, or that a layer refuses, is dropped and counted; a broken invariant ends the process.

When it is told to stop, a node ends its subscriptions, which prunes it from its trees, waits a while until what it
published is safe with others, and closes its connections. That is a goodbye: anyone who was connected to it notices at
once.
"""

from __future__ import annotations

import gc
import logging
import random
import signal
from collections import Counter
from collections.abc import Callable
from types import FrameType

from tidings.errors import InvalidRequest, ProtocolError, TidingsError
from tidings.node.clock import Clock
from tidings.peer.desk import Desk
from tidings.peer.stacks import LayerSettings, build_stack, layer_of
from tidings.peer.view import is_joined, look, subscriptions_of, waiting_in
from tidings.protocols.chord import Isolated
from tidings.protocols.chord.founding import Founded
from tidings.protocols.hyparview import NeighborDown, NeighborUp
from tidings.protocols.pubsub import Arrived, Lost, Rejected, Unsubscribe
from tidings.protocols.stack import (
    CancelTimer,
    Effect,
    Event,
    Message,
    Notification,
    Notify,
    PeerDown,
    Received,
    Request,
    Requested,
    Send,
    SetTimer,
    TimerFired,
)
from tidings.protocols.timers import Timers
from tidings.settings import PeerSettings
from tidings.transport.curve import is_loopback
from tidings.transport.peers import FromClient, FromPeer, PeerSockets
from tidings.wire.codec import encode
from tidings.wire.door import NodeView
from tidings.wire.peers import MessageDecoder, check_address

IDLE_MS = 1_000
"""The longest wait: how late an unused connection is noticed."""

_log = logging.getLogger("tidings.peer")


def check_contacts(settings: PeerSettings) -> None:
    """InvalidRequest for a contact that could never be joined."""
    for contact in settings.join:
        try:
            check_address(contact)
        except ProtocolError as error:
            raise InvalidRequest(f"This node cannot join by {contact!r}: {error}") from error
        if settings.keys is None and not is_loopback(contact):
            raise InvalidRequest(
                f"{contact} is on another machine, and without keys a node connects only to its own: make keys with "
                "`tidings keys DIR` and give --keys DIR."
            )


class PeerNode:
    """A node of an overlay. All of it belongs to the thread that calls `run`, except `stop`."""

    def __init__(self, settings: PeerSettings, layers: LayerSettings, clock: Callable[[], int] | None = None) -> None:
        check_contacts(settings)
        self._settings = settings
        self._clock = clock or Clock()
        self.life = self._clock()
        self._sockets = PeerSockets(settings, self.life)
        self.address = self._sockets.address
        self.stack = build_stack(settings, layers, self.address, random.Random())
        self._decoder = MessageDecoder(self.stack.messages)
        self._timers = Timers()
        self._desk = Desk(settings, self._ask, self.look)
        self._stop = False
        self.sent: Counter[type[Message]] = Counter()
        self.received: Counter[type[Message]] = Counter()
        self._complaints: Counter[str] = Counter()
        self._absences: Counter[str] = Counter()
        """How often each contact was not there."""

    def stop(self) -> None:
        """Asks the node to leave; may be called from any thread or signal handler."""
        self._stop = True
        self._sockets.wake()

    @property
    def wake_descriptor(self) -> int:
        return self._sockets.wake_descriptor

    def run(self) -> None:
        """Takes part in the overlay until somebody stops it."""
        try:
            self._apply(self.life, self.stack.start(self.life))
            while not self._stop:
                self._turn()
            self._leave()
        finally:
            self._sockets.close()

    def _turn(self) -> None:
        """Waits for something to happen, and lets it happen."""
        sockets = self._sockets
        next_ms = self._timers.next_ms
        now_ms = self._clock()
        sockets.wait(IDLE_MS if next_ms is None else max(0, min(IDLE_MS, next_ms - now_ms)))
        now_ms = self._clock()
        self._on_lost(now_ms)  # First: a new life of a peer may have sent something already.
        for arrival in sockets.receive(self._settings.drained_messages_max):
            if isinstance(arrival, FromPeer):
                self._on_message(now_ms, arrival)
            else:
                self._on_command(arrival)
        while (timer := self._timers.due(now_ms)) is not None:
            self._handle(TimerFired(now_ms, timer))
        self._on_lost(now_ms)
        sockets.tend(now_ms)

    def _on_lost(self, now_ms: int) -> None:
        while lost := self._sockets.lost():  # What the layers send then may find others lost.
            for peer in lost:
                self._say_gone(peer)
                self._handle(PeerDown(now_ms, peer))

    def _say_gone(self, peer: str) -> None:
        if peer not in self._settings.join:
            _log.info("%s is gone", peer)
        elif self._is_worth_a_line(self._absences, peer):
            _log.warning("no answer from %s, through which this node joins: trying again", peer)

    def _on_message(self, now_ms: int, arrival: FromPeer) -> None:
        if arrival.is_reborn:
            _log.info("%s was restarted", arrival.sender)
            self._handle(PeerDown(now_ms, arrival.sender))
        try:
            message = self._decoder.decode(arrival.frame)
        except ProtocolError as error:
            self._complain("a message that cannot be read", arrival.sender, error)
            return
        self.received[type(message)] += 1
        try:
            self._handle(Received(now_ms, arrival.sender, message))
        except TidingsError as error:
            self._complain("a message that was not accepted", arrival.sender, error)

    def _on_command(self, arrival: FromClient) -> None:
        answer = self._desk.serve(arrival.frame)
        self._sockets.answer(arrival.client, encode(answer))

    def _complain(self, reason: str, sender: str, error: TidingsError) -> None:
        if self._is_worth_a_line(self._complaints, reason):
            _log.warning("%s from %s was dropped (%d so far): %s", reason, sender, self._complaints[reason], error)

    @staticmethod
    def _is_worth_a_line(counts: Counter[str], what: str) -> bool:
        """Counts it; it is said the first, the tenth, the hundredth time, so that a flood does not fill the log."""
        counts[what] += 1
        return str(counts[what]).strip("0") == "1"

    # What the stack wants.

    def _ask(self, request: Request) -> None:
        now_ms = self._clock()
        self._apply(now_ms, self.stack.handle(Requested(now_ms, request)))

    def _handle(self, event: Event) -> None:
        self._apply(event.now_ms, self.stack.handle(event))

    def _apply(self, now_ms: int, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Send(peers, message):
                    self.sent[type(message)] += len(peers)
                    self._sockets.send(now_ms, peers, encode(message))
                case SetTimer(timer, delay_ms):
                    self._timers.set(timer, now_ms + delay_ms)
                case CancelTimer(timer):
                    self._timers.cancel(timer)
                case Notify(notification):
                    self._on_news(notification)
                case _:
                    raise AssertionError(f"A stack must not hand out {effect!r}.")

    def _on_news(self, news: Notification) -> None:
        match news:
            case Arrived():
                self._desk.keep(news)
            case Lost(stream, count):
                self._desk.lost += count
                _log.warning("%d messages of %s are lost: nobody has them any more", count, stream)
            case Rejected(topic, reason):
                _log.warning("messages to %r were not taken: %s", topic, reason)
            case Founded(members):
                _log.info("the ring begins, with %d members", len(members))
            case Isolated():
                _log.warning("no successor is left: joining again")
            case NeighborUp(peer):
                _log.debug("%s is a neighbour", peer)
            case NeighborDown(peer):
                _log.debug("%s is no longer a neighbour", peer)

    def look(self) -> NodeView:
        """What this node sees."""
        sent: dict[str, dict[str, int]] = {}
        for kind, count in self.sent.items():
            sent.setdefault(layer_of(kind), {})[kind.__name__] = count
        received: Counter[str] = Counter()
        for kind, count in self.received.items():
            received[layer_of(kind)] += count
        return look(
            self.stack,
            NodeView(
                address=self.address,
                life=self.life,
                overlay=self._settings.overlay,
                joined=is_joined(self.stack),
                uptime_ms=self._clock() - self.life,
                subscriptions=subscriptions_of(self.stack),
                published=self._desk.published,
                waiting=waiting_in(self.stack),
                arrived=self._desk.arrived,
                lost=self._desk.lost,
                links=self._sockets.links,
                sent=sent,
                received=dict(received),
                refused=dict(self._sockets.refused + self._complaints),
            ),
        )

    def _leave(self) -> None:
        _log.info("leaving the overlay")
        self._desk.is_closing = True
        for topic in subscriptions_of(self.stack):
            self._ask(Unsubscribe(topic))
        until_ms = self._clock() + self._settings.stop_ms
        while (waiting := waiting_in(self.stack)) and self._clock() < until_ms:
            self._turn()
        if waiting:
            _log.warning("%d messages published here did not reach their topics' owners", waiting)


def serve(settings: PeerSettings, layers: LayerSettings, on_ready: Callable[[str], None]) -> None:
    """Runs a node until SIGTERM or SIGINT. `on_ready` gets its address."""
    node = PeerNode(settings, layers)

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        node.stop()

    signal.signal(signal.SIGTERM, on_signal)
    signal.signal(signal.SIGINT, on_signal)
    signal.set_wakeup_fd(node.wake_descriptor, warn_on_full_buffer=False)
    gc.freeze()
    on_ready(node.address)
    node.run()
