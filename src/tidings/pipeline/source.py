"""The commits of a table as a stream of PySpark: the layer above reads what the layer below has committed, once.

The offset is the version of the table. Only what the pipeline appended counts: a compaction writes the same rows again,
and retention removes some, and neither is news. The files of a commit stay on the disk long after a compaction has
replaced them (`upkeep`), so a batch that is repeated reads the very same files.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from tidings.pipeline.delta import Part, Table

FORMAT = "tidings_lake"
ROWS_WANTED = 32_768
TASK_ROWS_WANTED = 1_000_000

Offset = dict[str, int]


class Files(InputPartition):
    """The files that one task reads."""

    def __init__(self, paths: Sequence[str]) -> None:
        super().__init__(None)
        self.paths = list(paths)


class LakeSource(DataSource):
    """Options: `lake` and `table`; `maxRowsPerTrigger` for whole commits of about so many rows."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        from pyspark.sql.pandas.types import from_arrow_schema

        from tidings.pipeline.schema import TABLES

        return from_arrow_schema(TABLES[self.options["table"]].schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        rows_max = self.options.get("maxRowsPerTrigger")
        return LakeReader(self.options["lake"], self.options["table"], schema, int(rows_max) if rows_max else None)


class LakeReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The driver's part reads the log, the tasks read files."""

    def __init__(self, lake: str, table: str, schema: StructType, rows_max: int | None) -> None:
        self._lake = lake
        self._name = table
        self._schema = schema
        self._rows_max = rows_max
        self._target: int | None = None
        """How far a query with the trigger availableNow goes."""

    def initialOffset(self) -> Offset:  # noqa: N802 - Spark's name
        return {"version": 0}  # The commit that made the table, which has no rows.

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        return ReadAllAvailable() if self._rows_max is None else ReadMaxRows(self._rows_max)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        self._target = self._version()

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802 - Spark's name
        """As many whole commits as fit the limit, and at least one."""
        latest = self._version() if self._target is None else self._target
        if not isinstance(limit, ReadMaxRows):
            return {"version": max(start["version"], latest)}
        rows, end = 0, start["version"]
        for version, parts in self._table().appended(start["version"], latest):
            rows += sum(part.rows for part in parts)
            if rows > limit.max_rows and end > start["version"]:
                break
            end = version
        return {"version": end}

    def reportLatestOffset(self) -> Offset | None:  # noqa: N802 - Spark's name
        return {"version": self._version()}

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        """The files of some commits, in as many shares as there are cores, or more if they are large."""
        commits = self._table().appended(start["version"], end["version"])
        parts = [part for _, committed in commits for part in committed]
        folder = Path(self._lake) / self._name
        return [Files([str(folder / part.path) for part in share]) for share in shares(parts, os.cpu_count() or 1)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa
        import pyarrow.parquet as pq
        from pyspark.sql.pandas.types import to_arrow_schema

        assert isinstance(partition, Files)
        schema = to_arrow_schema(self._schema, timezone="UTC")
        for path in partition.paths:
            with pq.ParquetFile(path) as file:
                for batch in file.iter_batches(ROWS_WANTED, columns=schema.names):
                    yield pa.RecordBatch.from_arrays(
                        [batch.column(name).cast(schema.field(name).type) for name in schema.names], schema=schema
                    )

    def _table(self) -> Table:
        from tidings.pipeline.delta import Table

        return Table(Path(self._lake), self._name)

    def _version(self) -> int:
        return self._table().version()


def shares(parts: Sequence[Part], cores: int) -> list[list[Part]]:
    """Files in their order, in shares of about equal rows.

    >>> from tidings.pipeline.delta import Part
    >>> [len(share) for share in shares([Part("a", 900_000), Part("b", 900_000), Part("c", 1)], 2)]
    [1, 2]
    """
    total = sum(part.rows for part in parts)
    wanted = max(cores, -(-total // TASK_ROWS_WANTED))
    found: list[list[Part]] = []
    rows = 0
    for part in parts:
        if not found or (rows + part.rows / 2) * wanted > total * len(found):
            found.append([])
        found[-1].append(part)
        rows += part.rows
    return found
