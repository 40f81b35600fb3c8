"""A simulation: virtual time, one source of randomness, a broker, its clients, the network and the faults."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from tidings.settings import BrokerSettings, ClientSettings, JournalSettings
from tidings.simulator.broker import BrokerProcess, Pace
from tidings.simulator.disk import SimulatedDisk
from tidings.simulator.faults import FaultPlan
from tidings.simulator.network import Network
from tidings.simulator.populated import PopulatedWorld
from tidings.simulator.served import SERVED, check_served
from tidings.simulator.tampering import TAMPERINGS, check_tampered
from tidings.simulator.watch import Watch

PATIENCE_MS = 120_000
"""How long everything may take to come to its end once nothing goes wrong any more."""
EVENTS_MAX = 200_000


class World(PopulatedWorld):
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
        tampers: bool = False,
    ) -> None:
        """`tampers`: at last things happen to the files of its broker that no process does."""
        super().__init__(random, client, plan.calm_ms + plan.late_ms_max)
        self.plan = plan
        self.watch = make_watch(self, broker)
        self.network = Network(self, plan)
        self.broker = BrokerProcess(self, broker, journal, pace or Pace())
        self._tampers = tampers
        self._older: dict[str, bytes] = {}
        """The broker's files as they were half way."""

    @property
    def lives(self) -> int:
        return self.broker.life

    @property
    def doors(self) -> Network:
        return self.network

    def sync_delay_ms(self) -> int:
        return 1 if self.calm else self.random.randint(0, self.plan.sync_ms_max)

    def run(self) -> None:
        """Everything that happens, until all clients have come to their end or patience has."""
        self._plan_faults()
        self.broker.start()
        for client in self.clients.values():
            self.after(0, client.start)
        deadline_ms = self.plan.calm_ms + PATIENCE_MS
        while (next_ms := self.next_event_ms) is not None and next_ms <= deadline_ms and self.events < EVENTS_MAX:
            if self.calm and all(client.finished for client in self.clients.values()):
                break
            self.step()
        self.check_progress()
        self._check_at_last()

    def _check_at_last(self) -> None:
        """One more power cut, and a look at everything that is on the disk."""
        if self.broker.engine is not None:
            self.broker.end("power")
        self.broker.start()
        if self.broker.engine is None:  # A sync that was still to fail has failed now.
            self.broker.start()
        assert self.broker.engine is not None
        self.watch.on_end(self.broker.engine)
        if self._tampers:
            self.broker.end("kill")
            for kind in TAMPERINGS:
                self.note("world", check_tampered(kind, self.broker.disk, self._older, self.random, self._look_at))
            for kind in SERVED:
                random = Random(f"{kind} after {self.plan}")  # What else happens in a world stays what it is.
                broker = self.broker
                self.note("world", check_served(kind, broker.disk, random, broker.clock(), broker.open_on))

    def _look_at(self, disk: SimulatedDisk) -> None:
        """Opens a copy of the broker's disk and compares all of it with what should be there."""
        engine = self.broker.open_on(disk)
        engine.recover()
        self.watch.recovery.compare(engine)
        self.watch.on_end(engine)

    def _plan_faults(self) -> None:
        plan, network, broker = self.plan, self.network, self.broker
        for end in plan.broker_ends:
            self.at(end.at_ms, lambda end=end: broker.on_end(end.how, end.steps, end.back_after_ms))  # type: ignore[misc]
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
        if self._tampers:
            self.at(plan.calm_ms // 2, lambda: self._older.update(broker.disk.image()))
        self.at(plan.calm_ms, self._calm_down)

    def _calm_down(self) -> None:
        self.note("world", "from here on nothing goes wrong")
        self.calm = True
        self.broker.on_calm()
        for client in self.clients.values():
            client.on_calm()
