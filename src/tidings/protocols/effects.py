"""What a protocol asks its runtime to do. Effects run in the order in which they were returned."""

from __future__ import annotations

from typing import Any

import msgspec

Peer = Any
"""How the runtime tells its connections apart; protocols only hand it back."""


class Effect(msgspec.Struct, frozen=True, gc=False):
    """A command to the runtime."""


class Send(Effect, frozen=True):
    """Send a message to a peer."""

    peer: Peer
    message: msgspec.Struct


class Forward(Effect, frozen=True):
    """Send a message to a peer, with stored bodies behind it."""

    peer: Peer
    message: msgspec.Struct
    places: tuple[Any, ...]
    boot: str = ""
    """The boot of the machine on which somebody can read the journal's files, and only has to be told where."""


class Persist(Effect, frozen=True):
    """Write a command and its bodies into the journal; once it is durable, `Persisted` comes back with `origin`."""

    command: Any
    bodies: tuple[bytes | memoryview, ...] = ()
    origin: Any = None


class Stop(Effect, frozen=True):
    """End the process in good order, once everything before this is done."""


class Examine(Effect, frozen=True):
    """Read stored batches; `Examined` comes back with their columns and `origin`."""

    places: tuple[Any, ...]
    origin: Any


class Share(Effect, frozen=True):
    """Send a message to a peer, with some rows of stored batches behind it."""

    peer: Peer
    message: msgspec.Struct
    picks: tuple[tuple[Any, tuple[int, ...]], ...]
    """A place, and which of its rows."""


class PersistCopy(Effect, frozen=True):
    """Write a command into the journal with a copy of one stored message behind it; `make` gets the copy's size."""

    place: Any
    make: Any
    origin: Any


class Report(Effect, frozen=True):
    """Say what came of a command that is durable now, or why it was refused."""

    about: Any
    result: object
    error: Exception | None
