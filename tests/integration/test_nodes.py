"""The document's experiments with real processes: 20 nodes over ZeroMQ on loopback (P1 to P5, P10 to P12)."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest

from tidings.admin.ports import free_address
from tidings.peer.caller import NodeCaller
from tidings.peer.drive import Driver, wait_until
from tidings_lab.experiments.processes import Cluster, ProcessesRow, run_processes

Overlay = Literal["chord", "hyparview"]

ROOT = Path(__file__).resolve().parents[2]
TOPICS = ("news", "sport", "weather")
both = pytest.mark.parametrize("overlay", ["chord", "hyparview"])


@pytest.fixture(autouse=True)
def source_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))


def tidings(*arguments: str, lines: str | None = None) -> subprocess.CompletedProcess[str]:
    """Runs a command to its end."""
    return subprocess.run(
        [sys.executable, "-m", "tidings", *arguments],
        input=lines,
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
        env=os.environ.copy(),
    )


def survey(address: str) -> dict[str, Any]:
    """What `tidings nodes --all --json` says."""
    done = tidings("nodes", "--at", address, "--all", "--json", "--timeout", "20")
    found: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode == (0 if found["whole"] else 1)
    return found


def check(row: ProcessesRow, overlay: str) -> None:
    """Reliability is 100 %: every live subscriber has every message of every live publisher, once."""
    assert row.problem == ""
    assert (row.reliability, row.doubled, row.whole) == (1.0, 0, True)
    live = row.nodes - row.killed
    assert row.owed == row.published * live > 0
    layers = {"chord": {"chord", "scribe"}, "hyparview": {"hyparview", "gossip", "heartbeat"}}
    assert set(row.sent) == layers[overlay]
    assert not has_refused_peers(row.refused)


@both
def test_twenty_nodes_of_which_five_are_killed(overlay: Overlay) -> None:
    """P4, P5, P11, P12: 20 nodes, 10 messages each; then 10 more, and SIGKILL for five nodes in the middle of them."""
    with Cluster(overlay, founders=9, settings={"TIDINGS_REPLICAS": "5"}) as cluster:
        cluster.start(20)
        cluster.wait_until_joined()
        with Driver(cluster.addresses) as driver:
            for node in cluster.addresses:
                for topic in TOPICS:
                    driver.subscribe(node, topic)
            driver.wait_until_ready()
            for turn in range(10):
                publish_everywhere(driver, turn)
            driver.drain()
            assert [(account.owed, account.missing) for account in driver.account()] == [(200, 0)] * 20
            wait_until(lambda: survey(cluster.addresses[0])["whole"], "the overlay is whole")

            for turn in range(10):
                if turn == 5:
                    for victim in cluster.addresses[2::4]:
                        cluster.kill(victim)
                        driver.forget(victim)
                publish_everywhere(driver, turn)
            driver.drain()
            cluster.wait_until_whole()
            driver.collect()
            accounts = driver.account()
        assert [(account.owed, account.missing) for account in accounts] == [(15 * 20, 0)] * 15
        assert not any(account.doubled or account.strange for account in accounts)
        surveys: list[dict[str, Any]] = []

        def whole_again() -> bool:
            surveys.append(survey(cluster.addresses[-1]))
            return bool(surveys[-1]["whole"])

        wait_until(whole_again, "the overlay is whole again")
        found = surveys[-1]
        assert (found["whole"], found["overlay"], found["problems"]) == (True, overlay, [])
        assert {view["address"] for view in found["nodes"]} == set(cluster.addresses)
        assert not any(has_refused_peers(view["refused"]) for view in found["nodes"])


def publish_everywhere(driver: Driver, turn: int) -> None:
    for node in driver.callers:
        driver.publish(node, TOPICS[turn % len(TOPICS)])
    driver.collect()


def has_refused_peers(refused: dict[str, int]) -> bool:
    """Whether a node refused what another one sent: all of them speak the same protocol."""
    return any("read" in reason or "sender" in reason or "accepted" in reason for reason in refused)


@both
def test_an_experiment_is_one_row(overlay: Overlay) -> None:
    """P11: the figures of a run, to be put beside those of the simulator."""
    flags = ("--overlay", overlay, "--nodes", "10", "--messages", "4", "--kill", "1", "--seed", "3", "--json")
    done = tidings("experiment", "processes", *flags)
    assert done.returncode == 0, done.stderr
    row = msgspec.json.decode(done.stdout, type=ProcessesRow)
    check(row, overlay)
    assert (row.nodes, row.killed, row.published, row.owed) == (10, 1, 36, 324)
    assert row.convergence_ms >= 0 < row.repair_ms


@both
def test_a_node_that_is_killed_comes_back_under_its_address(overlay: Overlay) -> None:
    """A new life of a node takes part again, and what it publishes is counted again."""
    with Cluster(overlay, settings={"TIDINGS_BEAT_MS": "300"}) as cluster:
        cluster.start(3)
        cluster.restart(free_address())  # Nobody else gets this port while its node is dead.
        cluster.wait_until_joined()
        first, *_, last = cluster.addresses
        with NodeCaller(first) as caller, NodeCaller(last) as old:
            caller.subscribe("news")
            wait_until(lambda: caller.look().subscriptions == {"news": True}, "it is subscribed")
            old.publish("news", "from the first life")
            wait_until(lambda: caller.look().arrived == 1, "it has arrived")
            cluster.kill(last)
            cluster.restart(last)
            cluster.wait_until_joined()
            with NodeCaller(last) as new:
                new.publish("news", "from the second life")
                wait_until(lambda: caller.look().arrived == 2, "it has arrived")
            texts = caller.take()
        assert [(text.text, text.publisher) for text in texts] == [
            ("from the first life", last),
            ("from the second life", last),
        ]
        assert texts[0].life < texts[1].life
        assert cluster.wait_until_whole().problems == ()


@both
def test_a_node_that_hangs_is_left_out_and_comes_back(overlay: Overlay) -> None:
    """Its connections stay open, so only the protocols' own beats and questions can tell."""
    hasty = {"TIDINGS_BEAT_MS": "200", "TIDINGS_SILENCE_MS_MAX": "2000", "TIDINGS_REPAIR_MS": "500"}
    with Cluster(overlay, settings=hasty) as cluster:
        cluster.start(4)
        cluster.wait_until_joined()
        assert cluster.wait_until_whole().problems == ()
        hanging = cluster.processes.pop(cluster.addresses[-1])
        others = cluster.addresses
        try:
            hanging.send_signal(signal.SIGSTOP)
            wait_until(lambda: not any(count_neighbours(node) > 2 for node in others), "it is left out")
        finally:
            hanging.send_signal(signal.SIGCONT)
        try:
            wait_until(lambda: all(count_neighbours(node) == 3 for node in others), "it is back")
        finally:
            hanging.kill()
            hanging.wait()


