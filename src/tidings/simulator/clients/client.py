"""Client processes: the real session and the real operations, driven in virtual time.

A client is a name with what outlives its processes: a script, an inbox. A process is one life of it, and two
lives may overlap: the older one is then fenced, sooner or later. What an application does is a list of roles, each
a generator that yields what it waits for, exactly as the operations of a bus do.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from random import Random
from typing import NoReturn, Protocol, cast

from tidings.client import operations
from tidings.client.future import Future
from tidings.client.inbox import Inbox, Mark
from tidings.client.operations import Core, Operation, Until, Wait
from tidings.client.session import Session
from tidings.errors import Fenced, TidingsError
from tidings.settings import ClientSettings
from tidings.simulator.checkers.watch import Watch
from tidings.simulator.world.faults import ClientEnd, ClientPause
from tidings.wire.codec import Frame

Role = Callable[["ClientProcess"], Operation[None]]


class ClientNetwork(Protocol):
    """What clients need of a network."""

    def connect(self, process: ClientProcess) -> None:
        """A new connection for a process; the old one, if any, is gone."""

    def disconnect(self, process: ClientProcess) -> None:
        """The process has gone."""

    def send_to_broker(self, process: ClientProcess, frames: Sequence[Frame]) -> None:
        """Sends over the connection that the process has."""


class Surroundings(Protocol):
    """What clients need of their world."""

    random: Random
    now_ms: int
    calm: bool
    watch: Watch
    client_settings: ClientSettings
    idle_ms: int

    @property
    def doors(self) -> ClientNetwork:
        """The network that leads to anyone who serves the clients."""

    @property
    def is_quiet(self) -> bool:
        """Whether nothing more will be published."""

    def note(self, process: str, what: str) -> None: ...

    def at(self, at_ms: int, what: Callable[[], None]) -> None: ...

    def after(self, delay_ms: int, what: Callable[[], None]) -> None: ...

    def draw_address(self) -> str:
        """The address that a new process of a client is given."""

    def may_overlap(self, process: ClientProcess) -> bool:
        """Whether a process may live on beside the next one of its name."""

    def drained(self, client: str, topics: tuple[str, ...]) -> bool:
        """Whether everything has been published and a subscriber has been handed all of it."""


class MemoryInbox:
    """What an inbox remembers, kept by the client instead of a file; it is there after the process has died."""

    def __init__(self) -> None:
        self._marks: dict[tuple[str, ...], dict[str, int]] = {}

    def positions(self, topics: tuple[str, ...]) -> dict[str, int]:
        return dict(self._marks.get(topics, {}))

    def mark_all(self, marks: Sequence[Mark]) -> None:
        for topics, topic, next_offset in marks:
            places = self._marks.setdefault(topics, {})
            places[topic] = max(places.get(topic, 0), next_offset)

    def forget(self, topics: tuple[str, ...]) -> None:
        self._marks.pop(topics, None)


class Client:
    """A name, its roles and its lives."""

    def __init__(self, world: Surroundings, name: str, roles: list[Role], inbox: MemoryInbox | None) -> None:
        self.world = world
        self.name = name
        self.roles = roles
        self.inbox = inbox
        self.processes: list[ClientProcess] = []
        self.waits_for: tuple[str, ...] | None = None
        """The subscription that one of its roles reads for ever, if there is one."""
        self._back_planned = False

    @property
    def finished(self) -> bool:
        """Whether the newest life has done all that it had to do."""
        if not self.processes or not self.processes[-1].alive:
            return False
        if self.waits_for is not None and self.world.drained(self.name, self.waits_for):
            return True
        return self.processes[-1].finished

    def start(self) -> None:
        """A new process of this name begins."""
        self._back_planned = False
        process = ClientProcess(self, len(self.processes) + 1)
        self.processes.append(process)
        process.begin()

    def come_back(self, delay_ms: int) -> None:
        """Plans the next life, unless one is planned already."""
        if not self._back_planned:
            self._back_planned = True
            self.world.after(delay_ms, self.start)

    def on_end(self, fault: ClientEnd) -> None:
        if not self.processes:
            return
        process = self.processes[-1]
        if fault.how == "close":
            process.close()
        elif fault.how == "overlap" and self.inbox is None and self.world.may_overlap(process):
            self.world.note(self.name, f"life {process.life} goes on while another begins")
        else:
            process.kill("is killed")
        self.come_back(fault.back_after_ms)

    def on_pause(self, fault: ClientPause) -> None:
        if self.processes:
            self.processes[-1].pause(fault.for_ms)

    def on_calm(self) -> None:
        """Of several lives only the newest goes on."""
        for process in self.processes[:-1]:
            process.kill("is killed")


class _Task:
    """A role as it runs."""

    def __init__(self, steps: Generator[Wait, bool, None]) -> None:
        self.steps = steps
        self.waits_for: Wait | None = None

    def resumes_with(self, now_ms: int) -> bool | None:
        """What the role goes on with, None while it waits."""
        wait = self.waits_for
        if wait is None:
            return True
        if isinstance(wait, Future):
            return True if wait.done else None
        if wait.ready():
            return True
        return False if wait.deadline_ms is not None and now_ms >= wait.deadline_ms else None


class ClientProcess:
    """One life of a client."""

    def __init__(self, client: Client, life: int) -> None:
        self.client = client
        self.world = client.world
        self.name = client.name
        self.life = life
        self.label = f"{client.name}.{life}"
        self.alive = True
        self.connection = 0
        self._closing = False
        self._paused_until_ms = 0
        self._waiting_frames: list[list[bytes]] = []
        self._wake_ms: int | None = None
        world = self.world
        self.session = Session(
            self.name, world.random.randbytes(16), False, world.client_settings, world.draw_address()
        )
        # The operations ask an inbox for three things only, and this one has them.
        inbox = cast("Inbox | None", client.inbox)
        self.core = Core(self.session, inbox, lambda: world.now_ms, _refuse_to_block, lambda: world.now_ms * 1000)
        self._tasks = [_Task(role(self)) for role in client.roles]

    @property
    def finished(self) -> bool:
        return not self._tasks

    # Its life.

    def begin(self) -> None:
        self.world.note(self.label, "begins")
        self.world.doors.connect(self)
        self.world.watch.on_process(self)
        self.session.start(self.world.now_ms)
        self.go_on()

    def kill(self, why: str) -> None:
        """The process is gone, with everything it knew."""
        if self.alive:
            self.world.note(self.label, why)
            self.alive = False
            for task in self._tasks:
                task.steps.close()
            self._tasks = []
            self.world.doors.disconnect(self)

    def close(self) -> None:
        """The process ends in good order: what is under way is finished, as far as that is possible."""
        if self.alive:
            self.world.note(self.label, "closes")
            for task in self._tasks:
                task.steps.close()
            self._tasks = [_Task(operations.finish(self.core))]
            self._closing = True
            self.go_on()

    def pause(self, for_ms: int) -> None:
        if self.alive:
            self.world.note(self.label, f"stands still for {for_ms} ms")
            self._paused_until_ms = self.world.now_ms + for_ms
            self._wake_at(self._paused_until_ms)

    @property
    def _paused(self) -> bool:
        return self.world.now_ms < self._paused_until_ms

    # Its work.

    def receive(self, frames: list[bytes]) -> None:
        if not self.alive:
            return
        if self._paused:
            self._waiting_frames.append(frames)
            return
        self.session.receive(self.world.now_ms, frames)
        self.go_on()

    def _wake(self, planned_ms: int) -> None:
        if not self.alive or self._wake_ms != planned_ms:
            return
        self._wake_ms = None
        if self._paused:
            self._wake_at(self._paused_until_ms)
            return
        waiting, self._waiting_frames = self._waiting_frames, []
        for frames in waiting:
            self.session.receive(self.world.now_ms, frames)
        self.session.tick(self.world.now_ms)
        self.go_on()

    def go_on(self) -> None:
        """Lets every role run as far as it can, sends what came of it, and plans the next waking."""
        now_ms = self.world.now_ms
        moved = True
        while moved and self.alive:
            moved = False
            for task in list(self._tasks):
                value = task.resumes_with(now_ms)
                if value is not None and self.alive:
                    moved = True
                    self._resume(task, value)
        if not self.alive:
            return
        self._flush()
        deadlines = [task.waits_for.deadline_ms for task in self._tasks if isinstance(task.waits_for, Until)]
        due = [each for each in (*deadlines, self.session.next_due_ms()) if each is not None]
        if due:
            self._wake_at(max(min(due), now_ms + 1))

    def _resume(self, task: _Task, value: bool) -> None:
        try:
            task.waits_for = next(task.steps) if task.waits_for is None else task.steps.send(value)
        except StopIteration:
            self._tasks.remove(task)
            if self._closing:
                self._flush()
                self.kill("has closed")
        except Fenced:
            newest = self.client.processes[-1] is self
            self.kill("ends: it is fenced")
            if newest:
                self.client.come_back(50)
        except TidingsError as error:
            self.world.watch.violate("progress", f"{self.label} got an unexpected {type(error).__name__}: {error}")

    def _flush(self) -> None:
        session, network = self.session, self.world.doors
        if session.reopen:
            session.reopen = False
            network.connect(self)
        outgoing = list(session.outgoing)
        session.outgoing.clear()
        for frames in outgoing:
            network.send_to_broker(self, frames)

    def _wake_at(self, at_ms: int) -> None:
        if self._wake_ms is None or at_ms < self._wake_ms:
            self._wake_ms = at_ms
            self.world.at(at_ms, lambda: self._wake(at_ms))

    # What roles use.

    def sleep(self, delay_ms: int) -> Operation[None]:
        yield Until(lambda: False, self.world.now_ms + delay_ms)


def _refuse_to_block(operation: object) -> NoReturn:
    raise AssertionError(f"{operation} cannot be run to its end here: a role yields what it waits for")
