"""All planted bugs. Each changes one behaviour of the code under test, and a checker has to notice.

A simulator that finds nothing may be good news or may be blind. These say which: `tidings simulate --mutant NAME`
must fail, and with the invariant that belongs to the bug.
"""

from __future__ import annotations

# Importing them fills the list.
from tidings.simulator.bugs import (
    broker,
    client,
    cluster,
    flips,
    groups,
    journal,
    paxos,
    paxos_copies,
    paxos_states,
    paxos_witnesses,
    ring_cluster,
    served,
    stages,
    streams,
    tampering,
)
from tidings.simulator.bugs.planting import MUTANTS, Mutant

__all__ = [
    "MUTANTS",
    "Mutant",
    "broker",
    "client",
    "cluster",
    "flips",
    "groups",
    "journal",
    "paxos",
    "paxos_copies",
    "paxos_states",
    "paxos_witnesses",
    "ring_cluster",
    "served",
    "stages",
    "streams",
    "tampering",
]
