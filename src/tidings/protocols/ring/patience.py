"""Waiting for a command that was asked for. It may be applied soon, or late, or never: only the state tells."""

from __future__ import annotations

from collections.abc import Callable

WAIT_MS = 5_000


class Patience:
    """One command at a time is on its way; when it is not seen for too long, it may be asked for again.

    >>> patience, seen = Patience(), []
    >>> patience.wait(0, lambda: bool(seen))
    >>> patience.is_waiting(10), patience.is_waiting(WAIT_MS)
    (True, False)
    >>> patience.wait(0, lambda: bool(seen)); seen.append(1)
    >>> patience.is_waiting(10)
    False
    """

    def __init__(self) -> None:
        self._is_done: Callable[[], bool] | None = None
        self._until_ms = 0

    @property
    def is_set(self) -> bool:
        """Whether it was on its way when somebody last looked."""
        return self._is_done is not None

    def wait(self, now_ms: int, is_done: Callable[[], bool]) -> None:
        """A command has been asked for; `is_done` says whether it can be seen in the state."""
        self._is_done, self._until_ms = is_done, now_ms + WAIT_MS

    def is_waiting(self, now_ms: int) -> bool:
        """Whether it is still on its way."""
        if self._is_done is not None and (self._is_done() or now_ms >= self._until_ms):
            self._is_done = None
        return self._is_done is not None
