"""Draws by lot in simulations: everybody has the same chance, and a seed draws the same again."""

from __future__ import annotations

from collections import Counter

import pytest

from tidings_lab.simulated_overlay.rng import SHORT_MAX, Rng

DRAWS = 20_000


def test_everybody_is_drawn_equally_often() -> None:
    rng = Rng(3)
    chosen = Counter(rng.choice("abcde") for _ in range(DRAWS))
    sampled = Counter(name for _ in range(DRAWS) for name in rng.sample("abcde", 2))
    assert set(chosen) == set(sampled) == set("abcde")
    assert all(abs(count / DRAWS - 1 / 5) < 0.02 for count in chosen.values())
    assert all(abs(count / DRAWS - 2 / 5) < 0.02 for count in sampled.values())


def test_every_order_is_drawn_equally_often() -> None:
    rng = Rng(4)
    orders = Counter("".join(rng.sample("abc", 3)) for _ in range(DRAWS))
    assert len(orders) == 6
    assert all(abs(count / DRAWS - 1 / 6) < 0.02 for count in orders.values())


@pytest.mark.parametrize("length", [0, 1, SHORT_MAX, SHORT_MAX + 1, 10_000])
def test_a_sample_has_nobody_twice(length: int) -> None:
    names = list(range(length))
    for count in {0, min(length, 3), min(length, SHORT_MAX)}:
        drawn = Rng(5).sample(names, count)
        assert len(drawn) == len(set(drawn)) == count and set(drawn) <= set(names)
    assert names == list(range(length)), "what is drawn from stays as it is"
    with pytest.raises(ValueError):
        Rng(5).sample(names, length + 1)


def test_nobody_can_be_drawn_from_nobody() -> None:
    with pytest.raises(IndexError):
        Rng(6).choice([])


def test_a_seed_draws_the_same_again() -> None:
    one, other = Rng(7), Rng(7)
    assert [one.choice("abcdef") for _ in range(50)] == [other.choice("abcdef") for _ in range(50)]
    assert [one.sample("abcdef", 3) for _ in range(50)] == [other.sample("abcdef", 3) for _ in range(50)]
