"""What is known to be damaged on this disk: said once in the log, and kept for anyone who asks how the broker is."""

from __future__ import annotations

import logging

from tidings.journal.checked import DamagedPlace

PLACES_MAX = 1_000

_log = logging.getLogger("tidings.node")


class Damages:
    """Damaged places, each once."""

    def __init__(self) -> None:
        self._places: dict[tuple[str, int], str] = {}

    def note(self, damage: DamagedPlace) -> bool:
        """Takes note of a place; whether it is new."""
        key = (damage.name, damage.position)
        if key in self._places or len(self._places) >= PLACES_MAX:
            return False
        self._places[key] = f"{damage.name}:{damage.position}"
        _log.warning("tidings: %s", damage)
        return True

    @property
    def places(self) -> tuple[str, ...]:
        """Each as file and position."""
        return tuple(self._places.values())
