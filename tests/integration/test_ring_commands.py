"""Rings through the command line: `tidings ring`, `tidings trace`, and the nodes one by one with `tidings serve`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tidings
from tests.integration.broker_process import ROOT, BrokerProcess
from tests.integration.replica_group import wait_for
from tidings.admin import trial_record
from tidings.admin.ports import free_address
from tidings.admin.trial import Trial
from tidings.journal.folder import RING, role_of
from tidings.transport.curve import create_client_keys, create_server_keys

SECONDS_MAX = 120
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT / "src")}


def command(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tidings", *words],
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        env=ENVIRONMENT,
        check=False,
    )


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Where a ring may be started; whatever runs there in the end is ended."""
    found = tmp_path / "ring"
    yield found
    Trial(found).kill_all()


def ring(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return command("ring", *words, "--dir", str(folder))


def fields(done: subprocess.CompletedProcess[str], code: int = 0) -> Any:
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout)


def test_a_ring_is_started_looked_at_changed_and_stopped(folder: Path) -> None:
    """P7 to P9, P12: the whole life of a ring, by its commands."""
    up = fields(ring(folder, "up", "--groups", "2", "--replicas", "1", "--detach", "--json"))
    assert (len(up["groups"]), up["whole"]) == (2, True)
    assert sum(group["share"] for group in up["groups"]) == pytest.approx(1)
    again = ring(folder, "up", "--detach")
    assert (again.returncode, "is already running" in again.stderr) == (1, True)

    shown = ring(folder, "status")
    assert shown.returncode == 0, shown.stderr
    titles, *rows = [line.split() for line in shown.stdout.splitlines()]
    assert titles == ["group", "id", "share", "topics", "leader", "members"]
    assert [(row[0], row[-2], row[-1]) for row in rows] == [("a", "a1", "a1"), ("b", "b1", "b1")]
    bus = up["bus"].split(",")[1]
    assert fields(command("ring", "status", "--at", bus, "--json"))["whole"]

    driven = ring(folder, "drive", "--clients", "3", "--commands", "60", "--topics", "4", "--json")
    accounts = [json.loads(line) for line in driven.stdout.splitlines()]
    assert (driven.returncode, len(accounts)) == (0, 3), driven.stderr
    assert sum(account["published"] for account in accounts) > 0
    assert sum(account["delivered"] for account in accounts) > 0

    added = fields(ring(folder, "add", "--replicas", "1", "--json"))
    assert (added["group"], added["nodes"], added["share"] > 0) == ("c", ["c1"], True)
    removed = ring(folder, "remove", "a")
    assert removed.returncode == 0, removed.stderr
    after = fields(ring(folder, "status", "--json"))
    assert [group["group"] for group in after["groups"]] == ["b", "c"] or {"b", "c"} == {
        group["group"] for group in after["groups"]
    }
    assert sum(group["topics"] for group in after["groups"]) == 4, "the topics that were driven moved on"

    assert ring(folder, "kill", "--leader", "c").returncode == 0
    down = ring(folder, "status", "--json")
    assert (down.returncode, json.loads(down.stdout)["down"]) == (1, ["c1"])
    assert ring(folder, "start", "c1").returncode == 0
    stopped = fields(ring(folder, "down", "--json"))
    assert stopped == {"stopped": 2}
    known = trial_record.read(folder)
    assert known is not None and not any(node.running for node in known.nodes)


def test_shares_are_even_and_a_group_leaves_from_anywhere(folder: Path) -> None:
    up = fields(ring(folder, "up", "--groups", "5", "--replicas", "1", "--detach", "--json"))
    assert max(group["share"] for group in up["groups"]) * 5 < 1.35
    known = trial_record.read(folder)
    assert known is not None
    first, *_, last = (node.address for node in known.nodes)
    left = command("ring", "leave", "--at", last, "--json")
    assert fields(left) == {"at": last, "left": True}
    assert fields(command("ring", "leave", "--at", last, "--json"))["left"], "to ask again does no harm"
    assert all(group["share"] > 0 for group in groups_of(first, 4))
    put_and_get(first, last, 1)


def test_a_message_is_followed_over_the_ring(folder: Path) -> None:
    """P8: find-root, owner, agreement and delivery, each with its time; the subscriber that was made is removed."""
    up = fields(ring(folder, "up", "--groups", "3", "--replicas", "1", "--detach", "--json"))
    bus = up["bus"].split(",")[0]
    trace = fields(command("trace", "put", "news", "hello", "--bus", bus, "--json"))
    assert (trace["topic"], trace["offset"], len(trace["point"])) == ("news", 0, 64)
    assert trace["owner"] in [group["id"] for group in up["groups"]]
    steps = {step["name"]: step for step in trace["steps"]}
    assert list(steps) == ["point", "find-root", "owner", "subscribe", "hello", "agreement", "delivery"]
    assert all(steps[name]["ms"] > 0 for name in list(steps)[1:])
    assert steps["delivery"]["at"] != steps["hello"]["at"] == bus
    shown = command("trace", "put", "news", "again", "--bus", bus)
    assert shown.returncode == 0, shown.stderr
    lines = shown.stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["step", *steps]
    assert "known to the node" in shown.stdout
    (topic,) = [json.loads(line) for line in command("topics", "--bus", bus, "--json").stdout.splitlines()]
    assert (topic["name"], topic["count"], topic["subscriptions"]) == ("news", 2, 0)


