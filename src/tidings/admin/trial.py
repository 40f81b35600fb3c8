"""A whole ring on one machine, for trial: every node a process, with a folder, a log and a port of its own.

    with Trial(Path("ring")) as trial:
        trial.up(groups=4, replicas=3)
        ...                                # tidings.connect(trial.bus)

The first group is the ring; the others join it by the addresses of its nodes, all at the same time. What runs is
written down in the folder, so that other commands find it; `down` ends every process that is written down there,
the one who started it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Self

import msgspec

import tidings
from tidings.admin import trial_record
from tidings.admin.asking import LEADER_SECONDS, Asking
from tidings.admin.ports import free_addresses
from tidings.admin.survey import GroupView, RingView, look
from tidings.admin.trial_record import NodeRecord, RingRecord, letters
from tidings.errors import InvalidRequest, Unavailable
from tidings.protocols.broker import operators
from tidings.transport.curve import ClientOptions, client_options

GROUPS, REPLICAS = 4, 3
GROUPS_MAX = 64
ADDRESSES_MAX = 16
"""So many addresses a client takes."""
CONTACTS_MAX = 3
POLL_SECONDS = 0.1
START_SECONDS_MAX = 120.0
MOVE_SECONDS_MAX = 300.0
STOP_SECONDS_MAX = 20.0

Tell = Callable[[str], None]
"""Told what is done now, for anyone who watches."""


class Trial:
    """The processes of a ring in a folder."""

    def __init__(
        self,
        folder: Path,
        arguments: Sequence[str] = (),
        settings: Mapping[str, str] | None = None,
        tell: Tell = lambda what: None,
        *,
        inherit: bool = True,
    ) -> None:
        self.folder = folder.resolve()
        self._arguments = tuple(arguments)
        """For every node that is new, after those that it needs."""
        self._settings = dict(settings or {})
        """TIDINGS_* variables for every node that is started from here, besides ours if it is to inherit them."""
        self._inherit = inherit
        self._tell = tell
        self._children: dict[int, subprocess.Popen[bytes]] = {}
        """Those that were started from here: they have to be waited for when they have ended."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.down()

    # What there is.

    @property
    def record(self) -> RingRecord:
        """What is written down; InvalidRequest if there is no ring in the folder."""
        found = trial_record.read(self.folder)
        if found is None:
            raise InvalidRequest(f"There is no ring in {self.folder}: start one with `tidings ring up`, or name --dir.")
        return found

    @property
    def addresses(self) -> list[str]:
        """The nodes that run, one of each group before the second of any."""
        groups = [[node.address for node in nodes if node.running] for nodes in self.record.groups.values()]
        longest = max(map(len, groups), default=0)
        return [group[place] for place in range(longest) for group in groups if place < len(group)]

    @property
    def bus(self) -> str:
        """What a client connects to."""
        return ",".join(self.addresses[:ADDRESSES_MAX])

    def view(self) -> RingView:
        """What the nodes that run say."""
        addresses = self.addresses
        if not addresses:
            raise Unavailable(f"No node of the ring in {self.folder} runs: start it with `tidings ring up`.")
        return look(Asking(addresses, self.curve))

    @property
    def curve(self) -> ClientOptions | None:
        """The operator's key, if the nodes have keys."""
        known = self.record
        return client_options(Path(known.keys), known.operator) if known.keys else None

    def group_view(self, group: str, view: RingView | None = None) -> GroupView | None:
        """What is known of a group, named by its letters; None if nobody knows of it."""
        addresses = {node.address for node in self.record.group(group)}
        known = (view or self.view()).groups
        return next((each for each in known if addresses & set(each.members)), None)

    def leader(self, group: str) -> NodeRecord:
        """The node that leads a group; waits until one does."""
        self.record.group(group)
        found: list[str] = []

        def is_led() -> bool:
            view = self.group_view(group)
            found[:] = [view.leader] if view is not None and view.leader else []
            return bool(found)

        self._wait(is_led, f"a leader of the group {group}", START_SECONDS_MAX)
        return self.record.node(found[0])

    # Coming and going.

    def up(
        self,
        groups: int | None = None,
        replicas: int | None = None,
        dissemination: str | None = None,
        keys: str = "",
        operator: str = "",
    ) -> None:
        """Starts a ring, or the one again that is in the folder and does not run; ends when every group owns a part.

        `keys` is a folder with the keys of all nodes, and of the `operator`, who may do everything.
        """
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        known = trial_record.read(self.folder)
        if known is not None:
            self._up_again(known, groups, replicas, dissemination, keys)
            return
        groups, replicas = groups or GROUPS, replicas or REPLICAS
        check_size(groups, replicas)
        keys = str(Path(keys).resolve()) if keys else ""
        trial_record.write(self.folder, RingRecord(replicas, dissemination or "scribe", keys=keys, operator=operator))
        first = self._new_group(replicas)
        self._tell(f"starting the first group, {replicas} nodes")
        self._start(first)
        self._wait_until_owning(first[:1])
        for number in range(2, groups + 1):  # One after the other: each takes its part of what is largest then.
            self._tell(f"starting group {number} of {groups}, {replicas} nodes")
            nodes = self._new_group(replicas)
            self._start(nodes)
            self._wait_until_owning(nodes[:1])

    def _up_again(
        self, known: RingRecord, groups: int | None, replicas: int | None, dissemination: str | None, keys: str
    ) -> None:
        if any(node.running for node in known.nodes):
            raise InvalidRequest(
                f"The ring in {self.folder} is already running: stop it with `tidings ring down` first."
            )
        for name, wanted, has in (
            ("groups", groups, len(known.groups)),
            ("replicas", replicas, known.replicas),
            ("dissemination", dissemination, known.dissemination),
            ("keys", str(Path(keys).resolve()) if keys else None, known.keys or "none"),
        ):
            if wanted is not None and wanted != has:
                raise InvalidRequest(
                    f"The ring that was stopped in {self.folder} has {name} {has}, not {wanted}: start it as it is, "
                    "remove the folder, or name another with --dir."
                )
        self._tell(f"restarting {len(known.nodes)} nodes")
        self._start(known.nodes)
        self._wait_until_owning([nodes[0] for nodes in known.groups.values()])

    def add(self, replicas: int | None = None) -> str:
        """One more group joins; its letters, when it owns a part of the circle."""
        replicas = replicas or self.record.replicas
        check_size(len(self.record.groups) + 1, replicas)
        nodes = self._new_group(replicas)
        self._tell(f"starting the group {nodes[0].group}, {replicas} nodes")
        self._start(nodes)
        self._tell(f"the group {nodes[0].group} takes its part of the circle")
        self._wait_until_owning(nodes[:1])
        return nodes[0].group

    def remove(self, group: str, seconds: float = MOVE_SECONDS_MAX) -> None:
        """A group gives all that it owns to others, and its processes end when it has."""
        nodes = self.record.group(group)
        leader = self.leader(group).address
        asking = Asking(sorted((node.address for node in nodes), key=lambda address: address != leader), self.curve)
        self._tell(f"the group {group} hands its topics to other groups")
        advice = "see `tidings ring status`, and try again."
        asking.ask_leader(operators.LeaveRing(1), operators.RingLeft, seconds, advice, patience=LEADER_SECONDS)
        self._tell(f"stopping the group {group}")
        self._stop(nodes)
        with trial_record.locked(self.folder):
            known = self.record
            left = tuple(node for node in known.nodes if node.group != group)
            trial_record.write(self.folder, msgspec.structs.replace(known, nodes=left))

    def kill(self, name: str) -> NodeRecord:
        """SIGKILL: a node gets no chance to do anything."""
        node = self.record.node(name)
        if not node.running:
            raise InvalidRequest(f"{node.name} is not running.")
        os.kill(node.pid, signal.SIGKILL)
        self._wait_until_ended([node])
        return node

    def kill_all(self) -> None:
        """SIGKILL to every node at once, as when the machine loses its power."""
        known = trial_record.read(self.folder)
        nodes = known.nodes if known is not None else ()
        for node in nodes:
            _signal(node, signal.SIGKILL)
        self._wait_until_ended(nodes)

    def start(self, name: str) -> NodeRecord:
        """Starts a node again that does not run."""
        node = self.record.node(name)
        if node.running:
            raise InvalidRequest(f"{node.name} is already running.")
        self._start([node])
        return self.record.node(name)

    def down(self) -> int:
        """Ends every node that runs, in good order; how many did."""
        known = trial_record.read(self.folder)
        running = [node for node in known.nodes if node.running] if known is not None else []
        self._stop(running)
        return len(running)

    def give_up(self) -> None:
        """Ends only what was started from here: what else may run in the folder is another's."""
        known = trial_record.read(self.folder)
        self._stop([node for node in known.nodes if node.pid in self._children] if known is not None else [])

    def reap(self) -> None:
        """Takes note of processes of our own that have ended."""
        for pid, child in list(self._children.items()):
            if child.poll() is not None:
                del self._children[pid]

    # Processes.

    def _new_group(self, replicas: int) -> list[NodeRecord]:
        """Writes down the nodes of a new group, which is the first one if there is no other."""
        with trial_record.locked(self.folder):
            known = self.record
            group = letters(known.groups_made)
            addresses = free_addresses(replicas)
            contacts = [node.address for node in known.nodes if node.running][:CONTACTS_MAX]
            nodes = []
            for number, address in enumerate(addresses, 1):
                folder = str(self.folder / f"{group}{number}")
                command = ["serve", "--data", folder, "--bind", address, "--group", ",".join(addresses)]
                command += ["--join", ",".join(contacts)] if contacts else ["--ring"]
                command += ["--dissemination", known.dissemination]
                command += ["--keys", known.keys, "--admin", known.operator] if known.keys else []
                command += self._arguments
                nodes.append(NodeRecord(f"{group}{number}", group, address, folder, tuple(command)))
            write = msgspec.structs.replace(known, nodes=(*known.nodes, *nodes), groups_made=known.groups_made + 1)
            trial_record.write(self.folder, write)
        return nodes

    def _start(self, nodes: Iterable[NodeRecord]) -> None:
        """Starts processes, and waits until each knows who it is."""
        started = [self._launch(node) for node in nodes]
        waiting = {node.name: node for node in started}

        def is_ready() -> bool:
            for node in list(waiting.values()):
                if node.ready_file.exists():
                    del waiting[node.name]
                elif not node.running:
                    raise Unavailable(f"{node.name} did not start: {_last_line(node.log)}")
            return not waiting

        self._wait(is_ready, "every node to start", START_SECONDS_MAX)

    def _launch(self, node: NodeRecord) -> NodeRecord:
        """Starts a process in a session of its own, so that Ctrl-C in a terminal is for us alone."""
        node.ready_file.unlink(missing_ok=True)
        command = [sys.executable, "-m", "tidings", *node.command, "--ready-file", str(node.ready_file)]
        with trial_record.locked(self.folder), node.log.open("ab") as log:
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=_environment(self._inherit) | self._settings,
                start_new_session=True,
            )
            self._children[child.pid] = child
            started = msgspec.structs.replace(node, pid=child.pid)
            known = self.record
            nodes = tuple(started if each.name == node.name else each for each in known.nodes)
            trial_record.write(self.folder, msgspec.structs.replace(known, nodes=nodes))
        return started

    def _stop(self, nodes: Sequence[NodeRecord]) -> None:
        """SIGTERM to all, and SIGKILL to anyone who has not ended in time."""
        for node in nodes:
            _signal(node, signal.SIGTERM)
        try:
            self._wait_until_ended(nodes)
        except Unavailable:
            for node in nodes:
                _signal(node, signal.SIGKILL)
            self._wait_until_ended(nodes)

    def _wait_until_ended(self, nodes: Sequence[NodeRecord]) -> None:
        def is_over() -> bool:
            self.reap()
            return not any(node.running or node.pid in self._children for node in nodes)

        self._wait(is_over, "the processes to end", STOP_SECONDS_MAX)

    def _wait_until_owning(self, some: Sequence[NodeRecord]) -> None:
        """Until the groups of these nodes own a part of the circle, and nothing of it is without an owner."""
        names = [node.group for node in some]

        def is_owning() -> bool:
            for name in names:
                if not any(node.running for node in self.record.group(name)):
                    (first, *_) = self.record.group(name)
                    raise Unavailable(f"The nodes of the group {name} have ended: {_last_line(first.log)}")
            view = self.view()
            groups = [self.group_view(name, view) for name in names]
            return all(each is not None and each.leader and each.ranges for each in groups) and view.covered

        self._wait(is_owning, f"the groups {', '.join(names)} to own something", MOVE_SECONDS_MAX)

    def _wait(self, condition: Callable[[], bool], what: str, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() >= deadline:
                raise Unavailable(f"Gave up after waiting {seconds:.0f} s for {what}: see the logs in {self.folder}.")
            time.sleep(POLL_SECONDS)


def check_size(groups: int, replicas: int) -> None:
    """InvalidRequest if no ring of this size can be run here."""
    if not 1 <= groups <= GROUPS_MAX:
        raise InvalidRequest(f"A ring on trial has 1 to {GROUPS_MAX} groups, not {groups}.")
    if replicas not in (1, 3, 5):
        raise InvalidRequest(f"A group has 1, 3 or 5 replicas, not {replicas}: a majority has to be able to decide.")


def _signal(node: NodeRecord, number: signal.Signals) -> None:
    if node.running:
        os.kill(node.pid, number)


def _environment(inherit: bool) -> dict[str, str]:
    """Ours with this very package, and with our settings or without."""
    kept = {name: value for name, value in os.environ.items() if inherit or not name.startswith("TIDINGS_")}
    package = str(Path(tidings.__file__).resolve().parents[1])
    older = os.environ.get("PYTHONPATH")
    return kept | {"PYTHONPATH": f"{package}{os.pathsep}{older}" if older else package}


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it said nothing."
