"""Whom a hello is told to: the groups that its home has noted, wherever topics and homes have moved."""

from __future__ import annotations

import msgspec
import pytest

from tests.unit.node.rings import RingNode, Rings, topic_in
from tidings.errors import Fenced, ProtocolError
from tidings.message import Columns
from tidings.node.ring.admitting import WAITING_MS_MAX
from tidings.protocols.broker import messages
from tidings.protocols.broker.clients import Client
from tidings.protocols.ring.messages import AskEpoch, Relay, Word
from tidings.wire import codec
from tidings.wire.codec import Frame
from tidings.wire.ring import decode_header, encode_message


def name_at(node: RingNode, but: str = "") -> str:
    """A name whose home a group has."""
    ring = node.engine.ring.ownership
    assert ring is not None
    return next(name for number in range(1_000) if (name := f"ann{number}") != but and ring.owns_home(name))


def client_at(node: RingNode, name: str) -> Client | None:
    return node.engine.broker.machine.clients.get(name)


def groups_of(*nodes: RingNode) -> set[bytes]:
    return {node.identity.group for node in nodes}


def told(ring: Rings) -> list[str]:
    """The nodes that are told of a new epoch from now on, as they are."""
    found: list[str] = []

    def see(receiver: str, frames: list[Frame]) -> None:
        try:
            message = decode_header(frames).message
        except ProtocolError:
            return
        if isinstance(message, Relay) and isinstance(codec.decode_request(frames[2]), messages.Beat):
            found.append(receiver)

    ring.see = see
    return found


def is_fenced(answer: object) -> bool:
    return isinstance(answer, messages.Failed) and answer.number == Fenced.number


def test_a_hello_on_a_ring_of_eight_groups_reaches_only_those_that_know_the_name() -> None:
    ring = Rings(8, 1)
    home, one, two, *others = ring.nodes.values()
    name = name_at(home)
    old = ring.hello(home, name, b"one")
    for node in (one, two):
        assert isinstance(ring.put(home, name, old, topic_in(node), b"old"), messages.PutDone)
    counted = told(ring)
    new = ring.hello(others[0], name, b"two")
    assert sorted(counted) == sorted([one.address, two.address])
    for node in (one, two):
        assert is_fenced(ring.put(home, name, old, topic_in(node), b"late"))
    assert isinstance(ring.put(home, name, new, topic_in(others[1]), b"new"), messages.PutDone)
    counted.clear()
    ring.hello(home, name, b"three")
    assert sorted(counted) == sorted([one.address, two.address, others[1].address])
    known = client_at(home, name)
    assert known is not None and known.noted is not None and set(known.noted) == groups_of(one, two, others[1])


def test_a_name_that_nobody_else_knows_is_told_to_nobody() -> None:
    ring = Rings(3, 1)
    home, _, other = ring.nodes.values()
    name = name_at(home)
    ring.hello(other, name, b"one")
    counted = told(ring)
    assert ring.hello(other, name, b"two") == 2
    assert counted == []


def test_an_older_session_is_fenced_where_neither_has_ever_been() -> None:
    """The owner asks the home before it takes anything, and hears of the newer session."""
    ring = Rings(3, 1)
    home, stranger, other = ring.nodes.values()
    name = name_at(home)
    old = ring.hello(home, name, b"one")
    ring.hello(other, name, b"two")
    assert is_fenced(ring.put(home, name, old, topic_in(stranger), b"late"))
    known = client_at(stranger, name)
    assert known is not None and known.is_noted and known.epoch == 2


def test_the_home_is_asked_once() -> None:
    ring = Rings(2, 1)
    home, owner = ring.nodes.values()
    name = name_at(home)
    epoch = ring.hello(home, name)
    asked = 0

    def see(receiver: str, frames: list[Frame]) -> None:
        nonlocal asked
        asked += receiver == home.address and isinstance(decode_header(frames).message, AskEpoch)

    ring.see = see
    for _ in range(3):
        assert isinstance(ring.put(home, name, epoch, topic_in(owner), b"one"), messages.PutDone)
    assert asked == 1
    owner.kill()
    owner.start(ring.now_ms)
    assert isinstance(ring.put(home, name, epoch, topic_in(owner), b"two"), messages.PutDone)
    assert asked == 1, "that it has been noted is in its journal"


def test_names_of_one_session_are_asked_for_nowhere() -> None:
    ring = Rings(2, 1)
    home, owner = ring.nodes.values()
    own = home.engine.ring.ownership
    assert own is not None
    name = next(name for number in range(1_000) if own.owns_home(name := f"anonymous-{number:016x}"))
    epoch = ring.hello(home, name)
    assert isinstance(ring.put(home, name, epoch, topic_in(owner), b"one"), messages.PutDone)
    known, there = client_at(home, name), client_at(owner, name)
    assert known is not None and known.noted == ()
    assert there is not None and not there.is_noted
    counted = told(ring)
    ring.hello(home, name, b"two")
    assert counted == [owner.address], "such a name has no list"


