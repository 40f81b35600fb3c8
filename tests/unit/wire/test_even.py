"""A batch read as one block holds what unpacking it gives."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidings.message import Columns, cut
from tidings.wire.codec import encode
from tidings.wire.even import EVEN_COUNT_MIN, Even, read_even


def values_of(even: Even) -> list[bytes]:
    step = even.distance_bytes
    return [bytes(even.values[at + even.head_bytes : at + step]) for at in range(0, even.count * step, step)]


@pytest.mark.parametrize("size", [0, 1, 255, 256, 65_536])
@given(first=st.integers(-3, 25), end=st.integers(-3, 25))
def test_any_part_of_a_batch_of_one_size(size: int, first: int, end: int) -> None:
    """D1: the values, and what comes with each of them."""
    count = 20
    columns = Columns(
        1,
        "ann",
        [bytes([number]) * size for number in range(count)],
        [b"%d" % number for number in range(count)],
        [{"n": b"%d" % number} for number in range(count)],
        [str(number) for number in range(count)],
        list(range(count)),
    )
    even = read_even(encode(columns))
    assert even is not None
    part = even.part(first, end)
    wanted = cut(columns, slice(max(0, first), max(0, first, end)))
    assert (part.count, values_of(part)) == (len(wanted.values), wanted.values)
    assert (part.publisher, part.keys, part.headers, part.ids) == ("ann", wanted.keys, wanted.headers, wanted.ids)
    assert part.published_us == wanted.published_us


def test_what_is_not_of_one_size_is_left_to_be_unpacked() -> None:
    """D1: a sum of sizes that fits is not enough."""
    whole = [b"x" * 10] * 20
    assert read_even(encode(Columns(1, "ann", whole))) is not None
    assert read_even(encode(Columns(1, "ann", [b"x" * 9, b"x" * 11, *whole[2:]]))) is None
    assert read_even(encode(Columns(1, "ann", whole[: EVEN_COUNT_MIN - 1]))) is None
    assert read_even(encode(Columns(2, "ann", whole))) is None
    assert read_even(encode(Columns(1, "ann", [*whole, b"x" * 9, b"x" * 11]))) is None
    assert read_even(encode(Columns(1, "a" * 40, whole))) is not None
    assert read_even(encode(Columns(1, "a" * 40, [b"x" * 9, b"x" * 11, *whole[2:]]))) is None
    assert read_even(encode(Columns(1, "ann", whole, keys=[b"k"]))) is None


@given(st.binary(min_size=30, max_size=200), st.integers(0, 31))
def test_what_is_no_batch_is_none(rest: bytes, name_bytes: int) -> None:
    assert read_even(bytes((0x97, 1, 0xA0 + name_bytes)) + rest) is None
