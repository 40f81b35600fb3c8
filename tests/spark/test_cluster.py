"""The same lines on a standalone cluster of two workers and through Spark Connect (D1, D3, D6)."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

import tidings
from tests.integration.broker_process import ROOT, BrokerProcess
from tests.spark.commands import run
from tests.spark.conftest import needs_java
from tests.spark.standalone import ConnectServer, StandaloneCluster
from tests.spark.test_stream import numbered
from tidings.pipeline.lake import Lake
from tidings.transport import curve

ROWS = 10_000

pytestmark = needs_java


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    with StandaloneCluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


def tell(master: str, broker: BrokerProcess, folder: Path, environment: dict[str, str]) -> dict[str, Any]:
    """Runs the story in a process of its own, because a process has one session."""
    command = [sys.executable, "-m", "tests.spark.story", master, broker.address, str(folder)]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-5000:]
    seen: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return seen


def check(seen: dict[str, Any], broker: BrokerProcess, keys: Path | None = None) -> None:
    """What the story must have seen wherever it runs, and what it must have left on the bus."""
    assert (seen["rows"], seen["offsets"], seen["tasks"]) == (ROWS, ROWS * (ROWS - 1) // 2, 4)
    assert len(set(seen["queries"])) == 1, "a checkpoint is a query"
    assert "There is no topic 'nowhere'" in seen["error"]
    with tidings.connect(broker.address, "judge" if keys is None else "etl", keys=keys) as bus:
        for topic, mark in (("written", b"!"), ("streamed", b"")):
            found = [value for batch in bus.read(topic) for value in batch.values]
            assert sorted(found, key=lambda value: int(value.rstrip(b"!"))) == [
                value + mark for value in numbered(0, ROWS)
            ]
        assert bus.status()["stages"] == 0


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "data") as broker:
        with tidings.connect(broker.address, "tester") as bus:
            bus.put_many("in", numbered(0, ROWS), keys=[b"k%d" % (number % 7) for number in range(ROWS)])
        yield broker


def test_a_standalone_cluster(cluster: StandaloneCluster, broker: BrokerProcess, tmp_path: Path) -> None:
    """D6: tasks run on both workers, and the sink writes once."""
    seen = tell(cluster.master, broker, tmp_path, cluster.environment())
    check(seen, broker)
    workers = {re.search(r"/(work\d)/", folder).group(1) for folder in seen["folders"]}  # type: ignore[union-attr]
    assert workers == {"work0", "work1"}


def run_commands(master: str, broker: BrokerProcess, lake: Path, environment: dict[str, str] | None = None) -> None:
    """Pipeline, audit and sweep, with `--master`."""
    pipeline, audit, sweep = run(
        [
            ["pipeline", "run", "--bus", broker.address, "--lake", str(lake), "--once", "--json", "--master", master],
            ["audit", "--bus", broker.address, "--lake", str(lake), "--complete", "--json", "--master", master],
            ["simulate", "--sweep", "--seeds", "4", "--json", "--lake", str(lake), "--master", master],
        ],
        environment,
    )
    assert (pipeline[0], audit[0], sweep[0]) == (0, 0, 0), (pipeline, audit, sweep)
    layers = [json.loads(line) for line in pipeline[1].splitlines()]
    assert [(each["layer"], each["rows"]) for each in layers[:2]] == [("bronze", ROWS), ("silver", ROWS)]
    [subject] = json.loads(audit[1])["subjects"]
    assert (subject["topic"], subject["checked"], subject["lost"], subject["doubled"]) == ("in", ROWS, 0, 0)
    assert ds.dataset(lake / "simulations").count_rows() == 4


@pytest.mark.timeout(1_200)
def test_commands_on_a_standalone_cluster(cluster: StandaloneCluster, broker: BrokerProcess, tmp_path: Path) -> None:
    """D2, D4, D5, D6. Shuffles have as many parts as fit the cluster, and not 200."""
    run_commands(cluster.master, broker, tmp_path / "lake", cluster.environment())
    _, conf, *_ = (Lake(tmp_path / "lake").checkpoint("silver") / "offsets" / "0").read_text().splitlines()
    assert json.loads(conf)["conf"]["spark.sql.shuffle.partitions"] == "4"


@pytest.mark.soak
def test_commands_through_spark_connect(broker: BrokerProcess, tmp_path: Path) -> None:
    """D2, D4, D5, D6: the client and the server reach the lake under the same path."""
    with ConnectServer(tmp_path) as server:
        run_commands(server.master, broker, tmp_path / "lake")


def test_spark_connect(broker: BrokerProcess, tmp_path: Path) -> None:
    """D6: a session of a Connect server, in which nothing of the driver runs here."""
    with ConnectServer(tmp_path) as server:
        seen = tell(server.master, broker, tmp_path, dict(os.environ))
    check(seen, broker)


NEEDED = ("pyarrow", "zmq", "pyzmq.libs", "msgspec")
"""What executors need beside tidings, as folders of packages."""


def pack(folder: Path) -> Path:
    """An environment with what executors need and nothing else, as venv-pack would pack it; its archive."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "env")], check=True)
    [packages] = (folder / "env" / "lib").glob("python*/site-packages")
    installed = Path(pa.__file__).parents[1]
    for source in [*(installed / name for name in NEEDED), *(ROOT / "src").iterdir()]:
        if source.is_dir():
            shutil.copytree(source, packages / source.name)
    return Path(shutil.make_archive(str(folder / "env"), "gztar", folder / "env"))


@pytest.mark.soak
def test_a_packed_environment_and_keys(tmp_path: Path) -> None:
    """D6: workers on which nothing is installed get an environment and the keys of one client with the application."""
    keys = tmp_path / "keys"
    curve.create_server_keys(keys)
    curve.create_client_keys(keys, "etl")
    # The driver has the same relative paths in its folder: the environment, and of the keys only what a client needs.
    driver = tmp_path / "driver"
    (driver / "keys").mkdir(parents=True)
    for name in ("etl.key", "server.pub"):
        shutil.copy(keys / name, driver / "keys" / name)
    environment = pack(tmp_path)
    secrets = shutil.make_archive(str(tmp_path / "keys"), "gztar", driver / "keys")
    (driver / "env").symlink_to(tmp_path / "env")
    shutil.copy(ROOT / "tests" / "spark" / "story.py", driver / "story.py")
    settings = {"spark.archives": f"{environment}#env,{secrets}#keys"}
    with (
        StandaloneCluster(tmp_path / "cluster", settings=settings) as cluster,
        BrokerProcess(tmp_path / "data", "--keys", str(keys)) as broker,
    ):
        with tidings.connect(broker.address, "etl", keys=keys) as bus:
            bus.put_many("in", numbered(0, ROWS))
        variables = cluster.environment() | {"PYSPARK_PYTHON": "./env/bin/python"}
        del variables["PYTHONPATH"]  # Neither tests nor sources: the executors have what was packed.
        command = [sys.executable, "story.py", cluster.master, broker.address, str(tmp_path), "keys", "etl"]
        done = subprocess.run(command, env=variables, cwd=driver, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-5000:]
        seen = json.loads(done.stdout.splitlines()[-1])
        assert all(re.fullmatch(r".*/work\d/app-[-\d]+/\d+/env", folder) for folder in seen["pythons"])
        check(seen, broker, keys=keys)
