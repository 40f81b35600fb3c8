"""Batches to Arrow and back."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa
import pytest

from tidings.client.ranges import Stored
from tidings.errors import ProtocolError
from tidings.message import Batch, Columns
from tidings.spark import arrow
from tidings.spark.arrow import HEADERS, TIMESTAMP, by_topic, bytes_column, headers_column, record_batches, text_column
from tidings.wire.codec import encode

SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("offset", pa.int64()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", HEADERS),
        ("id", pa.string()),
        ("publisher", pa.string()),
        ("published_at", TIMESTAMP),
        ("stored_at", TIMESTAMP),
    ]
)


def moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def test_small_batches_are_put_together_column_by_column() -> None:
    batches = [
        Batch("news", 5, Columns(1, "ann", [b"a", b"b"], published_us=1_000_000), stored_at=2.5),
        Batch(
            "news",
            7,
            Columns(1, "bob", [b"c", b"d"], [b"k", None], [{"h": b"v"}, None], [None, "x"], [3_000_000, 4_000_000]),
            stored_at=None,
        ),
    ]
    [rows] = record_batches(batches, SCHEMA)
    assert rows.schema.equals(SCHEMA)
    assert rows.to_pydict() == {
        "topic": ["news"] * 4,
        "offset": [5, 6, 7, 8],
        "key": [None, None, b"k", None],
        "value": [b"a", b"b", b"c", b"d"],
        "headers": [None, None, [("h", b"v")], None],
        "id": [None, None, None, "x"],
        "publisher": ["ann", "ann", "bob", "bob"],
        "published_at": [moment(1), moment(1), moment(3), moment(4)],
        "stored_at": [moment(2.5), moment(2.5), None, None],
    }


def test_columns_that_nobody_uses_are_empty_and_those_not_asked_for_missing() -> None:
    [rows] = record_batches([Batch("news", 0, Columns(1, "ann", [b"a"]))], SCHEMA.remove(0))
    assert rows.column("key").null_count == rows.column("headers").null_count == rows.column("id").null_count == 1
    [rows] = record_batches([Batch("news", 0, Columns(1, "ann", [b"a"]))], pa.schema([("value", pa.binary())]))
    assert rows.to_pydict() == {"value": [b"a"]}
    assert list(record_batches([], SCHEMA)) == []


def test_a_record_batch_ends_at_its_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow, "ROWS_WANTED", 4)
    ones = [Batch("t", offset, Columns(1, "ann", [b"x"])) for offset in range(10)]
    assert [rows.num_rows for rows in record_batches(ones, SCHEMA)] == [4, 4, 2]
    large = [Batch("t", n, Columns(1, "a", [b"x"]), size_bytes=arrow.BYTES_WANTED) for n in range(3)]
    assert [rows.num_rows for rows in record_batches(large, SCHEMA)] == [1, 1, 1]
    whole = Batch("t", 0, Columns(1, "ann", [b"x"] * 100_000))  # Longer than the row of numbers kept ready.
    [rows] = record_batches([whole], SCHEMA)
    assert rows.column("offset")[99_999].as_py() == 99_999


def test_offsets_are_true_around_a_gap() -> None:
    batches = [Batch("t", offset, Columns(1, "ann", [b"x", b"y"])) for offset in (0, 2, 10, 12)]
    found = [rows.column("offset").to_pylist() for rows in record_batches(batches, SCHEMA)]
    assert found == [[0, 1, 2, 3], [10, 11, 12, 13]]


def stored(first: int, columns: Columns, start: int, end: int) -> Stored:
    return Stored("t", first, len(columns.values), 5_000, encode(columns), start, end)


def test_stored_batches_come_out_as_unpacked_ones_do() -> None:
    """D1: values of one size and of any, in one RecordBatch, cut to what is wanted."""
    even = Columns(1, "ann", [b"%03d" % n for n in range(50)], published_us=7)
    empty = Columns(1, "ann", [b""] * 30, [b"%d" % n for n in range(30)], published_us=list(range(30)))
    uneven = Columns(1, "bob", [b"x" * n for n in range(40)], ids=[str(n) for n in range(40)])
    batches = [
        stored(0, even, 10, 50),
        stored(50, uneven, 50, 90),
        stored(90, empty, 90, 120),
        stored(120, uneven, 120, 160),
        stored(160, even, 160, 203),
    ]
    [rows] = record_batches(batches, SCHEMA)
    [unpacked] = record_batches([each.batch() for each in batches], SCHEMA)
    rows.validate(full=True)
    assert rows.equals(unpacked)
    assert rows.column("value").to_pylist() == [
        *even.values[10:],
        *uneven.values,
        *empty.values,
        *uneven.values,
        *even.values[:43],
    ]
    assert rows.column("offset").to_pylist() == list(range(10, 203))
    assert rows.column("stored_at").to_pylist() == [moment(5)] * 193


def test_columns_made_once_are_used_for_the_right_rows() -> None:
    """D1: few rows after many, another topic and publisher, and the first ones again."""
    for topic, publisher, count in [("t", "ann", 40), ("t", "ann", 3), ("u", "bob", 40), ("t", "ann", 200)]:
        [rows] = record_batches([Batch(topic, 0, Columns(1, publisher, [b"x"] * count))], SCHEMA)
        rows.validate(full=True)
        assert rows.column("topic").to_pylist() == [topic] * count
        assert rows.column("publisher").to_pylist() == [publisher] * count
        assert rows.column("id").to_pylist() == rows.column("headers").to_pylist() == [None] * count


def test_each_batch_has_its_own_times() -> None:
    """D1: before 1970 too, which a publisher's clock may say."""
    times = (-2_000_000, 3_000_000, 1_700_000_000_000_001)
    batches = [
        Batch("t", 2 * number, Columns(1, "ann", [b"x", b"y"], published_us=time_us), stored_at=number)
        for number, time_us in enumerate(times)
    ]
    [rows] = record_batches(batches, SCHEMA)
    rows.validate(full=True)
    assert rows.column("published_at").cast(pa.int64()).to_pylist() == [each for each in times for _ in range(2)]
    assert rows.column("stored_at").to_pylist() == [moment(each) for each in (0, 0, 1, 1, 2, 2)]


