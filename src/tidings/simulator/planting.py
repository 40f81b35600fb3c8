"""How a bug is planted: one attribute of the code under test is replaced for a while.

A checker that finds nothing may be blind, so bugs are planted for it to find. A package offers its bugs in an entry
point of the group `tidings.bugs`: a module that plants them with `mutant`. Those of tidings are in tidings-lab.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from importlib.metadata import entry_points
from typing import Any

import msgspec

from tidings.errors import InvalidRequest

GROUP = "tidings.bugs"


class Mutant(msgspec.Struct, frozen=True):
    """A planted bug: what it does, which invariants may notice it first, and how it is planted."""

    name: str
    what: str
    rules: tuple[str, ...]
    plant: Callable[[], AbstractContextManager[None]]
    world: str = "topics"


MUTANTS: dict[str, Mutant] = {}
"""By name; filled by the modules that plant them."""


@cache
def mutants() -> dict[str, Mutant]:
    """All bugs that installed packages offer, by name."""
    for offered in entry_points(group=GROUP):
        offered.load()
    return MUTANTS


def find(name: str) -> Mutant:
    """The bug of that name. InvalidRequest says that there is none."""
    if name not in mutants():
        raise InvalidRequest(f"There is no planted bug {name!r}: those of tidings come with tidings-lab.")
    return MUTANTS[name]


def mutant(name: str, what: str, *rules: str, world: str = "topics") -> Callable[[Callable[[], Iterator[None]]], None]:
    """Adds a bug to the list; what is decorated plants it, yields, and takes it out again."""
    assert name not in MUTANTS, f"two planted bugs are called {name!r}"

    def register(plant: Callable[[], Iterator[None]]) -> None:
        MUTANTS[name] = Mutant(name, what, rules, contextmanager(plant), world)

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
