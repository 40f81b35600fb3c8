"""What is lost with damaged records of a replica's journal.

`Damage` says what is lost in the segment that was being written, and what can still be said of it; `Repairs` finds what
is damaged in the sealed ones.
"""

from __future__ import annotations

from tidings.journal.journal import Journal
from tidings.journal.record import Record
from tidings.journal.recovery import Span
from tidings.node.places import Places
from tidings.protocols.multipaxos.values import ZERO, Ballot

REPAIRS_MAX = 16
"""Damaged slots that are asked for at a time."""


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

    def is_decided(self, reach: int) -> bool:
        """Whether everything that the lost records may have accepted is decided by now."""
        if not self._damaged:
            return True
        return self._decided_after is not None and self.known >= self._decided_after + reach


class Repairs:
    """Slots whose records are damaged in sealed segments, until they have come again from others."""

    def __init__(self, journal: Journal, places: Places) -> None:
        self._journal = journal
        self._places = places
        self._slots: dict[int, None] = {}
        self._checked_address = 0

    def __len__(self) -> int:
        return len(self._slots)

    def __contains__(self, slot: int) -> bool:
        return slot in self._slots

    @property
    def wanted(self) -> list[int]:
        """The slots to ask for now."""
        return list(self._slots)[:REPAIRS_MAX]

    def forget(self, slot: int) -> None:
        """It has come."""
        del self._slots[slot]

    def check_next(self) -> bool:
        """Reads the next segment; whether something is damaged in it that was not known to be."""
        known = len(self._slots)
        segments = self._journal.segments
        segment = next((each for each in segments if each.base_address >= self._checked_address), None)
        if segment is None:
            self._checked_address = 0
        else:
            self._checked_address = segment.end_address
            for span in self._journal.check(segment):
                self._slots.update(dict.fromkeys(self._places.within(*span)))
        found = len(self._slots) > known
        for slot in [slot for slot in self._slots if slot not in self._places]:
            del self._slots[slot]  # Its segment has been removed.
        return found
