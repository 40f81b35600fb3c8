"""A group that joins a ring with topics of its own, by every order of messages, leaders and restarts."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.protocols.ring.two_groups import CLIENTS, TOPICS, Group, World, describe_topic
from tidings.errors import InvalidRequest
from tidings.protocols.broker.commands import Command, Open, Subscribe
from tidings.protocols.broker.machine import Machine
from tidings.protocols.ring import transfer
from tidings.protocols.ring.commands import Claim, Facts, HandOff, Load, LoadedBatch, LoadedTopic, Seek, decode_command
from tidings.protocols.ring.facts import END, START, Epoch, Home, Known, Retired
from tidings.protocols.ring.key_ranges import WHOLE, home_of, point_of, spot, spots, without
from tidings.protocols.ring.messages import GroupDescriptor
from tidings.protocols.ring.ownership import Ownership
from tidings.protocols.ring.policy import RingPolicy, ring_of
from tidings.settings import BrokerSettings

SEEDS, SEEDS_SOAK = 10, 200
FIRST_SEEDS = (
    *range(0, SEEDS, 10),
    *(pytest.param(first, marks=pytest.mark.soak) for first in range(SEEDS, SEEDS_SOAK, 10)),
)
WESTERN = ("{shop}orders", "{shop}refunds", "weather", "tides", "ann", "cleo", "worker/0000000000000001")
"""Topics and clients of the group that joins."""
POINTS = {
    **{point_of(name): name for name in WESTERN if name in TOPICS},
    **{home_of(name): name for name in WESTERN if name in CLIENTS},
}


class JoiningWorld(World):
    """The east has a ring of its own, and the west is a broker alone, until it joins."""

    def _begin(self, east: Group, west: Group) -> None:
        east.journal.apply(Claim((WHOLE,)), self.now_ms)

    @property
    def west(self) -> Group:
        return self.groups[b"west"]

    def brings(self, point: bytes) -> bool:
        """Whether something is still the west's own."""
        ring = self.west.ring
        return point in POINTS if ring is None else point in ring.strays

    def owner(self, point: bytes) -> Group | None:
        return self.west if self.brings(point) else super().owner(point)

    def ask(self, command: Command, point: bytes, bodies: tuple[bytes, ...] = ()) -> bool:
        client = getattr(command, "client", None)
        if client is not None and not isinstance(command, Open):
            is_west = self.brings(point)
            if self.west.ring is None and self.brings(home_of(client)) != is_west:
                return False  # Nobody of one side is a client of the other before they are one.
            if self.brings(home_of(client)) and not is_west:
                return False  # Its door holds that back.
        return super().ask(command, point, bodies)

    def expect_moved(self, group: Group, command: Command, bodies: tuple[bytes, ...]) -> None:
        """Before the west has all that it brings, the owner in the ring would take what comes to the west's door."""
        west = self.west.ring
        if west is not None and not west.strays:
            super().expect_moved(group, command, bodies)

    def check_owners(self) -> None:
        if self.west.ring is not None:
            super().check_owners()

    def _close(self, client: str, epoch: int) -> None:
        if self.west.ring is not None and not self.west.ring.strays:
            super()._close(client, epoch)

    def bring(self) -> None:
        """Takes what is brought, some points at a time, while clients work."""
        self.loss = self.repeats = self.rng.choice((0.0, 0.1, 0.3))
        works = self.rng.choice((0.05, 0.3, 0.8))
        for turn in range(30_000):
            ring = self.west.ring
            assert ring is not None
            if not ring.strays and ring.taking_over is None and self.is_still:
                return
            if turn > 3_000:
                self.loss = self.repeats = works = 0.0
            if turn % 8 == 0 and ring.taking_over is None and ring.strays:
                points = self.rng.sample(sorted(ring.strays), min(3, len(ring.strays)))
                self.west.handoff.wish(spots(points), self.groups[b"east"].descriptor)
            self.step()
            if self.rng.random() < works:
                self.work()
        raise AssertionError("the group never came")

    def run_joining(self) -> None:
        for _ in range(200):
            self.work()
        self.west.journal.apply(Claim((), True, ("west-door",)), self.now_ms)
        ring = self.west.ring
        assert ring is not None and ring.doors == ("west-door",)
        assert set(ring.strays) <= set(POINTS) and len(ring.strays) > 3
        self.compare()
        self.bring()
        self.compare()
        assert ring_of(self.west.machine).brought == ring_of(self.west.machine).ranges  # type: ignore[union-attr]
        self.move(self.west, self.groups[b"east"])
        self.run(2)


