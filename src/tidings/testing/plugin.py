"""Fixtures of pytest: `tidings_bus`, `tidings_broker`, `tidings_clock` and `tidings_settings`.

They are there where tidings is installed. Until a test asks for one, nothing is started, and nothing else of tidings
that costs time is imported.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tidings.client.bus import Bus
    from tidings.node.clock import ManualClock
    from tidings.testing import Broker

MEMORY = Path("/dev/shm")
FREE_BYTES_MIN = 256 * 1024 * 1024


@pytest.fixture
def tidings_settings() -> dict[str, Any]:
    """The settings of the test's broker; a test module that wants others defines a fixture of this name."""
    return {"durability": "os"}


@pytest.fixture
def tidings_clock() -> ManualClock:
    """A clock that stands still until the test advances it; whichever test asks for it, its broker goes by it."""
    from tidings.testing import ManualClock

    return ManualClock()


@pytest.fixture
def tidings_bus(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, tidings_settings: dict[str, Any]
) -> Iterator[Bus]:
    """A fresh and empty bus without a server, for the client `test`."""
    import tidings

    with (
        _folder(tmp_path_factory) as folder,
        tidings.open(folder, client_id="test", clock=_clock(request), **tidings_settings) as bus,
    ):
        yield bus


@pytest.fixture
def tidings_broker(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, tidings_settings: dict[str, Any]
) -> Iterator[Broker]:
    """A fresh and empty broker at a port of its own, in a thread: `tidings_broker.connect("alice")`."""
    from tidings.testing import Broker

    with (
        _folder(tmp_path_factory) as folder,
        Broker(folder, _clock(request), **tidings_settings) as broker,
    ):
        yield broker


@contextlib.contextmanager
def _folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """In memory where there is room: a new journal takes ten syncs, and no test of a program is about power cuts."""
    if not (os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free >= FREE_BYTES_MIN):
        yield tmp_path_factory.mktemp("tidings")
        return
    with tempfile.TemporaryDirectory(prefix="tidings-", dir=MEMORY, ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def _clock(request: pytest.FixtureRequest) -> Callable[[], int] | None:
    """The test's clock if it has asked for one, directly or by another fixture."""
    if "tidings_clock" not in request.fixturenames:
        return None
    clock: ManualClock = request.getfixturevalue("tidings_clock")
    return clock
