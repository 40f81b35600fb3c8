"""Random numbers for simulations, in which every other message draws somebody by lot.

The standard library draws bits until they fit, so that all are exactly equally likely. Here a draw is a number from 0
to 1 times the length, which takes a third of the time; among a few thousand, that favours nobody by more than one
in 10^12.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from random import Random
from typing import Any, TypeVar

T = TypeVar("T")

SHORT_MAX = 64
"""Up to here it is quicker to draw from a copy; the standard library has a better way for long lists."""


class Rng(Random):
    """A seeded source of randomness.

    >>> rng = Rng(1)
    >>> rng.choice("abc"), sorted(rng.sample("abc", 3)), len(rng.sample(range(1_000), 2))
    ('a', ['a', 'b', 'c'], 2)
    """

    def choice(self, seq: Any) -> Any:
        return seq[int(self.random() * len(seq))]

    def sample(self, population: Sequence[T], k: int, *, counts: Iterable[int] | None = None) -> list[T]:
        if len(population) > SHORT_MAX or counts is not None:
            return super().sample(population, k, counts=counts)
        if k > len(population):
            raise ValueError(f"{k} of {len(population)} cannot be drawn.")
        random, pool, drawn = self.random, list(population), []
        for left in range(len(pool), len(pool) - k, -1):
            index = int(random() * left)
            drawn.append(pool[index])
            pool[index] = pool[left - 1]
        return drawn
