"""A replica's process: the real replica on the real journal on a simulated disk, in virtual time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Protocol, cast

from tidings.errors import InvalidRequest, StorageDamaged
from tidings.journal.disk import SyncFailed
from tidings.journal.journal import Journal
from tidings.journal.segment import JOURNAL_SUFFIX, journal_name, slots_of
from tidings.node.identity import check_original
from tidings.node.replica import ReplicaEngine
from tidings.node.state import Applied, StateExchanged
from tidings.protocols.multipaxos.claims import Extent
from tidings.protocols.multipaxos.messages import (
    AnyMessage,
    ChangeMembership,
    MembershipConfirmed,
    Piece,
    ProposalRejected,
    Propose,
    Read,
    ReadReady,
    ReadRefused,
    Received,
)
from tidings.protocols.multipaxos.records import Known, Snapshot
from tidings.protocols.multipaxos.values import Change, Command
from tidings.protocols.stack import Event, Request, Requested, SetTimer, Timer, TimerFired
from tidings.settings import JournalSettings, ReplicaSettings
from tidings.simulator.disk import PowerCut, SimulatedDisk
from tidings.simulator.world.faults import ClockJump, End, FaultPlan
from tidings.simulator.world.network import Links
from tidings.simulator.world.process import RETRY_MS, START_MS, DiskProcess, Machinery
from tidings.wire.codec import Frame
from tidings.wire.replication import decode_message, encode_message
from tidings_lab.simulated_replicas.checkers import Watch
from tidings_lab.simulated_replicas.row import Row
from tidings_lab.simulated_replicas.staff import Staff

CHECK_EVERY_MS = 150
DAMAGED_LAST = 8
"""Damage is done to one of so many records, the last ones: older ones are soon of no use to anybody."""
PIECE_STEPS_MAX = 40
"""About as many as it takes to exchange all files."""
REFUSALS_MAX = 3
"""So often a process that refuses its folder is started again, as a supervisor does."""
CARRY_SHARE = 0.02
"""Of the commits, how many are followed by a copy of something old to the end of the journal."""


class Host(Machinery, Protocol):
    """What a node needs of its world."""

    plan: FaultPlan
    piece_ends: float
    journal_settings: JournalSettings
    replica_settings: ReplicaSettings
    watch: Watch
    links: Links
    nodes: dict[int, Node]

    @property
    def operator(self) -> Staff: ...

    def members_beside(self, node: Node) -> list[Node]:
        """The other members of the group."""

    def answer_command(self, node: Node, command: Command, result: bytes | None) -> None:
        """A command is applied; no result: as older than another of its client."""

    def turn_away(self, command: Command, leader: int | None) -> None:
        """A command is for another node."""

    def answer_read(self, token: int, refused: bool, leader: int | None) -> None:
        """A read may be answered, or is for another node."""


class Node(DiskProcess):
    """One number of the group: a disk, and a process that dies and comes back on it."""

    def __init__(self, world: Host, number: int, founded: Snapshot | None) -> None:
        super().__init__(world, name_of(number))
        self._world = world
        self.number = self.place = number
        self.address = name_of(number)
        self._founded = founded
        self._random = world.random
        self.engine: ReplicaEngine | None = None
        """None while there is no process."""
        self.retired = False
        """For good: it never comes back."""
        self.outdated = False
        """Whether its folder is an older copy of itself, so that nothing that it says may count."""
        self.on_copy = False
        """Whether its folder is a copy of a member's folder, so that it must not start at all."""
        self._refusals = 0
        self._copy = SimulatedDisk(world.random)
        """Its folder as it was once; at first it was empty."""
        self.waiting: dict[tuple[str, int], None] = {}
        """Commands that clients asked this process for."""
        self._timers: dict[Timer, int] = {}
        self._timers_set = 0
        self._clock_offset_ms = START_MS
        self._paused_until_ms = 0
        self._damaged: dict[int, bool] = {}
        """Slots whose records were damaged here; whether their segment was still being written."""
        self._said_decided = 0
        """As far as this disk says it, synced, all is decided."""
        self._last_commit_address = 0
        self.forks: list[Node] = []
        """Processes on copies of its folder, beside it."""
        world.after(CHECK_EVERY_MS, self.check)

    # Its life.

    @property
    def is_up(self) -> bool:
        return self.engine is not None

    def start(self) -> None:
        """Recovers what the disk holds."""
        world = self._world
        if self.engine is not None or self.retired:
            return
        self.life += 1
        self._timers, self.waiting = {}, {}
        engine = self.open(self.disk, self._random)
        try:
            count = engine.recover(self.clock(), self._founded)
            check_original(self.disk.home, self.number, engine.history.newest.membership.voters, self.name)
        except PowerCut:
            self.die_at_step("during recovery")
            return
        except SyncFailed:
            self.die("sync", "during recovery, because a sync failed")
            return
        except (StorageDamaged, InvalidRequest) as refusal:
            if self.on_copy:
                world.note(self.name, f"refuses to start: {refusal}")
                self.on_refused_copy()
                return
            if isinstance(refusal, InvalidRequest) or not any(
                current or slot >= self._said_decided for slot, current in self._damaged.items()
            ):
                raise  # All that is damaged is sealed and known to be decided: it could have asked others for it.
            world.note(self.name, f"refuses to start: {refusal}")
            if self.outdated:
                self.retire()
            else:
                world.operator.on_refused(self.number)
            return
        self.engine = engine
        log, promised = engine.replica.log, engine.replica.acceptor.promised
        world.note(
            self.name, f"life {self.life}: {count} records, {promised} promised, {log.start} to {log.decided} decided"
        )
        world.watch.on_recovered(self, engine)
        self._go_on(engine)

    def open(self, disk: SimulatedDisk, random: Random) -> ReplicaEngine:
        world = self._world
        journal = Journal.open(disk, world.journal_settings)
        return ReplicaEngine(self.number, world.replica_settings, lambda: Row(journal), journal, disk, random)

    @property
    def row(self) -> Row:
        """The state of the process that is there."""
        assert self.engine is not None and isinstance(self.engine.state, Row)
        return self.engine.state

    def on_died(self) -> None:
        self.engine = None

    def end(self, how: End) -> None:
        """The process ends now, wherever it is."""
        engine = self.engine
        if engine is None:
            return
        if engine.commit is not None:
            self.cut_write(engine.journal, engine.commit)
        self.die(how, f"({how})")

    def retire(self) -> None:
        """Its machine is gone, and its disk with it."""
        self._world.note(self.name, "is gone for good")
        self.engine, self.retired = None, True

    # Copies of its folder.

    def on_refused_copy(self) -> None:
        """It is started again a few times, and then replaced by a new one, as the refusal says."""
        self._refusals += 1
        if self._refusals < REFUSALS_MAX:
            self._world.after(RETRY_MS, self.start)
        else:
            self._world.operator.on_refused(self.number)

    def copy_folder(self) -> None:
        self._copy = self.disk.imaged()

    def copied(self, older: bool) -> SimulatedDisk:
        """A copy of the folder, file by file: of that of now, or of an earlier one."""
        return (self._copy if older and self._copy.names() else self.disk).copied()

    def move_to_copy(self, older: bool) -> None:
        """A copy takes the place of the folder while the process is away."""
        self._world.note(self.name, "a copy of its folder takes the place of the folder")
        self.end("kill")
        self.use_disk(self.copied(older))
        self.on_copy = True

    def put_back(self) -> None:
        """The copy takes the place of the folder: an image of the whole volume, in which nothing looks copied."""
        self._world.note(self.name, "an older copy of its folder is put back")
        self.end("kill")
        self.use_disk(self._copy.imaged())
        self.outdated = True
        self._said_decided = self._last_commit_address = 0  # Nobody knows what the copy says, until it says more.

    def extent_of_copy(self) -> Extent | None:
        """How far a process on the copy would say that it has come; None if it would refuse to start."""
        engine = self.open(self._copy.imaged(), Random(0))
        try:
            engine.recover(self.clock(), self._founded)
        except StorageDamaged:
            return None
        return engine.witness.extent

    # What is planned for it.

    def on_pause(self, for_ms: int) -> None:
        self._world.note(self.name, f"stands still for {for_ms} ms")
        self._paused_until_ms = self._world.now_ms + for_ms

    def on_clock_jump(self, fault: ClockJump) -> None:
        """Its clock is set. When it goes forward, all its timers are due."""
        self._world.note(self.name, f"its clock is set by {fault.by_ms} ms")
        self._clock_offset_ms += fault.by_ms
        if fault.by_ms > 0:
            for timer, number in list(self._timers.items()):
                self._fire(timer, number)

    def on_damage(self, choice: int) -> None:
        """A bit flips in the record of something that is applied."""
        engine = self.engine
        if engine is None:
            return
        slots, copies = self._damageable(engine), self._damageable_copies(engine)
        if copies and choice % 3 == 0:
            number = copies[choice % len(copies)]
            address = self.row.address_of(number)
            base_address, name = self._file_at(engine.journal, address)
            self._world.note(self.name, f"the copy of {number} is damaged")
            self.disk.flip_bit(name, address - base_address, choice % 8)
        elif slots:
            slot = slots[-1 - choice % min(DAMAGED_LAST, len(slots))]
            address = engine.places.record_address(slot)
            base_address, name = self._file_at(engine.journal, address)
            found = engine.journal.record_at(address)
            if choice & 64 and found is not None and found[0].bodies_size:  # Else the next record is there.
                address = engine.places.body_address(slot)
            self._world.note(self.name, f"the record of slot {slot} is damaged")
            if address - base_address < self.disk.size(name):
                self.disk.flip_bit(name, address - base_address, choice % 8)
                self._damaged[slot] = base_address == engine.journal.segment_address

    def _file_at(self, journal: Journal, address: int) -> tuple[int, str]:
        """Where the segment begins that has an address, and its name."""
        for segment in journal.segments:
            if segment.base_address <= address < segment.end_address:
                return segment.base_address, journal_name(segment.first_slot)
        return journal.segment_address, journal_name(slots_of(self.disk.names(), JOURNAL_SUFFIX)[-1])

    def _damageable(self, engine: ReplicaEngine) -> list[int]:
        """Slots whose records may be damaged without asking more of the group than it promises.

        What the others do not have as it was decided they cannot give: then the group waits for this disk. What this
        disk does not say to be decided it cannot ask for after a restart: then it refuses to start and is replaced by
        another, which the group has to be able to bear.
        """
        # Damage to the last commit looks like one that was torn.
        end = engine.journal.segment_address
        if self._world.operator.may_replace:
            end = max(end, self._last_commit_address)
        others = self._world.members_beside(self)
        return [
            slot
            for slot in engine.places.within(0, end)
            if (slot < self._said_decided or self._world.operator.may_replace)
            and all(other.has_whole(slot) for other in others)
        ]

    def _damageable_copies(self, engine: ReplicaEngine) -> list[int]:
        """Which of the row's bodies lie in copies that no slot's record holds, and the others all have them."""
        records = {engine.places.body_address(slot) for slot in engine.places.within(0, engine.journal.end_address)}
        sealed = [
            number
            for number in self.row.in_journal()
            if self.row.address_of(number) < engine.journal.segment_address
            and self.row.address_of(number) not in records
        ]
        others = self._world.members_beside(self)
        return [number for number in sealed if all(other.engine and other.row.has_whole(number) for other in others)]

    def has_whole(self, slot: int) -> bool:
        """Whether it could send the value of a slot to others."""
        engine = self.engine
        if engine is None or slot not in engine.places:
            return False
        return engine.journal.record_at(engine.places.record_address(slot)) is not None

    def broken_slots(self) -> list[int]:
        """Slots that it should be able to send to others, and could not."""
        assert self.engine is not None
        slots = range(self.engine.places.first_slot, self.engine.applied)
        return [slot for slot in slots if not self.has_whole(slot)]

    def check(self) -> None:
        """Reads what is sealed, as it does every now and then."""
        if self.engine is not None and self._world.now_ms >= self._paused_until_ms:
            # All of it at a time: machines are replaced within seconds here, and damage has to be found before that.
            journal, address = self.engine.journal, 0
            for _ in range(len(journal.segments) + 1):
                address, damaged = journal.scrub(address, journal.size_bytes)
                for each in damaged:
                    self.engine.mend(each.span)
            self.engine.ask_again()
            self._go_on(self.engine)
        self._world.after(CHECK_EVERY_MS, self.check)

    def clock(self) -> int:
        return self._world.now_ms + self._clock_offset_ms

    # Its work.

    def receive(self, peer: object, frames: Sequence[Frame]) -> None:
        """What is sent to a number reaches all who go by it."""
        self._hear(frames)
        for fork in self.forks:
            fork._hear(frames)

    def _hear(self, frames: Sequence[Frame]) -> None:
        if self._postponed(lambda: self._hear(frames)):
            return
        header = decode_message(frames)
        if isinstance(header.message, Piece) and not self._world.calm:
            self._plan_end_among_files()
        self._handle(Received(self.clock(), header.sender, cast(AnyMessage, header.message), header.claim))

    def _plan_end_among_files(self) -> None:
        random = self._world.random
        if not self.end_is_planned and random.random() < self._world.piece_ends:
            self.plan_end(random.randint(0, PIECE_STEPS_MAX), random.choice(("kill", "power")))

    def propose(self, command: Command) -> None:
        self.waiting[command.client, command.sequence] = None
        self._request(Propose(command))

    def change(self, change: Change) -> None:
        self._request(ChangeMembership(change))

    def read(self, token: int) -> None:
        self._request(Read(token))

    def _request(self, request: Request) -> None:
        if not self._postponed(lambda: self._request(request)):
            self._handle(Requested(self.clock(), request))

    def _postponed(self, what: Callable[[], None]) -> bool:
        """While it stands still everything waits; nothing happens in a process that is not there."""
        if self.engine is None:
            return True
        if self._world.now_ms >= self._paused_until_ms:
            return False
        life = self.life

        def later() -> None:
            if life == self.life:
                what()

        self._world.at(self._paused_until_ms, later)
        return True

    def _handle(self, event: Event) -> None:
        engine = self.engine
        if engine is None:
            return
        try:
            # Only where the files of another are taken over is the disk touched outside a commit.
            with self.mortal("among the files of another"):
                engine.handle(event)
                self._go_on(engine)
        except StorageDamaged as error:
            if not (self.outdated or self.on_copy):
                raise
            self._world.note(self.name, f"ends: {error}")
            self.retire()

    def _go_on(self, engine: ReplicaEngine) -> None:
        """Does what the replica wants done, and starts the next commit."""
        world = self._world
        timers, engine.timers = engine.timers, []
        for effect in timers:
            self._timers.pop(effect.timer, None)
            if isinstance(effect, SetTimer):
                self._set_timer(effect.timer, effect.delay_ms)
        outgoing, engine.outgoing = engine.outgoing, []
        for nodes, message in outgoing:
            world.watch.on_sent(self, nodes, message)
            for node in nodes:
                frames = encode_message(message, b"group", self.number, node, engine.witness.claim(node))
                world.links.send(self, world.nodes[node], frames)
        notifications, engine.notifications = engine.notifications, []
        for notification in notifications:
            self._on_notification(notification)
        if notifications:
            world.watch.on_state(self, engine.applied)
        if engine.has_staged and not engine.committing:
            engine.begin_commit(self.clock())
            life = self.life
            world.after(self.sync_delay_ms(world.plan, self.number), lambda: self._end_commit(life))

    def _end_commit(self, life: int) -> None:
        engine = self.engine
        if engine is None or life != self.life or self._postponed(lambda: self._end_commit(life)):
            return
        commit = engine.commit
        assert commit is not None
        address = engine.journal.end_address
        with self.mortal("at a step of the disk"):
            engine.journal.write(commit)
            self._last_commit_address = address
            for record in engine.committing_records:
                if isinstance(record, Known):
                    self._said_decided = max(self._said_decided, record.decided)
            self._world.watch.on_durable(self, engine.committing_records)
            engine.finish_commit(self.clock())
            self._carry(engine)
            self._go_on(engine)

    def _carry(self, engine: ReplicaEngine) -> None:
        oldest = self.row.to_copy()
        if oldest is not None and not engine.has_staged and self._world.random.random() < CARRY_SHARE:
            engine.stage_local(oldest[0], (oldest[1],))

    def _set_timer(self, timer: Timer, delay_ms: int) -> None:
        self._timers_set += 1
        self._timers[timer] = number = self._timers_set
        self._world.after(delay_ms, lambda: self._fire(timer, number))

    def _fire(self, timer: Timer, number: int) -> None:
        if self._timers.get(timer) != number or self._postponed(lambda: self._fire(timer, number)):
            return
        del self._timers[timer]
        self._handle(TimerFired(self.clock(), timer))

    def _on_notification(self, notification: object) -> None:
        watch = self._world.watch
        match notification:
            case Applied():
                watch.on_applied(self, notification)
                value = notification.value
                if isinstance(value, Command) and (value.client, value.sequence) in self.waiting:
                    del self.waiting[value.client, value.sequence]
                    self._world.answer_command(self, value, notification.result)
            case ProposalRejected(value, leader):
                if isinstance(value, Command) and (value.client, value.sequence) in self.waiting:
                    del self.waiting[value.client, value.sequence]
                    self._world.turn_away(value, leader)
            case ReadReady(token, index):
                watch.on_read(self, token, index)
                self._world.answer_read(token, False, None)
            case ReadRefused(token, leader):
                self._world.answer_read(token, True, leader)
            case MembershipConfirmed(first_slot, membership):
                self._world.note(self.name, repr(notification))
                self._world.operator.on_confirmed(first_slot, membership)
            case StateExchanged(next_slot):
                self._world.note(self.name, f"takes over the files of another, up to {next_slot}")
                watch.on_exchanged(self, next_slot)
            case _:
                self._world.note(self.name, repr(notification))


def name_of(number: int) -> str:
    """What a node is called in the trace."""
    return f"node {number}"
