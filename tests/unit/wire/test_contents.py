"""What a broker looks at in a batch must be what a reader will find there."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidings.errors import InvalidRequest, MessageTooLarge, ProtocolError
from tidings.message import ID_LENGTH_MAX, TIME_US_MAX, Columns, Contents
from tidings.wire import codec, contents
from tidings.wire.contents import read_contents

LARGE = 1 << 30


@pytest.fixture(scope="module", autouse=True)
def small_bodies_are_looked_at() -> Iterator[None]:
    """Here the short cut is taken whenever it can be, so that small bodies suffice to compare it with unpacking."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(contents, "EVEN_BYTES_MIN", 0)
        yield


def by_unpacking(body: bytes) -> tuple[str, int, list[str | None] | None]:
    columns = codec.decode_columns(body)
    return columns.publisher, len(columns.values), columns.ids


def outcome(body: bytes) -> object:
    try:
        return by_unpacking(body)
    except ProtocolError as error:
        return str(error)


def found(body: bytes) -> object:
    try:
        read = read_contents(body, LARGE)
    except ProtocolError as error:
        return str(error)
    return read.publisher, read.count, read.ids


@pytest.mark.parametrize("size", [0, 1, 100, 255, 256, 65_535, 65_536])
@pytest.mark.parametrize("count", [16, 40])
def test_values_of_one_size_are_not_unpacked(size: int, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    body = codec.encode(Columns(1, "ann", [bytes([number]) * size for number in range(count)], published_us=7))
    monkeypatch.setattr(contents, "decode_columns", None)
    assert read_contents(body, LARGE) == Contents("ann", count, size)
    assert read_contents(memoryview(body), LARGE) == Contents("ann", count, size)


def test_a_small_body_is_unpacked_without_a_look_at_it(monkeypatch: pytest.MonkeyPatch) -> None:
    body = codec.encode(Columns(1, "ann", [b"x"] * 20))
    monkeypatch.setattr(contents, "EVEN_BYTES_MIN", len(body) + 1)
    monkeypatch.setattr(contents, "read_even", None)
    assert read_contents(body, LARGE) == Contents("ann", 20)


def test_a_message_above_the_limit() -> None:
    for values in ([b"x" * 100] * 20, [b"x" * 100, b"y"], [b"x" * 100] * 19 + [b"y"]):
        body = codec.encode(Columns(1, "ann", values))
        assert read_contents(body, 100).count == len(values)
        with pytest.raises(MessageTooLarge, match=r"A message of 100 bytes is above message_bytes_max \(99\)"):
            read_contents(body, 99)


@given(
    st.lists(st.binary(max_size=3), max_size=30)
    | st.lists(st.binary(min_size=9, max_size=9), min_size=16, max_size=30),
    st.none() | st.integers(0, 40),
    st.none() | st.integers(0, 40),
    st.integers(1, 2),
)
def test_it_takes_what_can_be_unpacked_and_nothing_else(
    values: list[bytes], keys: int | None, ids: int | None, form: int
) -> None:
    columns = Columns(
        form,
        "ann",
        values,
        None if keys is None else [b"k"] * keys,
        None,
        None if ids is None else ["id"] * ids,
    )
    body = codec.encode(columns)
    assert found(body) == outcome(body)


@given(st.integers(0, 10_000), st.integers(0, 255), st.sampled_from([1, 100, 300]))
def test_a_byte_that_is_wrong_anywhere(place: int, byte: int, size: int) -> None:
    """Bad input: not one damaged batch may be stored that a reader could not unpack."""
    body = bytearray(codec.encode(Columns(1, "ann", [b"v" * size] * 20, [b"k"] * 20)))
    body[place % len(body)] = byte
    assert found(bytes(body)) == outcome(bytes(body))


@given(st.integers(0, 2_100))
def test_a_batch_that_was_cut(size: int) -> None:
    body = codec.encode(Columns(1, "ann", [b"v" * 100] * 20))[:size]
    assert found(body) == outcome(body)


@pytest.mark.parametrize("times", [-1, TIME_US_MAX + 1, 2**63, [7] * 19 + [2**63], [-1] + [7] * 19])
@pytest.mark.parametrize("size", [3, 300])
def test_times_that_no_calendar_has_are_refused(times: int | list[int], size: int) -> None:
    """A reader would fail on such a message for as long as it is stored."""
    with pytest.raises(InvalidRequest, match="was published at"):
        read_contents(codec.encode(Columns(1, "ann", [b"x" * size] * 20, published_us=times)), LARGE)


def test_the_last_microsecond_of_the_calendar_is_taken() -> None:
    read_contents(codec.encode(Columns(1, "ann", [b"x"], published_us=TIME_US_MAX)), LARGE)
    assert datetime.fromtimestamp(TIME_US_MAX // 10**6, UTC).year == 9999


@pytest.mark.parametrize("size", [3, 300])
def test_ids_of_any_length_are_refused(size: int) -> None:
    """They stay in memory and in every snapshot for as long as they are remembered."""
    ids: list[str | None] = [None, "x" * ID_LENGTH_MAX]
    values = [b"x" * size] * 2
    read_contents(codec.encode(Columns(1, "ann", values, ids=ids)), LARGE)
    with pytest.raises(InvalidRequest, match=f"{ID_LENGTH_MAX + 1} characters"):
        read_contents(codec.encode(Columns(1, "ann", values, ids=["x" * (ID_LENGTH_MAX + 1), None])), LARGE)
