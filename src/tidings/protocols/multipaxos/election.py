"""When to try to lead, and under which ballot.

A node that hears no leader waits for a random time before it tries, so that seldom two try at once. Getting this wrong
costs time and never more: a ballot that too few promise leads to nothing.
"""

from __future__ import annotations

from random import Random

from tidings.protocols.multipaxos.values import Ballot
from tidings.settings import ReplicaSettings


class Election:
    """What a node knows about who leads."""

    def __init__(self, settings: ReplicaSettings, random: Random) -> None:
        self._settings = settings
        self._random = random
        self._highest_number = 0
        self.leader: int | None = None

    def patience_ms(self) -> int:
        """How long to wait for a leader this time."""
        base_ms = self._settings.election_ms
        return base_ms + self._random.randrange(base_ms)

    def note(self, ballot: Ballot) -> None:
        """Somebody has promised this ballot: a lower one need not be tried."""
        self._highest_number = max(self._highest_number, ballot.number)

    def next_ballot(self, node: int, promised: Ballot) -> Ballot:
        """A ballot of this node that is above everything it has promised or heard of."""
        return Ballot(max(promised.number, self._highest_number) + 1, node)
