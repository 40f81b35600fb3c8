"""Planted bugs of a broker that is a replica group: who may answer, when, and where clients go."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from tidings.client.route import Route
from tidings.client.streams import Streams
from tidings.node import group as group_module
from tidings.node.engine import AnyEngine, Engine
from tidings.node.group import Group
from tidings.node.waiting import WaitingAnswers
from tidings.protocols.broker import messages
from tidings.protocols.broker.broker import Broker
from tidings.protocols.effects import Effect, Persist
from tidings.protocols.events import Received
from tidings.protocols.multipaxos.membership import Membership
from tidings.protocols.multipaxos.messages import AnyMessage
from tidings.protocols.multipaxos.replica import Replica
from tidings.protocols.multipaxos.values import Command
from tidings.simulator.checkers.cluster import AnswersAreCurrent, SafeRemovals, SameEverywhere
from tidings.simulator.checkers.rules import FENCED, LOST, ONCE, PROGRESS
from tidings.simulator.planting import mutant, patched

SAME = SameEverywhere.RULE
CURRENT = AnswersAreCurrent.RULE

_mutant = partial(mutant, world="cluster")
CHANGES = vars(group_module)["MembershipChanges"]

# Members that are silent.


@_mutant("remove-below-least", "a silent member is removed however few are left", SafeRemovals.RULE)
def _remove_below_least() -> Iterator[None]:
    with patched(CHANGES, "_is_safe_without", lambda _: lambda self, silent, asked: True):
        yield


@_mutant("never-taken-back", "a member that was removed because it was silent is not taken back", PROGRESS)
def _never_taken_back() -> Iterator[None]:
    with patched(CHANGES, "_is_welcome", lambda _: lambda self, address, disk: False):
        yield


@_mutant("keeps-old-number", "a member that is taken back is not told its new number", PROGRESS)
def _keeps_old_number() -> Iterator[None]:
    with patched(group_module, "renumbered", lambda _: lambda identity, found: None):
        yield


# The node that leads, or thinks so.


@_mutant("answer-unconfirmed", "a node answers without making sure that it still leads", CURRENT)
def _answer_unconfirmed() -> Iterator[None]:
    def planted(self: WaitingAnswers, received: Received, effects: list[Effect]) -> None:
        self._engine.run(effects)

    with patched(WaitingAnswers, "confirm", lambda _: planted):
        yield


@_mutant(
    "serve-too-early", "a new leader serves before it has applied what came before its time", CURRENT, FENCED, ONCE
)
def _serve_too_early() -> Iterator[None]:
    def make(check_serving: Any) -> Any:
        def planted(self: Group) -> None:
            if self.replica.replica.leads and not self.serving:
                self.serving = True
                engine = self._engine
                engine.broker = Broker(engine.settings, self.state.machine)
                engine.broker.members = self.addresses()
                engine.broker.recovered()
            check_serving(self)

        return planted

    with patched(Group, "_check_serving", make):
        yield


@_mutant("turned-away-is-done", "the one who asked for what was refused is told that it is done", LOST)
def _rejected_is_done() -> Iterator[None]:
    def make(turn_away_all: Any) -> Any:
        def planted(self: Group, wanted: list[Persist]) -> None:
            for persist in wanted:
                request = getattr(persist.origin, "message", None)
                if isinstance(request, messages.Put):
                    places = tuple(messages.Stored(0) for _ in request.part.targets)
                    self._engine.reply(persist.origin.peer, messages.PutDone(request.request, places))
            turn_away_all(self, wanted)

        return planted

    with patched(Group, "_turn_away_all", make):
        yield


@_mutant("silent-follower", "a node that does not lead says nothing to clients", PROGRESS)
def _silent_follower() -> Iterator[None]:
    def make(reply: Any) -> Any:
        def planted(self: AnyEngine, peer: object, answer: object) -> None:
            if not isinstance(answer, messages.NotLeader):
                reply(self, peer, answer)

        return planted

    with patched(Engine, "reply", make):
        yield


@_mutant("own-clock", "a leader applies a command by its own clock, and the others by the time of the value", SAME)
def _own_clock() -> Iterator[None]:
    def make(answer: Any) -> Any:
        def planted(self: Group, command: Command, address: int) -> Any:
            def make_unpack(unpack: Any) -> Any:
                return lambda body: (self._engine.now_ms, unpack(body)[1])

            with patched(group_module, "unpack", make_unpack):
                return answer(self, command, address)

        return planted

    with patched(Group, "_answer", make):
        yield


@_mutant("minority-decides", "what one acceptor has is decided", SAME, LOST, CURRENT)
def _minority_decides() -> Iterator[None]:
    with patched(Membership, "has_quorum", lambda _: lambda self, nodes: bool(nodes)):
        yield


@_mutant(
    "room-too-late",
    "a follower weighs new values before it decides what their accept says is decided: a full log goes on by the beat",
    ONCE,
)
def _room_too_late() -> Iterator[None]:
    with patched(Replica, "_make_room", lambda _: lambda self, message: None):
        yield


# The client that looks for it.


@_mutant("client-stays", "a client asks the node again that has sent it elsewhere", PROGRESS)
def _client_stays() -> Iterator[None]:
    def make(go: Any) -> Any:
        def planted(self: Route, now_ms: int, address: str | None) -> None:
            go(self, now_ms, self.at)

        return planted

    with patched(Route, "_go", make):
        yield


@_mutant("streams-stay", "a client that goes to another node does not open its streams there", PROGRESS)
def _streams_stay() -> Iterator[None]:
    with patched(Streams, "reopen_all", lambda _: lambda self, tries: None):
        yield


# Members that come and go.


@_mutant("forget-contacts", "a node asks only whom its files know, which may be older than the leader", PROGRESS)
def _forget_contacts() -> Iterator[None]:
    def make(send_peer: Any) -> Any:
        def planted(self: Group, node: int, message: AnyMessage) -> None:
            if node in (self.state.members or self._contacts):
                send_peer(self, node, message)

        return planted

    with patched(Group, "_send_peer", make):
        yield
