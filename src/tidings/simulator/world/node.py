"""A node's process: the real engine, of a broker alone or of a member of a group, on the real journal on a simulated
disk, in virtual time.

It is driven as `node.loop` drives it: ticks, whatever has come, then a round in which what is wanted is gathered, sent
and written. What comes to a member in the same millisecond goes into the same round; a broker alone has a round for
each. While the process stands still everything waits in front of it, in its order.

A node that has lost its disk begins as one that is new does (`node.member`): it asks who it is until somebody says so.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, Protocol

from tidings.errors import ProtocolError, TidingsError
from tidings.journal.disk import DiskFull, SyncFailed
from tidings.journal.journal import Commit
from tidings.node.engine import AnyEngine
from tidings.node.group import Group
from tidings.node.identity import MEET_EVERY_MS, Identity, Newcomer, read_identity, write_mark
from tidings.node.replicated import BrokerState
from tidings.node.state import State
from tidings.protocols.broker.commands import Command
from tidings.protocols.broker.machine import Machine
from tidings.protocols.broker.messages import NotLeader
from tidings.protocols.multipaxos.joining import JoiningMessage
from tidings.simulator.checkers.checker import Violation
from tidings.simulator.checkers.rules import RECOVERY
from tidings.simulator.checkers.watch import Judge
from tidings.simulator.disk import PowerCut, SimulatedDisk
from tidings.simulator.world.faults import ClockJump, End, FaultPlan, FullDisk
from tidings.simulator.world.process import START_MS, DiskProcess, Machinery
from tidings.wire.codec import Frame, encode, guess_request
from tidings.wire.replication import MARK, decode_message, encode_message


class Host(Machinery, Protocol):
    """What a node needs of its world."""

    plan: FaultPlan
    judge: Judge

    def open_engine(self, node: NodeProcess, disk: SimulatedDisk) -> AnyEngine:
        """The engine of a node on a disk, which it has not read yet."""

    def carry(self, node: NodeProcess, peer: Any, frames: Sequence[Frame]) -> None:
        """Takes what a node sends to a peer: a node of some kind, or the connection of a client."""

    def send_to_node(self, node: NodeProcess, address: str, frames: Sequence[Frame]) -> None:
        """Takes what a node sends to another one."""

    def on_node_died(self, node: NodeProcess) -> None:
        """Nobody is connected to it any more."""


class VirtualNode(NamedTuple):
    """Which node it is, of all in the world."""

    group: str
    address: str
    place: int
    """Its number among all nodes of the world."""


class NodeProcess(DiskProcess):
    """One node: an address, a disk, and a process that dies and comes back on it."""

    def __init__(self, world: Host, name: str, virtual_node: VirtualNode, identity: Identity | None = None) -> None:
        """`identity` is that of a member of a group; without one it is a broker alone."""
        super().__init__(world, name, write_steps_max=16 if identity is not None else 24)
        self._world = world
        self.group, self.address, self.place = virtual_node
        self.is_alone = identity is None
        self._identity = identity
        self._founders = identity.founders if identity is not None else ()
        self.engine: AnyEngine | None = None
        """None while there is no process, or one that does not know who it is."""
        self.is_new = False
        """Whether its disk is a new one, which nobody has given a number yet."""
        self._newcomer: Newcomer | None = None
        self.is_off = False
        """Switched off for good: its group has left, and it is not to come back."""
        self._commit: Commit | None = None
        """What is being written."""
        self._clock_offset_ms = START_MS
        """What the machine's clock shows at the time 0."""
        self._life_offset_ms = START_MS
        """What this life of the node believes that it shows."""
        self._paused_until_ms = 0
        self._waiting: deque[Callable[[AnyEngine], None]] = deque()
        """What has come while the process stands still."""
        self._round_planned = False
        self._might_remove = False
        """What `may_remove` was when its process ended."""

    @property
    def identity(self) -> Identity:
        """Which member of its group it is."""
        assert self._identity is not None
        return self._identity

    @property
    def log(self) -> Group | None:
        """What this node has of the log of its group; None while there is no process."""
        return self.engine.log if self.engine is not None and isinstance(self.engine.log, Group) else None

    @property
    def may_remove(self) -> bool:
        """Whether a change of its group is under way, as far as it knows; and what it knows may be on its disk."""
        log = self.log
        if log is None:
            return self._might_remove
        return log.replica.replica.is_changing or (log.serving and log.changes.is_asking)

    # Its life.

    @property
    def is_up(self) -> bool:
        """Whether there is a process that hears what it is told."""
        return self.engine is not None or self._newcomer is not None

    def start(self) -> None:
        world, judge = self._world, self._world.judge
        if self.is_up or self.is_off:
            return
        self.life += 1
        self._life_offset_ms = self._clock_offset_ms
        self._waiting.clear()
        self._round_planned = False
        self._commit = None
        try:
            if self.is_new and not self._knows_itself():
                return
            engine = world.open_engine(self, self.disk)
            judge.on_life(self)
            if isinstance(engine.log, Group):
                self._watch_slots(engine, engine.log)
            count = engine.recover(self.clock())
        except PowerCut:
            self.die_at_step("during recovery")
            return
        except (DiskFull, SyncFailed) as error:
            self.die("kill" if self.is_alone else "sync", f"during recovery: {error}")
            return
        except Violation:
            raise
        except Exception as error:
            raise Violation(
                RECOVERY, f"the recovery of {self.name} ended with {type(error).__name__}: {error}"
            ) from error
        self.engine = engine
        world.note(self.name, f"life {self.life} begins at slot {engine.journal.next_slot}, {count} records replayed")
        judge.on_recovered(engine)
        if self.is_alone:
            self._watch_machine(engine.broker.machine)
        else:
            self._plan_round()
        self._tick_after(0, self.life)

    def _watch_slots(self, engine: AnyEngine, log: Group) -> None:
        """Lets the checkers see every slot that is applied, and to what effect; also those of a recovery."""
        replica, judge = log.replica, self._world.judge
        make_state, apply_slot = replica._make_state, replica._apply

        def watched_state() -> State:
            state = make_state()
            if self.engine is not None:
                self._world.note(self.name, "takes over the files of another")
            assert isinstance(state, BrokerState)
            self._watch_machine(state.machine)
            return state

        def watched_apply(slot: int, kept: Any) -> None:
            first = judge.on_slot(self, slot, kept.entry.value)
            apply_slot(slot, kept)
            judge.on_slot_applied(self, engine, slot, first)

        replica._make_state = watched_state
        replica._apply = watched_apply  # type: ignore[method-assign]

    def _watch_machine(self, machine: Machine) -> None:
        apply, judge = machine.apply, self._world.judge

        def watched(command: Command, time_ms: int, body_address: int) -> object:
            try:
                result = apply(command, time_ms, body_address)
            except TidingsError as error:
                judge.on_applied(self, machine, command, None, error)
                raise
            judge.on_applied(self, machine, command, result, None)
            return result

        machine.apply = watched  # type: ignore[method-assign]

    def on_died(self) -> None:
        self._might_remove = self.may_remove
        self.engine = self._newcomer = None
        self._waiting.clear()
        self._paused_until_ms = 0
        self._world.on_node_died(self)

    def end(self, how: End) -> None:
        if self.engine is not None and self._commit is not None:
            self.cut_write(self.engine.journal, self._commit)
        if self.is_up:
            self.die(how, f"({how})")

    def switch_off(self) -> None:
        """It ends for good."""
        self._world.note(self.name, "is switched off")
        self.is_off = True
        self.end("kill")

    def switch_on(self) -> None:
        """It comes back all the same."""
        self.is_off = False
        self.start()

    # Its disk, and who it is.

    def lose_disk(self, back_after_ms: int) -> None:
        """The machine is gone; another one comes in its place."""
        self._back_after_ms = back_after_ms
        if self.is_up:
            self.die("kill", "with its disk")
        self.use_new_disk()
        write_mark(self.disk, self._world.random.randbytes(16))
        self.is_new = True

    def _knows_itself(self) -> bool:
        """Whether the disk says who this node is; if not, it asks the others."""
        identity = read_identity(self.disk)
        if identity is not None:
            self._world.note(self.name, f"is number {identity.number}")
            self._identity, self.is_new = identity, False
            return True
        founders = tuple(each.address for each in self._founders)
        self._newcomer = Newcomer(self.disk, self.address, founders, ())
        self._greet(self.life)
        return False

    def _greet(self, life: int) -> None:
        if self._newcomer is not None and life == self.life:
            for address, message in self._newcomer.greet():
                self._say(address, message)
            self._world.after(MEET_EVERY_MS, lambda: self._greet(life))

    def _say(self, address: str, message: JoiningMessage) -> None:
        self._world.send_to_node(self, address, encode_message(message))

    def _hear(self, newcomer: Newcomer, peer: object, frames: Sequence[Frame]) -> None:
        if frames[0] != MARK:
            if isinstance(peer, int):  # A client; anyone else who speaks of other things waits for no answer.
                answer = NotLeader(guess_request(frames[0]), "", newcomer.contacts)
                self._world.carry(self, peer, [encode(answer)])
            return
        with self.mortal("before it knows who it is"), suppress(ProtocolError):
            for address, message in list(newcomer.hear(decode_message(frames).message)):
                self._say(address, message)
            if newcomer.identity is not None:
                self._newcomer = None
                self.start()

    # What is planned for it.

    def on_pause(self, for_ms: int) -> None:
        if self.engine is None:
            return
        self._world.note(self.name, f"stands still for {for_ms} ms")
        self._paused_until_ms = max(self._paused_until_ms, self._world.now_ms + for_ms)
        self._world.at(self._paused_until_ms, self._wake)

    def _wake(self) -> None:
        """Takes what has come meanwhile, in its order."""
        while self._waiting and not self._paused:
            self._perform(self._waiting.popleft())

    @property
    def _paused(self) -> bool:
        return self._world.now_ms < self._paused_until_ms

    def on_clock_jump(self, fault: ClockJump) -> None:
        """Its clock is set. Forward is as if it had stood still; that it was set back shows in the next life."""
        self._world.note(self.name, f"its clock is set by {fault.by_ms} ms")
        self._clock_offset_ms += fault.by_ms
        if fault.by_ms > 0:
            self._life_offset_ms += fault.by_ms

    def on_full_disk(self, fault: FullDisk) -> None:
        self._world.note("disk", f"has room for {fault.room_bytes} bytes")
        self.disk.capacity_bytes = sum(map(self.disk.size, self.disk.names())) + fault.room_bytes
        self._world.at(fault.until_ms, self._free_disk)

    def _free_disk(self) -> None:
        if self.disk.capacity_bytes is not None:
            self._world.note("disk", "has room again")
            self.disk.capacity_bytes = None

    def on_calm(self) -> None:
        super().on_calm()
        self._free_disk()

    def scrub_all(self) -> None:
        """Reads all that is sealed, as it does in the course of some hours."""

        def scrub(engine: AnyEngine) -> None:
            address = 0
            for _ in range(len(engine.journal.segments) + 1):
                address, damaged = engine.journal.scrub(address, engine.journal.size_bytes)
                for each in damaged:
                    engine.note_damage(each)

        self._do(scrub)

    def clock(self) -> int:
        """Milliseconds since 1970 by this process, which asks once and counts on steadily, as `node.clock` does."""
        return self._world.now_ms + self._life_offset_ms

    # Its work.

    def receive(self, peer: object, frames: Sequence[Frame]) -> None:
        """Something has arrived."""
        if self._newcomer is not None:
            self._hear(self._newcomer, peer, frames)
            return
        self._do(lambda engine: engine.receive(self.clock(), peer, frames))

    def _do(self, what: Callable[[AnyEngine], None]) -> None:
        if self.engine is None:
            return
        if self._paused or self._waiting:
            self._waiting.append(what)
        else:
            self._perform(what)

    def _take_number(self) -> None:
        """It was removed while it was silent, and is taken back with its disk: it goes on as another member."""
        log = self.log
        if log is not None and log.becomes is not None:
            self._identity = log.becomes
            self._world.note(self.name, f"is taken back as number {self._identity.number}")
            self.end("kill")
            self.start()

    def _perform(self, what: Callable[[AnyEngine], None]) -> None:
        if self.engine is not None:
            with self.mortal("at a step of the disk"):
                what(self.engine)
                self._plan_round()
            self._take_number()

    def _tick_after(self, delay_ms: int, life: int) -> None:
        def tick() -> None:
            if self.engine is not None and life == self.life:
                if not self._paused:
                    self._do(lambda engine: engine.tick(self.clock()))
                self._tick_after(self._world.plan.tick_ms, life)

        self._world.after(delay_ms, tick)

    def _plan_round(self) -> None:
        if self.is_alone and self.engine is not None:
            self._round(self.engine)
        elif not self._round_planned:
            self._round_planned = True
            life = self.life

            def go_round() -> None:
                if life == self.life and self.engine is not None:
                    self._round_planned = False
                    self._round(self.engine)

            self._world.after(0, go_round)

    def _round(self, engine: AnyEngine) -> None:
        """Has what is wanted agreed on, says what is ready, and starts the next commit."""
        if engine.gather(self.clock()) or self.is_alone:
            self._flush(engine)
        if engine.has_staged and not engine.committing:
            self._commit = engine.begin_commit(self.clock())
            world, life = self._world, self.life
            world.judge.on_begun(self._commit)

            def written() -> None:
                if life == self.life:
                    self._do(self._end_commit)

            world.after(self.sync_delay_ms(world.plan, self.place), written)
        self._flush(engine)

    def _end_commit(self, engine: AnyEngine) -> None:
        commit, judge = self._commit, self._world.judge
        assert commit is not None
        try:
            engine.journal.write(commit)
        except DiskFull as error:
            self._commit = None
            judge.on_refused(self, commit)
            engine.refuse_commit(self.clock(), error)
        else:
            self._commit = None
            judge.on_durable(self, commit)
            engine.finish_commit(self.clock())

    def _flush(self, engine: AnyEngine) -> None:
        outgoing, engine.outgoing = engine.outgoing, []
        for peer, frames in outgoing:
            self._world.carry(self, peer, frames)
