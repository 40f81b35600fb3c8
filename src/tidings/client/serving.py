"""Push: handlers that are called with messages as they come."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from tidings.client.operations import Core, Operation, Until
from tidings.client.reading import (
    acknowledge_handed,
    check,
    claim,
    give_back,
    hand_out,
    make_ready,
    took,
    write_down_head,
)
from tidings.client.stream import Stream
from tidings.client.working import Bench
from tidings.errors import InvalidRequest
from tidings.message import Message

Handler = Callable[[Message], Any]
H = TypeVar("H", bound=Handler)


class Handlers:
    """Which functions are called with the messages of which subscriptions."""

    def __init__(self) -> None:
        self.exclusive: dict[tuple[str, ...], list[Handler]] = {}
        """By the topics of a subscription."""
        self.workers: dict[tuple[str, str], list[Handler]] = {}
        """By a group and its topic."""

    def of_topics(self, topics: tuple[str, ...]) -> Callable[[H], H]:
        """Adds handlers of a subscription."""
        return _adder(self.exclusive.setdefault(topics, []))

    def of_group(self, group: str, topic: str) -> Callable[[H], H]:
        """Adds handlers of a membership."""
        return _adder(self.workers.setdefault((group, topic), []))


def _adder(handlers: list[Handler]) -> Callable[[H], H]:
    def register(handler: H) -> H:
        if not callable(handler):
            raise InvalidRequest(f"A handler is a function that takes a message, and this is {handler!r}.")
        handlers.append(handler)
        return handler

    return register


class Service:
    """The steps of `run`: whose turn is next, and what is acknowledged.

    A message is acknowledged once all its handlers have returned. When one raises, the shell leaves, and the
    message comes again.
    """

    def __init__(
        self,
        core: Core,
        handlers: dict[tuple[str, ...], list[Handler]],
        timeout: float | None,
        workers: dict[tuple[str, str], list[Handler]] | None = None,
    ) -> None:
        self._core = core
        self._handlers = handlers
        self._workers = workers or {}
        self._bench = Bench(core, [core.session.members.of(*each) for each in self._workers])
        self._timeout = timeout
        self._streams: list[Stream] = []
        self._turn = 0
        self._in_flight: tuple[Stream, Message] | None = None

    def step(self) -> Operation[tuple[Message, list[Handler]] | None]:
        """The next message and its handlers, or None when it is time to stop."""
        core = self._core
        self._note_done()
        for stream in self._streams:
            acknowledge_handed(core, stream)
        self._bench.claim()
        if not self._streams:
            for topics in self._handlers:
                stream = core.session.streams.of(topics)
                yield from claim(stream, "loop")
                self._streams.append(stream)
        deadline_ms = core.deadline_ms(self._timeout)
        while not core.stopping and (self._streams or self._workers):
            self._bench.look_after()
            yield from make_ready(core, self._streams)
            for stream in self._streams:
                if not stream.ready():
                    check(core, stream)
                    if not stream.number:
                        core.session.now_ms = core.now_ms()
                        core.session.streams.open(stream)
            found = yield from self._next()
            if found is not None:
                return found
            if not (yield Until(self._stirred, deadline_ms)):
                break
        return None

    def leave(self) -> Operation[None]:
        """Ends the service; a message whose handlers have not returned stays, and a group's goes back."""
        if self._in_flight is not None:
            stream, message = self._in_flight
            self._in_flight = None
            stream.marked = None
            give_back(stream, message.topic, message.offset, message.offset + 1)
        self._core.stopping = False
        for stream in self._streams:
            acknowledge_handed(self._core, stream)
            stream.owner = None
        self._streams = []
        yield from self._bench.leave()

    def _stirred(self) -> bool:
        return (
            self._core.stopping
            or any(stream.ready() or stream.error is not None for stream in self._streams)
            or self._bench.stirred()
        )

    def _next(self) -> Operation[tuple[Message, list[Handler]] | None]:
        """Takes turns between the subscriptions that have something."""
        for step in range(len(self._streams)):
            stream = self._streams[(self._turn + step) % len(self._streams)]
            message = stream.peek()
            if message is not None:
                self._turn = (self._turn + step + 1) % len(self._streams)
                write_down_head(self._core, stream)
                if self._core.inbox is None:
                    self._in_flight = (stream, message)
                else:
                    yield from hand_out(self._core, stream, message.topic, 1, message.offset + 1)
                return message, self._handlers[stream.topics]
        work = self._bench.next()
        return None if work is None else (work[1], self._workers[work[0].group, work[0].topic])

    def _note_done(self) -> None:
        self._bench.note_done()
        if self._in_flight is not None:
            stream, message = self._in_flight
            self._in_flight = None
            if stream.peek() == message:  # Otherwise a handler has ended the subscription.
                took(self._core, stream, message.topic, 1, message.offset + 1)
                self._core.session.now_ms = self._core.now_ms()
                self._core.session.streams.flush(stream)
