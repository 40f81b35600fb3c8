"""The tables of a lake in Spark, without a JAR."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from tidings.errors import InvalidRequest

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyspark.sql import DataFrame, SparkSession

MISSING = "A lake needs deltalake, which is not installed: pip install '.[spark]' in a checkout."


def lake_table(spark: SparkSession, lake: Path | str, name: str) -> DataFrame:
    """A table that `tidings pipeline` keeps, as it is now: `lake_table(spark, "lake/", "silver")`.

    It is the Parquet files that the last commit names, read by Spark itself, so filters and columns are pushed down. A
    table that changes later does not change the DataFrame; its files stay until `tidings pipeline retain` removes them.
    """
    try:
        from deltalake import DeltaTable
    except ModuleNotFoundError as error:
        raise InvalidRequest(MISSING) from error
    folder = Path(lake) / name
    if not DeltaTable.is_deltatable(str(folder)):
        raise InvalidRequest(
            f"There is no table {name!r} in {lake}: `tidings pipeline status --lake {lake}` lists them."
        )
    import pyarrow as pa

    table = DeltaTable(folder)
    return read_parts(spark, table, folder, pa.table(table.get_add_actions(flatten=True)).column("path").to_pylist())


def read_parts(spark: SparkSession, table: DeltaTable, folder: Path, paths: Sequence[str]) -> DataFrame:
    """Some files of a table, by their names in its log."""
    from pyspark.sql.types import StructType

    schema = StructType.fromJson(json.loads(table.schema().to_json()))  # Delta writes schemas as Spark does.
    if not paths:
        return spark.createDataFrame([], schema)
    return spark.read.schema(schema).parquet(*(_literal(folder.absolute() / unquote(path)) for path in paths))


def _literal(path: Path) -> str:
    """A path as Spark wants it, which takes some characters for patterns.

    >>> _literal(Path("/lake [1]/part.parquet"))
    '/lake \\\\[1\\\\]/part.parquet'
    """
    return re.sub(r"([\[\]{}*?\\])", r"\\\1", str(path))
