"""A bus that grows while it is used: alone, a group of three, a ring of two groups, on the same folders."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import tidings
from tests.integration.growth_load import TOPIC, GrowthLoad
from tests.integration.replica_group import Node, ask, wait_for
from tidings.admin.ports import free_address
from tidings.journal.folder import BROKER, MEMBER, RING, role_of
from tidings.protocols.broker.operators import AskRing, Ring


def command(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "tidings", *words], capture_output=True, text=True, check=False)


class House:
    """Nodes on folders of their own, of which the first begins alone."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.nodes: list[Node] = []

    def add(self, *arguments: str) -> Node:
        node = Node(self._folder / f"node{len(self.nodes)}", free_address(), *arguments)
        self.nodes.append(node)
        return node

    @property
    def addresses(self) -> str:
        return ",".join(node.public for node in self.nodes)

    def take_in(self, node: Node) -> None:
        """What an operator does: starts it with --into, and adds it when it asks to join."""
        node.launch()

        def add() -> bool:
            said = command("cluster", "add", node.public, "--bus", self.nodes[0].public)
            assert said.returncode == 0 or "asks to join" in said.stderr, said.stderr
            return said.returncode == 0

        wait_for("the new member's vote", add)

    def restart(self, number: int, *arguments: str) -> Node:
        """Ends a node in good order, and starts it on the same folder and address with other options."""
        old = self.nodes[number]
        assert old.stop() == 0
        self.nodes[number] = Node(old.data, old.address, *arguments)
        return self.nodes[number].start()

    def close(self) -> None:
        for node in self.nodes:
            node.kill()


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    found = House(tmp_path)
    yield found
    found.close()


def ring_of(node: Node) -> Ring | None:
    answer = ask(node.public, AskRing(1))
    return answer if isinstance(answer, Ring) else None


def is_ring_of(node: Node, groups: int) -> bool:
    """Whether a node knows a ring of so many groups, each of which owns a part of it."""
    ring = ring_of(node)
    return ring is not None and sum(bool(group.ranges) for group in ring.groups) == groups


def grow(house: House, load: GrowthLoad, between: int) -> None:
    """From one broker to a ring of two groups, with some messages between the steps."""
    first = house.nodes[0]
    load.wait_for(between)
    for node in house.nodes[1:3]:
        house.take_in(node)
        load.wait_for(between)
    assert [role_of(node.data) for node in house.nodes] == [MEMBER] * 3
    for number in (1, 2, 0):
        house.restart(number, "--ring")
        load.wait_for(between)
    wait_for("a ring of one group", lambda: all(is_ring_of(node, 1) for node in house.nodes[:3]))
    assert [role_of(node.data) for node in house.nodes] == [RING] * 3
    second = house.add("--join", first.public)
    second.start()
    wait_for("a ring of two groups", lambda: is_ring_of(second, 2))
    load.wait_for(between)


def test_a_bus_grows_while_it_is_used(house: House) -> None:
    """P7, Z4, C3: nothing is lost, doubled or reordered when a broker becomes a group, and that a ring."""
    first = house.add().start()
    for _ in range(2):
        house.add("--into", first.public)
    with GrowthLoad(house.addresses, batch=50, pause=0.02) as load:
        grow(house, load, 500)
    load.check()


@pytest.mark.soak
def test_two_million_messages_flow_while_a_bus_grows(house: House) -> None:
    first = house.add().start()
    for _ in range(2):
        house.add("--into", first.public)
    with GrowthLoad(house.addresses, batch=1_000, pause=0.0) as load:
        grow(house, load, 200_000)
        load.wait_for(max(0, 2_000_000 - load.count))
    load.check()
    print(f"{load.count:,} messages, the longest put took {load.longest_put:.2f} s")


def test_members_follow_their_leader_into_a_ring(house: House) -> None:
    """A ring begins when a member leads that was started so; the others need not be, and stay in it."""
    first = house.add().start()
    house.take_in(house.add("--into", first.public))
    house.take_in(house.add("--into", first.public))
    with tidings.connect(house.addresses, "pia", timeout=2.0, retries=60) as bus:
        bus.put(TOPIC, b"before")
        for number in range(3):
            if not any(is_ring_of(node, 1) for node in house.nodes):
                house.restart(number, "--ring")
                bus.put(TOPIC, b"during")
        wait_for("all in the ring", lambda: all(is_ring_of(node, 1) for node in house.nodes))
        assert [role_of(node.data) for node in house.nodes] == [RING] * 3
        for number in range(3):
            house.restart(number)
        bus.put(TOPIC, b"after")
        values = [message.value for batch in bus.read(TOPIC) for message in batch]
        assert (values[0], values[-1]) == (b"before", b"after")


