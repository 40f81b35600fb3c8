"""File descriptors that connections cannot use up.

A system gives a process so many descriptors, and every connection takes one: anyone who opens enough of them would keep
the journal from opening its next file. A server therefore lets everything else have only a part of them (`reserve`):
the limit that the system holds it to is lowered by what the journal needs, and raised for the moment in which it opens
a file (`spare`). A connection that comes in just this moment takes one of the journal's, until it is closed; there are
many, and those who say nothing are closed after a few seconds. Should none be left for now, the journal waits for one:
it has lost nothing, and is not ended by it.

Without `reserve`, in the process of somebody else's program, nothing of this happens.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

if sys.platform != "win32":  # Clients run there, and reserve nothing.
    import resource

RESERVED = 64
"""Several times what the journal has open, so that it does not matter if connections get some of them for a while."""
MOST = 1 << 16
"""More than this is not asked for, where the system would give any number."""
USED_UP = (errno.EMFILE, errno.ENFILE)
PAUSE_SECONDS = 0.02

Made = TypeVar("Made")


class _Reserve:
    """The limits of this process: for everybody, and for the journal."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.users = 0
        self.usual = 0
        """0 as long as nothing is reserved."""
        self.all = 0

    def set(self, soft: int) -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


_reserve = _Reserve()


def reserve(count: int = RESERVED) -> None:
    """Asks the system for as many descriptors as it gives, and keeps so many of them, half at most, for `spare`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with _reserve.lock:
        if not _reserve.usual:
            _reserve.all = max(soft, MOST) if hard == resource.RLIM_INFINITY else min(hard, max(soft, MOST))
            _reserve.usual = max(_reserve.all - count, _reserve.all // 2)
            _reserve.set(_reserve.usual)


@contextlib.contextmanager
def spare() -> Iterator[None]:
    """For as long as this lasts, descriptors may be had that connections do not get."""
    if not _reserve.usual:
        yield
        return
    with _reserve.lock:
        _reserve.users += 1
        _reserve.set(_reserve.all)
    try:
        yield
    finally:
        with _reserve.lock:
            _reserve.users -= 1
            if not _reserve.users:
                _reserve.set(_reserve.usual)


def insist(make: Callable[[], Made]) -> Made:
    """What `make` makes with a spare descriptor; waits for one if none is left, in a process that has reserved some."""
    while True:
        try:
            with spare():
                return make()
        except OSError as error:
            if error.errno not in USED_UP or not _reserve.usual:
                raise
        time.sleep(PAUSE_SECONDS)


def open_file(path: Path, flags: int, mode: int = 0o600) -> int:
    """`os.open` with a spare descriptor."""
    return insist(lambda: os.open(path, flags, mode))
