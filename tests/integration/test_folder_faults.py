"""Z11: whatever happens to a file of a folder, everything acknowledged is there, or an error says what is not.

There is no third outcome: no message that is gone or altered without a word, no offset that is given twice, and no
error but a sentence. Whoever refuses to start has changed nothing, and when the file is back everything is there.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest

from tests.integration import folder_faults
from tests.integration.folder_faults import Scene, faults_of_files, faults_of_folders, sweep
from tidings import Bus
from tidings.client import open_bus
from tidings.journal.disk import Disk, RealDisk
from tidings.journal.folder import BROKER
from tidings.node import embedded
from tidings.node.embedded import EmbeddedNode, link_to
from tidings.settings import BrokerSettings, Durability, JournalSettings

VALUES = 60
MEMORY = Path("/dev/shm")
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


def check_ranges(folder: Path, open_bus: OpenBus) -> None:
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


def check_subscription(folder: Path, open_bus: OpenBus) -> None:
    """Everything that the reader has not yet acknowledged, and nothing else."""
    with open_bus(folder, "reader") as reader:
        for topic, start in READ_UP_TO.items():
            found = []
            while (message := reader.get(topic)) is not None:
                found.append((message.offset, message.value))
            assert found == [(offset, value(topic, offset)) for offset in range(start, VALUES)]


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder in memory where there is such a thing: thousands of starts sync every few bytes."""
    found = Path(tempfile.mkdtemp(dir=MEMORY if os.access(MEMORY, os.W_OK) else None))
    yield found
    shutil.rmtree(found)


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
    scene, seed = alone(place, durability, end), folder_faults.seed()
    faults = [*faults_of_files(scene, Random(seed)), *faults_of_folders(scene)]
    open_bus = open_alone(durability)
    for number, check in enumerate((check_ranges, check_subscription)):
        said = sweep(scene, iter(faults), place / f"{number}", lambda folder: check(folder, open_bus), seed)
        print(len(said))
