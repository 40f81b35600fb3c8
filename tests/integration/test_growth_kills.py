"""A broker alone that becomes a group, and a group that becomes a ring's, killed at every change of a file (Z11)."""

from __future__ import annotations

import shutil
from pathlib import Path
from random import Random

import pytest

import tidings
from tests.integration.places import place
from tests.integration.test_first_release_kills import CHANGES_MIN, NEVER, SOME_WAYS, dies
from tidings.journal.disk import RealDisk
from tidings.journal.folder import BROKER, MEMBER, RING, Folder, role_of
from tidings.journal.journal import Journal
from tidings.node.engine import AnyEngine
from tidings.node.engines import GroupEngine, group_engine, lone_engine, ring_engine
from tidings.node.group import Group
from tidings.node.growth import become_member
from tidings.node.identity import read_identity
from tidings.node.ring.engine import RingMember
from tidings.protocols.broker.machine import Machine
from tidings.settings import BrokerSettings, JournalSettings, ReplicaSettings, RingSettings

__all__ = ["place"]

JOURNAL = JournalSettings(segment_records_max=8)
ADDRESS = "tcp://127.0.0.1:7999"
COUNT = 30


@pytest.fixture(autouse=True)
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDINGS_SEGMENT_RECORDS_MAX", str(JOURNAL.segment_records_max))


def fill(folder: Path) -> None:
    with tidings.open(folder, "ann") as bus:
        bus.subscribe("news", start="earliest")
        for number in range(COUNT):
            bus.put("news", b"%d" % number)
        for _ in range(5):
            bus.get("news")


def open_as(folder: Path, role: str) -> tuple[RealDisk, AnyEngine]:
    """The steps of `node.process`, in the role that a folder has or grows into."""
    disk = RealDisk(Folder(folder, role, grows=True), reserve_bytes=0)
    try:
        journal = Journal.open(disk, JOURNAL)
        if role == BROKER:
            engine = lone_engine(BrokerSettings(), journal)
            engine.recover()
            return disk, engine
        if disk.home.note.role == BROKER:
            identity = become_member(disk, journal, ADDRESS)
        else:
            known = read_identity(disk)
            assert known is not None
            identity = known
        if disk.home.note.role != role:
            disk.home.grow(role)
        group: GroupEngine
        if role == MEMBER:
            group = group_engine(BrokerSettings(), ReplicaSettings(), identity, journal, disk, Random(1))
        else:
            settings = (BrokerSettings(), ReplicaSettings(), RingSettings())
            group = ring_engine(*settings, ADDRESS, identity, journal, disk, Random(1))
        group.recover(1_000)
        return disk, group
    except BaseException:
        disk.close()
        raise


def lead(engine: GroupEngine, begins_ring: bool) -> None:
    """Lets it run as its process would, until it serves and has nothing to write."""
    engine.log.begins_ring = begins_ring
    for now_ms in range(1_000, 4_000, 10):
        engine.tick(now_ms)
        engine.gather(now_ms)
        while engine.has_staged:
            commit = engine.begin_commit(now_ms)
            engine.journal.write(commit)
            engine.finish_commit(now_ms)
        engine.outgoing = []
    assert engine.log.serving


def become_group(folder: Path) -> None:
    disk, engine = open_as(folder, MEMBER)
    assert isinstance(engine.log, Group)
    lead(engine, begins_ring=False)
    disk.close()


def become_ring(folder: Path) -> None:
    if role_of(folder) == MEMBER:
        disk, engine = open_as(folder, MEMBER)
        assert isinstance(engine.log, Group)
        lead(engine, begins_ring=True)
        assert engine.outgrown
        disk.home.grow(RING)
        disk.close()
    disk, engine = open_as(folder, RING)
    assert isinstance(engine.ring, RingMember)
    lead(engine, begins_ring=False)
    disk.close()


def facts(machine: Machine, journal: Journal) -> object:
    topic = machine.topics["news"]
    bodies = [
        (offset, bytes(journal.read(address, size)))
        for offset, address, size in zip(topic.offsets, topic.addresses, topic.sizes, strict=True)
    ]
    cursors = {key: dict(each.cursors) for key, each in machine.subscriptions.items()}
    epochs = {name: (client.epoch, client.tracks["news"].last) for name, client in machine.clients.items()}
    return topic.next_offset, bodies, cursors, epochs


def look(folder: Path) -> object:
    """All that is stored, in whatever role."""
    disk, engine = open_as(folder, role_of(folder) or "")
    try:
        if isinstance(engine.log, Group):
            lead(engine, begins_ring=False)
        return facts(engine.broker.machine, engine.journal)
    finally:
        disk.close()


def no_step(_folder: Path) -> None:
    pass


STEPS = {MEMBER: (no_step, become_group), RING: (become_group, become_ring)}


@pytest.mark.parametrize("how", SOME_WAYS)
@pytest.mark.parametrize("role", STEPS)
def test_death_at_every_change_of_growing(place: Path, role: str, how: str) -> None:
    prepare, step = STEPS[role]
    fill(place / "kept")
    prepare(place / "kept")

    def fresh(name: str) -> Path:
        folder = place / name
        shutil.copytree(place / "kept", folder)
        disk = RealDisk(folder, role_of(folder) or "", 0)
        disk.home.adopt()  # Every copy is an original of its own.
        disk.close()
        return folder

    truth = look(fresh("undisturbed"))
    die_at, died = 0, True
    while died:
        die_at += 1
        folder = fresh(str(die_at))
        died = dies(step, folder, die_at, how)
        assert role_of(folder) in (MEMBER, role, BROKER if role == MEMBER else role)
        assert look(folder) == truth, f"after a death at {die_at}"
        assert not dies(step, folder, NEVER, how), f"it cannot go on after a death at {die_at}"
        assert role_of(folder) == role
        assert look(folder) == truth
        shutil.rmtree(folder)
    assert die_at > CHANGES_MIN[how], "there were that many changes"
