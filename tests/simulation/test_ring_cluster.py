"""Simulated worlds in which groups join and leave a ring, and clients use it, while everything goes wrong (P7 to P12).

`tidings simulate --world ring-cluster --seed S --trace` replays a seed that fails here.
`test_mutants` demands that each planted bug of this world is found.
"""

from __future__ import annotations

from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.simulation.seeds import check_fresh
from tests.simulation.traces import check_not_idle, check_same_in_another_process
from tidings.cli import main
from tidings.errors import Moved
from tidings.protocols.broker import commands, messages
from tidings.protocols.broker.clients import Client
from tidings.protocols.broker.commands import Open, Subscribe
from tidings.protocols.broker.machine import Machine
from tidings.protocols.broker.messages import Position
from tidings.protocols.ring.commands import Claim, Drop, HandOff, Know, TakeOver
from tidings.protocols.ring.key_ranges import WHOLE, KeyRange
from tidings.protocols.ring.messages import GroupDescriptor
from tidings.protocols.ring.ownership import Ownership
from tidings.protocols.ring.policy import RingPolicy
from tidings.settings import BrokerSettings
from tidings.simulator.checkers.checker import Violation
from tidings.simulator.checkers.ledger import Existing
from tidings.simulator.checkers.noted import FencedEverywhere, NotedAtHome
from tidings.simulator.checkers.ring_cluster import FencedAtOwners, OneOwner, mark_of
from tidings.simulator.checkers.ring_ledger import RingLedger
from tidings.simulator.run import run
from tidings.simulator.workloads.ring_cluster import make_ring_world
from tidings.simulator.world.rings import RingOfGroups
from tidings_lab.bugs import MUTANTS

SEEDS = 5
WORLD = "ring-cluster"
HALF = (KeyRange(b"\x7f" * 32, b"\xff" * 32),)


def test_seeds() -> None:
    check_fresh(WORLD, SEEDS)


def test_a_group_that_leaves_does_not_wait_for_an_heir_that_has_left_before_it() -> None:
    """Seed 411, as it was when this was found: the heir was switched off, and nobody had asked whether it lives."""
    assert run(411, kind=WORLD).invariant is None


def test_what_waits_at_a_door_is_waited_for() -> None:
    """Seed 1743: a put that its publisher had given up waited for its owner, and came when all else was over."""
    assert run(1743, kind=WORLD).invariant is None


def test_a_seed_is_the_same_run_in_another_process() -> None:
    program = (
        "from tidings.simulator.run import run\n"
        "for seed in (0, 1, 2, 3, 73, 96): print(run(seed, kind='ring-cluster').trace_hash)"
    )
    check_same_in_another_process(program, 6)


def ring_of(seed: int) -> RingOfGroups:
    """The ring of a world, before anything has happened in it."""
    ring = make_ring_world(Random(seed)).ring
    assert isinstance(ring, RingOfGroups)
    return ring


def test_groups_of_all_kinds_come_and_go() -> None:
    plans = [ring_of(seed).plan for seed in range(100)]
    assert {sum(joining.at_ms == 0 for joining in plan.joins) for plan in plans} == {1, 2, 3}
    assert {sum(joining.at_ms > 0 for joining in plan.joins) for plan in plans} == {0, 1, 2}
    assert {joining.size for plan in plans for joining in plan.joins} == {1, 3}
    assert {len(plan.leaves) for plan in plans} == {0, 1, 2}
    founders = {plan.joins[0].group for plan in plans}
    assert any(leaving.group in founders for plan in plans for leaving in plan.leaves), "also the first group leaves"
    for plan in plans:
        leavers = {leaving.group for leaving in plan.leaves}
        assert any(joining.at_ms == 0 and joining.group not in leavers for joining in plan.joins), "somebody stays"


