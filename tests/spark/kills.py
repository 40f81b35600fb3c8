"""Messages flow from a topic through Spark, and in each round something that carries them is killed without warning.

A round publishes so many messages more, lets some of them arrive, kills a driver, an executor, a Python worker or the
broker, starts again what does not come back by itself, and waits until all have arrived. Then it looks at what the
round has brought: each number once, whatever was repeated.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import DeltaTable

import tidings
from tests.integration.broker_process import ROOT, BrokerProcess
from tests.spark import commands
from tests.spark.standalone import PYTHON_WORKER, StandaloneCluster, kill_session, session_of

ROUND_S_MAX = 1_200.0
BATCHES_A_ROUND = 10
PUT_MESSAGES = 20_000
POLL_S = 0.1
TOO_SLOW = "Python worker failed to connect back"
"""Spark gives a Python process ten seconds to start. A machine may be too busy for that; anyone who looks after the
driver starts it again, as after any crash."""
MOMENT_S = 0.3
"""A kill comes at a random moment within so many seconds of a random place."""


def number(value: int) -> bytes:
    """A message: its place in the topic `in`, so that each can be told from all others."""
    return b"%012d" % value


class Road:
    """A driver in a process of its own, with everything that it starts, that carries the topic `in` to some place."""

    name: str

    def __init__(self, command: Sequence[str], environment: dict[str, str], log: Path) -> None:
        self._command = [sys.executable, *command]
        self._environment = environment
        self.log = log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as log:
            self._begun = log.tell()
            self._process = subprocess.Popen(
                self._command, env=self._environment, cwd=ROOT, start_new_session=True, stdout=log, stderr=log
            )

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def check(self) -> None:
        """Fails with what the driver has said when it has ended; only one reason is none of ours."""
        assert self._process is not None
        if self._process.poll() is not None:
            assert TOO_SLOW in self._last_words(), f"{self.name}: {self.tail()}"
            self.kill()
            self.start()

    def _last_words(self) -> str:
        """What the driver has said since it was started."""
        return self.log.read_bytes()[self._begun :].decode(errors="replace")

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-5000:]

    def kill(self) -> None:
        """SIGKILL for the driver, its JVM and the Python workers of local mode."""
        if self._process is not None:
            kill_session(self._process)
            self._process = None

    def arrived(self) -> int:
        """How many messages have arrived."""
        raise NotImplementedError

    def numbers(self, start: int, end: int) -> pa.Array:
        """The messages at those places where the road ends, in any order."""
        raise NotImplementedError


class TopicRoad(Road):
    """From the topic `in` to the topic `out`."""

    name = "topic to topic"

    def __init__(self, bus: tidings.Bus, address: str, flow: Flow) -> None:
        folder = flow.folder / "copying"
        folder.mkdir()
        limit = flow.messages // BATCHES_A_ROUND
        command = ["-m", "tests.spark.copying", flow.master, address, str(folder), str(limit)]
        super().__init__(command, flow.environment, folder / "driver.log")
        self._bus = bus

    def arrived(self) -> int:
        return next((info.count for info in self._bus.topics() if info.name == "out"), 0)

    def numbers(self, start: int, end: int) -> pa.Array:
        values = [value for batch in self._bus.read("out", start, end) for value in batch.values]
        return pa.array(values, pa.binary()).cast(pa.string()).cast(pa.int64())


class LakeRoad(Road):
    """From the topic `in` to the table bronze of a lake, and from there to silver and gold."""

    name = "topic to lake"

    def __init__(self, bus: tidings.Bus, address: str, flow: Flow) -> None:
        limit = flow.messages // BATCHES_A_ROUND
        command = ["-m", "tidings", "pipeline", "run", "--bus", address, "--lake", str(flow.lake), "--topic", "in"]
        command += ["--master", flow.master, "--every", "500ms", "--batch-rows", str(limit), "--language", "none"]
        super().__init__(command, flow.environment, flow.folder / "pipeline.log")
        self._table = flow.lake / "bronze"

    def _bronze(self) -> DeltaTable | None:
        return DeltaTable(self._table) if DeltaTable.is_deltatable(str(self._table)) else None

    def arrived(self) -> int:
        table = self._bronze()
        return 0 if table is None else table.count()

    def numbers(self, start: int, end: int) -> pa.Array:
        table = self._bronze()
        assert table is not None
        place = ds.field("offset")
        rows = ds.dataset(table.file_uris()).to_table(["offset", "value"], (place >= start) & (place < end))
        found = rows.column("value").cast(pa.string()).cast(pa.int64()).combine_chunks()
        assert found == rows.column("offset").combine_chunks(), "a message has the offset of another"
        return found


class Flow:
    """A broker, the roads that lead from it, and anyone who kills. `cluster=None` is local mode."""

    def __init__(
        self,
        folder: Path,
        messages: int,
        seed: int,
        cluster: StandaloneCluster | None = None,
        roads: Sequence[Callable[[tidings.Bus, str, Flow], Road]] = (TopicRoad, LakeRoad),
    ) -> None:
        self.folder = folder
        self.lake = folder / "lake"
        self.messages = messages
        self.master = "local[2,4]" if cluster is None else cluster.master
        paths = {"PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT)))}
        self.environment = os.environ | paths if cluster is None else cluster.environment()
        self._cluster = cluster
        self._rng = random.Random(seed)
        self._broker = BrokerProcess(folder / "data").start()
        self._bus = tidings.connect(self._broker.address, "judge", retries=40)
        self.roads = [make(self._bus, self._broker.address, self) for make in roads]
        self.killed: list[str] = []
        self._done = 0

    @property
    def address(self) -> str:
        return self._broker.address

    def run(self, rounds: int) -> None:
        """Every victim has its turn before one has a second one, in an order that the seed decides."""
        victims: list[str] = []
        for road in self.roads:
            road.start()
        for _ in range(rounds):
            if not victims:
                victims = ["driver", "broker", "Python worker", *(["executor"] if self._cluster else [])]
                self._rng.shuffle(victims)
            self._round(victims.pop())
        for road in self.roads:
            road.check()
            road.kill()
            assert road.arrived() == self._done, f"{road.name}: more has come than was sent"

    def audit(self) -> None:
        """`tidings audit` says that both hold every message once, and nothing else."""
        bus = ["audit", "--bus", self.address, "--topic", "in", "--complete", "--json", "--master", self.master]
        for code, output, errors in commands.run(
            [[*bus, "--lake", str(self.lake)], [*bus, "--copy", "out"]], self.environment
        ):
            assert code == 0, f"{output} {errors}, after killing {self.killed}"
            [subject] = json.loads(output)["subjects"]
            assert (subject["checked"], subject["lost"], subject["doubled"]) == (self._done, 0, 0)

    def _round(self, victim: str) -> None:
        start, end = self._done, self._done + self.messages
        road = self._rng.choice(self.roads)
        with publishing(self.address, start, end):
            self._wait(road, start + round(self.messages * self._rng.uniform(0.1, 0.5)))
            time.sleep(self._rng.uniform(0, MOMENT_S))
            assert road.arrived() < end, "everything had arrived before the kill: send more"
            self.killed.append(self._kill(victim, road))
        for each in self.roads:
            self._wait(each, end)
            found = each.numbers(start, end)
            assert found.sort() == pa.array(range(start, end)), f"{each.name}, after killing {self.killed}"
        self._done = end

    def _kill(self, victim: str, road: Road) -> str:
        if victim == "driver":
            road.kill()
            road.start()
            return f"the driver of {road.name}"
        if victim == "broker":
            self._broker.kill()
            self._broker.start()
            return "the broker"
        deadline = time.monotonic() + ROUND_S_MAX
        while not (found := self._workers(victim, road)):
            assert time.monotonic() < deadline, f"there is no {victim} to kill"
            time.sleep(0.05)
        os.kill(self._rng.choice(found), signal.SIGKILL)
        return f"a {victim}"

    def _workers(self, victim: str, road: Road) -> list[int]:
        if self._cluster is not None:
            return self._cluster.executors() if victim == "executor" else self._cluster.python_workers()
        return sorted(pid for pid, arguments in session_of(road.pid).items() if PYTHON_WORKER in arguments)

    def _wait(self, road: Road, count: int) -> None:
        deadline = time.monotonic() + ROUND_S_MAX
        while road.arrived() < count:
            for each in self.roads:
                each.check()
            assert time.monotonic() < deadline, f"{road.name}, {road.arrived()} of {count}: {road.tail()}"
            time.sleep(POLL_S)

    def close(self) -> None:
        for road in self.roads:
            road.kill()
        self._bus.close()
        self._broker.kill()

    def __enter__(self) -> Flow:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


@contextlib.contextmanager
def publishing(address: str, start: int, end: int) -> Iterator[None]:
    """Messages are put while the block runs; all of them have been taken at its end, or it fails."""
    failed: list[BaseException] = []

    def put() -> None:
        try:
            with tidings.connect(address, "publisher", retries=40) as bus:
                for at in range(start, end, PUT_MESSAGES):
                    bus.put_many("in", [number(each) for each in range(at, min(at + PUT_MESSAGES, end))])
        except BaseException as error:  # noqa: BLE001 - it is raised where the block ends
            failed.append(error)

    thread = threading.Thread(target=put)
    thread.start()
    try:
        yield
    finally:
        thread.join()
    if failed:
        raise failed[0]
