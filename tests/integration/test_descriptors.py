"""No number of connections keeps a broker from its journal, or others from the broker for ever."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

import tidings
from tests.integration.broker_process import (
    BrokerProcess,
    NodeProcess,
    ServerProcess,
    StorageProcess,
    StoredBrokerProcess,
)
from tidings.admin.ports import free_address
from tidings.descriptors import RESERVED
from tidings.transport import curve

LIMIT = 4 * RESERVED
SMALL = {"TIDINGS_SEGMENT_BYTES_MAX": "4096"}
PATIENT = {"timeout": 5.0, "retries": 12}

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="the system does not say what is open")


def is_full(server: ServerProcess) -> bool:
    """Whether it has as many descriptors open as the system lets it have by now."""
    (limits,) = [
        line.split()
        for line in Path(f"/proc/{server.pid}/limits").read_text().splitlines()
        if line.startswith("Max open files")
    ]
    return len(list(Path(f"/proc/{server.pid}/fd").iterdir())) >= int(limits[3])


def flood(server: ServerProcess) -> list[socket.socket]:
    """Connections that say nothing, until the server takes no more of them."""
    host, _, port = server.address.removeprefix("tcp://").rpartition(":")
    silent = []
    while not is_full(server):
        connection = socket.socket()
        connection.settimeout(0.1)
        silent.append(connection)
        try:
            connection.connect((host, int(port)))
        except TimeoutError:  # Those that are not taken yet fill the system's queue.
            continue
    return silent


@pytest.mark.parametrize("kind", ["alone", "member", "ring node"])
def test_silent_connections_do_not_end_a_broker(tmp_path: Path, kind: str) -> None:
    """The journal goes on from file to file, and the silent ones are cut off in the end."""
    keys = tmp_path / "keys"
    curve.create_server_keys(keys)
    for name in ("alice", "bob", "replica"):
        curve.create_client_keys(keys, name)
    address = free_address()
    group = () if kind == "alone" else ("--group", address)
    process = NodeProcess if kind == "ring node" else BrokerProcess
    broker = process(tmp_path / "data", "--keys", str(keys), *group, settings=SMALL)
    broker._bind = address
    broker.descriptors_max = LIMIT
    with broker, tidings.connect(broker.address, "alice", keys=keys, **PATIENT) as alice:
        alice.put("news", "first")
        silent = flood(broker)
        for number in range(200):
            alice.put("news", b"%d" % number * 100)
        assert alice.topic("news").count == 201
        with tidings.connect(broker.address, "bob", keys=keys, **PATIENT) as bob:
            assert bob.put("news", "after the flood").offset == 201
        for connection in silent:
            connection.close()
        assert broker.stop() == 0


def test_silent_connections_do_not_end_a_storage_server(tmp_path: Path) -> None:
    storage = StorageProcess(tmp_path / "stored")
    storage.descriptors_max = LIMIT
    with storage, StoredBrokerProcess(storage.address, settings=SMALL) as broker:
        with tidings.connect(broker.address, "alice", **PATIENT) as alice:
            alice.put("news", "first")
            silent = flood(storage)
            for number in range(200):
                alice.put("news", b"%d" % number * 100)
            assert alice.topic("news").count == 201
        for connection in silent:
            connection.close()
        assert broker.stop() == 0
        assert storage.stop() == 0
