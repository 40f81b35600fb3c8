"""Whom a gateway without keys serves: this machine, and the networks that the operator has named."""

from __future__ import annotations

import ipaddress
import logging
import time
from collections.abc import Sequence

LINES_APART_S = 60.0
"""How often, at most, a line says that strangers have been turned away: they must not fill the log."""


class Allowlist:
    """The networks that may use a gateway.

    >>> Allowlist("sockets", ["10.0.0.0/24"]).has("10.0.0.7"), Allowlist("sockets", []).has("10.0.0.7")
    (True, False)
    """

    def __init__(self, gateway: str, networks: Sequence[str]) -> None:
        self._log = logging.getLogger(f"tidings.gateways.{gateway}")
        self._gateway = gateway
        self._networks = [ipaddress.IPv4Network(each) for each in networks]
        self._refused = 0
        self._line_due_at = time.monotonic()

    def has(self, ip: str) -> bool:
        """Whether this address may be served."""
        address = ipaddress.IPv4Address(ip)
        return address.is_loopback or any(address in network for network in self._networks)

    def lets_in(self, ip: str) -> bool:
        """The same for somebody who has connected; the log says who was turned away."""
        if self.has(ip):
            return True
        self._refused += 1
        if time.monotonic() >= self._line_due_at:
            self._line_due_at = time.monotonic() + LINES_APART_S
            self._log.warning(
                "%s: %s is in no network that may connect; %d such connections were closed so far",
                self._gateway,
                ip,
                self._refused,
            )
        return False
