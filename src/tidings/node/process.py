"""A node as a process, in any role: alone, a member of a replica group, a node of a ring.

A broker alone becomes a member, and a member a node of a ring, while it runs (`Loop` exchanges the engine) or when it
is started so on its folder.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from tidings.descriptors import reserve
from tidings.errors import InvalidRequest
from tidings.journal.disk import Disk, RealDisk, lone_disk
from tidings.journal.folder import BROKER, MEMBER, RING, Folder, role_of
from tidings.journal.journal import Journal
from tidings.journal.notes import write_note
from tidings.journal.remedies import REJOIN, advising
from tidings.node.clock import Clock
from tidings.node.engine import AnyEngine
from tidings.node.engines import GroupEngine, group_engine, lone_engine, ring_engine
from tidings.node.group import Group
from tidings.node.growth import Growth, Look, become_member, check_apart, unfit_for_ring
from tidings.node.identity import (
    MEMBER_NAME,
    DrawGroup,
    Identity,
    Newcomer,
    any_group,
    check_original,
    look_up_identity,
    read_identity,
)
from tidings.node.loop import GARBAGE_MIN, Door, Loop, stop_on_signals
from tidings.node.member import check_told, founders_of, meet
from tidings.settings import (
    BrokerSettings,
    GroupSettings,
    JournalSettings,
    NodeSettings,
    ReplicaSettings,
    RingSettings,
)
from tidings.settings.broker import SOCKETS_NAME
from tidings.storage.remote import RemoteDisk
from tidings.transport.caller import Caller
from tidings.transport.curve import client_options, secret_file
from tidings.transport.replica_peers import ReplicaRouter
from tidings.transport.router import Router
from tidings.wire.replication import REPLICA_PEER_NAME


class NodeConfiguration(NamedTuple):
    """Everything that is set for a node."""

    broker: BrokerSettings = BrokerSettings()
    journal: JournalSettings = JournalSettings()
    node: NodeSettings = NodeSettings()
    group: GroupSettings = GroupSettings()
    replica: ReplicaSettings = ReplicaSettings()
    ring: RingSettings = RingSettings()
    begins_ring: bool = False
    trusts_copy: bool = False
    """A copy of a member's folder is refused, unless somebody says that it may be trusted."""
    look: Look = lambda points, group: ()
    """How the ring is asked that is to be joined."""
    draw_group: DrawGroup = any_group
    """Draws the id of a new group, and so its place on the ring."""


def serve(
    data: Path | None,
    role: str,
    configuration: NodeConfiguration,
    on_ready: Callable[[str], None],
    doors: Sequence[Door] = (),
) -> None:
    """Runs a node on a folder until SIGTERM, SIGINT or an authorised shutdown; a broker alone also on the storage
    server of its settings. `on_ready` gets the address once the node knows who it is.
    """
    reserve()
    if role == BROKER:
        _serve_alone(data, configuration, on_ready, doors)
    else:
        assert data is not None
        if unfit := unfit_gateways(doors, configuration.node):
            raise InvalidRequest(unfit)
        _serve_member(data, role, configuration, on_ready, doors)


def _run(loop: Loop, router: Router, on_ready: Callable[[str], None], doors: Sequence[Door]) -> None:
    stop_on_signals(loop, router.wake_descriptor)
    gc.freeze()
    gc.set_threshold(GARBAGE_MIN)
    on_ready(router.address)
    loop.run()
    for door in doors:
        door.check()


def unfit_gateways(doors: Sequence[Door], node: NodeSettings) -> str:
    """Why this node's gateways could not follow the leader of a group; "" if they can."""
    if not doors or node.keys is None or secret_file(Path(node.keys), SOCKETS_NAME).exists():
        return ""
    return (
        f"The gateway for plain sockets goes to the leader of a group under the name {SOCKETS_NAME!r}, and there is no "
        f"key of it: make one with `tidings keys DIR --client {SOCKETS_NAME}` and start this broker again."
    )


# Alone.


def _serve_alone(
    data: Path | None, configuration: NodeConfiguration, on_ready: Callable[[str], None], doors: Sequence[Door]
) -> None:
    settings, node = configuration.broker, configuration.node
    disk = _disk(data, settings, node)
    try:
        journal = Journal.open(disk, configuration.journal)
        engine = lone_engine(settings, journal)
        engine.recover()
        router = _router(node, settings)
        address = configuration.group.advertise or router.address
        engine.log.growth = Growth(
            address, obstacle(data, address, unfit_gateways(doors, node), isinstance(router, ReplicaRouter))
        )

        def grow(outgrown: AnyEngine, now_ms: int) -> AnyEngine:
            if isinstance(outgrown.log, Group):
                assert isinstance(disk, RealDisk)
                return _grown(configuration, address, outgrown, journal, disk, now_ms)
            assert isinstance(disk, RealDisk) and outgrown.log.growth is not None
            engine = group_engine(settings, configuration.replica, become_member(disk, journal, address), journal, disk)
            engine.recover(now_ms)
            for frames in outgrown.log.growth.meets():
                engine.receive(now_ms, b"", frames, REPLICA_PEER_NAME if node.keys is not None else None)
            return engine

        _run(Loop(engine, router, node, Clock(), doors, grow), router, on_ready, doors)
    finally:
        disk.close()


def _disk(data: Path | None, broker: BrokerSettings, node: NodeSettings) -> Disk:
    if data is not None:
        return lone_disk(data)
    address = node.storage
    assert address is not None, "a broker needs a folder or a storage server"
    options = client_options(Path(node.storage_keys), node.storage_name) if node.storage_keys is not None else None
    return RemoteDisk(lambda: Caller(address, options), broker, node.storage_wait_ms)


