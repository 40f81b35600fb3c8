"""Who votes on which slot.

A change is itself a value of the log. One that is chosen in slot `c` is in force from slot `c + window` on, and nobody
proposes anything in a slot before everything up to `window` slots before it is known to be chosen. So anyone who
proposes in a slot knows its voters for certain, and everybody who ever proposes in it means the same ones: each slot is
decided by majorities of one set, old and new majorities never have to meet, and the leader that a change removes may
see it through.

A change is open until it is in force. While one is, another comes to nothing, in the same way on every replica: so
there are never more than two sets of voters to ask, and they differ by one node. (P6: "add and remove a replica by
agreement".)
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from tidings.protocols.multipaxos.values import Add, Change, Promote, Remove

MEMBERS_MAX = 16
"""Voters and listeners of one group."""


class Membership(msgspec.Struct, frozen=True, array_like=True):
    """The nodes that vote, those that only listen, and the highest number that was ever given to a node.

    A number stands for one disk. A node that has lost its disk has forgotten its promises and comes back under a
    new number, without a vote.

    >>> three = Membership((1, 2, 3))
    >>> three.has_quorum([1]), three.has_quorum([1, 3]), three.has_quorum([1, 8, 9])
    (False, True, False)
    """

    voters: tuple[int, ...]
    listeners: tuple[int, ...] = ()
    newest: int = 0

    @property
    def nodes(self) -> tuple[int, ...]:
        return (*self.voters, *self.listeners)

    def has_quorum(self, nodes: Collection[int]) -> bool:
        """Whether more than half of the voters are among these nodes."""
        return 2 * sum(voter in nodes for voter in self.voters) > len(self.voters)

    def after(self, change: Change) -> Membership | None:
        """The membership that a change leads to; None if it comes to nothing."""
        node = change.node
        match change:
            case Add():
                if node <= self.newest or len(self.nodes) == MEMBERS_MAX:
                    return None
                return Membership(self.voters, (*self.listeners, node), node)
            case Promote():
                if node not in self.listeners:
                    return None
                rest = tuple(each for each in self.listeners if each != node)
                return Membership((*self.voters, node), rest, self.newest)
            case Remove():
                voters = tuple(each for each in self.voters if each != node)
                if node not in self.nodes or not voters:  # Somebody has to decide.
                    return None
                return Membership(voters, tuple(each for each in self.listeners if each != node), self.newest)


NOBODY = Membership(())
"""What a node knows that has neither founded the group nor been given a snapshot of it."""


class Term(msgspec.Struct, frozen=True, array_like=True):
    """A membership, and the first slot on which it decides."""

    first_slot: int
    membership: Membership


class History:
    """The terms that still matter to the slots from the first undecided one on.

    >>> history = History(window=4, terms=(Term(1, Membership((1, 2), newest=2)),))
    >>> history.take(slot=6, change=Add(3))
    True
    >>> history.at(9).listeners, history.at(10).listeners
    ((), (3,))
    """

    def __init__(self, window: int, terms: tuple[Term, ...]) -> None:
        self.window = window
        self.terms = terms

    @property
    def newest(self) -> Term:
        return self.terms[-1] if self.terms else Term(0, NOBODY)

    def at(self, slot: int) -> Membership:
        """Who decides on a slot. It has to lie less than a window behind the first undecided one."""
        for term in reversed(self.terms):
            if term.first_slot <= slot:
                return term.membership
        return NOBODY

    def is_open(self, slot: int) -> bool:
        """Whether a change that came before `slot` is not yet in force there."""
        return self.newest.first_slot > slot

    def take(self, slot: int, change: Change) -> bool:
        """Takes in a change that was chosen in a slot, in the order of the slots; False if it comes to nothing."""
        membership = None if self.is_open(slot) else self.newest.membership.after(change)
        if membership is None:
            return False
        # Slots up to this one are decided: of the earlier terms only the one in force still matters.
        self.terms = (self.newest, Term(self._in_force_from(slot), membership))
        return True

    def _in_force_from(self, slot: int) -> int:
        return slot + self.window
