"""Drivers, executors, Python workers and brokers are killed while messages flow; each arrives once (D3)."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.spark.conftest import needs_java
from tests.spark.kills import Flow
from tests.spark.standalone import StandaloneCluster


def busy_cluster(folder: Path) -> StandaloneCluster:
    """Room for the executors of both roads on each worker."""
    return StandaloneCluster(folder / "cluster", cores=2, memory="1280m", settings={"spark.cores.max": "2"})


pytestmark = [needs_java, pytest.mark.skipif(shutil.which("ps") is None, reason="ps finds the executors")]


@pytest.mark.timeout(2_400)
def test_three_kills_in_local_mode(tmp_path: Path) -> None:
    with Flow(tmp_path, 60_000, seed=0) as flow:
        flow.run(rounds=3)
        assert {each.split()[1] for each in flow.killed} == {"driver", "broker", "Python"}
        flow.audit()


@pytest.mark.soak
def test_twenty_kills_on_a_cluster(tmp_path: Path) -> None:
    """Two million messages in each round."""
    with busy_cluster(tmp_path) as cluster, Flow(tmp_path, 2_000_000, seed=1, cluster=cluster) as flow:
        flow.run(rounds=20)
        flow.audit()
