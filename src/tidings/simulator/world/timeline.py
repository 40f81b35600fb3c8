"""Virtual time: what is planned happens one after another, and a trace says what happened.

Events happen in the order of their times and, at the same time, in the order in which they were planned. Nothing else
decides anything, so a seed replays a run exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from heapq import heappop, heappush
from random import Random
from typing import Any, Protocol

from tidings.simulator.world.trace import Trace


class Fault(Protocol):
    """Something that is planned before the run begins."""

    @property
    def at_ms(self) -> int: ...


class Timeline:
    """The time that all processes of a run share, and its one source of randomness."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.now_ms = 0
        self.calm = False
        """From some time on nothing goes wrong any more."""
        self.trace = Trace()
        self.events = 0
        """How many have happened."""
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._planned = 0

    def note(self, process: str, what: str) -> None:
        """One line of the trace."""
        self.trace.add(self.now_ms, process, what)

    def at(self, at_ms: int, what: Callable[[], None]) -> None:
        """Plans an event."""
        self._planned += 1
        heappush(self._events, (at_ms, self._planned, what))

    def after(self, delay_ms: int, what: Callable[[], None]) -> None:
        self.at(self.now_ms + delay_ms, what)

    @property
    def next_event_ms(self) -> int | None:
        """When something happens next; None if nothing is planned."""
        return self._events[0][0] if self._events else None

    def step(self) -> None:
        """The next event happens."""
        self.now_ms, _, what = heappop(self._events)
        self.events += 1
        what()

    def plan_all(self, faults: Iterable[Fault], handlers: Mapping[type, Callable[[Any], None]]) -> None:
        """Each fault happens at its time, as the handler of its kind does it."""
        for fault in faults:
            self.at(fault.at_ms, partial(handlers[type(fault)], fault))

    def pass_until(self, done: Callable[[], bool], deadline_ms: int, events_max: int | None = None) -> bool:
        """Lets things happen until something is the case; False if that does not come true in time."""
        while not done():
            next_ms = self.next_event_ms
            if next_ms is None or next_ms > deadline_ms or (events_max is not None and self.events >= events_max):
                return False
            self.step()
        return True