def test_a_ring_that_gossips_and_has_keys_lives_by_the_same_commands(folder: Path, tmp_path: Path) -> None:
    """P6, P9: bodies reach readers at all nodes by gossip, and only who has a key is heard."""
    keys = tmp_path / "keys"
    create_server_keys(keys)
    for name in ("replica", "ann", "bob"):
        create_client_keys(keys, name)
    guarded = ("--keys", str(keys), "--as", "ann")
    nameless = ring(folder, "up", "--detach", "--keys", str(keys))
    assert (nameless.returncode, "give its name with --as NAME" in nameless.stderr) == (1, True)
    size = ("--groups", "2", "--replicas", "1", "--dissemination", "gossip")
    up = fields(ring(folder, "up", *size, *guarded, "--detach", "--json"))
    members = [member for group in up["groups"] for member in group["members"]]
    assert (up["whole"], [member["dissemination"] for member in members]) == (True, ["gossip", "gossip"])
    one, other = up["bus"].split(",")
    assert fields(command("ring", "status", "--at", other, *guarded, "--json"))["whole"]
    unknown = command("ring", "status", "--at", one)
    assert (unknown.returncode, "No node of a ring answers" in unknown.stderr) == (1, True)

    topics = [f"news{number}" for number in range(8)]
    with (
        tidings.connect(one, "ann", keys=keys, retries=20) as reader,
        tidings.connect(other, "bob", keys=keys, retries=20) as second,
    ):
        for topic in topics:
            reader.subscribe(topic)
            second.subscribe(topic)
            second.put(topic, f"about {topic}")
        for topic in topics:
            for bus in (reader, second):
                message = bus.get(topic, timeout=10)
                assert message is not None and message.text == f"about {topic}"
    driven = ring(folder, "drive", "--clients", "2", "--commands", "30", "--topics", "4")
    assert driven.returncode == 0, driven.stderr
    assert fields(ring(folder, "add", "--replicas", "1", "--json"))["group"] == "c"
    assert ring(folder, "remove", "a").returncode == 0
    assert fields(ring(folder, "status", "--json"))["whole"]


def test_a_node_that_disseminates_otherwise_is_named_by_status(tmp_path: Path) -> None:
    """P9: one setting, the same at all nodes; a contradiction works, slowly, and must not be silent."""
    first = RingNode(tmp_path / "a", "--ring", "--dissemination", "gossip")
    with first, RingNode(tmp_path / "b", "--join", first.address) as second:

        def look() -> str | None:
            done = command("ring", "status", "--at", first.address)
            if "disseminates" not in done.stderr:
                return None  # The second node's group has not joined yet.
            assert done.returncode == 1, done.stdout
            return done.stderr

        said = wait_for("the contradiction", look)
        assert f"{second.address} disseminates by scribe, and others by gossip" in said
        put_and_get(first.address, second.address, 1)


