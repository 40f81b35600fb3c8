"""Which machine this is, and since when it runs."""

from __future__ import annotations

from functools import cache
from pathlib import Path

_BOOT = Path("/proc/sys/kernel/random/boot_id")


@cache
def boot_id() -> str:
    """A name that the kernel draws when the machine starts, the same for all its processes; "" where there is none.

    >>> boot_id() == boot_id()
    True
    """
    try:
        return _BOOT.read_text().strip()
    except OSError:
        return ""
