"""Writing to topics, exactly once.

Each attempt of a task stores its rows under a name of its own, where nobody sees them. When all tasks are done the
driver publishes the stages of those that succeeded by one request, which is keyed by the query and its batch: a task
or a commit that is repeated, after whatever crash, changes nothing. Batch writes with the option topic are keyed by it
too, so that one function of `foreachBatch` may write to several topics.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from tidings.client.staging import Stage
from tidings.errors import InvalidRequest, TidingsError
from tidings.protocols.broker.bulk import name_stage
from tidings.spark.door import bus_of
from tidings.spark.options import Writing
from tidings.spark.worker import prepare_worker

log = logging.getLogger("tidings.spark")

QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"
"""Local properties that Spark sets for the tasks of a streaming query. They are not documented; a test pins them."""


@dataclass
class Written(WriterCommitMessage):
    """What one task has stored: the stage, and for which batch of which query."""

    query: str
    batch: int
    stage: str
    count: int
    sink: str = ""
    topics: tuple[str, ...] = ()


def write_stage(writing: Writing, query: str, batch: int, rows: Iterator[pa.RecordBatch], sink: str = "") -> Written:
    """Stores the rows of one attempt."""
    prepare_worker()
    context = TaskContext.get()
    attempt = f"{context.partitionId()}-{context.taskAttemptId()}" if context is not None else "driver"
    name = f"{attempt}-{os.urandom(8).hex()}"
    with bus_of(writing.door) as bus:
        stage = bus.stage(query, batch, name, sink)
        topics: dict[str, None] = {}
        for piece in rows:
            if piece.num_rows:
                _write(stage, writing, piece, topics)
        named = stage.finish()
    return Written(query, batch, named.name, named.count, sink, tuple(topics))


def _write(stage: Stage, writing: Writing, piece: pa.RecordBatch, topics: dict[str, None]) -> None:
    from tidings.spark.arrow import by_topic, bytes_column, headers_column, text_column

    for topic, rows in by_topic(piece, writing.topic):
        if topic is None:
            raise InvalidRequest("A row has no topic: fill the column topic, or give the option topic for such rows.")
        topics[topic] = None
        if stage.published:
            continue
        values = bytes_column(rows, "value")
        assert values is not None
        if rows.column("value").null_count:
            raise InvalidRequest("A row has no value: leave it out, or give it an empty one.")
        keys, headers, ids = bytes_column(rows, "key"), headers_column(rows), text_column(rows, "id")
        stage.write(topic, values, keys, headers, ids)  # type: ignore[arg-type]


def _publish(
    writing: Writing, messages: Sequence[WriterCommitMessage | None], once: bool, *, named_by_user: bool = False
) -> None:
    written = [each for each in messages if isinstance(each, Written)]
    if not written:
        return
    prepare_worker()
    query, batch = written[0].query, written[0].batch
    with bus_of(writing.door) as bus:
        named = [name_stage(each.stage, each.count, each.topics) for each in written]
        done = bus.publish(query, batch, named, once, wait=writing.door.timeout_s, sink=written[0].sink)
    unwritten = sorted({topic for each in written for topic in each.topics}.difference(done.topics or ()))
    if named_by_user and done.repeated and done.topics is not None and unwritten:
        raise InvalidRequest(
            f"Batch {batch} of {query!r} has been written before, and not to {', '.join(map(repr, unwritten))}: "
            "nothing was written now. Give each write of a batch a query name of its own."
        )
    if done.repeated:
        log.warning("Batch %s of %s had been published before: nothing was written again.", batch, query)


def _discard(writing: Writing, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Drops what will not be published. It cannot touch what is: a published stage is no longer there."""
    stages = [each.stage for each in messages if isinstance(each, Written)]
    try:
        if stages:
            with bus_of(writing.door) as bus:
                bus.discard(stages)
    except TidingsError as error:
        # Spark is about to report why the write failed; that must not be hidden by this.
        log.warning("%s stages could not be discarded and will expire: %s", len(stages), error)


class BatchWriter(DataSourceArrowWriter):
    """`df.write.format("tidings")`: all rows become visible at once."""

    def __init__(self, writing: Writing) -> None:
        self._writing = writing
        self._once = writing.query is None
        self._query = writing.query or f"job-{os.urandom(16).hex()}"
        self._batch = writing.batch or 0

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return write_stage(self._writing, self._query, self._batch, iterator, self._writing.topic or "")

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        _publish(self._writing, messages, self._once, named_by_user=not self._once)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        _discard(self._writing, messages)


class StreamWriter(DataSourceStreamArrowWriter):
    """`df.writeStream.format("tidings")`: each micro-batch becomes visible at once, and once."""

    def __init__(self, writing: Writing) -> None:
        self._writing = writing

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        query = context.getLocalProperty(QUERY_ID) if context is not None else None
        batch = context.getLocalProperty(BATCH_ID) if context is not None else None
        if query is None or batch is None:
            raise InvalidRequest(
                f"Spark did not say which query and batch this task belongs to ({QUERY_ID}, {BATCH_ID}): "
                "tidings does not support this version of Spark."
            )
        return write_stage(self._writing, query, int(batch), iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        _publish(self._writing, messages, once=False)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        _discard(self._writing, messages)
