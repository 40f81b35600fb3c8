"""A folder of version 0.1.0 is carried over whole, also when the process that does it is killed half-way.

The process dies at every call that changes the folder: before it, after it, and in the middle of what is written. The
next opening has everything, and so has the one after it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import traceback
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, NamedTuple, NoReturn

import pytest

from tests.integration.first_folders import turn, unpack
from tests.integration.first_release.make import MEMBERS, NODES
from tests.integration.folder_faults import seed
from tests.integration.folder_kinds import check
from tests.integration.places import place
from tests.integration.test_folder_faults import StoredDisk, open_stored
from tests.integration.test_member_folder_faults import facts_of
from tidings import open as open_folder
from tidings.journal.disk import RealDisk
from tidings.journal.folder import MEMBER, RING
from tidings.journal.journal import Journal
from tidings.node import process
from tidings.node.embedded import EmbeddedNode
from tidings.node.engines import GroupEngine, group_engine, ring_engine
from tidings.node.identity import read_identity
from tidings.settings import (
    BrokerSettings,
    GroupSettings,
    JournalSettings,
    NodeSettings,
    ReplicaSettings,
    RingSettings,
)

__all__ = ["place"]

CHANGES = ("write", "pwrite", "pwritev", "posix_fallocate", "rename", "replace", "ftruncate", "truncate", "unlink")
"""What a kill can come in between. A sync is none: what a killed process has written, the kernel has."""
WRITES = ("write", "pwrite", "pwritev")
WAYS = {"before": CHANGES, "half": WRITES, "after": CHANGES}
"""How a process dies, and at which changes: nothing but what is written has a middle."""
SOME_WAYS = ("before", "half", pytest.param("after", marks=pytest.mark.soak))
"""For what promises nothing to anybody on the way: after a change there is on disk what is there before the next."""
CHANGES_MIN = {"before": 8, "half": 1, "after": 8}
NEVER = 10**9
SETTINGS = BrokerSettings(), JournalSettings()
Start = Callable[[Path], None]
"""Opens a folder as its owner does, up to where it would answer, and closes it."""


# Dying.


class Deadly:
    """Calls that change files, of which the n-th is the process's last."""

    def __init__(self, die_at: int, how: str) -> None:
        self._left = die_at
        self._how = how

    def plant(self) -> None:
        """In a process that is to die: into the module itself, since paths have their own ways to it."""
        for name in WAYS[self._how]:
            setattr(os, name, self._deadly(name, getattr(os, name)))
        if self._how != "half":
            os.open = self._creating(os.open)

    def _deadly(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            self._left -= 1
            if self._left:
                return real(*arguments, **named)
            if self._how == "after":
                real(*arguments, **named)
            elif self._how == "half":
                data = b"".join(arguments[1]) if name == "pwritev" else arguments[1]
                half = data[: len(data) // 2]
                real(arguments[0], [half] if name == "pwritev" else half, *arguments[2:])
            return os.kill(os.getpid(), signal.SIGKILL)

        return call

    def _creating(self, real: Callable[..., int]) -> Any:
        deadly = self._deadly("open", real)

        def call(path: Any, flags: int, *rest: Any, **named: Any) -> int:
            creates = flags & os.O_CREAT and not os.path.exists(path)
            return (deadly if creates else real)(path, flags, *rest, **named)

        return call


def dies(start: Start, folder: Path, die_at: int, how: str) -> bool:
    """Whether a process that opens the folder comes to so many changes, and dies there."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            Deadly(die_at, how).plant()
            start(folder)
            code = 0
        except BaseException:  # noqa: BLE001 - the child's code says that something went wrong
            traceback.print_exc()
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return os.WIFSIGNALED(status)


# Kinds of folders: how each is opened, and what is in it.


def start_alone(folder: Path) -> None:
    EmbeddedNode(folder, *SETTINGS).close()


def start_stored(folder: Path) -> None:
    EmbeddedNode(folder, *SETTINGS, StoredDisk(folder)).close()


class _Ready(Exception):
    """It would answer from here on."""


def _stop(_address: str) -> NoReturn:
    raise _Ready


def start_node(name: str, address: str) -> Start:
    """A node of an archive. It binds any port: nobody speaks to it."""
    node, group = NodeSettings(bind="tcp://127.0.0.1:*"), GroupSettings(advertise=address)

    def start(folder: Path) -> None:
        with contextlib.suppress(_Ready):
            role = RING if name == "ring" else MEMBER
            process.serve(folder, role, process.NodeConfiguration(*SETTINGS, node, group), _stop)

    return start


def look_alone(folder: Path) -> object:
    """All messages, and how far everybody has come."""
    with open_folder(folder, "looker") as bus:
        messages = {
            topic.name: [(each.offset, each.key, each.value) for batch in bus.read(topic.name) for each in batch]
            for topic in bus.topics()
        }
        lags = [(group.name, group.topic, group.lag) for group in bus.groups()]
    with open_folder(folder, "reader") as bus:
        following = [next(bus.subscribe(topic).messages(timeout=0)).offset for [topic] in bus.subscriptions()]
    return messages, lags, following


def look_member(folder: Path, role: str) -> object:
    disk = RealDisk(folder, role, 0)
    try:
        identity = read_identity(disk)
        assert identity is not None
        journal = Journal.open(disk, SETTINGS[1])
        if role == RING:
            ring = RingSettings()
            engine: GroupEngine = ring_engine(
                SETTINGS[0], ReplicaSettings(), ring, NODES[0], identity, journal, disk, Random(1)
            )
        else:
            engine = group_engine(SETTINGS[0], ReplicaSettings(), identity, journal, disk, Random(1))
        engine.recover(1_000)
        assert not disk.home.is_copy
        facts = facts_of(identity, engine)
        assert None not in facts.bodies
        machine = engine.broker.machine
        return facts, machine.seal()
    finally:
        disk.close()


def check_alone(folder: Path) -> None:
    check(lambda client: open_folder(folder, client))


def check_stored(folder: Path) -> None:
    check(lambda client: open_stored(folder, client))


class Case(NamedTuple):
    """A folder of an archive."""

    archive: str
    folder: str
    start: Start
    look: Callable[[Path], object]
    has_all: Callable[[Path], None] = lambda folder: None
    """Looks closer, where one process has everything."""


CASES = {
    "alone": Case("alone", "data", start_alone, look_alone, check_alone),
    "killed": Case("killed", "data", start_alone, look_alone, check_alone),
    "storage": Case("storage", "data", start_stored, look_alone, check_stored),
    "member": Case("group", "member1", start_node("group", MEMBERS[0]), lambda folder: look_member(folder, MEMBER)),
    "ring": Case("ring", "node1", start_node("ring", NODES[0]), lambda folder: look_member(folder, RING)),
}


def no_end(_folder: Path) -> None:
    """As it was left."""


def newest_missing(folder: Path) -> None:
    """As if 0.1.0 had been killed when it had sealed a segment, and not yet begun the next."""
    max(folder.glob("*.journal")).unlink()


def newest_empty(folder: Path) -> None:
    """The same a moment later."""
    os.truncate(max(folder.glob("*.journal")), 0)


ENDS = {"as it was": no_end, "newest segment missing": newest_missing, "newest segment empty": newest_empty}


@pytest.mark.parametrize("how", SOME_WAYS)
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("name", CASES)
def test_death_at_every_change_of_the_first_opening(place: Path, name: str, end: str, how: str) -> None:
    case = CASES[name]
    unpack(case.archive, place / "kept")

    def fresh(where: str) -> Path:
        folder = place / where
        shutil.copytree(place / "kept" / case.folder, folder)
        ENDS[end](folder)
        return folder

    truth = case.look(fresh("undisturbed"))
    die_at, died = 0, True
    while died:
        die_at += 1
        folder = fresh(str(die_at))
        died = dies(case.start, folder, die_at, how)
        for _ in range(2):
            assert case.look(folder) == truth, f"after a death at {die_at}"
        if end == "as it was":
            case.has_all(folder)
        assert not dies(case.start, folder, NEVER, how)
        shutil.rmtree(folder)
    assert die_at > CHANGES_MIN[how], "there were that many changes"


@pytest.mark.parametrize("name", ["group", "ring"])
def test_nodes_that_were_all_killed_half_way_find_together(tmp_path: Path, name: str) -> None:
    """Each of them at some step of its own; then they serve everything."""
    seed_ = seed()
    rng = Random(seed_)
    house = unpack(name, tmp_path)
    for address, folder in zip(house.addresses, house.folders, strict=True):
        dies(start_node(name, address), folder, rng.randrange(1, 20), rng.choice(["before", "half", "after"]))
    with turn(), house:
        try:
            check(house.connect)
        except BaseException as error:
            error.add_note(f"seed {seed_}")
            raise
