"""The arithmetic between a figure, its limit and its target."""

from __future__ import annotations

import math

import pytest

from tidings_lab.bench.figures import (
    Figure,
    Limit,
    Target,
    at_least,
    at_most,
    fields_of,
    median,
    percentile,
    quantity,
    ratio_at_least,
    ratio_at_most,
    target_text,
)


def figure(value: float, limit: float | None = None, target: Target | None = None, unit: str = "messages/s") -> Figure:
    return Figure(
        scenario="publish",
        name="put_many",
        value=value,
        unit=unit,
        limit=None if limit is None else Limit("bare disk", limit),
        target=target,
    )


def test_ratio_is_the_value_over_the_limit() -> None:
    assert figure(3.0, 4.0).ratio == 0.75
    assert figure(3.0).ratio is None
    assert figure(3.0, 0.0).ratio == math.inf


@pytest.mark.parametrize(
    ("value", "limit", "target", "ok", "margin"),
    [
        (3e6, None, at_least(2e6), True, 1.5),
        (2e6, None, at_least(2e6), True, 1.0),
        (1e6, None, at_least(2e6), False, 0.5),
        (2.0, None, at_most(5.0), True, 2.5),
        (10.0, None, at_most(5.0), False, 0.5),
        (0.0, None, at_most(5.0), True, math.inf),
        (60.0, 100.0, ratio_at_least(0.5), True, 1.2),
        (40.0, 100.0, ratio_at_least(0.5), False, 0.8),
        (160.0, 100.0, ratio_at_most(1.6), True, 1.0),
        (320.0, 100.0, ratio_at_most(1.6), False, 0.5),
        (1.0, None, None, None, None),
    ],
)
def test_target_is_met_or_not(
    value: float, limit: float | None, target: Target | None, ok: bool | None, margin: float | None
) -> None:
    measured = figure(value, limit, target)
    assert measured.ok is ok
    assert measured.margin == (None if margin is None else pytest.approx(margin))


def test_a_target_of_the_ratio_without_a_limit_is_not_judged() -> None:
    assert figure(1.0, None, ratio_at_least(0.5)).ok is None


@pytest.mark.parametrize(
    ("samples", "share", "expected"),
    [([5.0], 0.5, 5.0), ([3.0, 1.0, 2.0], 0.5, 2.0), (list(range(1, 101)), 0.99, 99), ([1.0, 2.0], 0.0, 1.0)],
)
def test_percentile(samples: list[float], share: float, expected: float) -> None:
    assert percentile(samples, share) == expected


def test_median_does_not_need_order() -> None:
    assert median([9.0, 1.0, 5.0]) == 5.0


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.0000003, "s/message", "300 ns/message"),
        (0.000000005, "s", "5.00 ns"),
        (12.0, "s", "12.0 s"),
        (0.25, "s", "250 ms"),
        (1_050_000, "B", "1.05 MB"),
        (12, "B", "12.0 B"),
        (15_000, "puts/s", "15.0 k puts/s"),
        (999, "puts/s", "999 puts/s"),
        (1.8e9, "B/s", "1.80 GB/s"),
        (0.0, "B/s", "0 B/s"),
    ],
)
def test_quantity(value: float, unit: str, text: str) -> None:
    assert quantity(value, unit) == text


def test_target_text() -> None:
    assert target_text(figure(1.0)) == ""
    assert target_text(figure(1.0, target=at_least(2e6))) == "at least 2.00 M messages/s"
    assert target_text(figure(1.0, 1.0, ratio_at_most(1.6))) == "at most 1.6 x limit"


def test_json_has_what_follows_from_the_figure() -> None:
    fields = fields_of(figure(60.0, 100.0, ratio_at_least(0.5)))
    assert fields["value"] == 60.0
    assert fields["ratio"] == 0.6
    assert fields["ok"] is True
    assert fields["limit"] == {"name": "bare disk", "value": 100.0}
