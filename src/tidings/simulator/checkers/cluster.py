"""What the members of groups apply, as the checkers of one broker understand it.

A command exists from the moment in which the first member applies it: then it is decided, whatever becomes of that
member. Every other one has to apply the same in the same slot, and to the same effect; the ledger's reference machine,
which never dies, says to which.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from tidings.errors import TidingsError
from tidings.journal.disk import Buffer
from tidings.node.engine import AnyEngine
from tidings.node.group import Group
from tidings.node.replicated import Part, unpack
from tidings.protocols.broker import commands, messages
from tidings.protocols.broker.machine import Machine
from tidings.protocols.multipaxos.values import Command, Remove, Value
from tidings.protocols.ring.commands import decode_command
from tidings.protocols.ring.commit_commands import HoldPart, ResolvePart
from tidings.simulator.checkers.checker import (
    Checker,
    CursorsForward,
    FencedStayOut,
    NothingLost,
    NothingTwice,
    Process,
)
from tidings.simulator.checkers.collecting import OnlyUnusedGo
from tidings.simulator.checkers.ledger import Existing, Ledger
from tidings.simulator.checkers.recovery import RecoveryEqualsPrefix
from tidings.simulator.checkers.watch import Judge, JudgedNode, Notes, Watch

ADDRESSES = "addresses"
"""Where the messages lie is each node's own affair."""


class SameEverywhere(RecoveryEqualsPrefix):
    """What one life of a node applies leads to what it led to elsewhere."""

    RULE = "every member comes to the same state"

    def expect_slot(self, existing: Sequence[Existing]) -> None:
        """The commands of a slot are about to be applied."""
        if self._expected:
            self.broken(f"{self._expected[0].command} was not applied")
        self._expected = deque(existing)


class AnswersAreCurrent(Checker):
    """Anyone who asks is told of everything that anybody could have heard of when the question was sent.

    A command can be heard of once a node has applied it that leads and serves: followers, who may be faster, say
    nothing to clients.
    """

    RULE = "no answer is older than its question"

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger)
        self._visible: dict[str, int] = {}
        """topic -> how many messages were ever in it."""
        self._sequences: dict[tuple[str, str], int] = {}
        """(client, topic) -> the last sequence number that it took."""
        self._asked: dict[tuple[str, int], dict[str, int]] = {}
        """(process, request) -> what the answer has to reach, by topic."""

    def on_visible(self, existing: Existing, machine: Machine) -> None:
        """A node that serves has applied a command."""
        for topic, offset, _ in existing.stored:
            self._visible[topic] = max(self._visible.get(topic, 0), offset + 1)
        command = existing.command
        if isinstance(command, commands.Write | ResolvePart) and existing.error is None:
            client = machine.clients.get(command.client)
            for topic, track in client.tracks.items() if client is not None else ():
                key = (command.client, topic)
                self._sequences[key] = max(self._sequences.get(key, 0), track.last)

    def on_request(self, process: Process, request: messages.AnyRequest) -> None:
        match request:
            case messages.AskTopics(topic=topic):
                least = {name: count for name, count in self._visible.items() if topic in (None, name)}
            case messages.AskSequence():
                least = {"": self._sequences.get((request.client, request.topic), 0)}
            case _:
                return
        self._asked.setdefault((process.label, request.request), least)

    def on_answer(self, process: Process, answer: object) -> None:
        if not isinstance(answer, messages.Topics | messages.Sequence):
            return
        least = self._asked.get((process.label, answer.request), {})
        told = {"": answer.last} if isinstance(answer, messages.Sequence) else {}
        if isinstance(answer, messages.Topics):
            told = {info.name: info.next_offset for info in answer.topics}
            told |= {name: self.ledger.first_kept(name) for name in least if name not in told}  # It was collected.
            for name, count in told.items():
                self._visible[name] = max(self._visible.get(name, 0), count)
        for name, count in least.items():
            if told.get(name, 0) < count:
                self.broken(f"{process.label} hears of {told.get(name, 0)} in {name}, and {count} were known before")


class SafeRemovals(Checker):
    """A member that is silent goes only from a group that can bear it."""

    RULE = "a silent member is removed only where enough are left"

    def on_slot(self, log: Group, value: Remove) -> None:
        """A node that is about to apply a removal, and has applied all before."""
        member, voters = log.state.members[value.node], log.voters
        least = log.changes.settings.replicas_min
        if value.heir == member.disk and value.node in voters and len(voters) - 1 < least:
            self.broken(f"{value.node} was removed from {voters}, and {least} were to stay")


