"""Slots whose records are damaged on this node's disk, and are wanted from the others."""

from __future__ import annotations

from typing import NamedTuple

from tidings.journal.recovery import Span
from tidings.node.places import Places

ASKED_MAX = 16
"""Damaged slots that are asked for at a time."""


class Move(NamedTuple):
    """A value that lies somewhere else now."""

    address: int
    size_bytes: int
    new_address: int

    def follow(self, address: int) -> int:
        """Where to find what was at an address."""
        inside = self.address <= address < self.address + self.size_bytes
        return address - self.address + self.new_address if inside else address


class Repairs:
    """What is damaged, until it has come or is needed no longer."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._slots: dict[int, None] = {}
        self.moves: list[Move] = []
        """What has come and been stored since somebody looked."""

    def __contains__(self, slot: int) -> bool:
        return slot in self._slots

    def find(self, span: Span) -> tuple[bool, list[int]]:
        """What lies between two addresses: whether anything does that others may have, and what to ask for now."""
        slots = self._places.within(*span)
        new = [slot for slot in slots if slot not in self._slots]
        self._slots.update(dict.fromkeys(slots))
        return bool(slots), new[:ASKED_MAX]

    def left(self) -> list[int]:
        """What has not come yet."""
        self._slots = {slot: None for slot in self._slots if slot in self._places}  # Or their segments are gone.
        return list(self._slots)

    def drop(self, slot: int) -> None:
        """It is on its way to the disk."""
        self._slots.pop(slot, None)

    def came(self, slot: int, move: Move) -> None:
        """It is stored again, at another place."""
        self.drop(slot)
        self.moves.append(move)