def count_neighbours(address: str) -> int:
    with NodeCaller(address, timeout=30.0) as caller:
        view = caller.look()
    return len(view.ring.successors) if view.ring is not None else len(view.views.active) if view.views else 0


@both
def test_a_node_leaves_in_good_order_and_the_clients_commands_work(overlay: Overlay) -> None:
    """P10: the interactive client by its lines, the automated one by its account."""
    with Cluster(overlay) as cluster:
        cluster.start(4)
        cluster.wait_until_joined()
        first, second, *_ = cluster.addresses
        shell = tidings("nodes", "shell", "--at", first, lines="subscribe news\npublish news hello\nstatus\nquit\n")
        assert (shell.returncode, shell.stderr) == (0, "")
        assert shell.stdout.startswith("subscribed to news\npublished to news\nnode ")
        with NodeCaller(first) as caller:
            wait_until(lambda: caller.look().subscriptions == {"news": True}, "it is subscribed")
            with NodeCaller(second) as other:
                other.publish("news", "hello again")
            wait_until(lambda: "hello again" in tidings_received(first), "it is printed")
            caller.subscribe("arts")
            wait_until(lambda: all(caller.look().subscriptions.values()), "it is subscribed twice")
            lines = 'publish news,sport,arts to several\npublish "a,b" to one\npublish arts the last\n'
            shell = tidings("nodes", "shell", "--at", second, lines=lines)
            assert shell.stdout.splitlines()[:2] == ["published to news, sport, arts", "published to a,b"]
            wait_until(lambda: "the last" in tidings_received(first), "it is printed")
            wait_until(lambda: "to several" in tidings_received(first), "it is printed")
            assert tidings_received(first).count(": to several (from") == 1, "once, in whichever topic came first"
            assert "news" in tidings_received(first).partition(": to several")[0].splitlines()[-1]
        assert tidings("nodes", "shell", "--at", first, lines="unsubscribe sport\n").returncode == 1

        driven = tidings("nodes", "drive", "--at", first, "--all", "--commands", "120", "--seed", "3", "--json")
        accounts = [json.loads(line) for line in driven.stdout.splitlines()]
        assert driven.returncode == 0, driven.stderr
        assert sum(account["published"] for account in accounts) > 50
        assert sum(account["owed"] for account in accounts) > 20
        assert not any(account["missing"] or account["doubled"] or account["strange"] for account in accounts)

        assert cluster.stop(cluster.addresses[-1]) == 0
        cluster.wait_until_whole()
        table = tidings("nodes", "--at", first, "--all")
        assert table.returncode == 0 and "3 nodes are " in table.stdout
        assert first in tidings("nodes", "--at", first).stdout


