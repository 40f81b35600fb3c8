"""Passes everything that happens in a run on to the checkers.

What clients say and are told every world shows in the same way. What nodes write, apply and recover is shown by a
judge: there is one for a broker alone (`checkers.lone`), one for a group (`checkers.cluster`) and one for a ring
(`checkers.ring_cluster`).
"""

from __future__ import annotations

from typing import NoReturn, Protocol

from tidings.errors import TidingsError
from tidings.journal.journal import Commit
from tidings.message import Batch, Message, Receipt, Receipts
from tidings.node.engine import AnyEngine
from tidings.node.group import Group
from tidings.protocols.broker import commands, messages
from tidings.protocols.broker.bulk import PublishDone
from tidings.protocols.broker.machine import Machine
from tidings.protocols.multipaxos.values import Value
from tidings.simulator.checkers.checker import AllOrNone, Checker, Process, Violation
from tidings.simulator.checkers.delivery import EachOnceInOrder
from tidings.simulator.checkers.in_flight import InFlight
from tidings.simulator.checkers.ledger import Existing, Ledger, name_of
from tidings.simulator.checkers.stages import EachBatchOnce, Query, RangesAreTrue


class JudgedNode(Protocol):
    """A node, as judges know it."""

    name: str
    group: str

    @property
    def engine(self) -> AnyEngine | None:
        """None while there is no process."""

    @property
    def log(self) -> Group | None:
        """What it has of the log of its group, if it is in one."""


class Judge:
    """Sees what nodes do. Every method is an observation and may be ignored."""

    def __init__(self, watch: Watch) -> None:
        self.watch = watch

    def on_group(self, group: str, first_slot: int) -> None:
        """A group is founded."""

    def on_life(self, node: JudgedNode) -> None:
        """A life of a node is about to read its disk."""

    def on_recovered(self, engine: AnyEngine) -> None:
        """A node has read its disk."""

    def on_begun(self, commit: Commit) -> None:
        """A commit is about to be written."""

    def on_durable(self, node: JudgedNode, commit: Commit) -> None:
        """A commit has been written."""

    def on_refused(self, node: JudgedNode, commit: Commit) -> None:
        """There was no room for a commit."""

    def on_slot(self, node: JudgedNode, slot: int, value: Value) -> bool:
        """A node is about to apply what its group has decided; whether it is the first one to do so."""
        return False

    def on_slot_applied(self, node: JudgedNode, engine: AnyEngine, slot: int, first: bool) -> None:
        """It has applied that."""

    def on_applied(
        self, node: JudgedNode, machine: Machine, command: commands.Command, result: object, error: TidingsError | None
    ) -> None:
        """A node's machine has applied a command."""

    def has_all(self, node: JudgedNode) -> bool:
        """Whether a node has applied everything that there is."""
        return True

    def compare(self, node: JudgedNode) -> None:
        """A node that has applied everything has to know what there is to know."""


class Notes(Protocol):
    """Who writes the trace, and knows the time."""

    now_ms: int

    def note(self, process: str, what: str) -> None: ...


class Watch:
    """All checkers of a run, and the ledger that they share."""

    def __init__(self, world: Notes, ledger: Ledger) -> None:
        self.note = world.note
        self.ledger = ledger
        self.once = EachOnceInOrder(ledger)
        self.together = AllOrNone(ledger)
        self.in_flight = InFlight(ledger)
        """Who has what, in worlds with members of groups."""
        self.batches = EachBatchOnce(ledger)
        self.ranges = RangesAreTrue(ledger)
        self.checkers: list[Checker] = []

    def violate(self, invariant: str, text: str) -> NoReturn:
        raise Violation(invariant, text)

    def exists(self, existing: Existing) -> None:
        """A command is durable, or decided."""
        for checker in self.checkers:
            checker.on_existing(existing)

    def show_state(self, machine: Machine) -> None:
        """There is a new state."""
        for checker in self.checkers:
            checker.on_state(machine)

    # The clients.

    def on_request(self, process: Process, request: messages.AnyRequest) -> None:
        for checker in self.checkers:
            checker.on_request(process, request)

    def on_arrived(self, process: Process, request: messages.AnyRequest) -> None:
        for checker in self.checkers:
            checker.on_arrived(process, request)

    def on_answer(self, process: Process, answer: object) -> None:
        for checker in self.checkers:
            checker.on_answer(process, answer)

    def on_process(self, process: Process) -> None:
        for checker in self.checkers:
            checker.on_process(process)

    def on_given(self, process: Process, name: str, topics: tuple[str, ...]) -> None:
        """An application puts a message."""
        self.note(process.label, f"puts {name} to {', '.join(topics)}")
        self.ledger.intended[name] = topics

    def on_receipts(self, process: Process, name: str, receipts: list[Receipt]) -> None:
        self.note(process.label, f"knows that {name} is at {receipts}")
        for checker in self.checkers:
            checker.on_receipts(process, name, receipts)

    def on_many(self, process: Process, topic: str, names: list[str], receipts: Receipts) -> None:
        self.note(process.label, f"knows that {', '.join(names)} are stored: {receipts}")
        for checker in self.checkers:
            checker.on_many(process, topic, names, receipts)

    def on_handed(self, process: Process, topics: tuple[str, ...], message: Message) -> None:
        again = " again" if message.redelivered else ""
        name = name_of(message.value)
        self.note(process.label, f"is handed {name} at {message.topic} {message.offset}{again} of {topics}")
        for checker in self.checkers:
            checker.on_handed(process, topics, message)

    def on_taken(self, process: Process, message: Message) -> None:
        again = f", attempt {message.attempt}" if message.redelivered else ""
        key = f" of lane {message.key.decode()}" if message.key is not None else ""
        self.note(process.label, f"takes {name_of(message.value)} at {message.offset}{key}{again}")
        for checker in self.checkers:
            checker.on_taken(process, message)

    def on_confirmed(self, process: Process, message: Message) -> None:
        self.note(process.label, f"knows that {name_of(message.value)} is acked")
        for checker in self.checkers:
            checker.on_confirmed(process, message)

    def on_published(self, process: Process, query: Query, batch: int, done: PublishDone) -> None:
        again = " already" if done.repeated else ""
        self.note(process.label, f"knows that batch {batch} is published{again}")
        self.batches.on_published(process, query, batch, done)

    def on_read(self, process: Process, batch: Batch) -> None:
        self.note(process.label, f"reads {batch.topic} from {batch.first_offset} to {batch.next_offset}")
        self.ranges.on_read(process, batch)

    # The end.

    def on_end(self, engine: AnyEngine) -> None:
        for checker in self.checkers:
            checker.on_end(engine)
