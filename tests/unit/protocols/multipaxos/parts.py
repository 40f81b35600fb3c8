"""What the tests of Multi-Paxos share: a state machine, replicas of a founded group, and a way to let them talk."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from random import Random
from typing import TypeVar

from tidings.node.replica import founding
from tidings.protocols.multipaxos.log import Log
from tidings.protocols.multipaxos.messages import (
    AnyMessage,
    Canvass,
    ElectionDue,
    Persist,
    Received,
    Send,
    Support,
)
from tidings.protocols.multipaxos.records import Installed, Record
from tidings.protocols.multipaxos.replica import Replica
from tidings.protocols.multipaxos.sessions import Sessions
from tidings.protocols.multipaxos.values import Command
from tidings.protocols.stack import Effect, Event, Notify, TimerFired
from tidings.settings import ReplicaSettings
from tidings.simulator.paxos.node import Row

WINDOW = 4
SETTINGS = ReplicaSettings(snapshot_every_slots=1_000)
Kind = TypeVar("Kind")


def command(number: int, client: str = "ann") -> Command:
    return Command(client, number, f"{client}{number}".encode())


def make_log(voters: tuple[int, ...] = (1, 2, 3)) -> Log:
    log = Log(Sessions(Row()))
    log.rebuild(None, [Installed(founding(voters, WINDOW))])
    return log


def make_replica(
    node: int,
    voters: tuple[int, ...] = (1, 2, 3),
    records: Iterable[Record] = (),
    settings: ReplicaSettings = SETTINGS,
) -> Replica:
    replica = Replica(node, settings, Row(), Random(node))
    replica.restore(None, [Installed(founding(voters, WINDOW)), *records])
    replica.start()
    return replica


def receive(replica: Replica, node: int, message: AnyMessage) -> list[Effect]:
    return replica.handle(Received(0, node, message))


def persists(effects: Iterable[Effect]) -> list[Persist]:
    return [effect for effect in effects if isinstance(effect, Persist)]


def said(effects: Iterable[Effect], kind: type[Kind] | tuple[type[Kind], ...]) -> list[Kind]:
    """The messages of a kind in the effects, those that wait for the disk included."""
    found = []
    for effect in effects:
        sends = effect.answers if isinstance(effect, Persist) else (effect,)
        for send in sends:
            if isinstance(send, Send) and isinstance(send.message, kind):
                found.append(send.message)
    return found


def told(effects: Iterable[Effect], kind: type[Kind]) -> list[Kind]:
    """The notifications of a kind."""
    return [
        effect.notification
        for effect in effects
        if isinstance(effect, Notify) and isinstance(effect.notification, kind)
    ]


class Group:
    """Replicas that hear each other at once, on disks that take no time; `cut` are those whom nobody reaches."""

    def __init__(self, voters: tuple[int, ...] = (1, 2, 3), settings: ReplicaSettings = SETTINGS) -> None:
        self.replicas = {node: make_replica(node, voters, settings=settings) for node in voters}
        self.records: dict[int, list[Record]] = {node: [] for node in self.replicas}
        self.effects: dict[int, list[Effect]] = {node: [] for node in self.replicas}
        self.cut: tuple[int, ...] = ()
        self._queue: deque[tuple[int, Event]] = deque()
        self.now_ms = 0

    def join_blank(self, node: int) -> None:
        """A node with an empty disk."""
        self.replicas[node] = Replica(node, SETTINGS, Row(), Random(node))
        self.replicas[node].restore(None, [])
        self.records[node], self.effects[node] = [], []

    def elect(self, node: int) -> None:
        """A node's patience ends, and everybody says that there is no leader."""
        self.lose_patience(node)
        for canvass in said(self.effects[node], Canvass)[-1:]:
            for other in self.replicas:
                if other != node:
                    self.tell(node, Received(self.now_ms, other, Support(canvass.attempt)))

    def lose_patience(self, node: int) -> None:
        self.tell(node, TimerFired(self.now_ms, ElectionDue()))

    def tell(self, node: int, event: Event) -> None:
        """An event, and everything that follows from it."""
        self._queue.append((node, event))
        while self._queue:
            receiver, event = self._queue.popleft()
            effects = self.replicas[receiver].handle(event)
            self.effects[receiver] += effects
            for effect in effects:
                sends: tuple[Effect, ...] = (effect,)
                if isinstance(effect, Persist):
                    self.records[receiver] += effect.records
                    sends = effect.answers
                for send in sends:
                    if isinstance(send, Send):
                        self._carry(receiver, send)

    def _carry(self, sender: int, send: Send) -> None:
        for node in send.nodes:
            if node == sender or (node in self.replicas and sender not in self.cut and node not in self.cut):
                self._queue.append((node, Received(self.now_ms, sender, send.message)))

    def rows(self) -> list[list[bytes]]:
        return [row_of(replica) for replica in self.replicas.values()]


def row_of(replica: Replica) -> list[bytes]:
    machine = replica.log.sessions.machine
    assert isinstance(machine, Row)
    return machine.bodies
