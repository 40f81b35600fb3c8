"""What groups owe to each other for a commit over several of them, and to the clients that asked for it.

Reckoned by the decided commands alone: who began a commit, what was decided, and which group has held, carried out or
dropped its part.
"""

from __future__ import annotations

from tidings.node.engine import AnyEngine
from tidings.protocols.broker import commands
from tidings.protocols.broker.ownership import Grown
from tidings.protocols.broker.subscriptions import Subscription, SubscriptionKey, key_of
from tidings.protocols.ring.commit_commands import BeginCommit, DecideCommit, EndCommit, HoldPart, ResolvePart
from tidings.protocols.ring.key_ranges import point_of
from tidings.protocols.ring.parts import parts_of, whole_of
from tidings.simulator.checkers.checker import AllOrNone, Checker
from tidings.simulator.checkers.delivery import EachOnceInOrder, Part
from tidings.simulator.checkers.ledger import Existing, Ledger
from tidings.simulator.checkers.ring_ledger import RingLedger


class CommitsAreWhole(Checker):
    """Every group with a part of a commit carries it out if that was decided, once, and only then."""

    RULE = "a commit over several groups is carried out by all of them or by none"

    def __init__(self, ledger: RingLedger) -> None:
        super().__init__(ledger)
        self._ring = ledger
        self._begun: dict[bytes, tuple[str, ...]] = {}
        """Commit -> the groups with a part of it."""
        self._decided: dict[bytes, bool] = {}
        self._held: dict[tuple[bytes, str], None] = {}
        self._carried: dict[tuple[bytes, str], None] = {}
        self._ended: dict[bytes, None] = {}

    def on_decided(self, group: str, existing: Existing) -> None:
        """A group has decided a command, to this effect."""
        command = existing.command
        if existing.error is not None:
            return
        match command:
            case BeginCommit(commit, _, _, groups):
                self._begun[commit] = tuple(self._ring.names[each.group] for each in groups)
            case DecideCommit(commit):
                self._on_decision(commit, bool(existing.result))
            case HoldPart(commit) if (commit, group) not in self._carried:
                self._held[commit, group] = None
            case ResolvePart(commit):
                self._on_resolved(group, commit, existing)
            case EndCommit(commit) if self._decided.get(commit):
                self._ended[commit] = None
                self._check_carried(commit, "forgotten")

    def _on_decision(self, commit: bytes, happens: bool) -> None:
        if commit in self._decided:
            if self._decided[commit] != happens and commit not in self._ended:
                self.broken(f"the commit {commit.hex()[:8]} was decided twice, the second time as {happens}")
            return
        self._decided[commit] = happens
        missing = [group for group in self._begun.get(commit, ()) if (commit, group) not in self._held]
        if happens and missing:
            self.broken(f"the commit {commit.hex()[:8]} happens, and {missing} do not hold their parts")

    def _on_resolved(self, group: str, commit: bytes, existing: Existing) -> None:
        if (commit, group) not in self._held:
            return
        happens = isinstance(existing.result, Grown)
        if happens != self._decided.get(commit, False):
            what = "carries out" if happens else "drops"
            self.broken(f"{group} {what} its part of {commit.hex()[:8]}, decided: {self._decided.get(commit)}")
        del self._held[commit, group]
        if happens:
            self._carried[commit, group] = None
            self._check_acknowledged(group, commit)

    def _check_acknowledged(self, group: str, commit: bytes) -> None:
        ledger = self._ring.of[group]
        part, _ = ledger.parts[commit]
        for each in part.acknowledgements:
            subscription = ledger.reference.subscriptions.get(key_of(part.client, each.topics, each.whole))
            if subscription is not None and any(subscription.cursors[p.topic] < p.offset for p in each.positions):
                self.broken(f"{group} carries out its part of {commit.hex()[:8]} without {each}")

    def _check_carried(self, commit: bytes, what: str) -> None:
        missing = [group for group in self._begun[commit] if (commit, group) not in self._carried]
        if missing:
            self.broken(f"the commit {commit.hex()[:8]} is {what}, and {missing} have not carried it out")

    def on_end(self, engine: AnyEngine) -> None:
        if self._held:
            self.broken(f"parts are held at the end: {[(commit.hex()[:8], group) for commit, group in self._held]}")
        for commit, happens in self._decided.items():
            if happens:
                self._check_carried(commit, "over")


