"""What the groups of a ring apply, as the checkers of one broker understand it, and what groups owe to each other.

Who owns what is reckoned here by the decided `Claim`, `HandOff` and `TakeOver` alone, without the code that is under
test.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

from tidings.node.engine import AnyEngine
from tidings.node.group import Group
from tidings.protocols.broker import commands
from tidings.protocols.broker.machine import Machine
from tidings.protocols.broker.ownership import Grown
from tidings.protocols.broker.staged import sink_key
from tidings.protocols.broker.subscriptions import SubscriptionKey, key_of
from tidings.protocols.chord.identifiers import Key
from tidings.protocols.ring.commands import Claim, Drop, HandOff, TakeOver
from tidings.protocols.ring.commit_commands import (
    BeginCommit,
    CommitCommand,
    DecideCommit,
    HoldPart,
    Publishing,
    ResolvePart,
)
from tidings.protocols.ring.commits import HeldPart
from tidings.protocols.ring.key_ranges import (
    WHOLE,
    KeyRanges,
    client_of,
    common,
    home_of,
    joined,
    owns,
    point_of,
    without,
)
from tidings.protocols.ring.policy import ring_of
from tidings.settings import BrokerSettings
from tidings.simulator.checkers.checker import Checker, CursorsForward, NothingLost, NothingTwice
from tidings.simulator.checkers.cluster import GroupJudge
from tidings.simulator.checkers.commits import AllOrNoneAcross, CommitsAreWhole, EachOnceInOrderAcross, InOrder
from tidings.simulator.checkers.ledger import Existing, Ledger, name_of
from tidings.simulator.checkers.noted import FencedEverywhere, NotedAtHome
from tidings.simulator.checkers.publications import EachBatchOnceAcross
from tidings.simulator.checkers.ring_ledger import RingLedger, contents
from tidings.simulator.checkers.watch import JudgedNode, Notes
from tidings.wire.codec import decode_columns, thin


def shown(ranges: KeyRanges) -> str:
    """Ranges in a few characters.

    >>> shown((WHOLE,)), shown(())
    ('ffff-ffff', 'nothing')
    """
    return ", ".join(f"{key_range.start.hex()[:4]}-{key_range.end.hex()[:4]}" for key_range in ranges) or "nothing"


class NothingLeftBehind(Checker):
    """A group that takes something has all that there was of it when it was given."""

    RULE = "what is taken is what was given"

    def compare(self, who: str, given: dict[tuple[Any, ...], Any], found: dict[tuple[Any, ...], Any]) -> None:
        for what in {**given, **found}:
            if found.get(what) != given.get(what):
                self.broken(f"{who} takes {what} as {found.get(what)}, and it was given as {given.get(what)}")


class OneOwner(Checker):
    """No point has two owners, and only its owner accepts anything for it."""

    RULE = "every point has one owner at most"

    def __init__(self, ledger: RingLedger) -> None:
        super().__init__(ledger)
        self._ring = ledger
        self.owned: dict[str, KeyRanges] = {}
        self._transfers: dict[str, int] = {}
        self._given: dict[tuple[str, int], tuple[KeyRanges, str]] = {}
        """(source, number of the transfer) -> what it is, and for whom."""
        self._taken: dict[tuple[str, int], None] = {}
        self._behind = NothingLeftBehind(ledger)

    def on_decided(self, group: str, existing: Existing) -> bool:
        """A group has decided a command, to this effect; whether it owns something else since."""
        command, before = existing.command, self.owned.get(group)
        if existing.error is not None:
            return False
        match command:
            case Claim(ranges):
                self._on_claim(group, ranges)
            case HandOff(ranges, target):
                self._transfers[group] = self._transfers.get(group, 0) + 1
                transfer = common(self.owned[group], ranges)
                self._given[group, self._transfers[group]] = (transfer, self._ring.names[target.group])
                self.owned[group] = without(self.owned[group], transfer)
            case TakeOver(source, number):
                self._on_take(group, self._ring.names[source], number)
            case Drop(number):
                if (group, number) in self._given and (group, number) not in self._taken:
                    self.broken(f"{group} forgets its transfer {number}, and nobody has taken it")
            case _:
                self._check_subjects(group, command)
        ring = ring_of(self._ring.of[group].reference)
        if ring is not None and ring.ranges != self.owned[group]:
            self.broken(
                f"{group} owns {shown(ring.ranges)} after {command}, and it should own {shown(self.owned[group])}"
            )
        return self.owned.get(group) != before

    def _on_claim(self, group: str, ranges: KeyRanges) -> None:
        if group not in self.owned:
            self._check_free(group, ranges)
            self.owned[group] = joined(ranges)
            self._ring.hold(group, joined(ranges))

    def _on_take(self, group: str, source: str, number: int) -> None:
        if (source, number) in self._taken:
            return
        transfer, target = self._given.get((source, number), ((), ""))
        if target != group:
            self.broken(f"{group} takes the transfer {number} of {source}, which is for {target or 'nobody'}")
        self._check_free(group, transfer)
        given = contents(self._ring.of[source].reference, transfer)
        found = contents(self._ring.of[group].reference, transfer)
        self._behind.compare(f"{group}, from {source},", given, found)
        self._taken[source, number] = None
        self.owned[group] = joined((*self.owned[group], *transfer))
        self._ring.hold(group, transfer)

    def _check_free(self, group: str, ranges: KeyRanges) -> None:
        for other, owned in self.owned.items():
            if twice := common(owned, ranges):
                self.broken(f"{group} is to own {shown(twice)}, which {other} owns")

    def _check_subjects(self, group: str, command: commands.Command) -> None:
        owned = self.owned.get(group, ())
        for what, point in _subjects(command):
            if not owns(owned, point):
                self.broken(f"{group} accepts {command}, and does not own {what}")

    def is_whole(self) -> bool:
        """Whether every point is owned by somebody."""
        return joined(key_range for ranges in self.owned.values() for key_range in ranges) == (WHOLE,)


def _subjects(command: Any) -> list[tuple[str, Key]]:
    """What a group has to own if it accepts a command of a client."""
    match command:
        case commands.Write():
            topics = [target.topic for batch in command.batches for target in batch.targets]
            topics += [topic for each in command.acknowledgements for topic in each.topics]
        case commands.Subscribe() | commands.Attach() | commands.Unsubscribe():
            topics = list(command.topics)
        case HoldPart(publishing=Publishing(ranges=ranges)):
            return [(f"the points up to {shown((each,))}", each.end) for each in ranges]
        case commands.Publish():
            client = client_of(sink_key(command.query, command.sink))
            topics = [topic for named in command.stages if named.count for topic in named.topics]
            return [("the home of a query", home_of(client)), *((topic, point_of(topic)) for topic in topics)]
        case commands.Stage():
            topics = [command.topic]
        case HoldPart():
            topics = [target.topic for batch in command.batches for target in batch.targets]
            topics += [topic for each in command.acknowledgements for topic in each.topics]
        case BeginCommit() | DecideCommit():
            return [(f"the home of {command.client}", home_of(command.client))]
        case commands.Open():
            return [(f"the home of {command.client}", home_of(command.client))]
        case _:
            return []
    return [(topic, point_of(topic)) for topic in topics]


class FencedAtOwners(Checker):
    """Epochs only rise, wherever homes go; and nothing of an older session is accepted where a newer one has left its
    mark: in the topics that it has put to, and in its subscriptions.
    """

    RULE = "fenced sessions change nothing"

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger)
        self._newest: dict[str, tuple[int, bytes]] = {}
        self._tokens: dict[tuple[str, bytes], int] = {}
        self._put: dict[tuple[str, str], int] = {}
        self._read: dict[SubscriptionKey, int] = {}
        self._parts: dict[tuple[bytes, tuple[str, ...]], HoldPart] = {}

    def on_existing(self, existing: Existing) -> None:
        command: Any = existing.command
        if existing.error is not None:
            return
        match command:
            case commands.Open():
                self._on_open(command, cast(int, existing.result))
            case commands.Write():
                for topic in {target.topic: None for batch in command.batches for target in batch.targets}:
                    self._check(command, self._put, (command.client, topic))
                for each in command.acknowledgements:
                    self._check(command, self._read, key_of(command.client, each.topics, each.whole))
            case HoldPart():
                self._parts[command.commit, _topics(command)] = command
            case ResolvePart() if (
                isinstance(existing.result, Grown) and existing.result.topics and not existing.result.extents
            ):
                part = self._parts[command.commit, existing.result.topics]
                for topic in {target.topic: None for batch in part.batches for target in batch.targets}:
                    self._check(part, self._put, (part.client, topic))
                for each in part.acknowledgements:
                    self._check(part, self._read, key_of(part.client, each.topics, each.whole))
            case commands.Subscribe() | commands.Attach() | commands.Unsubscribe():
                key = key_of(command.client, command.topics, command.whole)
                self._check(command, self._read, key)
                if isinstance(command, commands.Unsubscribe):
                    del self._read[key]

    def _on_open(self, command: commands.Open, granted: int) -> None:
        epoch, token = self._newest.get(command.client, (0, b""))
        if granted < epoch or (granted == epoch) != (command.token == token):
            self.broken(f"{command.client} was given epoch {granted} after {epoch}")
        first = self._tokens.setdefault((command.client, command.token), granted)
        if first != granted:
            self.broken(f"a late Hello of {command.client}'s session {first} was given epoch {granted} after {epoch}")
        self._newest[command.client] = (granted, command.token)

    def _check(self, command: Any, known: dict[Any, int], key: Any) -> None:
        if command.epoch < known.get(key, 0):
            self.broken(f"a {type(command).__name__} of {key} in epoch {command.epoch} came after {known[key]}")
        if command.epoch > self._newest.get(command.client, (0, b""))[0]:
            self.broken(f"{command.client} is known in epoch {command.epoch}, which nobody has given it")
        known[key] = command.epoch


def _topics(part: HoldPart) -> tuple[str, ...]:
    """Everything that a part is about, in the order in which its group says so."""
    return HeldPart(part.commit, part.epoch, part.batches, part.acknowledgements).topics


class NothingLostAnywhere(NothingLost):
    """The same for topics that move: the group that has a topic must have all of it."""

    def on_end(self, engine: AnyEngine) -> None:
        assert isinstance(self.ledger, RingLedger) and isinstance(engine.log, Group)
        group = self.ledger.names[engine.log.identity.group]
        machine = engine.broker.machine
        for name, wanted in self.ledger.topics.items():
            if self.ledger.holder_of(name) != group:
                continue
            topic = machine.topics.get(name)
            if topic is None:
                if len(wanted) > self.ledger.first_kept(name):
                    self.broken(f"the topic {name} is gone with {len(wanted)} messages")
                continue
            names: list[str] = []
            for entry in range(len(topic.offsets)):
                place = topic.place(entry)
                body = engine.journal.read(place.address, place.size_bytes)
                columns = decode_columns(body if place.kept is None else thin(body, place.kept))
                names += [name_of(value) for value in columns.values]
            if names != wanted[topic.first_offset :] or topic.next_offset != len(wanted):
                self.broken(f"{name} from {topic.first_offset} on holds {names}, not {wanted[topic.first_offset :]}")


class RingJudge(GroupJudge):
    """The checkers of one broker, for a ring of groups that are one together."""

    def __init__(self, world: Notes, settings: BrokerSettings) -> None:
        self.ring = RingLedger(settings)
        super().__init__(world, self.ring)
        self.owners = OneOwner(self.ring)
        self.commits = CommitsAreWhole(self.ring)
        self.order = InOrder(self.ring)
        self.noted = NotedAtHome(self.ring)
        self.fenced = FencedEverywhere(self.ring, lambda: world.now_ms)
        self.watch.together = AllOrNoneAcross(self.ring)
        self.watch.once = EachOnceInOrderAcross(self.ring)
        self.watch.batches = EachBatchOnceAcross(self.ring)
        self.on_commit_step: Callable[[str], None] = lambda group: None
        """Is told of each step of a commit over several groups that a group has decided."""
        self.watch.checkers = [
            NothingTwice(self.ring),  # It writes the ledger's topics, on which those below rely.
            NothingLostAnywhere(self.ring),
            self.watch.once,
            CursorsForward(self.ring),
            FencedAtOwners(self.ring),
            self.fenced,
            self.watch.together,
            self.current,
            self.owners,
            self.commits,
            self.order,
            self.watch.batches,
            self.watch.ranges,
        ]

    def on_group(self, group: str, first_slot: int) -> None:
        super().on_group(group, first_slot)
        self.ring.add_group(group, mark_of(group))

    def ledger_of(self, group: str) -> Ledger:
        return self.ring.of[group]

    def _exist(self, group: str, command: commands.Command, time_ms: int, bodies: list[bytes]) -> Existing:
        existing = self.ring.of[group].take_command(command, time_ms, self._address, bodies)
        if self.owners.on_decided(group, existing):
            self.watch.note(f"group {group}", f"owns {shown(self.owners.owned[group])}")
        self.noted.on_decided(group, existing)
        self.fenced.on_decided(group, existing)
        self.commits.on_decided(group, existing)
        self.order.take(group, existing)
        if isinstance(command, CommitCommand):
            self.on_commit_step(group)
        return existing

    def _on_state(self, node: JudgedNode, machine: Machine) -> None:
        """Only what a group owns says anything: the rest is frozen, or not complete."""
        owned = self.owners.owned.get(node.group, ())
        seen = {key: each for key, each in machine.subscriptions.items() if owns(owned, point_of(key[1][0]))}
        self.watch.show_state(cast(Machine, SimpleNamespace(subscriptions=seen)))

    def compare(self, node: JudgedNode) -> None:
        super().compare(node)
        assert node.engine is not None
        found, wanted = ring_of(node.engine.broker.machine), ring_of(self.ring.of[node.group].reference)
        if (found and found.state()) != (wanted and wanted.state()):
            self._same[node.name].broken(f"{node.name} knows of its ring {found and found.state()}, not {wanted}")


def mark_of(group: str) -> bytes:
    """The mark by which the nodes of a world know a group."""
    return group.encode().ljust(16, b"-")
