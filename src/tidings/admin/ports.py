"""Addresses of this machine for processes that have to know each other's before they start."""

from __future__ import annotations

import random
import socket
from contextlib import closing

PORTS = range(10_000, 32_000)
"""Below those that the system gives to outgoing connections, which must not take the port of a node that is down."""


def free_address() -> str:
    """An address of loopback at which nobody listens."""
    while True:
        port = random.SystemRandom().choice(PORTS)
        with closing(socket.socket()) as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return f"tcp://127.0.0.1:{port}"


def free_addresses(count: int) -> list[str]:
    """So many of them, all different."""
    found: dict[str, None] = {}
    while len(found) < count:
        found[free_address()] = None
    return list(found)
