"""What a runtime tells a protocol. Time always comes in with the event; protocols have no clock."""

from __future__ import annotations

from typing import Any

import msgspec

from tidings.protocols.effects import Peer


class Event(msgspec.Struct, frozen=True, gc=False):
    now_ms: int


class Received(Event, frozen=True):
    """A message came from a peer. `bodies` are the frames behind it, `batches` what the wire found in them."""

    peer: Peer
    message: Any
    bodies: tuple[bytes | memoryview, ...] = ()
    batches: tuple[Any, ...] = ()
    user: str | None = None
    """Whom the peer's key belongs to, where connections are authenticated."""


class Persisted(Event, frozen=True):
    """What `Persist` asked for is durable: `time_ms` and `body_address` are as the journal holds them."""

    command: Any
    time_ms: int
    body_address: int
    origin: Any


class Refused(Event, frozen=True):
    """What `Persist` asked for could not be written, and was not."""

    command: Any
    origin: Any
    error: Exception


class Ticked(Event, frozen=True):
    """Some time has passed."""


class Damaged(Event, frozen=True):
    """Not all stored batches that an effect wants can be read: only `readable` of them, then comes one that cannot."""

    effect: Any
    readable: int
    reason: str | None
    """What is wrong with that one; None if it may yet come from another member, and is only to be waited for."""


class Moved(Event, frozen=True):
    """What an effect wants to read does not lie there any more: retention let it go, or copied it forward."""

    effect: Any


class Examined(Event, frozen=True):
    """What `Examine` asked for: the columns of each place, in their order."""

    batches: tuple[Any, ...]
    origin: Any
