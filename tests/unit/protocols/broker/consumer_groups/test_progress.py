"""What a group has dealt with, against a plain set."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from tidings.protocols.broker.consumer_groups.progress import WINDOW_MAX, Progress, compress

Ranges = list[tuple[int, int]]

starts = st.integers(0, 60)
ranges = st.lists(st.tuples(starts, st.integers(0, 12)).map(lambda pair: (pair[0], sum(pair))), max_size=30)


windows = st.integers(1, 40)
"""So few bytes that much of what is added lies beyond them."""


def filled(pieces: Ranges, low: int = 0, window_max: int = WINDOW_MAX) -> Progress:
    progress = Progress(low, window_max)
    for start, end in pieces:
        progress.add(start, end)
    return progress


@given(ranges, st.integers(0, 20), windows)
def test_it_is_the_set_of_what_was_added(pieces: Ranges, low: int, window_max: int) -> None:
    progress = Progress(low, window_max)
    known = set(range(low))
    for start, end in pieces:
        new = set(range(start, end)) - known
        assert progress.add(start, end) == len(new)
        known |= new
        assert progress.count == len(known)
        assert progress.high == max(known, default=-1) + 1
    assert [offset for offset in range(100) if progress.done(offset)] == sorted(known)
    assert progress.low == next(offset for offset in range(101) if offset not in known)


@given(st.lists(st.lists(st.integers(0, 60), max_size=20, unique=True).map(sorted), max_size=8), ranges, windows)
def test_offsets_by_the_list_are_the_same_as_one_by_one(
    lists: list[list[int]], pieces: Ranges, window_max: int
) -> None:
    together, singly = filled(pieces, window_max=window_max), filled(pieces)
    for offsets in lists:
        together.add_each(offsets)
        for offset in offsets:
            singly.add(offset, offset + 1)
        assert together == singly
        assert (together.count, together.high) == (singly.count, singly.high)


@given(ranges, windows)
def test_its_intervals_rise_and_do_not_touch(pieces: Ranges, window_max: int) -> None:
    progress = filled(pieces, window_max=window_max)
    position = progress.low
    for start, end in progress.ranges:
        assert position < start < end
        position = end


@given(ranges, starts, st.integers(0, 30), windows)
def test_gaps_are_what_is_not_done(pieces: Ranges, start: int, size: int, window_max: int) -> None:
    progress = filled(pieces, window_max=window_max)
    gaps = list(progress.gaps(start, start + size))
    inside = [offset for first, end in gaps for offset in range(first, end)]
    assert inside == [offset for offset in range(start, start + size) if not progress.done(offset)]
    assert all(first < end for first, end in gaps)
    assert gaps == compress(inside)


@given(ranges)
def test_a_snapshot_gives_the_same_progress(pieces: Ranges) -> None:
    """C8"""
    progress = filled(pieces, window_max=10)
    restored = Progress.decode(progress.encode())
    assert restored == progress
    assert (restored.low, restored.ranges, restored.count) == (progress.low, progress.ranges, progress.count)


@given(st.lists(st.integers(0, 40), max_size=40))
def test_compressed_offsets_are_the_same_offsets(offsets: list[int]) -> None:
    found = compress(offsets)
    assert [offset for start, end in found for offset in range(start, end)] == sorted(set(offsets))
    assert all(end < start for (_, end), (start, _) in pairwise(found))


@given(st.permutations(range(30)))
def test_any_order_of_single_offsets_ends_in_one_mark(offsets: list[int]) -> None:
    progress = Progress()
    assert sum(progress.add(offset, offset + 1) for offset in offsets) == 30
    assert progress.encode() == (30, ())


def test_a_message_stuck_for_very_long_costs_no_byte_for_each_after_it() -> None:
    """C8"""
    progress = Progress(0, window_max=100)
    for offset in range(1, 10_000):
        progress.add_each([offset])
    assert progress.encode() == (0, ((1, 10_000),))
    assert len(progress._window) + len(progress._starts) <= 102
    progress.add(0, 1)
    assert repr(progress) == "Progress(10000, [])"
    assert progress != 10_000
