"""The invariants of a replicated group, one class each, and the watch that shows everything to all of them.

What a checker knows it has from the disks (the ledger), from what nodes say, and from what clients are told; never from
the memory of the code under test, but for the state that it is to judge.

A node whose folder was exchanged for an older copy of itself has no vote any more. The ledger does not count what it
accepts from then on, so anyone who does takes something for decided that is not chosen; nor is it held to promises that
it no longer knows of. What it applies has to be right all the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn, Protocol

from tidings.node.replica import ReplicaEngine
from tidings.node.state import Applied
from tidings.protocols.multipaxos.claims import NOTHING, Extent
from tidings.protocols.multipaxos.messages import Accept, Accepted, AnyMessage, Prepare, Promise
from tidings.protocols.multipaxos.records import Promised, Record, Stored, Witnessed
from tidings.protocols.multipaxos.replica import Replica
from tidings.protocols.multipaxos.values import CHOSEN, ZERO, Ballot, Command, Entry
from tidings.simulator.checkers.checker import Violation
from tidings.simulator.checkers.watch import Notes
from tidings_lab.simulated_replicas.ledger import Ledger
from tidings_lab.simulated_replicas.row import Row


class Node(Protocol):
    """A replica, as checkers know it."""

    name: str
    number: int
    engine: ReplicaEngine | None
    outdated: bool
    """Whether its folder is an older copy of itself, so that nothing that it says may count."""
    on_copy: bool
    """Whether its folder is a copy of a member's folder, so that it must not start at all."""

    @property
    def row(self) -> Row:
        """The state of the process that is there."""


class PaxosChecker:
    """One invariant; `RULE` is its name. Every method is an observation and may be ignored."""

    RULE = ""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger

    def broken(self, text: str) -> NoReturn:
        raise Violation(self.RULE, text)

    def on_durable(self, node: Node, records: list[Record]) -> None:
        """Records are on a node's disk, synced."""

    def on_recovered(self, node: Node, replica: Replica) -> None:
        """A node has come back."""

    def on_sent(self, node: Node, message: AnyMessage) -> None:
        """A node sends a message."""

    def on_applied(self, node: Node, applied: Applied) -> None:
        """A node takes a slot for decided."""

    def on_begun(self, node: Node, next_slot: int) -> None:
        """A node has come back with the state before a slot, or has been given it by another."""

    def on_state(self, node: Node, next_slot: int) -> None:
        """A node has taken in all that it was told, and claims to have the state before a slot."""

    def on_acknowledged(self, command: Command, place: int) -> None:
        """A node answers that a command is applied."""

    def on_read(self, node: Node, needed: int) -> None:
        """A node answers a read; so many commands had been acknowledged when it began."""

    def on_last_restart(self, nodes: Sequence[Node]) -> None:
        """All members at once have lost power and are back."""

    def on_end(self, nodes: Sequence[Node]) -> None:
        """The run is over, and all members have caught up."""


class OneValue(PaxosChecker):
    """Over all disks, for ever, no slot has two values that a majority of its voters accepted under one ballot."""

    RULE = "at most one value is chosen in a slot"

    def on_durable(self, node: Node, records: list[Record]) -> None:
        for record in records:
            if isinstance(record, Stored):
                self._take(node, record.entry)

    def on_recovered(self, node: Node, replica: Replica) -> None:
        """What was written and not synced when a process ended may have survived: then it counts from now on."""
        for entry in replica.log.entries.values():
            self._take(node, entry)

    def _take(self, node: Node, entry: Entry) -> None:
        if entry.ballot != CHOSEN and not node.outdated:
            self.ledger.accept(node.number, entry.slot, entry.ballot, entry.value)
        if self.ledger.conflict is not None:
            self.broken(self.ledger.conflict)