def test_a_run_is_not_idle() -> None:
    """Topics move under the clients' eyes, from groups whose nodes die to groups whose nodes do."""
    moved = []

    def trace_of(seed: int) -> tuple[str, ...]:
        trace = run(seed, trace=True, kind=WORLD).trace
        moved.append(sum(" owns " in line for line in trace))
        return trace

    wanted = (
        "at a step of the disk",
        "all lights go out",
        "joins with 3",
        "asks",
        "RingLeft(",
        "is switched off",
        "HandOff",
        "Facts",
        "TakeOver",
        "Drop",
        "Adopt",
        "NotLeader(request=0",
        "it is fenced",
        "duplicate=True",
    )
    short = (10, 329, 153, 0, 2, 73, 96, 310)  # Runs of few events, of which the first three show everything today.
    check_not_idle(trace_of, (*short, *range(20)), wanted, seeds_min=len(short))
    assert sum(count > 3 for count in moved) > len(moved) // 2, "in most runs something is handed over"


# The checkers of this world, which judge everybody else.


def owners_of(*groups: str) -> OneOwner:
    ledger = RingLedger(BrokerSettings())
    for group in groups:
        ledger.add_group(group, mark_of(group))
        ledger.of[group].reference.ownership = RingPolicy()
    return OneOwner(ledger)


def decide(owners: OneOwner, group: str, command: commands.Command, *ranges: KeyRange, refused: bool = False) -> None:
    """A group decides a command, and comes to own some ranges by its own account."""
    ledger = cast(RingLedger, owners.ledger)
    ledger.of[group].reference.ownership = RingPolicy(Ownership(ranges))
    owners.on_decided(group, Existing(command, 0, None, Moved("no") if refused else None))


def descriptor(group: str) -> GroupDescriptor:
    return GroupDescriptor(mark_of(group), (f"tcp://{group}1:7400",))


def test_two_owners_are_noticed() -> None:
    owners = owners_of("a", "b")
    decide(owners, "a", Claim((WHOLE,)), WHOLE)
    with pytest.raises(Violation, match="which a owns"):
        decide(owners, "b", Claim(HALF), *HALF)


def test_who_takes_what_was_not_given_to_it_is_noticed() -> None:
    owners = owners_of("a", "b", "c")
    decide(owners, "a", Claim((WHOLE,)), WHOLE)
    for group in "bc":
        decide(owners, group, Claim(()))
    with pytest.raises(Violation, match="which is for nobody"):
        decide(owners, "b", TakeOver(mark_of("a"), 1), WHOLE)
    decide(owners, "a", HandOff((WHOLE,), descriptor("b")))
    with pytest.raises(Violation, match="which is for b"):
        decide(owners, "c", TakeOver(mark_of("a"), 1), WHOLE)
    with pytest.raises(Violation, match="nobody has taken it"):
        decide(owners, "a", Drop(1))
    decide(owners, "b", TakeOver(mark_of("a"), 1), WHOLE)
    decide(owners, "b", TakeOver(mark_of("a"), 1), WHOLE)
    decide(owners, "a", Drop(1))
    assert owners.is_whole()


def test_who_accepts_what_it_does_not_own_is_noticed() -> None:
    owners = owners_of("a", "b")
    decide(owners, "a", Claim((WHOLE,)), WHOLE)
    decide(owners, "a", Subscribe("ann", 1, ("news",), "now"), WHOLE)
    decide(owners, "a", HandOff((WHOLE,), descriptor("b")))
    decide(owners, "a", Subscribe("ann", 1, ("news",), "now"), refused=True)
    for command in (Subscribe("ann", 1, ("news",), "now"), Open("ann", b"token", False)):
        with pytest.raises(Violation, match="does not own"):
            decide(owners, "a", command)


def test_an_account_that_is_not_the_journals_is_noticed() -> None:
    owners = owners_of("a")
    decide(owners, "a", Claim((WHOLE,)), WHOLE)
    with pytest.raises(Violation, match="it should own"):
        decide(owners, "a", Know(()), *HALF)


def test_a_target_without_all_that_was_given_is_noticed() -> None:
    owners = owners_of("a", "b")
    ledger = cast(RingLedger, owners.ledger)
    decide(owners, "a", Claim((WHOLE,)), WHOLE)
    decide(owners, "b", Claim(()))
    ledger.of["a"].reference.make_topic("news", 7)
    decide(owners, "a", HandOff((WHOLE,), descriptor("b")))
    with pytest.raises(Violation, match=r"takes \('topic', 'news'\) as None"):
        decide(owners, "b", TakeOver(mark_of("a"), 1), WHOLE)


