"""What the executors do for a table: the rows of a task become Parquet files, with the statistics that a commit names.

A file is not part of the table until the driver has committed it. What a task leaves behind when it is killed or
repeated is therefore seen by nobody, and goes with the next `tidings pipeline retain`.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tidings.pipeline.schema import measured

ROW_GROUP_ROWS = 131_072
PART_BYTES_MAX = 256 * 1024 * 1024
"""A file is closed once it has about this many bytes."""
COMPRESSION = "zstd"

WRITTEN = "path string, size_bytes long, rows long, ids long, stats string, ranges string"
"""What a task reports of each file, as Spark's DDL: `ids` is how many messages have one, `ranges` is
{topic: [first offset, last offset, rows]}."""
_WRITTEN = pa.schema(
    [
        ("path", pa.string()),
        ("size_bytes", pa.int64()),
        ("rows", pa.int64()),
        ("ids", pa.int64()),
        ("stats", pa.string()),
        ("ranges", pa.string()),
    ]
)


@dataclass(frozen=True)
class PartWriter:
    """Writes the rows of a task below a table's folder; Spark sends it to the tasks."""

    folder: str
    batch: int
    schema: pa.Schema

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """For `mapInArrow`: rows in, a row for each file out."""
        part: _Part | None = None
        waiting: list[pa.RecordBatch] = []
        rows = 0
        for batch in batches:
            waiting.append(batch)
            rows += batch.num_rows
            if rows >= ROW_GROUP_ROWS:
                part = part or _Part(self)
                part.write(pa.Table.from_batches(waiting).cast(self.schema))
                waiting, rows = [], 0
                if part.size_bytes >= PART_BYTES_MAX:
                    yield part.finish()
                    part = None
        if rows:
            part = part or _Part(self)
            part.write(pa.Table.from_batches(waiting).cast(self.schema))
        if part is not None:
            yield part.finish()


class _Part:
    """One file while it is written. Its name is its own: no other attempt will ever write to it."""

    def __init__(self, writer: PartWriter) -> None:
        self._path = Path(writer.folder) / f"batch-{writer.batch:08d}-{uuid.uuid4().hex}.parquet"
        self._file = self._path.open("xb")
        self._parquet = pq.ParquetWriter(self._file, writer.schema, compression=COMPRESSION)
        self._statistics = Statistics(measured(writer.schema))
        self._ranges: dict[str, tuple[int, int, int]] = {}
        self._rows = 0
        self._ids = 0

    @property
    def size_bytes(self) -> int:
        return self._file.tell()

    def write(self, rows: pa.Table) -> None:
        self._parquet.write_table(rows, row_group_size=ROW_GROUP_ROWS)
        self._rows += rows.num_rows
        self._statistics.add(rows)
        if "id" in rows.schema.names:
            self._ids += rows.num_rows - rows.column("id").null_count
        if "offset" in rows.schema.names:
            for topic, first, last, count in _ranges(rows):
                old = self._ranges.get(topic, (first, last, 0))
                self._ranges[topic] = (min(first, old[0]), max(last, old[1]), count + old[2])

    def finish(self) -> pa.RecordBatch:
        """Makes the file durable, and says what is in it."""
        self._parquet.close()
        self._file.flush()
        os.fsync(self._file.fileno())
        size_bytes = self.size_bytes
        self._file.close()
        row: dict[str, Any] = {
            "path": self._path.name,
            "size_bytes": size_bytes,
            "rows": self._rows,
            "ids": self._ids,
            "stats": self._statistics.text(self._rows),
            "ranges": json.dumps(self._ranges),
        }
        return pa.RecordBatch.from_pylist([row], schema=_WRITTEN)


def _ranges(rows: pa.Table) -> Iterator[tuple[str, int, int, int]]:
    found = rows.group_by("topic").aggregate([("offset", "min"), ("offset", "max"), ("offset", "count")])
    columns = ("topic", "offset_min", "offset_max", "offset_count")
    yield from zip(*(found.column(name).to_pylist() for name in columns), strict=True)


class Statistics:
    """Least and greatest values and counts of nulls, as Delta writes them; readers pass over files by them."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._least: dict[str, Any] = {}
        self._greatest: dict[str, Any] = {}
        self._nulls: dict[str, int] = {}

    def add(self, rows: pa.Table) -> None:
        """Takes some rows into account."""
        for name in self._names:
            column = rows.column(name)
            self._nulls[name] = self._nulls.get(name, 0) + column.null_count
            if column.null_count == len(column):
                continue
            ends = pc.min_max(column).as_py()
            self._least[name] = min(ends["min"], self._least.get(name, ends["min"]))
            self._greatest[name] = max(ends["max"], self._greatest.get(name, ends["max"]))

    def text(self, rows: int) -> str:
        """What stands in the commit."""
        return json.dumps(
            {
                "numRecords": rows,
                "minValues": {name: _plain(value) for name, value in self._least.items()},
                "maxValues": {name: _plain(value, upwards=True) for name, value in self._greatest.items()},
                "nullCount": self._nulls,
            }
        )


def _plain(value: Any, upwards: bool = False) -> Any:
    """A value for JSON; times in milliseconds, rounded so that they still bound what is in the file."""
    if not isinstance(value, datetime):
        return value
    rest = value.microsecond % 1000
    value -= timedelta(microseconds=rest)
    if upwards and rest:
        value += timedelta(milliseconds=1)
    return value.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
