"""Times and sizes as people write them: `90s`, `7d`, `500MB`, `1GiB`."""

from __future__ import annotations

import argparse
import ipaddress
from collections.abc import Callable

from tidings.settings import units


def duration_ms(text: str) -> int:
    """A time such as 90s, 15m, 12h or 7d, in milliseconds."""
    return _read(units.duration_ms, text)


def size_bytes(text: str) -> int:
    """A size such as 500MB or 1GiB, in bytes."""
    return _read(units.size_bytes, text)


def seconds(text: str) -> float:
    """Seconds, not below zero, as a plain number.

    >>> seconds("2.5")
    2.5
    """
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds")
    return value


def count(text: str) -> int:
    """A whole number above zero.

    >>> count("3")
    3
    """
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


def whole(text: str) -> int:
    """A whole number, 0 or more.

    >>> whole("0")
    0
    """
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number")
    return int(text)


def port(text: str) -> int:
    """A port, or 0 for any that is free.

    >>> port("7480")
    7480
    """
    if not (text.isascii() and text.isdecimal() and len(text) <= 5 and int(text) <= 65_535):
        raise argparse.ArgumentTypeError(f"{text!r} is not a port from 0 to 65535")
    return int(text)


def place(text: str) -> tuple[str | None, int]:
    """Where to listen: a port, or a port of an IPv4 address.

    >>> place("4200"), place("0.0.0.0:4200")
    ((None, 4200), ('0.0.0.0', 4200))
    """
    host, colon, number = text.rpartition(":")
    if colon and not host:
        raise argparse.ArgumentTypeError(f"{text!r} has no host before its colon")
    return (host or None, port(number))


def listening(text: str) -> tuple[str, int]:
    """An IPv4 address to listen at, with a port or at any free one.

    >>> listening("10.0.0.5"), listening("10.0.0.5:4201")
    (('10.0.0.5', 0), ('10.0.0.5', 4201))
    """
    host, colon, number = text.partition(":")
    try:
        return str(ipaddress.IPv4Address(host)), port(number) if colon else 0
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not an IPv4 address as 10.0.0.5 or 10.0.0.5:4201") from None


def networks(text: str) -> tuple[str, ...]:
    """Networks with commas in between; what gets them checks them.

    >>> networks("10.0.0.0/24, 10.1.0.7")
    ('10.0.0.0/24', '10.1.0.7')
    """
    return tuple(each.strip() for each in text.split(","))


def human_bytes(size: int) -> str:
    """A size in the largest unit that keeps it above 1.

    >>> human_bytes(12), human_bytes(1536), human_bytes(3_000_000)
    ('12 B', '1.5 KiB', '2.9 MiB')
    """
    value = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.1f} {unit}" if unit != "B" else f"{size} B"
        value /= 1024
    return f"{value:.1f} TiB"


def _read(read: Callable[[str], int], text: str) -> int:
    try:
        return read(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
