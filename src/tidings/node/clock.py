"""The clock of a process that runs for long."""

from __future__ import annotations

import time


class Clock:
    """Milliseconds since 1970 that never go back and never stand still, whatever is done to the machine's clock."""

    def __init__(self) -> None:
        self._began_ns = time.time_ns() - time.monotonic_ns()

    def __call__(self) -> int:
        return (self._began_ns + time.monotonic_ns()) // 1_000_000
