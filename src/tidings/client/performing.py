"""How both buses begin, and what the parts of a bus build on that have rooms of their own: looking, ranges, staging."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Protocol

from tidings.client.arguments import check_path
from tidings.client.inbox import Inbox
from tidings.client.link import Link
from tidings.client.operations import Core
from tidings.client.session import Session
from tidings.client.shells import AwaitingShell, BlockingShell
from tidings.settings import ClientSettings


def monotonic_ms() -> int:
    """A clock that never goes back."""
    return time.monotonic_ns() // 1_000_000


class BlockingPart(BlockingShell, Protocol):
    """A part of the blocking bus."""

    _core: Core


class AwaitingPart(AwaitingShell, Protocol):
    """A part of the awaiting bus."""

    _core: Core


def begin(
    link: Link,
    client_id: str,
    settings: ClientSettings | None,
    inbox: str | os.PathLike[str] | None,
    anonymous: bool,
    token: bytes | None,
) -> tuple[Session, Inbox | None]:
    """The session of a new bus, and its inbox if it is to have one; the link is closed if that cannot be."""
    address = str(getattr(link, "address", "the broker"))
    session = Session(client_id, token or os.urandom(16), anonymous, settings or ClientSettings(), address)
    try:
        return session, None if inbox is None else Inbox(check_path(inbox, "inbox"), client_id)
    except BaseException:
        link.close()
        raise


def begin_record(core: Core, record: str | os.PathLike[str] | None, close: Callable[[], None]) -> None:
    """The record of a new bus, if it is to have one; the bus is closed if that cannot be."""
    if record is not None:
        try:
            core.record = core.recorder(record)
        except BaseException:
            close()
            core.close_files()
            raise
