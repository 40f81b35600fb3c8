"""What a broker alone writes, applies and recovers, as the checkers see it."""

from __future__ import annotations

from tidings.errors import TidingsError
from tidings.journal.journal import Commit
from tidings.node.engine import AnyEngine
from tidings.protocols.broker import commands
from tidings.protocols.broker.machine import Machine
from tidings.settings import BrokerSettings
from tidings.simulator.checkers.checker import CursorsForward, FencedStayOut, NothingLost, NothingTwice
from tidings.simulator.checkers.collecting import OnlyUnusedGo
from tidings.simulator.checkers.ledger import Ledger
from tidings.simulator.checkers.recovery import RecoveryEqualsPrefix
from tidings.simulator.checkers.watch import Judge, JudgedNode, Notes, Watch


class LoneJudge(Judge):
    """A command exists from the moment in which it is on the broker's disk, synced."""

    def __init__(self, world: Notes, settings: BrokerSettings) -> None:
        ledger = Ledger(settings)
        super().__init__(Watch(world, ledger))
        self.recovery = RecoveryEqualsPrefix(ledger)
        self.watch.checkers = [
            self.recovery,
            NothingTwice(ledger),  # It writes the ledger's topics, on which those below rely.
            NothingLost(ledger),
            OnlyUnusedGo(ledger),
            self.watch.once,
            CursorsForward(ledger),
            FencedStayOut(ledger),
            self.watch.together,
        ]

    def on_begun(self, commit: Commit) -> None:
        self.recovery.unfinished = commit

    def on_refused(self, node: JudgedNode, commit: Commit) -> None:
        self.watch.note(node.name, f"refuses {len(commit.records)} records: the disk is full")
        self.recovery.unfinished = None

    def on_durable(self, node: JudgedNode, commit: Commit) -> None:
        first = commit.records[0].slot
        rolled = ", a new segment" if commit.roll is not None else ""
        self.watch.note(node.name, f"slots {first} to {first + len(commit.records) - 1} are durable{rolled}")
        self.recovery.unfinished = None
        for append, record in zip(commit.appends, commit.records, strict=True):
            self.watch.exists(self.recovery.expect(self.watch.ledger.take(record, append.bodies)))

    def on_recovered(self, engine: AnyEngine) -> None:
        for record, bodies in self.recovery.survivors(engine):
            self.watch.exists(self.watch.ledger.take(record, bodies))
        self.recovery.compare(engine)
        self.watch.show_state(engine.broker.machine)
        for checker in self.watch.checkers:
            checker.on_recovered()

    def on_applied(
        self, node: JudgedNode, machine: Machine, command: commands.Command, result: object, error: TidingsError | None
    ) -> None:
        self.recovery.applied(command, result, error)
        self.watch.show_state(machine)

    def look_at(self, engine: AnyEngine) -> None:
        """Compares a broker on a copy of the disk with all that should be there."""
        self.recovery.compare(engine)
        self.watch.on_end(engine)
