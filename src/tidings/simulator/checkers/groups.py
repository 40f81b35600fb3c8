"""The invariants of groups, one class each. All look at the same picture of who has what (`checkers.in_flight`).

Each sees an observation before the picture changes by it.
"""

from __future__ import annotations

from collections.abc import Callable

from tidings.message import Message
from tidings.node.engine import AnyEngine
from tidings.protocols.broker import commands, messages
from tidings.protocols.broker.consumer_groups.members import LaneSettings
from tidings.simulator.checkers.checker import Checker, Process
from tidings.simulator.checkers.in_flight import GROUP, TOPIC, InFlight, Session, kept, spread
from tidings.simulator.checkers.ledger import Existing

HEARD = (
    messages.Beat,
    messages.Join,
    messages.Leave,
    messages.Work,
    messages.GroupAck,
    messages.GroupNack,
    messages.Extend,
    messages.GroupPause,
)
"""Requests by which the broker knows that a member is there."""


class GroupChecker(Checker):
    """One invariant of groups."""

    def __init__(self, in_flight: InFlight) -> None:
        super().__init__(in_flight.ledger)
        self.in_flight = in_flight

    def name(self, offset: int) -> str:
        return f"{self.ledger.topics[TOPIC][offset]} at {offset}"


class AllAcked(GroupChecker):
    """Every message is acked in the end, by a member or by going to the dead letters, and stays so."""

    RULE = "every message of a group is acked in the end"

    def on_end(self, engine: AnyEngine) -> None:
        group = engine.broker.machine.groups.get((GROUP, TOPIC))
        stored = self.ledger.topics.get(TOPIC, [])
        if group is None:
            self.broken("the group is gone")
        missing = [self.name(offset) for offset in range(len(stored)) if not group.progress.done(offset)]
        if missing:
            self.broken(f"{', '.join(missing)} never acked")


class AckedWasTaken(GroupChecker):
    """Nothing is acked that no application of that session has been given."""

    RULE = "nothing is acked that nobody worked on"

    def __init__(self, in_flight: InFlight) -> None:
        super().__init__(in_flight)
        self._taken: dict[tuple[str, int], None] = {}

    def on_taken(self, process: Process, message: Message) -> None:
        self._taken[process.name, message.offset] = None

    def on_existing(self, existing: Existing) -> None:
        command = existing.command
        if existing.error is None and isinstance(command, commands.GroupAck):
            for offset in command.spread():
                if (command.client, offset) not in self._taken:
                    self.broken(f"{command.client} acked {self.name(offset)}, which it has never taken")


class AckedStaysAcked(GroupChecker):
    """What is acked is not sent to anybody again, and not handed out again by the client that acked it.

    A member that was asleep may go on with what it had been given before; only its ack does not count.
    """

    RULE = "what is acked is never given out again"

    def __init__(self, in_flight: InFlight) -> None:
        super().__init__(in_flight)
        self._finished: dict[str, dict[int, None]] = {}
        """life -> what was acked when it began."""

    def on_process(self, process: Process) -> None:
        self._finished[process.label] = dict.fromkeys(self.in_flight.acked)

    def on_answer(self, process: Process, answer: object) -> None:
        given: list[int] = []
        if isinstance(answer, messages.GroupBatch):
            given = list(answer.offsets)
        elif isinstance(answer, messages.Working):
            given = kept(answer)
        again = [self.name(offset) for offset in given if offset in self.in_flight.acked]
        if again:
            self.broken(f"{process.label} is given {', '.join(again)}, which is acked")

    def on_taken(self, process: Process, message: Message) -> None:
        offset = message.offset
        if offset in self._finished[process.label]:
            self.broken(f"{process.label} takes {self.name(offset)}, which was acked before it began")
        session = self.in_flight.acked.get(offset)
        if session is not None and self.in_flight.lives[session] == process.label:
            self.broken(f"{process.label} takes {self.name(offset)}, which it has acked itself")


class LanesInOrder(GroupChecker):
    """A message is given out when every earlier one of its lane is acked or in the same hands."""

    RULE = "each lane is given out in order"

    def __init__(self, in_flight: InFlight) -> None:
        super().__init__(in_flight)
        self._taken: dict[str, dict[int, None]] = {}

    def on_answer(self, process: Process, answer: object) -> None:
        if isinstance(answer, messages.GroupBatch):
            given, fresh = list(answer.offsets), False
        elif isinstance(answer, messages.Working) and self.in_flight.begins(process, answer):
            given, fresh = kept(answer), True
        else:
            return
        session = self.in_flight.session(process, answer.stream)
        together = dict.fromkeys(given)
        for offset in given:
            for earlier in self.in_flight.unacked(offset):
                if earlier >= offset:
                    break
                mine = not fresh and self.in_flight.holders.get(earlier) == session
                if not mine and earlier not in together:
                    self.broken(
                        f"{process.label} is given {self.name(offset)} while {self.name(earlier)} of the same lane is "
                        f"with {self.in_flight.holders.get(earlier, 'nobody')}"
                    )

    def on_taken(self, process: Process, message: Message) -> None:
        taken = self._taken.setdefault(process.label, {})
        if message.offset in taken:
            return
        for earlier in self.in_flight.unacked(message.offset):
            if earlier < message.offset and earlier not in taken:
                self.broken(f"{process.label} takes {self.name(message.offset)} before {self.name(earlier)}")
        taken[message.offset] = None


class OneOwner(GroupChecker):
    """What a member has in flight goes to another only when it gave it back, left, or was unheard for a lease."""

    RULE = "nobody loses work that is in flight"

    def __init__(self, in_flight: InFlight, lease_ms: int, clock: Callable[[], int]) -> None:
        super().__init__(in_flight)
        self._lease_ms = lease_ms
        self._deliveries_max = LaneSettings().deliveries_max
        self._clock = clock
        self._since_ms = 0
        self._heard_ms: dict[Session, int] = {}
        self._newest: dict[str, int] = {}
        self._gone: dict[str, None] = {}
        self._ending: dict[Session, None] = {}
        """Sessions that have said that they end: a stream of one that begins after that changes nothing."""
        self._opened: dict[str, None] = {}
        self._sent: dict[tuple[str, int], int] = {}
        self._spent: dict[str, None] = {}

    def on_recovered(self) -> None:
        """What the broker has heard it forgets when it dies."""
        self._since_ms = self._now_ms
        self._heard_ms.clear()
        for known in (self._gone, self._opened, self._spent):
            known.clear()
        self._ending.clear()
        self._sent.clear()

    def on_arrived(self, process: Process, request: messages.AnyRequest) -> None:
        if isinstance(request, HEARD) and request.epoch >= self._newest.get(request.client, 0):
            session = (request.client, request.epoch)
            if self._is_silent(session):  # Whatever it says now, it may have been given up already.
                self._gone[request.client] = None
            self._heard_ms[session] = self._now_ms
        elif isinstance(request, messages.Bye):
            self._gone[request.client] = None
            self._ending[request.client, request.epoch] = None

    def on_existing(self, existing: Existing) -> None:
        command = existing.command
        if existing.error is not None:
            return
        if isinstance(command, commands.Leave | commands.Close):
            self._gone[command.client] = None
        elif isinstance(command, commands.Open):
            assert isinstance(existing.result, int)
            self._newest[command.client] = existing.result

    def on_answer(self, process: Process, answer: object) -> None:
        if isinstance(answer, messages.Working) and self.in_flight.begins(process, answer):
            if self.in_flight.session(process, answer.stream) not in self._ending:
                self._gone.pop(process.name, None)
            self._opened[process.name] = None
            self._spent.pop(process.name, None)
            self._sent.update({(process.label, each.batch): 1 for each in answer.kept})
        elif isinstance(answer, messages.GroupPauseDone):
            self._gone[process.name] = None
        elif isinstance(answer, messages.GroupBatch):
            for offset in answer.offsets:
                holder = self.in_flight.holders.get(offset)
                if holder is not None and holder[0] != process.name and not self._may_lose(holder):
                    self.broken(f"{process.label} is given {self.name(offset)} while {holder} has it and is there")
            sent = self._sent[process.label, answer.batch] = self._sent.get((process.label, answer.batch), 0) + 1
            if sent >= self._deliveries_max:
                self._spent[process.name] = None

    def _may_lose(self, holder: Session) -> bool:
        return holder[0] in self._gone or holder[0] in self._spent or self._is_silent(holder)

    def _is_silent(self, session: Session) -> bool:
        heard_ms = self._heard_ms.get(session, 0) if session[0] in self._opened else 0
        return self._now_ms - max(heard_ms, self._since_ms) >= self._lease_ms

    @property
    def _now_ms(self) -> int:
        """By the broker's clock, as leases are."""
        return self._clock()


