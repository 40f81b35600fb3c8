"""A simulation for the storage protocol: a broker's journal, a keeper, and lines between them that break.

Everything is decided by one seed. A call may get lost, its answer may get lost, it may come a second time long
after, and the server may die at any step of its disk, with the machine or alone; the disk may have no room; the
broker may die while it waits. The real `Journal` runs on the real `RemoteDisk`, the real `Keeper` on the simulated
disk.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from tidings.errors import ProtocolError
from tidings.journal.disk import DiskFull
from tidings.journal.journal import Journal
from tidings.journal.record import COMMAND, Append
from tidings.settings import BrokerSettings, JournalSettings
from tidings.simulator.disk import PowerCut, SimulatedDisk, Step
from tidings.storage.keeper import Keeper
from tidings.storage.remote import RemoteDisk
from tidings.transport.caller import ConnectionLost
from tidings.wire.codec import Frame
from tidings.wire.storage import decode_call, frames_of

SMALL = JournalSettings(segment_records_max=8, segment_bytes_max=2_000)


class BrokerDied(BaseException):
    """The broker's process ends here."""


class World:
    """A storage server that is killed and comes back, and everything that is on its way to it."""

    def __init__(self, seed: int, keeper: type[Keeper] = Keeper) -> None:
        self.rng = Random(seed)
        self.disk = SimulatedDisk(self.rng)
        self.faults = True
        self.broker_may_die = False
        self.calls = self.deaths = self.losses = self.repeats = 0
        self._kind = keeper
        self._sessions = 0
        self._late: list[list[Frame]] = []
        self._die_at: int | None = None
        self.disk.on_step = self._on_step
        self._start()

    def _start(self) -> None:
        self.keeper = self._kind(self.disk, self._new_session)

    def _new_session(self) -> int:
        self._sessions += 1
        return self._sessions

    def happens(self, probability: float) -> bool:
        return self.faults and self.rng.random() < probability

    def _on_step(self, step: Step, name: str) -> None:
        if self._die_at is not None:
            self._die_at -= 1
            if self._die_at < 0:
                raise PowerCut

    def deliver(self, frames: list[Frame]) -> list[Frame] | None:
        """Has a call done; None if the server died over it."""
        self.calls += 1
        if self._late and self.happens(0.3):
            self.repeats += 1
            self._do(self._late.pop(self.rng.randrange(len(self._late))))
        if self.happens(0.2):
            self._late.append([bytes(frame) for frame in frames])
        return self._do(frames)

    def _do(self, frames: list[Frame]) -> list[Frame] | None:
        self._die_at = self.rng.randrange(6) if self.happens(0.1) else None
        try:
            answer, buffers = self.keeper.handle(decode_call(frames), frames[1:])
        except ProtocolError as error:
            raise AssertionError("a broker's own call could not be read") from error
        except PowerCut:
            self.deaths += 1
            self._die_at = None
            if self.rng.random() < 0.5:
                self.disk.crash()
            else:
                self.disk.kill()
            self._start()
            return None
        finally:
            self._die_at = None
        return frames_of(answer, buffers)


class BreakingLine:
    """A broker's connection into the world."""

    address = "a simulated storage server"

    def __init__(self, world: World) -> None:
        self._world = world
        self._answers: list[list[Frame]] = []
        self._broken = False

    def send(self, frames: Sequence[Frame]) -> None:
        world = self._world
        if world.broker_may_die and world.happens(0.05):
            raise BrokerDied
        if self._broken or world.happens(0.05):
            self._lose()
            return
        answer = world.deliver(list(frames))
        if answer is None or world.happens(0.05):
            self._lose()
        else:
            self._answers.append(answer)
        if world.broker_may_die and world.happens(0.05):
            raise BrokerDied

    def _lose(self) -> None:
        self._world.losses += 1
        self._broken = True

    def receive(self, timeout_ms: int) -> list[Frame] | None:
        if self._answers:
            return self._answers.pop(0)
        if self._world.rng.random() < 0.5:
            raise ConnectionLost
        return None

    def reopen(self) -> None:
        self._answers.clear()
        self._broken = False

    def close(self) -> None:
        pass


class Broker:
    """A journal on a remote disk, opened and recovered; `finished` is what it has answered for."""

    def __init__(self, world: World) -> None:
        self._world = world
        disk = RemoteDisk(lambda: BreakingLine(world), BrokerSettings(), wait_ms=10**7, sleep=lambda seconds: None)
        self.journal = Journal.open(disk, SMALL)
        self.recovered = [record.command for record in self.journal.recover().records]

    def commit(self, commands: list[bytes]) -> bool:
        """Writes some records as one commit; False if the disk had no room."""
        journal = self.journal
        if journal.full:
            journal.roll_next(b"index", b"snapshot")
        commit = journal.begin([Append(COMMAND, command, (bytes(50),)) for command in commands])
        try:
            journal.write(commit)
        except DiskFull:
            journal.undo(commit)
            return False
        journal.finish(commit)
        return True


def stored(world: World) -> list[bytes]:
    """Every command in the world's journal from its first segment on, as a new broker would find them."""
    world.faults = False
    found: list[bytes] = []
    journal = Broker(world).journal
    for segment in journal.segments:
        found += _commands(world.disk, f"{segment.first_slot:020d}.journal", segment.base_address, segment.first_slot)
    newest = journal.segments[-1].end_address if journal.segments else 0
    names = [name for name in world.disk.names() if name.endswith(".journal")]
    found += _commands(world.disk, names[-1], newest, int(names[-1].partition(".")[0]))
    world.faults = True
    return found


def _commands(disk: SimulatedDisk, name: str, base_address: int, slot: int) -> list[bytes]:
    from tidings.journal.record import scan
    from tidings.journal.segment import SEGMENT_HEADER_SIZE

    return [record.command for record in scan(disk.map(name), SEGMENT_HEADER_SIZE, base_address, slot, name)]
