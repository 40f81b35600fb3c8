"""A node of a ring as a process: a member of its group, with the ring's engine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tidings.journal.disk import RealDisk
from tidings.journal.folder import RING
from tidings.journal.journal import Journal
from tidings.node.group import GroupEngine
from tidings.node.identity import Identity
from tidings.node.member import serve_member
from tidings.node.ring.engine import RingEngine
from tidings.settings import (
    BrokerSettings,
    GroupSettings,
    JournalSettings,
    NodeSettings,
    ReplicaSettings,
    RingSettings,
)


def serve_node(
    data: Path,
    broker: BrokerSettings,
    journal: JournalSettings,
    node: NodeSettings,
    group: GroupSettings,
    replica: ReplicaSettings,
    ring: RingSettings,
    on_ready: Callable[[str], None],
    trusts_copy: bool = False,
) -> None:
    """Runs a node on a folder until SIGTERM, SIGINT or an authorised shutdown; without founders it is a group alone."""

    def make(address: str, identity: Identity, opened: Journal, disk: RealDisk) -> GroupEngine:
        return RingEngine(broker, replica, ring, address, identity, opened, disk)

    serve_member(data, broker, journal, node, group, replica, on_ready, make, RING, trusts_copy)
