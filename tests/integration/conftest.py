"""Where the contract tests run: an embedded broker, a broker process, one on a storage server, and rings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import tidings
from tests.integration.broker_process import BrokerProcess, ServerProcess, StorageProcess, StoredBrokerProcess


class House:
    """A place with a bus. Everything that was opened is closed in the end."""

    ORDER_BETWEEN_TOPICS = True
    """Whether one subscription to several topics follows the order in which they were put to."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self._buses: list[tidings.Bus] = []

    def connect(self, client_id: str | None = None, **options: Any) -> tidings.Bus:
        bus = self._open(client_id, **options)
        self._buses.append(bus)
        return bus

    def _open(self, client_id: str | None, **options: Any) -> tidings.Bus:
        raise NotImplementedError

    def restart(self) -> None:
        """The broker's process ends and another one takes over its data."""
        raise NotImplementedError

    def close(self) -> None:
        for bus in self._buses:
            bus.close()
        self._buses.clear()


class EmbeddedHouse(House):
    def __init__(self, data: Path, **settings: Any) -> None:
        super().__init__(data)
        self._settings = settings

    def _open(self, client_id: str | None, **options: Any) -> tidings.Bus:
        return tidings.open(self.data, client_id, **self._settings, **options)

    def restart(self) -> None:
        self.close()


FLAGS = ("topics", "durability", "keys", "admin", "retain_age", "retain_bytes", "lease")
"""Settings that `tidings serve` takes as flags; the others go into its environment."""


class ServedHouse(House):
    broker: ServerProcess

    def __init__(self, data: Path, **settings: Any) -> None:
        super().__init__(data)
        arguments: list[str] = []
        environment: dict[str, str] = {}
        for name, value in settings.items():
            if name in FLAGS:
                arguments += [f"--{name.replace('_', '-')}", str(value)]
            else:
                environment[f"TIDINGS_{name.upper()}"] = str(value)
        self.broker = self._build(arguments, environment).start()

    def _build(self, arguments: list[str], environment: dict[str, str]) -> ServerProcess:
        return BrokerProcess(self.data, *arguments, settings=environment)

    def _open(self, client_id: str | None, **options: Any) -> tidings.Bus:
        return tidings.connect(self.broker.address, client_id, **options)

    def restart(self) -> None:
        self.broker.kill()
        self.broker.start()

    def close(self) -> None:
        super().close()
        self.broker.kill()


class StoredHouse(ServedHouse):
    """E5: a broker whose journal is at a storage server. Both are killed at a restart, the broker first or last."""

    def _build(self, arguments: list[str], environment: dict[str, str]) -> ServerProcess:
        self.storage = StorageProcess(self.data).start()
        self._restarts = 0
        return StoredBrokerProcess(self.storage.address, *arguments, settings=environment)

    def restart(self) -> None:
        self._restarts += 1
        if self._restarts % 2:
            self.storage.kill()
            self.broker.kill()
        else:
            self.broker.kill()
            self.storage.kill()
        self.storage.start()
        self.broker.start()

    def close(self) -> None:
        super().close()
        self.storage.kill()


HOUSES: dict[str, type[House]] = {"embedded": EmbeddedHouse, "served": ServedHouse, "stored": StoredHouse}

CONTRACT, BULK, GROUPS = "test_contract", "test_bulk", "test_groups"
RINGS = {"ring": (CONTRACT, BULK), "large-ring": (CONTRACT, BULK, GROUPS)}
"""Which modules also run on rings. The large one takes seconds to start, so only `make soak` has it."""


def pytest_configure(config: pytest.Config) -> None:
    ServerProcess.forks = config.getoption("markexpr") != "soak"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Runs every test that builds houses once for each kind of house."""
    if "build" not in metafunc.fixturenames:
        return
    module = metafunc.module.__name__.rpartition(".")[2]
    kinds = [pytest.param(name) for name in sorted(HOUSES)]
    for name, modules in RINGS.items():
        if module in modules:
            kinds.append(pytest.param(name, marks=[pytest.mark.soak] if name == "large-ring" else []))
    metafunc.parametrize("build", kinds, indirect=True)


def _kind_of_house(request: pytest.FixtureRequest) -> type[House]:
    if request.param not in RINGS:
        return HOUSES[request.param]
    from tests.integration.ring_house import LargeRingHouse, RingHouse

    return LargeRingHouse if request.param == "large-ring" else RingHouse


@pytest.fixture
def build(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., House]]:
    """Makes houses of one kind, with settings of the broker."""
    kind = _kind_of_house(request)
    houses: list[House] = []

    def make(**settings: Any) -> House:
        house = kind(tmp_path / f"data{len(houses)}", **settings)
        houses.append(house)
        return house

    try:
        yield make
    finally:
        for house in houses:
            house.close()


@pytest.fixture
def house(build: Callable[..., House]) -> House:
    """A house with the default settings."""
    return build()
