"""Where the records of the applied slots lie in this node's journal, so that others can be sent them."""

from __future__ import annotations

from array import array

from tidings.journal.record import HEADER_SIZE
from tidings.journal.record import Record as JournalRecord
from tidings.node.snapshot_header import Piece

DISORDER_MAX = 1_024
"""Addresses rise with the slots, but for those of a few windows that were accepted again, and for repaired ones."""


class Places:
    """A record's address and the size of its command for each slot, without a gap: 12 bytes a slot."""

    def __init__(self) -> None:
        self.first_slot = 0
        self._addresses: array[int] = array("Q")
        self._command_sizes: array[int] = array("I")
        self._sealed_count = 0
        self._moved: dict[int, tuple[int, int]] = {}
        """Slots whose records have been replaced: where they lie, and the sizes of their commands. A segment that is
        gone took the index of its slots along, and what was replaced may lie in a later one."""
        self.has_moved = False
        """Whether some sealed index speaks of a record that has been replaced since."""

    def __len__(self) -> int:
        return len(self._addresses)

    def __contains__(self, slot: int) -> bool:
        return self._in_row(slot) or slot in self._moved

    def _in_row(self, slot: int) -> bool:
        return self.first_slot <= slot < self.first_slot + len(self._addresses)

    def from_slot(self, slot: int, end: int) -> range:
        """The slots from one on, up to `end`, as far as they are known without a gap."""
        if self._in_row(slot):
            return range(slot, end)
        return range(slot, slot + 1) if slot in self._moved else range(0)

    def begin_at(self, slot: int) -> None:
        """Nothing is known of the slots below."""
        self.first_slot = slot
        self._addresses, self._command_sizes, self._sealed_count = array("Q"), array("I"), 0

    def append(self, address: int, command_size: int) -> None:
        """The next slot's record."""
        self._addresses.append(address)
        self._command_sizes.append(command_size)

    def move(self, slot: int, record: JournalRecord) -> None:
        """Another record of the same slot takes the place of a damaged one."""
        self._set(slot, record.address, len(record.command))
        self.has_moved = self.has_moved or slot - self.first_slot < self._sealed_count

    def _set(self, slot: int, address: int, command_size: int) -> None:
        self._moved[slot] = (address, command_size)
        if self._in_row(slot):
            self._addresses[slot - self.first_slot] = address
            self._command_sizes[slot - self.first_slot] = command_size

    def record_address(self, slot: int) -> int:
        return self._addresses[slot - self.first_slot] if self._in_row(slot) else self._moved[slot][0]

    def body_address(self, slot: int) -> int:
        in_row = self._in_row(slot)
        command_size = self._command_sizes[slot - self.first_slot] if in_row else self._moved[slot][1]
        return self.record_address(slot) + HEADER_SIZE + command_size

    def within(self, start: int, end: int) -> list[int]:
        """The slots whose records begin between two addresses."""
        apart = [slot for slot in self._moved if not self._in_row(slot) and start <= self._moved[slot][0] < end]
        return apart + [slot for slot, each in enumerate(self._addresses, self.first_slot) if start <= each < end]

    def seal(self, state: bytes) -> Piece:
        """What came since the last seal, beside the state's index."""
        start = self._sealed_count
        addresses, command_sizes = self._addresses[start:].tobytes(), self._command_sizes[start:].tobytes()
        moved = tuple((slot, address, command_size) for slot, (address, command_size) in self._moved.items())
        return Piece(self.first_slot + start, addresses, command_sizes, state, moved)

    def mark_sealed(self) -> None:
        self._sealed_count = len(self._addresses)
        self.has_moved = False

    def load(self, pieces: list[Piece], next_slot: int) -> None:
        """Takes what `seal` made, as much as reaches to a slot without a gap."""
        self.begin_at(next_slot)
        self._moved = {}
        for piece in pieces:
            if piece.first_slot != self.first_slot + len(self):
                self.begin_at(piece.first_slot)  # A piece before it is gone.
            self._addresses.frombytes(piece.addresses)
            self._command_sizes.frombytes(piece.command_sizes)
            for slot, address, command_size in piece.moved:
                self._set(slot, address, command_size)
        if self.first_slot + len(self) != next_slot:
            self.begin_at(next_slot)
        self.mark_sealed()

    def forget_below(self, address: int) -> None:
        """The segments below an address are gone."""
        count = 0
        for number, each in enumerate(self._addresses):
            if each < address:
                count = number + 1  # Also what lies before it is of no use: others are sent slots without a gap.
            elif number - count > DISORDER_MAX:
                break
        del self._addresses[:count], self._command_sizes[:count]
        self.first_slot += count
        self._sealed_count = max(0, self._sealed_count - count)
        self._moved = {slot: place for slot, place in self._moved.items() if place[0] >= address}
