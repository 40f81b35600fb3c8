"""The way to a broker, as the shells see it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

Frame = bytes | memoryview


class Link(Protocol):
    """Carries frames to a broker and back, in order while it is open, and promises nothing else.

    One thread uses a link at a time. A link may also have an `address`, a text for messages to people, and
    `wake()`, which any thread may call to make a `receive` that waits return soon; without it a wait is cut
    into short pieces.
    """

    def send(self, frames: list[Frame]) -> None:
        """Sends one message without waiting; it may be lost."""

    def receive(self, timeout_ms: int) -> Sequence[Frame] | None:
        """The next message, or None after `timeout_ms` or when woken."""

    def reopen(self, address: str | None = None) -> None:
        """Throws the connection away, with everything not yet sent or received, and makes a new one.

        `address` is where to, for a link that leads to one of several nodes.
        """

    def close(self) -> None:
        """Ends the link."""


class WatchedLink(Link, Protocol):
    """A link that an event loop can watch."""

    def fileno(self) -> int:
        """A file descriptor that becomes readable when something may have come (edge-triggered)."""
