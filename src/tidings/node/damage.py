"""What is lost with damaged records of the segment that a replica was writing; `repairs` is about sealed ones."""

from __future__ import annotations

from tidings.errors import StorageDamaged
from tidings.journal.record import Record
from tidings.journal.recovery import Span
from tidings.protocols.multipaxos.acceptor import REACH_WINDOWS
from tidings.protocols.multipaxos.membership import History
from tidings.protocols.multipaxos.values import ZERO, Ballot


class Damage:
    """What can still be said of records that were lost in the middle of a segment.

    Every record says what was promised when it was written, so those behind say at least what the lost ones did. A
    value that was accepted in a lost one lies less than the acceptor's reach behind what was decided by the time of the
    next record that says how far that was.
    """

    def __init__(self, damaged: list[Span], known: int) -> None:
        self._damaged = damaged
        self._seen = 0
        self.known = known
        """How far the journal says that all is decided."""
        self._decided_after: int | None = None
        self.promised = ZERO
        self.lost_slots: list[int] = []
        """Accepted before the segment began, and damaged in an older one."""

    @property
    def found(self) -> bool:
        return bool(self._damaged or self.lost_slots)

    def see(self, record: Record) -> bool:
        """Looks at the next record; whether others were lost just before it."""
        self.promised = max(self.promised, Ballot(record.ballot_number, record.ballot_node))
        if len(self._damaged) == self._seen:
            return False
        self._seen, self._decided_after = len(self._damaged), None
        return True

    def see_decided(self, decided: int) -> None:
        # A life that had to fetch again what earlier damage took may say less than the one before it.
        self.known = max(self.known, decided)
        if self._decided_after is None:
            self._decided_after = self.known

    def check(self, lost: list[int], history: History) -> None:
        """StorageDamaged unless all that is lost can be had from others, because it is decided."""
        is_decided = self._is_decided(REACH_WINDOWS * history.window) and all(slot < self.known for slot in lost)
        if not history.terms or not is_decided:
            raise StorageDamaged(
                "The journal is damaged in records that may be undecided, so this node no longer knows what "
                "it has accepted."
            )

    def _is_decided(self, reach: int) -> bool:
        """Whether everything that the lost records may have accepted is decided by now."""
        if not self._damaged:
            return True
        return self._decided_after is not None and self.known >= self._decided_after + reach
