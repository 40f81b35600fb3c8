"""Stored batches to Arrow and back, column by column.

Small stored batches are put together until a RecordBatch is large enough to be worth its way into the JVM. A column
that is the same in every row (the topic, mostly the publisher, and what no message has) is made once and used again;
one that is the same for a whole batch (times) is repeated by Arrow. Values that are all of one size are copied as one
block, those of up to 255 bytes without their heads (see `varied`); others, and keys, headers and ids, are touched one
by one, as the objects that the wire's decoder made.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from itertools import accumulate, chain, groupby
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from tidings.client.ranges import Stored
from tidings.message import Batch, Columns, Headers
from tidings.spark.varied import HEAD_BYTES, VALUE_BYTES_MAX, Spaced, Varied, read_varied
from tidings.wire.even import Even

ROWS_WANTED = 16384
BYTES_WANTED = 16 * 1024 * 1024
"""A RecordBatch is closed once it has this many rows, or about this many bytes."""
VARIED_SKIPPED = 15
"""So many batches are unpacked at once after one whose values could not be found otherwise."""
COLUMNS_KEPT = 8
"""Columns with one value in all rows that are kept: those of one reader are five at most."""

TIMESTAMP = pa.timestamp("us", tz="UTC")
HEADERS = pa.map_(pa.string(), pa.binary())
COLUMNS = pa.schema(
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
"""All that is known of a message, as the data source gives it."""


def up_to(rows: int) -> pa.Array:
    """The numbers from 0. `pa.array` would import pandas first, in each of the processes with which Spark plans."""
    return pa.Array.from_buffers(pa.int64(), rows, [None, pa.py_buffer(array("q", range(rows)))])


_counting = up_to(2 * ROWS_WANTED)


class Piece(msgspec.Struct, frozen=True):
    """What is wanted of one stored batch."""

    topic: str
    first_offset: int
    count: int
    stored_us: int | None
    size_bytes: int
    columns: Columns | Even | Varied
    values: pa.Array | Spaced | list[bytes]
    """An array where they are all of one size, or have their heads with them."""


class Unpacking:
    """Makes pieces of batches. What did not work with one of them is not tried with the next few."""

    def __init__(self) -> None:
        self._skipped = 0

    def piece(self, batch: Batch | Stored) -> Piece:
        """What is wanted of a batch, with as few objects as can be."""
        if isinstance(batch, Stored):
            stored_us = batch.stored_ms * 1000 or None
            even = batch.even()
            if even is not None:
                return Piece(batch.topic, batch.start, even.count, stored_us, len(batch.body), even, _block(even))
            varied = self._varied(batch)
            if varied is not None:
                return Piece(batch.topic, batch.start, varied.count, stored_us, len(batch.body), varied, varied.values)
            batch = batch.batch()
        stored_us = None if batch.stored_at is None else round(batch.stored_at * 1e6)
        count = len(batch.values)
        return Piece(batch.topic, batch.first_offset, count, stored_us, batch.size_bytes, batch.columns, batch.values)

    def _varied(self, batch: Stored) -> Varied | None:
        if self._skipped:
            self._skipped -= 1
            return None
        varied = read_varied(batch.body)
        if varied is None or varied.count != batch.count:
            self._skipped = VARIED_SKIPPED
            return None
        return varied.part(batch.start - batch.first_offset, batch.end - batch.first_offset)


def _block(even: Even) -> pa.Array:
    """Values of one size: all but the bytes before each of them."""
    spaced = pa.Array.from_buffers(pa.binary(even.distance_bytes), even.count, [None, pa.py_buffer(even.values)])
    return pc.binary_slice(spaced, even.head_bytes, even.distance_bytes).cast(pa.binary())


def record_batches(batches: Iterable[Batch | Stored], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The batches of one topic as few RecordBatches of that schema; none of them spans a gap in the offsets."""
    builders = [BUILDERS[name] for name in schema.names]
    pieces: list[Piece] = []
    rows = size_bytes = 0
    for piece in map(Unpacking().piece, batches):
        gap = bool(pieces) and piece.first_offset != pieces[-1].first_offset + pieces[-1].count
        if gap or rows >= ROWS_WANTED or size_bytes >= BYTES_WANTED:
            yield pa.RecordBatch.from_arrays([build(pieces, rows) for build in builders], schema=schema)
            pieces = []
            rows = size_bytes = 0
        pieces.append(piece)
        rows += piece.count
        size_bytes += piece.size_bytes
    if rows:
        yield pa.RecordBatch.from_arrays([build(pieces, rows) for build in builders], schema=schema)


def _offsets(pieces: list[Piece], rows: int) -> pa.Array:
    global _counting
    if rows > len(_counting):
        _counting = up_to(rows)
    return pc.add(_counting.slice(0, rows), pieces[0].first_offset)


def _values(pieces: list[Piece], rows: int) -> pa.Array:
    arrays: list[pa.Array] = []
    kinds: Iterator[tuple[type, Iterator[Any]]] = groupby((piece.values for piece in pieces), key=type)
    for kind, group in kinds:
        if kind is list:
            arrays.append(pa.array(list(chain.from_iterable(group)), pa.binary()))
        elif kind is Spaced:
            spaced = pa.concat_arrays([values.array for values in group])
            arrays.append(pc.binary_slice(spaced, HEAD_BYTES, HEAD_BYTES + VALUE_BYTES_MAX))
        else:
            arrays.extend(group)
    return arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)


