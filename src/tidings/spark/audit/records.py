"""Delivery records as Arrow: what each file is about, and its rows.

Tasks read whole files; the columns that a record keeps as bytes become Arrow columns without a copy of each number.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from tidings.client.record import BEGUN, ENDED, HANDED, RETURNED, STANDS, Entry, read_entries
from tidings.spark.arrow import up_to

Name = tuple[str, bool, str]
"""A subscription to a topic: its name, whether it is a group, the topic."""

ROWS_WANTED = 65_536
TASKS_MAX = 10_000

ABOUT = {
    "session": "string",
    "number": "long",
    "client": "string",
    "boot": "string",
    "epoch": "long",
    "ended": "boolean",
    "subscription": "string",
    "group": "boolean",
    "topic": "string",
    "rows": "long",
    "low": "long",
    "high": "long",
    "at": "long",
    "stands_low": "long",
    "stands_high": "long",
    "rising": "boolean",
    "plain": "boolean",
}
"""What is known of a subscription from one file. `high` and `at` (the offset after the last that was handed out and did
not come back) are those at the file's end; `plain` says that all are first attempts of which none came back."""

ROW = {
    "subject": "long",
    "session": "long",
    "epoch": "long",
    "offset": "long",
    "lane": "long",
    "attempt": "long",
    "weight": "long",
    "published_us": "long",
    "handed_us": "long",
    "sequence": "long",
}
"""A message that was handed out (weight 1), or came back (weight -1)."""

_counting = up_to(4 * ROWS_WANTED)


class RecordsSource(DataSource):
    """Delivery records as a table. Its options are JSON: the files, and for rows the numbers of subscriptions."""

    @classmethod
    def name(cls) -> str:
        return "tidings_deliveries"

    def reader(self, schema: StructType) -> DataSourceReader:
        names = self.options.get("names")
        numbered = None if names is None else {(name[0], name[1], name[2]): name[3] for name in json.loads(names)}
        return RecordsReader(json.loads(self.options["files"]), numbered, schema)


class Files(InputPartition):
    """What one task reads."""

    def __init__(self, paths: Sequence[str]) -> None:
        super().__init__(None)
        self.paths = list(paths)


