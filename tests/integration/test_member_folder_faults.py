"""P7, Z11: whatever happens to a file of a member's folder, the member is who it was and knows all that it has said.

It has promised what it has promised and accepted what it has accepted, or it does not start. Bodies may be damaged: a
member says so to itself, and has them sent by others. What is decided and damaged it may lack too, if it knows that.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest

from tests.integration import folder_faults
from tests.integration.folder_faults import Scene, faults_of_files, faults_of_folders, sweep
from tests.integration.places import place
from tests.unit.node.members import FOUNDERS, GROUP, Members, put
from tidings.errors import StorageDamaged
from tidings.journal.disk import RealDisk
from tidings.journal.folder import MEMBER, RING
from tidings.journal.journal import Journal
from tidings.journal.notes import write_note
from tidings.journal.recovery import survey
from tidings.node.engines import GroupEngine, group_engine, ring_engine
from tidings.node.identity import MEMBER_NAME, Identity, read_identity, write_mark
from tidings.protocols.broker.topics import Place, Topic
from tidings.settings import BrokerSettings, JournalSettings, ReplicaSettings, RingSettings

__all__ = ["place"]

NUMBER = 2
PUTS = 60
SMALL = JournalSettings(segment_records_max=40, recent_bytes_max=1)
Opened = tuple[RealDisk, Identity, GroupEngine]


class Facts(NamedTuple):
    """What a member must never forget."""

    identity: Identity
    promised: Any
    known: int
    """Every slot below is decided."""
    accepted: dict[int, Any]
    """What is accepted and not known to be decided."""
    applied: int
    bodies: list[bytes | None]
    """Of every message that is applied; None if it is damaged, and known to be."""


def make_member(folder: Path, role: str, halfway: Callable[[], object]) -> None:
    """The folder of one of three members, which has led and followed."""
    disk = RealDisk(folder, role, 0)
    survey(disk)
    identity = Identity(GROUP, NUMBER, FOUNDERS[NUMBER - 1].disk, FOUNDERS, FOUNDERS)
    write_mark(disk, identity.disk)
    write_note(disk, MEMBER_NAME, identity)
    group = Members(journal=SMALL, disks={NUMBER: disk})
    sequence = 0
    for half in range(2):
        leader = group.leader()
        epoch = group.hello(leader, "ann", f"token {half}".encode())
        for _ in range(PUTS // 2):
            sequence += 1
            request, columns = put("ann", epoch, sequence, b"message %d " % sequence * (sequence % 9 + 1))
            assert group.ask(leader, request, columns, peer="ann") is not None
        if not half:
            halfway()
            group.change_leader()
            group.cut = set()
            group.wait(lambda: len(group.serving()) == 1, "one leads")
    group.pass_ms(1_000)
    node = group.nodes[NUMBER]
    node.engine.journal.sync_mark()
    disk.close()


def open_member(folder: Path, role: str) -> Opened:
    """The steps of `serve_member`, up to where it would speak to others."""
    disk = RealDisk(folder, role, 0)
    try:
        identity = read_identity(disk)
        assert identity is not None, "a member must not take itself for a newcomer"
        journal = Journal.open(disk, SMALL)
        broker, replica = BrokerSettings(), ReplicaSettings()
        if role == RING:
            address = FOUNDERS[NUMBER - 1].address
            engine: GroupEngine = ring_engine(broker, replica, RingSettings(), address, identity, journal, disk)
        else:
            engine = group_engine(broker, replica, identity, journal, disk, Random(1))
        engine.recover(1_000)
    except BaseException:
        disk.close()
        raise
    return disk, identity, engine


def look(folder: Path, role: str) -> Facts:
    disk, identity, engine = open_member(folder, role)
    try:
        return facts_of(identity, engine)
    finally:
        disk.close()


def facts_of(identity: Identity, engine: GroupEngine) -> Facts:
    """What a member that has recovered knows."""
    replica = engine.log.replica.replica
    known = replica.log.known
    accepted = {slot: entry for slot, entry in replica.log.entries.items() if slot >= known}
    topics = engine.broker.machine.topics.values()
    bodies = [_body(engine.journal, each) for topic in topics for each in _places(topic)]
    return Facts(identity, replica.acceptor.promised, known, accepted, engine.log.replica.applied, bodies)


def _places(topic: Topic) -> list[Place]:
    first, last = topic.find(topic.first_offset), topic.find(topic.next_offset - 1)
    return [topic.place(entry) for entry in range(first, last + 1)]


def _body(journal: Journal, place: Place) -> bytes | None:
    try:
        return bytes(journal.read(place.address, place.size_bytes))
    except StorageDamaged:
        return None


@pytest.mark.parametrize("role", [MEMBER, RING])
def test_a_member_forgets_nothing_without_a_word(place: Path, role: str) -> None:
    scene = Scene(*(place / name for name in ("folder", "older", "other")))
    make_member(scene.other, role, lambda: None)
    make_member(scene.folder, role, lambda: shutil.copytree(scene.folder, scene.older))
    shutil.copytree(scene.folder, place / "looked at")
    truth = look(place / "looked at", role)
    assert len(truth.bodies) + len(truth.accepted) >= PUTS
    assert None not in truth.bodies

    def check(folder: Path) -> None:
        facts = look(folder, role)
        assert (facts.identity, facts.promised) == (truth.identity, truth.promised)
        assert (facts.known, facts.accepted) == (truth.known, truth.accepted)
        assert facts.applied <= truth.applied
        pairs = zip(facts.bodies, truth.bodies, strict=facts.applied == truth.applied)
        assert all(found in (None, body) for found, body in pairs)

    def start(folder: Path) -> None:
        open_member(folder, role)[0].close()

    seed = folder_faults.seed()
    faults = [*faults_of_files(scene, Random(seed)), *faults_of_folders(scene)]
    sweep(scene, faults, place, start, lambda: check, seed)