def _router(node: NodeSettings, broker: BrokerSettings) -> Router:
    """The door of a broker alone; one that could also speak to members, where there is a key for that."""
    has_key = node.keys is None or secret_file(Path(node.keys), REPLICA_PEER_NAME).exists()
    return (ReplicaRouter if has_key else Router)(node, broker.batch_bytes_max)


def obstacle(data: Path | None, address: str, unfit: str, has_key: bool) -> str:
    """Why a broker alone cannot become a group; "" if it can."""
    if data is None:
        return (
            "This broker's journal is at a storage server, and a member of a group keeps its own: serve it with --data."
        )
    if unfit:
        return unfit
    if any(everywhere in address for everywhere in ("//0.0.0.0:", "//[::]:")):
        return "This broker listens at every address of its machine: start it with --advertise and the one to use."
    if not has_key:
        return (
            f"The members of a group speak under the name {REPLICA_PEER_NAME!r}, and there is no key of it: make one "
            f"with `tidings keys DIR --client {REPLICA_PEER_NAME}` and start this broker again."
        )
    return ""


# In a group or a ring.


def _serve_member(
    data: Path, role: str, configuration: NodeConfiguration, on_ready: Callable[[str], None], doors: Sequence[Door]
) -> None:
    """A new group is founded when all founders have met; one that begins or joins a ring, and names no other founders,
    is a group of one. A new member of a ring keeps where that is.
    """
    settings, node, group, ring = configuration.broker, configuration.node, configuration.group, configuration.ring
    with advising(REJOIN):
        grows = configuration.begins_ring or (role == RING and bool(ring.contacts))
        begins = grows and role_of(data) in (BROKER, MEMBER)
        if begins:  # The folder of a node in a ring from when its group has claimed one.
            role = MEMBER
        home = Folder(data.absolute(), role, grows=begins or len(group.group) == 1)
    try:
        router = ReplicaRouter(node, settings.batch_bytes_max)
        address = group.advertise or router.address
        with advising(REJOIN):
            told = look_up_identity(home) if home.note.role != BROKER else None
        if told is not None:
            check_told(told, group, address)
        founders = founders_of(group, address, bool(configuration.begins_ring or ring.contacts), told is None)
    except BaseException:
        home.close()
        raise
    disk = RealDisk(home)
    try:
        clock = Clock()
        journal = Journal.open(disk, configuration.journal)
        was_alone = home.note.role == BROKER
        if was_alone:
            if begins:
                _check_alone_fits_ring(configuration, journal)
            identity = become_member(disk, journal, address, configuration.draw_group)
        else:
            identity = _identity(disk, router, clock, address, founders, configuration)
        engine = _engine(role, configuration, address, identity, journal, disk)
        engine.recover(clock())
        check_original(disk.home, engine.log.number, engine.log.voters, data, configuration.trusts_copy)
        if begins and ring.contacts:  # Others may have put something since; that is seen when it is taken.
            if not was_alone:
                check_apart(engine.broker.machine, configuration.look, ring.contacts, identity.group.hex())
            engine.log.doors = ring.contacts
        engine.log.begins_ring = begins

        def grow(outgrown: AnyEngine, now_ms: int) -> AnyEngine:
            return _grown(configuration, address, outgrown, journal, disk, now_ms)

        if not identity.alone_until:  # What was a broker alone keeps its subscribers, by their old names.
            for door in doors:
                door.name_after(address)
        _run(Loop(engine, router, node, clock, doors, grow), router, on_ready, doors)
    finally:
        disk.close()


def _identity(
    disk: RealDisk,
    router: ReplicaRouter,
    clock: Clock,
    address: str,
    founders: tuple[str, ...],
    configuration: NodeConfiguration,
) -> Identity:
    with advising(REJOIN):
        identity = read_identity(disk)
    if identity is None:
        contacts, joined = configuration.group.join, configuration.ring.contacts
        newcomer = Newcomer(disk, address, founders, contacts, joined, configuration.draw_group)
        identity = meet(newcomer, router, clock)
    return identity


def _engine(
    role: str,
    configuration: NodeConfiguration,
    address: str,
    identity: Identity,
    journal: Journal,
    disk: RealDisk,
) -> GroupEngine:
    settings, replica = configuration.broker, configuration.replica
    if role == MEMBER:
        return group_engine(settings, replica, identity, journal, disk)
    ring = configuration.ring
    ring = msgspec.structs.replace(ring, contacts=ring.contacts or identity.ring)
    return ring_engine(settings, replica, ring, address, identity, journal, disk)


def _grown(
    configuration: NodeConfiguration,
    address: str,
    outgrown: GroupEngine,
    journal: Journal,
    disk: RealDisk,
    now_ms: int,
) -> GroupEngine:
    """The engine of a member that was taken back under a new number, or whose group has become a ring's first."""
    identity, role = outgrown.log.identity, RING
    if outgrown.log.becomes is not None:
        identity, role = outgrown.log.becomes, MEMBER if outgrown.ring is None else RING
        write_note(disk, MEMBER_NAME, identity)
    else:
        disk.home.grow(RING)
    engine = _engine(role, configuration, address, identity, journal, disk)
    engine.recover(now_ms)
    return engine


def _check_alone_fits_ring(configuration: NodeConfiguration, journal: Journal) -> None:
    engine = lone_engine(configuration.broker, journal)
    engine.recover()
    if contacts := configuration.ring.contacts:
        check_apart(engine.broker.machine, configuration.look, contacts)
    elif unfit := unfit_for_ring(engine.broker.machine):
        raise InvalidRequest(unfit)
