"""Who writes the commits: the loop itself as long as the disk is fast, the writing thread when it is slow."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

import tidings
from tidings.journal.disk import Buffer, RealDisk
from tidings.journal.journal import Journal
from tidings.node.clock import Clock
from tidings.node.engines import lone_engine
from tidings.node.loop import INLINE_NS_MAX, Loop
from tidings.settings import BrokerSettings, JournalSettings, NodeSettings
from tidings.transport.router import Router

PUTS = 40


class WatchedDisk(RealDisk):
    """A disk that takes its time, and knows who waited for it."""

    def __init__(self, folder: Path, delay_ns: int) -> None:
        super().__init__(folder)
        self.delay_ns = delay_ns
        self.waited: list[str] = []

    def commit(self, name: str, buffers: Sequence[Buffer]) -> None:
        self.waited.append(threading.current_thread().name)
        time.sleep(self.delay_ns / 1e9)  # This is the slow disk.
        super().commit(name, buffers)


@pytest.mark.parametrize("slow", [False, True])
def test_a_slow_disk_is_written_beside_the_loop(slow: bool, tmp_path: Path) -> None:
    """Decision 3: the loop does not wait for a disk that would hold it up."""
    disk = WatchedDisk(tmp_path, 4 * INLINE_NS_MAX if slow else 0)
    engine = lone_engine(BrokerSettings(), Journal.open(disk, JournalSettings()))
    engine.recover()
    router = Router(NodeSettings(bind="tcp://127.0.0.1:*"), BrokerSettings().batch_bytes_max)
    loop = Loop(engine, router, NodeSettings(), Clock())
    thread = threading.Thread(target=loop.run, name="the-loop")
    thread.start()
    try:
        with tidings.connect(router.address, "ann") as bus:
            for number in range(PUTS):
                bus.put("news", str(number))
            assert bus.topic("news").count == PUTS
            waited = list(disk.waited)
            disk.delay_ns = 0
            # Once it is fast, or has become so again. A machine that is busy with something else makes it seem slow.
            while disk.waited[-1] != "the-loop":
                bus.put("news", "more")
    finally:
        loop.stop()
        thread.join()
        disk.close()
    assert len(waited) >= PUTS
    if slow:
        assert waited[-1] == "tidings-commit"
