"""What settings are checked for when they are made."""

from __future__ import annotations

import re

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