class History:
    """What one group has decided, as far as anybody has applied it."""

    def __init__(self, first_slot: int) -> None:
        self.next_slot = first_slot
        self.values: dict[int, Value] = {}
        self.existing: dict[int, list[Existing]] = {}


class GroupJudge(Judge):
    """The checkers of one broker, and what several nodes owe to each other."""

    def __init__(self, world: Notes, ledger: Ledger) -> None:
        super().__init__(Watch(world, ledger))
        self.histories: dict[str, History] = {}
        self._same: dict[str, SameEverywhere] = {}
        self._address = 0
        self.current = AnswersAreCurrent(ledger)
        self._removals = SafeRemovals(ledger)
        self.watch.checkers = [
            NothingTwice(ledger),  # It writes the ledger's topics, on which those below rely.
            NothingLost(ledger),
            OnlyUnusedGo(ledger),
            self.watch.once,
            CursorsForward(ledger),
            FencedStayOut(ledger),
            self.watch.together,
            self.current,
        ]

    def on_group(self, group: str, first_slot: int) -> None:
        self.histories[group] = History(first_slot)

    def ledger_of(self, group: str) -> Ledger:
        """What a group is judged by."""
        return self.watch.ledger

    def on_life(self, node: JudgedNode) -> None:
        self._same[node.name] = SameEverywhere(self.ledger_of(node.group))

    def on_slot(self, node: JudgedNode, slot: int, value: Value) -> bool:
        history, same = self.histories[node.group], self._same[node.name]
        first = slot >= history.next_slot
        if first:
            if slot > history.next_slot:
                same.broken(f"{node.name} applies slot {slot} where nobody has applied {history.next_slot}")
            if isinstance(value, Remove) and node.log is not None:
                self._removals.on_slot(node.log, value)
            history.next_slot += 1
            history.values[slot] = value
            history.existing[slot] = self._take(node.group, value) if isinstance(value, Command) else []
            if history.existing[slot]:
                kinds = ", ".join(type(each.command).__name__ for each in history.existing[slot])
                self.watch.note(node.name, f"applies slot {slot}: {kinds}")
        elif history.values[slot] != value:
            same.broken(f"{node.name} applies {value} in slot {slot}, and others {history.values[slot]}")
        same.expect_slot(history.existing[slot])
        return first

    def _take(self, group: str, value: Command) -> list[Existing]:
        time_ms, parts = unpack(value.body)
        found: list[Existing] = []
        for part in parts:
            command = decode_command(part.command)
            bodies = _bodies(command, value.body, part)
            existing = self._exist(group, command, time_ms, bodies)
            self._address += part.bodies_size
            found.append(existing)
            self.watch.exists(existing)
        return found

    def _exist(self, group: str, command: commands.Command, time_ms: int, bodies: list[bytes]) -> Existing:
        """A command of a group has been decided."""
        return self.watch.ledger.take_command(command, time_ms, self._address, bodies)

    def on_applied(
        self, node: JudgedNode, machine: Machine, command: commands.Command, result: object, error: TidingsError | None
    ) -> None:
        if not isinstance(command, commands.Carry):  # That is for its own journal, and agreed on with nobody.
            self._same[node.name].applied(command, result, error)

    def on_slot_applied(self, node: JudgedNode, engine: AnyEngine, slot: int, first: bool) -> None:
        machine = engine.broker.machine
        if first:
            self._on_state(node, machine)
        if engine.log.serving and engine.log.replica.replica.leads:
            for existing in self.histories[node.group].existing[slot]:
                self.current.on_visible(existing, machine)

    def _on_state(self, node: JudgedNode, machine: Machine) -> None:
        """A node is the first one to have come to this state."""
        self.watch.show_state(machine)

    def has_all(self, node: JudgedNode) -> bool:
        return node.log is not None and node.log.replica.applied == self.histories[node.group].next_slot

    def compare(self, node: JudgedNode) -> None:
        assert node.engine is not None
        self._same[node.name].compare(node.engine, ADDRESSES)


def _bodies(command: Any, body: Buffer, part: Part) -> list[bytes]:
    """The bodies of a command in the value that it came in."""
    sizes = [batch.size_bytes for batch in command.batches] if isinstance(command, commands.Write | HoldPart) else []
    if isinstance(command, commands.DeadLetter | commands.Stage):
        sizes = [command.size_bytes]
    bodies, start = [], part.bodies_at
    for size in sizes:
        bodies.append(bytes(body[start : start + size]))
        start += size
    return bodies
