"""Topics as streams: offsets, restarts, limits, new topics, data loss (D1, D3)."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

import tidings
from tests.integration.broker_process import BrokerProcess
from tests.spark.conftest import Place
from tidings.spark import lag
from tidings.spark.options import read_options
from tidings.spark.reader import StreamReader
from tidings.spark.schema import COLUMNS


def until(condition: Callable[[], bool], query: Any = None, seconds: float = 120) -> None:
    """Waits for a condition; a query that has failed meanwhile says why."""
    deadline = time.monotonic() + seconds
    while not condition():
        if query is not None and query.exception() is not None:
            raise query.exception()
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.05)


def copying(place: Place, source: str, sink: str, checkpoint: Path, **options: object) -> Any:
    trigger = options.pop("trigger", {"processingTime": "0 seconds"})
    frame = place.stream(source, **options).select("value")
    writer = frame.writeStream.format("tidings").option("bus", place.broker.address).option("topic", sink)
    return writer.option("checkpointLocation", str(checkpoint)).trigger(**trigger).start()


def drain(place: Place, source: str, sink: str, checkpoint: Path, **options: object) -> Any:
    query = copying(place, source, sink, checkpoint, **options | {"trigger": {"availableNow": True}})
    query.awaitTermination()
    return query


def numbered(start: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(start, end)]


def test_a_stream_goes_on_from_its_checkpoint(place: Place, tmp_path: Path) -> None:
    """D3: each message once, over restarts of the query and of the broker."""
    place.bus.put_many("in", numbered(0, 500))
    drain(place, "in", "out", tmp_path / "c")
    place.bus.put_many("in", numbered(500, 700))
    place.broker.kill()
    place.broker.start()
    query = drain(place, "in", "out", tmp_path / "c")
    assert query.lastProgress["numInputRows"] in (0, 200)
    drain(place, "in", "out", tmp_path / "c")
    assert sorted(place.values("out"), key=int) == numbered(0, 700)


def test_a_limit_for_each_micro_batch_and_the_lag(place: Place, tmp_path: Path) -> None:
    for topic in ("a", "b"):
        place.bus.put_many(topic, numbered(0, 100))
    query = drain(place, "a, b", "out", tmp_path / "c", maxMessagesPerTrigger=60, tasks=3)
    rows = [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]
    assert rows == [60, 60, 60, 20]
    first = next(progress for progress in query.recentProgress if progress["numInputRows"])
    assert json.loads(first["sources"][0]["endOffset"]) == {"a": 30, "b": 30}
    assert lag(first) == {"a": 70, "b": 70}
    assert lag(query.lastProgress) == {"a": 0, "b": 0}
    assert place.bus.topic("out").count == 200


def test_topics_that_come_later_and_a_broker_that_comes_back(place: Place, tmp_path: Path) -> None:
    """A pattern takes up new topics from their first message; a query outlives a crash of the broker."""
    place.bus.put_many("in.a", numbered(0, 10))
    query = copying(place, "in.*", "out", tmp_path / "c")
    try:
        until(lambda: any(info.name == "out" and info.count == 10 for info in place.bus.topics()), query)
        place.bus.put_many("in.b", numbered(10, 20))
        until(lambda: place.bus.topic("out").count == 20, query)
        place.broker.kill()
        place.broker.start()
        place.bus.put_many("in.c", numbered(20, 30))
        until(lambda: place.bus.topic("out").count == 30, query)
    finally:
        query.stop()
    assert sorted(place.values("out"), key=int) == numbered(0, 30)


def test_a_new_stream_starts_with_what_comes(place: Place, tmp_path: Path) -> None:
    place.bus.put_many("in", numbered(0, 10))
    query = copying(place, "in", "out", tmp_path / "c", startingOffsets="latest")
    try:
        until(lambda: query.lastProgress is not None, query)
        place.bus.put_many("in", numbered(10, 15))
        until(lambda: any(info.name == "out" and info.count == 5 for info in place.bus.topics()), query)
    finally:
        query.stop()
    assert place.values("out") == numbered(10, 15)


def test_a_crash_in_the_first_micro_batch_does_not_move_the_beginning(place: Place, tmp_path: Path) -> None:
    place.bus.put_many("in", numbered(0, 10))
    drain(place, "in", "out", tmp_path / "c", startingOffsets="latest")
    for commit in (tmp_path / "c" / "commits").iterdir():
        commit.unlink()
    place.bus.put_many("in", numbered(10, 15))
    drain(place, "in", "out", tmp_path / "c", startingOffsets="latest")
    drain(place, "in", "out", tmp_path / "c", startingOffsets="latest")
    assert place.values("out") == numbered(10, 15)


def test_what_retention_took_from_a_stream(build: Callable[..., Place], tmp_path: Path) -> None:
    place = build(retain_bytes=1_000, segment_records_max=20)
    place.bus.put("in", "0")
    drain(place, "in", "out", tmp_path / "c")
    for number in range(1, 200):
        place.bus.put("in", str(number))
    until(lambda: place.bus.topic("in").first_offset > 1)
    low = place.bus.topic("in").first_offset
    with pytest.raises(Exception, match=f"{low - 1} messages of 'in' from 1 to 200 are not there"):
        drain(place, "in", "out", tmp_path / "c")
    drain(place, "in", "out", tmp_path / "c", failOnDataLoss="false")
    assert sorted(place.values("out"), key=int) == [b"0", *numbered(low, 200)]


def test_a_checkpoint_ahead_of_the_topic(build: Callable[..., Place], tmp_path: Path) -> None:
    """The broker's folder was replaced by an older one, or an empty one."""
    first, second = build(), build()
    first.bus.put_many("in", numbered(0, 50))
    drain(first, "in", "out", tmp_path / "c")
    second.bus.put_many("in", numbered(0, 20))
    with pytest.raises(Exception, match="30 messages of 'in' from 20 to 50 are not there"):
        drain(second, "in", "out", tmp_path / "c")