def heed_ctrl_c() -> None:
    """What a shell starts in the background ignores Ctrl-C, and so would whatever is started by it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def test_ctrl_c_stops_a_ring_that_stays(folder: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "tidings", "ring", "up", "--groups", "1", "--replicas", "1", "--dir", str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
        preexec_fn=heed_ctrl_c,
    )
    try:
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "")
        assert any(line.startswith("Ctrl-C stops it") for line in lines), process.communicate()[1]
        known = trial_record.read(folder)
        assert known is not None and all(node.running for node in known.nodes)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=SECONDS_MAX)
        assert process.returncode == 0, errors
        assert not any(node.running for node in known.nodes)
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (["status"], 1, "start one with `tidings ring up`"),
        (["kill", "a1"], 1, "start one with `tidings ring up`"),
        (["kill"], 2, "kill needs a node, or --leader GROUP"),
        (["kill", "a1", "--leader", "a"], 2, "kill needs"),
        (["remove"], 2, "remove needs a group"),
        (["add", "a"], 2, "add takes no name"),
        (["add", "--at", "tcp://127.0.0.1:1"], 2, "--dir instead of --at"),
        (["leave"], 2, "leave needs a node of the group"),
        (["leave", "--at", "tcp://127.0.0.1:9"], 1, "answers at tcp://127.0.0.1:9"),
        (["up", "--replicas", "2"], 1, "1, 3 or 5 replicas, not 2"),
        (["up", "--groups", "100"], 1, "1 to 64 groups"),
        (["status", "--at", "tcp://127.0.0.1:9"], 1, "No node of a ring answers at tcp://127.0.0.1:9"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_sentence(folder: Path, words: list[str], code: int, sentence: str) -> None:
    done = ring(folder, *words)
    assert (done.returncode, sentence in done.stderr, done.stderr.count("\n")) == (code, True, 1), done.stderr


def test_a_broker_that_is_no_node_says_so(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        for words in (
            ["ring", "status", "--at", broker.address],
            ["trace", "put", "news", "x", "--bus", broker.address],
        ):
            done = command(*words)
            assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
            assert "ring" in done.stderr


# A ring by hand: one command for each node.


class RingNode(BrokerProcess):
    """`tidings serve` on a folder that is, or becomes, a ring's; with the program's own words if others are wanted."""

    def __init__(self, data: Path, *arguments: str) -> None:
        super().__init__(data, *arguments)
        self._bind = free_address()

    def start_with(self, *command: str) -> None:
        self._command = command
        self.start()


def groups_of(address: str, count: int) -> list[dict[str, Any]]:
    """The groups of a ring, once there are so many and every point has an owner."""

    def look() -> list[dict[str, Any]] | None:
        done = command("ring", "status", "--at", address, "--json")
        found = json.loads(done.stdout) if done.stdout else {"groups": [], "whole": False}
        return found["groups"] if found["whole"] and len(found["groups"]) == count else None

    return wait_for(f"{count} groups", look)


def put_and_get(one: str, other: str, round_: int) -> None:
    """What is put at one node is got at the other, on topics of both groups."""
    with tidings.connect(one, "alice", retries=20) as alice, tidings.connect(other, "bob", retries=20) as bob:
        topics = [f"news{number}" for number in range(8)]
        for topic in topics:
            bob.subscribe(topic)
            alice.put(topic, f"{topic} in round {round_}")
        for topic in topics:
            message = bob.get(topic, timeout=10)
            assert message is not None and message.text == f"{topic} in round {round_}"


def test_a_ring_is_begun_joined_and_started_again_by_serve(tmp_path: Path) -> None:
    """The folders remember what they are: nothing has to be said twice."""
    first = RingNode(tmp_path / "a", "--ring")
    with first, RingNode(tmp_path / "b", "--join", first.address) as second:
        groups_of(second.address, 2)
        put_and_get(first.address, second.address, 1)
        for node in (first, second):
            assert node.stop() == 0, node.log
            node.start_with("serve", "--data", str(node.data))
        groups_of(first.address, 2)
        put_and_get(second.address, first.address, 2)


def test_three_nodes_begin_a_ring_and_a_fourth_is_taken_into_their_group(tmp_path: Path) -> None:
    nodes = [RingNode(tmp_path / f"a{number}") for number in range(3)]
    founders = ",".join(node.address for node in nodes)
    nodes.append(RingNode(tmp_path / "a4", "--into", founders))
    try:
        for node in nodes[:3]:
            node._command += ("--group", founders, "--ring")
            node.launch()
        for node in nodes[:3]:
            node.wait_until_ready()
        groups_of(nodes[0].address, 1)
        nodes[3].launch()
        add = ("group", "add", nodes[3].address, "--bus", founders)
        wait_for("the fourth node to be taken in", lambda: command(*add).returncode == 0)
        nodes[3].wait_until_ready()
        assert role_of(nodes[3].data) == RING
        (group,) = groups_of(nodes[3].address, 1)
        assert len(group["members"]) == 4
        put_and_get(nodes[0].address, nodes[3].address, 1)
    finally:
        for node in nodes:
            node.kill()


def test_the_old_spelling_still_works_and_says_what_to_write(tmp_path: Path) -> None:
    first = RingNode(tmp_path / "a")
    second = RingNode(tmp_path / "b")
    try:
        first.start_with("node", "--data", str(first.data))
        second.start_with("node", "--data", str(second.data), "--join", first.address)
        assert first.log[0].startswith(f"tidings: write `tidings serve --ring --data {first.data} --bind ")
        assert second.log[0].startswith(f"tidings: write `tidings serve --data {second.data} --join {first.address} ")
        groups_of(first.address, 2)
        put_and_get(first.address, second.address, 1)
    finally:
        first.kill()
        second.kill()


def test_a_broker_that_stands_alone_is_no_ring_to_join(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "alone") as broker:
        done = command("serve", "--data", str(tmp_path / "new"), "--bind", free_address(), "--join", broker.address)
        assert (done.returncode, f"{broker.address} is a single broker outside any ring" in done.stderr) == (1, True)
    assert not (tmp_path / "new").exists()


def test_with_keys_a_node_asks_under_the_name_of_its_kind(tmp_path: Path) -> None:
    """P6: what is at an address is asked with the key that nodes speak with."""
    keys = tmp_path / "keys"
    create_server_keys(keys)
    for name in ("replica", "alice"):
        create_client_keys(keys, name)
    first = RingNode(tmp_path / "a", "--ring", "--keys", str(keys))
    with first, RingNode(tmp_path / "b", "--join", first.address, "--keys", str(keys)) as second:
        assert role_of(second.data) == RING
        with tidings.connect(second.address, "alice", keys=keys, retries=20) as bus:
            bus.subscribe("news")
            bus.put("news", "hello")
            assert bus.get("news", timeout=10).text == "hello"
