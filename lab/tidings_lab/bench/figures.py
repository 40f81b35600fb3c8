"""What was measured, the limit beside it, the target, and the arithmetic between them.

Values are kept in base units (seconds, bytes, things per second), so that JSON needs no explanation; only
people are shown microseconds and millions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec


class Target(msgspec.Struct, frozen=True):
    """What a figure should reach: its value or, with `of_ratio`, its ratio to the limit."""

    bound: float
    at_least: bool
    of_ratio: bool = False

    def met_by(self, reached: float) -> bool:
        """Whether what was reached is good enough."""
        return reached >= self.bound if self.at_least else reached <= self.bound


def at_least(bound: float) -> Target:
    """A value that must not be lower."""
    return Target(bound, at_least=True)


def at_most(bound: float) -> Target:
    """A value that must not be higher."""
    return Target(bound, at_least=False)


def ratio_at_least(bound: float) -> Target:
    """A share of the limit that must not be lower."""
    return Target(bound, at_least=True, of_ratio=True)


def ratio_at_most(bound: float) -> Target:
    """A multiple of the limit that must not be higher."""
    return Target(bound, at_least=False, of_ratio=True)


class Limit(msgspec.Struct, frozen=True):
    """What the machine can do at most, or what the figure is compared to, in the figure's unit."""

    name: str
    value: float


OTHERS_SHARE_MAX = 0.1
"""Above this share of the processors in other hands a target is neither met nor missed."""


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the report. `samples` are the rounds that `value` was chosen from.

    `others` is the share of the processors that others used meanwhile.
    """

    scenario: str
    name: str
    value: float
    unit: str
    limit: Limit | None = None
    target: Target | None = None
    samples: tuple[float, ...] = ()
    limit_samples: tuple[float, ...] = ()
    others: float = 0.0

    @property
    def disturbed(self) -> bool:
        """Whether others used so much of the machine that the figure cannot be judged."""
        return self.others > OTHERS_SHARE_MAX

    @property
    def ratio(self) -> float | None:
        """The value as a multiple of the limit.

        >>> Figure(scenario="put", name="p50", value=300.0, unit="s", limit=Limit("echo", 200.0)).ratio
        1.5
        """
        if self.limit is None:
            return None
        return self.value / self.limit.value if self.limit.value else math.inf

    @property
    def reached(self) -> float | None:
        """What the target is about: the ratio or the value."""
        if self.target is None:
            return None
        return self.ratio if self.target.of_ratio else self.value

    @property
    def ok(self) -> bool | None:
        """Whether the target is met; None when there is none, or when others disturbed the measurement."""
        reached = self.reached
        return None if self.target is None or reached is None or self.disturbed else self.target.met_by(reached)

    @property
    def margin(self) -> float | None:
        """How many times better than its target: 1 is just met, 2 is twice as good, below 1 is missed.

        >>> Figure(scenario="put", name="p50", value=2.0, unit="s", target=at_most(4.0)).margin
        2.0
        """
        reached = self.reached
        if self.target is None or reached is None:
            return None
        if self.target.at_least:
            return reached / self.target.bound
        return self.target.bound / reached if reached else math.inf


def fields_of(figure: Figure) -> dict[str, object]:
    """A figure as JSON shows it, with what follows from it."""
    fields: dict[str, object] = msgspec.to_builtins(figure)
    return fields | {
        "ratio": figure.ratio,
        "ok": figure.ok,
        "margin": figure.margin,
        "disturbed": figure.disturbed,
    }


def percentile(samples: Sequence[float], share: float) -> float:
    """The value that `share` of the samples do not exceed.

    >>> percentile([4.0, 1.0, 3.0, 2.0], 0.5), percentile([1.0, 2.0], 0.99)
    (2.0, 2.0)
    """
    ordered = sorted(samples)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def median(samples: Sequence[float]) -> float:
    """The middle value; of an even number the lower one of the two in the middle."""
    return percentile(samples, 0.5)


_RATES = ((1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))
_TIMES = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))


def quantity(value: float, unit: str) -> str:
    """A value with its unit as people read it.

    >>> quantity(2_413_000, "messages/s"), quantity(0.000362, "s"), quantity(3.1e8, "B/s"), quantity(1.25, "x")
    ('2.41 M messages/s', '362 us', '310 MB/s', '1.25 x')
    """
    if unit in ("s", "s/message", "s/row"):
        for size, name in _TIMES:
            if abs(value) >= size or size == _TIMES[-1][0]:
                return f"{_digits(value / size)} {name}{unit[1:]}"
    if unit == "x":
        return f"{_digits(value)} x"
    joined = "" if unit.startswith("B") else " "
    for size, prefix in _RATES:
        if abs(value) >= size or size == 1.0:
            return f"{_digits(value / size)} {prefix}{joined if prefix else ''}{unit}"
    raise AssertionError("The last size takes everything.")


def _digits(value: float) -> str:
    """Three digits that say something, never in powers of ten."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    places = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:,.{min(places, 3)}f}"


def target_text(figure: Figure) -> str:
    """A figure's target as people read it.

    >>> target_text(Figure(scenario="put", name="p50", value=1.0, unit="s", target=at_most(0.002)))
    'at most 2.00 ms'
    """
    target = figure.target
    if target is None:
        return ""
    bound = f"{target.bound:g} x limit" if target.of_ratio else quantity(target.bound, figure.unit)
    return f"{'at least' if target.at_least else 'at most'} {bound}"
