"""What the disk of a member has damaged comes from another member at once, for anyone who waits for it (Z11, P6)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.node.members import Members, Node
from tests.unit.node.test_group import store, values_of
from tidings.errors import StorageDamaged
from tidings.journal import segment as files
from tidings.journal.checked import DamagedPlace
from tidings.node.group import REPAIR_EVERY_MS
from tidings.protocols.broker import bulk, messages
from tidings.protocols.broker.commands import Carried, CarriedStage, Carry, Trim, encode_command
from tidings.protocols.broker.retention import carries_within
from tidings.settings import JournalSettings

COUNT = 40
VALUES = [b"value %02d " % number * 5 for number in range(COUNT)]
JOURNAL = JournalSettings(segment_records_max=30, recent_bytes_max=1)


def make_group() -> Members:
    group = Members(journal=JOURNAL)
    for number, value in enumerate(VALUES, 1):
        store(group, value, sequence=number)
    assert len(group.leader().engine.journal.segments) > 1
    return group


def flip(node: Node, offset: int, within: int = 0) -> int:
    """Flips a bit of a stored message; its address. What is in memory of the files is dropped."""
    journal = node.engine.journal
    topic = node.engine.broker.machine.topics["news"]
    address = topic.addresses[offset]
    bases = [(each.base_address, each.first_slot) for each in journal.segments]
    bases.append((journal.segment_address, files.slots_of(node.disk.names(), files.JOURNAL_SUFFIX)[-1]))
    base_address, slot = max(each for each in bases if each[0] <= address)
    node.disk.flip_bit(files.journal_name(slot), address - base_address + within, within % 8)
    journal._current.unmap()
    for checked in journal._checked.values():
        checked.unmap()
    return address


def read(group: Members, node: Node, first: int, end: int) -> Any:
    return group.ask(node, bulk.Read(9, "news", first, end, 1_000, 100_000))


def heard_values(node: Node, peer: str) -> list[bytes]:
    return [value for who, _, batches in node.heard if who == peer for batch in batches for value in batch.values]


@pytest.mark.parametrize("offset", [0, 7, 20, 33, COUNT - 1])
def test_a_reader_gets_the_good_bytes_in_the_same_answer(offset: int) -> None:
    group = make_group()
    leader = group.leader()
    address = flip(leader, offset, within=offset)
    with pytest.raises(StorageDamaged):
        values_of(leader)
    now_ms = group.now_ms
    assert isinstance(read(group, leader, 0, COUNT), bulk.ReadDone)
    assert heard_values(leader, "peer") == VALUES
    assert group.now_ms == now_ms, "no scrub had to come by first"
    assert leader.engine.broker.machine.topics["news"].addresses[offset] > address
    assert values_of(leader) == VALUES
    assert group.ask(leader, messages.AskStatus(5)).numbers["damaged"] == 1
    if address < leader.engine.journal.segment_address:
        leader.restart(group.now_ms)
        group.pass_ms(3_000)
        assert values_of(leader) == VALUES


def test_an_answer_that_was_held_meanwhile_reads_it_where_it_lies_now() -> None:
    group = make_group()
    leader = group.leader()
    address, size_bytes = flip(leader, 7), leader.engine.broker.machine.topics["news"].sizes[7]
    with pytest.raises(DamagedPlace) as found:
        leader.engine.journal.read(address, size_bytes)
    leader.disk_is_slow = True
    assert leader.engine.log.replica.mend(found.value.span)
    group.run_until_quiet()
    assert leader.engine.committing, "it has come, and is not on the disk"
    group.cut = {leader.identity.number}  # Nobody confirms that it leads.
    assert read(group, leader, 0, COUNT) is None
    leader.disk_is_slow = False
    group.run_until_quiet()
    group.cut = set()
    group.pass_ms(200)
    assert heard_values(leader, "peer") == VALUES


def test_every_message_may_be_damaged_one_after_the_other() -> None:
    group = make_group()
    leader = group.leader()
    for offset in range(COUNT):
        flip(leader, offset, within=offset)
        assert isinstance(read(group, leader, 0, COUNT), bulk.ReadDone)
        assert heard_values(leader, "peer") == VALUES, offset


def test_a_stream_waits_for_it_and_goes_on_in_order() -> None:
    group = make_group()
    leader = group.leader()
    epoch = group.hello(leader, "bob")
    group.ask(leader, messages.Subscribe(3, "bob", epoch, ("news",), "earliest"), peer="bob")
    for offset in (5, 6, 30):
        flip(leader, offset)
    leader.heard.clear()
    group.say(leader, messages.Flow(0, "bob", epoch, ("news",), 1, (), 1_000, 1_000_000), peer="bob")
    group.run_until_quiet()
    group.pass_ms(200)
    assert heard_values(leader, "bob") == VALUES


def test_get_and_a_group_at_work_wait_for_it_too() -> None:
    group = make_group()
    leader = group.leader()
    epoch = group.hello(leader, "bob")
    group.ask(leader, messages.Subscribe(3, "bob", epoch, ("news",), "earliest"), peer="bob")
    flip(leader, 0)
    group.ask(leader, messages.Get(4, "bob", epoch, "news"), peer="bob")
    assert heard_values(leader, "bob") == VALUES[:1]
    group.ask(leader, messages.Join(5, "bob", epoch, "workers", "news"), peer="bob")
    flip(leader, 1)
    leader.heard.clear()
    group.say(leader, messages.Work(6, "bob", epoch, "workers", "news", 1, 1_000, (), True), peer="bob")
    group.run_until_quiet()
    group.pass_ms(200)
    assert sorted(heard_values(leader, "bob")) == sorted(VALUES)


def test_a_reader_is_told_when_nobody_else_has_it() -> None:
    group = make_group()
    leader = group.leader()
    for node in group.nodes.values():
        flip(node, 8)
    assert read(group, leader, 0, COUNT) is None, "it waits for the others"
    group.pass_ms(7_000)
    answers = [each for who, each, _ in leader.heard if who == "peer" and isinstance(each, bulk.ReadDone)]
    assert [len(each.batches) for each in answers] == [8], "what comes before it"
    assert heard_values(leader, "peer") == VALUES[:8]
    assert read(group, leader, 8, 9) is None
    group.pass_ms(7_000)
    (failed,) = [each for who, each, _ in leader.heard if isinstance(each, messages.Failed)]
    assert failed.number == StorageDamaged.number
    assert isinstance(read(group, leader, 9, COUNT), bulk.ReadDone), "the rest can be read"


def test_the_scrub_mends_what_nobody_reads_also_on_those_who_follow() -> None:
    group = make_group()
    for node in group.nodes.values():
        flip(node, node.identity.number)
    group.wait(lambda: all(_is_whole(node) for node in group.nodes.values()), "everybody has everything")


def _is_whole(node: Node) -> bool:
    try:
        return values_of(node) == VALUES
    except StorageDamaged:
        return False


def copy_forward(group: Members, node: Node, offset: int) -> None:
    """Has a member copy a stored message to its journal's end, as retention does, and that sealed."""
    machine = node.engine.broker.machine
    address = machine.topics["news"].addresses[offset]
    [carry] = carries_within(machine, address, address + 1)
    body = bytes(node.engine.journal.read(address, machine.topics["news"].sizes[offset]))
    node.engine.log.stage_carry(carry, (body,))
    group.run_until_quiet()
    assert machine.topics["news"].addresses[offset] > address
    node.engine.log.replica.roll()
    group.hello(group.leader(), "somebody")
    assert machine.topics["news"].addresses[offset] < node.engine.journal.segment_address