def test_an_older_session_is_noticed_where_a_newer_one_was() -> None:
    fenced = FencedAtOwners(RingLedger(BrokerSettings()))

    def exist(command: Any, result: Any = None) -> None:
        fenced.on_existing(Existing(command, 0, result, None))

    exist(Open("ann", b"one", False), 1)
    exist(Open("ann", b"two", False), 2)
    exist(Subscribe("ann", 1, ("news",), "now"))
    exist(Subscribe("ann", 2, ("news",), "now"))
    with pytest.raises(Violation, match="in epoch 1 came after 2"):
        exist(commands.Attach("ann", 1, ("news",), (Position("news", 0),)))
    with pytest.raises(Violation, match="which nobody has given it"):
        exist(Subscribe("ann", 3, ("sport",), "now"))
    with pytest.raises(Violation, match="was given epoch 1 after 2"):
        exist(Open("ann", b"three", False), 1)


def test_a_group_that_serves_a_name_and_is_not_noted_is_noticed() -> None:
    ledger = RingLedger(BrokerSettings())
    noted = NotedAtHome(ledger)
    for group in "ab":
        ledger.add_group(group, mark_of(group))
    ledger.hold("a", (WHOLE,))
    home = ledger.of["a"].reference.clients["ann"] = Client("ann", b"token", False)
    taken = Existing(Subscribe("ann", 1, ("news",), "now"), 0, None, None)
    noted.on_decided("a", taken)
    with pytest.raises(Violation, match="would tell only"):
        noted.on_decided("b", taken)
    home.note((mark_of("b"),))
    noted.on_decided("b", taken)


def test_an_older_session_that_does_something_after_a_welcome_is_noticed() -> None:
    now_ms = 0
    fenced = FencedEverywhere(RingLedger(BrokerSettings()), lambda: now_ms)
    process = cast(Any, SimpleNamespace(name="ann", life=1, label="ann.1"))
    for epoch, waits_ms in ((1, 100), (2, 5_000), (3, 100)):
        fenced.on_request(process, messages.Hello(epoch, 1, "ann", bytes([epoch])))
        fenced.on_decided("a", Existing(Open("ann", bytes([epoch]), False), 0, epoch, None))
        now_ms += waits_ms
        fenced.on_answer(process, messages.Welcome(epoch, epoch, 1, 1, 1, 1))
        older = Existing(Subscribe("ann", epoch - 1, ("news",), "now"), 0, None, None)
        if waits_ms < 1_000:
            with pytest.raises(Violation, match="has been welcomed"):
                fenced.on_decided("b", older)
        else:
            fenced.on_decided("b", older)


def test_the_reference_of_a_topic_is_that_of_its_holder() -> None:
    ledger = RingLedger(BrokerSettings())
    for group in "ab":
        ledger.add_group(group, mark_of(group))
        ledger.of[group].reference.make_topic("news", ord(group))
    assert "news" not in ledger.reference.topics
    for group in "aba":
        ledger.hold(group, (WHOLE,))
        assert ledger.reference.topics["news"] is ledger.of[group].reference.topics["news"]
        assert ledger.holder_of("news") == group


def test_the_world_notices_a_ring_that_is_not_at_rest() -> None:
    ring = ring_of(2)
    assert "has not come" in ring.unfinished()
    owner = ring.plan.joins[0].group
    for joining in ring.plan.joins:
        if joining.group not in ring.judge.ring.of:
            ring.judge.on_group(joining.group, 1)
        ranges = (WHOLE,) if joining.group == owner else ()
        reference = cast(Machine, SimpleNamespace(ownership=RingPolicy(Ownership(ranges))))
        ring.judge.ring.of[joining.group].reference = reference
    assert "owns" in ring.unfinished() or "waits" in ring.unfinished()


def test_bugs_are_planted() -> None:
    assert len([name for name, mutant in MUTANTS.items() if mutant.world == WORLD]) >= 18


def test_the_command_chooses_the_world(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--world", "ring-cluster", "--seed", "1", "--trace"]) == 0
    output = capsys.readouterr().out
    assert "owns ffff-ffff" in output
    assert "lives of the nodes" in output
    assert main(["simulate", "--mutant", "everybody-founds", "--seeds", "2", "--jobs", "1"]) == 1
    assert "every point has one owner at most" in capsys.readouterr().err
