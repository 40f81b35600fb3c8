"""Reading and writing topics in batch (D1)."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.spark.conftest import Place

COLUMNS = ["topic", "offset", "key", "value", "headers", "id", "publisher", "published_at", "stored_at"]


def numbers(frame: Any) -> list[int]:
    return sorted(int(bytes(row.value)) for row in frame.select("value").collect())


def test_the_columns_of_a_message(place: Place) -> None:
    before = time.time()
    place.bus.put("news", "hello", key="k", headers={"a": b"1", "b": b""}, id="x")
    place.bus.put("news", "plain")
    frame = place.read("news")
    assert frame.columns == COLUMNS
    first, second = frame.orderBy("offset").collect()
    assert (first.topic, first.offset, bytes(first.key), bytes(first.value)) == ("news", 0, b"k", b"hello")
    assert {name: bytes(value) for name, value in first.headers.items()} == {"a": b"1", "b": b""}
    assert (first.id, first.publisher) == ("x", "tester")
    assert (second.offset, second.key, second.headers, second.id) == (1, None, None, None)
    for when in (first.published_at, first.stored_at):
        assert before - 2 <= when.replace(tzinfo=UTC).timestamp() <= time.time() + 2


def test_a_round_trip(place: Place) -> None:
    frame = place.spark.range(1000).selectExpr(
        "cast(id as string) as value",
        "cast(id % 7 as string) as key",
        "map('n', cast(cast(id as string) as binary)) as headers",
        "concat('id-', id) as id",
    )
    place.write(frame.repartition(3), "copy")
    rows = place.read("copy").collect()
    assert len(rows) == 1000
    for row in rows:
        number = int(bytes(row.value))
        assert (bytes(row.key), bytes(row.headers["n"]), row.id) == (
            b"%d" % (number % 7),
            b"%d" % number,
            f"id-{number}",
        )
    place.write(frame.select("value", "id"), "copy")  # Z13: the ids are known.
    assert place.bus.topic("copy").count == 1000
    place.write(place.read("copy").select("value"), "again", query="nightly", batch=3)
    place.write(place.read("copy").select("value"), "again", query="nightly", batch=3)
    assert place.bus.topic("again").count == 1000, "a batch of a query is written once"


def test_a_frame_stays_what_it_was_when_it_was_first_used(place: Place) -> None:
    place.bus.put_many("numbers", [b"1", b"2"])
    frame = place.read("numbers")
    assert frame.count() == 2
    place.bus.put("numbers", "3")
    assert (frame.count(), place.read("numbers").count()) == (2, 3)


def test_rows_choose_their_topic(place: Place) -> None:
    frame = place.spark.range(90).selectExpr(
        "cast(id as string) as value", "case id % 3 when 0 then 'a' when 1 then 'b' end as topic"
    )
    place.write(frame.coalesce(1), "rest")
    assert place.values("a") == [b"%d" % number for number in range(0, 90, 3)]
    assert place.values("b") == [b"%d" % number for number in range(1, 90, 3)]
    assert place.values("rest") == [b"%d" % number for number in range(2, 90, 3)]


@pytest.mark.parametrize("tasks", [1, 2, 7])
def test_any_range_goes_to_any_number_of_tasks(place: Place, tasks: int) -> None:
    for start in range(0, 100, 10):  # Stored batches of all sizes.
        place.bus.put_many("numbers", [b"%d" % number for number in range(start, start + 10)])
    for number in range(100, 120):
        place.bus.put("numbers", str(number))
    frame = place.read("numbers", startingOffsets=5, endingOffsets=113, tasks=tasks)
    assert frame.rdd.getNumPartitions() == tasks
    rows = sorted((row.offset, int(bytes(row.value))) for row in frame.collect())
    assert rows == [(number, number) for number in range(5, 113)]


def test_offsets_by_topic_by_time_and_by_pattern(place: Place) -> None:
    for topic in ("a.one", "a.two", "b"):
        place.bus.put_many(topic, [b"%d" % number for number in range(10)])
    [batch] = place.bus.read("a.one", 9)
    assert batch.stored_at is not None
    while place.bus.offset_at("a.one", time.time()) != 10:
        time.sleep(0.001)  # The broker's clock shows milliseconds: wait for the next one.
    edge = datetime.fromtimestamp(batch.stored_at + 0.001, UTC)
    place.bus.put_many("a.one", [b"10", b"11"])
    assert numbers(place.read("a.*, b")) == sorted([*range(12), *range(10), *range(10)])
    starting = '{"a.one": 11, "a.two": "latest"}'
    assert numbers(place.read("a.*", startingOffsets=starting)) == [11]
    late = place.read("a.one", startingOffsets=edge.isoformat())
    assert [row.offset for row in late.collect()] == [10, 11]
    early = place.read("a.one", endingOffsets=edge.isoformat())
    assert early.count() == 10
    assert place.read("nothing*").count() == 0


def test_fewer_columns_in_another_order(place: Place) -> None:
    place.bus.put_many("numbers", [b"1", b"2"])
    reader = place.spark.read.format("tidings").option("bus", place.broker.address).schema("value binary, offset long")
    assert [tuple(row) for row in reader.load("numbers").collect()] == [(b"1", 0), (b"2", 1)]


def test_filters_lose_nothing_when_spark_pushes_them_down(place: Place) -> None:
    """PySpark 4.3 shares what a source makes of a filter with all other uses of the frame: this one makes nothing."""
    place.bus.put_many("numbers", [b"%d" % number for number in range(100)])
    frame = place.read("numbers")
    conf = "spark.sql.python.filterPushdown.enabled"
    for enabled in ("true", "false"):
        place.spark.conf.set(conf, enabled)
        both = frame.where("offset < 10").union(frame.where("offset >= 95"))
        assert (both.count(), frame.count()) == (15, 100)


def test_what_cannot_be_read_says_so(place: Place) -> None:
    place.bus.put("news", "x")
    for options, sentence in (
        ({"topic": "nowhere"}, "There is no topic 'nowhere'"),
        ({"topic": "news", "startingOffsets": "5"}, "names the offset 5 of 'news', which holds 0 to 1"),
        ({"topic": "news", "startingOffsets": "soon"}, "startingOffsets must be earliest, latest, an offset"),
        ({"topic": "news", "startingOffsets": '{"art": 1}'}, "which is not read"),
        ({"topic": "news", "tasks": "0"}, "The option tasks must be a number above 0"),
        ({"topic": "news", "colour": "red"}, "There is no option 'colour' for reading"),
        ({}, 'The option "topic" is missing'),
    ):
        reader = place.spark.read.format("tidings").option("bus", place.broker.address).options(**options)
        with pytest.raises(Exception, match="PYTHON_DATA_SOURCE_ERROR") as caught:
            reader.load().count()
        assert sentence in str(caught.value)
    with pytest.raises(Exception, match="There is no column 'colour'"):
        place.spark.read.format("tidings").option("topic", "news").schema("colour string").load().count()
    with pytest.raises(Exception, match="The column 'offset' is bigint, not string"):
        place.spark.read.format("tidings").option("topic", "news").schema("offset string").load().count()


def test_a_broker_that_is_not_there(place: Place) -> None:
    place.bus.put("news", "x")
    place.broker.kill()
    try:
        with pytest.raises(Exception, match=r"No answer from tcp://127.0.0.1:.* after 3 tries of 0.2 s"):
            place.read("news", timeout=0.2).count()
    finally:
        place.broker.start()


def test_what_cannot_be_written_says_so(place: Place) -> None:
    for expressions, topic, sentence in (
        (["id as number"], "t", "There is no column value"),
        (["id as value"], "t", "The column 'value' is bigint, and binary or string can be written"),
        (["'x' as value", "id as colour"], "t", "The column 'colour' cannot be written"),
        (["'x' as value"], None, "There is no topic to write to"),
        (["cast(null as string) as value"], "t", "A row has no value"),
        (["'x' as value", "cast(null as string) as topic"], None, "A row has no topic"),
        (["'x' as value", "'' as topic"], None, "A topic's name has 1 to 128 characters"),
    ):
        with pytest.raises(Exception, match=r"PYTHON|Python worker") as caught:
            place.write(place.spark.range(2).selectExpr(*expressions), topic)
        assert sentence in str(caught.value)
    frame = place.spark.range(2).selectExpr("'x' as value")
    with pytest.raises(Exception, match="can only append to a topic"):
        frame.write.format("tidings").option("topic", "t").mode("overwrite").save()
    assert place.bus.topics() == []
    assert place.bus.status()["stages"] == 0, "what failed tasks had staged is discarded"


def test_what_retention_removed(build: Callable[..., Place]) -> None:
    place = build(retain_bytes=1_000, segment_records_max=20)
    for number in range(200):
        place.bus.put("numbers", str(number))
    deadline = time.monotonic() + 60
    while place.bus.topic("numbers").first_offset == 0:  # Retention looks every few seconds.
        assert time.monotonic() < deadline
        time.sleep(0.1)
    low = place.bus.topic("numbers").first_offset
    with pytest.raises(Exception, match=f"{low} messages of 'numbers' from 0 to 200 are not there"):
        place.read("numbers", startingOffsets=0).count()
    rest = place.read("numbers", startingOffsets=0, failOnDataLoss="false")
    assert numbers(rest) == list(range(low, 200))
    assert numbers(place.read("numbers")) == list(range(low, 200))


def test_a_bit_that_the_disk_has_flipped_ends_the_job_and_alters_nothing(build: Callable[..., Place]) -> None:
    """Z11: tasks read the journal's files by themselves, and check what they read."""
    place = build(recent_bytes_max=1)
    for number in range(400):
        place.bus.put("flipped", b"message %03d " % number * 100)
    assert place.read("flipped").count() == 400
    (path,) = place.broker.data.glob("*.journal")
    with path.open("r+b") as file:
        file.seek(path.read_bytes().find(b"message 200") + 500)
        file.write(b"?")
    with pytest.raises(Exception, match=f"{path.name} is damaged at position"):
        place.read("flipped").collect()
    assert place.read("flipped", startingOffsets="201").count() == 199
