"""Arcs go from one group to another while clients work, and nothing is lost, doubled or answered differently."""

from __future__ import annotations

import pytest

from tests.unit.protocols.ring.two_groups import World

SEEDS = 250


@pytest.mark.parametrize("first", range(0, SEEDS, 25))
def test_whoever_owns_a_topic_answers_as_if_it_had_never_moved(first: int) -> None:
    """P7, P8: by lost, repeated and late messages, changes of leaders on both sides and restarts."""
    for seed in range(first, first + 25):
        try:
            World(seed).run()
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise
