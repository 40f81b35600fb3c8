"""What every request and every answer begins with."""

from __future__ import annotations

import msgspec

from tidings.protocols.fields import RequestNumber


class Request(msgspec.Struct, frozen=True, array_like=True, kw_only=False):
    """What a client asks; `request` comes back in the answer."""

    request: RequestNumber


class Answer(msgspec.Struct, frozen=True, array_like=True):
    request: int
