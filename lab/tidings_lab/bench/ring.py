"""A message over an idle ring of three groups of three, beside the same over one group of three, in turns.

On the ring the publisher and the subscriber speak to nodes of two groups, and the topic belongs to the third: the put
goes from a door to the owner, is agreed on there, and goes to the other door. With one group both speak to its leader.
All nodes, of which those that have nothing to do still send their beats, share the machine with the two clients.
"""

from __future__ import annotations

from contextlib import ExitStack
from itertools import islice
from time import perf_counter, sleep
from typing import Any

from tidings.admin.survey import RingView
from tidings.admin.trial import Trial
from tidings.errors import TidingsError
from tidings.protocols.ring.key_ranges import point_of
from tidings_lab.bench.figures import Figure, Limit, median, percentile, ratio_at_most
from tidings_lab.bench.group import MemberProcess, leader_of, members_of
from tidings_lab.bench.plan import Plan
from tidings_lab.bench.processes import Worker
from tidings_lab.bench.stage import Stage

GROUP, RING = "group", "ring"
GROUPS, REPLICAS = 3, 3
PAUSE_SECONDS = 0.005
"""Between two messages, so that each of them finds everybody idle."""
WARM_UP = 20
WAIT_SECONDS_MAX = 60.0


def steps(plan: Plan) -> int:
    """How many steps it takes."""
    return plan.rounds + 1


def run(on: Stage) -> list[Figure]:
    """One message at a time, from the put to the handler, over a ring and over a group in turns."""
    on.step("starting a ring of nine nodes and a group of three")
    with ExitStack() as stack:
        trial = stack.enter_context(Trial(on.folder / "ring", inherit=False))
        trial.up(GROUPS, REPLICAS)
        members = members_of(on, stack)
        return _run(on, trial, members)


def _run(on: Stage, trial: Trial, members: list[MemberProcess]) -> list[Figure]:
    leader_of(members)
    topic, publisher_at, subscriber_at = places(trial.view())
    group = ",".join(member.address for member in members)
    pairs = {
        GROUP: (on.worker(group, "publisher"), on.worker(group, "subscriber")),
        RING: (on.worker(publisher_at, "publisher"), on.worker(subscriber_at, "subscriber")),
    }
    puts: dict[str, list[float]] = {GROUP: [], RING: []}
    arrivals: dict[str, list[float]] = {GROUP: [], RING: []}
    slowest: dict[str, list[float]] = {GROUP: [], RING: []}
    for _, subscriber in pairs.values():
        subscriber.ask("subscribe", topics=[topic])
    for publisher, subscriber in pairs.values():
        _measure(publisher, subscriber, topic, WARM_UP, on.plan.value_bytes)
    for number in range(on.plan.rounds):
        on.step(f"round {number + 1} of {on.plan.rounds}: {on.plan.put_messages:,} messages over each")
        for name in (GROUP, RING) if number % 2 == 0 else (RING, GROUP):
            publisher, subscriber = pairs[name]
            acknowledged, arrived = _measure(publisher, subscriber, topic, on.plan.put_messages, on.plan.value_bytes)
            puts[name].append(median(acknowledged))
            arrivals[name].append(median(arrived))
            slowest[name].append(percentile(arrived, 0.99))
    on.raw["p99_seconds"] = slowest
    return [
        _figure("put to delivery, p50, owner and both doors apart", arrivals),
        _figure("put to acknowledgement, p50, owner and door apart", puts),
    ]


def _figure(name: str, samples: dict[str, list[float]]) -> Figure:
    return Figure(
        scenario="ring",
        name=name,
        value=median(samples[RING]),
        unit="s",
        limit=Limit("the same, one group of three", median(samples[GROUP])),
        target=ratio_at_most(4.0),
        samples=tuple(samples[RING]),
        limit_samples=tuple(samples[GROUP]),
    )


def _measure(
    publisher: Worker, subscriber: Worker, topic: str, count: int, size: int
) -> tuple[list[float], list[float]]:
    """How long each put took until it was acknowledged, and until it arrived."""
    subscriber.send("ring_receive", topic=topic, count=count)
    rows = publisher.ask("ring_send", topic=topic, count=count, size=size)
    arrived = subscriber.answer()
    return [end - began for began, end in rows], [at - began for (began, _), at in zip(rows, arrived, strict=True)]


def places(view: RingView) -> tuple[str, str, str]:
    """A topic, and doors for its publisher and its subscriber, each at another group than its owner's."""
    publishers, owner, subscribers = view.groups[:3]
    for number in range(10_000):
        topic = f"news-{number}"
        if any(point_of(topic) in key_range for key_range in owner.ranges):
            return (
                topic,
                _follower(publishers.members, publishers.leader),
                _follower(subscribers.members, subscribers.leader),
            )
    raise TidingsError("The group that should own the topic owns too little of the circle: run it again.")


def _follower(members: tuple[str, ...], leader: str) -> str:
    """A node that does not lead: its group's own affairs are another's."""
    return next((address for address in members if address != leader), members[0])


# What workers do.


def ring_send(desk: Any, topic: str, count: int, size: int) -> list[tuple[float, float]]:
    """Puts one message after another, with a pause between them: began and acknowledged, for each."""
    times = []
    for value in desk.values_of(count, size):
        began = perf_counter()
        desk.connected.put(topic, value)
        times.append((began, perf_counter()))
        sleep(PAUSE_SECONDS)
    return times


def ring_receive(desk: Any, topic: str, count: int) -> list[float]:
    """The moments at which so many messages came. The stream stays open, and with it what is acknowledged in it."""
    if desk.arriving is None:
        desk.arriving = desk.connected.subscribe(topic).messages(timeout=WAIT_SECONDS_MAX)
    found = []
    for _ in islice(desk.arriving, count):
        found.append(perf_counter())
    assert len(found) == count, f"{len(found)} of {count} messages came"
    return found


RING_JOBS = (ring_send, ring_receive)
