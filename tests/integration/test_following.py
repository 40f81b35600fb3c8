"""Clients follow a broker that dies and comes back at another address, as the leader of a replica group does.

The members that do not lead are stand-ins that only say where the leader is (`signpost.py`); the leader is a real
broker that is killed and starts again on the same folder at another port.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import tidings
from tests.integration.signpost import MovingBroker, Signpost
from tests.integration.test_crashes import crash_again_and_again
from tidings.client import connect_worker
from tidings.errors import Unavailable
from tidings.transport import curve

PATIENT = {"timeout": 2.5, "retries": 40}
"""Far more than it takes, for machines that are slow to start a broker."""


@pytest.mark.parametrize(("kills", "seed"), [(4, 1), pytest.param(100, 2, marks=pytest.mark.soak)])
def test_publishers_and_subscribers_go_on_wherever_the_leader_is(tmp_path: Path, kills: int, seed: int) -> None:
    """Z8, Z9, Z10, Z11, P6: 4 publishers, pipelined and not, and 4 subscribers; nothing is lost or doubled."""
    moving = MovingBroker(tmp_path / "data")
    crash_again_and_again(moving, kills, seed, lambda rng: moving.move(noticed=rng.random() < 0.5))


def test_bulk_and_a_group_of_consumers_go_on(tmp_path: Path) -> None:
    """Z8, C3, P6: put_many in the middle of a move, and members that say at the new place what they have in flight."""
    jobs, members = 6_000, 3
    handled: list[tuple[int, int]] = []
    joined = threading.Barrier(members + 1)
    some, complete = threading.Event(), threading.Event()

    def work(number: int) -> None:
        with tidings.connect(moving.address, f"member{number}", **PATIENT) as bus:
            subscription = bus.subscribe("jobs", group="workers")
            joined.wait(60)
            while not complete.is_set():
                for job in subscription.messages(timeout=0.2):
                    handled.append((job.offset, int(job.text)))
                    if len(handled) >= jobs // 3:
                        some.set()
                    if len(handled) >= jobs:
                        complete.set()

    def values() -> Iterator[str]:
        for number in range(jobs):
            if number == jobs // 2:
                mover.start()  # While what was taken before is still on its way.
            yield str(number)

    # A member that a busy machine keeps waiting must not be taken for dead.
    with MovingBroker(tmp_path / "data", "--lease", "60s") as moving:
        threads = [threading.Thread(target=work, args=(number,)) for number in range(members)]
        for thread in threads:
            thread.start()
        joined.wait(60)
        mover = threading.Thread(target=moving.move)
        with tidings.connect(moving.address, "publisher", batch_messages=100, **PATIENT) as bus:
            receipts = bus.put_many("jobs", values())
        mover.join()
        assert some.wait(120)
        moving.move(noticed=False)
        for thread in threads:
            thread.join(120)
            assert not thread.is_alive()
    assert (receipts.first_offset, receipts.count) == (0, jobs)
    assert sorted(handled) == [(number, number) for number in range(jobs)]


def test_a_reader_that_only_waits_notices_that_its_leader_is_gone(tmp_path: Path) -> None:
    """P6: nothing is asked of the bus but to wait; the beats find the new leader."""
    with MovingBroker(tmp_path / "data") as moving, tidings.connect(moving.address, "reader", **PATIENT) as reader:
        reader.subscribe("news")
        heard: list[str] = []

        def wait() -> None:
            message = reader.get("news", timeout=120)
            heard.append("" if message is None else message.text)

        waiting = threading.Thread(target=wait)
        waiting.start()
        moving.move()
        with tidings.connect(moving.address, "writer", **PATIENT) as writer:
            writer.put("news", "from the new leader")
        waiting.join(120)
    assert heard == ["from the new leader"]


def test_an_awaiting_bus_follows_too(tmp_path: Path) -> None:
    """Z8, P6: puts that are under way while the leader moves, and a subscription beside them."""

    async def run(moving: MovingBroker) -> list[str]:
        bus = await tidings.aconnect(moving.address, "alice", **PATIENT)
        subscription = await bus.subscribe("news")
        first = [asyncio.create_task(bus.put("news", str(number))) for number in range(500)]
        await asyncio.sleep(0)
        await asyncio.to_thread(moving.move)
        more = [asyncio.create_task(bus.put("news", str(number))) for number in range(500, 1_000)]
        receipts = await asyncio.gather(*first, *more)
        assert [receipt.offset for receipt in receipts] == list(range(1_000))
        seen: list[str] = []
        async for message in subscription:
            seen.append(message.text)
            if len(seen) == 1_000:
                break
        await bus.close()
        return seen

    with MovingBroker(tmp_path / "data") as moving:
        assert asyncio.run(run(moving)) == [str(number) for number in range(1_000)]


def test_one_address_is_enough_and_a_dead_one_does_no_harm(tmp_path: Path) -> None:
    """P6: in `connect`, for Spark's workers, in TIDINGS_BUS and in commands."""
    with MovingBroker(tmp_path / "data", signposts=1) as moving:
        (signpost,) = moving.signposts
        for number, address in enumerate([signpost.address, f"tcp://127.0.0.1:9,{signpost.address}"]):
            with tidings.connect(address, "alice", **PATIENT) as bus:
                bus.subscribe("news")
                assert bus.put("news", "hello").offset == number
        with connect_worker(f"tcp://127.0.0.1:9,{signpost.address}", "etl", **PATIENT) as worker:
            assert worker.topic("news").count == 2
        command = [sys.executable, "-m", "tidings", "topics", "--json", "--retries", "40"]
        for arguments, environment in (
            (["--bus", f"tcp://127.0.0.1:9,{signpost.address}"], {}),
            ([], {"TIDINGS_BUS": signpost.address}),
        ):
            done = subprocess.run(
                [*command, *arguments], env=os.environ | environment, capture_output=True, text=True, check=True
            )
            assert json.loads(done.stdout)["name"] == "news"
        assert signpost.asked["Put"] == 0  # What leads is known by then, and is asked.


def test_members_of_a_group_share_their_key(tmp_path: Path) -> None:
    """P6: anyone who does not lead is believed only if it has the broker's key, and so is anyone who it names."""
    keys = tmp_path / "keys"
    curve.create_server_keys(keys)
    curve.create_client_keys(keys, "alice")
    with MovingBroker(tmp_path / "data", signposts=1, keys=keys) as moving:
        with tidings.connect(moving.address, "alice", keys=keys, **PATIENT) as bus:
            bus.subscribe("news")
            moving.move()
            assert bus.put("news", "still encrypted").offset == 0
        stranger = Signpost()
        stranger.leader = moving.broker.address
        try:
            with pytest.raises(Unavailable):
                tidings.connect(stranger.address, "alice", keys=keys, timeout=0.3, retries=1)
            assert not stranger.asked
        finally:
            stranger.close()


def test_while_nobody_leads_a_call_waits_and_then_says_so() -> None:
    """Z8: as long as for a single broker."""
    signposts = [Signpost() for _ in range(2)]
    try:
        with pytest.raises(Unavailable, match="had no leader, or did not answer"):
            tidings.connect(",".join(each.address for each in signposts), "alice", timeout=0.25, retries=2)
        assert all(each.asked["Hello"] for each in signposts)
        assert sum(each.asked["Hello"] for each in signposts) < 8
    finally:
        for each in signposts:
            each.close()