@pytest.mark.parametrize("joins_first", [False, True])
def test_topics_that_move_to_a_group_that_has_never_heard_of_the_name(joins_first: bool) -> None:
    ring = Rings(2, 1)
    first, _ = ring.nodes.values()
    topics = [f"topic-{number}" for number in range(30)]
    name = name_at(first)
    old = ring.hello(first, name, b"one")
    for topic in topics:
        assert isinstance(ring.put(first, name, old, topic, b"old"), messages.PutDone)
    if not joins_first:
        ring.hello(first, name, b"two")
    (third,) = ring.add_group(1)
    ring.wait(lambda: ring.owns([third]), "the new group owns something")
    moved = [topic for topic in topics if ring.owner_of(topic) is third]
    assert moved
    if joins_first:
        known = client_at(third, name)
        assert known is not None and not known.is_noted
        ring.hello(first, name, b"two")
    for topic in moved:
        assert is_fenced(ring.put(first, name, old, topic, b"late"))
        assert ring.values(topic) == [b"old"]


def test_whom_to_tell_moves_with_the_home() -> None:
    ring = Rings(2, 1)
    first, second = ring.nodes.values()
    names = [f"ann{number}" for number in range(40)]
    for name in names:
        epoch = ring.hello(first, name, b"one")
        for node in (first, second):
            assert isinstance(ring.put(first, name, epoch, topic_in(node), b"old"), messages.PutDone)
    (third,) = ring.add_group(1)
    ring.wait(lambda: ring.owns([third]), "the new group owns something")
    own = third.engine.ring.ownership
    assert own is not None
    moved = [name for name in names if own.owns_home(name)]
    assert moved
    for name in moved:
        before = first if first.engine.broker.machine.clients[name].is_noted else second
        known = client_at(third, name)
        assert known is not None and known.noted == (before.identity.group,)
        ring.hello(first, name, b"two")
        for node in (first, second):
            assert is_fenced(ring.put(first, name, 1, topic_in(node), b"late")), "the one that gave the home away too"


def test_a_group_that_is_noted_and_still_waits_for_that_hears_of_a_newer_session() -> None:
    ring = Rings(3, 1)
    home, owner, other = ring.nodes.values()
    name, topic = name_at(home), topic_in(owner)
    old = ring.hello(home, name, b"one")
    ring.cut = lambda sender, receiver: (sender, receiver) == (home.address, owner.address)
    part = messages.Part((messages.Target(topic, 1),), 1)
    late = messages.Put(5, name, old, part)
    ring.say(other, b"old", late, Columns(1, name, [b"late"]))
    ring.run_until_quiet()
    counted = told(ring)
    assert ring.hello(other, name, b"two") == 2
    assert owner.address in counted
    known = client_at(owner, name)
    assert known is not None and known.epoch == 2 and not known.is_noted
    ring.cut = lambda sender, receiver: False
    ring.wait(lambda: ring.answer(other, b"old", 5) is not None, "the older session is answered")
    assert is_fenced(ring.answer(other, b"old", 5))
    assert known.is_noted


def test_what_waits_for_a_home_that_is_silent_is_sent_away_and_comes_again() -> None:
    ring = Rings(3, 1)
    home, owner, other = ring.nodes.values()
    name, topic = name_at(home), topic_in(owner)
    epoch = ring.hello(home, name)
    ring.cut = lambda sender, receiver: receiver == home.address and sender == owner.address
    put = messages.Put(5, name, epoch, messages.Part((messages.Target(topic, 1),), 1))
    ring.say(other, b"ann", put, Columns(1, name, [b"one"]))
    ring.pass_ms(WAITING_MS_MAX // 2)
    assert ring.answer(other, b"ann", 5) is None
    ring.pass_ms(WAITING_MS_MAX)
    assert isinstance(ring.answer(other, b"ann", 5), messages.NotLeader)
    ring.cut = lambda sender, receiver: False
    assert isinstance(ring.ask(other, put, Columns(1, name, [b"one"])), messages.PutDone)
    assert ring.values(topic) == [b"one"]


def test_a_home_that_is_led_by_an_older_release_holds_nobody_up() -> None:
    """It does not understand what it is asked, and tells every hello to all."""
    ring = Rings(3, 1)
    home, owner, other = ring.nodes.values()
    name, topic = name_at(home), topic_in(owner)
    epoch = ring.hello(home, name)
    ring.cut = lambda sender, receiver: (sender, receiver) == (owner.address, home.address)
    put = messages.Put(5, name, epoch, messages.Part((messages.Target(topic, 1),), 1))
    ring.say(other, b"ann", put, Columns(1, name, [b"one"]))
    ring.pass_ms(500)
    assert ring.answer(other, b"ann", 5) is None
    word = home.engine.ring.word()
    # One of this release that led in an earlier life, says so still, and has a number now that does not lead.
    former = msgspec.structs.replace(word.descriptor, asks_homes=False)
    owner.engine.receive(ring.now_ms, b"node", encode_message(home.address, Word(former, word.ranges)))
    ring.pass_ms(500)
    assert ring.answer(other, b"ann", 5) is None
    old = msgspec.structs.replace(word.descriptor, asks_homes=None)  # It does not know the field.
    owner.engine.receive(ring.now_ms, b"node", encode_message(home.address, Word(old, word.ranges)))
    ring.wait(lambda: isinstance(ring.answer(other, b"ann", 5), messages.PutDone), "the put is answered")
    known = client_at(owner, name)
    assert known is not None and not known.is_noted, "it asks again for the next request"
