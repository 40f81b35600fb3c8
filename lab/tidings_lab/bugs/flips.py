"""Planted bugs in what a member of a group says to bits that flip in its files while it serves."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from tidings.journal.checked import Checked, DamagedPlace
from tidings.node.engine import say_damaged
from tidings.node.group import Group
from tidings.node.replicated import BrokerState
from tidings.protocols.effects import Effect
from tidings.simulator.checkers.rules import ASSERTIONS, ONCE, PROGRESS, RANGES
from tidings.simulator.endings.flips import RULE
from tidings.simulator.planting import mutant, patched

_mutant = partial(mutant, world="cluster")


@_mutant(
    "member-checks-once",
    "a member takes a block that was found good once for good for ever",
    RANGES,
    ONCE,
    RULE,
)
def _member_checks_once() -> Iterator[None]:
    with patched(Checked, "forget", lambda _: lambda self: None):
        yield


@_mutant("member-does-not-ask", "a member tells its readers of damage, and does not ask the others", RULE)
def _member_does_not_ask() -> Iterator[None]:
    def planted(self: Group, effect: Effect, damage: DamagedPlace) -> None:
        self._engine.withhold(effect, damage, say_damaged(damage))

    with patched(Group, "on_damage", lambda _: planted):
        yield


@_mutant("member-looks-where-it-was", "what was fetched is looked for where it was damaged", RULE, PROGRESS, ASSERTIONS)
def _member_looks_where_it_was() -> Iterator[None]:
    with (
        patched(BrokerState, "move", lambda _: lambda self, address, size_bytes, new_address: None),
        patched(BrokerState, "copies_within", lambda _: lambda self, start, end: []),
    ):
        yield
