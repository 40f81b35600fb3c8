"""All planted bugs. Each changes one behaviour of the code under test, and a checker has to notice.

A simulator that finds nothing may be good news or may be blind. These say which: `tidings simulate --mutant NAME`
must fail, and with the invariant that belongs to the bug.
"""

from __future__ import annotations

# Importing them fills the list.
from tidings.simulator import (
    broker_mutants,
    client_mutants,
    group_mutants,
    journal_mutants,
    served_mutants,
    stage_mutants,
    stream_mutants,
    tampering_mutants,
)
from tidings.simulator.cluster import flip_mutants, ring_mutants
from tidings.simulator.cluster import mutants as cluster_mutants
from tidings.simulator.paxos import copy_mutants, witness_mutants
from tidings.simulator.paxos import mutants as paxos_mutants
from tidings.simulator.planting import MUTANTS, Mutant

__all__ = [
    "MUTANTS",
    "Mutant",
    "broker_mutants",
    "client_mutants",
    "cluster_mutants",
    "copy_mutants",
    "flip_mutants",
    "group_mutants",
    "journal_mutants",
    "paxos_mutants",
    "ring_mutants",
    "served_mutants",
    "stage_mutants",
    "stream_mutants",
    "tampering_mutants",
    "witness_mutants",
]
