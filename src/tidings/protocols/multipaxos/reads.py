"""Reads that see everything that was acknowledged before they began.

The leader notes how far its log is decided and asks everybody, in a numbered round, whether it still leads. Once a
majority has answered this round or a later one under its ballot, nobody else had led before the read began: what the
log held then is all there was. No clock has a say in it. Reads that come while a round is under way wait for the
next one, so their number does not matter.

The same rounds tell a leader that it is cut off: one that gets no majority of answers for several beats gives up its
place, so that its clients ask elsewhere and its beats no longer keep the others from electing.
"""

from __future__ import annotations

import msgspec

from tidings.protocols.multipaxos.membership import Membership


class _Round(msgspec.Struct):
    number: int
    index: int
    membership: Membership
    tokens: list[int]


class Rounds:
    """The leader's questions whether it still leads, and the reads that wait for them."""

    def __init__(self) -> None:
        self.number = 0
        self.waiting: list[int] = []
        self.unanswered_beats = 0
        self._beat_number = 0
        self._answered: dict[int, int] = {}
        self._open: _Round | None = None

    @property
    def tokens(self) -> list[int]:
        """Every read that is not answered."""
        return [*(self._open.tokens if self._open is not None else ()), *self.waiting]

    def begin_reads(self, decided: int, membership: Membership) -> bool:
        """Begins a round for the reads that wait; False if there are none or another round is under way."""
        if not self.waiting or self._open is not None:
            return False
        self.number += 1
        self._open = _Round(self.number, decided, membership, self.waiting)
        self.waiting = []
        return True

    def begin_beat(self) -> None:
        self.number += 1
        self.unanswered_beats += 1
        self._beat_number = self.number

    def take_answer(self, node: int, number: int, membership: Membership) -> tuple[int, list[int]] | None:
        """A node has answered a round; the index and tokens of the reads that are confirmed by that, if any are."""
        self._answered[node] = max(self._answered.get(node, 0), number)
        if self._is_answered(self._beat_number, membership):
            self.unanswered_beats = 0
        confirmed = self._open
        if confirmed is None or not self._is_answered(confirmed.number, confirmed.membership):
            return None
        self._open = None
        return confirmed.index, confirmed.tokens

    def answered(self, number: int) -> list[int]:
        """Who has answered this round or a later one."""
        return [node for node, answered in self._answered.items() if answered >= number]

    def _is_answered(self, number: int, membership: Membership) -> bool:
        return membership.has_quorum(self.answered(number))
