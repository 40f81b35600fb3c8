"""How the nodes of a world are made: the engine in every size, on a simulated disk."""

from __future__ import annotations

from random import Random
from typing import NamedTuple

from tidings.journal.journal import Journal
from tidings.node.engine import AnyEngine
from tidings.node.engines import group_engine, lone_engine, ring_engine
from tidings.protocols.broker.consumer_groups.members import LaneSettings
from tidings.settings import BrokerSettings, Dissemination, JournalSettings, ReplicaSettings, RingSettings
from tidings.simulator.disk import SimulatedDisk
from tidings.simulator.world.node import NodeProcess


class Engines(NamedTuple):
    """The settings of all nodes of a world."""

    broker: BrokerSettings
    journal: JournalSettings
    replica: ReplicaSettings | None = None
    """None: they are brokers alone."""
    contacts: dict[str, tuple[str, ...]] | None = None
    """Of groups in a ring: whom each group asks for the ring, by its name. None: there is no ring."""
    dissemination: Dissemination = "scribe"
    lanes: LaneSettings | None = None
    """The bounds of the work of a broker's groups if they are not the usual ones."""

    def open(self, node: NodeProcess, disk: SimulatedDisk, random: Random) -> AnyEngine:
        journal = Journal.open(disk, self.journal)
        if self.replica is None:
            return self._alone(journal)
        if self.contacts is None:
            return group_engine(self.broker, self.replica, node.identity, journal, disk, random)
        ring = RingSettings(contacts=self.contacts[node.group], dissemination=self.dissemination)
        return ring_engine(self.broker, self.replica, ring, node.address, node.identity, journal, disk, random)

    def alone_on(self, disk: SimulatedDisk) -> AnyEngine:
        """A broker alone, on any disk."""
        return self._alone(Journal.open(disk, self.journal))

    def _alone(self, journal: Journal) -> AnyEngine:
        engine = lone_engine(self.broker, journal)
        if self.lanes is not None:
            engine.broker.sharing._settings = self.lanes
        return engine
