"""One Spark session for all tests of a process, and brokers for it to talk to."""

from __future__ import annotations

import os
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import tidings
from tests.integration.broker_process import ROOT, BrokerProcess
from tidings.spark.session import CHECKPOINTS

JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""What a test runs is over in a second: the time goes into starting up, and into what Java makes faster in vain."""
DRIVER = "SPARK_SUBMIT_OPTS"
JAVA_VARIABLES = (DRIVER, "SPARK_DAEMON_JAVA_OPTS", "SPARK_LAUNCHER_OPTS")
"""Where Spark's scripts look for options: for a driver, a master or worker, and the program that starts these."""
ARCHIVE = Path(sys.prefix) / "spark.jsa"
"""Classes as Java has loaded them once (`class_archive.py`); it says nothing of one that is not its own."""

CONFIG = {
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.streaming.stopTimeout": "60s",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.extraJavaOptions": f"-Xss16m {JAVA_OPTIONS}",
    # As the sessions of our commands have it.
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.streaming.checkpointFileManagerClass": CHECKPOINTS,
}


SECONDS_MAX = 1_200
"""For any test of Spark: on a busy machine a session alone may take a minute to start."""


def java_is_there() -> bool:
    """Whether Spark can be started at all."""
    home = os.environ.get("JAVA_HOME")
    return shutil.which("java") is not None or (home is not None and (Path(home) / "bin" / "java").exists())


needs_java = pytest.mark.skipif(
    not java_is_there(), reason="Spark needs Java 17 or newer, and there is none: `make setup` says how to get it"
)


def pytest_configure(config: pytest.Config) -> None:
    """For all programs that tests start; a soak has time to make them faster."""
    if config.getoption("markexpr") != "soak":
        for name in JAVA_VARIABLES:
            archived = f' "-XX:SharedArchiveFile={ARCHIVE}" -Xlog:disable'
            os.environ.setdefault(name, JAVA_OPTIONS + (archived if name == DRIVER and ARCHIVE.exists() else ""))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(needs_java)
        bounded = any(item.get_closest_marker(name) for name in ("timeout", "soak"))  # A soak takes its time.
        if item.path.is_relative_to(Path(__file__).parent) and not bounded:
            item.add_marker(pytest.mark.timeout(SECONDS_MAX))


def make_session(master: str = "local[2]", **config: str) -> Any:
    """A session as the tests want it; there is one in a process at a time."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYTHONPATH"] = os.pathsep.join((str(ROOT / "src"), str(ROOT)))
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(master).appName("tidings tests")
    for name, value in (CONFIG | config).items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    return session


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("spark")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Those of Spark's own modules.
        session = make_session(**{"spark.sql.warehouse.dir": str(folder)})
    yield session
    session.stop()


class Place:
    """A broker, a bus to it, and the source that reads and writes there."""

    def __init__(self, spark: Any, broker: BrokerProcess) -> None:
        self.spark = spark
        self.broker = broker
        self.bus = tidings.connect(broker.address, "tester", retries=10)

    def read(self, topic: str, **options: object) -> Any:
        reader = self.spark.read.format("tidings").option("bus", self.broker.address).option("topic", topic)
        return reader.options(**options).load()

    def stream(self, topic: str, **options: object) -> Any:
        reader = self.spark.readStream.format("tidings").option("bus", self.broker.address).option("topic", topic)
        return reader.options(**{"startingOffsets": "earliest"} | options).load()

    def write(self, frame: Any, topic: str | None = None, **options: object) -> None:
        writer = frame.write.format("tidings").option("bus", self.broker.address).mode("append")
        writer = writer if topic is None else writer.option("topic", topic)
        writer.options(**options).save()

    def values(self, topic: str) -> list[bytes]:
        return [value for batch in self.bus.read(topic) for value in batch.values]

    def close(self) -> None:
        self.bus.close()
        self.broker.kill()


@pytest.fixture
def build(spark: Any, tmp_path: Path) -> Iterator[Callable[..., Place]]:
    """Makes places, with settings of the broker."""
    places: list[Place] = []

    def make(**settings: object) -> Place:
        environment = {f"TIDINGS_{name.upper()}": str(value) for name, value in settings.items()}
        broker = BrokerProcess(tmp_path / f"data{len(places)}", settings=environment).start()
        places.append(Place(spark, broker))
        return places[-1]

    yield make
    for place in places:
        place.close()


@pytest.fixture
def place(build: Callable[..., Place]) -> Place:
    return build()
