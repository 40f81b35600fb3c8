"""What settings are checked for when they are made."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence

import msgspec

from tidings.errors import InvalidRequest


def require(condition: bool, sentence: str) -> None:
    """InvalidRequest with this sentence unless the condition holds."""
    if not condition:
        raise InvalidRequest(sentence)


def check_above_zero(settings: msgspec.Struct, or_zero: tuple[str, ...] = ()) -> None:
    """InvalidRequest if a number among the settings is 0 or below; those named in `or_zero` may be 0."""
    for name in settings.__struct_fields__:
        value = getattr(settings, name)
        if isinstance(value, int | float) and not isinstance(value, bool):
            bound = "0 or above" if name in or_zero else "above 0"
            require(
                value > 0 or (value == 0 and name in or_zero), f"The setting {name} must be {bound}: it is {value}."
            )


def check_reachable(address: str) -> None:
    """InvalidRequest if an address is not one at which others could reach a node."""
    require(
        len(address) <= 200 and re.fullmatch(r"tcp://[^\s/,*]+:[1-9]\d{0,4}", address) is not None,
        f"The address {address!r} cannot be reached by other nodes: write tcp://HOST:PORT.",
    )


def check_door(what: str, host: str, allow: Sequence[str], option: str) -> None:
    """InvalidRequest if a gateway that has no keys is to listen where strangers could use it.

    >>> check_door("--sockets", "0.0.0.0", ("10.0.0.0/24",), "--sockets-allow")
    """
    try:
        loopback = ipaddress.IPv4Address(host).is_loopback
    except ValueError:
        raise InvalidRequest(f"{what} cannot listen on {host!r}: give an IPv4 address, such as 127.0.0.1.") from None
    for network in allow:
        try:
            ipaddress.IPv4Network(network)
        except ValueError as error:
            raise InvalidRequest(f"{option} cannot use {network!r} ({error}): write networks as 10.0.0.0/24.") from None
    require(
        loopback or bool(allow),
        f"{what} has no keys: to listen on {host}, name the networks that may use it, as in {option} 10.0.0.0/24.",
    )
