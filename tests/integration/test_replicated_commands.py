"""The command `tidings cluster` on real members, and a group whose connections are encrypted (P6)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import tidings
from tests.integration.broker_process import BrokerProcess
from tests.integration.replica_group import Node, ReplicaGroup, free_address, wait_for
from tidings.transport.curve import create_client_keys, create_server_keys


def group(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tidings", "cluster", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def status_of_a_whole_group(*arguments: str) -> str:
    """What is shown once it has a leader and everybody answers: on a busy machine a young leader may be given up."""
    said: list[subprocess.CompletedProcess[str]] = []

    def look() -> bool:
        said.append(group("status", *arguments))
        return said[-1].returncode == 0

    wait_for("a group that is whole", look, lambda: said[-1].stdout + said[-1].stderr)
    return said[-1].stdout


def test_a_group_is_looked_at_and_changed(tmp_path: Path) -> None:
    with ReplicaGroup(tmp_path) as members:
        bus = ("--bus", members.address)
        rows = json.loads(status_of_a_whole_group(*bus, "--json"))["members"]
        assert [row["role"] for row in rows] == ["voter"] * 3
        assert sum(row["leads"] for row in rows) == 1

        stranger = group("add", free_address(), *bus)
        assert (stranger.returncode, "asks to join: start it with" in stranger.stderr) == (1, True)
        unknown = group("remove", "9", *bus)
        assert (unknown.returncode, "has no member 9" in unknown.stderr) == (1, True)

        node = Node(tmp_path / "new", free_address(), "--into", members.address)
        node.launch()
        try:
            wait_for("the new node to be taken in", lambda: group("add", node.public, *bus).returncode == 0)
            removed = group("remove", "1", *bus)
            assert (removed.returncode, "may be switched off now" in removed.stdout) == (0, True)
            after = json.loads(group("status", *bus, "--json").stdout)["members"]
            assert [row["number"] for row in after] == [2, 3, 4]
        finally:
            node.kill()


def test_a_member_that_is_away_makes_the_status_fail(tmp_path: Path) -> None:
    with ReplicaGroup(tmp_path) as members:
        members.nodes[0].kill()
        shown = group("status", "--bus", members.address)
        assert (shown.returncode, "no answer" in shown.stdout) == (1, True)


def test_a_broker_that_stands_alone_is_its_only_member(tmp_path: Path) -> None:
    alone = Node(tmp_path / "alone", free_address())
    alone.launch()
    try:
        alone.wait_until_ready()
        status = group("status", "--bus", alone.public)
        assert (status.returncode, status.stdout.splitlines()[0]) == (0, "a broker alone")
        refused = group("remove", "1", "--bus", alone.public)
        assert (refused.returncode, "a single broker without members" in refused.stderr) == (1, True)
        itself = group("add", alone.public.removeprefix("tcp://"), "--bus", alone.public)
        assert (itself.returncode, f"{alone.public} is the broker that you ask" in itself.stderr) == (1, True)
    finally:
        alone.kill()


def test_whom_a_change_is_about_and_who_is_asked_have_to_be_right() -> None:
    for member, sentence in (
        ("nowhere", "'tcp://nowhere' cannot be reached by other nodes"),
        ("", "'tcp://' cannot be reached by other nodes"),
        ("3", "A node that is to be added has no number yet"),
    ):
        said = group("add", member, "--bus", free_address())
        assert (said.returncode, sentence in said.stderr) == (1, True), said.stderr
    nobody = free_address()
    said = group("remove", "3", "--bus", nobody, "--timeout", "0.5")
    assert (said.returncode, said.stderr) == (1, f"No member answers at {nobody}: are they running there?\n")


def test_a_node_that_asks_to_be_taken_in_says_how_it_is(tmp_path: Path) -> None:
    with ReplicaGroup(tmp_path, size=1) as members:
        node = Node(tmp_path / "new", free_address(), "--into", members.address)
        node.launch()
        try:
            assert f"`tidings cluster add {node.public} --bus {members.address}`" in wait_for("its word", node.hear)
        finally:
            node.kill()


def test_a_group_with_keys(tmp_path: Path) -> None:
    """Members share the broker's pair and speak under the name `replica`; who has no key gets no answer."""
    keys = tmp_path / "keys"
    create_server_keys(keys)
    for name in ("replica", "alice"):
        create_client_keys(keys, name)
    addresses = [free_address() for _ in range(3)]
    arguments = ("--group", ",".join(addresses), "--keys", str(keys))
    nodes = [Node(tmp_path / f"node{number}", each, *arguments) for number, each in enumerate(addresses)]
    try:
        for node in nodes:
            node.launch()
        with tidings.connect(",".join(addresses), "alice", keys=keys, retries=20) as bus:
            bus.subscribe("news")
            bus.put("news", "hello")
            assert bus.get("news", timeout=10).text == "hello"
        status_of_a_whole_group("--bus", addresses[0], "--keys", str(keys), "--as", "alice")
    finally:
        for node in nodes:
            node.kill()


def test_a_folder_that_belongs_to_another_address_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    """P7: a member that says "serves" is the one that the others know."""
    address, data = free_address(), tmp_path / "data"
    broker = BrokerProcess(data, "--group", address)
    broker._bind = address
    with broker:
        assert broker.stop() == 0
    before = {path.name: path.read_bytes() for path in data.iterdir()}
    command = [sys.executable, "-m", "tidings", "serve", "--data", str(data), "--bind", free_address()]
    refused = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (refused.returncode, f"belongs to the member at {address}" in refused.stderr) == (1, True), refused.stderr
    assert {path.name: path.read_bytes() for path in data.iterdir()} == before


def serve(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tidings", "serve", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_a_member_goes_on_by_its_folder_alone_and_join_still_means_a_group(tmp_path: Path) -> None:
    address = free_address()
    founder = Node(tmp_path / "a", address, "--group", address)
    node = Node(tmp_path / "b", free_address(), "--join", address)
    try:
        founder.start()
        node.launch()
        wait_for("the new node", lambda: group("add", node.public, "--bus", address).returncode == 0)
        node.wait_until_ready()
        assert f"write `--into {address}` for a group" in node.log[0]
        for each in (founder, node):
            assert each.stop() == 0
            each._command = ("serve", "--data", str(each.data))
            each.launch()
        wait_for("a leader", lambda: group("status", "--bus", address).returncode == 0)
        refused = serve("--data", str(node.data), "--ring")
        assert (refused.returncode, "is in use by another broker" in refused.stderr) == (1, True)
    finally:
        founder.kill()
        node.kill()


def test_a_node_that_has_met_nobody_yet_founds_no_group_of_its_own(tmp_path: Path) -> None:
    address = free_address()
    lonely = Node(tmp_path / "a", address, "--group", f"{address},{free_address()},{free_address()}")
    lonely.launch()
    try:
        wait_for("its folder", lambda: (lonely.data / "disk").exists())
    finally:
        lonely.kill()
    refused = serve("--data", str(lonely.data), "--bind", address)
    assert (refused.returncode, "has not met its group yet" in refused.stderr) == (1, True), refused.stderr
