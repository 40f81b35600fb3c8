"""A source in Python that has its rows ready: what is left is what PySpark itself needs for rows from Python.

No source in Python can be faster, whatever it reads from; ours is shown beside it.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from tidings.message import Batch, Columns
from tidings.spark.arrow import ROWS_WANTED, record_batches
from tidings.spark.schema import COLUMNS

NAME = "tidings-bench-ready"


def records(first: int, count: int) -> list[bytes]:
    """Measurements as JSON, of about a hundred bytes, the same ones for the same numbers.

    Values that are alike but for a number would tell little about Parquet, which compresses them to almost nothing.

    >>> records(7, 1)
    [b'{"sensor":"s-2652","seq":7,"temperature":94.7865,"humidity":39.4823,"ok":true,"unit":"C","site":"3"}']
    """
    numbers = random.Random(first)
    draw, pick = numbers.random, numbers.randrange
    return [
        b'{"sensor":"s-%d","seq":%d,"temperature":%.4f,"humidity":%.4f,"ok":true,"unit":"C","site":"%d"}'
        % (pick(5000), number, draw() * 100, draw() * 100, pick(40))
        for number in range(first, first + count)
    ]


class ReadySource(DataSource):
    """As many rows as the option says, the same few again and again."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        return COLUMNS

    def reader(self, schema: StructType) -> DataSourceReader:
        return ReadyReader(int(self.options["rows"]))


class ReadyReader(DataSourceReader):
    """Hands out one RecordBatch over and over, one task for each core."""

    def __init__(self, rows: int) -> None:
        self._rows = rows

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(number) for number in range(os.cpu_count() or 1)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        columns = Columns(1, "publisher", records(0, ROWS_WANTED), published_us=1)
        arrow_schema = to_arrow_schema(COLUMNS, timezone="UTC")
        [ready] = record_batches([Batch("rows", 0, columns, stored_at=1.0)], arrow_schema)
        left = self._rows // (os.cpu_count() or 1)
        while left > 0:
            yield ready if left >= ready.num_rows else ready.slice(0, left)
            left -= ready.num_rows
