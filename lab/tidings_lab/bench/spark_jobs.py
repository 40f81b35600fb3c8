"""What a worker knows of Spark: it is the driver, and measures itself."""

from __future__ import annotations

import os
import statistics
from pathlib import Path
from time import perf_counter
from typing import Any

from tidings.spark.session import open_session
from tidings_lab.bench.neighbours import children, processor_seconds

CHUNK_RECORDS = 500_000


def spark_start(desk: Any, folder: str) -> str:
    """Starts a session on all cores; Spark's version."""
    # Workers of Spark that are not needed any more complain about it, at the end of every session.
    master, log = f"local[{os.cpu_count() or 1}]", Path(folder).with_suffix(".log")
    session = open_session("tidings bench", master, {"spark.sql.warehouse.dir": folder}, log)
    from tidings_lab.bench.spark_ready import ReadySource

    session.dataSource.register(ReadySource)
    server: Any = session.sparkContext._accumulatorServer
    server.handle_error = lambda *_: None  # It prints a trace when the other side is gone.
    desk.spark = session
    return str(session.version)


def publish_records(desk: Any, topic: str, count: int) -> None:
    """Puts as many measurements, each of them different."""
    from tidings_lab.bench.spark_ready import records

    for first in range(0, count, CHUNK_RECORDS):
        desk.connected.put_many(topic, records(first, min(CHUNK_RECORDS, count - first)))


def spark_stop(desk: Any) -> float:
    """Ends the session, and waits for its process, so that what it has spent is known.

    The answer is what its Python workers have spent: PySpark's daemons, whose children they are, do not wait for them.
    """
    gateway = desk.spark.sparkContext._gateway
    unseen = sum(processor_seconds(worker) for daemon in children(gateway.proc.pid) for worker in children(daemon))
    desk.spark.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()
    return unseen


def _batch(desk: Any, address: str, topic: str, rows: int | None = None) -> Any:
    reader = desk.spark.read.format("tidings").option("bus", address).option("topic", topic)
    return (reader if rows is None else reader.option("endingOffsets", rows)).load()


def spark_to_parquet(desk: Any, address: str, topic: str, path: str) -> None:
    """Writes the rows of a topic into a folder, for comparison."""
    _batch(desk, address, topic).write.mode("overwrite").parquet(path)


def spark_read(desk: Any, address: str, topic: str, rows: int | None = None) -> float:
    """Reads all columns of a topic, or of its first rows, and throws them away: the seconds that it took."""
    return _timed(_batch(desk, address, topic, rows))


def spark_read_parquet(desk: Any, path: str) -> float:
    """The same with a folder of Parquet."""
    return _timed(desk.spark.read.parquet(path))


def spark_read_ready(desk: Any, rows: int) -> float:
    """The same with rows that a Python source has ready."""
    from tidings_lab.bench.spark_ready import NAME

    return _timed(desk.spark.read.format(NAME).option("rows", rows).load())


def _timed(frame: Any) -> float:
    began = perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    return perf_counter() - began


def spark_stream(
    desk: Any, address: str, topic: str, folder: str, each: int, to_topic: str | None = None
) -> list[tuple[int, float]]:
    """Reads a topic as a stream to its end, into a topic or into nothing: rows and seconds of every micro-batch."""
    reader = desk.spark.readStream.format("tidings").option("bus", address).option("topic", topic)
    frame = reader.option("startingOffsets", "earliest").option("maxMessagesPerTrigger", each).load()
    if to_topic is None:
        writer = frame.writeStream.format("noop")
    else:
        writer = frame.select("key", "value").writeStream.format("tidings")
        writer = writer.option("bus", address).option("topic", to_topic)
    writer = writer.option("checkpointLocation", str(Path(folder) / "checkpoint"))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    return [
        (progress["numInputRows"], progress["durationMs"]["triggerExecution"] / 1000)
        for progress in query.recentProgress
        if progress["numInputRows"]
    ]


def spark_micro_batches(
    desk: Any, address: str, topic: str | None, folder: str, count: int, to_topic: str | None
) -> float:
    """The usual time of a micro-batch of ten rows: from a topic or Spark's own rate source, into a topic or nothing."""
    if topic is None:
        reader = desk.spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).option("numPartitions", 1)
    else:
        reader = desk.spark.readStream.format("tidings").option("bus", address).option("topic", topic)
        reader = reader.option("startingOffsets", "earliest").option("maxMessagesPerTrigger", 10).option("tasks", 1)
    writer = reader.load().selectExpr("cast(value as string) as value").writeStream.format("noop")
    if to_topic is not None:
        writer = writer.format("tidings").option("bus", address).option("topic", to_topic)
    query = writer.option("checkpointLocation", folder).trigger(processingTime="0 seconds").start()
    times: dict[int, float] = {}
    while len(times) < count:
        query.awaitTermination(0.2)
        for progress in query.recentProgress:
            if progress["numInputRows"]:
                times[progress["batchId"]] = progress["durationMs"]["triggerExecution"] / 1000
    query.stop()
    return statistics.median([times[number] for number in sorted(times)][count // 4 : count])


SPARK_JOBS = (
    publish_records,
    spark_start,
    spark_stop,
    spark_to_parquet,
    spark_read,
    spark_read_parquet,
    spark_read_ready,
    spark_stream,
    spark_micro_batches,
)
