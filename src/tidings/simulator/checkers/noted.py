"""Who is told of a new session: every group that serves a name, so that the older one does nothing anywhere.

Both checkers go by what groups have decided, in its order, and by what was said to clients.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tidings.protocols.broker import commands, messages
from tidings.protocols.ring.key_ranges import home_of, owns
from tidings.protocols.ring.transfer import is_anonymous
from tidings.simulator.checkers.checker import Checker, Process
from tidings.simulator.checkers.ledger import Existing
from tidings.simulator.checkers.ring_ledger import RingLedger
from tidings.simulator.checkers.rules import FENCED

TOLD_MS_MAX = 1_500
"""How long a hello waits for groups that do not answer."""
SERVED = (
    commands.Write
    | commands.Subscribe
    | commands.Attach
    | commands.Unsubscribe
    | commands.Join
    | commands.Leave
    | commands.GroupAck
    | commands.Stage
    | commands.Publish
)
"""What a group takes from a client."""


class NotedAtHome(Checker):
    """The home of a name has a list of those to tell of a new session, and each group that serves the name is in it."""

    RULE = "who serves a name is noted at its home"

    def __init__(self, ledger: RingLedger) -> None:
        super().__init__(ledger)
        self._ring = ledger

    def on_decided(self, group: str, existing: Existing) -> None:
        command: Any = existing.command
        if existing.error is not None or not isinstance(command, SERVED) or is_anonymous(command.client):
            return
        point = home_of(command.client)
        home = next((other for other, held in self._ring.held.items() if owns(held, point)), group)
        client = self._ring.of[home].reference.clients.get(command.client)
        if home == group or client is None or not client.token or client.noted is None:
            return
        noted = [self._ring.names[each] for each in client.noted]
        if group not in noted:
            self.broken(f"{group} accepts {command}, and {home}, its client's home, would tell only {noted}")


class FencedEverywhere(Checker):
    """Once a session has been welcomed, no older one of its name changes anything in any group.

    A hello waits for some time for groups that do not answer; one that has waited so long says nothing.
    """

    RULE = FENCED

    def __init__(self, ledger: RingLedger, now_ms: Callable[[], int]) -> None:
        super().__init__(ledger)
        self._now_ms = now_ms
        self._hellos: dict[tuple[str, int], str] = {}
        self._opened_ms: dict[tuple[str, int], int] = {}
        """(name, epoch) -> when it was given."""
        self._welcome: dict[str, int] = {}
        """name -> the newest epoch of which all were told."""

    def on_request(self, process: Process, request: messages.AnyRequest) -> None:
        if isinstance(request, messages.Hello):
            self._hellos[process.label, request.request] = request.client

    def on_answer(self, process: Process, answer: object) -> None:
        if isinstance(answer, messages.Welcome):
            name = self._hellos[process.label, answer.request]
            opened_ms = self._opened_ms.get((name, answer.epoch))
            if opened_ms is not None and self._now_ms() - opened_ms < TOLD_MS_MAX:
                self._welcome[name] = max(answer.epoch, self._welcome.get(name, 0))

    def on_decided(self, group: str, existing: Existing) -> None:
        command: Any = existing.command
        if existing.error is not None:
            return
        if isinstance(command, commands.Open):
            self._opened_ms.setdefault((command.client, int(existing.result)), self._now_ms())  # type: ignore[call-overload]
        elif isinstance(command, SERVED) and command.epoch < self._welcome.get(command.client, 0):
            newest = self._welcome[command.client]
            self.broken(f"{group} accepts {command}, and epoch {newest} of {command.client} has been welcomed")
