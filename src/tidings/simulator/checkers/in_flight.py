"""Who has what of a group's messages, judged by what leaves the broker and by what is durable.

The checkers of groups share this picture. A message is in the hands of the session that the broker last sent it to,
until it is acked, given back, or until that member's stream begins again without it. When a message of a lane goes
to another member, whatever the first one had behind it in that lane is no longer in flight either.
"""

from __future__ import annotations

from collections.abc import Iterable

from tidings.protocols.broker import commands, messages
from tidings.simulator.checkers.checker import Checker, Process
from tidings.simulator.checkers.ledger import Existing, Ledger

GROUP = "crew"
TOPIC = "work"

Session = tuple[str, int]
"""A member's name and its epoch."""
Lane = str | bytes | tuple[str, bytes]


class InFlight(Checker):
    """The picture of one group. It breaks no rule; of all checkers it comes last, because the others see an observation
    before the picture changes by it.
    """

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger)
        self.lanes: dict[str, Lane] = {}
        """message -> its lane, for those that have one; set by the workload."""
        self.acked: dict[int, Session | None] = {}
        """offset -> whose ack was accepted; None when the message went to the dead letters."""
        self.holders: dict[int, Session] = {}
        self.lives: dict[Session, str] = {}
        """Which process each session is of."""
        self._streams: dict[tuple[str, int], Session] = {}
        self._newest: dict[str, int] = {}
        self._paused: dict[str, None] = {}
        self._leaving: dict[str, None] = {}
        self._of_lane: dict[Lane, list[int]] = {}
        self._known = 0

    @property
    def all_acked(self) -> bool:
        """Whether nothing is left to do for anybody."""
        return len(self.acked) == len(self.ledger.topics.get(TOPIC, ()))

    def lane(self, offset: int) -> Lane | None:
        return self.lanes.get(self.ledger.topics[TOPIC][offset])

    def unacked(self, offset: int) -> list[int]:
        """The unacked messages of a message's lane, rising; none if it has no lane."""
        stored = self.ledger.topics[TOPIC]
        for number in range(self._known, len(stored)):
            found = self.lanes.get(stored[number])
            if found is not None:
                self._of_lane.setdefault(found, []).append(number)
        self._known = len(stored)
        lane = self.lane(offset)
        return [] if lane is None else [each for each in self._of_lane[lane] if each not in self.acked]

    def session(self, process: Process, stream: int) -> Session:
        """The session that has this stream open."""
        return self._streams[process.label, stream]

    def begins(self, process: Process, working: messages.Working) -> bool:
        """Whether this answer begins a stream, and does not only say that it stands."""
        return working.stream > self._newest.get(process.label, 0)

    # What happens.

    def on_request(self, process: Process, request: messages.AnyRequest) -> None:
        if isinstance(request, messages.Work):
            session = (request.client, request.epoch)
            self._streams[process.label, request.stream] = session
            self.lives[session] = process.label

    def on_existing(self, existing: Existing) -> None:
        command = existing.command
        if existing.error is not None:
            return
        if isinstance(command, commands.GroupAck):
            for offset in command.spread():
                self.acked.setdefault(offset, (command.client, command.epoch))
                self.holders.pop(offset, None)
        elif isinstance(command, commands.DeadLetter):
            self.acked.setdefault(command.offset, None)
            self.holders.pop(command.offset, None)
        elif isinstance(command, commands.Leave):
            self._leaving[command.client] = None
        elif isinstance(command, commands.Close):
            self._paused[command.client] = None
        elif isinstance(command, commands.Join):
            self._paused.pop(command.client, None)

    def on_recovered(self) -> None:
        """Members at rest have nothing in flight."""
        for name in (*self._paused, *self._leaving):
            self._empty(name)
        self._leaving.clear()

    def on_answer(self, process: Process, answer: object) -> None:
        if isinstance(answer, messages.GroupBatch):
            session = self.session(process, answer.stream)
            for offset in answer.offsets:
                self._hand(session, offset)
        elif isinstance(answer, messages.Working) and self.begins(process, answer):
            self._newest[process.label] = answer.stream
            session = self.session(process, answer.stream)
            self._empty(session[0])
            for offset in kept(answer):
                self._hand(session, offset)
        elif isinstance(answer, messages.LeaveDone):  # What was sent to it in the same commit comes before this.
            self._leaving.pop(process.name, None)
            self._empty(process.name)
        elif isinstance(answer, messages.GroupNackDone):
            for offset in spread(answer.ranges):
                if self.holders.get(offset, ("", 0))[0] == process.name:
                    del self.holders[offset]

    def _hand(self, session: Session, offset: int) -> None:
        self.holders[offset] = session
        for other in self.unacked(offset):
            if other > offset and self.holders.get(other, session) != session:
                del self.holders[other]

    def _empty(self, name: str) -> None:
        self.holders = {offset: holder for offset, holder in self.holders.items() if holder[0] != name}


def spread(ranges: Iterable[tuple[int, int]]) -> list[int]:
    """The offsets in these ranges."""
    return [offset for start, end in ranges for offset in range(start, end)]


def kept(working: messages.Working) -> list[int]:
    """Everything that a member keeps when its stream begins, rising."""
    return sorted(offset for each in working.kept for offset in spread(each.ranges))
