"""The data source `tidings` for PySpark. It comes with the extra `spark`.

Spark finds it by itself if tidings is installed in the usual way; `register(spark)` makes sure of it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tidings.errors import InvalidRequest
from tidings.spark.delta_frames import lake_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["lag", "lake_table", "register"]

INSTALL = "PySpark is not installed: pip install '.[spark]' in a checkout, and install Java 17 or newer."


def register(spark: SparkSession) -> None:
    """Makes the format `tidings` known to a session."""
    try:
        from tidings.spark.source import TidingsSource
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.partition(".")[0] in ("pyspark", "pyarrow"):
            raise InvalidRequest(INSTALL) from error
        raise
    spark.dataSource.register(TidingsSource)


def lag(progress: Any) -> dict[str, int]:
    """How many messages of each topic a query has still before it, from its `lastProgress`.

    >>> lag({"sources": [{"endOffset": {"news": 5}, "latestOffset": {"news": 12}}]})
    {'news': 7}
    """

    found: dict[str, int] = {}
    for source in progress["sources"] if progress else []:
        ends, latest = (
            json.loads(each) if isinstance(each, str) else each
            for each in (source["endOffset"], source["latestOffset"])
        )
        for topic, offset in (latest or {}).items():
            found[topic] = offset - (ends or {}).get(topic, 0)
    return found
