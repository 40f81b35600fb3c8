"""The two ownership policies of a broker: one that owns everything, and one whose group may be part of a ring."""

from __future__ import annotations

import pytest

from tidings.errors import InvalidRequest, StorageDamaged
from tidings.protocols.broker.commands import Adopt, BatchWrite, Command, Open, Stage, Write
from tidings.protocols.broker.machine import Machine
from tidings.protocols.broker.messages import Target
from tidings.protocols.broker.ownership import OwnershipPolicy, OwnsEverything
from tidings.protocols.ring.commands import Claim, Drop
from tidings.protocols.ring.key_ranges import WHOLE, point_of
from tidings.protocols.ring.ownership import Ownership
from tidings.protocols.ring.policy import RingPolicy, ring_of
from tidings.settings import BrokerSettings

WORK: list[Command] = [
    Open("ann", b"token", False),
    Write("ann", 1, (BatchWrite((Target("news", 1), Target("sport", 1)), 1, 10),)),
    Stage("ann", 1, "query", 1, "stage", 1, "news", 1, 10),
]
"""The topics lie apart, and one is staged: a ring takes neither."""


def at_work(policy: OwnershipPolicy) -> Machine:
    machine = Machine(BrokerSettings(), policy)
    for number, command in enumerate(WORK):
        machine.apply(command, 1_000, 1_000 * number)
    return machine


@pytest.mark.parametrize("policy", [OwnsEverything(), RingPolicy()], ids=["everything", "no ring"])
def test_outside_of_a_ring_everything_is_owned(policy: OwnershipPolicy) -> None:
    machine = at_work(policy)
    assert ring_of(machine) is None
    assert machine.owns("news") and machine.ownership.owns_home("ann")
    assert machine.ownership.beside("news", "dead") == "dead"


def test_a_dead_letter_topic_of_a_ring_has_the_same_owner() -> None:
    policy = RingPolicy(Ownership((WHOLE,)))
    for topic in ("news", "{shop}orders"):
        assert point_of(policy.beside(topic, "dead")) == point_of(topic)


@pytest.mark.parametrize("restored", [OwnsEverything(), RingPolicy()], ids=["everything", "no ring"])
@pytest.mark.parametrize("sealed", [OwnsEverything(), RingPolicy()], ids=["everything", "no ring"])
def test_a_snapshot_without_a_ring_is_the_same_under_both(sealed: OwnershipPolicy, restored: OwnershipPolicy) -> None:
    index, snapshot = at_work(sealed).seal()
    assert (index, snapshot) == at_work(OwnsEverything()).seal()
    machine = Machine(BrokerSettings(), restored)
    machine.restore(snapshot, [index])
    assert machine.seal()[1] == snapshot


@pytest.mark.parametrize("command", [Claim((WHOLE,)), Adopt("ann", 7), Drop(1)], ids=lambda each: type(each).__name__)
def test_who_owns_everything_takes_no_command_of_a_ring(command: Command) -> None:
    machine = at_work(OwnsEverything())
    before = machine.seal()
    with pytest.raises(InvalidRequest):
        machine.apply(command, 1_000, 5_000)
    assert machine.seal() == before


def test_who_owns_everything_does_not_read_the_snapshot_of_a_ring() -> None:
    _, snapshot = at_work(RingPolicy()).seal()
    Machine(BrokerSettings()).restore(snapshot, [])
    machine = at_work(RingPolicy())
    machine.apply(Claim((WHOLE,)), 1_000, 5_000)
    with pytest.raises(StorageDamaged):
        Machine(BrokerSettings()).restore(machine.seal()[1], [])


def test_machines_do_not_share_what_they_own() -> None:
    """The policy that owns everything has no state, and may be shared; each ring's is a machine's own."""
    alone, other = Machine(BrokerSettings()), Machine(BrokerSettings(), RingPolicy())
    other.apply(Claim(()), 1_000, 0)
    assert alone.owns("news") and not other.owns("news")
