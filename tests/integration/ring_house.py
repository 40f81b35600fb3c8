"""Houses whose bus is a ring: the same contract, served by several groups of real processes."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any, Self

import tidings
from tests.integration.conftest import ServedHouse
from tidings.admin.trial import Trial


class RingProcess:
    """A ring where the tests expect one broker: it is started, killed and started again as a whole."""

    def __init__(self, trial: Trial, groups: int, replicas: int) -> None:
        self.trial = trial
        self._size = (groups, replicas)

    @property
    def address(self) -> str:
        return self.trial.bus

    def start(self) -> Self:
        self.trial.up(*self._size)
        return self

    def kill(self) -> None:
        """SIGKILL to every node; nothing if none was started."""
        self.trial.kill_all()


class RingHouse(ServedHouse):
    """Two groups of one node. Clients come in by all doors in turn."""

    GROUPS, REPLICAS = 2, 1
    ORDER_BETWEEN_TOPICS = False
    broker: RingProcess  # type: ignore[assignment]

    def __init__(self, data: Path, **settings: Any) -> None:
        self._turn = itertools.count()
        try:
            super().__init__(data, **settings)
        except BaseException:
            if hasattr(self, "trial"):
                self.trial.kill_all()
            raise
        self.folder, self.data = self.data, self.data / "a1"
        """What the tests look at is the folder of one journal."""

    def _build(self, arguments: list[str], environment: dict[str, str]) -> RingProcess:  # type: ignore[override]
        self.trial = Trial(self.data, arguments, environment)
        return RingProcess(self.trial, self.GROUPS, self.REPLICAS)

    def _open(self, client_id: str | None, **options: Any) -> tidings.Bus:
        addresses = self.trial.addresses
        door = next(self._turn) % len(addresses)
        return tidings.connect(",".join([*addresses[door:], *addresses[:door]][:16]), client_id, **options)


class LargeRingHouse(RingHouse):
    """Four groups of three."""

    GROUPS, REPLICAS = 4, 3
