"""The scrub: everything stored is read again now and then, to see whether the disk still has what it was given.

A little is read at every tick, so that nobody waits for it. The pace follows the size of the journal: all of it comes
by once within `scrub_hours`, and a small one sooner.
"""

from __future__ import annotations

from typing import Protocol

from tidings.journal.checked import DamagedPlace

SLICE_BYTES = 256 * 1024
"""Read at least this much, or wait until it is due."""
SLICE_BYTES_MAX = 4 * 1024 * 1024
"""What one tick reads at most."""
PACE_MIN = 1024 * 1024
"""Bytes a second, however small the journal is."""


class Stored(Protocol):
    """What is read: a journal, or the files of one that is another's."""

    remote: bool
    """Whether the files are in use by another process, which then looks after them."""

    @property
    def size_bytes(self) -> int:
        """How much there is."""

    def scrub(self, address: int, size: int) -> tuple[int, list[DamagedPlace]]:
        """Reads as much from an address on; where to go on, 0 after the end, and what is damaged there."""


class Scrub:
    """Goes round and round through what is stored."""

    def __init__(self, stored: Stored, hours: float) -> None:
        self._stored = stored
        self._seconds = hours * 3600
        self._address = 0
        self._due = 0.0
        self._at_ms: int | None = None

    def tick(self, now_ms: int) -> list[DamagedPlace]:
        """Reads what is due; where it found the disk damaged."""
        elapsed_ms = 0 if self._at_ms is None else max(0, now_ms - self._at_ms)
        self._at_ms = now_ms
        stored = self._stored
        if stored.remote:
            return []
        pace = max(PACE_MIN, stored.size_bytes / self._seconds)
        self._due = min(self._due + pace * elapsed_ms / 1000, SLICE_BYTES_MAX)
        if self._due < SLICE_BYTES:
            return []
        self._address, found = stored.scrub(self._address, int(self._due))
        self._due = 0.0
        return found
