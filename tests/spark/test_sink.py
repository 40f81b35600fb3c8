"""The sink writes each micro-batch once, whatever is repeated (D3)."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import tidings
from tests.integration.broker_process import ROOT, BrokerProcess
from tests.spark.conftest import Place, needs_java
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


DRIVER = """
import sys
from tests.spark.conftest import make_session
address, folder, master = sys.argv[1:4]
spark = make_session(master)
frame = spark.readStream.format("tidings").option("bus", address).option("topic", "in")
frame = frame.option("startingOffsets", "earliest").option("maxMessagesPerTrigger", 400).option("tasks", 3).load()
frame = frame.repartition(2).select("value")  # A shuffle may order a repeated batch otherwise.
query = frame.writeStream.format("tidings").option("bus", address).option("topic", "out")
query.option("checkpointLocation", folder).start().awaitTermination()
"""


class DriverProcess:
    """A driver with all of its children, to be killed without warning."""

    def __init__(self, address: str, folder: Path, master: str = "local[2]") -> None:
        environment = os.environ | {"PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT)))}
        self.log = folder.parent / "driver.log"
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", DRIVER, address, str(folder), master],
                env=environment,
                start_new_session=True,
                stdout=log,
                stderr=log,
            )

    def check(self) -> None:
        assert self._process.poll() is None, self.log.read_text(errors="replace")[-3000:]

    def kill(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def kill_drivers(tmp_path: Path, kills: int, rows: int, master: str = "local[2]") -> None:
    """Kills the driver again and again in the middle of its work; in the end every row is there once."""
    chance = random.Random(kills)
    broker = BrokerProcess(tmp_path / "data").start()
    try:
        with tidings.connect(broker.address, "tester", retries=20) as bus:
            bus.put_many("in", numbered(0, rows))

            def count() -> int:
                return next((info.count for info in bus.topics() if info.name == "out"), 0)

            for number in range(kills + 1):
                driver = DriverProcess(broker.address, tmp_path / "checkpoint", master)
                try:
                    goal = rows if number == kills else min(rows, count() + chance.randint(400, rows // kills))
                    deadline = time.monotonic() + 240
                    while count() < goal:
                        driver.check()
                        assert time.monotonic() < deadline, driver.log.read_text(errors="replace")[-3000:]
                        time.sleep(chance.random() / 20)
                finally:
                    driver.kill()
                if number == 0:
                    broker.kill()
                    broker.start()
            found = [value for batch in bus.read("out") for value in batch.values]
            assert sorted(found, key=int) == numbered(0, rows)
    finally:
        broker.kill()


@needs_java
def test_the_driver_is_killed(tmp_path: Path) -> None:
    kill_drivers(tmp_path, kills=2, rows=4_000)


@needs_java
@pytest.mark.soak
def test_the_driver_is_killed_many_times(tmp_path: Path) -> None:
    kill_drivers(tmp_path, kills=10, rows=200_000)


def executors(driver_pid: int) -> list[int]:
    """The executors' processes below a driver."""
    found = subprocess.run(
        ["pgrep", "-s", str(driver_pid), "-f", "CoarseGrainedExecutorBackend"], capture_output=True, text=True
    ).stdout.split()
    return [int(pid) for pid in found]


@needs_java
@pytest.mark.soak
@pytest.mark.skipif(shutil.which("pgrep") is None, reason="pgrep finds the executors")
def test_an_executor_is_killed(tmp_path: Path) -> None:
    """On a cluster of two workers: tasks are repeated elsewhere, and what the dead had staged is not published."""
    rows = 60_000
    broker = BrokerProcess(tmp_path / "data").start()
    try:
        with tidings.connect(broker.address, "tester", retries=20) as bus:
            bus.put_many("in", numbered(0, rows))
            driver = DriverProcess(broker.address, tmp_path / "checkpoint", "local-cluster[2,1,1024]")
            try:
                killed = 0
                deadline = time.monotonic() + 400
                while (done := next((info.count for info in bus.topics() if info.name == "out"), 0)) < rows:
                    driver.check()
                    assert time.monotonic() < deadline, driver.log.read_text(errors="replace")[-3000:]
                    if killed < 3 and done > (killed + 1) * rows // 5 and (found := executors(driver._process.pid)):
                        os.kill(found[0], signal.SIGKILL)
                        killed += 1
                    time.sleep(0.05)
            finally:
                driver.kill()
            assert killed == 3
            found_rows = [value for batch in bus.read("out") for value in batch.values]
            assert sorted(found_rows, key=int) == numbered(0, rows)
    finally:
        broker.kill()
