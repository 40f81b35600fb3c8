"""Delivery records of real processes: awaited buses, and subscribers that are killed (D4)."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from pathlib import Path

import tidings
from tests.integration.broker_process import ROOT, BrokerProcess
from tidings.client.record import ENDED, HANDED, RETURNED, Entry, read_entries, record_files

COUNT = 3_000
SUBSCRIBER = """
import sys, tidings
with tidings.connect(sys.argv[1], "alice", record=sys.argv[2]) as bus:
    for number, message in enumerate(bus.subscribe("news", start="earliest").messages(timeout=2)):
        print(message.offset, flush=True)
"""


def offsets(entry: Entry) -> list[int]:
    if entry.offsets is None:
        return list(range(entry.first_offset, entry.first_offset + entry.count))
    return list(memoryview(entry.offsets).cast("q"))


def entries(folder: Path) -> list[Entry]:
    return [entry for path in record_files([folder]) for entry in read_entries(path)]


def test_a_bus_that_is_awaited(tmp_path: Path) -> None:
    """D4."""
    folder = tmp_path / "deliveries"

    async def work(address: str) -> None:
        bus = await tidings.aconnect(address, "alice", retries=10)
        subscription = await bus.subscribe("news", start="earliest", record=folder)
        jobs = await bus.subscribe("news", group="workers", record=folder)
        await bus.put_many("news", ["1", "2", "3"])
        async for message in subscription.messages(timeout=5):
            if message.offset == 1:
                break
        async for _ in jobs.batches(timeout=0):
            pass
        await bus.close()

    with BrokerProcess(tmp_path / "data") as broker:
        asyncio.run(work(broker.address))
    found = entries(folder)
    handed = [offset for entry in found if entry.kind == HANDED and not entry.group for offset in offsets(entry)]
    returned = [offset for entry in found if entry.kind == RETURNED and not entry.group for offset in offsets(entry)]
    assert handed[0] == 0
    assert handed[1:] == returned, "what was in flight when the loop ended has come back"
    assert 1 in returned
    shared = [offset for entry in found if entry.kind == HANDED and entry.group for offset in offsets(entry)]
    assert sorted(shared) == [0, 1, 2]
    assert sum(entry.kind == ENDED for entry in found) == 1, "both share one record"


def test_a_killed_subscriber_has_recorded_all_that_it_was_handed(tmp_path: Path) -> None:
    """D4: whatever the application saw is in the record; what is only in the record comes again, marked."""
    folder = tmp_path / "deliveries"
    seen: list[int] = []
    with BrokerProcess(tmp_path / "data") as broker, tidings.connect(broker.address, "writer") as bus:
        bus.put_many("news", [b"%d" % number for number in range(COUNT)])
        deadline = time.monotonic() + 120
        for stop in (300, 1_500, COUNT):
            process = subprocess.Popen(
                [sys.executable, "-c", SUBSCRIBER, broker.address, str(folder)],
                stdout=subprocess.PIPE,
                text=True,
                cwd=ROOT,
            )
            assert process.stdout is not None
            for line in process.stdout:
                seen.append(int(line))
                if seen[-1] + 1 >= stop:
                    break
                assert time.monotonic() < deadline
            process.kill()
            seen += [int(line) for line in process.stdout.read().splitlines() if line.isdecimal()]
            process.stdout.close()
            process.wait()
    found = [entry for entry in entries(folder) if entry.kind == HANDED]
    recorded = [offset for entry in found for offset in offsets(entry)]
    assert set(seen) <= set(recorded) == set(range(COUNT))
    first = [offset for entry in found if entry.attempt == 1 for offset in offsets(entry)]
    assert len(first) == len(set(first)), "only a marked message comes twice"
    assert len(record_files([folder])) == 3
