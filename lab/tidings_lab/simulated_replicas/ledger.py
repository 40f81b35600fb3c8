"""What is true, as only somebody can know who sees all disks: which value is chosen in which slot, and by whom.

A value is chosen when a majority of its slot's voters has it on disk under one ballot. Who votes on a slot follows from
what was chosen before, by rules that are written down here a second time, so that a mistake in the code under test is
not repeated.
"""

from __future__ import annotations

from tidings.protocols.multipaxos.values import Add, Ballot, Command, Promote, Remove, Value


class Ledger:
    """Everything that was ever accepted, and what follows from it."""

    def __init__(self, first_slot: int, voters: tuple[int, ...], window: int) -> None:
        self.window = window
        self.accepted: dict[tuple[int, Ballot], tuple[Value, dict[int, None]]] = {}
        self.chosen: dict[int, Value] = {}
        self.next_slot = first_slot
        """Every slot below is chosen."""
        self.row: list[bytes] = []
        """What a replica that has applied all of it holds."""
        self.row_sizes: dict[int, int] = {first_slot: 0}
        """How much of it belongs to the slots below each."""
        self._sequences: dict[str, int] = {}
        self.terms: list[tuple[int, tuple[int, ...], tuple[int, ...]]] = [(first_slot, voters, ())]
        """From which slot on, who votes, who listens."""
        self.newest = max(voters)
        self._waiting: dict[tuple[int, Ballot], None] = {}
        """Accepted in slots whose voters are not known yet."""
        self.conflict: str | None = None

    @property
    def voters(self) -> tuple[int, ...]:
        """Of the newest membership, whether it is in force or not."""
        return self.terms[-1][1]

    @property
    def listeners(self) -> tuple[int, ...]:
        return self.terms[-1][2]

    @property
    def members(self) -> tuple[int, ...]:
        return (*self.voters, *self.listeners)

    def voters_of(self, slot: int) -> tuple[int, ...]:
        return next(voters for first_slot, voters, _ in reversed(self.terms) if first_slot <= slot)

    def accept(self, node: int, slot: int, ballot: Ballot, value: Value) -> None:
        """A node has a value on its disk."""
        known, nodes = self.accepted.setdefault((slot, ballot), (value, {}))
        if known != value:
            self.conflict = f"in slot {slot} ballot {ballot} has proposed {known} and {value}"
        nodes[node] = None
        self._waiting[slot, ballot] = None
        self._count()

    def _count(self) -> None:
        moved = True
        while moved:
            moved = False
            for slot, ballot in list(self._waiting):
                if slot < self.next_slot + self.window:
                    del self._waiting[slot, ballot]
                    self._count_slot(slot, ballot)
            while self.next_slot in self.chosen:
                self._apply(self.next_slot, self.chosen[self.next_slot])
                self.next_slot += 1
                self.row_sizes[self.next_slot] = len(self.row)
                moved = bool(self._waiting)

    def _count_slot(self, slot: int, ballot: Ballot) -> None:
        value, nodes = self.accepted[slot, ballot]
        voters = self.voters_of(slot)
        if 2 * len([voter for voter in voters if voter in nodes]) <= len(voters):
            return
        earlier = self.chosen.setdefault(slot, value)
        if earlier != value:
            self.conflict = f"in slot {slot} {earlier} is chosen, and under ballot {ballot} {value} as well"

    def _apply(self, slot: int, value: Value) -> None:
        match value:
            case Command(client, sequence, body):
                if sequence == self._sequences.get(client, 0) + 1:
                    self._sequences[client] = sequence
                    self.row.append(body)
            case Add(node):
                if self._may_change(slot) and node > self.newest:
                    self.newest = node
                    self._change(slot, self.voters, (*self.listeners, node))
            case Promote(node):
                if self._may_change(slot) and node in self.listeners:
                    self._change(slot, (*self.voters, node), _without(self.listeners, node))
            case Remove(node):
                if self._may_change(slot) and node in self.members and self.voters != (node,):
                    self._change(slot, _without(self.voters, node), _without(self.listeners, node))

    def _may_change(self, slot: int) -> bool:
        return self.terms[-1][0] <= slot

    def _change(self, slot: int, voters: tuple[int, ...], listeners: tuple[int, ...]) -> None:
        self.terms.append((slot + self.window, voters, listeners))


def _without(nodes: tuple[int, ...], node: int) -> tuple[int, ...]:
    return tuple(each for each in nodes if each != node)
