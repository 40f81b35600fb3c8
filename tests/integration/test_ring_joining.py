"""A broker alone, or a group, joins a ring that is already there, with all its topics, on its own folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import tidings
from tests.integration.growth_load import GrowthLoad
from tests.integration.replica_group import Node, ask, wait_for
from tests.integration.test_growth import House, command, ring_of
from tidings.journal.folder import BROKER, MEMBER, RING, role_of
from tidings.protocols.broker.operators import AskHeld, Held, RingGroup
from tidings.protocols.ring.key_ranges import point_of

NAMES = [f"own{number}" for number in range(12)]
"""Topics of the broker that joins."""
THEIRS = [f"theirs{number}" for number in range(6)]


class RingHouse(House):
    """A ring of two groups of one node, and others."""

    def begin(self) -> None:
        first = self.add("--ring").start()
        second = self.add("--join", first.public).start()
        wait_for("a ring of two groups", lambda: all(map(own_row, (first, second))))

    @property
    def founders(self) -> list[Node]:
        return self.nodes[:2]

    def join(self, number: int) -> Node:
        """Restarts a node so that its group joins, by the second group."""
        return self.restart(number, "--join", self.nodes[1].public)

    def wait_until_joined(self, topics: int) -> None:
        """Until every topic is with the group around it."""

        def is_joined() -> bool:
            rows = [own_row(node) for node in self.nodes]
            if not all(row is not None and len(row.ranges) == 1 for row in rows):
                return False
            rings = [ring_of(node) for node in self.nodes]
            counts = {ring.group: ring.topics for ring in rings if ring is not None}
            return sum(counts.values()) == topics

        wait_for("all topics where they belong", is_joined, lambda: str([ring_of(node) for node in self.nodes]))


def own_row(node: Node) -> RingGroup | None:
    """What a node says of its own group, if that owns something."""
    ring = ring_of(node)
    row = next((row for row in ring.groups if row.group == ring.group), None) if ring is not None else None
    return row if row is not None and row.ranges else None


@pytest.fixture
def house(tmp_path: Path) -> Iterator[RingHouse]:
    found = RingHouse(tmp_path)
    yield found
    found.close()


def bus_at(node: Node, name: str) -> tidings.Bus:
    return tidings.connect(node.public, name, timeout=2.0, retries=60)


def fill(bus: tidings.Bus, names: list[str], count: int = 10, read: int = 3) -> None:
    for name in names:
        bus.subscribe(name, start="earliest")
        bus.put_many(name, [b"%d" % each for each in range(count)], ids=[f"id-{each}" for each in range(count)])
        values = [message.value for _ in range(read) if (message := bus.get(name, timeout=30.0)) is not None]
        assert values == [b"%d" % each for each in range(read)]


def check_filled(bus: tidings.Bus, names: list[str], read: int = 3) -> None:
    """What `fill` left: every message once, the cursors, the ids, and the offsets; one more is put and read."""
    for name in names:
        assert bus.put(name, b"again", id="id-4").offset == 4, "a repeated id is known"
        end = bus.put(name, b"more").offset
        values = [message.value for batch in bus.read(name) for message in batch]
        assert values[:10] == [b"%d" % each for each in range(10)] and len(values) == end + 1
        message = bus.get(name, timeout=30.0)
        assert message is not None and message.value == b"%d" % read, "the cursor goes on where it was"


def stored(node: Node) -> dict[str, bytes]:
    """A folder, but for the note that says how much of it was found on disk at the last start."""
    return {path.name: path.read_bytes() for path in node.data.iterdir() if path.name != "durable"}


def test_a_broker_alone_joins_a_ring_while_both_are_used(house: RingHouse) -> None:
    house.begin()
    house.add().start()
    ring, alone = ",".join(node.public for node in house.founders), house.nodes[2].public
    with bus_at(house.nodes[2], "ann") as bus:
        fill(bus, NAMES)
    with (
        GrowthLoad(ring, batch=20, pause=0.02, topic="sales", suffix="-there") as there,
        GrowthLoad(alone, batch=20, pause=0.02, topic="orders", suffix="-here") as here,
    ):
        for load in (there, here):
            load.wait_for(200)
        house.join(2)
        for load in (there, here):
            load.wait_for(200)
        house.wait_until_joined(len(NAMES) + 2)
        for load in (there, here):
            load.wait_for(200)
    for load in (there, here):
        load.check()
    assert role_of(house.nodes[2].data) == RING
    for read, node in enumerate(house.nodes, 3):
        with bus_at(node, "ann") as bus:
            check_filled(bus, NAMES, read)
            assert {topic.name for topic in bus.topics()} == {*NAMES, "sales", "orders"}


@pytest.mark.parametrize(
    ("here", "there", "sentence"),
    [
        ("orders", "orders", "both have a topic 'orders'"),
        ("{shop}orders", "{shop}refunds", "'{shop}refunds' there lies where '{shop}orders' does here"),
    ],
)
@pytest.mark.parametrize("begun", [BROKER, MEMBER])
def test_topics_of_the_same_name_are_refused(
    house: RingHouse, begun: str, here: str, there: str, sentence: str
) -> None:
    house.begin()
    node = house.add().start()
    with bus_at(node, "ann") as bus:
        fill(bus, [here, "other"])
    if begun == MEMBER:
        node = house.restart(2, "--group", node.public)
        with bus_at(node, "ann") as bus:
            bus.put("other", b"as a group")
    with bus_at(house.nodes[0], "bob") as bus:
        fill(bus, [there])
    assert node.stop() == 0
    before = stored(node)
    said = command("serve", "--data", str(node.data), "--bind", node.public, "--join", house.nodes[0].public)
    assert said.returncode == 1 and sentence in said.stderr and said.stderr.count("\n") == 1, said.stderr
    assert "start it without --join" in said.stderr
    assert role_of(node.data) == begun
    assert stored(node) == before
    node = house.nodes[2] = Node(node.data, node.address).start()
    for at, name, topic in ((node, "ann", here), (house.nodes[1], "bob", there)):
        with bus_at(at, name) as bus:
            check_filled(bus, [topic])


def test_topics_that_are_read_as_one_keep_a_broker_out_of_a_ring(house: RingHouse) -> None:
    house.begin()
    node = house.add().start()
    with bus_at(node, "ann") as bus:
        bus.subscribe(["orders", "refunds"])
    assert node.stop() == 0
    said = command("serve", "--data", str(node.data), "--bind", node.public, "--join", house.nodes[0].public)
    assert said.returncode == 1 and "No ring is joined: 'ann' is subscribed to 'orders', 'refunds'" in said.stderr
    assert role_of(node.data) == BROKER


def test_what_a_broker_has_staged_and_published_joins_with_it(house: RingHouse) -> None:
    """D3: a batch that was published stays so, and one that was staged is published where its topics are by then."""
    house.begin()
    house.add().start()
    named = {}
    with bus_at(house.nodes[2], "ann") as bus:
        for batch in (1, 2):
            stage = bus.stage("query", batch, f"attempt-{batch}")
            for name in NAMES:
                stage.write(name, [b"%d" % batch], ids=[f"id-{batch}"])
            named[batch] = [stage.finish()]
        assert not bus.publish("query", 1, named[1]).repeated
    house.join(2)
    house.wait_until_joined(len(NAMES))
    with bus_at(house.nodes[0], "bob") as bus:
        assert bus.publish("query", 1, named[1]).repeated
        assert not bus.publish("query", 2, named[2]).repeated
        assert bus.publish("query", 2, named[2]).repeated
        for name in NAMES:
            assert [value for batch in bus.read(name) for value in batch.values] == [b"1", b"2"]


def test_a_name_that_both_sides_know_goes_on_with_one_session(house: RingHouse) -> None:
    """Whichever side has given it more epochs, the next session works everywhere, with the memory of both sides."""
    house.begin()
    node = house.add().start()
    for name, ours, theirs in (("more-here", 3, 1), ("more-there", 1, 3), ("even", 2, 2)):
        for count, at, topic in ((ours, node, f"own-{name}"), (theirs, house.nodes[0], f"their-{name}")):
            for number in range(count):
                with bus_at(at, name) as bus:
                    assert bus.put(topic, b"%d" % number).offset == number
    house.join(2)
    house.wait_until_joined(6)
    for name, ours, theirs in (("more-here", 3, 1), ("more-there", 1, 3), ("even", 2, 2)):
        for turn, door in enumerate(house.nodes):
            with bus_at(door, name) as bus:
                assert bus.put(f"own-{name}", b"next").offset == ours + turn
                assert bus.put(f"their-{name}", b"next").offset == theirs + turn


@pytest.mark.parametrize("victim", ["joiner", "source"])
@pytest.mark.parametrize("when", range(4))
def test_a_kill_in_the_middle_of_joining(house: RingHouse, victim: str, when: int) -> None:
    """Killed when the first point is the ring's, when some are, when the first is handed on, when some are."""
    house.begin()
    node = house.add().start()
    with bus_at(node, "ann") as bus:
        fill(bus, NAMES)
    with bus_at(house.nodes[0], "bob") as bus:
        fill(bus, THEIRS)
    node = house.join(2)
    seen = [0]

    def is_time() -> bool:
        row, ring = own_row(node), ring_of(node)
        count = len(row.ranges) if row is not None else 0
        seen[0] = max(seen[0], count)
        if when < 2:
            return count > (0, 1)[when]
        is_over = ring is not None and count == 1 and seen[0] > 1
        return is_over or 0 < count < seen[0] if when == 2 else is_over

    wait_for("the time to die", is_time)
    killed = 2 if victim == "joiner" else 0
    old = house.nodes[killed]
    old.kill()
    house.nodes[killed] = Node(old.data, old.address).start()
    house.wait_until_joined(len(NAMES) + len(THEIRS))
    for read, door in enumerate(house.nodes, 3):
        with bus_at(door, "ann") as bus:
            check_filled(bus, NAMES, read)
        with bus_at(door, "bob") as bus:
            check_filled(bus, THEIRS, read)


