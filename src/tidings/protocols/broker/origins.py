"""What is remembered of a request while a command is on its way to the disk: whom to answer, and what comes next."""

from __future__ import annotations

from typing import Any

import msgspec

from tidings.protocols.effects import Peer
from tidings.protocols.events import Received


class Origin(msgspec.Struct, frozen=True):
    """Whom to answer once a command is durable."""

    peer: Peer
    message: Any


class Adopting(msgspec.Struct, frozen=True):
    """A request that is taken once the epoch that it names has been written down."""

    received: Received

    @property
    def peer(self) -> Peer:
        return self.received.peer

    @property
    def message(self) -> Any:
        return self.received.message


class Reporting(msgspec.Struct, frozen=True):
    """The one who wants a command durable asks only what came of it."""

    about: Any
