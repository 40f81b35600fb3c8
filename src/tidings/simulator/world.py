"""A made-up world: virtual time, one source of chance, a broker, its clients, the network and the faults.

Events happen one after another, in the order of their times and, at the same time, in the order in which they
were planned. Nothing else decides anything, so a seed replays a run exactly.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from random import Random

from tidings.settings import BrokerSettings, ClientSettings, JournalSettings
from tidings.simulator.broker import BrokerProcess, Pace
from tidings.simulator.client import Client
from tidings.simulator.faults import FaultPlan
from tidings.simulator.network import Network
from tidings.simulator.publishers import Script
from tidings.simulator.trace import Trace
from tidings.simulator.watch import Watch

PATIENCE_MS = 120_000
"""How long everything may take to come to its end once nothing goes wrong any more."""
SETTLING_MS = 1_000
"""How long the broker may take over the last thing that the network had held back."""
EVENTS_MAX = 200_000


class World:
    """All processes of a run and the time they share."""

    def __init__(
        self,
        random: Random,
        plan: FaultPlan,
        broker: BrokerSettings,
        journal: JournalSettings,
        client: ClientSettings,
        make_watch: Callable[[World, BrokerSettings], Watch] = Watch,
        pace: Pace | None = None,
    ) -> None:
        self.random = random
        self.plan = plan
        self.now_ms = 0
        self.calm = False
        self.client_settings = client
        self.trace = Trace()
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._planned = 0
        self.watch = make_watch(self, broker)
        self.network = Network(self, plan)
        self.broker = BrokerProcess(self, broker, journal, pace or Pace())
        self.clients: dict[str, Client] = {}
        self.scripts: list[Script] = []
        self.events = 0

    @property
    def lives(self) -> int:
        return self.broker.life

    def note(self, process: str, what: str) -> None:
        """One line of the trace."""
        self.trace.add(self.now_ms, process, what)

    def at(self, at_ms: int, what: Callable[[], None]) -> None:
        """Plans an event."""
        self._planned += 1
        heappush(self._events, (at_ms, self._planned, what))

    def after(self, delay_ms: int, what: Callable[[], None]) -> None:
        self.at(self.now_ms + delay_ms, what)

    def sync_delay_ms(self) -> int:
        return 1 if self.calm else self.random.randint(0, self.plan.sync_ms_max)

    def run(self) -> None:
        """Everything that happens, until all clients have come to their end or patience has."""
        self._plan_faults()
        self.broker.start()
        for client in self.clients.values():
            self.after(0, client.start)
        deadline_ms = self.plan.calm_ms + PATIENCE_MS
        while self._events and self._events[0][0] <= deadline_ms and self.events < EVENTS_MAX:
            if self.calm and all(client.finished for client in self.clients.values()):
                break
            self.now_ms, _, what = heappop(self._events)
            self.events += 1
            what()
        self._check_progress()
        self._check_at_last()

    def drained(self, client: str, topics: tuple[str, ...]) -> bool:
        """Whether everything has been published and a subscriber has been handed all of it."""
        return self.settled and not self.watch.once.missing((client, topics))

    @property
    def settled(self) -> bool:
        """Whether nothing more will be published: even what the network held back longest has arrived."""
        settled_ms = self.plan.calm_ms + self.plan.late_ms_max + SETTLING_MS
        return self.now_ms > settled_ms and all(script.done for script in self.scripts)

    def _check_progress(self) -> None:
        stuck = [name for name, client in self.clients.items() if not client.finished]
        if stuck:
            unpublished = [script.publisher for script in self.scripts if not script.done]
            waiting = {key: missing for key in self.watch.once.modes if (missing := self.watch.once.missing(key))}
            self.watch.violate(
                "everything pending completes",
                f"{', '.join(stuck)} did not come to an end; publishing: {unpublished}; not handed out: {waiting}",
            )

    def _check_at_last(self) -> None:
        """One more power cut, and a look at everything that is on the disk."""
        if self.broker.engine is not None:
            self.broker.end("power")
        self.broker.start()
        if self.broker.engine is None:  # A sync that was still to fail has failed now.
            self.broker.start()
        assert self.broker.engine is not None
        self.watch.on_end(self.broker.engine)

    def _plan_faults(self) -> None:
        plan, network, broker = self.plan, self.network, self.broker
        for end in plan.broker_ends:
            self.at(end.at_ms, lambda end=end: broker.on_end(end))  # type: ignore[misc]
        for death in plan.client_ends:
            self.at(death.at_ms, lambda death=death: self.clients[death.client].on_end(death))  # type: ignore[misc]
        for pause in plan.pauses:
            self.at(pause.at_ms, lambda pause=pause: self.clients[pause.client].on_pause(pause))  # type: ignore[misc]
        for broken in plan.breaks:
            self.at(broken.at_ms, lambda broken=broken: network.on_break(broken))  # type: ignore[misc]
        for full in plan.full_disks:
            self.at(full.at_ms, lambda full=full: broker.on_full_disk(full))  # type: ignore[misc]
            self.at(full.until_ms, broker.on_free_disk)
        for jump in plan.clock_jumps:
            self.at(jump.at_ms, lambda jump=jump: broker.on_clock_jump(jump))  # type: ignore[misc]
        self.at(plan.calm_ms, self._calm_down)

    def _calm_down(self) -> None:
        self.note("world", "from here on nothing goes wrong")
        self.calm = True
        self.broker.on_calm()
        for client in self.clients.values():
            client.on_calm()