def test_a_group_of_three_joins_a_ring(house: RingHouse) -> None:
    """Restarted with --join one after another; who has not been follows the others."""
    house.begin()
    group = House(house._folder / "group")
    try:
        first = group.add().start()
        group.take_in(group.add("--into", first.public))
        group.take_in(group.add("--into", first.public))
        with bus_at(first, "ann") as bus:
            fill(bus, NAMES)
        with GrowthLoad(group.addresses, batch=20, pause=0.02, suffix="-here") as load:
            for number in range(3):
                group.restart(number, "--join", house.nodes[1].public)
                load.wait_for(100)
            house.nodes += group.nodes
            wait_for("all in the ring", lambda: all(map(own_row, house.nodes)))
            load.wait_for(200)
        load.check()
        assert [role_of(node.data) for node in group.nodes] == [RING] * 3
        house.wait_until_joined(len(NAMES) + 1)
        for number in range(3):
            old = group.nodes[number]
            old.kill()
            house.nodes[2 + number] = group.nodes[number] = Node(old.data, old.address).start()
        for read, door in enumerate(house.nodes, 3):
            with bus_at(door, "ann") as bus:
                check_filled(bus, NAMES, read)
    finally:
        group.close()


def test_the_ring_tells_what_it_holds_at_a_point(house: RingHouse) -> None:
    node = house.add("--ring").start()
    with bus_at(node, "ann") as bus:
        bus.put("news", b"")
    answer = ask(node.public, AskHeld(1, (point_of("news"), point_of("sport"))))
    assert answer == Held(1, ("news",))
