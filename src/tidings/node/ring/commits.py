"""Commits over several groups at a node that leads its group: it coordinates those of the clients whose homes the group
owns, and holds the parts of those that concern its topics.

While a part of a client's commit is held, whatever else comes from that client waits here in the order in which it
came.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from tidings.errors import Moved, TidingsError
from tidings.node.ring.roles import RingNode
from tidings.protocols.broker import messages
from tidings.protocols.broker.bulk import Publish
from tidings.protocols.broker.machine import Machine
from tidings.protocols.broker.rights import check_right
from tidings.protocols.broker.staged import sink_key
from tidings.protocols.effects import Effect, Report, Send
from tidings.protocols.events import Received
from tidings.protocols.ring.commit_attempts import send_away
from tidings.protocols.ring.commit_commands import COMMIT_ID_BYTES
from tidings.protocols.ring.commit_coordinator import Begun, CommitCoordinator, Decided, Ended
from tidings.protocols.ring.commit_messages import (
    AskDecision,
    CommitMessage,
    Decision,
    PartDone,
    PartPrepared,
    PartRefused,
    PreparePart,
)
from tidings.protocols.ring.commit_owner import CommitOwner, Held, Resolved
from tidings.protocols.ring.key_ranges import client_of, home_of
from tidings.protocols.ring.policy import publishes_alone, ring_of
from tidings.protocols.ring.transfer import AtHome
from tidings.wire.codec import Frame

WAITING_MAX = 10_000
"""Requests that wait for commits to be decided; one more is sent away, and comes again."""
WAITING_BYTES_MAX = 256 * 1024 * 1024
WAITING_MS_MAX = 3_000


class Adopted(NamedTuple):
    """Wants to be taken once the epoch that it names has been written down."""

    received: Received


class LeaderCommits:
    """What a leader does for commits over several groups."""

    def __init__(self, node: RingNode, machine: Machine, is_closing: Callable[[int], bool]) -> None:
        self._node = node
        self._machine = machine
        self._is_closing = is_closing
        """Whether ranges are to be given as soon as no commit concerns them, so that none may begin at a time."""
        self.coordinator = CommitCoordinator(
            machine, node.directory, node.seek, node.suspect, lambda: node.draw_bytes(COMMIT_ID_BYTES)
        )
        self.owner = CommitOwner(machine, node.directory, node.seek)
        self._waiting: list[Received] = []
        self._waiting_bytes = 0

    def take(self, received: Received) -> None:
        """A client's request over topics of several groups, to the owner of its home, or of that of its query."""
        engine, message = self._node.engine, received.message
        try:
            check_right(engine.settings.admins, received.user, message)
            engine.run(self.coordinator.take(received))
        except TidingsError as error:  # What speaks against it has to be what the group knows, and not only this node.
            refused = messages.Failed(message.request, error.number, str(error))
            self._node.group.waiting.confirm(received, [Send(received.peer, refused)])

    def publishes(self, received: Received) -> bool:
        """Takes a request to publish what lies with other owners too; False for any other, and for what is published.

        One that comes while a batch of the same sink is being published waits until that is over.
        """
        ring, message = ring_of(self._machine), received.message
        if ring is None or not isinstance(message, Publish):
            return False
        client = client_of(sink_key(message.query, message.sink))
        if not ring.serves(home_of(client)):
            return False
        if not self.coordinator.has_begun(client):
            if self._machine.stages.is_published(message.query, message.batch, message.sink):
                return False
            if publishes_alone(ring, client, message.stages):
                return False
        self.take(received)
        return True

    def receive(self, now_ms: int, message: CommitMessage, bodies: Sequence[Frame]) -> None:
        """What the leader of a group says."""
        self._node.engine.run(self._answer(now_ms, message, tuple(bodies)))

    def _answer(self, now_ms: int, message: CommitMessage, bodies: tuple[Frame, ...]) -> list[Effect]:
        own, ring = self._node.descriptor(), ring_of(self._machine)
        if ring is None:
            return []
        match message:
            case PreparePart(group=group) if group == own.group and not self._is_closing(now_ms):
                return self.owner.on_prepare(now_ms, own, message, bodies)
            case Decision(group=group) if group == own.group:
                return self.owner.on_decision(now_ms, message)
            case PartPrepared():
                return self.coordinator.on_prepared(message)
            case PartRefused():
                return self.coordinator.on_refused(message)
            case PartDone():
                return self.coordinator.on_done(now_ms, message)
            case AskDecision():
                return self.coordinator.on_asked(own, message)
        return []

    def on_report(self, now_ms: int, report: Report) -> None:
        """What came of a command of ours."""
        own, about, error = self._node.descriptor(), report.about, report.error
        effects: list[Effect] = []
        match about:
            case Adopted(received):
                self._on_adopted(now_ms, received, error)
            case Begun():
                effects = self.coordinator.on_begun(now_ms, own, about, error)
            case Decided():
                happens = bool(report.result) if error is None else None
                effects = self.coordinator.on_decided(now_ms, own, about, happens, error)
            case Ended():
                effects = self.coordinator.on_ended(now_ms, about)
            case Held():
                effects = self.owner.on_held(own, about, error)
            case Resolved():
                effects = self.owner.on_resolved(own, about, report.result, error)
        self._node.engine.run(effects)
        if isinstance(about, Resolved):
            self._let_on(now_ms)

    def _on_adopted(self, now_ms: int, received: Received, error: Exception | None) -> None:
        if error is None:
            self._node.admit(msgspec.structs.replace(received, now_ms=now_ms), AtHome(0, False))
        elif isinstance(error, TidingsError) and not isinstance(error, Moved):
            refused = messages.Failed(received.message.request, error.number, str(error))
            self._node.engine.reply(received.peer, refused)
        else:
            self._send_away([received])

    def tick(self, now_ms: int) -> list[Effect]:
        """What is due."""
        if ring_of(self._machine) is None:
            return []
        own = self._node.descriptor()
        self.coordinator.is_closing = self._is_closing(now_ms)
        self._let_on(now_ms)
        return self.coordinator.tick(now_ms, own) + self.owner.tick(now_ms, own)

    def awaited(self) -> Iterator[bytes]:
        """Groups that owe an answer."""
        if ring_of(self._machine) is not None:
            yield from self.coordinator.awaited()
            yield from self.owner.awaited()

    # What waits for a decision.

    def holds_back(self, received: Received) -> bool:
        """Whether a request has to wait, because a part of its client's commit is held here; it waits then."""
        ring, message = ring_of(self._machine), received.message
        if ring is None or not ring.commits.held or isinstance(message, messages.Beat):
            return False
        if getattr(message, "client", None) not in ring.commits.held:
            return False
        self._waiting_bytes += sum(map(len, received.bodies))
        if len(self._waiting) >= WAITING_MAX or self._waiting_bytes > WAITING_BYTES_MAX:
            self._send_away([received])
        else:
            self._waiting.append(received)
        return True

    def _let_on(self, now_ms: int) -> None:
        """Takes what need not wait any longer, and sends away what has waited too long."""
        if not self._waiting:
            return
        waiting, self._waiting, self._waiting_bytes = self._waiting, [], 0
        late = [each for each in waiting if now_ms - each.now_ms > WAITING_MS_MAX]
        self._send_away(late)
        for each in waiting:
            if each not in late and not self.holds_back(each):
                self._node.admit(msgspec.structs.replace(each, now_ms=now_ms))

    def _send_away(self, received: list[Received]) -> None:
        for each in received:
            self._node.engine.reply(each.peer, send_away(each.message.request))

    def reset(self) -> None:
        """We lead no longer, or what is owned has changed: everybody asks again."""
        waiting, self._waiting, self._waiting_bytes = self._waiting, [], 0
        self._send_away(waiting)
        self.owner.reset()
        self._node.engine.run(self.coordinator.reset())
