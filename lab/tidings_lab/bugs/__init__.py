"""All planted bugs. Each changes one behaviour of the code under test, and a checker has to notice.

A simulator that finds nothing may be good news or may be blind. These say which: `tidings simulate --mutant NAME`
must fail, and with the invariant that belongs to the bug.
"""

from __future__ import annotations

from tidings.simulator.planting import MUTANTS, Mutant

# Importing them fills the list.
from tidings_lab.bugs import (
    apart,
    broker,
    chord,
    client,
    cluster,
    commits,
    flips,
    groups,
    journal,
    overlay,
    paxos,
    paxos_copies,
    paxos_states,
    paxos_witnesses,
    publications,
    ring_cluster,
    served,
    stages,
    streams,
    tampering,
)

__all__ = [
    "MUTANTS",
    "Mutant",
    "apart",
    "broker",
    "chord",
    "client",
    "cluster",
    "commits",
    "flips",
    "groups",
    "journal",
    "overlay",
    "paxos",
    "paxos_copies",
    "paxos_states",
    "paxos_witnesses",
    "publications",
    "ring_cluster",
    "served",
    "stages",
    "streams",
    "tampering",
]