@pytest.mark.parametrize("first", FIRST_SEEDS)
def test_a_group_that_joins_keeps_all_that_it_has(first: int) -> None:
    for seed in range(first, first + 10):
        world = JoiningWorld(seed)
        try:
            world.run_joining()
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise
        assert world.accepted > 100


# What may not be mixed.


def broker(*names: str, epoch: int = 1, token: bytes = b"ours") -> Machine:
    """A broker alone with a client and topics that it has subscribed to."""
    machine = Machine(BrokerSettings(), RingPolicy())
    for number in range(epoch):
        machine.apply(Open("ann", token if number == epoch - 1 else b"%d" % number, False), 0, 0)
    for name in names:
        machine.apply(Subscribe("ann", epoch, (name,), "now"), 0, 0)
    return machine


def ring(machine: Machine) -> Ownership:
    found = ring_of(machine)
    assert found is not None
    return found


def test_what_a_group_brings_is_served_and_not_owned() -> None:
    machine = broker("news", "{shop}orders")
    machine.apply(Claim((), True, ("tcp://127.0.0.1:7500",)), 0, 0)
    found = ring(machine)
    assert sorted(found.strays) == sorted([point_of("news"), point_of("shop"), home_of("ann")])
    assert found.ranges == () and found.owns_topic("news") and found.owns_topic("{shop}refunds")
    assert found.owns_home("ann") and not found.owns_topic("sport") and not found.owns_home("bob")
    again = Ownership.restore(found.state())
    assert again.state() == found.state() and again.owns_topic("news")


def test_a_point_with_a_topic_is_not_given_to_one_who_has_his_own() -> None:
    machine = broker("news")
    machine.apply(Claim((WHOLE,)), 0, 0)
    target = GroupDescriptor(b"west", ("west-1",))
    for name in ("news", "{news}again"):
        with pytest.raises(InvalidRequest, match="'news' is here, where the target has one of its own"):
            machine.apply(HandOff((WHOLE,), target, spots([point_of(name)])), 0, 0)
    assert ring(machine).ranges == (WHOLE,)
    machine.apply(HandOff((WHOLE,), target, spots([point_of("sport")])), 0, 0)
    assert ring(machine).ranges == ()


def test_a_topic_that_was_collected_is_in_the_way_too() -> None:
    machine = broker()
    machine.apply(Claim((WHOLE,)), 0, 0)
    machine.retired["news"] = 7
    assert list(transfer.topics_in(machine, (spot(point_of("news")),))) == ["news"]
    with pytest.raises(InvalidRequest, match="'news' is here"):
        machine.apply(HandOff((WHOLE,), GroupDescriptor(b"west", ()), (spot(point_of("news")),)), 0, 0)


def test_nothing_is_loaded_into_what_is_brought() -> None:
    """Not even from a source that does not know of vacant points."""
    machine = broker("news")
    machine.apply(Claim((), True), 0, 0)
    machine.apply(Seek(b"east", (WHOLE,)), 0, 0)
    loaded = LoadedTopic("news", 0, (LoadedBatch(0, 1, 4, 0),))
    with pytest.raises(InvalidRequest, match="'news' has come from where this group has one of its own"):
        machine.apply(Load((loaded,)), 0, 100)
    machine.apply(Seek(b"east", (WHOLE,), 1), 0, 0)
    with pytest.raises(InvalidRequest, match="'news' has come"):
        machine.apply(Facts(b"east", 1, START, END, (Retired("news", 3),)), 0, 0)
    assert "news" in machine.topics and ("ann", ("news",)) in machine.subscriptions


