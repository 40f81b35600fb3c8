"""Delta tables without a JAR: the executors write files, the driver commits them.

A commit is one file in the table's log, made in one step, so a reader sees all of a micro-batch or nothing of it.
Together with the files it holds Delta's own note of an application and a number, here the query and its batch: a batch
that Spark repeats after a crash finds its note and changes nothing. The same kind of note says up to which offset each
topic is in bronze, so that the table itself knows where to go on, whatever became of Spark's checkpoint.
"""

from __future__ import annotations

import contextlib
import json
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction, RemoveAction

from tidings.errors import StorageError
from tidings.pipeline.parts import WRITTEN, PartWriter
from tidings.pipeline.schema import TABLES, measured

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


TIDY_COMMITS = 128
TIDY_BYTES = 32 * 1024 * 1024
"""After so many commits files below this size become one, or as few as it takes; larger ones are left to `compact`."""


@dataclass(frozen=True)
class Part:
    """A file that a commit added."""

    path: str
    rows: int


@dataclass(frozen=True)
class Written:
    """What the tasks of a micro-batch wrote, not yet committed."""

    actions: Sequence[AddAction]
    rows: int
    ranges: Mapping[str, tuple[int, int, int]]
    """For each topic: its first offset, its last one, and how many rows."""
    ids: int
    """How many rows have an id."""

    def __add__(self, other: Written) -> Written:
        """Both, of a table whose rows have no offsets."""
        return Written([*self.actions, *other.actions], self.rows + other.rows, {}, self.ids + other.ids)


