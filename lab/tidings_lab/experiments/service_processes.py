"""The whole service with real processes: rings of groups of three on this machine, over ZeroMQ, with a client at each.

A point is one ring, on which the loads are run one after another, each on topics of its own. With failures one node of
every group, drawn by lot, is killed with SIGKILL when half of the messages have been acknowledged, and started again
when all that is owed has arrived. Processes, disks and the machine are real, so a seed decides who puts what where and
who is killed, and not the run.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import tidings
from tidings.admin.asking import Asking
from tidings.admin.trial import Trial
from tidings.admin.trial_record import NodeRecord
from tidings.client.aio import AsyncBus
from tidings.errors import InvalidRequest
from tidings.message import Message
from tidings.protocols.broker import operators
from tidings.protocols.ring.key_ranges import KeyRange, owns, point_of
from tidings_lab.experiments.chord_plans import DOCUMENT_LOADS
from tidings_lab.experiments.experiment import Choice, Experiment, Figure, Line
from tidings_lab.experiments.service import (
    BROKEN,
    CONVERGENCE,
    LOADS,
    OTHER_RESULTS,
    TOPICS_OF_GROUPS,
    ServiceGroupRow,
    ServiceRow,
    group_rows,
    service_row,
)
from tidings_lab.experiments.sweep import Point
from tidings_lab.simulated_service.load import DOCUMENT_TOPICS, SUBSCRIPTIONS_EACH, ServiceAccount, draw_load
from tidings_lab.simulated_service.run import GroupState

REPLICAS = 3
SIZES = (6, 12, 18)
GOSSIP_SIZE = 12
SMALL_SIZE, SMALL_LOADS = 6, (4, 8)
NODES_MAX = 60
ADDRESSES_MAX = 16
TRY_SECONDS, TRIES = 2.0, 60
"""How long a put is tried: nodes are killed meanwhile."""
LAG_SECONDS_MAX = 60.0
"""How long what was put may take to arrive before it is lost."""
PUT_SECONDS_MAX = 600.0
LATE_SECONDS = 0.5
"""How long it is waited for what comes a second time."""
AGREE_SECONDS_MAX = 60.0
POLL_SECONDS = 0.05
ANSWER_SECONDS = 5.0


def service_rows(
    nodes: int, loads: str, failures: bool, dissemination: str, seed: int
) -> Iterator[ServiceRow | ServiceGroupRow]:
    """All loads on one ring of so many processes."""
    groups = nodes // REPLICAS
    if nodes % REPLICAS or not 2 <= groups <= NODES_MAX // REPLICAS:
        raise InvalidRequest(f"Groups of {REPLICAS} can be run here with 6, 9, 12 to {NODES_MAX} nodes, not {nodes}.")
    rng = random.Random(f"{seed} {nodes}")
    with tempfile.TemporaryDirectory(prefix="tidings-service-") as folder, Trial(Path(folder), inherit=False) as trial:
        began = _now_ms()
        trial.up(groups, REPLICAS, dissemination)
        start_ms: float | None = round(_now_ms() - began, 1)
        for messages in map(int, loads.split()):
            account = ServiceAccount(draw_load(nodes, messages, seed, f"topic-{messages}"))
            victims = [rng.choice(group) for group in trial.record.groups.values()] if failures else []
            asyncio.run(_run_load(trial, account, victims, f"{messages}"))
            for victim in victims:
                trial.start(victim.name)
            states = _final_states(trial, account)
            row = service_row(account, states, dissemination, seed, len(victims), start_ms)
            start_ms = None
            yield row
            yield from group_rows(row, states)


# Clients.


async def _run_load(trial: Trial, account: ServiceAccount, victims: Sequence[NodeRecord], mark: str) -> None:
    """Lets a client at every node subscribe and publish, kills the victims half-way, and waits for what is owed."""
    addresses = trial.addresses
    async with contextlib.AsyncExitStack() as stack:
        buses = [
            await stack.enter_async_context(_connected(addresses, number, f"client-{mark}-{number}"))
            for number in range(len(addresses))
        ]
        await asyncio.gather(*(_subscribe(bus, account, number) for number, bus in enumerate(buses)))
        reading = [asyncio.create_task(bus.run()) for bus in buses]
        try:
            publishing = [asyncio.create_task(_publish(bus, account, number)) for number, bus in enumerate(buses)]
            if victims:
                await _until(lambda: 2 * account.acknowledged >= account.published, PUT_SECONDS_MAX, publishing)
                await asyncio.to_thread(lambda: [trial.kill(victim.name) for victim in victims])
            await asyncio.wait_for(asyncio.gather(*publishing), PUT_SECONDS_MAX)
            await _until(lambda: account.is_over, LAG_SECONDS_MAX, reading)
            await asyncio.sleep(LATE_SECONDS)
        finally:
            for bus in buses:
                bus.stop()
            await asyncio.gather(*reading)


@contextlib.asynccontextmanager
async def _connected(addresses: Sequence[str], number: int, name: str) -> AsyncIterator[AsyncBus]:
    """A client at a node of its own, which knows others as well."""
    nodes = [*addresses[number:], *addresses[:number]][:ADDRESSES_MAX]
    bus = await tidings.aconnect(",".join(nodes), name, timeout=TRY_SECONDS, retries=TRIES)
    try:
        yield bus
    finally:
        await bus.close()


async def _subscribe(bus: AsyncBus, account: ServiceAccount, number: int) -> None:
    for topic in account.load.subscriptions[number]:
        await bus.subscribe(topic)
        bus.on(topic)(partial(_take, account, number))


def _take(account: ServiceAccount, number: int, message: Message) -> None:
    account.on_delivered(number, message.topic, message.text, _now_ms())


async def _publish(bus: AsyncBus, account: ServiceAccount, number: int) -> None:
    """Puts one message after another."""
    for index in range(len(account.load.puts[number])):
        topic, text = account.on_put(number, index, _now_ms())
        await bus.put(topic, text)
        account.on_acknowledged(_now_ms())


async def _until(condition: Callable[[], bool], seconds: float, tasks: Sequence[asyncio.Task[None]]) -> None:
    """Until something is the case, or it has taken too long, which the account shows then; raises what a task did."""
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        for task in tasks:
            if task.done():
                task.result()
        await asyncio.sleep(POLL_SECONDS)


# Replicas.


def _final_states(trial: Trial, account: ServiceAccount) -> list[GroupState]:
    """What the replicas say once they agree, or what they said last if they do not come to that."""
    deadline = time.monotonic() + AGREE_SECONDS_MAX
    while True:
        states = _states(trial, account)
        if all(state.agreeing == state.replicas for state in states) or time.monotonic() >= deadline:
            return states
        time.sleep(POLL_SECONDS)


def _states(trial: Trial, account: ServiceAccount) -> list[GroupState]:
    """Asks every node how much it has applied and what its group owns."""
    groups = trial.record.groups
    addresses = [node.address for nodes in groups.values() for node in nodes]
    asking = Asking(addresses)
    members = asking.ask_all(addresses, operators.AskMembers(1), operators.Members, ANSWER_SECONDS)
    rings = asking.ask_all(addresses, operators.AskRing(1), operators.Ring, ANSWER_SECONDS)
    states = []
    for name, nodes in groups.items():
        known = [_known(members[node.address], rings[node.address]) for node in nodes]
        best = max(known)
        ranges = tuple(KeyRange(start, end) for start, end in best[1])
        topics = sum(owns(ranges, point_of(topic)) for topic in account.load.topics)
        states.append(GroupState(name, len(nodes), known.count(best), best[0], topics))
    return states


def _known(
    member: operators.Members | None, ring: operators.Ring | None
) -> tuple[int, tuple[tuple[bytes, bytes], ...], int]:
    """How much a node has applied, what it says that its group owns, and how many topics; nothing if it is silent."""
    if member is None or ring is None:
        return -1, (), -1
    own = next((group.ranges for group in ring.groups if group.group == ring.group), ())
    return member.applied, own, ring.topics


def _now_ms() -> float:
    return time.monotonic() * 1000


def service_points(choice: Choice) -> Sequence[Point]:
    loads = choice.loads(SMALL_LOADS if choice.is_small else DOCUMENT_LOADS)
    seeds = range(choice.first_seed, choice.first_seed + (choice.seeds or 1))
    kinds = [
        (nodes, failures, "scribe")
        for nodes in choice.sizes((SMALL_SIZE,) if choice.is_small else SIZES)
        for failures in ((True,) if choice.is_small else (False, True))
    ]
    kinds += [(nodes, failures, "gossip") for nodes, failures, _ in kinds if nodes == GOSSIP_SIZE]
    return [
        {
            "nodes": nodes,
            "loads": " ".join(map(str, loads)),
            "failures": failures,
            "dissemination": dissemination,
            "seed": seed,
        }
        for nodes, failures, dissemination in kinds
        for seed in seeds
    ]


SERVICE = Experiment(
    name="service",
    title="The whole service with real processes",
    about="no simulation: rings of groups of 3 as processes, clients at all nodes, one node of each group killed",
    setting=(
        "Every node is a process on one machine, in groups of 3, each with a journal of its own, over ZeroMQ on "
        f"loopback. At every node is one client, which subscribes to {SUBSCRIPTIONS_EACH} of {DOCUMENT_TOPICS} topics "
        "and puts its messages one after another, each to a topic drawn by lot; all clients are one more process, and "
        "share the machine's cores with the nodes. *Killed*: one node of every group, drawn by lot, gets SIGKILL when "
        "half of the messages have been acknowledged; clients at its door go to others. It is started again when "
        "everything has arrived. *p50* and *p99* are from the put to the delivery, both seen by the same clock; "
        "*converged* is from the first put to the last delivery. *Agree*: replicas that say in the end that they have "
        "applied as many slots as the foremost of their group, and own the same ranges and as many topics."
    ),
    function=service_rows,
    tables={"runs": ServiceRow, "groups": ServiceGroupRow},
    points=service_points,
    questions=(LOADS, TOPICS_OF_GROUPS),
    figures=(
        CONVERGENCE,
        Figure(
            "latency",
            "From a put to its delivery, half of them",
            question="service",
            x="messages",
            x_label="messages of each node",
            y_label="milliseconds",
            lines=(Line("p50_ms", "{line}"),),
            by="line",
            where={"has_loads": (1,), "dissemination": ("scribe",)},
        ),
        Figure(
            "tail",
            "From a put to its delivery, 99 of 100",
            question="service",
            x="messages",
            x_label="messages of each node",
            y_label="milliseconds",
            lines=(Line("p99_ms", "{line}"),),
            by="line",
            where={"has_loads": (1,), "dissemination": ("scribe",)},
        ),
    ),
    other_results=OTHER_RESULTS,
    broken=BROKEN,
)
