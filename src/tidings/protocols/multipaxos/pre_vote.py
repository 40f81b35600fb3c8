"""The pre-vote: before it makes a ballot, a node asks the others whether they hear a leader.

A node that is deaf on one side, or has slept, must not depose a leader who is well. Only when a majority hears none
either does it make a ballot (`election`). Getting this wrong costs time and never more: a ballot that too few promise
leads to nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

from tidings.protocols.multipaxos.membership import Membership
from tidings.protocols.multipaxos.messages import PreVote, PreVoteGranted


class PreVotes:
    """The question of a node that hears no leader, and who has answered that it hears none either."""

    def __init__(self, node: int) -> None:
        self._node = node
        self._attempt = 0
        self._granted: dict[int, None] = {}

    def ask(self, decided: int) -> PreVote:
        """Begins a new round: earlier answers no longer count."""
        self._attempt += 1
        self._granted = {self._node: None}
        return PreVote(self._attempt, decided)

    def take(self, node: int, answer: PreVoteGranted) -> None:
        """A node hears no leader either."""
        if answer.attempt == self._attempt:
            self._granted[node] = None

    def is_granted(self, memberships: Iterable[Membership]) -> bool:
        """Whether a majority of each membership has answered."""
        return all(each.has_quorum(self._granted) for each in memberships)

    def end(self) -> None:
        """A ballot is made: one time of asking leads to one ballot."""
        self._granted = {}
