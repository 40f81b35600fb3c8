"""Where groups that join are to stand, so that all own about the same."""

from __future__ import annotations

from random import Random

import pytest

from tidings.protocols.chord.identifiers import SIZE, key_of, to_key, to_point
from tidings.protocols.ring.key_ranges import WHOLE, KeyRange
from tidings.protocols.ring.placing import DRAWS, draw_group, place_of, wanted_place
from tidings_lab.experiments.balance import measure_shares

GROUP = bytes(16)


@pytest.mark.parametrize("groups", [1, 2, 3, 5, 8, 13, 21, 40, 64])
def test_the_largest_share_is_below_one_and_a_half_times_the_mean(groups: int) -> None:
    row = measure_shares(groups, seed=groups)
    assert row.largest < 1.45
    assert row.smallest > 0.69


def test_hashed_places_alone_would_not_do() -> None:
    assert max(measure_shares(8, seed, chosen=False).largest for seed in range(5)) > 1.5


def test_a_group_stands_near_the_place_that_is_wanted() -> None:
    rng = Random(1)
    wanted = to_point(wanted_place([(GROUP, WHOLE)]) or b"")
    group = draw_group([(GROUP, WHOLE)], lambda: rng.randbytes(16))
    assert abs(to_point(place_of(group)) - wanted) < 20 * SIZE // DRAWS
    assert place_of(group) == key_of(f"seat:{group.hex()}"), "it is the hash of its id, as every group's place is"


def test_the_largest_range_counts_that_ends_where_its_owner_stands() -> None:
    """What a group has beyond that is on its way elsewhere: who came there would own nothing of its own place."""
    place = to_point(place_of(GROUP))
    small = KeyRange(to_key((place - SIZE // 100) % SIZE), to_key(place))
    large = KeyRange(to_key((place + 1) % SIZE), to_key((place + SIZE // 2) % SIZE))
    wanted = wanted_place([(GROUP, large), (GROUP, small)])
    assert wanted is not None and wanted in small


def test_any_id_will_do_where_nothing_is_known() -> None:
    drawn: list[bytes] = []

    def draw() -> bytes:
        drawn.append(bytes(16))
        return drawn[-1]

    assert draw_group([], draw) == bytes(16)
    assert len(drawn) == 1