class StaleRefused(GroupChecker):
    """An ack is accepted only from anyone who has the message in flight, and once."""

    RULE = "no stale ack is accepted"

    def __init__(self, in_flight: InFlight) -> None:
        super().__init__(in_flight)
        self._attempts: dict[tuple[str, int], int] = {}
        """The attempt at which each process was last handed a message."""

    def on_taken(self, process: Process, message: Message) -> None:
        self._attempts[process.label, message.offset] = message.attempt

    def on_existing(self, existing: Existing) -> None:
        command = existing.command
        if existing.error is not None or not isinstance(command, commands.GroupAck):
            return
        session = (command.client, command.epoch)
        for offset in command.spread():
            if offset in self.in_flight.acked:
                self.broken(f"{session} acked {self.name(offset)} after {self.in_flight.acked[offset]} had")
            if self.in_flight.holders.get(offset) != session:
                holder = self.in_flight.holders.get(offset, "nobody")
                self.broken(f"{session} acked {self.name(offset)} while it was in the hands of {holder}")

    def on_confirmed(self, process: Process, message: Message) -> None:
        acked, what = self.in_flight.acked, f"{process.label} was told that it has acked {self.name(message.offset)}"
        if message.offset not in acked:
            self.broken(f"{what}, and that is not acked")
        session = acked[message.offset]
        if session is None or self.in_flight.lives[session] != process.label:
            self.broken(f"{what}, and it was {session or 'the dead letters'}")
        attempt = self._attempts[process.label, message.offset]
        if message.attempt != attempt:
            self.broken(f"{what} at attempt {message.attempt}, and it has got it again since, at attempt {attempt}")


class RepeatsAreMarked(GroupChecker):
    """Of all processes that are ever handed a message, one at most is not told that others may have had it.

    What a member itself has given back, with a message before it in its lane, nobody has worked on.
    """

    RULE = "what may have been worked on before is marked"

    def __init__(self, in_flight: InFlight) -> None:
        super().__init__(in_flight)
        self._first: dict[int, str] = {}

    def on_answer(self, process: Process, answer: object) -> None:
        if isinstance(answer, messages.GroupNackDone):
            for start, end in answer.ranges:
                for offset in range(start, end):
                    if self._first.get(offset) == process.label:
                        del self._first[offset]

    def on_taken(self, process: Process, message: Message) -> None:
        if message.redelivered:
            return
        first = self._first.setdefault(message.offset, process.label)
        if first != process.label:
            self.broken(f"{process.label} takes {self.name(message.offset)} as new, and so did {first}")


class HandedOutIsSaid(GroupChecker):
    """What a member says not to be handed out may go to others as new. So it hands out nothing of that until the broker
    has said that it is still its own, or has sent it again.
    """

    RULE = "what was said not to be handed out is not"

    def __init__(self, in_flight: InFlight) -> None:
        super().__init__(in_flight)
        self._said: dict[str, tuple[int, dict[int, None]]] = {}
        """life -> the stream that it begins, and what it says not to be handed out and may not have any more."""

    def on_request(self, process: Process, request: messages.AnyRequest) -> None:
        if isinstance(request, messages.Work) and request.begins:
            held = [offset for each in request.held for offset in spread(each.ranges)]
            handed = dict.fromkeys(held if request.taken is None else spread(request.taken))
            self._said[process.label] = (request.stream, {offset: None for offset in held if offset not in handed})

    def on_answer(self, process: Process, answer: object) -> None:
        if isinstance(answer, messages.Working | messages.GroupBatch):
            stream, said = self._said.get(process.label, (0, {}))
            if answer.stream == stream:
                for offset in kept(answer) if isinstance(answer, messages.Working) else answer.offsets:
                    said.pop(offset, None)

    def on_taken(self, process: Process, message: Message) -> None:
        _, said = self._said.get(process.label, (0, {}))
        if message.offset in said:
            self.broken(
                f"{process.label} takes {self.name(message.offset)}, which it has said not to be handed out and has "
                "not been given again"
            )


def group_checkers(in_flight: InFlight, lease_ms: int, clock: Callable[[], int]) -> list[Checker]:
    """All of them, and at last the picture; `clock` is the broker's."""
    return [
        AllAcked(in_flight),
        AckedWasTaken(in_flight),
        AckedStaysAcked(in_flight),
        StaleRefused(in_flight),
        LanesInOrder(in_flight),
        RepeatsAreMarked(in_flight),
        HandedOutIsSaid(in_flight),
        OneOwner(in_flight, lease_ms, clock),
        in_flight,
    ]
