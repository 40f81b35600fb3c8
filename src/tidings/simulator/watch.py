"""Passes everything that happens in a run on to the checkers."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from tidings.errors import TidingsError
from tidings.journal.journal import Commit
from tidings.message import Message, Receipt, Receipts
from tidings.node.engine import AnyEngine
from tidings.protocols.broker import commands, messages
from tidings.protocols.broker.machine import Machine
from tidings.settings import BrokerSettings
from tidings.simulator.checkers import (
    AllOrNone,
    Checker,
    CursorsForward,
    FencedStayOut,
    NothingLost,
    NothingTwice,
    Violation,
)
from tidings.simulator.delivery_checkers import EachOnceInOrder
from tidings.simulator.ledger import Existing, Ledger, name_of
from tidings.simulator.recovery_checker import RecoveryEqualsPrefix

if TYPE_CHECKING:
    from tidings.simulator.client import ClientProcess
    from tidings.simulator.populated import PopulatedWorld


class Watch:
    """All checkers of a run, and the ledger that they share."""

    def __init__(self, world: PopulatedWorld, settings: BrokerSettings, ledger: Ledger | None = None) -> None:
        self._world = world
        self.ledger = ledger if ledger is not None else Ledger(settings)
        self.recovery = RecoveryEqualsPrefix(self.ledger)
        self.once = EachOnceInOrder(self.ledger)
        self.together = AllOrNone(self.ledger)
        # The second one writes the ledger's topics, on which the others rely.
        self.checkers: list[Checker] = [
            self.recovery,
            NothingTwice(self.ledger),
            NothingLost(self.ledger),
            self.once,
            CursorsForward(self.ledger),
            FencedStayOut(self.ledger),
            self.together,
        ]

    def violate(self, invariant: str, text: str) -> NoReturn:
        raise Violation(invariant, text)

    # The journal.

    def on_begun(self, commit: Commit) -> None:
        self.recovery.unfinished = commit

    def on_refused(self) -> None:
        self.recovery.unfinished = None

    def on_durable(self, commit: Commit) -> None:
        self.recovery.unfinished = None
        for append, record in zip(commit.appends, commit.records, strict=True):
            self._on_existing(self.recovery.expect(self.ledger.take(record, append.bodies)))

    def _on_existing(self, existing: Existing) -> None:
        for checker in self.checkers:
            checker.on_existing(existing)

    def on_recovered(self, engine: AnyEngine) -> None:
        for record, bodies in self.recovery.survivors(engine):
            self._on_existing(self.ledger.take(record, bodies))
        self.recovery.compare(engine)
        for checker in self.checkers:
            checker.on_state(engine.broker.machine)

    def on_applied(
        self, machine: Machine, command: commands.Command, result: object, error: TidingsError | None
    ) -> None:
        self.recovery.applied(command, result, error)
        for checker in self.checkers:
            checker.on_state(machine)

    # The clients.

    def on_request(self, process: ClientProcess, request: messages.AnyRequest) -> None:
        for checker in self.checkers:
            checker.on_request(process, request)

    def on_arrived(self, process: ClientProcess, request: messages.AnyRequest) -> None:
        for checker in self.checkers:
            checker.on_arrived(process, request)

    def on_answer(self, process: ClientProcess, answer: object) -> None:
        for checker in self.checkers:
            checker.on_answer(process, answer)

    def on_process(self, process: ClientProcess) -> None:
        for checker in self.checkers:
            checker.on_process(process)

    def on_given(self, process: ClientProcess, name: str, topics: tuple[str, ...]) -> None:
        """An application puts a message."""
        self._world.note(process.label, f"puts {name} to {', '.join(topics)}")
        self.ledger.intended[name] = topics

    def on_receipts(self, process: ClientProcess, name: str, receipts: list[Receipt]) -> None:
        self._world.note(process.label, f"knows that {name} is at {receipts}")
        for checker in self.checkers:
            checker.on_receipts(process, name, receipts)

    def on_many(self, process: ClientProcess, topic: str, names: list[str], receipts: Receipts) -> None:
        self._world.note(process.label, f"knows that {', '.join(names)} are stored: {receipts}")
        for checker in self.checkers:
            checker.on_many(process, topic, names, receipts)

    def on_handed(self, process: ClientProcess, topics: tuple[str, ...], message: Message) -> None:
        again = " again" if message.redelivered else ""
        name = name_of(message.value)
        self._world.note(process.label, f"is handed {name} at {message.topic} {message.offset}{again} of {topics}")
        for checker in self.checkers:
            checker.on_handed(process, topics, message)

    def on_taken(self, process: ClientProcess, message: Message) -> None:
        again = f", attempt {message.attempt}" if message.redelivered else ""
        key = f" of lane {message.key.decode()}" if message.key is not None else ""
        self._world.note(process.label, f"takes {name_of(message.value)} at {message.offset}{key}{again}")
        for checker in self.checkers:
            checker.on_taken(process, message)

    def on_confirmed(self, process: ClientProcess, message: Message) -> None:
        self._world.note(process.label, f"knows that {name_of(message.value)} is acked")
        for checker in self.checkers:
            checker.on_confirmed(process, message)

    # The end.

    def on_end(self, engine: AnyEngine) -> None:
        for checker in self.checkers:
            checker.on_end(engine)