def test_a_stream_has_no_end(place: Place) -> None:
    place.bus.put("in", "x")
    frame = place.stream("in", endingOffsets=1)
    with pytest.raises(Exception, match="A stream has no end"):
        frame.writeStream.format("noop").trigger(availableNow=True).start().awaitTermination()


def test_a_topic_that_is_not_there(place: Place) -> None:
    with pytest.raises(Exception, match="There is no topic 'nowhere'"):
        place.stream("nowhere").writeStream.format("noop").start().awaitTermination(60)


def test_kafka_options_in_a_query(place: Place, tmp_path: Path) -> None:
    """A regular expression, a least number for a micro-batch, a most for a task; a name with a comma."""
    place.bus.put_many("in.a,b", numbered(0, 50))
    place.bus.subscribe("out")
    kafka = {
        "kafka.bootstrap.servers": place.broker.address,
        "subscribePattern": "in[.].*",
        "maxRecordsPerPartition": "20",
    }
    patient = {"startingOffsets": "earliest", "minOffsetsPerTrigger": "60", "maxTriggerDelay": "1h"}
    frame = place.spark.readStream.format("tidings").options(**kafka, **patient).load().select("value")
    writer = frame.writeStream.format("tidings").options(bus=place.broker.address, topic="out")
    query = writer.option("checkpointLocation", str(tmp_path / "c")).start()
    try:
        until(lambda: len(place.values("out")) == 50, query)  # The first one waits for nothing.
        place.bus.put_many("in.a,b", numbered(50, 100))
        place.bus.put_many("in.a,b", numbered(100, 110))
        until(lambda: len(place.values("out")) == 110, query)
        until(lambda: sum(each["numInputRows"] for each in query.recentProgress) == 110, query)  # It is told later.
    finally:
        query.stop()
    assert [each["numInputRows"] for each in query.recentProgress if each["numInputRows"]] == [50, 60]
    read = place.spark.read.format("tidings").option("bus", place.broker.address)
    assert read.option("topic", '["in.a,b"]').option("maxMessagesPerTask", 30).load().rdd.getNumPartitions() == 4


def test_a_micro_batch_waits_for_enough_messages(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker, tidings.connect(broker.address) as bus:
        bus.put_many("in", numbered(0, 10))
        patient = {"bus": broker.address, "topic": "in", "minMessagesPerTrigger": "5", "startingOffsets": "earliest"}
        reader, limit = StreamReader(read_options(patient, streaming=True), COLUMNS), ReadMaxRows(100)
        assert reader.initialOffset() == reader.latestOffset({"in": 0}, limit) == {"in": 0}
        assert reader.latestOffset({"in": 0}, limit) == {"in": 10}
        bus.put_many("in", numbered(10, 14))
        assert reader.latestOffset({"in": 10}, limit) == {"in": 10}
        assert reader.latestOffset({"in": 10}, ReadAllAvailable()) == {"in": 14}  # The trigger once.
        bus.put("in", b"14")
        assert reader.latestOffset({"in": 10}, limit) == {"in": 15}
        bus.put("in", b"15")
        assert reader.latestOffset({"in": 15}, limit) == {"in": 15}
        hasty = StreamReader(read_options(patient | {"maxTriggerDelay": "1ms"}, streaming=True), COLUMNS)
        hasty.partitions({"in": 0}, {"in": 15})
        assert hasty.latestOffset({"in": 15}, limit) == {"in": 16}
        reader.prepareForTriggerAvailableNow()
        assert reader.latestOffset({"in": 15}, limit) == {"in": 16}


@pytest.mark.parametrize(("start", "count"), [("earliest", 100), ("latest", 0), ("40", 60)])
def test_the_trigger_once_reads_what_is_there(place: Place, tmp_path: Path, start: str, count: int) -> None:
    place.bus.put_many("in", numbered(0, 100))
    place.bus.subscribe("out")
    once = {"trigger": {"once": True}, "startingOffsets": start, "maxMessagesPerTrigger": 10}
    copying(place, "in", "out", tmp_path / "c", **once).awaitTermination()
    assert place.values("out") == numbered(100 - count, 100)
    place.bus.put_many("in", numbered(100, 120))
    copying(place, "in", "out", tmp_path / "c", **once).awaitTermination()
    assert place.values("out") == numbered(100 - count, 120)


def test_update_mode_goes_through_foreach_batch(place: Place, tmp_path: Path) -> None:
    """docs/spark.md: Spark gives it to no sink in Python; an aggregation without a watermark is written like this."""
    place.bus.put_many("in", [b"a", b"b", b"a"])
    counts = place.stream("in").groupBy("value").count().selectExpr("concat(value, '=', count) as value")
    refused = counts.writeStream.format("tidings").options(bus=place.broker.address, topic="out").outputMode("update")
    with pytest.raises(Exception, match="tidings does not support Update mode"):
        refused.option("checkpointLocation", str(tmp_path / "r")).trigger(availableNow=True).start().awaitTermination()

    def store(rows: Any, batch: int) -> None:
        for _ in range(2):  # Spark repeats it after a crash.
            place.write(rows, "out", query="counts", batch=batch)

    changed = (
        counts.writeStream.foreachBatch(store).outputMode("update").option("checkpointLocation", str(tmp_path / "c"))
    )
    changed.trigger(availableNow=True).start().awaitTermination()
    place.bus.put_many("in", [b"b"])
    changed.trigger(availableNow=True).start().awaitTermination()
    assert sorted(place.values("out")) == [b"a=2", b"b=1", b"b=2"]
