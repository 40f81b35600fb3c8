"""The broker's commands in values, and its state as a replica has it (P7)."""

from __future__ import annotations

import pytest

from tests.unit.node.members import FOUNDERS
from tidings.errors import TidingsError
from tidings.message import Columns
from tidings.node.replicated import MEMBERS_KEPT, BrokerState, new_machine, pack, unpack
from tidings.protocols.broker.commands import BatchWrite, Carried, Carry, Open, Trim, Write, decode_command
from tidings.protocols.broker.commands import encode_command as encode
from tidings.protocols.broker.machine import Machine
from tidings.protocols.broker.messages import Target
from tidings.protocols.effects import Persist
from tidings.protocols.multipaxos.joining import Member
from tidings.protocols.multipaxos.values import Add, Command, Promote, Remove
from tidings.protocols.ring.commands import Claim
from tidings.protocols.ring.key_ranges import WHOLE
from tidings.protocols.ring.policy import ring_of
from tidings.settings import BrokerSettings
from tidings.wire import codec

OPEN = Persist(Open("ann", b"token", False))
BODIES = tuple(codec.encode(Columns(1, "ann", [value])) for value in (b"one", b"two, longer"))


def write(sequence: int, body: bytes) -> Persist:
    return Persist(Write("ann", 1, (BatchWrite((Target("news", sequence),), 1, len(body)),)), (body,))


def make_state(machine: Machine | None = None) -> BrokerState:
    return BrokerState(machine or Machine(BrokerSettings()), FOUNDERS, lambda command, address: False)


def value(time_ms: int, *wanted: Persist) -> Command:
    return Command("", 1, pack(time_ms, list(wanted)))


# Values.


def test_commands_come_back_from_a_value_with_where_their_bodies_are() -> None:
    wanted = [OPEN, write(1, BODIES[0]), Persist(Trim(()), (b"a", b"", b"bc"))]
    body = pack(77, wanted)
    time_ms, parts = unpack(body)
    found = list(parts)
    assert time_ms == 77
    assert [decode_command(part.command) for part in found] == [each.command for each in wanted]
    assert [body[part.bodies_at : part.bodies_at + part.bodies_size] for part in found] == [b"", BODIES[0], b"abc"]


def test_a_value_is_the_same_from_a_view() -> None:
    body = pack(77, [write(1, BODIES[0])])
    time_ms, parts = unpack(memoryview(b"before" + body)[6:])
    assert (time_ms, [part[1:] for part in parts]) == (77, [part[1:] for part in unpack(body)[1]])


@pytest.mark.parametrize(
    "wanted",
    [[OPEN], [write(1, BODIES[0])], [OPEN, write(1, BODIES[0]), write(2, BODIES[1])], [write(1, BODIES[0]), OPEN]],
)
def test_the_pieces_of_a_value_are_all_of_it_and_each_body_is_one(wanted: list[Persist]) -> None:
    body = pack(77, wanted)
    pieces = make_state().buffers(body)
    assert b"".join(pieces) == body
    for each in wanted:
        for part in each.bodies:
            assert part in [bytes(piece) for piece in pieces]


# The state.


def test_commands_are_applied_with_the_leaders_time_at_this_nodes_address() -> None:
    state = make_state()
    wanted = [OPEN, write(1, BODIES[0]), write(2, BODIES[1])]
    state.apply(value(77, *wanted), 1_000)
    topic = state.machine.topics["news"]
    parts = list(unpack(pack(77, wanted))[1])
    assert list(topic.addresses) == [1_000 + part.bodies_at for part in parts[1:]]
    assert list(topic.sizes) == [len(body) for body in BODIES]
    assert list(topic.times) == [77, 77]


def test_what_this_node_has_proposed_is_left_to_anyone_who_answers_for_it() -> None:
    machine = Machine(BrokerSettings())
    seen: list[tuple[Command, int]] = []

    def answer(command: Command, address: int) -> bool:
        seen.append((command, address))
        return True

    command = value(77, OPEN)
    BrokerState(machine, FOUNDERS, answer).apply(command, 1_000)
    assert seen == [(command, 1_000)]
    assert machine.clients == {}


