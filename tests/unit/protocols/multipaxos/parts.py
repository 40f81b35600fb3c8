"""What the tests of Multi-Paxos share: replicas of a founded group, and a way to let them talk."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from random import Random
from typing import TypeVar

from tidings.node.founding import founding
from tidings.protocols.multipaxos.log import Log
from tidings.protocols.multipaxos.messages import (
    AnyMessage,
    Chosen,
    Decided,
    ElectionDue,
    Fetch,
    Persist,
    PreVote,
    PreVoteGranted,
    Received,
    Send,
)
from tidings.protocols.multipaxos.records import Installed, Record
from tidings.protocols.multipaxos.replica import Replica
from tidings.protocols.multipaxos.values import Command, Value
from tidings.protocols.stack import Effect, Event, Notify, TimerFired
from tidings.settings import ReplicaSettings

WINDOW = 4
SETTINGS = ReplicaSettings()
Kind = TypeVar("Kind")


def command(number: int, client: str = "ann") -> Command:
    return Command(client, number, f"{client}{number}".encode())


def make_log(voters: tuple[int, ...] = (1, 2, 3)) -> Log:
    log = Log()
    log.rebuild(None, [Installed(founding(voters, WINDOW))])
    return log


def make_replica(
    node: int,
    voters: tuple[int, ...] = (1, 2, 3),
    records: Iterable[Record] = (),
    settings: ReplicaSettings = SETTINGS,
) -> Replica:
    replica = Replica(node, settings, Random(node))
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
    """Replicas that hear each other at once, on disks that take no time; `cut` are those whom nobody reaches.

    What is decided is kept for each replica, as its runtime would, and those who fetch it are answered from that.
    """

    def __init__(self, voters: tuple[int, ...] = (1, 2, 3), settings: ReplicaSettings = SETTINGS) -> None:
        self.replicas: dict[int, Replica] = {}
        self.records: dict[int, list[Record]] = {}
        self.effects: dict[int, list[Effect]] = {}
        self.decided: dict[int, dict[int, Value]] = {}
        """By replica and slot."""
        for node in voters:
            self._add(node, make_replica(node, voters, settings=settings))
        self.founders = voters
        self.cut: tuple[int, ...] = ()
        self._queue: deque[tuple[int, Event]] = deque()
        self.now_ms = 0

    def _add(self, node: int, replica: Replica) -> None:
        self.replicas[node] = replica
        self.records[node], self.effects[node], self.decided[node] = [], [], {}

    def join_blank(self, node: int) -> None:
        """A node with an empty disk: it stands at slot 0, and has to be given where the group began."""
        replica = Replica(node, SETTINGS, Random(node))
        replica.restore(None, [])
        self._add(node, replica)

    def elect(self, node: int) -> None:
        """A node's patience ends, and everybody says that there is no leader."""
        self.lose_patience(node)
        for pre_vote in said(self.effects[node], PreVote)[-1:]:
            for other in self.replicas:
                if other != node:
                    self.tell(node, Received(self.now_ms, other, PreVoteGranted(pre_vote.attempt)))

    def lose_patience(self, node: int) -> None:
        self.tell(node, TimerFired(self.now_ms, ElectionDue()))

    def tell(self, node: int, event: Event) -> None:
        """An event, and everything that follows from it."""
        self._queue.append((node, event))
        while self._queue:
            receiver, event = self._queue.popleft()
            match event:
                case Received(_, asker, Fetch(first_slot)):
                    self._serve(receiver, asker, first_slot)
                case _:
                    self._run(receiver, self.replicas[receiver].handle(event))

    def _run(self, node: int, effects: list[Effect]) -> None:
        self.effects[node] += effects
        for decided in told(effects, Decided):
            assert decided.slot not in self.decided[node], "every slot is told once"
            self.decided[node][decided.slot] = decided.value
        for effect in effects:
            sends: tuple[Effect, ...] = (effect,)
            if isinstance(effect, Persist):
                self.records[node] += effect.records
                sends = effect.answers
            for send in sends:
                if isinstance(send, Send):
                    self._carry(node, send)

    def _serve(self, node: int, asker: int, first_slot: int) -> None:
        """What the runtime does for one who is behind: sends what was decided, or where the group began."""
        replica = self.replicas[asker]
        if first_slot == 0 and asker not in self.cut:
            snapshot = founding(self.founders, WINDOW)
            self._run(asker, replica.install(self.now_ms, node, snapshot))
            return
        decided = self.decided[node]
        values = tuple(decided[slot] for slot in sorted(decided) if slot >= first_slot)
        if values:
            end = first_slot + len(values)
            self._carry(node, Send((asker,), Chosen(first_slot, values, end)))

    def _carry(self, sender: int, send: Send) -> None:
        for node in send.nodes:
            if node == sender or (node in self.replicas and sender not in self.cut and node not in self.cut):
                self._queue.append((node, Received(self.now_ms, sender, send.message)))

    def rows(self) -> list[list[bytes]]:
        return [self.row_of(node) for node in self.replicas]

    def row_of(self, node: int) -> list[bytes]:
        """The bodies of the commands that a replica knows to be decided, in the order of their slots."""
        decided = self.decided[node]
        return [value.body for _, value in sorted(decided.items()) if isinstance(value, Command)]
