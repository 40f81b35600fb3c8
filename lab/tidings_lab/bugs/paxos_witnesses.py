"""Planted bugs of what members remember of each other (`protocols.multipaxos.witness`)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import msgspec

from tidings.node import replica
from tidings.node.replica import ReplicaEngine
from tidings.node.snapshot_header import SnapshotHeader
from tidings.protocols.multipaxos.claims import NOTHING, Claim, Extent
from tidings.protocols.multipaxos.messages import Persist, Remembered
from tidings.protocols.multipaxos.witness import Witness
from tidings.simulator.checkers.rules import ASSERTIONS, PROGRESS
from tidings.simulator.planting import mutant, patched
from tidings_lab.bugs.paxos import ONE, ORDER

_mutant = partial(mutant, world="paxos")


@_mutant("ignore-remembered", "a member that is told that it once said more goes on", PROGRESS)
def _ignore_remembered() -> Iterator[None]:
    with patched(Witness, "_check", lambda _: lambda self, node, message: self._unanswered.pop(node, None)):
        yield


@_mutant("count-the-forgetful", "what a member says that once said more counts", PROGRESS, ORDER, ONE, ASSERTIONS)
def _count_the_forgetful() -> Iterator[None]:
    def make(hear: Any) -> Any:
        def planted(self: Witness, node: int, claim: Claim) -> bool:
            if not hear(self, node, claim):
                del self._heard[node]
                hear(self, node, claim)
            return True

        return planted

    with patched(Witness, "_hear", make):
        yield


@_mutant("claim-what-is-staged", "a member claims what is not on its disk yet", ASSERTIONS)
def _claim_what_is_staged() -> Iterator[None]:
    def make(stage: Any) -> Any:
        def planted(self: ReplicaEngine, what: Any) -> None:
            stage(self, what)
            for record in what.records if isinstance(what, Persist) else ():
                self.witness.keep(record)

        return planted

    with patched(ReplicaEngine, "_stage", make):
        yield


@_mutant("forget-what-was-heard", "a restart forgets what others have said of themselves", PROGRESS, ORDER, ONE)
def _forget_what_was_heard() -> Iterator[None]:
    def make(begin: Any) -> Any:
        def planted(self: Witness, promised: Any, reach: int, memories: Any, records: Any) -> Any:
            return begin(self, promised, reach, (), ())

        return planted

    with patched(Witness, "begin", make):
        yield


@_mutant(
    "seal-without-memories",
    "a snapshot leaves out what others have said of themselves",
    PROGRESS,
    ORDER,
    ONE,
)
def _seal_without_memories() -> Iterator[None]:
    def make(encode: Any) -> Any:
        def planted(what: Any) -> bytes:
            data: bytes = encode(
                msgspec.structs.replace(what, memories=()) if isinstance(what, SnapshotHeader) else what
            )
            return data

        return planted

    with patched(replica, "encode", make):
        yield


@_mutant("alarm-of-another-life", "what was remembered for an earlier life is held against this one", ASSERTIONS)
def _alarm_of_another_life() -> Iterator[None]:
    def make(check: Any) -> Any:
        def planted(self: Witness, node: int, message: Remembered) -> None:
            check(self, node, Remembered(self._life, message.extent))

        return planted

    with patched(Witness, "_check", make):
        yield


@_mutant("alarm-of-this-life", "what a member has said in this life is held against its beginning", ASSERTIONS)
def _alarm_of_this_life() -> Iterator[None]:
    def planted(self: Witness, node: int, claim: Claim) -> Extent:
        known = self._heard.get(node)
        return known.extent if known is not None else NOTHING

    with patched(Witness, "_remembered", lambda _: planted):
        yield
