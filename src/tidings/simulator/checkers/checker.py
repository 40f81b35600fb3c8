"""The invariants, one class each. A checker sees everything that happens and says when its rule is broken.

`checkers.watch` passes every observation on to all of them. What a checker knows it has from the durable commands (the
ledger), from what clients were given and told, and from the broker's state, never from another checker.
"""

from __future__ import annotations

from typing import Any, NoReturn, Protocol

from tidings.message import Message, Receipt, Receipts
from tidings.node.engine import AnyEngine
from tidings.protocols.broker import commands, messages
from tidings.protocols.broker.machine import Machine
from tidings.protocols.broker.subscriptions import SubscriptionKey, canonical, key_of
from tidings.simulator.checkers.ledger import Existing, Ledger, name_of
from tidings.wire.codec import decode_columns, thin


class Process(Protocol):
    """A client's process, as checkers know it."""

    name: str
    life: int
    label: str
    """Both together."""


class Violation(Exception):
    """An invariant is broken."""

    def __init__(self, invariant: str, text: str) -> None:
        super().__init__(f"{invariant}: {text}")
        self.invariant = invariant
        self.text = text


class Checker:
    """One invariant; `RULE` is its name. Every method is an observation and may be ignored."""

    RULE = ""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger

    def broken(self, text: str) -> NoReturn:
        raise Violation(self.RULE, text)

    def on_existing(self, existing: Existing) -> None:
        """A command has become durable."""

    def on_state(self, machine: Machine) -> None:
        """The broker has applied a command, or has recovered."""

    def on_recovered(self) -> None:
        """The broker has been restarted."""

    def on_request(self, process: Process, request: messages.AnyRequest) -> None:
        """A client sends a request."""

    def on_arrived(self, process: Process, request: messages.AnyRequest) -> None:
        """A request has reached the broker."""

    def on_answer(self, process: Process, answer: object) -> None:
        """The broker sends an answer, a delivery or a batch, which may get lost."""

    def on_receipts(self, process: Process, name: str, receipts: list[Receipt]) -> None:
        """A client was told that its message is stored."""

    def on_many(self, process: Process, topic: str, names: list[str], receipts: Receipts) -> None:
        """A client was told that its messages are stored."""

    def on_process(self, process: Process) -> None:
        """A client's process begins."""

    def on_handed(self, process: Process, topics: tuple[str, ...], message: Message) -> None:
        """An application was given a message."""

    def on_taken(self, process: Process, message: Message) -> None:
        """An application was given a message of its group."""

    def on_confirmed(self, process: Process, message: Message) -> None:
        """An application was told that its ack of a message counts."""

    def on_end(self, engine: AnyEngine) -> None:
        """The run is over; this is the broker after a last restart."""


class NothingLost(Checker):
    """What was acknowledged is in its topic, at the offset that the receipt says, and stays readable."""

    RULE = "no acknowledged put is lost"

    def on_receipts(self, process: Process, name: str, receipts: list[Receipt]) -> None:
        wanted = self.ledger.intended[name]
        if sorted(receipt.topic for receipt in receipts) != sorted(wanted):
            self.broken(f"{process.label} put {name} to {wanted} and was told {receipts}")
        for receipt in receipts:
            if receipt.offset is None:
                self._check_gone(process, name, receipt.topic)
            elif not self.ledger.holds(receipt.topic, receipt.offset, name):
                self.broken(f"{process.label} was told that {name} is at {receipt}, and it is not durable there")

    def on_many(self, process: Process, topic: str, names: list[str], receipts: Receipts) -> None:
        stored = self.ledger.topics.get(topic, [])
        missing = [name for name in names if name not in stored]
        first = receipts.first_offset
        if missing or receipts.count != len(names):
            self.broken(f"{process.label} was told {receipts}, and {missing} of {names} are not durable")
        if first is not None and not receipts.duplicates and not self.ledger.holds(topic, first, names[0]):
            self.broken(f"{process.label} was told {receipts}, and {names[0]} is not at {first}")

    def _check_gone(self, process: Process, name: str, topic: str) -> None:
        """A receipt without an offset is only for what retention has removed."""
        stored = self.ledger.topics.get(topic, [])
        if name not in stored:
            self.broken(f"{process.label} was told that {name} had been stored in {topic}, and it never was")
        if stored.index(name) >= self.ledger.first_kept(topic):
            self.broken(f"{process.label} was told that {name} is gone from {topic}, and it is still there")

    def on_end(self, engine: AnyEngine) -> None:
        for topic in engine.broker.machine.topics.values():
            names = []
            for entry in range(len(topic.offsets)):
                place = topic.place(entry)
                body = engine.journal.read(place.address, place.size_bytes)
                columns = decode_columns(body if place.kept is None else thin(body, place.kept))
                names += [name_of(value) for value in columns.values]
            wanted = self.ledger.topics.get(topic.name, [])
            if names != wanted[topic.first_offset :] or topic.next_offset != len(wanted):
                self.broken(
                    f"{topic.name} from {topic.first_offset} on holds {names}, not {wanted[topic.first_offset :]}"
                )
        for name, wanted in self.ledger.topics.items():
            if len(wanted) > self.ledger.first_kept(name) and name not in engine.broker.machine.topics:
                self.broken(f"the topic {name} is gone with {len(wanted)} messages")


