"""The invariants of groups, one class each. All look at the same picture of who has what (`checkers.hands`).

Each sees an observation before the picture changes by it.
"""

from __future__ import annotations

from collections.abc import Callable

from tidings.message import Message
from tidings.node.engine import AnyEngine
from tidings.protocols.broker import commands, messages
from tidings.protocols.broker.members import LaneSettings
from tidings.simulator.checkers.checker import Checker, Process
from tidings.simulator.checkers.hands import GROUP, TOPIC, Hands, Session, kept
from tidings.simulator.checkers.ledger import Existing

HEARD = (
    messages.Beat,
    messages.Join,
    messages.Leave,
    messages.Work,
    messages.Settle,
    messages.Release,
    messages.Extend,
    messages.Rest,
)
"""Requests by which the broker knows that a member is there."""


class GroupChecker(Checker):
    """One invariant of groups."""

    def __init__(self, hands: Hands) -> None:
        super().__init__(hands.ledger)
        self.hands = hands

    def name(self, offset: int) -> str:
        return f"{self.ledger.topics[TOPIC][offset]} at {offset}"


class AllSettled(GroupChecker):
    """Every message is settled in the end, by a member or by going to the dead letters, and stays so."""

    RULE = "every message of a group is settled in the end"

    def on_end(self, engine: AnyEngine) -> None:
        group = engine.broker.machine.groups.get((GROUP, TOPIC))
        stored = self.ledger.topics.get(TOPIC, [])
        if group is None:
            self.broken("the group is gone")
        missing = [self.name(offset) for offset in range(len(stored)) if not group.progress.done(offset)]
        if missing:
            self.broken(f"{', '.join(missing)} never settled")


class SettledWasTaken(GroupChecker):
    """Nothing is settled that no application of that session has been given."""

    RULE = "nothing is settled that nobody worked on"

    def __init__(self, hands: Hands) -> None:
        super().__init__(hands)
        self._taken: dict[tuple[str, int], None] = {}

    def on_taken(self, process: Process, message: Message) -> None:
        self._taken[process.name, message.offset] = None

    def on_existing(self, existing: Existing) -> None:
        command = existing.command
        if existing.error is None and isinstance(command, commands.Settle):
            for offset in command.spread():
                if (command.client, offset) not in self._taken:
                    self.broken(f"{command.client} settled {self.name(offset)}, which it has never taken")


class SettledStaysSettled(GroupChecker):
    """What is settled is not sent to anybody again, and not handed out again by the client that settled it.

    A member that was asleep may go on with what it had been given before; only its settlement does not count.
    """

    RULE = "what is settled is never given out again"

    def __init__(self, hands: Hands) -> None:
        super().__init__(hands)
        self._finished: dict[str, dict[int, None]] = {}
        """life -> what was settled when it began."""

    def on_process(self, process: Process) -> None:
        self._finished[process.label] = dict.fromkeys(self.hands.settled)

    def on_answer(self, process: Process, answer: object) -> None:
        given: list[int] = []
        if isinstance(answer, messages.Parcel):
            given = list(answer.offsets)
        elif isinstance(answer, messages.Working):
            given = kept(answer)
        again = [self.name(offset) for offset in given if offset in self.hands.settled]
        if again:
            self.broken(f"{process.label} is given {', '.join(again)}, which is settled")

    def on_taken(self, process: Process, message: Message) -> None:
        offset = message.offset
        if offset in self._finished[process.label]:
            self.broken(f"{process.label} takes {self.name(offset)}, which was settled before it began")
        session = self.hands.settled.get(offset)
        if session is not None and self.hands.lives[session] == process.label:
            self.broken(f"{process.label} takes {self.name(offset)}, which it has settled itself")