# On a folder that nobody has open.


def fill(bus: tidings.Bus) -> None:
    bus.subscribe(TOPIC, start="earliest")
    bus.put_many(TOPIC, [b"%d" % each for each in range(100)])
    for each in range(10):
        message = bus.get(TOPIC, timeout=30.0)
        assert message is not None and message.value == b"%d" % each


def check_filled(bus: tidings.Bus, more: int) -> None:
    """What `fill` left, and as many more messages as were put since; one more is put."""
    assert bus.put(TOPIC, b"%d" % (100 + more)).offset == 100 + more
    values = [message.value for batch in bus.read(TOPIC) for message in batch]
    assert values == [b"%d" % each for each in range(101 + more)]
    message = bus.get(TOPIC, timeout=30.0)
    assert message is not None and message.value == b"%d" % (10 + more), "the cursor goes on where it was"


@pytest.mark.parametrize("ways", [("--group",), ("--ring",), ("--group", "--ring")], ids="-".join)
def test_a_folder_that_was_begun_alone_grows_at_its_start(house: House, ways: tuple[str, ...]) -> None:
    node = house.add()
    with tidings.open(node.data, "ann") as bus:
        fill(bus)
    assert role_of(node.data) == BROKER
    node.start()
    for more, way in enumerate(ways):
        node = house.restart(0, *((way, node.public) if way == "--group" else (way,)))
        with tidings.connect(node.public, "ann", timeout=2.0, retries=60) as bus:
            check_filled(bus, more)
    node.kill()
    node = house.restart(0)
    with tidings.connect(node.public, "ann", timeout=2.0, retries=60) as bus:
        check_filled(bus, len(ways))
    node.stop()
    with pytest.raises(tidings.TidingsError, match="start that with `tidings serve"):
        tidings.open(node.data)


def test_a_broker_alone_founds_no_group_with_others(house: House) -> None:
    node = house.add()
    with tidings.open(node.data, "ann") as bus:
        fill(bus)
    before = {path.name: path.read_bytes() for path in node.data.iterdir()}
    others = f"{node.public},{free_address()},{free_address()}"
    said = command("serve", "--data", str(node.data), "--bind", node.public, "--group", others)
    assert said.returncode == 1 and "the other founders would not have its messages" in said.stderr
    assert {path.name: path.read_bytes() for path in node.data.iterdir()} == before


@pytest.mark.parametrize("begun", ["alone", "group"])
def test_topics_that_are_read_as_one_keep_a_bus_out_of_a_ring(house: House, begun: str) -> None:
    node = house.add(*(("--group",) if begun == "group" else ()))
    if begun == "group":
        house.nodes[0] = node = Node(node.data, node.address, "--group", node.public)
    node.start()
    with tidings.connect(node.public, "ann", timeout=2.0, retries=60) as bus:
        bus.subscribe(["orders", "refunds"])
        bus.subscribe(["{shop}orders", "{shop}refunds"])
    node.stop()
    sentence = "No ring begins: 'ann' is subscribed to 'orders', 'refunds' as one"
    if begun == "alone":
        said = command("serve", "--data", str(node.data), "--bind", node.public, "--ring")
        assert said.returncode == 1 and sentence in said.stderr
        assert role_of(node.data) == BROKER
        node = house.restart(0)
    else:  # What a member has on its own disk need not be the last word of its group, so it has to lead first.
        node = house.restart(0, "--ring")
        assert sentence in wait_for("its word", node.hear)
    with tidings.connect(node.public, "ann", timeout=2.0, retries=60) as bus:
        bus.unsubscribe(["orders", "refunds"])
    if begun == "alone":
        node = house.restart(0, "--ring")
    wait_for("a ring", lambda: is_ring_of(node, 1))


def test_a_node_that_has_not_asked_is_not_added(house: House) -> None:
    node, stranger = house.add().start(), free_address()
    said = command("cluster", "add", stranger, "--bus", node.public)
    assert said.returncode == 1
    assert f"Nobody at {stranger} asks to join" in said.stderr and f"--into {node.public}" in said.stderr
    assert role_of(node.data) == BROKER
    said = command("cluster", "--bus", node.public)
    assert said.returncode == 0 and said.stdout.startswith("a broker alone\n") and node.public in said.stdout
