"""How a replica that is behind comes to ask for what it missed.

Anyone who is behind asks, and asks again when no answer comes; anyone who is asked keeps nothing in mind. What is
decided lies on disk, so the runtime answers: with the values, or, when these are gone, with the files of its state.
"""

from __future__ import annotations

from tidings.protocols.multipaxos.log import Log
from tidings.protocols.multipaxos.messages import Fetch, Send
from tidings.settings import ReplicaSettings


class Catchup:
    """The one who asks."""

    def __init__(self, log: Log, settings: ReplicaSettings) -> None:
        self._log = log
        self._settings = settings
        self._asked_at_ms: int | None = None

    def ask(self, now_ms: int, node: int, decided: int) -> list[Send]:
        """Somebody knows every slot below `decided`; asks for what is missing, unless an answer is still to come."""
        if decided <= self._log.decided:
            return []
        asked_at_ms = self._asked_at_ms
        if asked_at_ms is not None and 0 <= now_ms - asked_at_ms < self._settings.fetch_retry_ms:
            return []
        self._asked_at_ms = now_ms
        return [Send((node,), Fetch(self._log.decided))]

    def go_on(self, now_ms: int, node: int, decided: int) -> list[Send]:
        """An answer has come and is taken in: asks for the rest."""
        self._asked_at_ms = None
        return self.ask(now_ms, node, decided)

    def wait(self, now_ms: int) -> None:
        """An answer is coming in, piece by piece."""
        self._asked_at_ms = now_ms
