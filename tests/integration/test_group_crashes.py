"""Eight members share the work; three are killed and two fall asleep: every message is handled, in order."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

import pytest

import tidings
from tests.integration.broker_process import ROOT, BrokerProcess

MEMBERS, KILLED, ASLEEP, LANES = 8, 3, 2, 1_000
LEASE_MS = 1_500


class Members:
    """The processes of a group."""

    def __init__(self, address: str, folder: Path) -> None:
        self.folder = folder
        environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
        self.processes = [
            subprocess.Popen(
                [
                    sys.executable,
                    str(Path(__file__).with_name("group_member.py")),
                    address,
                    f"member{number}",
                    str(folder / f"{number}.log"),
                ],
                stdout=subprocess.PIPE,
                text=True,
                env=environment,
            )
            for number in range(MEMBERS)
        ]
        for process in self.processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()


def wait_for_lag(bus: tidings.Bus, lag: int) -> None:
    """Until at most so many messages are unacked; ends by itself when nothing moves for a minute."""
    last, since = -1, time.monotonic()
    while True:
        [group] = bus.groups("jobs")
        if group.lag <= lag:
            return
        if group.lag != last:
            last, since = group.lag, time.monotonic()
        assert time.monotonic() - since < 60, group
        bus.get("clock", timeout=0.02)


def share_through_crashes(folder: Path, count: int) -> None:
    rng = random.Random(count)
    with BrokerProcess(folder / "data", settings={"TIDINGS_LEASE_MS": str(LEASE_MS)}) as broker:
        members = Members(broker.address, folder)
        try:
            with tidings.connect(broker.address, "publisher") as bus:
                bus.subscribe("clock")
                keys = [b"lane%d" % (number % LANES) for number in range(count)]
                bus.put_many("jobs", (b"%d" % (number // LANES) for number in range(count)), keys=keys)
                victims = rng.sample(range(MEMBERS), KILLED + ASLEEP)
                for step, victim in enumerate(victims):
                    wait_for_lag(bus, count - count * (step + 1) // 8)
                    number = signal.SIGKILL if step < KILLED else signal.SIGSTOP
                    os.kill(members.processes[victim].pid, number)
                wait_for_lag(bus, 0)  # Which takes until the leases of those asleep have run out.
                for victim in victims[KILLED:]:
                    os.kill(members.processes[victim].pid, signal.SIGCONT)
                bus.put_many("jobs", [b"%d" % (count // LANES)] * LANES, keys=keys[:LANES])
                wait_for_lag(bus, 0)
                [group] = bus.groups("jobs")
        finally:
            members.end()
    logs = [(folder / f"{number}.log").read_bytes() for number in range(MEMBERS)]
    check(logs, count + LANES)
    assert any(line.split()[3] != b"1" for log in logs for line in log.splitlines()), "nobody's work went to another"
    assert group.moved_lanes > 0


def check(logs: list[bytes], count: int) -> None:
    """By lane and number: everything was handled, first in order, and again only with a word about it."""
    rows = sorted(
        (int(at), lane, int(number), int(attempt))
        for log in logs
        for at, lane, number, attempt in (line.split() for line in log.splitlines())
    )
    handled: dict[bytes, list[int]] = defaultdict(list)
    attempts: dict[tuple[bytes, int], list[int]] = defaultdict(list)
    for _, lane, number, attempt in rows:
        if (lane, number) not in attempts:
            handled[lane].append(number)
        attempts[lane, number].append(attempt)
    assert len(attempts) == count, f"{count - len(attempts)} messages were lost"
    for lane, numbers in handled.items():
        assert numbers == sorted(numbers), f"the order of {lane!r} was broken"
    for (lane, number), seen in attempts.items():
        # Of two members that had it at attempt 2, one killed or asleep may have had no time to say so: both count as 2.
        assert seen.count(1) <= 1, f"{number} of {lane!r} was handled twice as if for the first time: {seen}"


def test_eight_members_three_killed_two_asleep(tmp_path: Path) -> None:
    """C3, C7, C9: 60,000 messages in 1,000 lanes."""
    share_through_crashes(tmp_path, 60_000)


@pytest.mark.soak
def test_a_million_messages_three_killed_two_asleep(tmp_path: Path) -> None:
    """C3, C7, C9: a million messages in 1,000 lanes."""
    share_through_crashes(tmp_path, 1_000_000)


@pytest.mark.parametrize(
    ("log", "found"),
    [
        (b"1 a 0 1\n2 a 1 1\n", "lost"),
        (b"1 a 0 1\n2 a 2 1\n3 a 1 1\n", "order"),
        (b"1 a 0 1\n2 a 1 1\n3 a 1 1\n4 a 2 1\n", "twice"),
    ],
)
def test_the_check_finds_what_is_planted(log: bytes, found: str) -> None:
    with pytest.raises(AssertionError, match=found):
        check([log], 3)
