"""A journal at a storage server in simulations: whatever breaks, what was answered is there once and in order."""

from __future__ import annotations

import pytest

from tests.unit.storage.test_keeper import AnswersBeforeTheSync, DoublesWhatComesAgain
from tests.unit.storage.worlds import BreakingLine, Broker, BrokerDied, World, stored
from tidings.errors import Fenced, StorageDamaged, TidingsError, Unavailable
from tidings.settings import BrokerSettings
from tidings.storage import remote
from tidings.storage.keeper import Keeper
from tidings.storage.remote import RemoteDisk

SEEDS = 150
COMMITS = 25


def live(world: World, broker_may_die: bool = False, full: bool = False) -> None:
    """Commits under faults, then compares what a new broker finds with what was answered."""
    finished: list[bytes] = []
    broker = Broker(world)
    number = 0
    for _ in range(COMMITS):
        world.broker_may_die = broker_may_die
        commands = [b"%d" % (number + each) for each in range(world.rng.randint(1, 4))]
        number += len(commands)
        if full and world.happens(0.3):
            world.disk.capacity_bytes = sum(map(world.disk.size, world.disk.names())) + world.rng.randrange(400)
        try:
            if broker.commit(commands):
                finished += commands
            world.disk.capacity_bytes = None
        except BrokerDied:
            world.disk.capacity_bytes = None
            world.broker_may_die = False
            found = stored(world)
            assert found[: len(finished)] == finished, "something answered is lost or doubled"
            rest = found[len(finished) :]
            assert rest == commands[: len(rest)], "something is there that nobody wrote"
            finished = found
            broker = Broker(world)
    assert stored(world) == finished


@pytest.mark.parametrize("seed", range(SEEDS))
def test_breaking_lines_and_dying_servers(seed: int) -> None:
    """E5: calls and answers that get lost, late repeats, a storage server that dies at any step."""
    live(World(seed))


@pytest.mark.parametrize("seed", range(SEEDS))
def test_brokers_that_die_too(seed: int) -> None:
    """E5: the next one recovers over the same lines."""
    live(World(1_000 + seed), broker_may_die=True)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_full_disks_too(seed: int) -> None:
    """E5: refused as a whole, also when the commit would have begun a new segment."""
    live(World(2_000 + seed), full=True)


def test_the_worlds_are_as_bad_as_they_claim() -> None:
    deaths = losses = repeats = 0
    for seed in range(30):
        world = World(seed)
        live(world)
        deaths, losses, repeats = deaths + world.deaths, losses + world.losses, repeats + world.repeats
    assert min(deaths, losses, repeats) > 50


class CutsNothing(RemoteDisk):
    """A planted fault: what the server has beyond the last acknowledgement is left there."""

    def _repair(self, files: dict[str, int], pending: object) -> None:
        pass


@pytest.mark.parametrize("mutant", [AnswersBeforeTheSync, DoublesWhatComesAgain])
def test_a_planted_fault_of_the_keeper_is_found(mutant: type[Keeper]) -> None:
    found = 0
    for seed in range(60):
        try:
            live(World(seed, mutant))
        except (AssertionError, TidingsError):
            found += 1
    assert found > 0


def test_a_planted_fault_of_the_broker_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.unit.storage.worlds.RemoteDisk", CutsNothing)
    found = 0
    for seed in range(60):
        try:
            live(World(seed))
        except (AssertionError, TidingsError):
            found += 1
    assert found > 0


def quiet(world: World) -> RemoteDisk:
    world.faults = False
    return RemoteDisk(lambda: BreakingLine(world), BrokerSettings(), 100, sleep=lambda seconds: None)


def test_a_group_commit_is_one_call() -> None:
    """E5: however many records it has."""
    world = World(1)
    world.faults = False
    broker = Broker(world)
    for count in (1, 7, 500):
        before = world.calls
        assert broker.commit([b"%d" % number for number in range(count)])
        assert world.calls - before == (1 if count != 500 else 7), "a commit, or one that also begins a new segment"


