"""The simulation of bare replicas by its name, for `tidings simulate --world paxos`.

`tidings.simulator.worlds` finds the table by its entry point.
"""

from __future__ import annotations

from random import Random

from tidings.simulator.run import Result, live
from tidings.simulator.worlds import RunSeed
from tidings_lab.simulated_replicas.world import PaxosWorld

PAXOS = "paxos"


def _paxos(seed: int, trace: bool) -> Result:
    return live(PaxosWorld(Random(seed)), seed, trace, PAXOS)


WORLDS: dict[str, RunSeed] = {PAXOS: _paxos}