def _alike(value: str | None, kind: pa.DataType, rows: int) -> pa.Array:
    """A column with one value in all of its rows."""
    return _longer_alike(value, kind, 1 << rows.bit_length()).slice(0, rows)


@lru_cache(COLUMNS_KEPT)
def _longer_alike(value: str | None, kind: pa.DataType, rows: int) -> pa.Array:
    return pa.repeat(pa.scalar(value, kind), rows)


def _optional(name: str, kind: pa.DataType) -> Callable[[list[Piece], int], pa.Array]:
    """A column that a batch leaves out when no message of it has one."""

    def build(pieces: list[Piece], rows: int) -> pa.Array:
        columns = [getattr(piece.columns, name) for piece in pieces]
        if all(column is None for column in columns):
            return _alike(None, kind, rows)
        filled: list[Any] = []
        for piece, column in zip(pieces, columns, strict=True):
            filled += column if column is not None else [None] * piece.count
        if kind is HEADERS:
            filled = [None if each is None else list(each.items()) for each in filled]
        return pa.array(filled, kind)

    return build


def _repeated(values: list[Any], pieces: list[Piece], rows: int, kind: pa.DataType) -> pa.Array:
    """One value for each piece, repeated for all of its rows."""
    if all(value == values[0] for value in values):
        # Times are others in the next rows, and not worth keeping.
        return pa.repeat(pa.scalar(values[0], kind), rows) if kind is TIMESTAMP else _alike(values[0], kind, rows)
    if kind is TIMESTAMP and None not in values:  # Each batch has times of its own: the usual case, and a quick one.
        moments = [value.to_bytes(8, sys.byteorder, signed=True) for value in values]
        filled = b"".join(moment * piece.count for moment, piece in zip(moments, pieces, strict=True))
        return pa.Array.from_buffers(kind, rows, [None, pa.py_buffer(filled)])
    ends = pa.array(accumulate(piece.count for piece in pieces), pa.int32())
    return pc.run_end_decode(pa.RunEndEncodedArray.from_arrays(ends, pa.array(values, kind)))


def _topics(pieces: list[Piece], rows: int) -> pa.Array:
    return _alike(pieces[0].topic, pa.string(), rows)


def _publishers(pieces: list[Piece], rows: int) -> pa.Array:
    return _repeated([piece.columns.publisher for piece in pieces], pieces, rows, pa.string())


def _published(pieces: list[Piece], rows: int) -> pa.Array:
    times = [piece.columns.published_us for piece in pieces]
    if all(isinstance(each, int) for each in times):
        return _repeated(times, pieces, rows, TIMESTAMP)
    filled: list[int] = []
    for piece, each in zip(pieces, times, strict=True):
        filled += [each] * piece.count if isinstance(each, int) else each
    return pa.array(filled, TIMESTAMP)


def _stored(pieces: list[Piece], rows: int) -> pa.Array:
    return _repeated([piece.stored_us for piece in pieces], pieces, rows, TIMESTAMP)


BUILDERS: dict[str, Callable[[list[Piece], int], pa.Array]] = {
    "topic": _topics,
    "offset": _offsets,
    "key": _optional("keys", pa.binary()),
    "value": _values,
    "headers": _optional("headers", HEADERS),
    "id": _optional("ids", pa.string()),
    "publisher": _publishers,
    "published_at": _published,
    "stored_at": _stored,
}


def by_topic(rows: pa.RecordBatch, default: str | None) -> Iterator[tuple[str | None, pa.RecordBatch]]:
    """The rows of each topic, in their order; a row without a topic goes to the default."""
    if "topic" not in rows.schema.names:
        yield default, rows
        return
    topics = rows.column("topic")
    names = pc.unique(topics).to_pylist()
    for name in names:
        if len(names) == 1:
            yield name if name is not None else default, rows
        elif name is None:
            yield default, rows.filter(pc.is_null(topics))
        else:
            yield name, rows.filter(pc.fill_null(pc.equal(topics, name), False))


def bytes_column(rows: pa.RecordBatch, name: str) -> list[bytes | None] | None:
    """A column as bytes, texts as UTF-8; None when there is no such column, or nothing in it."""
    if name not in rows.schema.names:
        return None
    column = rows.column(name)
    if column.null_count == len(column) and name != "value":
        return None
    if column.type != pa.binary():
        column = column.cast(pa.binary())
    filled: list[bytes | None] = column.to_pylist()
    return filled


def text_column(rows: pa.RecordBatch, name: str) -> list[str | None] | None:
    """A column of texts; None when there is no such column, or nothing in it."""
    if name not in rows.schema.names or rows.column(name).null_count == rows.num_rows:
        return None
    filled: list[str | None] = rows.column(name).to_pylist()
    return filled


def headers_column(rows: pa.RecordBatch) -> list[Headers | None] | None:
    """The headers of each row; a header without a value is an empty one."""
    if "headers" not in rows.schema.names or rows.column("headers").null_count == rows.num_rows:
        return None
    return [
        None if each is None else {name: _to_bytes(value) for name, value in each}
        for each in rows.column("headers").to_pylist()
    ]


def _to_bytes(value: bytes | str | None) -> bytes:
    if value is None:
        return b""
    return value.encode() if isinstance(value, str) else value
