"""A master that is not there is said to be so at once (D6)."""

from __future__ import annotations

import socket

import pytest

from tidings.errors import InvalidRequest, Unavailable
from tidings.spark.reach import check_reachable, endpoints
from tidings.spark.session import check_master, open_session


@pytest.fixture
def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def test_one_address_that_answers_is_enough(closed_port: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        check_reachable(f"spark://127.0.0.1:{closed_port},127.0.0.1:{port}")
        check_reachable(f"sc://127.0.0.1:{port}/;user_id=me")
    check_reachable("local[2]")


@pytest.mark.parametrize("kind", ["spark", "sc"])
def test_nobody_answers(kind: str, closed_port: int) -> None:
    pytest.importorskip("pyspark")
    with pytest.raises(Unavailable, match=f"Nobody answers at {kind}://127.0.0.1:{closed_port}: start that Spark"):
        open_session("test", f"{kind}://127.0.0.1:{closed_port}")


def test_addresses() -> None:
    assert endpoints("sc://[::1]:1234") == [("::1", 1234)]
    assert endpoints("sc://spark.example.org") == [("spark.example.org", 15002)]
    assert endpoints("yarn") == endpoints("k8s://https://host:6443") == []
    for wrong in ("spark://host", "spark://host:port", "sc://:7", "spark://one:1,two"):
        with pytest.raises(InvalidRequest, match="has no address"):
            endpoints(wrong)


def test_masters_that_spark_does_not_know() -> None:
    for wrong in ("", "locals", "http://host", "spark:host", "local[2", "mesos://host:1"):
        with pytest.raises(InvalidRequest, match="is not a Spark master"):
            check_master(wrong)