def test_a_command_that_is_refused_changes_nothing_and_stops_nothing() -> None:
    state = make_state()
    refused = Persist(Write("bob", 1, (BatchWrite((Target("news", 1),), 1, len(BODIES[0])),)), (BODIES[0],))
    with pytest.raises(TidingsError):
        Machine(BrokerSettings()).apply(refused.command, 77, 0)
    state.apply(value(77, OPEN, refused, write(1, BODIES[1])), 0)
    assert "bob" not in state.machine.clients
    assert list(state.machine.topics["news"].sizes) == [len(BODIES[1])]


def test_a_member_of_any_group_applies_what_its_log_says_of_a_ring() -> None:
    """Also from a snapshot: the group may have become a ring's while this member was away."""
    state = make_state(new_machine(BrokerSettings()))
    state.apply(value(77, OPEN, Persist(Claim((WHOLE,)))), 1_000)
    restored = make_state(new_machine(BrokerSettings()))
    index, snapshot = state.seal()
    restored.restore(snapshot, [index])
    for each in (state, restored):
        ring = ring_of(each.machine)
        assert ring is not None and ring.ranges == (WHOLE,)


def test_what_a_node_gives_itself_moves_its_own_addresses_alone() -> None:
    state, other = make_state(), make_state()
    for each in (state, other):
        each.apply(value(77, OPEN, write(1, BODIES[0])), 1_000)
    before = list(other.machine.topics["news"].addresses)
    state.apply_local(encode(Carry((Carried("news", 0, len(BODIES[0])),))), 0, 9_000)
    assert list(state.machine.topics["news"].addresses) == [9_000]
    assert list(other.machine.topics["news"].addresses) == before
    state.move(9_000, len(BODIES[0]), 12_000)
    assert list(state.machine.topics["news"].addresses) == [12_000]


def test_a_sealed_state_comes_back_with_all_that_it_held() -> None:
    state = make_state()
    state.apply(value(77, OPEN, write(1, BODIES[0])), 1_000)
    state.apply_change(Add(4, "tcp://d:1", b"disk 4"))
    state.apply_change(Remove(2, b"heir"))
    first, _ = state.seal()
    state.mark_sealed()
    state.apply(value(78, write(2, BODIES[1])), 2_000)
    second, snapshot = state.seal()
    again = make_state()
    again.members = {}
    again.restore(snapshot, [first, second])
    assert (again.members, again.left, again.heirs) == (state.members, [2], {FOUNDERS[1].address: b"heir"})
    assert list(again.machine.topics["news"].addresses) == list(state.machine.topics["news"].addresses)
    assert again.machine.clients["ann"].epoch == 1
    assert again.lowest_address(5_000) == state.lowest_address(5_000)


# Members.


def test_an_heir_waits_until_somebody_has_its_address() -> None:
    state = make_state()
    address = FOUNDERS[1].address
    state.apply_change(Remove(2, b"heir"))
    assert state.heirs == {address: b"heir"}
    state.apply_change(Add(4, address, b"heir"))
    state.apply_change(Promote(4))
    assert state.heirs == {}
    assert state.members[4] == Member(4, address, b"heir")


def test_who_just_leaves_has_no_heir() -> None:
    state = make_state()
    state.apply_change(Remove(2))
    assert state.heirs == {}
    assert 2 in state.members, "it has to be reached until it knows"


def test_those_who_have_left_are_forgotten_and_never_those_who_stay() -> None:
    state = make_state()
    newest = 3
    for _ in range(2 * MEMBERS_KEPT):
        state.apply_change(Remove(newest))
        newest += 1
        state.apply_change(Add(newest, f"tcp://x:{newest}", b"disk"))
    assert len(state.members) == MEMBERS_KEPT
    assert {1, 2, newest, newest - 1} <= set(state.members)