def test_a_batch_that_is_not_what_it_was_said_to_be_is_refused() -> None:
    """D1: of one size or not."""
    for values in ([b"abc"] * 20, [b"x" * n for n in range(20)]):
        body = encode(Columns(1, "ann", values))
        with pytest.raises(ProtocolError, match="was announced with 19 messages and has 20"):
            list(record_batches([Stored("t", 0, 19, 0, body, 0, 19)], SCHEMA))


def test_rows_to_columns() -> None:
    rows = pa.RecordBatch.from_pydict(
        {
            "value": ["a", "b", "c"],
            "key": pa.array([b"k", None, None], pa.binary()),
            "id": [None, "x", None],
            "headers": pa.array([[("h", "v"), ("n", None)], None, []], pa.map_(pa.string(), pa.string())),
        }
    )
    assert bytes_column(rows, "value") == [b"a", b"b", b"c"]
    assert bytes_column(rows, "key") == [b"k", None, None]
    assert text_column(rows, "id") == [None, "x", None]
    assert headers_column(rows) == [{"h": b"v", "n": b""}, None, {}]
    plain = pa.RecordBatch.from_pydict({"value": [b"a"], "key": pa.nulls(1, pa.binary())})
    assert (bytes_column(plain, "key"), text_column(plain, "id"), headers_column(plain)) == (None, None, None)


def test_rows_by_topic_keep_their_order() -> None:
    rows = pa.RecordBatch.from_pydict({"value": [b"1", b"2", b"3", b"4"], "topic": ["a", None, "b", "a"]})
    found = {topic: part.column("value").to_pylist() for topic, part in by_topic(rows, "rest")}
    assert found == {"a": [b"1", b"4"], "rest": [b"2"], "b": [b"3"]}
    [(topic, part)] = by_topic(rows.select(["value"]), "rest")
    assert (topic, part.num_rows) == ("rest", 4)
