"""E1, E8: plain sockets beside a member of a group and a node of a ring, while leaders die and brokers grow; and who is
served beyond loopback."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import tidings
from tests.integration.broker_process import BrokerProcess
from tests.integration.replica_group import Node, ReplicaGroup, ask
from tests.integration.socket_programs import (
    Gateway,
    Received,
    SocketMember,
    free_port,
    network_namespace,
    wait_until,
)
from tidings.admin.ports import free_address
from tidings.gateways import calls
from tidings.gateways.calls import ARRIVING_MAX, Mailbox
from tidings.protocols.broker.operators import AskOwner, Owner
from tidings.transport import curve


@pytest.fixture
def group(tmp_path: Path) -> Iterator[ReplicaGroup]:
    with ReplicaGroup(tmp_path) as running:
        yield running


def publish(gateway: Gateway, topic: str, text: str) -> None:
    """Again and again until it is kept: nobody may lead at the moment. Who gets no answer may repeat it."""
    wait_until(lambda: gateway.ask("PUBLISH", topic, text) == b"0\0", f"{text!r} is kept")


def test_deliveries_go_on_when_the_leader_dies(group: ReplicaGroup) -> None:
    """E1: beside a member that does not lead, every text comes once and in order, whoever leads."""
    leader, follower = group.leader(), group.followers()[0]
    gateway = SocketMember(follower)
    texts = [str(number) for number in range(40)]
    publish(gateway, "news", "start")
    with Received() as received:
        assert gateway.ask("SUBSCRIBE", "news", received.port) == b"0\0"
        for text in texts[:20]:
            publish(gateway, "news", text)
        leader.kill()
        for text in texts[20:]:
            publish(gateway, "news", text)
        wait_until(lambda: received.texts[-1:] == texts[-1:], f"the last one, and there are {received.texts}")
        assert list(dict.fromkeys(received.texts)) == ["start", *texts]
        assert len(received.texts) <= len(texts) + 2, "a delivery or a text may come twice, where the answer got lost"
    assert follower.stop() == 0


def test_every_member_may_have_a_gateway(group: ReplicaGroup) -> None:
    """E8: each has subscribers of its own, at the same time, and goes on with those after a restart."""
    gateways = [SocketMember(node) for node in group.nodes]
    publish(gateways[0], "news", "start")
    with contextlib.ExitStack() as stack:
        received = [stack.enter_context(Received()) for _ in gateways]
        for gateway, each in zip(gateways, received, strict=True):
            wait_until(lambda to=gateway, at=each: to.ask("SUBSCRIBE", "news", at.port) == b"0\0", "a subscription")
        publish(gateways[1], "news", "second")
        gateways[2].restart()
        publish(gateways[0], "news", "third")
        for each in received:
            assert each.wait_for(3) == ["start", "second", "third"]
    for node in group.nodes:
        assert node.stop() == 0
        assert [line for line in node.log if line.startswith("sockets: ") and "not answer" not in line] == []


def test_without_a_majority_a_gateway_waits_and_stops_in_good_order(group: ReplicaGroup) -> None:
    """E8: a member that nobody elects keeps its gateway, answers no request, and ends when it is told to."""
    gateway = SocketMember(group.followers()[0])
    member = gateway.node
    others = [node for node in group.nodes if node is not member]
    for node in others:
        node.kill()
    gateway.restart()
    with gateway.connect() as connection:
        connection.sendall(b"PUBLISH\0news\0waits\0")
        for node in others:
            node.start()
        assert connection.recv(4) == b"0\0"[: len(b"0\0")]
    for node in others:
        node.kill()
    assert member.stop() == 0


def test_with_keys_a_gateway_needs_one_of_its_own(tmp_path: Path) -> None:
    """E1: where its member does not lead, it is a client of the leader like any other."""
    keys = tmp_path / "keys"
    curve.create_server_keys(keys)
    curve.create_client_keys(keys, "replica")
    addresses = [free_address() for _ in range(3)]
    nodes = [
        Node(tmp_path / f"node{number}", address, "--group", ",".join(addresses), "--keys", str(keys))
        for number, address in enumerate(addresses)
    ]
    command = [sys.executable, "-m", "tidings", "serve", "--data", str(tmp_path / "x"), "--keys", str(keys)]
    done = subprocess.run(
        [*command, "--group", addresses[0], "--bind", addresses[0], "--sockets", "0", "--digits"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert "no key of it: make one with `tidings keys DIR --client tidings.sockets`" in done.stderr
    assert not (tmp_path / "x").exists()
    curve.create_client_keys(keys, "tidings.sockets")
    curve.create_client_keys(keys, "alice")
    ports = [free_port() for _ in nodes]
    with contextlib.ExitStack() as stack:
        for node, port in zip(nodes, ports, strict=True):
            node.add_flags("--sockets", str(port), "--digits")
            node.launch()
            stack.callback(node.kill)
        for node in nodes:
            node.wait_until_ready()
        bus = stack.enter_context(tidings.connect(",".join(addresses), "alice", keys=keys, retries=20))
        bus.subscribe("news", start="earliest")
        mailboxes = [stack.enter_context(Received()) for _ in nodes]
        for port, mailbox in zip(ports, mailboxes, strict=True):
            calls.publish("127.0.0.1", port, "news", f"by {port}")
            assert calls.subscribe("127.0.0.1", port, "news", mailbox.port)
        bus.put("news", "by alice")
        for mailbox in mailboxes:
            wait_until(lambda at=mailbox: at.texts[-1:] == ["by alice"], "the delivery")
        assert [message.text for message in bus.subscribe("news").messages(timeout=0)] == [
            *(f"by {port}" for port in ports),
            "by alice",
        ]


def topics_of_both(node: Node) -> list[str]:
    """Some topics of each of two groups."""
    found: dict[str, list[str]] = {}

    def look() -> bool:
        for number in range(5_000):
            owner = ask(node.address, AskOwner(1, f"topic {number}"))
            if isinstance(owner, Owner) and owner.group and len(found.setdefault(owner.group, [])) < 4:
                found[owner.group].append(owner.topic)
            if len(found) == 2 and number > 20:
                return True
        found.clear()
        return False

    wait_until(look, "topics of two groups")
    return [topic for topics in found.values() for topic in topics]


def test_beside_a_node_of_a_ring_topics_of_every_group_are_served(tmp_path: Path) -> None:
    """E1, E8: the owner of a topic is found as for any client, also after a restart."""
    first = Node(tmp_path / "a", free_address(), "--ring")
    with first:
        second = Node(tmp_path / "b", free_address(), "--join", first.address)
        with second:
            topics = topics_of_both(first)
            gateways = [SocketMember(first), SocketMember(second)]
            with contextlib.ExitStack() as stack:
                received = [stack.enter_context(Received()) for _ in gateways]
                for topic in topics:
                    publish(gateways[0], topic, "start")
                    for gateway, each in zip(gateways, received, strict=True):
                        assert gateway.ask("SUBSCRIBE", topic, each.port) == b"0\0"
                for gateway in gateways:
                    gateway.restart()
                for topic in topics:
                    publish(gateways[1], topic, "more")
                expected = sorted((topic, text) for topic in topics for text in ("start", "more"))
                for each in received:
                    each.wait_for(len(expected))
                    assert sorted(each.messages) == expected


def test_a_broker_keeps_its_subscribers_as_it_grows(tmp_path: Path) -> None:
    """E1: alone, the first of a group while it runs, a member that was restarted, the first node of a ring."""
    node = Node(tmp_path / "a", free_address())
    with node, Received() as received:
        gateway = SocketMember(node)
        publish(gateway, "news", "alone")
        assert gateway.ask("SUBSCRIBE", "news", received.port) == b"0\0"
        received.wait_for(1)
        other = Node(tmp_path / "b", free_address(), "--into", node.address)
        with contextlib.ExitStack() as stack:
            other.launch()
            stack.callback(other.kill)
            add = [sys.executable, "-m", "tidings", "cluster", "add", other.address, "--bus", node.address]
            wait_until(lambda: subprocess.run(add, check=False, capture_output=True).returncode == 0, "the new member")
            other.wait_until_ready()
            publish(gateway, "news", "in a group")
            gateway.restart()
            publish(gateway, "news", "restarted")
            assert received.wait_for(3) == ["alone", "in a group", "restarted"]
            assert other.stop() == 0
            again = Node(other.data, other.address, "--ring")
            again.launch()
            stack.callback(again.kill)
            node.add_flags("--ring")
            gateway.restart()
            publish(gateway, "news", "in a ring")
            assert received.wait_for(4)[3:] == ["in a ring"]


def test_strangers_are_turned_away_without_a_word(tmp_path: Path) -> None:
    """E1: beyond loopback only the networks that were named; the log says so once, however often they knock."""
    with network_namespace() as (_, reach):
        port = free_port()
        flags = ("--sockets", f"{reach.host}:{port}", "--sockets-allow", "192.0.2.0/24", "--digits")
        with BrokerProcess(tmp_path / "data", *flags) as broker:
            for _ in range(3):
                done = reach.run_editor(port, "news", "text")
                assert done.returncode == 1 and f"broker {reach.host}:{port}" in done.stderr
            with tidings.connect(broker.address) as bus:
                assert bus.topics() == []
            assert broker.stop() == 0
            said = [line for line in broker.log if "is in no network that may connect" in line]
            assert len(said) == 1


def test_the_web_service_serves_named_networks_only(tmp_path: Path) -> None:
    """E6: another machine gets its answer, or none at all."""
    ask = "import sys, urllib.request as u; print(u.build_opener(u.ProxyHandler({})).open(sys.argv[1]).read().decode())"
    with network_namespace() as (theirs, reach):
        for allow, code in ((f"{theirs}/32", 0), ("192.0.2.0/24", 1)):
            ready = tmp_path / f"ready {code}"
            flags = ("--http", f"{reach.host}:0", "--http-allow", allow, "--ready-file", str(ready))
            with BrokerProcess(tmp_path / f"data {code}", *flags) as broker:
                address = ready.read_text().splitlines()[1]
                command = [*reach.prefix, sys.executable, "-c", ask, f"{address}/spell?text=2+cats"]
                done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
                assert (done.returncode, "two cats" in done.stdout) == (code, code == 0), done.stderr
                assert broker.stop() == 0
                assert any("is in no network that may connect" in line for line in broker.log) == (code == 1)


def test_a_mailbox_takes_nothing_from_strangers() -> None:
    """E1: what another machine than the broker delivers is dropped."""
    with network_namespace() as (theirs, reach):
        came: list[str] = []
        knock = (
            "import socket, sys\n"
            "with socket.create_connection((sys.argv[1], int(sys.argv[2]))) as c:\n"
            "    c.sendall(b'news\\0text\\0'); c.shutdown(socket.SHUT_WR); c.recv(1)\n"
        )
        for allow, expected in ((["192.0.2.1"], []), ([theirs], ["text"])):
            with Mailbox(lambda topic, text: came.append(text), reach.host, allow=allow) as mailbox:
                command = [*reach.prefix, sys.executable, "-c", knock, reach.host, str(mailbox.port)]
                subprocess.run(command, check=False, capture_output=True, timeout=60)
            assert came == expected


def test_silent_connections_hold_up_no_delivery() -> None:
    """E8: not one, nor as many as a mailbox takes at a time; those go after a while, and there is room again."""
    came: list[str] = []
    with Mailbox(lambda topic, text: came.append(text)) as mailbox, contextlib.ExitStack() as stack:

        def connect() -> socket.socket:
            return stack.enter_context(socket.create_connection(("127.0.0.1", mailbox.port), timeout=60))

        def deliver(text: str) -> None:
            connection = connect()
            connection.sendall(f"news\0{text}\0".encode())
            assert connection.recv(1) == b""

        for number in range(ARRIVING_MAX - 1):
            connect().sendall(b"news\0" if number % 2 else b"")
        began = time.monotonic()
        deliver("first")
        assert time.monotonic() - began < calls.DELIVERY_S, "before any of them has been given up"
        connect()
        deliver("second")
        wait_until(lambda: came == ["first", "second"], "both are handed on, which comes after they are taken")


def test_a_remote_broker_needs_an_address_to_deliver_to(tmp_path: Path) -> None:
    with network_namespace() as (_, reach):
        done = subprocess.run(
            [*reach.prefix, sys.executable, "-m", "tidings", "subscriber", "-s", reach.host, "-p", "4200"],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr == (
        f"The broker at {reach.host} is on another machine, and this mailbox is on 127.0.0.1: give --listen with the "
        "address at which that machine reaches this one.\n"
    )
