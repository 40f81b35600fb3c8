"""The operator: takes nodes in and out while everything goes wrong, and replaces machines that are gone.

It never does what would leave a group without a majority of disks for ever; everything else it does at bad times. A
change is asked for again until it has come into force.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from random import Random
from typing import Protocol

from tidings.protocols.multipaxos.membership import Membership
from tidings.protocols.multipaxos.values import Add, Change, Promote, Remove
from tidings_lab.simulated_replicas.faults import Work
from tidings_lab.simulated_replicas.ledger import Ledger
from tidings_lab.simulated_replicas.node import Node

RETRY_MS = 150
VOTERS_MAX = 6


class Group(Protocol):
    """What an operator sees, and can do."""

    random: Random
    ledger: Ledger
    nodes: dict[int, Node]

    def note(self, process: str, what: str) -> None: ...

    def after(self, delay_ms: int, what: Callable[[], None]) -> None: ...

    def add_node(self) -> int:
        """A new machine with an empty disk, under a number that was never used."""

    def call_change(self, change: Change) -> None:
        """Asks the leader, or anybody."""

    def may_put_back(self, number: int) -> bool:
        """Whether the copy of a node's folder may take the place of the folder."""


class Operator:
    """Does one task after another."""

    def __init__(self, world: Group) -> None:
        self._world = world
        self._tasks: deque[Work] = deque()
        self._wanted: list[list[Change]] = []
        """Rows of changes: each row in its order, the rows beside each other."""
        self._removed: list[int] = []
        """Nodes that were taken out and still run."""
        self._confirmed_slot = 0
        """The newest membership of which a leader has said that the earlier voters are needed no more."""
        self._outdated: int | None = None
        """Whose folder is an older copy of itself, as long as it has not noticed."""
        self._busy = False
        """From the beginning of a task until its last change is confirmed."""
        self.planned = 0
        """Tasks that are still to come."""

    @property
    def idle(self) -> bool:
        return not self._tasks and not self._busy

    @property
    def may_replace(self) -> bool:
        """Whether the group can bear the loss of a disk from now on: three vote, and nothing else is to be changed."""
        return self.idle and not self.planned and len(self._world.ledger.voters) >= 3

    def on_refused(self, number: int) -> None:
        """A node refuses to start on its disk: another takes its place, as the node says."""
        world = self._world
        world.nodes[number].retire()
        if number in world.ledger.members:
            new = world.add_node()
            self._wanted += [[Remove(number)], [Add(new), Promote(new)]]
            world.note("operator", f"replaces a damaged disk: {self._wanted}")
            if not self._busy:
                self._busy = True
                self._go_on()

    def on_work(self, work: Work) -> None:
        self.planned -= 1
        self._tasks.append(work)
        if not self._busy:
            self._begin()

    def on_confirmed(self, first_slot: int, membership: Membership) -> None:
        """Switches off some of those who were removed and are needed no more; others go on and do not know."""
        world = self._world
        self._confirmed_slot = max(self._confirmed_slot, first_slot)
        for number in [number for number in self._removed if number not in membership.nodes]:
            self._removed.remove(number)
            if not world.nodes[number].retired and world.random.random() < 0.7:
                world.after(world.random.randint(1, 50), world.nodes[number].retire)

    def _begin(self) -> None:
        world, ledger = self._world, self._world.ledger
        self._busy = True
        work = self._tasks.popleft()
        voters = ledger.voters
        victim = voters[work.choice % len(voters)]
        match work.task:
            case "grow" if len(voters) < VOTERS_MAX:
                new = world.add_node()
                self._wanted = [[Add(new), Promote(new)]]
            case "shrink" if len(voters) > 3:
                self._wanted = [[Remove(victim)]]
            case "replace":
                new = world.add_node()
                self._wanted = [[Add(new), Promote(new), Remove(victim)]]
            case "lose-disk" if len(voters) >= 3:
                world.nodes[victim].retire()
                new = world.add_node()
                self._wanted = [[Remove(victim)], [Add(new), Promote(new)]]
            case "put-back" if len(voters) >= 3:
                self._put_back(work.choice)
            case "rash" if len(voters) > 3:
                others = [voter for voter in voters if voter != victim]
                self._wanted = [[Remove(victim)], [Remove(others[work.choice % len(others)])]]
            case "rash":
                first, second = world.add_node(), world.add_node()
                self._wanted = [[Add(first), Promote(first)], [Add(second), Promote(second)]]
        world.note("operator", f"{work.task}: {self._wanted}")
        self._go_on()

    def _put_back(self, choice: int) -> None:
        """An older folder takes the place of a voter's. Its number is replaced once it has noticed, and not before."""
        world = self._world
        victims = [number for number in world.ledger.voters if world.may_put_back(number)]
        if victims:
            self._outdated = victims[choice % len(victims)]
            world.nodes[self._outdated].put_back()

    def _replace_outdated(self) -> None:
        """Nobody comes to the group who has not heard what the outdated node once said, while it is a member."""
        outdated, world = self._outdated, self._world
        if outdated is not None and world.nodes[outdated].retired:
            new, self._outdated = world.add_node(), None
            self._wanted = [[Remove(outdated), Add(new), Promote(new)]]
            world.note("operator", f"replace what was put back: {self._wanted}")

    def _go_on(self) -> None:
        """Crosses out what has happened, and asks for the rest again."""
        world = self._world
        self._replace_outdated()
        for row in self._wanted:
            while row and self._has_happened(row[0]):
                change = row.pop(0)
                if isinstance(change, Remove):
                    self._removed.append(change.node)
            if row and isinstance(row[0], Add) and row[0].node < world.ledger.newest:
                new = world.add_node()  # Another one came first, and numbers only rise: this one will never do.
                row[:2] = [Add(new), Promote(new)]
        self._wanted = [row for row in self._wanted if row]
        if not self._wanted and self._outdated is None and self._confirmed_slot >= world.ledger.terms[-1][0]:
            self._busy = False
            if self._tasks:
                self._begin()
            return
        for row in self._wanted:
            world.call_change(row[0])
        world.after(RETRY_MS, self._go_on)

    def _has_happened(self, change: Change) -> bool:
        ledger = self._world.ledger
        match change:
            case Add(node):
                return node in ledger.members
            case Promote(node):
                return node in ledger.voters
            case Remove(node):
                return node not in ledger.members
