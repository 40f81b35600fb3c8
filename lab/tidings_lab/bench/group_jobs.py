"""What a worker knows of groups."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from time import perf_counter
from typing import Any

import tidings
from tidings.client.group import GroupSubscription

GROUP = "workers"
IDLE_SECONDS = 1.5
"""A member that got nothing for this long has done its share."""


def ordering_keys(count: int, lanes: int) -> Iterator[bytes]:
    """A key for each message, the lanes in turn."""
    names = [b"lane%d" % number for number in range(lanes)]
    return (names[number % lanes] for number in range(count))


def publish_lanes(desk: Any, topic: str, count: int, lanes: int, size: int) -> None:
    """Puts messages with keys, durable when it returns."""
    desk.connected.put_many(topic, desk.values_of(count, size), keys=list(ordering_keys(count, lanes)))


def share_join(desk: Any, address: str, topic: str, clients: list[str]) -> None:
    """Members of one group, that work later."""
    desk.buses = [tidings.connect(address, client_id=client) for client in clients]
    desk.members = [bus.subscribe(topic, group=GROUP) for bus in desk.buses]


def share(desk: Any) -> tuple[float, float]:
    """The members handle what is there, one by one: began, and the moment of the last message."""
    ended: list[float] = []
    faults: list[BaseException] = []

    def work(jobs: GroupSubscription) -> None:
        last = perf_counter()
        handled = 0
        try:
            for _ in jobs.messages(timeout=IDLE_SECONDS):
                handled += 1
                if not handled & 255:
                    last = perf_counter()
            ended.append(last)
        except BaseException as error:  # noqa: BLE001 - it is reported by the thread that asked
            faults.append(error)

    began = perf_counter()
    threads = [threading.Thread(target=work, args=(jobs,), daemon=True) for jobs in desk.members]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    for bus in desk.buses:
        bus.close()
    if faults:
        raise faults[0]
    return began, max(ended)


def join(desk: Any, address: str, topic: str, client: str) -> None:
    """Becomes a member that works later."""
    desk.bus = tidings.connect(address, client_id=client, beat_ms=200)
    desk.jobs = desk.bus.subscribe(topic, group=GROUP)


def work_paced(desk: Any, seconds: float) -> list[tuple[int, float, int]]:
    """Handles what comes for so long: lane, moment and attempt of each message."""
    handled: list[tuple[int, float, int]] = []
    until = perf_counter() + seconds
    while (left := until - perf_counter()) > 0:
        for job in desk.jobs.messages(timeout=min(left, 0.2)):
            handled.append((int(job.key[4:]), perf_counter(), job.attempt))
            if perf_counter() > until:
                break
    return handled


def publish_paced(desk: Any, topic: str, lanes: int, per_second: int, seconds: float, size: int) -> None:
    """Puts messages at an even pace, the lanes in turn."""
    value = bytes(size)
    began = perf_counter()
    sent = 0
    while (passed := perf_counter() - began) < seconds:
        due = int(passed * per_second)
        while sent < due:
            desk.connected.put_soon(topic, value, key=b"lane%d" % (sent % lanes))
            sent += 1
        desk.connected.flush()
        time.sleep(0.002)


def join_late(desk: Any, address: str, topic: str, members: int, lanes: int) -> tuple[int, int]:
    """Members work on all lanes; one more comes: how many lanes there are, and how many moved until it has a share.

    Each lane has more messages than its member has room for, so that there is something to move.
    """
    room = lanes * 4 // members
    buses = [
        tidings.connect(address, client_id=f"member-{number}", room_messages=room) for number in range(members + 1)
    ]
    held = [bus.subscribe(topic, group=GROUP) for bus in buses[:-1]]
    for jobs in held:
        assert jobs.get(timeout=0.0) is None
    buses[0].put_many(topic, [b"job"] * lanes * 8, keys=list(ordering_keys(lanes * 8, lanes)))
    for jobs in held:
        assert jobs.get(timeout=5.0) is not None
    [before] = buses[0].groups(topic)
    newcomer = buses[-1].subscribe(topic, group=GROUP)
    newcomer.get(timeout=0.5)
    for jobs in held:  # Once what was in flight is acked, the lanes that are to move can move.
        for _ in itertools.islice(jobs.messages(timeout=1.0), room):
            pass
    newcomer.get(timeout=5.0)
    [after] = buses[0].groups(topic)
    for bus in buses:
        bus.close()
    return before.lanes, after.moved_lanes - before.moved_lanes


GROUP_JOBS = (publish_lanes, share_join, share, join, work_paced, publish_paced, join_late)
