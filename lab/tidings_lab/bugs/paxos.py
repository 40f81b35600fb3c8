"""Planted bugs of Multi-Paxos: the classical ones, one for nearly every rule of `protocols.multipaxos`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from tidings.node.replica import ReplicaEngine
from tidings.protocols.multipaxos.acceptor import Acceptor
from tidings.protocols.multipaxos.leader import Leader, Proposal
from tidings.protocols.multipaxos.log import Log
from tidings.protocols.multipaxos.membership import History, Membership, Term
from tidings.protocols.multipaxos.messages import Accepted, Persist, Promise
from tidings.protocols.multipaxos.records import Known, Record, Whole
from tidings.protocols.multipaxos.replica import Replica
from tidings.protocols.multipaxos.values import ZERO, Ballot, Noop, Value
from tidings.protocols.stack import Effect
from tidings.simulator.checkers.rules import ASSERTIONS, PROGRESS
from tidings.simulator.disk import SimulatedDisk
from tidings.simulator.planting import mutant, patched
from tidings_lab.simulated_replicas.checkers import AcknowledgedStays, OneOrder, OneValue, PromisesHold
from tidings_lab.simulated_replicas.node import Node

ONE = OneValue.RULE
PROMISES = PromisesHold.RULE
ORDER = OneOrder.RULE
STAYS = AcknowledgedStays.RULE

_mutant = partial(mutant, world="paxos")

# What is on disk, and when.


@_mutant("answer-before-sync", "an accept or a promise is answered before it is on disk", PROMISES, ORDER)
def _answer_before_sync() -> Iterator[None]:
    def make(run: Any) -> Any:
        def planted(self: ReplicaEngine, now_ms: int, effects: list[Effect]) -> None:
            for effect in effects:
                if isinstance(effect, Persist):
                    run(self, now_ms, [Persist(effect.records), *effect.answers])
                else:
                    run(self, now_ms, [effect])

        return planted

    with patched(ReplicaEngine, "_run", make):
        yield


@_mutant(
    "repetition-before-sync", "what needs no record is answered while earlier ones are being written", PROMISES, ORDER
)
def _repetition_before_sync() -> Iterator[None]:
    def make(run: Any) -> Any:
        def planted(self: ReplicaEngine, now_ms: int, effects: list[Effect]) -> None:
            hasty: list[Effect] = []
            for effect in effects:
                if isinstance(effect, Persist) and not effect.records:
                    hasty += effect.answers
                else:
                    hasty.append(effect)
            run(self, now_ms, hasty)

        return planted

    with patched(ReplicaEngine, "_run", make):
        yield


@_mutant("forget-promise", "a restart forgets the promise", PROMISES)
def _forget_promise() -> Iterator[None]:
    def make(rebuild: Any) -> Any:
        def planted(self: Log, whole: Whole | None, records: list[Record], damaged: bool = False) -> Ballot:
            rebuild(self, whole, records, damaged)
            return ZERO

        return planted

    with patched(Log, "rebuild", make):
        yield


@_mutant("ballot-before-sync", "a candidate asks for a ballot before it has promised it on its own disk", PROMISES)
def _ballot_before_sync() -> Iterator[None]:
    def make(campaign: Any) -> Any:
        def planted(self: Replica) -> None:
            campaign(self)
            effects = self._effects
            for place, effect in enumerate(effects):
                if isinstance(effect, Persist):
                    effects[place : place + 1] = [*effect.answers[:1], Persist(effect.records, effect.answers[1:])]
                    return

        return planted

    with patched(Replica, "_campaign", make):
        yield


@_mutant(
    "known-before-entries",
    "that slots are decided is written down before what they hold",
    ASSERTIONS,
    ORDER,
)
def _known_before_entries() -> Iterator[None]:
    def make(with_known: Any) -> Any:
        def planted(self: Replica, effect: Effect) -> Effect:
            effect = with_known(self, effect)
            if isinstance(effect, Persist) and effect.records and isinstance(effect.records[-1], Known):
                return Persist((effect.records[-1], *effect.records[:-1]), effect.answers)
            return effect

        return planted

    with patched(Replica, "_with_known", make):
        yield


@_mutant("same-number-new-disk", "a node that lost its disk comes back under its old number", PROMISES, ONE, ORDER)
def _same_number_new_disk() -> Iterator[None]:
    def planted(self: Node) -> None:
        self.engine = None
        self.disk = SimulatedDisk(self._world.random)
        self.disk.on_step = self._on_step
        self.start()

    with patched(Node, "retire", lambda _: planted):
        yield


# The acceptor.


@_mutant("accept-lower-ballot", "an accept below the promise is accepted", PROMISES, ONE, ASSERTIONS)
def _accept_lower_ballot() -> Iterator[None]:
    with patched(Acceptor, "refuses", lambda _: lambda self, ballot: False):
        yield


@_mutant("accept-without-promise", "accepting does not raise the promise", PROMISES, ONE, ASSERTIONS)
def _accept_without_promise() -> Iterator[None]:
    def make(accept: Any) -> Any:
        def planted(self: Acceptor, node: int, message: Any) -> Effect:
            promised = self.promised
            effect: Effect = accept(self, node, message)
            self.promised = promised
            return effect

        return planted

    with patched(Acceptor, "accept", make):
        yield


@_mutant("promise-without-report", "a promise does not say what was accepted", ONE, ORDER, ASSERTIONS, PROGRESS)
def _promise_without_report() -> Iterator[None]:
    with patched(Log, "undecided", lambda _: lambda self, first_slot: ()):
        yield


# The leader.


def _value_for(make: Callable[[Leader, int], Value | None]) -> Any:
    return patched(Leader, "_value_for", lambda _: make)


@_mutant("no-re-proposal", "a new leader proposes something new where values were reported", ONE, ORDER, ASSERTIONS)
def _no_re_proposal() -> Iterator[None]:
    def planted(self: Leader, slot: int) -> Value | None:
        if slot < self.recovered_end or self._log.history.is_open(slot):
            return self.queue.popleft() if self.queue else Noop()
        return self.queue.popleft() if self.queue else None

    with _value_for(planted):
        yield


@_mutant(
    "any-re-proposal",
    "of the values reported for a slot the first is proposed, not the highest",
    ONE,
    ASSERTIONS,
)
def _any_re_proposal() -> Iterator[None]:
    def make(take_promise: Any) -> Any:
        def planted(self: Leader, node: int, promise: Promise) -> None:
            known = dict(self.recovered)
            take_promise(self, node, promise)
            self.recovered.update(known)

        return planted

    with patched(Leader, "take_promise", make):
        yield


@_mutant("hole-not-filled", "a slot for which nobody reported anything stays empty", PROGRESS)
def _hole_not_filled() -> Iterator[None]:
    def make(original: Any) -> Any:
        def planted(self: Leader, slot: int) -> Value | None:
            if slot not in self.recovered and slot < self.recovered_end:
                return None
            value: Value | None = original(self, slot)
            return value

        return planted

    with patched(Leader, "_value_for", make):
        yield


@_mutant("minority-chooses", "a value counts as chosen one accept before the majority", ORDER, ONE, STAYS)
def _minority_chooses() -> Iterator[None]:
    def planted(self: Proposal) -> bool:
        voters = self.membership.voters
        return sum(voter in self.accepted for voter in voters) >= max(1, len(voters) // 2)

    with patched(Proposal, "is_chosen", lambda _: property(planted)):
        yield


@_mutant("count-answers", "accepts are counted, not the nodes that gave them", ORDER, ONE)
def _count_answers() -> Iterator[None]:
    def make(take_accepted: Any) -> Any:
        def planted(self: Leader, node: int, message: Accepted) -> None:
            for slot in range(message.first_slot, message.first_slot + message.count):
                proposal = self.proposals.get(slot)
                if proposal is not None and node in proposal.accepted:
                    left = [voter for voter in proposal.membership.voters if voter not in proposal.accepted]
                    proposal.accepted.update(dict.fromkeys(left[:1]))
            take_accepted(self, node, message)

        return planted

    with patched(Leader, "take_accepted", make):
        yield


@_mutant("count-listeners", "nodes that only listen are counted", ORDER, ONE, STAYS)
def _count_listeners() -> Iterator[None]:
    def planted(self: Membership, nodes: Any) -> bool:
        return 2 * sum(node in nodes for node in self.nodes) > len(self.voters)

    with patched(Membership, "has_quorum", lambda _: planted):
        yield


@_mutant("skip-phase-one", "a new leader does not ask, it knows best", ONE, ORDER, PROMISES, ASSERTIONS)
def _skip_phase_one() -> Iterator[None]:
    with patched(Leader, "may_propose_in", lambda _: lambda self, slot: bool(self.promised)):
        yield


@_mutant(
    "decided-at-any-ballot",
    "a follower takes what it has accepted for decided, no matter who proposed it",
    ORDER,
)
def _decided_at_any_ballot() -> Iterator[None]:
    with patched(Log, "_is_surely_chosen", lambda _: lambda self, ballot: self.decided in self.entries):
        yield


# The membership.


@_mutant("old-quorum", "accepts are counted by the voters from before the last change", ORDER, ONE, STAYS, PROGRESS)
def _old_quorum() -> Iterator[None]:
    def make(next_batch: Any) -> Any:
        def planted(self: Leader) -> Any:
            batch = next_batch(self)
            for slot in range(batch[0], batch[0] + len(batch[1])) if batch is not None else ():
                self.proposals[slot].membership = self._log.history.terms[0].membership
            return batch

        return planted

    with patched(Leader, "next_batch", make):
        yield


@_mutant("change-at-once", "a change is in force from the next slot on", ORDER, ONE, PROGRESS, ASSERTIONS)
def _change_at_once() -> Iterator[None]:
    with patched(History, "_in_force_from", lambda _: lambda self, slot: slot + 1):
        yield


@_mutant("two-changes-at-once", "a change is taken while another is open", ORDER, ONE, PROGRESS, ASSERTIONS)
def _two_changes_at_once() -> Iterator[None]:
    def planted(self: History, slot: int, change: Any) -> bool:
        membership = self.newest.membership.after(change)
        if membership is None:
            return False
        self.terms = (*self.terms, Term(slot + self.window, membership))
        return True

    with patched(History, "take", lambda _: planted):
        yield


@_mutant("settled-too-early", "removed nodes may go as soon as the leader knows that they are", PROGRESS)
def _confirmed_too_early() -> Iterator[None]:
    def planted(self: Leader, term: Term) -> list[int]:
        return list(term.membership.voters) if self._log.decided >= term.first_slot else []

    with patched(Leader, "_who_knows", lambda _: planted):
        yield