def test_a_copy_that_was_carried_forward_comes_from_another_too() -> None:
    """Z11: it lies in no slot's record any more; the others have it elsewhere, and one as a copy, too."""
    group = make_group()
    leader = group.leader()
    other = next(node for node in group.nodes.values() if node is not leader)
    for node in (leader, other):
        copy_forward(group, node, 3)
    address = flip(leader, 3)
    assert not leader.engine.log.replica.places.within(address - 200, address + 1)
    assert isinstance(read(group, leader, 0, COUNT), bulk.ReadDone)
    assert heard_values(leader, "peer") == VALUES
    assert values_of(leader) == VALUES
    leader.restart(group.now_ms)
    group.pass_ms(3_000)
    assert values_of(leader) == VALUES


def test_what_the_others_have_carried_forward_comes_from_their_copies() -> None:
    """Z11: they no longer have the slot, and they do have the message."""
    group = make_group()
    leader = group.leader()
    for node in group.nodes.values():
        if node is not leader:
            copy_forward(group, node, 3)
            node.engine.log.replica.places.begin_at(node.engine.log.replica.applied)
    address = flip(leader, 3)
    assert leader.engine.log.replica.places.within(0, address)
    assert read(group, leader, 0, COUNT) is None, "they do not have its slot"
    group.pass_ms(2 * REPAIR_EVERY_MS)
    assert heard_values(leader, "peer") == VALUES
    assert values_of(leader) == VALUES


def test_a_copy_that_nobody_has_whole_is_not_made_up() -> None:
    group = make_group()
    for node in group.nodes.values():
        copy_forward(group, node, 3)
        flip(node, 3)
    leader = group.leader()
    assert read(group, leader, 3, 4) is None, "it waits for the others"
    group.pass_ms(7_000)
    (failed,) = [each for who, each, _ in leader.heard if isinstance(each, messages.Failed)]
    assert failed.number == StorageDamaged.number


def test_what_another_member_asks_for_is_looked_at_before_it_is_believed() -> None:
    leader = make_group().leader()
    state = leader.engine.log.replica.state
    carried = Carried("news", 3, leader.engine.broker.machine.topics["news"].sizes[3])
    assert state.place_of(encode_command(Carry((carried,)))) is not None
    wrong = [
        Carry(()),
        Carry((carried, carried)),
        Carry((Carried("nothing", 3, carried.size_bytes),)),
        Carry((Carried("news", COUNT + 9, carried.size_bytes),)),
        Carry((Carried("news", 3, carried.size_bytes + 1),)),
        Carry((), (CarriedStage("nothing", 1, 10, 0),)),
        Trim(()),
    ]
    assert [state.place_of(encode_command(each)) for each in wrong] == [None] * len(wrong)
    assert [state.place_of(data) for data in (b"", b"\xff\xff", b"\x91" * 5_000)] == [None] * 3
