"""A stack of protocols: layers that talk only by requests, replies and notifications.

Picture an office building. A letter for another building goes out by the door (`Send`); an order goes down to the
floor that does such work (`Ask`); news goes up to anyone who subscribed to it (`Notify`); and everybody has an alarm
clock (`SetTimer`). No floor knows the others: each only declares the types that it handles and those that it listens
to, and the stack carries everything by its type. There is one queue, so no layer is ever entered twice at the same
time, and nothing needs a lock.

A layer is pure: time comes in with the event, randomness is handed in at construction, and what it wants done it
returns. The same stack runs in the simulator and on real sockets.

A layer that learns that a peer is gone without the transport's help (by its silence, say) returns `Suspect`; every
layer that listens to `PeerDown` then hears of it in the same words as if a connection had broken. A request that no
layer handles goes to the runtime if it was said to serve it (`outside`), and is refused otherwise.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import ClassVar, NoReturn, Protocol, TypeVar

import msgspec

from tidings.protocols.fields import Name

NodeId = Name
"""A node's address: "tcp://host:port", or a name in the simulator."""

STEPS_MAX = 100_000
"""Effects that one event may lead to inside a stack: layers that answer each other for ever are a bug."""


class Message(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """Across: to the same protocol on a peer."""


class Request(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """Down: a command to the layer that handles its type."""


class Notification(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """Up: a fact, for every layer that listens to its type and for the application."""


class Timer(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """Later: to the layer itself. Timers are the same timer when they are equal."""


class Event(msgspec.Struct, frozen=True, gc=False):
    """What a layer is told."""

    now_ms: int


class Received(Event, frozen=True):
    """A message came from a peer."""

    peer: NodeId
    message: Message


class TimerFired(Event, frozen=True):
    """A timer's time has come; it is no longer set."""

    timer: Timer


class Requested(Event, frozen=True):
    """A layer above, or the application, asks for something."""

    request: Request


class Notified(Event, frozen=True):
    """A layer below has news."""

    notification: Notification


class PeerDown(Event, frozen=True):
    """A connection to a peer broke or could not be made, or a layer suspects the peer."""

    peer: NodeId


class Effect(msgspec.Struct, frozen=True, gc=False):
    """What a layer wants done. Effects run in their order."""


class Send(Effect, frozen=True):
    """Send a message to some peers; it is encoded once."""

    peers: tuple[NodeId, ...]
    message: Message


class SetTimer(Effect, frozen=True):
    """Fire once, in `delay_ms`; an equal timer that is still set is set again."""

    timer: Timer
    delay_ms: int


class CancelTimer(Effect, frozen=True):
    """Do not fire; a timer that is not set may be cancelled."""

    timer: Timer


class Ask(Effect, frozen=True):
    """Hand a request to the layer that handles its type."""

    request: Request


class Notify(Effect, frozen=True):
    """Hand a notification to every layer that listens to its type, and to the application."""

    notification: Notification


class Suspect(Effect, frozen=True):
    """Tell every layer that listens to `PeerDown` that a peer is taken for gone."""

    peer: NodeId


_INSIDE = frozenset({Ask, Notify, Suspect})
"""Effects that may be for a layer of the stack. All others are for the runtime."""

_CONTENT: dict[type[Event], str] = {TimerFired: "timer", Requested: "request", Notified: "notification"}


class UnexpectedEvent(AssertionError):
    """A layer was handed what it did not declare: the layer or the stack has a bug."""

    def __init__(self, event: object) -> None:
        super().__init__(f"No handler was declared for {event!r}: add its type to the layer's handles or listens.")


class Layer(Protocol):
    """One protocol of a stack."""

    @property
    def handles(self) -> tuple[type, ...]:
        """The types of messages, requests and timers that are this layer's and nobody else's."""

    @property
    def listens(self) -> tuple[type, ...]:
        """The types of notifications that it wants to hear, and `PeerDown` if it does."""

    def start(self, now_ms: int) -> list[Effect]: ...

    def handle(self, event: Event) -> list[Effect]: ...


class Table:
    """A layer whose handlers stand in one table, `on`, by the type of what they handle; it declares what is in it.

    The handler of a message is called with the peer and the message; of anything else, with just that; of `PeerDown`,
    with the peer. Finding one costs the same for the first and the last of the table, which `match` does not.
    """

    __slots__ = ()

    on: ClassVar[Mapping[type, Callable[..., list[Effect]]]] = {}
    handles: ClassVar[tuple[type, ...]] = ()
    listens: ClassVar[tuple[type, ...]] = ()

    def __init_subclass__(cls) -> None:
        cls.handles = tuple(kind for kind in cls.on if issubclass(kind, Message | Request | Timer))
        cls.listens = tuple(kind for kind in cls.on if kind not in cls.handles)

    def handle(self, event: Event) -> list[Effect]:
        kind = type(event)
        if kind is Received:
            message = event.message  # type: ignore[attr-defined]
            handler = self.on.get(type(message))
            if handler is not None:
                return handler(self, event.peer, message)  # type: ignore[attr-defined]
        elif kind is PeerDown:
            handler = self.on.get(kind)
            if handler is not None:
                return handler(self, event.peer)  # type: ignore[attr-defined]
        else:
            what = getattr(event, _CONTENT[kind])
            handler = self.on.get(type(what))
            if handler is not None:
                return handler(self, what)
        raise UnexpectedEvent(event)


AnyLayer = TypeVar("AnyLayer")


class Stack:
    """Layers wired by the types they declare. They are given from the top to the bottom.

    >>> class Tick(Timer, frozen=True):
    ...     pass
    >>> class Clock:
    ...     handles = (Tick,)
    ...     listens = ()
    ...     def start(self, now_ms: int) -> list[Effect]:
    ...         return [SetTimer(Tick(), 100)]
    ...     def handle(self, event: Event) -> list[Effect]:
    ...         return [SetTimer(Tick(), 100)]
    >>> stack = Stack([Clock()])
    >>> stack.start(now_ms=0)
    [SetTimer(timer=Tick(), delay_ms=100)]
    """

    __slots__ = ("_listeners", "_routes", "layers", "outside")

    def __init__(self, layers: Sequence[Layer], outside: tuple[type, ...] = ()) -> None:
        self.layers = tuple(layers)
        self.outside = outside
        """Requests that the runtime serves itself: they come out as `Ask`."""
        declared = tuple(
            (type(layer), layer.handles, layer.listens, tuple(layer.on.items()) if isinstance(layer, Table) else ())
            for layer in self.layers
        )
        self._routes, self._listeners = _wire(declared, outside)

    @property
    def messages(self) -> tuple[type[Message], ...]:
        """The types of messages that may arrive: what a decoder has to know."""
        return tuple(kind for kind in self._routes if issubclass(kind, Message))

    def layer(self, kind: type[AnyLayer]) -> AnyLayer:
        """The layer of a class."""
        for layer in self.layers:
            if isinstance(layer, kind):
                return layer
        raise LookupError(f"The stack has no {kind.__name__}.")

    def start(self, now_ms: int) -> list[Effect]:
        """Starts every layer, the lowest first; what comes out is for the runtime."""
        return self._carry(now_ms, [effect for layer in reversed(self.layers) for effect in layer.start(now_ms)])

    def handle(self, event: Event) -> list[Effect]:
        """Hands an event to its layer, and carries what follows inside the stack.

        What comes out is for the runtime: `Send`, `SetTimer`, `CancelTimer`, `Notify` for the application, and `Ask`
        for what it serves itself.
        """
        kind = type(event)
        if kind is Received:
            return self.receive(event.now_ms, event.peer, event.message)  # type: ignore[attr-defined]
        if kind is TimerFired:
            return self.fire(event.now_ms, event.timer)  # type: ignore[attr-defined]
        if kind is PeerDown:
            effects = [effect for layer in self._listening(PeerDown) for effect in layer.handle(event)]
        elif kind is Requested:
            place, _ = self._routes[type(event.request)]  # type: ignore[attr-defined]
            effects = self.layers[place].handle(event)
        else:
            raise UnexpectedEvent(event)
        return self._carry(event.now_ms, effects)

    def receive(self, now_ms: int, peer: NodeId, message: Message) -> list[Effect]:
        """Does what `handle` does with `Received`; a table needs no event to be made for it."""
        place, handler = self._routes[type(message)]
        if handler is not None:
            effects = handler(self.layers[place], peer, message)
        else:
            effects = self.layers[place].handle(Received(now_ms, peer, message))
        if not effects or _INSIDE.isdisjoint(map(type, effects)):
            return effects
        return self._carry_out(now_ms, effects)

    def fire(self, now_ms: int, timer: Timer) -> list[Effect]:
        """Does what `handle` does with `TimerFired`; a table needs no event to be made for it."""
        place, handler = self._routes[type(timer)]
        if handler is not None:
            effects = handler(self.layers[place], timer)
        else:
            effects = self.layers[place].handle(TimerFired(now_ms, timer))
        if not effects or _INSIDE.isdisjoint(map(type, effects)):
            return effects
        return self._carry_out(now_ms, effects)

    def _carry_out(self, now_ms: int, effects: list[Effect]) -> list[Effect]:
        """Carries effects, unless all are for the runtime; so is a notification that no layer listens to."""
        for effect in effects:
            kind = type(effect)
            if kind is Ask or kind is Suspect:
                return self._carry(now_ms, effects)
            if kind is Notify and type(effect.notification) in self._listeners:  # type: ignore[attr-defined]
                return self._carry(now_ms, effects)
        return effects

    def _listening(self, kind: type) -> list[Layer]:
        return [self.layers[place] for place in self._listeners.get(kind, ())]

    def _carry(self, now_ms: int, effects: list[Effect]) -> list[Effect]:
        """Runs what is for other layers until only what is for the runtime is left."""
        outcome: list[Effect] = []
        waiting = deque(effects)
        steps = 0
        while waiting:
            effect = waiting.popleft()
            steps += 1
            assert steps <= STEPS_MAX, f"The layers answer each other for ever, lastly with {effect!r}."
            kind = type(effect)
            if kind is Notify:
                notification = effect.notification  # type: ignore[attr-defined]
                outcome.append(effect)
                for layer in self._listening(type(notification)):
                    waiting.extend(layer.handle(Notified(now_ms, notification)))
            elif kind is Ask:
                request = effect.request  # type: ignore[attr-defined]
                route = self._routes.get(type(request))
                if route is not None:
                    waiting.extend(self.layers[route[0]].handle(Requested(now_ms, request)))
                elif type(request) in self.outside:
                    outcome.append(effect)
                else:
                    raise UnexpectedEvent(effect)
            elif kind is Suspect:
                for layer in self._listening(PeerDown):
                    waiting.extend(layer.handle(PeerDown(now_ms, effect.peer)))  # type: ignore[attr-defined]
            else:
                outcome.append(effect)
        return outcome


Handler = Callable[..., list[Effect]]

Declared = tuple[tuple[type, tuple[type, ...], tuple[type, ...], tuple[tuple[type, Handler], ...]], ...]
"""The layers of a stack: the class of each, what it handles, what it listens to, and the handlers of a table."""


class Routes(dict[type, tuple[int, Handler | None]]):
    """For each type, the place of the layer that handles it, and the handler of a table."""

    __slots__ = ()

    def __missing__(self, kind: type) -> NoReturn:
        raise UnexpectedEvent(kind)


@cache
def _wire(layers: Declared, outside: tuple[type, ...]) -> tuple[Routes, dict[type, tuple[int, ...]]]:
    """The routes, and the places of the layers that listen to each type. Stacks alike share them."""
    routes = Routes()
    listeners: dict[type, tuple[int, ...]] = {}
    for place, (layer, handles, listens, table) in enumerate(layers):
        handlers = dict(table)
        for kind in handles:
            if not issubclass(kind, Message | Request | Timer):
                raise TypeError(f"{kind.__name__} is neither a message nor a request nor a timer.")
            if kind in routes or kind in outside:
                raise ValueError(f"{kind.__name__} is handled twice: exactly one layer may handle a type.")
            routes[kind] = (place, handlers.get(kind))
        for kind in listens:
            if not issubclass(kind, Notification | PeerDown):
                raise TypeError(f"{kind.__name__} is neither a notification nor PeerDown.")
            if place in listeners.get(kind, ()):
                raise ValueError(f"{layer.__name__} listens to {kind.__name__} twice.")
            listeners[kind] = (*listeners.get(kind, ()), place)
    tags = sorted(kind.__name__ for kind in routes if issubclass(kind, Message))
    if len(set(tags)) != len(tags):
        raise ValueError(f"Two messages share a name, which is their tag on the wire: {', '.join(tags)}.")
    return routes, listeners
