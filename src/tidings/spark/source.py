"""The data source `tidings`: topics as tables and streams.

    spark.read.format("tidings").option("bus", "tcp://127.0.0.1:7400").option("topic", "news").load()

docs/spark.md has the options, the columns and the promises.
"""

from __future__ import annotations

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from tidings.errors import InvalidRequest
from tidings.spark.options import read_options, write_options
from tidings.spark.reader import BatchReader, StreamReader
from tidings.spark.schema import COLUMNS, check_readable, check_writable
from tidings.spark.writer import BatchWriter, StreamWriter


class TidingsSource(DataSource):
    """Reads and writes topics, in batch and as streams."""

    @classmethod
    def name(cls) -> str:
        return "tidings"

    def schema(self) -> StructType:
        return COLUMNS

    def reader(self, schema: StructType) -> DataSourceReader:
        check_readable(schema)
        reading = read_options(self.options, streaming=False)
        return BatchReader(reading, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        check_readable(schema)
        return StreamReader(read_options(self.options, streaming=True), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        _refuse_overwrite(overwrite)
        writing = write_options(self.options)
        check_writable(schema, writing.topic is not None)
        return BatchWriter(writing)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        _refuse_overwrite(overwrite)
        writing = write_options(self.options)
        check_writable(schema, writing.topic is not None)
        return StreamWriter(writing)


def _refuse_overwrite(overwrite: bool) -> None:
    if overwrite:
        raise InvalidRequest('Spark can only append to a topic: use mode("append"), or the output mode append.')