class Table:
    """A table of a lake."""

    def __init__(self, folder: Path, name: str) -> None:
        self.name = name
        self.folder = folder / name
        self.schema: pa.Schema = TABLES[name].schema

    def create(self) -> None:
        """Makes it if it is not there yet."""
        if not self.exists():
            DeltaTable.create(
                self.folder,
                self.schema,
                mode="ignore",
                name=self.name,
                description=TABLES[self.name].about,
                configuration={"delta.dataSkippingStatsColumns": ",".join(measured(self.schema))},
            )

    def exists(self) -> bool:
        """Whether it has been made."""
        return DeltaTable.is_deltatable(str(self.folder))

    def open(self) -> DeltaTable:
        """The table as it is now."""
        return DeltaTable(self.folder)

    def has_done(self, app: str, batch: int) -> bool:
        """Whether this batch of the query is in the table."""
        return _has(self.open(), app, batch)

    def write(self, rows: DataFrame, batch: int) -> Written:
        """Has the executors write the rows; nobody sees them before they are committed."""
        writer = PartWriter(str(self.folder), batch, self.schema)
        actions, count, ids = [], 0, 0
        ranges: dict[str, tuple[int, int, int]] = {}
        with without_pandas_warning():
            written = rows.select(*self.schema.names).mapInArrow(writer, WRITTEN)
        for part in written.collect():
            actions.append(_add(part.path, part.size_bytes, part.stats))
            count += part.rows
            ids += part.ids
            for topic, (first, last, number) in json.loads(part.ranges).items():
                old = ranges.get(topic, (first, last, 0))
                ranges[topic] = (min(first, old[0]), max(last, old[1]), number + old[2])
        return Written(actions, count, ranges, ids)

    def commit(
        self,
        written: Written,
        app: str,
        batch: int,
        marks: Mapping[str, int] | None = None,
        instead_of: Sequence[str] = (),
    ) -> None:
        """Makes what was written part of the table, with the note of its batch, unless it is. No rows need no commit.

        It may stand instead of other files of the table. Delta refuses the commit if somebody has committed under the
        same name since the table was opened.
        """
        table = self.open()
        if not written.actions or _has(table, app, batch):
            return
        notes = [Transaction(app, batch), *(Transaction(name, number) for name, number in (marks or {}).items())]
        self._commit(table, written.actions, instead_of, CommitProperties(app_transactions=notes))
        self._tidy(table)

    def append(self, rows: DataFrame, app: str, batch: int) -> None:
        """Adds the rows of a batch, unless they are there."""
        if not self.has_done(app, batch):
            self.commit(self.write(rows, batch), app, batch)

    def live(self) -> list[dict[str, Any]]:
        """Its files with their statistics, by Delta's names (`min.offset`)."""
        found: list[dict[str, Any]] = pa.table(self.open().get_add_actions(flatten=True)).to_pylist()
        return found

    def drop_before(self, column: str, moment: datetime) -> int:
        """Removes rows that are older, in one step; how many. Files that hold none are not touched.

        deltalake could do it too, but writes texts in a way on which PyArrow's filters fail.
        """
        table = self.open()
        added: list[AddAction] = []
        removed: list[str] = []
        rows = 0
        for part in pa.table(table.get_add_actions(flatten=True)).to_pylist():
            if part[f"min.{column}"] is None or part[f"min.{column}"] >= moment:
                continue
            left = PartWriter(str(self.folder), 0, self.schema)(self._since(part["path"], column, moment))
            kept = [row for batch in left for row in batch.to_pylist()]
            added += [_add(row["path"], row["size_bytes"], row["stats"]) for row in kept]
            removed.append(part["path"])
            rows += part["num_records"] - sum(row["rows"] for row in kept)
        if rows:
            self._commit(table, added, removed, CommitProperties())
        return rows

    def _since(self, path: str, column: str, moment: datetime) -> Iterator[pa.RecordBatch]:
        with pq.ParquetFile(self.folder / unquote(path)) as file:
            for batch in file.iter_batches():
                times = batch.column(column)
                yield batch.filter(
                    pc.or_kleene(pc.is_null(times), pc.greater_equal(times, pa.scalar(moment, times.type)))
                )

    def _commit(
        self, table: DeltaTable, added: Sequence[AddAction], removed: Sequence[str], properties: CommitProperties
    ) -> None:
        now_ms = time.time_ns() // 1_000_000
        actions: list[AddAction | RemoveAction] = [*added]
        actions += [RemoveAction(path, True, now_ms) for path in removed]
        table.create_write_transaction(actions, "append", self.schema, commit_properties=properties)

    def _tidy(self, table: DeltaTable) -> None:
        """Puts the small files of many small batches together now and then, so that a table can grow for years."""
        table.update_incremental()
        if table.version() % TIDY_COMMITS == 0:
            with contextlib.suppress(CommitFailedError):  # Somebody else is putting the same files together.
                table.optimize.compact(target_size=TIDY_BYTES)

    def version(self) -> int:
        """The number of its last commit."""
        return int(self.open().version())

    def appended(self, after: int, until: int) -> Iterator[tuple[int, list[Part]]]:
        """The files that each commit of the pipeline added, by version; compaction and retention add no rows."""
        for version in range(after + 1, until + 1):
            yield version, _appended_by(self.folder / "_delta_log" / f"{version:020d}.json", self.name)


def _has(table: DeltaTable, app: str, batch: int) -> bool:
    last = table.transaction_version(app)
    return last is not None and last >= batch


@contextlib.contextmanager
def without_pandas_warning() -> Iterator[None]:
    """PySpark warns of a pandas that is newer than itself wherever Arrow is used, though pandas is not."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
        yield


def _add(path: str, size_bytes: int, stats: str) -> AddAction:
    return AddAction(path, size_bytes, {}, time.time_ns() // 1_000_000, True, stats)


def _appended_by(log: Path, name: str) -> list[Part]:
    try:
        actions: list[dict[str, Any]] = [json.loads(line) for line in log.read_text().splitlines()]
    except FileNotFoundError as error:
        raise StorageError(
            f"The commit {log.name} of the table {name!r} was removed before it was read: "
            f"delete the tables made from {name} and their checkpoints; the next run rebuilds them."
        ) from error
    if not any(action["txn"]["appId"].startswith(f"{name}/") for action in actions if "txn" in action):
        return []
    added = [action["add"] for action in actions if "add" in action]
    return [Part(add["path"], json.loads(add["stats"])["numRecords"]) for add in added]