def test_what_is_brought_stays_when_a_take_is_given_up() -> None:
    machine = broker("news")
    machine.apply(Claim((), True), 0, 0)
    machine.apply(Seek(b"east", (WHOLE,)), 0, 0)
    machine.apply(Load((LoadedTopic("sport", 0, (LoadedBatch(0, 1, 4, 0),)),)), 0, 100)
    machine.apply(Seek(b"", ()), 0, 0)
    assert list(machine.topics) == ["news"]


@pytest.mark.parametrize(
    ("own", "known", "epoch", "token"),
    [
        ((3, b"ours"), (2, b"theirs"), 3, b"ours"),
        ((2, b"ours"), (3, b"theirs"), 3, b"theirs"),
        ((2, b"ours"), (2, b"theirs"), 3, b"theirs"),
        ((2, b"same"), (3, b"same"), 3, b"same"),
    ],
    ids=["ours-is-greater", "theirs-is-greater", "nobody-could-tell-them-apart", "one-session"],
)
def test_the_greater_epoch_of_a_name_wins(own: Any, known: Any, epoch: int, token: bytes) -> None:
    machine = broker("news", epoch=own[0], token=own[1])
    machine.apply(Claim((), True), 0, 0)
    transfer._apply_fact(machine, ring(machine), Home(Known("ann", known[0], False), known[1], (b"past",)))
    client = machine.clients["ann"]
    assert (client.epoch, client.token) == (epoch, token)
    losers = {own[1], known[1]} - {token}
    assert (losers <= set(client.past_tokens) and b"past" in client.past_tokens) or own[1] == known[1]


def test_a_session_is_over_once_a_greater_epoch_is_heard_of() -> None:
    machine = broker("news")
    machine.apply(Claim((), True), 0, 0)
    transfer._apply_fact(machine, ring(machine), Epoch(Known("ann", 5, False)))
    client = machine.clients["ann"]
    assert (client.epoch, client.token, list(client.past_tokens)) == (5, b"", [b"ours"])


def test_an_old_claim_and_an_old_transfer_are_read() -> None:
    """Journals that were written before anything could be brought."""
    assert decode_command(b"\x92\xa5claim\x90") == Claim(())
    assert isinstance(decode_command(b"\x93\xa4give\x90\x92\xc4\x01w\x90"), HandOff)


def test_a_topic_that_came_up_in_the_ring_meanwhile_keeps_both_as_they_are() -> None:
    world = JoiningWorld(1)
    world.loss = world.repeats = 0.0
    east, west = world.groups.values()
    for group, token in ((east, b"theirs"), (west, b"ours")):
        group.journal.apply(Open("eve", token, False), 0)
        group.journal.apply(Subscribe("eve", 1, ("stars",), "now"), 0)
    west.journal.apply(Claim((), True), 0)
    before = [describe_topic(group.journal, "stars") for group in (east, west)]
    clashes: list[str] = []
    for turn in range(4_000):
        ring = west.ring
        assert ring is not None
        if turn % 8 == 0 and ring.taking_over is None and not clashes:
            west.handoff.wish((WHOLE,), east.descriptor)
        world.step()
        clashes += west.handoff.take_clashes()
    assert set(clashes) == {"stars"}
    assert ring.taking_over is None and ring.ranges == () and point_of("stars") in ring.strays
    assert east.ring is not None and east.ring.ranges == (WHOLE,)
    assert [describe_topic(group.journal, "stars") for group in (east, west)] == before
    for _ in range(4_000):  # All else can be taken, with that point left out.
        if ring.taking_over is None and not ring.ranges:
            west.handoff.wish(without((WHOLE,), (spot(point_of("stars")),)), east.descriptor)
        world.step()
    assert east.ring.ranges == (spot(point_of("stars")),) and list(ring.strays) == [point_of("stars")]
    assert [describe_topic(group.journal, "stars") for group in (east, west)] == before
    assert west.machine.clients["eve"].epoch == 2, "two sessions of the same epoch"
