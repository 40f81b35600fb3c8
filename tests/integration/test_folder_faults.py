"""Z11: whatever happens to a file of a folder, everything acknowledged is there, or an error says what is not.

There is no third outcome: no message that is gone or altered without a word, no offset that is given twice, and no
error but a sentence. Anyone who refuses to start has changed nothing, and when the file is back everything is there.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

import pytest

from tests.integration import folder_faults
from tests.integration.folder_faults import Fault, Scene, Start, faults_of_files, faults_of_folders, sweep
from tests.integration.places import place
from tidings import Bus
from tidings.client import open_bus
from tidings.journal.disk import Disk, ReadFolder, RealDisk
from tidings.journal.folder import BROKER
from tidings.node import embedded
from tidings.node.embedded import EmbeddedNode, link_to
from tidings.settings import BrokerSettings, Durability, JournalSettings
from tidings.storage.history import History
from tidings.storage.keeper import Keeper
from tidings.storage.remote import RemoteDisk
from tidings.wire.codec import Frame
from tidings.wire.storage import decode_call, frames_of

__all__ = ["place"]

VALUES = 60
FAULTS = 400
"""So many of each scene's, at most."""
SMALL = {"segment_records_max": 40, "segment_bytes_max": 6_000, "recent_bytes_max": 1}
OpenBus = Callable[[Path, str], Bus]


def value(topic: str, offset: int) -> bytes:
    return f"{topic} {offset} ".encode() * (1 + offset * 7 % 23)


READ_UP_TO = {"news": 17, "sport": 40}


