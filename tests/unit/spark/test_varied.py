"""Values that are found without unpacking are those that unpacking gives (D1)."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidings.client.ranges import Stored
from tidings.message import Columns
from tidings.spark import varied as module
from tidings.spark.arrow import COLUMNS, VARIED_SKIPPED, record_batches
from tidings.spark.varied import VARIED_COUNT_MIN, read_varied
from tidings.wire.codec import encode

COUNT = VARIED_COUNT_MIN + 44
TEXTS = [b"%06d: %s" % (number, b"x" * (number % 97)) for number in range(COUNT)]


def stored(columns: Columns, start: int = 0, end: int | None = None) -> Stored:
    count = len(columns.values)
    return Stored("news", 100, count, 5_000, encode(columns), 100 + start, 100 + (count if end is None else end))


def check(batch: Stored) -> None:
    """As rows it is what its unpacked batch is."""
    [found] = record_batches([batch], COLUMNS)
    [wanted] = record_batches([batch.batch()], COLUMNS)
    assert found.to_pydict() == wanted.to_pydict()


def test_texts_are_found_with_all_that_comes_with_them() -> None:
    keys = [b"%d" % number for number in range(COUNT)]
    headers = [{"n": key} for key in keys]
    ids = [str(number) for number in range(COUNT)]
    for columns in (
        Columns(1, "ann", TEXTS),
        Columns(1, "ann", TEXTS, published_us=7),
        Columns(1, "a" * 31, TEXTS, keys, None, ids, list(range(COUNT))),
        Columns(1, "", TEXTS, [b"\xc4" * 300, *keys[1:]], headers),
    ):
        found = read_varied(encode(columns))
        assert found is not None
        assert found.count == COUNT
        check(stored(columns))
        check(stored(columns, 3, 250))
        sent = stored(columns)  # As it comes over a socket.
        check(msgspec.structs.replace(sent, body=memoryview(sent.body)))


@pytest.mark.parametrize(
    "columns",
    [
        Columns(1, "ann", [*TEXTS[1:], b"x\xc4y"]),
        Columns(1, "ann", [b"x\xc4y", *TEXTS[1:]]),
        Columns(1, "ann", [*TEXTS[1:], b"x" * 256]),
        Columns(1, "ann", [b"x" * 70_000, *TEXTS[1:]]),
        Columns(1, "ann", [b""] * COUNT),
        Columns(1, "ann", [b"abc", b"d"] * COUNT),
        Columns(1, "a" * 32, TEXTS),
        Columns(1, "ann", TEXTS[: VARIED_COUNT_MIN - 1]),
    ],
    ids=["at the end", "at the beginning", "large", "larger", "empty", "small", "a long name", "few"],
)
def test_what_cannot_be_found_is_unpacked(columns: Columns) -> None:
    assert read_varied(encode(columns)) is None
    check(stored(columns))


@given(
    st.lists(st.binary(max_size=300), min_size=1, max_size=40),
    st.lists(st.sampled_from([b"\xc4", b"\xc4\x05", b"text", b"\xc4\x00", b"\xff"]), max_size=6),
    st.integers(0, 7),
)
def test_any_values(some: list[bytes], parts: list[bytes], shift: int) -> None:
    """Whatever they are, they are found as they are or not at all."""
    values = [*TEXTS[:shift], *some, b"".join(parts), *TEXTS]
    columns = Columns(1, "p" * shift, values, published_us=3)
    found = read_varied(encode(columns))
    assert found is None or found.count == len(values)
    check(stored(columns))


@given(st.data())
def test_what_is_no_batch_is_left_alone(data: st.DataObject) -> None:
    body = bytearray(encode(Columns(1, "ann", TEXTS, published_us=3)))
    for _ in range(data.draw(st.integers(1, 5))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(body)))
    for damaged in (bytes(body), bytes(body[:cut])):
        found = read_varied(damaged)
        if found is not None:  # Then it is a batch all the same, with other bytes in a value.
            batch = Stored("news", 0, found.count, 0, damaged, 0, found.count)
            check(batch)


def test_without_numpy_batches_are_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    """D6: an executor's packed environment may not have it."""
    monkeypatch.setattr(module, "np", None)
    assert read_varied(encode(Columns(1, "ann", TEXTS))) is None
    check(stored(Columns(1, "ann", TEXTS)))


def test_what_did_not_work_is_not_tried_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []

    def counted(body: bytes) -> None:
        tried.append(len(body))

    monkeypatch.setattr("tidings.spark.arrow.read_varied", counted)
    batches = [stored(Columns(1, "ann", TEXTS)) for _ in range(2 * (VARIED_SKIPPED + 1) + 1)]
    assert sum(rows.num_rows for rows in record_batches(batches, COLUMNS)) == COUNT * len(batches)
    assert len(tried) == 3
