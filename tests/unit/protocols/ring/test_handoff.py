"""Ranges go from one group to another while clients work, and nothing is lost, doubled or answered differently."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from tests.unit.protocols.ring.two_groups import World
from tidings.errors import Fenced
from tidings.protocols.broker.commands import Adopt, Open
from tidings.protocols.broker.machine import Machine
from tidings.protocols.broker.topics import Topic
from tidings.protocols.ring import transfer
from tidings.protocols.ring.facts import Edges, Epoch, Fact, Known, Retired
from tidings.protocols.ring.handoff import LIMITS
from tidings.protocols.ring.handoff_messages import Ready
from tidings.protocols.ring.handoff_source import HandoffSource, PieceBuilder
from tidings.protocols.ring.key_ranges import WHOLE, KeyRange
from tidings.protocols.ring.messages import GroupDescriptor
from tidings.protocols.ring.ownership import HandingOff, Ownership
from tidings.protocols.ring.policy import RingPolicy
from tidings.protocols.ring.transfer_facts import Transfer
from tidings.settings import BrokerSettings

SEEDS, SEEDS_SOAK = 30, 500
FIRST_SEEDS = (
    *range(0, SEEDS, 10),
    *(pytest.param(first, marks=pytest.mark.soak) for first in range(SEEDS, SEEDS_SOAK, 10)),
)
SEEDS_TO_FIND = 60
"""A planted fault has to show within so many seeds."""


@pytest.mark.parametrize("first", FIRST_SEEDS)
def test_the_owner_of_a_topic_answers_as_if_it_had_never_moved(first: int) -> None:
    """P7, P8: by lost, repeated and late messages, changes of leaders on both sides, and restarts."""
    for seed in range(first, first + 10):
        world = World(seed)
        try:
            world.run()
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise
        assert world.accepted > 100


def _no_facts(of_topic: Any) -> Any:
    def planted(self: Transfer, name: str) -> Iterator[Fact]:
        return (fact for fact in of_topic(self, name) if isinstance(fact, Edges | Retired))

    return planted


def _short_list(names_from: Any) -> Any:
    return lambda self, name: names_from(self, name)[:1]


def _not_frozen(give: Any) -> Any:
    def planted(self: Ownership, ranges: Any, target: Any) -> None:
        self.transfers += 1
        self.handing_off = HandingOff(ranges, target, self.transfers)

    return planted


def _not_remembered(take: Any) -> Any:
    def planted(self: Ownership) -> Any:
        before = dict(self.taken_over)
        ranges = take(self)
        self.taken_over = before
        return ranges

    return planted


def _epoch_of_nobody(known: Any) -> Any:
    return lambda self, name: Known(name, 1, False)


def _without_last_body(add: Any) -> Any:
    def planted(self: PieceBuilder, topic: Topic, have: int) -> Any:
        packed = add(self, topic, have)
        if len(self.bodies) > 1:
            self.bodies[-1] = bytes(len(self.bodies[-1]))
        return packed

    return planted


def _gap_allowed(check: Any) -> Any:
    def planted(topic: Topic | None, loaded: Any) -> int:
        return int(loaded.batches[0].first_offset)

    return planted


FAULTS: dict[str, tuple[Any, str, Callable[[Any], Any]]] = {
    "only the edges of topics are handed over": (Transfer, "facts_of_topic", _no_facts),
    "the list of topics ends early, and the transfer is taken before its last piece": (
        Transfer,
        "topics_from",
        _short_list,
    ),
    "the homes of clients are left out": (Transfer, "clients_from", lambda _: lambda self, name: []),
    "what is given is not frozen": (Ownership, "hand_off", _not_frozen),
    "the target forgets what it has taken": (Ownership, "take_over", _not_remembered),
    "epochs are not handed over": (Transfer, "_known", _epoch_of_nobody),
    "a body gets lost on its way": (PieceBuilder, "add", _without_last_body),
    "what was loaded is loaded again": (transfer, "_check_load", _gap_allowed),
    "the source forgets nothing": (transfer, "forget", lambda _: lambda machine, ring, ranges: None),
    "a restart reads what was loaded in an earlier life": (Topic, "_unload", lambda _: lambda self, first: None),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    place, name, plant = FAULTS[fault]
    monkeypatch.setattr(place, name, plant(getattr(place, name)))
    with pytest.raises((AssertionError, KeyError, IndexError)):
        _run_seeds()


def _run_seeds() -> None:
    for seed in range(SEEDS_TO_FIND):
        World(seed).run()


@pytest.mark.parametrize(("slot", "is_given"), [(4, False), (5, False), (6, True)])
def test_nothing_is_given_to_a_group_that_has_left(slot: int, is_given: bool) -> None:
    """P12: its word may have been long on its way. One that has come back since speaks from a later slot."""
    target = GroupDescriptor(b"taker", ("tcp://127.0.0.1:1",), slot=5, left=True)
    ring = Ownership((WHOLE,))
    machine = Machine(BrokerSettings(), RingPolicy(ring))
    source = HandoffSource(machine, lambda _: b"", lambda _: target, LIMITS)
    ready = Ready(msgspec.structs.replace(target, slot=slot, left=False), b"giver", (WHOLE,))
    assert bool(source.on_ready(0, ring, ready)) == is_given


def test_a_session_that_was_replaced_is_fenced_by_the_target_too() -> None:
    """Decision 9: also where its successor has left nothing behind. A client's first session has nobody to fence."""
    ring = Ownership((WHOLE,))
    machine = Machine(BrokerSettings(), RingPolicy(ring))
    for name, token in (("ann", b"1"), ("ann", b"2"), ("bob", b"1"), ("anonymous-0123456789abcdef", b"1")):
        machine.apply(Open(name, token, name.startswith("anonymous")), 0, 0)
    for name in ("ann", "bob"):  # They were adopted here: their homes are elsewhere.
        machine.clients[name].token = b""
    frozen = Transfer(machine, (KeyRange(bytes(32), bytes(31) + b"\x01"),), 10)
    facts = [fact for name in frozen.clients_from("") for fact in frozen.facts_of_client(name)]
    assert facts == [Epoch(Known("ann", 2, False))]
    taken = Machine(BrokerSettings(), RingPolicy(Ownership()))
    for fact in facts:
        transfer._apply_fact(taken, Ownership(), fact)
    assert taken.apply(Adopt("ann", 1), 0, 0) == 2
    with pytest.raises(Fenced):
        taken.check_session("ann", 1)
