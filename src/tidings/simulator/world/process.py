"""A process on a disk of its own: it ends at any moment, also at a step of the disk, and comes back on what is left.

A commit takes time, and messages come in meanwhile. When the process ends in the middle of one, the journal's write is
run up to a step of the disk and cut there, so the disk holds whatever a real one might hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from random import Random
from typing import Protocol

from tidings.journal.disk import DiskFull, SyncFailed
from tidings.journal.journal import Commit, Journal
from tidings.simulator.disk import PowerCut, SimulatedDisk, Step
from tidings.simulator.world.faults import End, FaultPlan, NodeEnd

START_MS = 1_700_000_000_000
"""What a machine's clock shows when the run begins."""
RETRY_MS = 200
SLOW_DISK_FACTOR = 10


class Machinery(Protocol):
    """What a process needs of its world."""

    random: Random
    now_ms: int
    calm: bool

    def note(self, process: str, what: str) -> None: ...

    def at(self, at_ms: int, what: Callable[[], None]) -> None: ...

    def after(self, delay_ms: int, what: Callable[[], None]) -> None: ...


class DiskProcess:
    """What is common to the processes of nodes and bare replicas: their disk, their lives and their deaths."""

    def __init__(self, timeline: Machinery, name: str, write_steps_max: int = 16) -> None:
        """`write_steps_max`: about as many steps as the longest commit takes, one that begins a segment."""
        self._timeline = timeline
        self.name = name
        self._write_steps_max = write_steps_max
        self.use_new_disk()
        self.life = 0
        self._steps_how: End = "kill"
        self._back_after_ms = 1

    def use_new_disk(self) -> None:
        """From here on it writes to an empty disk; what was planned for the old one is gone with it."""
        self.use_disk(SimulatedDisk(self._timeline.random))

    def use_disk(self, disk: SimulatedDisk) -> None:
        """From here on it writes to another disk."""
        self.disk = disk
        self.disk.on_step = self._on_step
        self._steps_left: int | None = None

    def start(self) -> None:
        """Recovers what the disk holds, unless the process is there."""
        raise NotImplementedError

    def on_died(self) -> None:
        """The process is gone: forgets what was only in its memory."""
        raise NotImplementedError

    def die(self, how: End, why: str) -> None:
        """The process is gone, and comes back after a while."""
        self._timeline.note(self.name, f"life {self.life} ends {why}")
        self._steps_left = None
        self.on_died()
        if how == "kill":
            self.disk.kill()
        else:
            self.disk.crash()
        self._timeline.after(self._back_after_ms, self.start)
        self._back_after_ms = RETRY_MS

    def die_at_step(self, where: str) -> None:
        """The process has ended at the step of the disk at which it was to end."""
        self.die(self._steps_how, f"{where} ({self._steps_how})")

    @contextmanager
    def mortal(self, where: str) -> Iterator[None]:
        """What is done here touches the disk, and the process may end at one of its steps."""
        try:
            yield
        except PowerCut:
            self.die_at_step(where)
        except SyncFailed:
            self.die("sync", f"{where}, because a sync failed")

    def sync_delay_ms(self, plan: FaultPlan, place: int) -> int:
        """How long a commit takes on the disk of the node at this place."""
        slow = SLOW_DISK_FACTOR if place == plan.slow_disk else 1
        return 1 if self._timeline.calm else self._timeline.random.randint(0, plan.sync_ms_max) * slow

    def cut_write(self, journal: Journal, commit: Commit) -> None:
        """A commit that is under way when the process ends gets as far as some step."""
        # Most commits take two steps, a write and a sync; one that begins a segment takes many.
        random = self._timeline.random
        self._steps_left = random.randint(0, random.choice((2, 2, self._write_steps_max)))
        with suppress(PowerCut, DiskFull, SyncFailed):
            journal.write(commit)

    def plan_end(self, steps: int, how: End) -> None:
        """It will end so many steps of the disk from now."""
        self._steps_left, self._steps_how = steps, how

    @property
    def end_is_planned(self) -> bool:
        return self._steps_left is not None

    def end(self, how: End) -> None:
        """The process ends now, wherever it is."""
        raise NotImplementedError

    def on_end(self, fault: NodeEnd) -> None:
        """It ends now, at a step of the disk, or when a sync fails."""
        self._back_after_ms = fault.back_after_ms
        if fault.how == "sync":
            self.disk.fail_next_sync()
        elif fault.steps is None:
            self.end(fault.how)
        else:
            self.plan_end(fault.steps, fault.how)

    def on_outage(self, back_after_ms: int) -> None:
        """It loses power together with all others."""
        self._back_after_ms = back_after_ms
        self.end("power")

    def on_calm(self) -> None:
        """Nothing that was planned and has not happened will happen any more."""
        self._steps_left = None

    def _on_step(self, step: Step, name: str) -> None:
        if self._steps_left is not None:
            self._steps_left -= 1
            if self._steps_left < 0:
                self._steps_left = None
                self._timeline.note(self.name, f"disk cut before {step} {name}")
                raise PowerCut