class PromisesHold(PaxosChecker):
    """What a node has promised is on its disk before it says so, and is never taken back, not even by a restart."""

    RULE = "promises never go back"

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger)
        self._answered: dict[int, Ballot] = {}
        self._durable: dict[int, Ballot] = {}
        self._accepted: dict[tuple[int, int, Ballot], None] = {}
        """What was accepted once may be written down again, when a node exchanges its files."""

    def on_durable(self, node: Node, records: list[Record]) -> None:
        for record in records:
            match record:
                case Promised(ballot):
                    self._raise(node, ballot)
                case Stored(entry) if entry.ballot != CHOSEN:
                    self._accept(node, entry)
                    self._raise(node, entry.ballot)

    def _accept(self, node: Node, entry: Entry) -> None:
        if node.outdated:
            return
        accept = (node.number, entry.slot, entry.ballot)
        if accept not in self._accepted and entry.ballot < self._answered.get(node.number, ZERO):
            self.broken(f"{node.name} has accepted {entry} after promising {self._answered[node.number]}")
        self._accepted[accept] = None

    def _raise(self, node: Node, ballot: Ballot) -> None:
        self._durable[node.number] = max(self._durable.get(node.number, ZERO), ballot)

    def on_recovered(self, node: Node, replica: Replica) -> None:
        promised, answered = replica.acceptor.promised, self._answered.get(node.number, ZERO)
        if node.outdated:
            return
        if promised < answered:
            self.broken(f"{node.name} has come back with {promised} and had promised {answered}")
        # Also what was written and not synced may have survived; from now on it counts.
        self._raise(node, promised)
        for entry in replica.log.entries.values():
            self._accepted[node.number, entry.slot, entry.ballot] = None

    def on_sent(self, node: Node, message: AnyMessage) -> None:
        match message:
            case Promise() | Accepted() | Prepare() if not node.outdated:
                pass
            case _:
                return
        ballot = message.ballot
        durable, answered = self._durable.get(node.number, ZERO), self._answered.get(node.number, ZERO)
        if ballot > durable:
            self.broken(f"{node.name} says {message} with no more than {durable} on its disk")
        if not isinstance(message, Prepare):
            if ballot < answered:
                self.broken(f"{node.name} answers {ballot} after it has answered {answered}")
            self._answered[node.number] = ballot


class OneOrder(PaxosChecker):
    """Nodes take for decided only what is chosen, slot by slot, and all come to the same state by it."""

    RULE = "every replica applies the same commands in the same order, each once"

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger)
        self._next_slots: dict[int, int] = {}

    def on_applied(self, node: Node, applied: Applied) -> None:
        slot = applied.slot
        if slot != self._next_slots[node.number]:
            self.broken(f"{node.name} applies slot {slot}, and {self._next_slots[node.number]} is next")
        self._next_slots[node.number] = slot + 1
        chosen = self.ledger.chosen.get(slot)
        if chosen != applied.value:
            self.broken(f"{node.name} takes {applied.value} for decided in slot {slot}, and {chosen} is chosen")

    def on_begun(self, node: Node, next_slot: int) -> None:
        self._next_slots[node.number] = next_slot
        if next_slot > self.ledger.next_slot:
            self.broken(f"{node.name} has the state before slot {next_slot}, and that is not decided")

    def on_state(self, node: Node, next_slot: int) -> None:
        if next_slot != self._next_slots[node.number]:
            self.broken(f"{node.name} is at slot {next_slot} and has told of {self._next_slots[node.number]}")
        wanted = self.ledger.row[: self.ledger.row_sizes.get(next_slot, 0)]
        if node.row.bodies != wanted:
            self.broken(f"{node.name} holds {node.row.bodies} before slot {next_slot}, and it should be {wanted}")
        if next_slot:
            self._check_voters(node, next_slot)

    def _check_voters(self, node: Node, slot: int) -> None:
        assert node.engine is not None
        voters, wanted = node.engine.history.at(slot).voters, self.ledger.voters_of(slot)
        if sorted(voters) != sorted(wanted):
            self.broken(f"{node.name} lets {voters} decide on slot {slot}, and it is up to {wanted}")


class AcknowledgedStays(PaxosChecker):
    """A command that was acknowledged is applied exactly once, where its client was told, and survives everything."""

    RULE = "every acknowledged command is applied exactly once"

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger)
        self._acknowledged: dict[bytes, int] = {}

    def on_acknowledged(self, command: Command, place: int) -> None:
        row = self.ledger.row
        if place >= len(row) or row[place] != command.body:
            self.broken(f"{command} is acknowledged at {place}, and it is not there")
        if self._acknowledged.setdefault(command.body, place) != place:
            self.broken(f"{command} is acknowledged at {self._acknowledged[command.body]} and at {place}")

    def on_last_restart(self, nodes: Sequence[Node]) -> None:
        by_number = {node.number: node for node in nodes}
        for slot in range(self.ledger.terms[0][0], self.ledger.next_slot):
            voters = [number for number in self.ledger.voters_of(slot) if number in by_number]
            if not voters:
                continue  # All of its voters have been replaced; the newer ones have it in their states.
            holders = [number for number in voters if _holds(by_number[number], slot, self.ledger)]
            if not holders:
                self.broken(f"slot {slot} was decided, and is on no disk of {voters}")

    def on_end(self, nodes: Sequence[Node]) -> None:
        for body, place in self._acknowledged.items():
            for node in nodes:
                if node.row.bodies[place : place + 1] != [body] or node.row.bodies.count(body) != 1:
                    self.broken(f"{body!r} was acknowledged at {place}, and {node.name} does not have it there alone")


def _holds(node: Node, slot: int, ledger: Ledger) -> bool:
    assert node.engine is not None
    log = node.engine.replica.log
    if slot < log.start:
        return True
    entry = log.entries.get(slot)
    return entry is not None and entry.value == ledger.chosen[slot]