def test_a_second_broker_fences_the_first_for_good() -> None:
    """E5."""
    world = World(1)
    first = quiet(world)
    first.create("00000000000000000000.journal")
    quiet(world)
    with pytest.raises(Fenced, match="taken over"):
        first.commit("00000000000000000000.journal", [b"late"])
    with pytest.raises(Fenced, match="taken over"):
        first.truncate("00000000000000000000.journal", 0)
    assert bytes(world.disk.map("00000000000000000000.journal")) == b""


def test_a_server_that_lost_what_it_had_acknowledged_is_not_written_to() -> None:
    world = World(1)
    disk = quiet(world)
    name = "00000000000000000000.journal"
    disk.create(name)
    disk.commit(name, [b"acknowledged"])
    world.disk.truncate(name, 3)
    world._start()
    with pytest.raises(StorageDamaged, match=r"3 bytes.*had acknowledged 12"):
        disk.commit(name, [b"more"])


def test_a_cut_that_was_done_before_the_server_died_is_no_loss() -> None:
    world = World(1)
    disk = quiet(world)
    name = "00000000000000000000.journal"
    disk.create(name)
    disk.commit(name, [b"acknowledged"])
    world.disk.truncate(name, 5)
    world._start()
    disk.truncate(name, 5)
    disk.commit(name, [b"!"])
    assert bytes(world.disk.map(name)) == b"ackno!"


def test_a_broker_without_work_looks_after_its_disk() -> None:
    """E5: it cuts off what was never acknowledged, says what is final, and notices that it was fenced."""
    world = World(1)
    disk = quiet(world)
    name = "00000000000000000000.journal"
    disk.create(name)
    disk.commit(name, [b"acknowledged"])
    world.disk.append(name, [b"never acknowledged"])
    world._start()
    final: list[tuple[str, int]] = []
    world.keeper.on_final = lambda name, size: final.append((name, size))
    disk.tend()
    disk._session = 0  # As after a broken connection.
    disk.tend()
    assert final == [(name, 12)]
    assert bytes(world.disk.map(name)) == b"acknowledged"
    quiet(world)
    with pytest.raises(Fenced, match="taken over"):
        disk.tend()


class NobodyThere(BreakingLine):
    def send(self, frames: object) -> None:
        pass

    def receive(self, timeout_ms: int) -> None:
        return None


def test_nobody_there_at_the_start_is_a_sentence() -> None:
    """E5."""
    with pytest.raises(Unavailable, match="tidings storage"):
        RemoteDisk(lambda: NobodyThere(World(1)), BrokerSettings(), 0, sleep=lambda seconds: None)


def test_reads_come_in_blocks_and_never_from_beyond_what_was_acknowledged() -> None:
    world = World(1)
    disk = quiet(world)
    name = "00000000000000000000.journal"
    disk.create(name)
    large = bytes(range(256)) * 40_000
    disk.commit(name, [large[:100], large[100:5_000_000], large[5_000_000:]])
    for position, size in ((0, 10), (1_000_000, 500_000), (remote.BLOCK_BYTES - 5, 10), (0, len(large))):
        assert bytes(disk.read_at(name, position, size)) == large[position : position + size]
    world.disk.append(name, [b"not acknowledged"])
    assert bytes(disk.map(name)) == large
    reads = disk._reads
    assert bytes(disk.read_at(name, 1_200_000, 1_000)) == large[1_200_000:1_201_000]
    assert disk._reads == reads, "the block was there"


def test_a_read_of_a_server_that_is_away_does_not_wait_again_and_again() -> None:
    """E5: the loop must go on."""
    world = World(1)
    disk = quiet(world)
    name = "00000000000000000000.journal"
    disk.create(name)
    disk.commit(name, [b"stored"])
    here, disk._reader = disk._reader, NobodyThere(world)
    remote_reads = disk._reads
    with pytest.raises(Unavailable, match="does not answer"):
        disk._fetch(name, 0, 6, wait_ms=0)
    tried = disk._reads
    assert tried > remote_reads
    with pytest.raises(Unavailable, match="does not answer"):
        disk.read_at(name, 0, 6)
    assert disk._reads == tried, "it was asked although it is away"
    disk._reader = here
    disk._looked_at = 0.0
    assert bytes(disk.read_at(name, 0, 6)) == b"stored"
