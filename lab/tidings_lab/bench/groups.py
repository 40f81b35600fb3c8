"""Groups: what sharing costs, what a death costs, and how much a join moves."""

from __future__ import annotations

from itertools import pairwise

from tidings_lab.bench.figures import Figure, Limit, median, ratio_at_least, ratio_at_most
from tidings_lab.bench.stage import Stage

MEMBER_PROCESSES = 4
LANES = 1_000
FEW_LANES, MANY_LANES = 10, 100_000
PACED_LANES = 200
PACED_PER_SECOND = 2_000
LEASE_MS = 1_500


def throughput(on: Stage) -> list[Figure]:
    """Eight members on a thousand lanes against one exclusive subscription, all message by message."""
    plan = on.plan
    broker = on.broker("shared")
    count = plan.group_messages
    publisher, reader = on.worker(broker.address, "publisher"), on.worker()
    members = on.workers(MEMBER_PROCESSES)
    each = plan.group_members // MEMBER_PROCESSES
    rates: dict[int, list[float]] = {FEW_LANES: [], LANES: [], MANY_LANES: []}
    alone: list[float] = []
    for number in range(plan.rounds):
        for lanes, results in rates.items():
            on.step(f"round {number + 1} of {plan.rounds}: {count:,} messages in {lanes:,} lanes")
            topic = f"jobs-{lanes}-{number}"
            publisher.ask("publish_lanes", topic=topic, count=count, lanes=lanes, size=plan.value_bytes)
            if lanes == LANES:
                began, ended = reader.ask(
                    "consume_messages",
                    address=broker.address,
                    client=f"alone-{number}",
                    topic=topic,
                    start="earliest",
                    count=count,
                )
                alone.append(count / (ended - began))
            for process, member in enumerate(members):
                names = [f"member-{process}-{index}" for index in range(each)]
                member.ask("share_join", address=broker.address, topic=topic, clients=names)
            for member in members:
                member.send("share")
            done = [member.answer() for member in members]
            results.append(count / (max(ended for _, ended in done) - min(began for began, _ in done)))
    return [
        Figure(
            scenario="groups",
            name=f"{plan.group_members} members, {LANES:,} lanes",
            value=max(rates[LANES]),
            unit="messages/s",
            limit=Limit("one exclusive subscription", max(alone)),
            target=ratio_at_least(0.5),
            samples=tuple(rates[LANES]),
            limit_samples=tuple(alone),
        ),
        Figure(
            scenario="groups",
            name=f"{MANY_LANES:,} lanes",
            value=max(rates[MANY_LANES]),
            unit="messages/s",
            limit=Limit(f"{FEW_LANES} lanes", max(rates[FEW_LANES])),
            target=ratio_at_least(0.67),
            samples=tuple(rates[MANY_LANES]),
            limit_samples=tuple(rates[FEW_LANES]),
        ),
    ]


def death(on: Stage) -> list[Figure]:
    """One member is killed while messages keep coming: who waits, and for how long."""
    broker = on.broker("death", {"TIDINGS_LEASE_MS": str(LEASE_MS)})
    publisher = on.worker(broker.address, "publisher")
    members = on.workers(MEMBER_PROCESSES)
    seconds = on.plan.group_seconds
    for number, member in enumerate(members):
        member.ask("join", address=broker.address, topic="jobs", client=f"member-{number}")
    on.step(f"{PACED_PER_SECOND:,} messages a second in {PACED_LANES} lanes; one member is killed")
    for member in members:
        member.send("work_paced", seconds=seconds + 1.0)
    publisher.send(
        "publish_paced",
        topic="jobs",
        lanes=PACED_LANES,
        per_second=PACED_PER_SECOND,
        seconds=seconds,
        size=on.plan.value_bytes,
    )
    killed_at = members[0].kill_after(seconds / 3)
    publisher.answer()
    handled = [row for member in members[1:] for row in member.answer()]
    usual, stay, move = pauses(handled, killed_at)
    on.raw["moved_lanes"] = len(move)
    return [
        Figure(
            scenario="groups",
            name="longest pause, lanes that stay",
            value=max(stay),
            unit="s",
            limit=Limit("5 times the usual gap", 5 * usual),
            target=ratio_at_most(1.0),
            samples=tuple(sorted(stay)[-5:]),
        ),
        Figure(
            scenario="groups",
            name=f"longest pause, {len(move)} lanes that move",
            value=max(move, default=0.0),
            unit="s",
            limit=Limit("lease + 200 ms", LEASE_MS / 1000 + 0.2),
            target=ratio_at_most(1.0),
            samples=tuple(sorted(move)[-5:]),
        ),
    ]


def pauses(handled: list[tuple[int, float, int]], killed_at: float) -> tuple[float, list[float], list[float]]:
    """From (lane, moment, attempt): the usual gap, and the longest after the death of lanes that stay and that move.

    A lane moves if one of its messages had been with the dead member: it comes again as another attempt.

    >>> pauses([(0, 0.0, 1), (0, 0.1, 1), (0, 0.4, 1), (1, 0.1, 1), (1, 1.0, 2)], 0.2)
    (0.1, [0.2], [0.8])
    """
    times: dict[int, list[float]] = {}
    moved: dict[int, None] = {}
    for lane, at, attempt in handled:
        times.setdefault(lane, []).append(at)
        if attempt > 1:
            moved[lane] = None
    before: list[float] = []
    stay: list[float] = []
    move: list[float] = []
    for lane, moments in times.items():
        moments.sort()
        early = [at for at in moments if at < killed_at]
        before += [later - sooner for sooner, later in pairwise(early)]
        late = [killed_at, *(at for at in moments if at >= killed_at)]
        longest = max((later - sooner for sooner, later in pairwise(late)), default=0.0)
        (move if lane in moved else stay).append(round(longest, 6))
    return round(median(before), 6), stay, move


def join(on: Stage) -> list[Figure]:
    """A member comes late to busy lanes: how many have to move."""
    plan = on.plan
    broker = on.broker("join")
    on.step(f"{LANES:,} busy lanes, {plan.group_members} members, and one more")
    lanes, moved = on.worker().ask(
        "join_late", address=broker.address, topic="jobs", members=plan.group_members, lanes=LANES
    )
    ideal = lanes / (plan.group_members + 1)
    return [
        Figure(
            scenario="groups",
            name=f"lanes moved by a join, of {lanes:,}",
            value=float(moved),
            unit="lanes",
            limit=Limit("an even share", ideal),
            target=ratio_at_most(1.3),
            samples=(float(moved),),
        )
    ]


def steps(rounds: int) -> int:
    """How many steps the three take."""
    return rounds * 3 + 2


def run(on: Stage) -> list[Figure]:
    """All three."""
    return [*throughput(on), *death(on), *join(on)]
