"""The way from a Spark process to the broker: one connection for each process, kept from task to task.

Spark reuses its Python workers, so the next task of a query finds the connection open. One that has failed, or that
nobody has used for an hour, is made again.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator

from tidings.client import connect_worker
from tidings.client.bus import Bus
from tidings.spark.options import Door

TRY_S = 2.5
FIRST_RETRIES = 3
"""A broker that is not there when a query begins is noticed soon; later it is waited for longer (option timeout)."""
UNUSED_S_MAX = 3600.0

_buses: dict[tuple[int, Door], tuple[Bus, float]] = {}
"""By process, because a worker may have been forked from one that had a connection."""


@contextlib.contextmanager
def bus_of(door: Door, begins: bool = False) -> Iterator[Bus]:
    """The connection of this process to a broker, for one task, or for the planning with which a query `begins`."""
    key = (os.getpid(), door)
    bus, used_at = _buses.pop(key, (None, 0.0))
    if bus is not None and time.monotonic() - used_at > UNUSED_S_MAX:
        bus.close()
        bus = None
    if bus is None:
        bus = connect_worker(
            door.bus,
            door.user,
            keys=door.keys,
            server_key=door.server_key,
            timeout=min(TRY_S, door.timeout_s),
            retries=FIRST_RETRIES if begins else max(1, round(door.timeout_s / TRY_S)),
        )
        bus.be_patient(door.timeout_s)
    try:
        yield bus
    except GeneratorExit:  # Nobody wants the rest of what the task reads: the connection is as good as before.
        _buses[key] = (bus, time.monotonic())
        raise
    except BaseException:
        bus.close()  # The next task begins with a connection of its own.
        raise
    _buses[key] = (bus, time.monotonic())