class NothingTwice(Checker):
    """No message is stored twice in a topic, and offsets have neither holes nor two owners."""

    RULE = "no message is stored twice"

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger)
        self._seen: dict[tuple[str, str], int] = {}

    def on_existing(self, existing: Existing) -> None:
        for topic, offset, name in existing.stored:
            stored = self.ledger.topics.setdefault(topic, [])
            if offset != len(stored):
                self.broken(f"{name} is stored at offset {offset} of {topic}, and the next one is {len(stored)}")
            earlier = self._seen.setdefault((topic, name), offset)
            if earlier != offset:
                self.broken(f"{name} is stored at the offsets {earlier} and {offset} of {topic}")
            stored.append(name)


class CursorsForward(Checker):
    """A cursor never goes back, not even over a restart, and never beyond what was acknowledged."""

    RULE = "cursors never go back and never run ahead"

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger)
        self._reached: dict[SubscriptionKey, dict[str, int]] = {}
        self._asked: dict[tuple[SubscriptionKey, str], int] = {}

    def on_request(self, process: Process, request: messages.AnyRequest) -> None:
        given: tuple[messages.Acknowledgement, ...] = ()
        if isinstance(request, messages.Ack):
            given = (request.acknowledgement,)
        elif isinstance(request, messages.Commit):
            given = request.acknowledgements
        for acknowledgement in given:
            for topic, offset in ((each.topic, each.offset) for each in acknowledgement.positions):
                key = ((process.name, canonical(acknowledgement.topics)), topic)
                self._asked[key] = max(self._asked.get(key, 0), offset)

    def on_existing(self, existing: Existing) -> None:
        command, result = existing.command, existing.result
        if existing.error is not None:
            return
        if isinstance(command, commands.Subscribe):
            assert isinstance(result, tuple)
            positions, created = result
            if created:
                key = key_of(command.client, command.topics, command.whole)
                self._reached[key] = {each.topic: each.offset for each in positions}
        elif isinstance(command, commands.Unsubscribe):
            self._reached.pop(key_of(command.client, command.topics, command.whole), None)

    def on_state(self, machine: Machine) -> None:
        for key, reached in self._reached.items():
            subscription = machine.subscriptions.get(key)
            if subscription is None:
                continue  # Whether it may be missing is for the comparison with the reference to say.
            for topic, offset in subscription.cursors.items():
                if offset < reached[topic]:
                    self.broken(f"the cursor of {key} in {topic} went from {reached[topic]} back to {offset}")
                asked = self._asked.get(((subscription.client, subscription.all_topics), topic), 0)
                if offset > max(subscription.starts[topic], asked):
                    self.broken(f"the cursor of {key} in {topic} is at {offset}, and nobody acknowledged that")
                reached[topic] = offset


class FencedStayOut(Checker):
    """Once a newer session of a name has its epoch, nothing of an older one is accepted."""

    RULE = "fenced sessions change nothing"

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger)
        self._newest: dict[str, tuple[int, bytes]] = {}
        self._tokens: dict[tuple[str, bytes], int] = {}

    def on_existing(self, existing: Existing) -> None:
        command: Any = existing.command
        if existing.error is not None or not hasattr(command, "client"):
            return
        epoch, token = self._newest.get(command.client, (0, b""))
        if isinstance(command, commands.Open):
            granted: Any = existing.result
            if granted < epoch or (granted == epoch) != (command.token == token):
                self.broken(f"{command.client} was given epoch {granted} after {epoch}")
            first = self._tokens.setdefault((command.client, command.token), granted)
            if first != granted:
                self.broken(
                    f"a late Hello of {command.client}'s session {first} was given epoch {granted} after {epoch}"
                )
            self._newest[command.client] = (granted, command.token)
        elif command.epoch < epoch and not self._is_member(command):
            self.broken(f"a {type(command).__name__} of {command.client} in epoch {command.epoch} came after {epoch}")

    def _is_member(self, command: Any) -> bool:
        """Whether the newer session has not joined this command's group yet: until then the older one is the member."""
        if not isinstance(command, commands.GroupAck | commands.Leave):
            return False
        group = self.ledger.reference.groups[command.group, command.topic]
        return isinstance(command, commands.Leave) or group.members.get(command.client) == command.epoch


class AllOrNone(Checker):
    """What is put to several topics is in all of them or in none; a transaction's ack and puts go together."""

    RULE = "several at once are all or none"

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger)
        self.transactions: dict[SubscriptionKey, str] = {}
        """Subscriptions that are read in transactions, and the topic that gets one answer for each message."""

    def on_existing(self, existing: Existing) -> None:
        stored: dict[str, list[str]] = {}
        for topic, _, name in existing.stored:
            stored.setdefault(name, []).append(topic)
        for name, topics in stored.items():
            missing = [topic for topic in self.ledger.intended[name] if topic not in topics]
            for topic in missing:
                if name not in self.ledger.topics.get(topic, ()):
                    self.broken(f"{name} was put to {self.ledger.intended[name]} and is only in {topics}")
        command = existing.command
        if isinstance(command, commands.Write) and self.transactions:
            for key, answers in self.transactions.items():
                if key[0] == command.client and key in self.ledger.reference.subscriptions:
                    self._check_transactions(key, answers)

    def _check_transactions(self, key: SubscriptionKey, answers: str) -> None:
        subscription = self.ledger.reference.subscriptions[key]
        wanted = sorted(
            f"{key[0]}:{topic}:{offset}"
            for topic, cursor in subscription.cursors.items()
            for offset in range(subscription.starts[topic], cursor)
        )
        found = sorted(self.ledger.topics.get(answers, []))
        if wanted != found:
            self.broken(f"{key} acknowledged what should give {wanted} and {answers} holds {found}")
