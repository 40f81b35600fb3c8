"""The experiments of the overlay with real processes: the same stacks as in the simulator, over ZeroMQ on this machine.

    row = run_processes("chord", nodes=20, messages_each=10, kill=5, seed=1)

Every node is a `tidings node` on loopback. All subscribe to all topics, all publish in turns to topics drawn by lot,
and in the middle some are killed with SIGKILL. In the end every live subscriber must have every message of every live
publisher once, and the overlay must be whole again. Processes, timers and the machine are real, so unlike in the
simulator a seed decides the topics and the victims, and not the run.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Literal

import msgspec

from tidings.errors import InvalidRequest, Unavailable
from tidings.peer.caller import NodeCaller
from tidings.peer.drive import Driver, wait_until
from tidings.peer.survey import Survey, walk

Overlay = Literal["chord", "hyparview"]

TOPICS = 5
FOUNDERS = 9
"""One more than the successor lists of a ring are long: what it needs to be safe from the beginning."""
NODES_MAX = 200
STOP_SECONDS_MAX = 60.0


class ProcessesRow(msgspec.Struct, frozen=True):
    """What one run came to. Messages are counted when they are sent, one for each receiver, by nodes that live."""

    overlay: str
    seed: int
    nodes: int
    killed: int
    topics: int
    messages_each: int
    published: int
    owed: int
    """Deliveries that had to happen: messages of live publishers times live subscribers."""
    delivered: int
    doubled: int
    reliability: float
    whole: bool
    """Whether the ring was one and ordered, or the views mutual and connected, in the end."""
    problem: str
    sent: dict[str, int]
    """Messages between nodes, by layer, from the first start to the end."""
    refused: dict[str, int]
    start_ms: int
    """Until all nodes had joined."""
    subscribe_ms: int
    """Until all subscriptions were in effect."""
    publish_ms: int
    convergence_ms: int
    """From the first publish to the last delivery, as seen by a client that looks every 50 ms."""
    repair_ms: int
    """From the kill until the overlay was whole; 0 without one."""


class Cluster:
    """Nodes in processes of their own, on loopback. Everything that was started is ended."""

    def __init__(self, overlay: Overlay, founders: int = 2, settings: dict[str, str] | None = None) -> None:
        self.overlay = overlay
        self._founders = founders
        self._settings = settings or {}
        self._folder = tempfile.TemporaryDirectory(prefix="tidings-nodes-")
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._started = 0

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def addresses(self) -> list[str]:
        """The nodes that are up, in the order in which they were started."""
        return list(self.processes)

    def start(self, count: int) -> None:
        """Starts nodes; they join by the first one that is up."""
        if not self.processes:
            self._await([self._launch("tcp://127.0.0.1:*", None)])
            count -= 1
        contact = self.addresses[0]
        self._await([self._launch("tcp://127.0.0.1:*", contact) for _ in range(count)])

    def restart(self, address: str) -> None:
        """Starts a node again at an address where none is up."""
        self._await([self._launch(address, self.addresses[0])])

    def _launch(self, bind: str, contact: str | None) -> tuple[subprocess.Popen[bytes], Path]:
        self._started += 1
        ready = Path(self._folder.name) / f"node-{self._started}.address"
        command = [sys.executable, "-m", "tidings", "node", "--bind", bind, "--overlay", self.overlay]
        command += ["--ready-file", str(ready)]
        command += ["--founders", str(self._founders)] if contact is None else ["--join", contact]
        with ready.with_suffix(".log").open("wb") as log:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=os.environ | self._settings
            )
        return process, ready

    def _await(self, launched: list[tuple[subprocess.Popen[bytes], Path]]) -> None:
        waiting = list(launched)
        try:
            wait_until(lambda: self._note_ready(waiting), "every node has started")
        finally:
            for process, _ in waiting:
                process.kill()
                process.wait()

    def _note_ready(self, waiting: list[tuple[subprocess.Popen[bytes], Path]]) -> bool:
        for process, ready in list(waiting):
            if ready.exists():
                self.processes[ready.read_text().strip()] = process
                waiting.remove((process, ready))
            elif process.poll() is not None:
                waiting.remove((process, ready))
                raise Unavailable(f"A node did not start: {ready.with_suffix('.log').read_text().strip()}")
        return not waiting

    def wait_until_joined(self) -> None:
        for address in self.processes:
            with NodeCaller(address, timeout=30.0) as caller:
                wait_until(lambda node=caller: node.look().joined, f"{address} has joined")  # type: ignore[misc]

    def wait_until_whole(self) -> Survey:
        """Waits until exactly the nodes that are up are one whole overlay."""
        found: list[Survey] = []

        def is_whole() -> bool:
            found[:] = [walk(self.addresses[0])]
            return found[0].whole and {view.address for view in found[0].nodes} == set(self.processes)

        try:
            wait_until(is_whole, "the overlay is whole")
        except Unavailable:
            if not found:
                raise
        return found[0]

    def kill(self, address: str) -> None:
        """SIGKILL: it gets no chance to do anything."""
        process = self.processes.pop(address)
        process.kill()
        process.wait()

    def stop(self, address: str) -> int:
        """SIGTERM: it leaves in good order; its exit code."""
        process = self.processes.pop(address)
        process.send_signal(signal.SIGTERM)
        return process.wait(STOP_SECONDS_MAX)

    def close(self) -> None:
        for process in self.processes.values():
            process.kill()
        for process in self.processes.values():
            process.wait()
        self.processes.clear()
        self._folder.cleanup()


def run_processes(
    overlay: Overlay, nodes: int = 20, messages_each: int = 10, kill: int = 0, seed: int = 1, topics: int = TOPICS
) -> ProcessesRow:
    """One experiment: start, subscribe, publish, kill in the middle, and see what everybody got."""
    if not 2 <= nodes <= NODES_MAX or not 0 <= kill < nodes - 1:
        raise InvalidRequest(f"2 to {NODES_MAX} nodes can be run here, and at least two must stay alive.")
    rng = random.Random(seed)
    names = [f"topic-{index}" for index in range(topics)]
    # So many copies of a log that the victims cannot take all of them with them.
    settings = {"TIDINGS_REPLICAS": str(max(4, kill))}
    began = time.monotonic()
    with Cluster(overlay, min(nodes, FOUNDERS), settings) as cluster:
        cluster.start(nodes)
        cluster.wait_until_joined()
        started = time.monotonic()
        with Driver(cluster.addresses) as driver:
            for node in cluster.addresses:
                for topic in names:
                    driver.subscribe(node, topic)
            driver.wait_until_ready()
            subscribed = time.monotonic()
            killed_at = _publish_and_kill(cluster, driver, messages_each, kill, names, rng) or subscribed
            published = time.monotonic()
            problem = ""
            try:
                driver.drain()
            except Unavailable as error:
                problem = str(error)
            converged = driver.last_at
            survey = cluster.wait_until_whole()
            whole_at = time.monotonic()
            driver.collect()  # Whatever came twice has come by now.
            accounts = driver.account()
        sent, refused = _totals(survey)
    owed = sum(account.owed for account in accounts)
    missing = sum(account.missing for account in accounts)
    return ProcessesRow(
        overlay=overlay,
        seed=seed,
        nodes=nodes,
        killed=kill,
        topics=topics,
        messages_each=messages_each,
        published=sum(account.published for account in accounts),
        owed=owed,
        delivered=owed - missing,
        doubled=sum(account.doubled + account.strange for account in accounts),
        reliability=1.0 if not owed else (owed - missing) / owed,
        whole=survey.whole and len(survey.nodes) == nodes - kill,
        problem="; ".join([problem, *survey.problems] if problem else survey.problems),
        sent=dict(sent),
        refused=dict(refused),
        start_ms=_ms(began, started),
        subscribe_ms=_ms(started, subscribed),
        publish_ms=_ms(subscribed, published),
        convergence_ms=_ms(subscribed, converged),
        repair_ms=_ms(killed_at, whole_at) if kill else 0,
    )


def _publish_and_kill(
    cluster: Cluster, driver: Driver, messages_each: int, kill: int, names: list[str], rng: random.Random
) -> float:
    """Every node publishes in turns, and half-way some are killed; when that was, 0 if none were."""
    victims = rng.sample(cluster.addresses, kill)
    killed_at = 0.0
    for turn in range(messages_each):
        if turn == messages_each // 2 and victims:
            for victim in victims:
                cluster.kill(victim)
                driver.forget(victim)
            killed_at = time.monotonic()
        for node in cluster.addresses:
            driver.publish(node, rng.choice(names))
        driver.collect()
    return killed_at


def _totals(survey: Survey) -> tuple[Counter[str], Counter[str]]:
    """Messages sent between all nodes, and refused, by layer and by reason."""
    sent: Counter[str] = Counter()
    refused: Counter[str] = Counter()
    for view in survey.nodes:
        sent.update({layer: sum(kinds.values()) for layer, kinds in view.sent.items()})
        refused.update(view.refused)
    return sent, refused


def _ms(start: float, end: float) -> int:
    return round((end - start) * 1000)
