"""The broker's process: the real engine and the real journal on a simulated disk, in virtual time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from tidings.errors import StorageDamaged, TidingsError
from tidings.journal.disk import DiskFull, SyncFailed
from tidings.journal.journal import Commit, Journal
from tidings.node.engines import LoneEngine, lone_engine
from tidings.protocols.broker.commands import Command
from tidings.protocols.broker.members import LaneSettings
from tidings.settings import BrokerSettings, JournalSettings
from tidings.simulator.disk import PowerCut, SimulatedDisk
from tidings.simulator.faults import ClockJump, End, FullDisk
from tidings.simulator.process import START_MS, DiskProcess
from tidings.simulator.recovery_checker import RecoveryEqualsPrefix

if TYPE_CHECKING:
    from tidings.simulator.world import World

TICK_MS = 1_000


class Pace(msgspec.Struct, frozen=True):
    """How often the broker looks at the clock, and the bounds of a group's work if they are not the usual ones."""

    tick_ms: int = TICK_MS
    lanes: LaneSettings | None = None


class BrokerProcess(DiskProcess):
    """One broker that dies and comes back on the same disk."""

    write_steps_max = 24

    def __init__(self, world: World, settings: BrokerSettings, journal_settings: JournalSettings, pace: Pace) -> None:
        super().__init__(world, "broker")
        self._world = world
        self._settings = settings
        self._journal_settings = journal_settings
        self._pace = pace
        self.engine: LoneEngine | None = None
        """None while there is no process."""
        self._commit: Commit | None = None
        self._clock_offset_ms = START_MS
        """What the machine's clock shows at the time 0."""
        self._life_offset_ms = START_MS
        """What this life of the broker believes that it shows."""

    # Its life.

    def start(self) -> None:
        """Recovers what the disk holds and opens the door."""
        world = self._world
        if self.engine is not None:
            return
        self.life += 1
        self._life_offset_ms = self._clock_offset_ms
        self._commit = None
        engine = self.open_on(self.disk)
        if self._pace.lanes is not None:
            engine.broker.sharing._settings = self._pace.lanes
        try:
            replayed = engine.recover()
        except PowerCut:
            self.die_at_step("during recovery")
            return
        except (DiskFull, SyncFailed) as error:
            self.die("kill", f"during recovery: {error}")
            return
        except StorageDamaged as error:
            world.watch.violate(RecoveryEqualsPrefix.RULE, f"the broker refuses its own disk: {error}")
        except Exception as error:  # noqa: BLE001 - whatever it is, there is no broker any more.
            world.watch.violate(RecoveryEqualsPrefix.RULE, f"the recovery ended with {type(error).__name__}: {error}")
        self.engine = engine
        world.note("broker", f"life {self.life} begins at slot {engine.journal.next_slot}, {replayed} records replayed")
        world.watch.on_recovered(engine)
        self._watch_machine(engine)
        life = self.life
        world.after(0, lambda: self._tick(life))

    def open_on(self, disk: SimulatedDisk) -> LoneEngine:
        return lone_engine(self._settings, Journal.open(disk, self._journal_settings))

    def _watch_machine(self, engine: LoneEngine) -> None:
        machine, watch = engine.broker.machine, self._world.watch
        apply = machine.apply

        def watched(command: Command, time_ms: int, body_address: int) -> object:
            try:
                result = apply(command, time_ms, body_address)
            except TidingsError as error:
                watch.on_applied(machine, command, None, error)
                raise
            watch.on_applied(machine, command, result, None)
            return result

        machine.apply = watched  # type: ignore[method-assign]

    def on_died(self) -> None:
        self.engine = None
        self._world.network.disconnect_all()

    def end(self, how: End) -> None:
        """The process ends now, wherever it is."""
        engine = self.engine
        if engine is None:
            return
        if self._commit is not None:
            self.cut_write(engine.journal, self._commit)
        self.die(how, f"({how})")

    # What is planned for it.

    def on_full_disk(self, fault: FullDisk) -> None:
        self._world.note("disk", f"has room for {fault.room_bytes} bytes")
        self.disk.capacity_bytes = sum(map(self.disk.size, self.disk.names())) + fault.room_bytes

    def on_free_disk(self) -> None:
        if self.disk.capacity_bytes is not None:
            self._world.note("disk", "has room again")
            self.disk.capacity_bytes = None

    def on_clock_jump(self, fault: ClockJump) -> None:
        self._world.note("broker", f"its clock is set by {fault.by_ms} ms")
        self._clock_offset_ms += fault.by_ms
        if fault.by_ms > 0:  # As if this process had stood still: its time, too, has gone on.
            self._life_offset_ms += fault.by_ms

    def on_calm(self) -> None:
        super().on_calm()
        self.on_free_disk()

    def clock(self) -> int:
        """Milliseconds since 1970 by this process.

        It asks the machine's clock when it begins and then counts on steadily, as `node.loop` does; that the clock was
        set back shows in the next life.
        """
        return self._world.now_ms + self._life_offset_ms

    # Its work.

    def receive(self, connection: int, frames: list[bytes]) -> None:
        engine = self.engine
        if engine is not None:
            engine.receive(self.clock(), connection, frames)
            self._go_on(engine)

    def _tick(self, life: int) -> None:
        engine = self.engine
        if engine is not None and life == self.life:
            engine.tick(self.clock())
            self._go_on(engine)
            self._world.after(self._pace.tick_ms, lambda: self._tick(life))

    def _go_on(self, engine: LoneEngine) -> None:
        """Sends what is ready and starts the next commit."""
        outgoing, engine.outgoing = engine.outgoing, []
        for peer, frames in outgoing:
            self._world.network.send_to_client(peer, frames)
        if engine.has_staged and not engine.committing:
            self._commit = engine.begin_commit(self.clock())
            self._world.watch.on_begun(self._commit)
            life = self.life
            self._world.after(self._world.sync_delay_ms(), lambda: self._end_commit(life))

    def _end_commit(self, life: int) -> None:
        engine, commit = self.engine, self._commit
        if engine is None or commit is None or life != self.life:
            return
        try:
            try:
                engine.journal.write(commit)
            except DiskFull as error:
                self._commit = None
                self._world.note("broker", f"refuses {len(commit.records)} records: the disk is full")
                self._world.watch.on_refused()
                engine.refuse_commit(self.clock(), error)
            else:
                self._commit = None
                first = commit.records[0].slot
                rolled = ", a new segment" if commit.roll is not None else ""
                self._world.note("broker", f"slots {first} to {first + len(commit.records) - 1} are durable{rolled}")
                self._world.watch.on_durable(commit)
                engine.finish_commit(self.clock())
        except PowerCut:
            self.die_at_step("at a step of the disk")
            return
        except SyncFailed:
            self.die("sync", "because a sync failed")
            return
        self._go_on(engine)