class LanesInOrder(GroupChecker):
    """A message is given out when every earlier one of its lane is settled or in the same hands."""

    RULE = "each lane is given out in order"

    def __init__(self, hands: Hands) -> None:
        super().__init__(hands)
        self._taken: dict[str, dict[int, None]] = {}

    def on_answer(self, process: Process, answer: object) -> None:
        if isinstance(answer, messages.Parcel):
            given, fresh = list(answer.offsets), False
        elif isinstance(answer, messages.Working) and self.hands.begins(process, answer):
            given, fresh = kept(answer), True
        else:
            return
        session = self.hands.session(process, answer.stream)
        together = dict.fromkeys(given)
        for offset in given:
            for earlier in self.hands.unsettled(offset):
                if earlier >= offset:
                    break
                mine = not fresh and self.hands.holders.get(earlier) == session
                if not mine and earlier not in together:
                    self.broken(
                        f"{process.label} is given {self.name(offset)} while {self.name(earlier)} of the same lane is "
                        f"with {self.hands.holders.get(earlier, 'nobody')}"
                    )

    def on_taken(self, process: Process, message: Message) -> None:
        taken = self._taken.setdefault(process.label, {})
        if message.offset in taken:
            return
        for earlier in self.hands.unsettled(message.offset):
            if earlier < message.offset and earlier not in taken:
                self.broken(f"{process.label} takes {self.name(message.offset)} before {self.name(earlier)}")
        taken[message.offset] = None


class OneOwner(GroupChecker):
    """What a member has in hand goes to another only when it gave it back, left, or was unheard for a lease."""

    RULE = "nobody loses work that is in its hands"

    def __init__(self, hands: Hands, lease_ms: int, clock: Callable[[], int]) -> None:
        super().__init__(hands)
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
        if isinstance(answer, messages.Working) and self.hands.begins(process, answer):
            if self.hands.session(process, answer.stream) not in self._ending:
                self._gone.pop(process.name, None)
            self._opened[process.name] = None
            self._spent.pop(process.name, None)
            self._sent.update({(process.label, each.parcel): 1 for each in answer.kept})
        elif isinstance(answer, messages.RestDone):
            self._gone[process.name] = None
        elif isinstance(answer, messages.Parcel):
            for offset in answer.offsets:
                holder = self.hands.holders.get(offset)
                if holder is not None and holder[0] != process.name and not self._may_lose(holder):
                    self.broken(f"{process.label} is given {self.name(offset)} while {holder} has it and is there")
            sent = self._sent[process.label, answer.parcel] = self._sent.get((process.label, answer.parcel), 0) + 1
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
    """A settlement is accepted only from whoever has the message in hand, and once."""

    RULE = "no stale settlement is accepted"

    def __init__(self, hands: Hands) -> None:
        super().__init__(hands)
        self._attempts: dict[tuple[str, int], int] = {}
        """The attempt at which each process was last handed a message."""

    def on_taken(self, process: Process, message: Message) -> None:
        self._attempts[process.label, message.offset] = message.attempt

    def on_existing(self, existing: Existing) -> None:
        command = existing.command
        if existing.error is not None or not isinstance(command, commands.Settle):
            return
        session = (command.client, command.epoch)
        for offset in command.spread():
            if offset in self.hands.settled:
                self.broken(f"{session} settled {self.name(offset)} after {self.hands.settled[offset]} had")
            if self.hands.holders.get(offset) != session:
                holder = self.hands.holders.get(offset, "nobody")
                self.broken(f"{session} settled {self.name(offset)} while it was in the hands of {holder}")

    def on_confirmed(self, process: Process, message: Message) -> None:
        settled, what = self.hands.settled, f"{process.label} was told that it has settled {self.name(message.offset)}"
        if message.offset not in settled:
            self.broken(f"{what}, and that is not settled")
        session = settled[message.offset]
        if session is None or self.hands.lives[session] != process.label:
            self.broken(f"{what}, and it was {session or 'the dead letters'}")
        attempt = self._attempts[process.label, message.offset]
        if message.attempt != attempt:
            self.broken(f"{what} at attempt {message.attempt}, and it has got it again since, at attempt {attempt}")


class RepeatsAreMarked(GroupChecker):
    """Of all processes that are ever handed a message, one at most is not told that others may have had it.

    What a member itself has given back, with a message before it in its lane, nobody has worked on.
    """

    RULE = "what may have been worked on before is marked"

    def __init__(self, hands: Hands) -> None:
        super().__init__(hands)
        self._first: dict[int, str] = {}

    def on_answer(self, process: Process, answer: object) -> None:
        if isinstance(answer, messages.ReleaseDone):
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


def group_checkers(hands: Hands, lease_ms: int, clock: Callable[[], int]) -> list[Checker]:
    """All of them, and at last the picture; `clock` is the broker's."""
    return [
        AllSettled(hands),
        SettledWasTaken(hands),
        SettledStaysSettled(hands),
        StaleRefused(hands),
        LanesInOrder(hands),
        RepeatsAreMarked(hands),
        OneOwner(hands, lease_ms, clock),
        hands,
    ]