class RecordsReader(DataSourceReader):
    """A task for each file, or for several if there are very many."""

    def __init__(self, files: Sequence[str], names: Mapping[Name, int] | None, schema: StructType) -> None:
        self._files = files
        self._names = names
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        tasks = max(1, min(len(self._files), TASKS_MAX))
        return [Files(self._files[number::tasks]) for number in range(tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from pyspark.sql.pandas.types import to_arrow_schema

        schema = to_arrow_schema(self._schema, timezone="UTC")
        assert isinstance(partition, Files)
        for path in map(Path, partition.paths):
            if self._names is None:
                described = describe(path)
                if described:
                    yield pa.RecordBatch.from_pylist(described, schema)
            else:
                yield from _rows(path, self._names, schema)


def about(spark: SparkSession, files: Sequence[Path]) -> list[dict[str, Any]]:
    """A row for each file and subscription."""
    return [row.asDict() for row in _load(spark, files, ABOUT, ABOUT).collect()]


def rows(spark: SparkSession, files: Sequence[Path], names: Mapping[Name, int], columns: Sequence[str]) -> DataFrame:
    """The rows of those subscriptions that have a number, with these columns."""
    return _load(spark, files, ROW, columns, names=json.dumps([[*name, number] for name, number in names.items()]))


def _load(
    spark: SparkSession, files: Sequence[Path], types: Mapping[str, str], columns: Iterable[str], **options: str
) -> DataFrame:
    spark.dataSource.register(RecordsSource)
    schema = ", ".join(f"`{name}` {types[name]}" for name in columns)
    reader = spark.read.format("tidings_deliveries").option("files", json.dumps(list(map(str, files))))
    return reader.options(**options).schema(schema).load()


def describe(path: Path) -> list[dict[str, Any]]:
    """What one file says of each subscription in it."""
    session, _, number = path.stem.partition("-")
    file = {"session": session, "number": int(number), "client": "", "boot": "", "epoch": 0, "ended": False}
    found: dict[Name, dict[str, Any]] = {}
    for entry in read_entries(path):
        if entry.kind == BEGUN:
            file |= {"client": entry.subscription, "boot": entry.topic, "epoch": entry.epoch}
        elif entry.kind == ENDED:
            file["ended"] = True
        else:
            name = (entry.subscription, entry.group, entry.topic)
            _take(found.setdefault(name, dict.fromkeys(ABOUT) | {"rows": 0, "rising": True, "plain": True}), entry)
    return [
        state | file | {"subscription": name[0], "group": name[1], "topic": name[2]} for name, state in found.items()
    ]


def _take(state: dict[str, Any], entry: Entry) -> None:
    if entry.kind == STANDS:
        state["stands_low"] = _least(state["stands_low"], entry.first_offset)
        state["stands_high"] = max(state["stands_high"] or 0, entry.first_offset)
        return
    low, high, rises = entry.first_offset, entry.first_offset + entry.count - 1, True
    if entry.offsets is not None:
        offsets = _numbers(entry.offsets)
        ends = pc.min_max(offsets).as_py()
        low, high = ends["min"], ends["max"]
        rises = bool(pc.all(pc.greater(offsets.slice(1), offsets.slice(0, len(offsets) - 1)), min_count=0).as_py())
    if entry.kind == RETURNED:
        state["plain"] = False
        state["at"] = low if state["at"] is None else min(state["at"], low)
        return
    rises = rises and (state["high"] is None or low > state["high"])
    state["rising"] = state["rising"] and rises
    state["plain"] = state["plain"] and entry.attempt == 1
    state["low"] = _least(state["low"], low)
    state["high"] = high if state["high"] is None else max(state["high"], high)
    state["at"] = high + 1 if state["at"] is None else max(state["at"], high + 1)
    state["rows"] += entry.count


def _least(one: int | None, other: int) -> int:
    return other if one is None else min(one, other)


def _rows(path: Path, names: Mapping[Name, int], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of one file, in batches."""
    session = int(path.stem.partition("-")[0], 16) >> 1  # A long has a sign.
    pieces: list[Entry] = []
    count = 0
    for entry in read_entries(path):
        if entry.kind not in (HANDED, RETURNED) or _name(entry) not in names:
            continue
        pieces.append(entry)
        count += entry.count
        if count >= ROWS_WANTED:
            yield _built(pieces, names, session, schema)
            pieces, count = [], 0
    if pieces:
        yield _built(pieces, names, session, schema)


def _name(entry: Entry) -> Name:
    return entry.subscription, entry.group, entry.topic


def _built(pieces: list[Entry], names: Mapping[Name, int], session: int, schema: pa.Schema) -> pa.RecordBatch:
    """The rows of several entries as one batch."""
    ends = list(accumulate(piece.count for piece in pieces))
    starts = [end - piece.count for end, piece in zip(ends, pieces, strict=True)]
    runs = pa.array(ends, pa.int32())

    def each(values: Iterable[int]) -> pa.Array:
        """One number for each entry, repeated for its rows."""
        return pc.run_end_decode(pa.RunEndEncodedArray.from_arrays(runs, pa.array(values, pa.int64())))

    def counted(values: Iterable[int]) -> pa.Array:
        """Numbers that rise by one from row to row of an entry."""
        bases = [value - start for value, start in zip(values, starts, strict=True)]
        return pc.add(each(bases), _counted(ends[-1]))

    def listed(values: Iterable[bytes | int | None], otherwise: Callable[[], pa.Array]) -> pa.Array:
        """A column that entries have as bytes, or as one number for all of their rows."""
        given = list(values)
        if not any(isinstance(value, bytes) for value in given):
            return otherwise()
        parts = (
            value if isinstance(value, bytes) else array("q", [value or 0]).tobytes() * piece.count
            for value, piece in zip(given, pieces, strict=True)
        )
        return _numbers(b"".join(parts))

    def offsets() -> pa.Array:
        if all(piece.offsets is None for piece in pieces):
            return counted(piece.first_offset for piece in pieces)
        parts = (
            piece.offsets or array("q", range(piece.first_offset, piece.first_offset + piece.count)).tobytes()
            for piece in pieces
        )
        return _numbers(b"".join(parts))

    builders: dict[str, Callable[[], pa.Array]] = {
        "subject": lambda: each(names[_name(piece)] for piece in pieces),
        "session": lambda: each(session for _ in pieces),
        "epoch": lambda: each(piece.epoch for piece in pieces),
        "offset": offsets,
        "lane": lambda: listed((piece.lanes for piece in pieces), lambda: each(0 for _ in pieces)),
        "attempt": lambda: each(piece.attempt for piece in pieces),
        "weight": lambda: each(1 if piece.kind == HANDED else -1 for piece in pieces),
        "published_us": lambda: listed(
            (piece.published_us for piece in pieces),
            lambda: each(piece.published_us for piece in pieces if isinstance(piece.published_us, int)),
        ),
        "handed_us": lambda: each(piece.handed_us for piece in pieces),
        "sequence": lambda: counted(piece.sequence for piece in pieces),
    }
    return pa.RecordBatch.from_arrays([builders[name]() for name in schema.names], schema=schema)


def _counted(count: int) -> pa.Array:
    global _counting
    if count > len(_counting):
        _counting = up_to(2 * count)
    return _counting.slice(0, count)


def _numbers(data: bytes) -> pa.Array:
    return pa.Array.from_buffers(pa.int64(), len(data) // 8, [None, pa.py_buffer(data)])
