"""What the disk of a leader has altered comes from another member, in a group and on a ring, and no reader notices.

(Z11, P6, P12.)
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import tidings
from tests.integration.replica_group import ReplicaGroup
from tidings.admin.trial import Trial

COUNT = 60
VALUES = [b"message %03d " % number * 100 for number in range(COUNT)]
SETTINGS = {"TIDINGS_SEGMENT_BYTES_MAX": "20000", "TIDINGS_RECENT_BYTES_MAX": "1"}
"""Several sealed segments, and nothing in memory."""
PATIENT = {"timeout": 5.0, "retries": 12}

Leader = Callable[[], Path]


@contextlib.contextmanager
def serving(kind: str, folder: Path) -> Iterator[tuple[str, Leader]]:
    """Addresses for clients, and how to find the folder of the leader the group that stores the messages."""
    if kind == "group":
        with ReplicaGroup(folder, settings=SETTINGS) as group:
            yield group.address, lambda: group.leader().data
        return
    with Trial(folder, settings=SETTINGS) as trial:
        trial.up(2, 3)

        def leader() -> Path:
            """Two groups of three: it leads the one that has the messages."""
            folders = [Path(trial.leader(group).folder) for group in trial.record.groups]
            (found,) = [each for each in folders if place_of(each, VALUES[0]) is not None]
            return found

        yield trial.bus, leader


def place_of(folder: Path, value: bytes) -> tuple[Path, int] | None:
    """The file that has a message, and where."""
    for path in sorted(folder.glob("*.journal")):
        position = path.read_bytes().find(value)
        if position >= 0:
            return path, position
    return None


def flip(folder: Path, value: bytes) -> None:
    """Alters one bit of a message where it is stored."""
    found = place_of(folder, value)
    assert found is not None
    path, position = found
    with path.open("r+b") as file:
        file.seek(position + 500)
        (byte,) = file.read(1)
        file.seek(position + 500)
        file.write(bytes([byte ^ 4]))
    assert place_of(folder, value) is None


@pytest.mark.parametrize("kind", ["group", "ring"])
def test_readers_get_what_another_member_has(tmp_path: Path, kind: str) -> None:
    """A range, a subscription and a group of workers, each with another message that was altered."""
    with serving(kind, tmp_path / "data") as (address, leader), contextlib.ExitStack() as stack:
        bus = stack.enter_context(tidings.connect(address, "ann", **PATIENT))
        for value in VALUES:
            bus.put("news", value)
        reader = stack.enter_context(tidings.connect(address, "bob", **PATIENT))
        subscription = reader.subscribe("news", start="earliest")
        worker = stack.enter_context(tidings.connect(address, "cid", **PATIENT))

        flip(leader(), VALUES[7])
        assert [value for batch in bus.read("news") for value in batch.values] == VALUES
        flip(leader(), VALUES[11])
        assert [message.value for _, message in zip(VALUES, subscription, strict=False)] == VALUES
        flip(leader(), VALUES[23])
        work = worker.subscribe("news", start="earliest", group="workers")
        assert [message.value for _, message in zip(VALUES, work, strict=False)] == VALUES
        for number in (7, 11, 23):
            assert place_of(leader(), VALUES[number]) is not None, "it is whole again"
        assert bus.put("news", b"after").offset == COUNT
