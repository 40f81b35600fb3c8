"""What is wrong is said in one sentence, in batch and in streams, by readers and by sinks (D1, D3)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.spark.conftest import Place
from tests.spark.test_stream import copying, drain, numbered, until

LARGE = "repeat('x', 2000) as value"
"""Above the limit of the brokers here."""


def fail(frame: Any, sentence: str, checkpoint: Path | None = None) -> None:
    """A stream into nothing ends with this."""
    writer = frame.writeStream.format("noop").trigger(availableNow=True)
    writer = writer if checkpoint is None else writer.option("checkpointLocation", str(checkpoint))
    with pytest.raises(Exception, match=sentence):
        writer.start().awaitTermination()


def test_a_stream_of_columns_that_are_not_there(place: Place) -> None:
    place.bus.put("in", "x")
    reader = place.spark.readStream.format("tidings").option("bus", place.broker.address).option("topic", "in")
    fail(reader.schema("colour string").load(), "There is no column 'colour': choose from topic, offset")
    fail(reader.schema("offset string").load(), "The column 'offset' is bigint, not string: read it as that and cast")


def test_a_stream_from_a_broker_that_is_not_there(place: Place, tmp_path: Path) -> None:
    """It was never there, and it was there when the query ran last: failOnDataLoss=false is about neither."""
    place.bus.put_many("in", numbered(0, 10))
    drain(place, "in", "out", tmp_path / "c")
    place.broker.kill()
    try:
        fail(place.stream("in", timeout=0.2), r"No answer from tcp://127.0.0.1:\d+ after 3 tries of 0.2 s")
        with pytest.raises(Exception, match=r"No answer from tcp://127.0.0.1:\d+"):
            drain(place, "in", "out", tmp_path / "c", timeout=0.2, failOnDataLoss="false")
    finally:
        place.broker.start()
    place.bus.put_many("in", numbered(10, 20))
    drain(place, "in", "out", tmp_path / "c")
    assert sorted(place.values("out"), key=int) == numbered(0, 20)


def test_topics_that_are_not_there_are_passed_over_if_that_is_wanted(place: Place, tmp_path: Path) -> None:
    place.bus.put_many("here", numbered(0, 10))
    assert place.read("here, gone", failOnDataLoss="false").count() == 10
    query = copying(place, "here, gone", "out", tmp_path / "c", failOnDataLoss="false")
    try:
        until(lambda: any(info.name == "out" and info.count == 10 for info in place.bus.topics()), query)
        place.bus.put_many("gone", numbered(10, 20))  # It comes back, and is read from its first message.
        until(lambda: place.bus.topic("out").count == 20, query)
    finally:
        query.stop()
    assert sorted(place.values("out"), key=int) == numbered(0, 20)


def test_a_checkpoint_ahead_of_its_topic_is_passed_over_if_that_is_wanted(
    build: Callable[..., Place], tmp_path: Path
) -> None:
    first, second = build(), build()
    first.bus.put_many("in", numbered(0, 50))
    drain(first, "in", "out", tmp_path / "c")
    second.bus.put_many("in", numbered(0, 20))
    drain(second, "in", "other", tmp_path / "c", failOnDataLoss="false")
    second.bus.put_many("in", numbered(20, 30))
    drain(second, "in", "other", tmp_path / "c")
    assert second.values("other") == numbered(20, 30)


def test_a_sink_that_cannot_write_says_so(build: Callable[..., Place], tmp_path: Path) -> None:
    """Wrong columns and too large messages, in batch and in streams; nothing of a batch becomes visible."""
    place = build(message_bytes_max=1_000)
    place.bus.put_many("in", numbered(0, 10))
    too_large = "A message of 2000 bytes is above message_bytes_max .1000."
    for number, (column, sentence) in enumerate(
        ((LARGE, too_large), ("offset as colour", "The column 'colour' cannot be written: select those of value, key"))
    ):
        columns = ("value", column) if "colour" in column else (column,)
        with pytest.raises(Exception, match=sentence):
            place.write(place.read("in").selectExpr(*columns), "out")
        writer = place.stream("in").selectExpr(*columns).writeStream.format("tidings")
        writer = writer.options(bus=place.broker.address, topic="out").trigger(availableNow=True)
        with pytest.raises(Exception, match=sentence):
            writer.option("checkpointLocation", str(tmp_path / f"c{number}")).start().awaitTermination()
    assert [info.name for info in place.bus.topics()] == ["in"]


def test_a_sink_whose_broker_goes_away(place: Place, tmp_path: Path) -> None:
    """In the middle of a stream: the query fails and says why; started again, it has written everything once."""
    place.bus.put_many("in", numbered(0, 2_000))
    query = copying(place, "in", "out", tmp_path / "c", maxMessagesPerTrigger=50, timeout=2)
    try:
        until(lambda: any(info.name == "out" and info.count >= 100 for info in place.bus.topics()), query)
        place.broker.kill()
        with pytest.raises(Exception, match=r"No answer from tcp://127.0.0.1:\d+"):
            query.awaitTermination()
    finally:
        query.stop()
        place.broker.start()
    assert place.bus.topic("out").count < 2_000
    drain(place, "in", "out", tmp_path / "c")
    assert sorted(place.values("out"), key=int) == numbered(0, 2_000)
