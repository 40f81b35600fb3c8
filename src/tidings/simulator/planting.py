"""How a bug is planted: one attribute of the code under test is replaced for a while."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import msgspec

LOST = "no acknowledged put is lost"
TWICE = "no message is stored twice"
ONCE = "every subscriber is handed each message once and in order"
CURSORS = "cursors never go back and never run ahead"
FENCED = "fenced sessions change nothing"
TOGETHER = "several at once are all or none"
RECOVERY = "recovery equals the acknowledged prefix"
ASSERTIONS = "the code's own assertions hold"
PROGRESS = "everything pending completes"
UNTAKEN = "nothing is acked that nobody worked on"
ACKED = "what is acked is never given out again"
LANES = "each lane is given out in order"
OWNER = "nobody loses work that is in flight"
MARKED = "what may have been worked on before is marked"
STALE = "no stale ack is accepted"
BATCHES = "each batch of a query is visible once, in full or not at all"
RANGES = "a range reads as what is stored there"


class Mutant(msgspec.Struct, frozen=True):
    """A planted bug: what it does, which invariants may notice it first, and how it is planted."""

    name: str
    what: str
    rules: tuple[str, ...]
    plant: Callable[[], AbstractContextManager[None]]
    world: str = "topics"
    first_seed: int = 0
    """Where to begin to look: some bugs need rare company."""


MUTANTS: dict[str, Mutant] = {}
"""By name; filled by the modules that plant them."""


def mutant(
    name: str, what: str, *rules: str, world: str = "topics", first_seed: int = 0
) -> Callable[[Callable[[], Iterator[None]]], None]:
    """Adds a bug to the list; what is decorated plants it, yields, and takes it out again."""

    def register(plant: Callable[[], Iterator[None]]) -> None:
        MUTANTS[name] = Mutant(name, what, rules, contextmanager(plant), world, first_seed)

    return register


@contextmanager
def patched(owner: Any, name: str, make: Callable[[Any], Any]) -> Iterator[None]:
    """Replaces an attribute by what `make` makes of it, for a while."""
    original = getattr(owner, name)
    setattr(owner, name, make(original))
    try:
        yield
    finally:
        setattr(owner, name, original)
