"""Which groups the home of a name tells of a new session: in its state, its snapshots and its handoffs."""

from __future__ import annotations

import msgspec
import pytest

from tests.unit.protocols.ring.test_ownership import HOME, NEWS, TARGET, Story
from tidings.errors import Moved
from tidings.protocols.broker.commands import Adopt, Open
from tidings.protocols.broker.machine import Machine
from tidings.protocols.broker.snapshots import ClientState, Snapshot
from tidings.protocols.fields import NOTED_MAX
from tidings.protocols.ring import transfer
from tidings.protocols.ring.commands import Claim, Drop, HandOff, Seek, decode_command
from tidings.protocols.ring.facts import Epoch, Home, Known, Runs
from tidings.protocols.ring.key_ranges import WHOLE, point_of, without
from tidings.protocols.ring.policy import RingPolicy
from tidings.protocols.ring.transfer import AtHome
from tidings.protocols.ring.transfer_facts import Transfer
from tidings.settings import BrokerSettings

ELSEWHERE = without([WHOLE], HOME)


def at_home() -> Story:
    """The home of ann, with a session, and two groups that have been noted."""
    story = Story(WHOLE)
    story.apply(Open("ann", b"one", False))
    assert story.apply(Adopt("ann", 0, False, b"red")) == AtHome(1, True)
    assert story.apply(Adopt("ann", 0, False, b"blue")) == AtHome(1, True)
    return story


def restored(story: Story) -> Machine:
    index, snapshot = story.machine.seal()
    machine = Machine(BrokerSettings(), RingPolicy())
    machine.restore(snapshot, [index])
    return machine


def test_a_group_is_noted_once_and_stays_noted() -> None:
    story = at_home()
    story.again(Adopt("ann", 0, False, b"red"))
    story.apply(Open("ann", b"two", False))
    assert story.apply(Adopt("ann", 0, False, b"red")) == AtHome(2, True)
    assert story.machine.clients["ann"].noted == (b"red", b"blue")
    assert not story.machine.clients["ann"].is_noted


def test_only_the_home_notes() -> None:
    """What was asked for before the home went away is not written down where it was."""
    story = at_home()
    story.apply(HandOff(HOME, TARGET))
    story.refuse(Adopt("ann", 0, False, b"green"), Moved)
    Story(*ELSEWHERE).refuse(Adopt("ann", 0, False, b"green"), Moved)


def test_a_name_without_a_session_or_one_that_may_be_forgotten_has_no_list() -> None:
    story = Story(WHOLE)
    assert story.apply(Adopt("ann", 0, False, b"red")) == AtHome(0, False)
    assert "ann" not in story.machine.clients
    story.apply(Open("bob", b"one", True))
    assert story.apply(Adopt("bob", 0, False, b"red")) == AtHome(1, False)
    assert story.machine.clients["bob"].noted == ()


def test_a_group_writes_down_that_it_has_been_noted() -> None:
    story = Story(*ELSEWHERE)
    assert story.apply(Adopt("ann", 2)) == 2
    assert not story.machine.clients["ann"].is_noted
    assert story.apply(Adopt("ann", 1, True)) == 2
    assert story.apply(Adopt("ann", 3)) == 3
    assert story.machine.clients["ann"].is_noted
    assert restored(story).clients["ann"].is_noted


def test_a_snapshot_has_the_list() -> None:
    assert restored(at_home()).clients["ann"].noted == (b"red", b"blue")


def test_an_older_snapshot_has_none_and_all_are_told() -> None:
    index, snapshot = at_home().machine.seal()
    fields = msgspec.msgpack.decode(snapshot)
    fields[2] = [client[: len(ClientState.__struct_fields__) - 2] for client in fields[2]]
    older = msgspec.msgpack.encode(fields)
    assert msgspec.msgpack.decode(older, type=Snapshot).clients[0].noted is None
    machine = Machine(BrokerSettings(), RingPolicy())
    machine.restore(older, [index])
    client = machine.clients["ann"]
    assert client.noted is None and not client.is_noted
    assert machine.apply(Adopt("ann", 0, False, b"green"), 0, 0) == AtHome(1, True)
    assert client.noted is None


def test_older_records_and_facts_are_read() -> None:
    assert decode_command(msgspec.msgpack.encode(["adopt", "ann", 3])) == Adopt("ann", 3)
    home = msgspec.msgpack.decode(msgspec.msgpack.encode(["home", ["ann", 2, False], b"one", []]), type=Home)
    assert home.noted is None


def test_a_list_that_is_too_long_is_not_read() -> None:
    home = Home(Known("ann", 1, False), b"one", (), tuple(bytes([each]) for each in range(NOTED_MAX + 1)))
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(msgspec.msgpack.encode(home), type=Home)


def test_the_list_goes_with_the_home_and_is_forgotten_where_it_was() -> None:
    story = at_home()
    story.apply(HandOff(HOME, TARGET))
    (fact,) = Transfer(story.machine, HOME, 10).facts_of_client("ann")
    assert fact == Home(Known("ann", 1, False), b"one", (), (b"red", b"blue"))
    target = Story(*ELSEWHERE)
    target.apply(Adopt("ann", 1, True))
    target.apply(Seek(b"source", HOME, 1))
    transfer._apply_fact(target.machine, target.ring, fact)
    client = target.machine.clients["ann"]
    assert client.noted == (b"red", b"blue")
    assert client.is_noted, "should the home go on, it is in the list"
    story.apply(Drop(1))
    assert "ann" not in story.machine.clients


def test_what_is_taken_over_says_nothing_of_having_been_noted() -> None:
    """The source was in the list; the target is not, and has to ask before it serves the name."""
    source = Story(*ELSEWHERE)
    source.apply(Adopt("ann", 2, True))
    source.put("news", epoch=2)
    source.apply(HandOff(NEWS, TARGET))
    facts = Transfer(source.machine, NEWS, 10)
    target = Story()
    target.apply(Seek(b"source", NEWS, 1))
    (runs,) = [fact for fact in facts.facts_of_topic("news") if isinstance(fact, Runs)]
    for fact in (runs, *facts.facts_of_client("ann")):
        transfer._apply_fact(target.machine, target.ring, fact)
    assert isinstance(fact, Epoch)
    client = target.machine.clients["ann"]
    assert (client.epoch, client.is_noted) == (2, False)


def test_where_two_homes_of_a_name_become_one_both_lists_count() -> None:
    story = Story(WHOLE)
    story.apply(Open("ann", b"ours", False))
    assert story.ring.serves(point_of("news"))
    machine = Machine(BrokerSettings(), RingPolicy())
    machine.apply(Open("ann", b"ours", False), 0, 0)
    machine.apply(Claim((), True), 0, 0)
    ring = machine.ownership.ring  # type: ignore[attr-defined]
    own = machine.clients["ann"]
    transfer._apply_fact(machine, ring, Home(Known("ann", 3, False), b"theirs", (), (b"red",)))
    assert own.noted == (b"red",)
    transfer._apply_fact(machine, ring, Home(Known("ann", 4, False), b"third", ()))
    assert own.noted is None