class ReadsAreCurrent(PaxosChecker):
    """A read that a leader has confirmed sees every command that was acknowledged before it began."""

    RULE = "a confirmed read sees all that was acknowledged before it"

    def on_read(self, node: Node, needed: int) -> None:
        if len(node.row.bodies) < needed:
            self.broken(
                f"{node.name} answers a read by {len(node.row.bodies)} commands, and {needed} were acknowledged"
            )


class CopiesAreRefused(PaxosChecker):
    """A copy of a member's folder does not act for the member: not beside it, and not in its place.

    Not a word may come from it: even a question says how far the member has come, and the others believe the newest.
    """

    RULE = "nobody acts on a copy of a member's folder"

    def on_sent(self, node: Node, message: AnyMessage) -> None:
        if node.on_copy:
            self.broken(f"{node.name} says {message} on a copy of the folder of member {node.number}")


CHECKERS: tuple[type[PaxosChecker], ...] = (
    OneValue,
    PromisesHold,
    OneOrder,
    AcknowledgedStays,
    ReadsAreCurrent,
    CopiesAreRefused,
)


class Watch:
    """Sees everything that happens, notes it in the trace and shows it to every checker."""

    def __init__(self, world: Notes, ledger: Ledger) -> None:
        self._world = world
        self._checkers = [checker(ledger) for checker in CHECKERS]
        self.acknowledged = 0
        """Every place of the row below has been acknowledged, or lies before one that was."""
        self._reads: dict[int, int] = {}
        self._testimonies: dict[int, dict[int, Extent]] = {}
        """What each node has on its disk of what the others have said of themselves."""

    def testimony(self, node: int, other: int) -> Extent:
        """What a node will always remember that another has said."""
        return self._testimonies.get(node, {}).get(other, NOTHING)

    def on_durable(self, node: Node, records: list[Record]) -> None:
        for record in records:
            if isinstance(record, Witnessed):
                self._testimonies[node.number] = {each.node: each.extent for each in record.memories}
        self._world.note(node.name, f"durable: {' '.join(map(_record_line, records))}")
        for checker in self._checkers:
            checker.on_durable(node, records)

    def on_recovered(self, node: Node, engine: ReplicaEngine) -> None:
        for checker in self._checkers:
            checker.on_recovered(node, engine.replica)
            checker.on_begun(node, engine.applied)
            checker.on_state(node, engine.applied)

    def on_exchanged(self, node: Node, next_slot: int) -> None:
        for checker in self._checkers:
            checker.on_begun(node, next_slot)

    def on_sent(self, node: Node, nodes: tuple[int, ...], message: AnyMessage) -> None:
        self._world.note(node.name, f"-> {','.join(map(str, nodes))} {_message_line(message)}")
        for checker in self._checkers:
            checker.on_sent(node, message)

    def on_applied(self, node: Node, applied: Applied) -> None:
        for checker in self._checkers:
            checker.on_applied(node, applied)

    def on_state(self, node: Node, decided: int) -> None:
        for checker in self._checkers:
            checker.on_state(node, decided)

    def on_acknowledged(self, command: Command, place: int) -> None:
        self.acknowledged = max(self.acknowledged, place + 1)
        for checker in self._checkers:
            checker.on_acknowledged(command, place)

    def on_read_begun(self, token: int) -> None:
        self._reads[token] = self.acknowledged

    def on_read(self, node: Node, token: int, index: int) -> None:
        self._world.note(node.name, f"answers the read {token} by {len(node.row.bodies)}, index {index}")
        for checker in self._checkers:
            checker.on_read(node, self._reads[token])

    def on_last_restart(self, nodes: Sequence[Node]) -> None:
        for checker in self._checkers:
            checker.on_last_restart(nodes)

    def on_end(self, nodes: Sequence[Node]) -> None:
        for checker in self._checkers:
            checker.on_end(nodes)


def _message_line(message: AnyMessage) -> str:
    match message:
        case Accept(ballot, first_slot, values, decided, number):
            what = f"{first_slot}+{len(values)} " if values else ""
            return f"Accept {ballot} {what}decided {decided} round {number}"
        case Promise(ballot, entries, decided):
            held = " ".join(f"{entry.slot}:{entry.ballot}" for entry in entries)
            return f"Promise {ballot} [{held}] decided {decided}"
        case Accepted(ballot, first_slot, count, decided, number):
            return f"Accepted {ballot} {first_slot}+{count} decided {decided} round {number}"
    return repr(message) if len(repr(message)) < 200 else repr(message)[:200]


def _record_line(record: Record) -> str:
    match record:
        case Stored(entry):
            return f"{entry.slot}:{entry.ballot if entry.ballot != CHOSEN else 'chosen'}={_value_line(entry.value)}"
        case Promised(ballot):
            return f"promised {ballot}"
    return type(record).__name__


def _value_line(value: object) -> str:
    return value.body.decode() if isinstance(value, Command) else repr(value)