def tidings_received(address: str) -> str:
    return tidings("nodes", "shell", "--at", address, lines="received\n").stdout


def test_an_address_in_use_is_one_sentence() -> None:
    with Cluster("chord") as cluster:
        cluster.start(1)
        done = tidings("node", "--bind", cluster.addresses[0])
    assert done.returncode == 1
    assert "already in use" in done.stderr and len(done.stderr.splitlines()) == 1


def test_nobody_but_loopback_without_keys() -> None:
    done = tidings("node", "--bind", "tcp://0.0.0.0:17512")
    assert done.returncode == 1 and "--keys" in done.stderr and len(done.stderr.splitlines()) == 1


def test_a_node_that_is_not_there_is_one_sentence() -> None:
    for arguments in ((), ("--all",)):
        done = tidings("nodes", "--at", "tcp://127.0.0.1:9", "--timeout", "0.2", *arguments)
        assert done.returncode == 1 and "does not answer" in done.stderr


@both
@pytest.mark.soak
@pytest.mark.parametrize("messages_each", [25, 50, 75])
@pytest.mark.parametrize("kill", [0, 5])
def test_the_documents_sizes(overlay: Overlay, messages_each: int, kill: int) -> None:
    """P11: 20 nodes, 25, 50 and 75 messages each, with and without failures."""
    check(run_processes(overlay, nodes=20, messages_each=messages_each, kill=kill, seed=messages_each), overlay)


@both
@pytest.mark.soak
@pytest.mark.parametrize("seed", range(3))
def test_nodes_come_and_go_while_everybody_publishes(overlay: Overlay, seed: int) -> None:
    """P12: up to three of twelve are dead at a time, and come back as new lives under their old addresses."""
    rng = random.Random(seed)
    dead: list[str] = []
    with Cluster(overlay, founders=9) as cluster:
        cluster.start(12)
        cluster.wait_until_joined()
        with Driver(cluster.addresses) as driver:
            for node in cluster.addresses:
                for topic in TOPICS:
                    driver.subscribe(node, topic)
            driver.wait_until_ready()
            for _ in range(30):
                fate = rng.random()
                if fate < 0.4 and len(dead) < 3:
                    dead.append(rng.choice(cluster.addresses))
                    cluster.kill(dead[-1])
                    driver.forget(dead[-1])
                elif fate < 0.8 and dead:
                    node = dead.pop(rng.randrange(len(dead)))
                    cluster.restart(node)
                    cluster.wait_until_joined()
                    driver.add(node)
                    for topic in TOPICS:
                        driver.subscribe(node, topic)
                    driver.wait_until_ready()
                for _ in range(10):
                    driver.publish(rng.choice(cluster.addresses), rng.choice(TOPICS))
                driver.drain()
            cluster.wait_until_whole()
            driver.collect()
            accounts = driver.account()
        assert sum(account.owed for account in accounts) > 500
        assert not any(account.missing or account.doubled or account.strange for account in accounts)
        assert cluster.wait_until_whole().problems == ()
