"""The sink writes each micro-batch once, whatever is repeated (D3)."""

from __future__ import annotations

import contextlib
import random
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.spark.conftest import Place
from tests.spark.test_stream import drain, numbered


def test_the_properties_that_spark_does_not_document(spark: Any, tmp_path: Path) -> None:
    """The sink relies on them; this says when Spark has changed them."""
    from pyspark import TaskContext

    from tidings.spark.writer import BATCH_ID, QUERY_ID

    def properties(_: Any) -> Any:
        context = TaskContext.get()
        assert context is not None
        yield context.getLocalProperty(QUERY_ID), context.getLocalProperty(BATCH_ID)

    found: list[tuple[str, str]] = []
    frame = spark.readStream.format("rate").option("rowsPerSecond", 10).load()

    def look(batch: Any, _: int) -> None:
        context = batch.sparkSession.sparkContext
        found.append(context.parallelize([0], 1).mapPartitions(properties).first())

    query = frame.writeStream.foreachBatch(look).option("checkpointLocation", str(tmp_path)).start()
    try:
        deadline = time.monotonic() + 60
        while len(found) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert found[:2] == [(query.id, "0"), (query.id, "1")]
    finally:
        query.stop()


def test_one_batch_goes_to_two_topics_and_to_each_of_them_once(place: Place) -> None:
    """D3: a function of `foreachBatch` writes the same number of the same query to several topics, and is repeated."""
    frame = place.spark.createDataFrame([("x",), ("y",)], "value string").coalesce(1)
    for _ in range(2):
        for topic in ("a", "b"):
            place.write(frame, topic, query="both", batch=0)
    assert [place.values(topic) for topic in ("a", "b")] == [[b"x", b"y"]] * 2


def test_what_would_be_taken_for_a_repetition_and_goes_elsewhere_is_refused(place: Place) -> None:
    """D3: rows that name their topics; nothing is left out without a word."""
    frame = place.spark.createDataFrame([("a", "x")], "topic string, value string")
    other = place.spark.createDataFrame([("b", "x")], "topic string, value string")
    place.write(frame, query="both", batch=0)
    place.write(frame, query="both", batch=0)
    with pytest.raises(Exception, match="not to 'b'"):
        place.write(other, query="both", batch=0)
    assert place.values("a") == [b"x"]


def test_a_batch_that_spark_repeats_is_not_written_again(place: Place, tmp_path: Path) -> None:
    """The driver died after the commit and before it noted it: the whole micro-batch is done again."""
    place.bus.put_many("in", numbered(0, 100))
    drain(place, "in", "out", tmp_path / "c")
    place.bus.put_many("in", numbered(100, 150))
    drain(place, "in", "out", tmp_path / "c")
    before = place.values("out")
    for commit in (tmp_path / "c" / "commits").glob("*1*"):
        commit.unlink()
    place.bus.put_many("in", numbered(150, 160))
    drain(place, "in", "out", tmp_path / "c")
    after = place.values("out")
    assert after[: len(before)] == before
    assert sorted(after, key=int) == numbered(0, 160)


class CuttingProxy:
    """Passes bytes between Spark and the broker, and cuts the line after so many from the broker: replies are lost."""

    def __init__(self, address: str, seed: int) -> None:
        host, port = address.removeprefix("tcp://").rsplit(":", 1)
        self._target = (host, int(port))
        self._random = random.Random(seed)
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp://127.0.0.1:{self._server.getsockname()[1]}"
        self.cuts = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._server.accept()
            except OSError:
                return  # Closed.
            try:
                far = socket.create_connection(self._target)
            except OSError:
                near.close()
                continue
            threading.Thread(target=self._pass, args=(near, far, None), daemon=True).start()
            # The greeting takes some 100 bytes and each answer 10 to 30, so every line gets a few of them through.
            allowed = self._random.randint(150, 400)
            threading.Thread(target=self._pass, args=(far, near, allowed), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket, allowed: int | None) -> None:
        with source, sink, contextlib.suppress(OSError):  # The other direction may have cut the line.
            while data := source.recv(65_536):
                if allowed is not None:
                    allowed -= len(data)
                    if allowed < 0:
                        self.cuts += 1
                        break
                sink.sendall(data)
            for each in (source, sink):
                each.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._server.shutdown(socket.SHUT_RDWR)  # Ends the wait for the next connection too.
        self._server.close()


def test_lost_replies(place: Place, tmp_path: Path) -> None:
    """Stages and publishes whose answers never came are sent again, and store nothing twice."""
    place.bus.put_many("in", numbered(0, 300))
    proxy = CuttingProxy(place.broker.address, seed=5)
    try:
        frame = place.stream("in", maxMessagesPerTrigger=60).select("value")
        writer = frame.writeStream.format("tidings").option("bus", proxy.address).option("topic", "out")
        query = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
        query.awaitTermination()
    finally:
        proxy.close()
    assert proxy.cuts > 0
    assert sorted(place.values("out"), key=int) == numbered(0, 300)
