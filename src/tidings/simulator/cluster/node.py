"""A node's process: the real engine of a member of a group on the real journal on a simulated disk, in virtual time.

It is driven as `node.loop` drives it: ticks, whatever has come, then a round in which what is wanted is gathered, sent
and written. What comes in the same millisecond goes into the same round. While the process stands still everything
waits in front of it, in its order.

A node that has lost its disk begins as one that is new does (`node.member`): it asks who it is until somebody says so.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from tidings.errors import ProtocolError, StorageDamaged, TidingsError
from tidings.journal.disk import SyncFailed
from tidings.journal.journal import Journal
from tidings.node.engines import GroupEngine
from tidings.node.identity import MEET_EVERY_MS, Identity, Newcomer, read_identity, write_mark
from tidings.node.replicated import BrokerState
from tidings.node.state import State
from tidings.protocols.broker.commands import Command
from tidings.protocols.broker.machine import Machine
from tidings.protocols.broker.messages import NotLeader
from tidings.protocols.multipaxos.joining import JoiningMessage
from tidings.simulator.disk import PowerCut
from tidings.simulator.faults import End
from tidings.simulator.process import START_MS, DiskProcess
from tidings.wire.codec import Frame, encode, guess_request
from tidings.wire.replication import MARK, decode_message, encode_message

if TYPE_CHECKING:
    from tidings.simulator.cluster.world import ClusterWorld

SLOW_DISK_FACTOR = 10


class NodeProcess(DiskProcess):
    """One member of a group: an address, a disk, and a process that dies and comes back on it."""

    def __init__(self, world: ClusterWorld, group: str, identity: Identity, place: int) -> None:
        super().__init__(world, f"{group}{identity.number}")
        self._world = world
        self.group = group
        self.identity = identity
        self.place = place
        """Its number among all nodes of the world."""
        self.address = next(each.address for each in identity.founders if each.number == identity.number)
        self._founders = identity.founders
        self.engine: GroupEngine | None = None
        """None while there is no process, or one that does not know who it is."""
        self.is_new = False
        """Whether its disk is a new one, which nobody has given a number yet."""
        self._newcomer: Newcomer | None = None
        self.is_off = False
        """Switched off for good: its group has left, and it is not to come back."""
        self._clock_offset_ms = START_MS
        """What the machine's clock shows at the time 0."""
        self._life_offset_ms = START_MS
        """What this life of the node believes that it shows."""
        self._paused_until_ms = 0
        self._waiting: deque[Callable[[GroupEngine], None]] = deque()
        """What has come while the process stands still."""
        self._round_planned = False

    # Its life.

    @property
    def is_up(self) -> bool:
        """Whether there is a process that hears what it is told."""
        return self.engine is not None or self._newcomer is not None

    def start(self) -> None:
        world = self._world
        if self.is_up or self.is_off:
            return
        self.life += 1
        self._life_offset_ms = self._clock_offset_ms
        self._waiting.clear()
        self._round_planned = False
        try:
            if self.is_new and not self._knows_itself():
                return
            engine = world.make_engine(self, Journal.open(self.disk, world.journal_settings))
            self._watch(engine)
            count = engine.recover(self.clock())
        except PowerCut:
            self.die_at_step("during recovery")
            return
        except SyncFailed:
            self.die("sync", "during recovery, because a sync failed")
            return
        except StorageDamaged as error:
            world.watch.violate("recovery equals the acknowledged prefix", f"{self.name} refuses its own disk: {error}")
        self.engine = engine
        world.note(self.name, f"life {self.life}: {count} records, {engine.log.replica.applied} slots applied")
        self._plan_round()
        self._tick_after(0, self.life)

    def _watch(self, engine: GroupEngine) -> None:
        """Lets the checkers see every slot that is applied, and to what effect; also those of a recovery."""
        replica, watch = engine.log.replica, self._world.watch
        make_state, apply_slot = replica._make_state, replica._apply
        watch.on_node(self)

        def watched_state() -> State:
            state = make_state()
            if self.engine is not None:
                self._world.note(self.name, "takes over the files of another")
            assert isinstance(state, BrokerState)
            self._watch_machine(state.machine)
            return state

        def watched_apply(slot: int, kept: Any) -> None:
            first = watch.on_slot(self, slot, kept.entry.value)
            apply_slot(slot, kept)
            watch.on_slot_applied(self, engine, slot, first)

        replica._make_state = watched_state
        replica._apply = watched_apply  # type: ignore[method-assign]

    def _watch_machine(self, machine: Machine) -> None:
        apply, watch = machine.apply, self._world.watch

        def watched(command: Command, time_ms: int, body_address: int) -> object:
            try:
                result = apply(command, time_ms, body_address)
            except TidingsError as error:
                watch.on_effect(self, command, None, error)
                raise
            watch.on_effect(self, command, result, None)
            return result

        machine.apply = watched  # type: ignore[method-assign]

    def on_died(self) -> None:
        self.engine = self._newcomer = None
        self._waiting.clear()
        self._paused_until_ms = 0
        self._world.network.on_node_died(self)

    def end(self, how: End) -> None:
        engine = self.engine
        if engine is not None and engine.log.replica.commit is not None:
            self.cut_write(engine.journal, engine.log.replica.commit)
        if self.is_up:
            self.die(how, f"({how})")

    def switch_off(self) -> None:
        """It ends for good."""
        self._world.note(self.name, "is switched off")
        self.is_off = True
        self.end("kill")

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
            self.identity, self.is_new = identity, False
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
        self._world.network.send_to_node(self, address, encode_message(message))

    def _hear(self, newcomer: Newcomer, peer: object, frames: Sequence[Frame]) -> None:
        if frames[0] != MARK:
            if isinstance(peer, int):  # A client; anyone else who speaks of other things waits for no answer.
                answer = NotLeader(guess_request(frames[0]), "", newcomer.contacts)
                self._world.carry(self, peer, [encode(answer)])
            return
        try:
            answers = list(newcomer.hear(decode_message(frames).message))
        except ProtocolError:
            return
        except PowerCut:
            self.die_at_step("before it knows who it is")
            return
        except SyncFailed:
            self.die("sync", "because a sync failed")
            return
        for address, message in answers:
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

    def on_clock_jump(self, by_ms: int) -> None:
        """Its clock is set. Forward is as if it had stood still; that it was set back shows in the next life."""
        self._world.note(self.name, f"its clock is set by {by_ms} ms")
        self._clock_offset_ms += by_ms
        if by_ms > 0:
            self._life_offset_ms += by_ms

    def scrub_all(self) -> None:
        """Reads all that is sealed, as it does in the course of some hours."""

        def scrub(engine: GroupEngine) -> None:
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

    def _do(self, what: Callable[[GroupEngine], None]) -> None:
        if self.engine is None:
            return
        if self._paused or self._waiting:
            self._waiting.append(what)
        else:
            self._perform(what)

    def _perform(self, what: Callable[[GroupEngine], None]) -> None:
        if self.engine is None:
            return
        try:
            what(self.engine)
        except PowerCut:
            self.die_at_step("at a step of the disk")
        except SyncFailed:
            self.die("sync", "because a sync failed")
        else:
            self._plan_round()

    def _tick_after(self, delay_ms: int, life: int) -> None:
        def tick() -> None:
            if self.engine is not None and life == self.life:
                if not self._paused:
                    self._do(lambda engine: engine.tick(self.clock()))
                self._tick_after(self._world.plan.tick_ms, life)

        self._world.after(delay_ms, tick)

    def _plan_round(self) -> None:
        if not self._round_planned:
            self._round_planned = True
            life = self.life

            def go_round() -> None:
                if life == self.life and self.engine is not None:
                    self._round_planned = False
                    self._round(self.engine)

            self._world.after(0, go_round)

    def _round(self, engine: GroupEngine) -> None:
        """Has what is wanted agreed on, says what is ready, and starts the next commit."""
        if engine.gather(self.clock()):
            self._flush(engine)
        if engine.has_staged and not engine.committing:
            engine.begin_commit(self.clock())
            world, life = self._world, self.life
            slow = SLOW_DISK_FACTOR if self.place == world.plan.slow_disk else 1
            delay_ms = 1 if world.calm else world.random.randint(0, world.plan.sync_ms_max) * slow

            def written() -> None:
                if life == self.life:
                    self._do(self._end_commit)

            world.after(delay_ms, written)
        self._flush(engine)

    def _end_commit(self, engine: GroupEngine) -> None:
        commit = engine.log.replica.commit
        assert commit is not None
        engine.journal.write(commit)
        engine.finish_commit(self.clock())

    def _flush(self, engine: GroupEngine) -> None:
        outgoing, engine.outgoing = engine.outgoing, []
        for peer, frames in outgoing:
            self._world.carry(self, peer, frames)


Frames = Sequence[Frame]
Carry = Callable[[NodeProcess, Any, Frames], None]
"""How what a node sends to one kind of peer gets there."""
MakeEngine = Callable[[NodeProcess, Journal], GroupEngine]
