"""What is damaged on this node's disk and wanted from the others: the records of slots, and copies that were carried
forward, which have no slot any more."""

from __future__ import annotations

from typing import NamedTuple

from tidings.journal.recovery import Span
from tidings.node.places import Places
from tidings.node.state import State
from tidings.protocols.multipaxos.messages import Fetch, FetchCopy

ASKED_MAX = 16
"""Damaged slots, and damaged copies, that are asked for at a time."""


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
        self._spans: dict[Span, None] = {}
        """Where the disk is damaged, until nothing is wanted of it."""
        self._copies: dict[bytes, bool] = {}
        """Copies that were asked for, and whether they are on their way to the disk."""
        self.moves: list[Move] = []
        """What has come and been stored since somebody looked."""

    def __contains__(self, slot: int) -> bool:
        return slot in self._slots

    def find(self, span: Span, state: State) -> tuple[bool, list[Fetch | FetchCopy]]:
        """What lies between two addresses: whether anything does that others may have, and what to ask for now."""
        slots = self._places.within(*span)
        asked: list[Fetch | FetchCopy] = [Fetch(slot) for slot in slots if slot not in self._slots]
        self._slots.update(dict.fromkeys(slots))
        self._spans[span] = None
        copies = [] if slots else state.copies_within(*span)
        asked += [FetchCopy(copy) for copy in copies if copy not in self._copies]
        self._copies.update({copy: self._copies.get(copy, False) for copy in copies})
        return bool(slots or copies), asked[:ASKED_MAX]

    def left(self, state: State) -> list[Fetch | FetchCopy]:
        """What has not come yet."""
        self._slots = {slot: None for slot in self._slots if slot in self._places}  # Or their segments are gone.
        left: list[Fetch | FetchCopy] = [Fetch(slot) for slot in self._slots]
        known, self._copies = self._copies, {}
        for span in list(self._spans):
            copies = state.copies_within(*span)  # The others may have a slot's messages only as such any more.
            self._copies.update({copy: known.get(copy, False) for copy in copies})
            if not copies and not self._places.within(*span):
                del self._spans[span]
        return left + [FetchCopy(copy) for copy, comes in self._copies.items() if not comes]

    def wants(self, copy: bytes, body: bytes, state: State) -> bool:
        """Whether this copy was asked for and is not on its way to the disk yet; from now on it is."""
        place = state.place_of(copy) if self._copies.get(copy) is False else None
        if place is None or place[1] != len(body):
            return False
        self._copies[copy] = True
        return True

    def copied(self, copy: bytes, new_address: int, state: State) -> None:
        """A copy has been stored, and the state is about to know it."""
        place = state.place_of(copy) if self._copies.pop(copy, False) else None
        if place is not None:
            self.moves.append(Move(*place, new_address))

    def drop(self, slot: int) -> None:
        """It is on its way to the disk."""
        self._slots.pop(slot, None)

    def came(self, slot: int, move: Move) -> None:
        """It is stored again, at another place."""
        self.drop(slot)
        self.moves.append(move)
