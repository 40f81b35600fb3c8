"""The engine in every size, put together from its parts."""

from __future__ import annotations

import os
from random import Random
from typing import Any

from tidings.journal.disk import LocalDisk
from tidings.journal.journal import Journal
from tidings.node.alone import Alone
from tidings.node.engine import Engine
from tidings.node.group import Group
from tidings.node.identity import Identity
from tidings.node.ring.engine import RingMember
from tidings.settings import BrokerSettings, ReplicaSettings, RingSettings

LoneEngine = Engine[Alone, None]
GroupEngine = Engine[Group, Any]
RingEngine = Engine[Group, RingMember]


def lone_engine(settings: BrokerSettings, journal: Journal) -> LoneEngine:
    """A broker alone: embedded, served, or on a storage server."""
    return Engine(settings, journal, Alone, lambda _: None)


def group_engine(
    settings: BrokerSettings,
    replica_settings: ReplicaSettings,
    identity: Identity,
    journal: Journal,
    disk: LocalDisk,
    random: Random | None = None,
) -> Engine[Group, None]:
    """A member of a replica group."""
    rng = random if random is not None else Random(os.urandom(16))
    return Engine(
        settings, journal, lambda engine: Group(engine, replica_settings, identity, disk, rng), lambda _: None
    )


def ring_engine(
    settings: BrokerSettings,
    replica_settings: ReplicaSettings,
    ring_settings: RingSettings,
    address: str,
    identity: Identity,
    journal: Journal,
    disk: LocalDisk,
    random: Random | None = None,
) -> RingEngine:
    """A node of a ring."""
    rng = random if random is not None else Random(os.urandom(16))
    return Engine(
        settings,
        journal,
        lambda engine: Group(engine, replica_settings, identity, disk, rng),
        lambda engine: RingMember(engine, ring_settings, address, rng),
    )
