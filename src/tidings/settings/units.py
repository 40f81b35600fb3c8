"""Times and sizes as people write them: `90s`, `7d`, `500MB`, `1GiB`."""

from __future__ import annotations

import re
from collections.abc import Mapping

_TIMES_MS = {"ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_SIZES = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}


def duration_ms(text: str) -> int:
    """A time such as 90s, 15m, 12h or 7d, in milliseconds. Anything else is a ValueError that says so.

    >>> duration_ms("7d"), duration_ms("1.5s")
    (604800000, 1500)
    """
    return _read(text, _TIMES_MS, "a time such as 90s, 15m, 12h or 7d")


def size_bytes(text: str) -> int:
    """A size such as 500MB or 1GiB, in bytes. Anything else is a ValueError that says so.

    >>> size_bytes("1GB"), size_bytes("4KiB"), size_bytes("10")
    (1000000000, 4096, 10)
    """
    return _read(text, _SIZES, "a size such as 500MB, 1GB or 1GiB")


def _read(text: str, units: Mapping[str, int], what: str) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", text.strip())
    value = round(float(match[1]) * units.get(match[2].lower(), 0)) if match is not None else 0
    if value < 1:
        raise ValueError(f"{text!r} is not {what}")
    return value
