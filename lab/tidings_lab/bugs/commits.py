"""Planted bugs of commits over several groups of a ring: who decides, who holds what, and what waits for it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from tidings.protocols.broker.origins import Reporting
from tidings.protocols.effects import Effect, Persist
from tidings.protocols.ring import committing
from tidings.protocols.ring.commit_commands import DecideCommit, EndCommit, ResolvePart
from tidings.protocols.ring.commit_coordinator import CommitCoordinator, Decided, Ended
from tidings.protocols.ring.commit_messages import PartPrepared
from tidings.protocols.ring.commit_owner import CommitOwner
from tidings.protocols.ring.commits import Commits, CommitsState, HeldPart
from tidings.protocols.ring.handoff_messages import ToGroup
from tidings.protocols.ring.messages import GroupDescriptor
from tidings.simulator.checkers.cluster import AnswersAreCurrent, SameEverywhere
from tidings.simulator.checkers.commits import CommitsAreWhole
from tidings.simulator.checkers.ring_cluster import NothingLeftBehind
from tidings.simulator.checkers.rules import PROGRESS
from tidings.simulator.planting import mutant, patched

WHOLE = CommitsAreWhole.RULE
BEHIND = NothingLeftBehind.RULE
CURRENT = AnswersAreCurrent.RULE
SAME = SameEverywhere.RULE

_mutant = partial(mutant, world="ring-cluster")

# Who decides.


def _resolving(happens: bool) -> Any:
    """A tick of an owner that makes up its own mind about what it has held for a while."""

    def make(ask: Any) -> Any:
        def planted(self: CommitOwner, now_ms: int, own: GroupDescriptor, client: str, commit: bytes) -> list[Effect]:
            return [Persist(ResolvePart(commit, client, happens))]

        return planted

    return make


@_mutant("drop-after-a-while", "an owner drops a part by itself when it has heard nothing for a while", WHOLE)
def _drop_after_a_while() -> Iterator[None]:
    with patched(CommitOwner, "_ask", _resolving(False)):
        yield


@_mutant(
    "carry-out-unasked",
    "an owner carries a part out by itself when it has heard nothing for a while",
    WHOLE,
)
def _carry_out_unasked() -> Iterator[None]:
    with patched(CommitOwner, "_ask", _resolving(True)):
        yield


@_mutant("first-part-decides", "a commit is decided when the first of its parts is held", WHOLE)
def _first_part_decides() -> Iterator[None]:
    def make(on_prepared: Any) -> Any:
        def planted(self: CommitCoordinator, message: PartPrepared) -> list[Effect]:
            attempt = self._attempts.get(message.commit)
            if attempt is not None:
                for share in attempt.shares.values():
                    share.is_prepared = True
            effects: list[Effect] = on_prepared(self, message)
            return effects

        return planted

    with patched(CommitCoordinator, "on_prepared", make):
        yield


@_mutant("next-leader-says-yes", "a new leader decides that what an earlier one has begun happens", WHOLE)
def _next_leader_says_yes() -> Iterator[None]:
    def make(tick: Any) -> Any:
        def planted(self: CommitCoordinator, now_ms: int, own: GroupDescriptor) -> list[Effect]:
            effects: list[Effect] = tick(self, now_ms, own)
            for place, effect in enumerate(effects):
                if isinstance(effect, Persist) and isinstance(effect.command, DecideCommit):
                    command = effect.command
                    decided = DecideCommit(command.commit, command.client, command.commit not in self._attempts)
                    effects[place] = Persist(decided, origin=effect.origin)
            return effects

        return planted

    with patched(CommitCoordinator, "tick", make):
        yield


@_mutant("unknown-happens", "a coordinator that does not know a commit says that it happens", WHOLE)
def _unknown_happens() -> Iterator[None]:
    def make(on_decided: Any) -> Any:
        def planted(
            self: CommitCoordinator,
            now_ms: int,
            own: GroupDescriptor,
            about: Decided,
            happens: bool | None,
            error: Exception | None,
        ) -> Any:
            return on_decided(self, now_ms, own, about, happens if about.asker is None else True, error)

        return planted

    with patched(CommitCoordinator, "on_decided", make):
        yield


@_mutant("forget-decision", "a coordinator forgets its decision before all owners have carried it out", WHOLE)
def _forget_decision() -> Iterator[None]:
    def make(tell: Any) -> Any:
        def planted(self: CommitCoordinator, now_ms: int, own: GroupDescriptor, commit: bytes) -> list[Effect]:
            effects: list[Effect] = tell(self, now_ms, own, commit)
            client = self._telling[commit].client
            return [*effects, Persist(EndCommit(commit, client), origin=Reporting(Ended(client)))]

        return planted

    with patched(CommitCoordinator, "_tell", make):
        yield


# Who holds what.


@_mutant(
    "prepared-before-durable",
    "an owner says that it holds a part before that is durable",
    WHOLE,
    PROGRESS,
)
def _prepared_before_durable() -> Iterator[None]:
    def make(on_prepare: Any) -> Any:
        def planted(self: CommitOwner, now_ms: int, own: GroupDescriptor, message: Any, bodies: Any) -> list[Effect]:
            effects: list[Effect] = on_prepare(self, now_ms, own, message, bodies)
            return [*effects, ToGroup(message.sender, PartPrepared(own.group, message.commit, message.client))]

        return planted

    with patched(CommitOwner, "on_prepare", make):
        yield


@_mutant("snapshot-without-commits", "a snapshot leaves out commits and parts", SAME, WHOLE)
def _snapshot_without_commits() -> Iterator[None]:
    with patched(Commits, "state", lambda _: lambda self: CommitsState()):
        yield


@_mutant("part-without-acks", "an owner carries out the puts of its part, and not the acknowledgements", WHOLE)
def _part_without_acks() -> Iterator[None]:
    def make(carry_out: Any) -> Any:
        def planted(machine: Any, name: str, part: Any, addresses: Any, time_ms: int) -> Any:
            left = HeldPart(part.commit, part.epoch, part.batches, ())
            return carry_out(machine, name, left, addresses, time_ms)

        return planted

    with patched(committing, "_carry_out", make):
        yield


# What waits for it.


@_mutant("hand-off-with-parts", "ranges are given although a commit concerns them", WHOLE, BEHIND, CURRENT, PROGRESS)
def _hand_off_with_parts() -> Iterator[None]:
    with patched(Commits, "is_busy", lambda _: lambda *_: False):
        yield
