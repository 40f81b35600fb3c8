"""When to try to lead, and under which ballot.

A node that hears no leader waits for a random time before it tries, so that seldom two try at once. Then it asks the
others (`pre_vote`), and makes a ballot. Getting any of this wrong costs time and never more: a ballot that too few
promise leads to nothing.
"""

from __future__ import annotations

from random import Random

from tidings.protocols.multipaxos.values import ZERO, Ballot
from tidings.settings import ReplicaSettings


class Election:
    """What a node knows about who leads."""

    def __init__(self, settings: ReplicaSettings, random: Random) -> None:
        self._settings = settings
        self._random = random
        self._highest_number = 0
        self.leader: int | None = None
        self.ballot: Ballot = ZERO
        """The one by which it leads; `ZERO` if nobody is known to."""
        self.heard_at_ms: int | None = None
        """When a leader was last heard."""

    def patience_ms(self) -> int:
        """How long to wait for a leader this time."""
        base_ms = self._settings.election_ms
        return base_ms + self._random.randrange(base_ms)

    def hears_leader(self, now_ms: int) -> bool:
        """Whether a leader was heard within the time that everybody waits at least. A clock set back: no."""
        return self.heard_at_ms is not None and 0 <= now_ms - self.heard_at_ms < self._settings.election_ms

    def note(self, ballot: Ballot) -> None:
        """Somebody has promised this ballot: a lower one need not be tried."""
        self._highest_number = max(self._highest_number, ballot.number)

    def next_ballot(self, node: int, promised: Ballot) -> Ballot:
        """A ballot of this node that is above everything it has promised or heard of."""
        return Ballot(max(promised.number, self._highest_number) + 1, node)
