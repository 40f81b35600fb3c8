"""Where a scenario plays: its folder, the processes it has started, and how it says how far it is."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tidings_lab.bench.plan import Plan
from tidings_lab.bench.processes import BrokerProcess, StorageProcess, Worker

Notice = Callable[[str, str], None]
"""Told the scenario and what it does now, once for each step; "" when it has ended."""

IN_MEMORY = ("tmpfs", "ramfs")


class Stage:
    """One scenario's surroundings. Whatever it starts is ended with it, and its folder removed."""

    def __init__(self, scenario: str, plan: Plan, folder: Path, notice: Notice, stack: ExitStack) -> None:
        self.scenario = scenario
        self.plan = plan
        self.folder = folder
        self.raw: dict[str, Any] = {}
        """Numbers for the JSON report beside the figures."""
        self.unseen = 0.0
        """Processor seconds of processes that it started and that nobody could wait for."""
        self._notice = notice
        self._stack = stack

    def step(self, what: str) -> None:
        """Says what is done next."""
        self._notice(self.scenario, what)

    def broker(
        self, name: str = "broker", settings: dict[str, str] | None = None, storage: str | None = None
    ) -> BrokerProcess:
        """A running broker on a folder of its own or on a storage server, with these TIDINGS_* variables."""
        return self._stack.enter_context(BrokerProcess(self.folder / name, settings, storage))

    def storage(self) -> StorageProcess:
        """A running storage server."""
        return self._stack.enter_context(StorageProcess(self.folder / "storage"))

    def worker(self, address: str | None = None, client: str | None = None) -> Worker:
        """A running worker, connected to a broker if one is named."""
        worker = self._stack.enter_context(Worker())
        if address is not None:
            worker.ask("connect", address=address, client=client)
        return worker

    def workers(self, count: int) -> list[Worker]:
        """Several running workers."""
        return [self.worker() for _ in range(count)]

    def echo_server(self) -> str:
        """The address of a bare echo in a process of its own."""
        return str(self.worker().ask("echo_serve", folder=str(self.folder)))

    def warm(self, size_bytes: int) -> None:
        """Has the machine make so much memory ready.

        A virtual machine may get its memory from the host only at the first touch, which can take longer than
        writing it to a disk. Journals grow into fresh memory and the bare loops do not, so without this the
        comparison would be about the host.
        """
        with self.worker() as worker:
            worker.ask("touch_memory", size_bytes=int(min(size_bytes, available_memory() // 2)))


@contextmanager
def stage(scenario: str, plan: Plan, folder: Path, notice: Notice) -> Iterator[Stage]:
    """A stage for one scenario, cleared away afterwards."""
    own = Path(tempfile.mkdtemp(prefix=f"tidings-bench-{scenario}-", dir=folder))
    try:
        with ExitStack() as stack:
            yield Stage(scenario, plan, own, notice, stack)
    finally:
        shutil.rmtree(own, ignore_errors=True)


def filesystem_of(folder: Path, mounts: str | None = None) -> str:
    """The kind of file system that a folder lies on, "unknown" where the system does not say.

    >>> filesystem_of(Path("/a/b"), mounts="x / ext4 rw 0 0\\ny /a tmpfs rw 0 0")
    'tmpfs'
    """
    if mounts is None:
        try:
            mounts = Path("/proc/mounts").read_text()
        except OSError:
            return "unknown"
    path = folder.resolve()
    best, kind = Path(), "unknown"
    for line in mounts.splitlines():
        fields = line.split()
        point = Path(fields[1].replace("\\040", " "))
        if (path == point or point in path.parents) and len(point.parts) >= len(best.parts):
            best, kind = point, fields[2]
    return kind


def available_memory() -> int:
    """How many bytes of memory are free or could be at once."""
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def default_folder() -> Path:
    """A folder on a real disk: where temporary files go, or else here, or else at home."""
    candidates = [Path(tempfile.gettempdir()), Path.cwd(), Path.home()]
    for candidate in candidates:
        if filesystem_of(candidate) not in IN_MEMORY:
            return candidate
    return candidates[0]
