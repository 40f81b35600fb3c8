"""A function for sweeps whose rows everybody can foretell."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec


class Square(msgspec.Struct, frozen=True):
    number: int
    square: int
    half: float
    name: str | None


class Step(msgspec.Struct, frozen=True):
    number: int
    step: int
    is_last: bool


TABLES: dict[str, type[msgspec.Struct]] = {"squares": Square, "steps": Step}


def squares(number: int, name: str | None = None) -> Iterator[Square | Step]:
    """A number's square, and as many steps as it says. Thirteen is not liked."""
    if number == 13:
        raise ValueError("thirteen is not liked")
    yield Square(number, number * number, number / 2, name)
    for step in range(number % 4):
        yield Step(number, step, step == number % 4 - 1)
