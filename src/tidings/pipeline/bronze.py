"""Bronze: every message of every topic, as it is, once and only once.

The query's micro-batches are ranges of offsets. A commit notes, beside the batch, the next offset of every topic in it
and how many messages of the topic retention had removed before they were read: all of it becomes true together.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from deltalake import DeltaTable

from tidings.pipeline.delta import Written
from tidings.pipeline.lake import Lake
from tidings.pipeline.plan import Plan
from tidings.spark.options import read_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

NAME = "bronze"
IDS = "ids"
"""Noted once a message had an id: before that nobody needs to look for duplicates."""


def query(spark: SparkSession, lake: Lake, plan: Plan, topics: Iterable[str]) -> DataStreamWriter:
    """The query from the bus to the table; `topics` are those that are on the bus now."""
    options = plan.source_options() | {"maxMessagesPerTrigger": str(plan.batch_rows)}
    published = lake.manifest().published
    if published:
        options["exceptTopics"] = ",".join(published)
    # Spark asks for it only if there is no checkpoint; the table knows where it had got to even then.
    reading = read_options(options, streaming=True)
    begin = positions(lake.table(NAME).open(), filter(reading.wants, topics))
    options["startingOffsets"] = json.dumps(begin) if begin else "earliest"
    return spark.readStream.format("tidings").options(**options).load().writeStream.foreachBatch(partial(store, lake))


def store(lake: Lake, rows: DataFrame, batch: int) -> None:
    """One micro-batch."""
    table, app = lake.table(NAME), lake.app(NAME)
    if not table.has_done(app, batch):
        written = table.write(rows, batch)
        table.commit(written, app, batch, marks(table.open(), written))


def marks(table: DeltaTable, written: Written) -> dict[str, int]:
    """What the commit says of each topic, from its first and last offset and the number of rows between them."""
    found: dict[str, int] = {IDS: 1} if written.ids else {}
    for topic, (first, last, rows) in written.ranges.items():
        begun = table.transaction_version(f"next:{topic}")
        skipped = last + 1 - (first if begun is None else begun) - rows
        found[f"next:{topic}"] = last + 1
        if skipped:
            found[f"skipped:{topic}"] = skipped + (table.transaction_version(f"skipped:{topic}") or 0)
    return found


def positions(table: DeltaTable, topics: Iterable[str]) -> dict[str, int]:
    """The next offset of each topic that is in the table."""
    found: dict[str, Any] = {topic: table.transaction_version(f"next:{topic}") for topic in topics}
    return {topic: offset for topic, offset in found.items() if offset is not None}


def skipped(table: DeltaTable, topics: Iterable[str]) -> dict[str, int]:
    """How many messages of each topic were removed by retention before they were read."""
    found = {topic: table.transaction_version(f"skipped:{topic}") for topic in topics}
    return {topic: count for topic, count in found.items() if count}