class InOrder(Checker):
    """What a name puts to a topic is stored in the order of its numbers, whichever way it came."""

    RULE = "what a publisher puts keeps its order"

    def __init__(self, ledger: RingLedger) -> None:
        super().__init__(ledger)
        self._last: dict[tuple[str, str], int] = {}

    def take(self, group: str, existing: Existing) -> None:
        """A group has decided a command, to this effect."""
        command = existing.command
        if existing.error is not None:
            return
        if isinstance(command, commands.Write):
            batches, stored = command.batches, existing.result
        elif isinstance(command, ResolvePart) and isinstance(existing.result, Grown) and existing.result.topics:
            assert isinstance(self.ledger, RingLedger)
            batches, stored = self.ledger.of[group].parts[command.commit][0].batches, existing.result.stored
        else:
            return
        assert isinstance(stored, tuple)
        for batch, places in zip(batches, stored, strict=True):
            for target, place in zip(batch.targets, places, strict=True):
                repeated, key = dict(place.repeated), (command.client, target.topic)
                for number in range(batch.count):
                    sequence = target.sequence + number
                    if number not in repeated:
                        if sequence <= self._last.get(key, 0):
                            self.broken(f"{key} was stored under {self._last[key]}, and then under {sequence}")
                        self._last[key] = sequence


class AllOrNoneAcross(AllOrNone):
    """The same where topics have several owners, who carry out their parts one after another: at the end."""

    def on_existing(self, existing: Existing) -> None:
        for _, _, name in existing.stored:
            if len({point_of(topic) for topic in self.ledger.intended[name]}) > 1:
                return
        if not self._lie_apart():
            super().on_existing(existing)

    def _lie_apart(self) -> bool:
        """Whether the answers to some transactions lie elsewhere than what they answer."""
        return any(
            point_of(answers) != point_of(topic) for key, answers in self.transactions.items() for topic in key[1]
        )

    def on_end(self, engine: AnyEngine) -> None:
        for name, topics in self.ledger.intended.items():
            missing = [topic for topic in topics if name not in self.ledger.topics.get(topic, ())]
            if 0 < len(missing) < len(topics):
                self.broken(f"{name} was put to {topics} and is not in {missing}")
        for key, answers in self.transactions.items():
            parts = parts_in(self.ledger, key)
            if parts and parts[0].whole:
                self._check_parts(key, parts, answers)
            elif parts:
                self._check_transactions(key, answers)

    def _check_parts(self, key: SubscriptionKey, parts: list[Subscription], answers: str) -> None:
        """The same for a subscription in parts: what comes through an earlier part is answered there."""
        wanted: list[str] = []
        for part in parts:
            kept = Part(part.topics, part.whole, part.made)
            for topic, cursor in part.cursors.items():
                names = self.ledger.topics.get(topic, [])
                for offset in range(part.starts[topic], cursor):
                    if kept.hands_out(topic, offset, self.ledger.intended.get(names[offset], ())):
                        wanted.append(f"{key[0]}:{topic}:{offset}")
        found = sorted(self.ledger.topics.get(answers, []))
        if sorted(wanted) != found:
            self.broken(f"{key} acknowledged what should give {sorted(wanted)} and {answers} holds {found}")


def parts_in(ledger: Ledger, key: SubscriptionKey) -> list[Subscription]:
    """What there is of a subscription with its owners: its parts, or all of it."""
    parts = parts_of(key[1])
    keys = [key_of(key[0], part, whole_of(parts)) for part in parts]
    return [each for each in map(ledger.reference.subscriptions.get, keys) if each is not None]


class EachOnceInOrderAcross(EachOnceInOrder):
    """The same where a subscription has a part for each tag."""

    def _parts(self, key: SubscriptionKey) -> list[Subscription]:
        return parts_in(self.ledger, key)
