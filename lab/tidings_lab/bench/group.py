"""Three replicas beside a broker alone, on one machine and one disk: the same work in turns, then leaders die.

Every replica writes and syncs before it answers, so each message is written three times here, by three processes that
share the machine with its one publisher. On three machines only the network is added, and these costs are not shared.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path

from tidings.admin.ports import free_addresses
from tidings.errors import TidingsError
from tidings.protocols.broker.messages import AskTopics, Topics
from tidings.transport.zeromq import DealerLink
from tidings.wire.codec import decode_answer, encode
from tidings_lab.bench.figures import Figure, Limit, at_most, median, ratio_at_least, ratio_at_most
from tidings_lab.bench.plan import Plan
from tidings_lab.bench.processes import READY_SECONDS_MAX, ServerProcess, Worker
from tidings_lab.bench.stage import Stage

ALONE, GROUP = "alone", "group"
MEMBERS = 3
ASK_MS_MAX = 500
WARM_BYTES = 256 * 1024 * 1024


class MemberProcess(ServerProcess):
    """A `tidings serve --group` on a folder."""

    def __init__(self, folder: Path, bind: str, founders: list[str]) -> None:
        command = ["serve", "--data", str((folder / "data").resolve()), "--group", ",".join(founders)]
        super().__init__(folder, command, bind=bind)

    def leads(self) -> bool:
        """Whether it answers for the group."""
        link = DealerLink(self.address)
        try:
            link.send([encode(AskTopics(1))])
            frames = link.receive(ASK_MS_MAX)
            return frames is not None and isinstance(decode_answer(frames[0]), Topics)
        finally:
            link.close()


def steps(plan: Plan) -> int:
    """How many steps it takes."""
    return 2 * plan.rounds


def run(on: Stage) -> list[Figure]:
    """Durable put_many and single puts, alone and in a group in turns; then the leader is killed again and again."""
    with ExitStack() as stack:
        return _run(on, members_of(on, stack))


def _run(on: Stage, members: list[MemberProcess]) -> list[Figure]:
    plan = on.plan
    addresses = {ALONE: on.broker(ALONE).address, GROUP: ",".join(member.address for member in members)}
    leader_of(members)
    publishers = {name: on.worker(address, "publisher") for name, address in addresses.items()}
    count, size = plan.publish_messages, plan.value_bytes
    for publisher in publishers.values():
        publisher.ask("make_texts", count=min(count, 1_000_000), size=size)
        publisher.ask("publish", topic="warm-up", count=max(1, count // 10), size=size)
    rates: dict[str, list[float]] = {ALONE: [], GROUP: []}
    puts: dict[str, list[float]] = {ALONE: [], GROUP: []}
    for number in range(plan.rounds):
        on.step(f"round {number + 1} of {plan.rounds}: {count:,} messages alone and in a group")
        # The one that comes first in a round comes last in the next one.
        for name in (ALONE, GROUP) if number % 2 == 0 else (GROUP, ALONE):
            on.warm(int(count * size * 1.2 * (MEMBERS if name == GROUP else 1)) + WARM_BYTES)
            rates[name].append(_publish(publishers[name], count, size))
            puts[name].append(median(publishers[name].ask("put", topics=["news"], count=plan.put_messages, size=size)))
    on.raw["processor_seconds"] = [member.processor_seconds() for member in members]
    failovers: list[float] = []
    for number in range(plan.rounds):
        on.step(f"the leader is killed, {number + 1} of {plan.rounds}")
        leader = leader_of(members)
        publishers[GROUP].ask("put", topics=["news"], count=plan.put_messages, size=size)
        leader.kill()
        failovers += publishers[GROUP].ask("put", topics=["news"], count=1, size=size)
        leader.start()
    return [
        Figure(
            scenario="group",
            name="put_many, durable, three replicas",
            value=median(rates[GROUP]),
            unit="messages/s",
            limit=Limit("the same, a broker alone", median(rates[ALONE])),
            target=ratio_at_least(0.35),
            samples=tuple(rates[GROUP]),
            limit_samples=tuple(rates[ALONE]),
        ),
        Figure(
            scenario="group",
            name="synchronous put, p50, three replicas",
            value=median(puts[GROUP]),
            unit="s",
            limit=Limit("the same, a broker alone", median(puts[ALONE])),
            target=ratio_at_most(3.0),
            samples=tuple(puts[GROUP]),
            limit_samples=tuple(puts[ALONE]),
        ),
        Figure(
            scenario="group",
            name="from a leader's death to the next stored put",
            value=median(failovers),
            unit="s",
            target=at_most(2.0),
            samples=tuple(failovers),
        ),
    ]


def members_of(on: Stage, stack: ExitStack) -> list[MemberProcess]:
    """A group that has been founded: which happens when all of its members run."""
    addresses = free_addresses(MEMBERS)
    members = [MemberProcess(on.folder / f"member{number}", each, addresses) for number, each in enumerate(addresses)]
    for member in members:
        stack.callback(member.stop)
        member.launch()
    for member in members:
        member.wait_until_ready()
    return members


def leader_of(members: list[MemberProcess]) -> MemberProcess:
    """The leader; waits until somebody does."""
    deadline = time.monotonic() + READY_SECONDS_MAX
    while time.monotonic() < deadline:
        for member in members:
            if member.leads():
                return member
    raise TidingsError(f"Nobody has led the group for {READY_SECONDS_MAX:g} s: give it up.")


def _publish(publisher: Worker, count: int, size: int) -> float:
    began, ended = publisher.ask("publish", topic="news", count=count, size=size)
    return float(count / (ended - began))