def fill(folder: Path, open_bus: OpenBus, halfway: Callable[[], object]) -> None:
    """Two topics, a reader of both that has come to different places, and a publisher that counts."""
    with open_bus(folder, "reader") as reader:
        for topic in READ_UP_TO:
            reader.subscribe(topic)
    for start in (0, VALUES // 2):
        with open_bus(folder, "writer") as writer:
            for offset in range(start, start + VALUES // 2):
                for topic in READ_UP_TO:
                    writer.put(topic, value(topic, offset))
        with open_bus(folder, "reader") as reader:
            for topic, count in READ_UP_TO.items():
                for _ in range(start, min(count, start + VALUES // 2)):
                    assert reader.get(topic) is not None
        if not start:
            halfway()


def check_all(folder: Path, open_bus: OpenBus) -> None:
    """Every message by its offset, the publisher's count, and that the next put gets the next offset."""
    with open_bus(folder, "checker") as bus:
        for topic in READ_UP_TO:
            found = [(message.offset, message.value) for batch in bus.read(topic) for message in batch]
            assert found == [(offset, value(topic, offset)) for offset in range(VALUES)]
            assert bus.topic(topic).next_offset == VALUES
    with open_bus(folder, "writer") as writer:
        for topic in READ_UP_TO:
            assert writer.publisher("writer").last_sequence(topic) == VALUES
            assert writer.put(topic, b"one more").offset == VALUES


class Reading:
    """A subscription gets everything that it has not yet acknowledged, and nothing else."""

    def __init__(self, open_bus: OpenBus) -> None:
        self._open_bus = open_bus
        self._next = dict(READ_UP_TO)

    def __call__(self, folder: Path) -> None:
        with self._open_bus(folder, "reader") as reader:
            for topic in READ_UP_TO:
                while (message := reader.get(topic)) is not None:
                    offset = self._next[topic]
                    assert (message.offset, message.value) == (offset, value(topic, offset))
                    self._next[topic] += 1
                assert self._next[topic] == VALUES


def start_with(open_bus: OpenBus) -> Start:
    def start(folder: Path) -> None:
        open_bus(folder, "checker").close()

    return start


def sweep_both_ways(scene: Scene, place: Path, open_bus: OpenBus) -> None:
    """Some faults by range, others by subscription: which ones is drawn again each time, for every start takes time."""
    seed = folder_faults.seed()
    rng = Random(seed)
    faults = list(faults_of_files(scene, rng))
    faults = [*rng.sample(faults, min(FAULTS, len(faults))), *faults_of_folders(scene)]
    halves: list[list[Fault]] = [[], []]
    for fault in faults:
        halves[rng.randrange(2)].append(fault)
    start = start_with(open_bus)
    said = sweep(scene, halves[0], place, start, lambda: lambda folder: check_all(folder, open_bus), seed)
    said |= sweep(scene, halves[1], place, start, lambda: Reading(open_bus), seed)
    assert sum(map(bool, said.values())) > len(said) / 2, "most faults are found"


# A broker that stands alone.


def open_alone(durability: Durability) -> OpenBus:
    return lambda folder, client: open_on(folder, client, lambda: RealDisk(folder, BROKER, 0), durability)


def open_on(folder: Path, client: str, make_disk: Callable[[], Disk], durability: Durability = "fsync") -> Bus:
    """What `tidings.open` does, on any disk; no room is kept there, which would take most of the time."""
    broker, journal = BrokerSettings(), JournalSettings(durability=durability, **SMALL)
    if folder not in embedded._nodes:
        embedded._nodes[folder] = (EmbeddedNode(folder, broker, journal, make_disk()), 0)
    return open_bus(link_to(folder, broker, journal), client)


def alone(place: Path, durability: Durability, end: str) -> Scene:
    scene = Scene(*(place / name for name in ("folder", "older", "other")))
    open_bus = open_alone(durability)
    fill(scene.other, open_bus, lambda: None)
    if end == "stopped":
        fill(scene.folder, open_bus, lambda: shutil.copytree(scene.folder, scene.older))
        return scene
    child = os.fork()
    if child == 0:
        try:
            with open_bus(scene.folder, "holder"):  # So that the broker is the same, and never stops.
                fill(scene.folder, open_bus, lambda: shutil.copytree(scene.folder, scene.older))
                os.kill(os.getpid(), signal.SIGKILL)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    return scene


@pytest.mark.parametrize("end", ["stopped", "killed"])
@pytest.mark.parametrize("durability", ["fsync", "os"])
def test_a_broker_alone_loses_nothing_without_a_word(place: Path, durability: Durability, end: str) -> None:
    sweep_both_ways(alone(place, durability, end), place, open_alone(durability))


# A storage server, and a broker on it.


class Line:
    """A connection to a keeper in the same process."""

    address = "a storage server in this process"

    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper
        self._answers: list[list[Frame]] = []

    def send(self, frames: Sequence[Frame]) -> None:
        answer, buffers = self._keeper.handle(decode_call(list(frames)), list(frames)[1:])
        self._answers.append(frames_of(answer, buffers))

    def receive(self, timeout_ms: int) -> list[Frame] | None:
        return self._answers.pop(0) if self._answers else None

    def reopen(self) -> None:
        self._answers.clear()

    def close(self) -> None:
        pass


class StoredDisk(RemoteDisk):
    """A broker's disk whose storage server starts and stops with it."""

    def __init__(self, folder: Path) -> None:
        self._server = RealDisk(folder, BROKER, 0)
        try:
            self._keeper = Keeper(self._server, iter(range(1, 1_000_000)).__next__)
            super().__init__(lambda: Line(self._keeper), BrokerSettings(), wait_ms=1_000)
        except BaseException:
            self._server.close()
            raise

    def close(self) -> None:
        super().close()
        if hasattr(self, "_keeper"):
            self._keeper.sync_mark()
            self._server.close()


def open_stored(folder: Path, client: str) -> Bus:
    return open_on(folder, client, lambda: StoredDisk(folder))


def test_a_storage_server_loses_nothing_without_a_word(place: Path) -> None:
    scene = Scene(*(place / name for name in ("folder", "older", "other")))
    fill(scene.other, open_stored, lambda: None)
    fill(scene.folder, open_stored, lambda: shutil.copytree(scene.folder, scene.older))
    sweep_both_ways(scene, place, open_stored)


def test_what_a_storage_server_reads_itself_is_checked_too(place: Path) -> None:
    """Its answers about the last message and the texts of topics come from its files, without a broker."""
    scene = Scene(*(place / name for name in ("folder", "older", "other")))
    fill(scene.other, open_stored, lambda: None)
    fill(scene.folder, open_stored, lambda: shutil.copytree(scene.folder, scene.older))

    def check(folder: Path) -> None:
        files = ReadFolder(folder)
        try:
            history = History(files, BrokerSettings())
            history.recover(1 << 62)
            history.advance({}, lambda topics: None)
            for topic in READ_UP_TO:
                values = history.values(history.machine.topics[topic], 0)
                assert [each for batch in values for each in batch] == [value(topic, each) for each in range(VALUES)]
                last = history.last(topic)
                assert last is not None
                assert last[1].values[last[2]] == value(topic, VALUES - 1)
        finally:
            files.close()

    seed = folder_faults.seed()
    journal = (fault for fault in faults_of_files(scene, Random(seed)) if " flipped" in fault.name)
    faults = [fault for fault in journal if fault.name.split()[0].endswith((".journal", ".index", ".snapshot"))]
    said = sweep(scene, faults, place, lambda folder: None, lambda: check, seed)
    assert any(said.values())
