"""How a bug is planted: one attribute of the code under test is replaced for a while."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import msgspec


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
