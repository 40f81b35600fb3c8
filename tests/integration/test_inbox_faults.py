"""Whatever happens to the inbox of a client, no message is skipped or altered: it comes, again at worst, or it is said.

That an inbox was removed, or is an older copy of itself, cannot be seen. What was handed out and not yet acknowledged
comes again then, as it does without an inbox.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from random import Random

import tidings
from tests.integration import folder_faults
from tests.integration.folder_faults import Fault, Scene, faults_of_files, sweep
from tests.integration.places import place
from tidings import Bus

__all__ = ["place"]

COUNT = 40
READ = 23
"""So many have been handed out; the last of them is not acknowledged."""


def make(data: Path, inbox: Path, client: str) -> None:
    """A reader is killed while it has a message."""
    with tidings.open(data, client) as bus:
        bus.subscribe("news")
        for number in range(COUNT):
            bus.put("news", f"message {number}")
    child = os.fork()
    if child == 0:
        try:
            bus = tidings.open(data, client, inbox=inbox)
            for number in range(READ):
                if number == READ // 2:
                    shutil.copyfile(inbox, inbox.with_name("older"))
                assert bus.get("news").text == f"message {number}"  # type: ignore[union-attr]
            os.kill(os.getpid(), signal.SIGKILL)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL


def test_no_message_is_skipped_or_altered(place: Path) -> None:
    scene = Scene(*(place / name for name in ("folder", "older", "other")))
    for folder in scene:
        folder.mkdir()
    make(place / "data", scene.folder / "inbox", "reader")
    make(place / "other data", scene.other / "inbox", "another")
    (scene.folder / "older").rename(scene.older / "inbox")
    (scene.other / "older").unlink()
    seen: list[int] = []

    @contextlib.contextmanager
    def reader(folder: Path) -> Iterator[Bus]:
        """On a copy of the broker's folder, so that nobody has read anything yet."""
        data = place / "data in use"
        shutil.copytree(place / "data", data)
        try:
            with tidings.open(data, "reader", inbox=folder / "inbox") as bus:
                yield bus
        finally:
            shutil.rmtree(data)

    def start(folder: Path) -> None:
        with reader(folder):
            pass

    def check(folder: Path) -> None:
        found = []
        with reader(folder) as bus:
            while (message := bus.get("news")) is not None:
                assert message.text == f"message {message.offset}"
                found.append(message.offset)
        assert found in (list(range(READ, COUNT)), list(range(READ - 1, COUNT)))
        seen.append(found[0])

    seed = folder_faults.seed()
    faults = [*faults_of_files(scene, Random(seed)), Fault("nothing", lambda folder: None)]
    said = sweep(scene, faults, place, start, lambda: check, seed)
    assert seen[-1] == READ, "a whole inbox repeats nothing"
    assert "another" in said["inbox replaced by another folder's"]
