"""Planted bugs of replicas: their states and snapshots, the files of others, and reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import msgspec

from tidings.node.bodies import Kept
from tidings.node.file_copy import INCOMING_SUFFIX, LIST_NAME, FileCopy
from tidings.node.replica import ReplicaEngine
from tidings.node.snapshot_header import SnapshotHeader
from tidings.protocols.multipaxos.leader import Leader
from tidings.protocols.multipaxos.messages import ReadReady
from tidings.protocols.multipaxos.records import Snapshot
from tidings.protocols.multipaxos.replica import Replica
from tidings.protocols.multipaxos.values import ZERO, Command
from tidings.protocols.stack import Notify
from tidings.simulator.checkers.rules import ASSERTIONS, PROGRESS
from tidings.simulator.disk import SimulatedDisk
from tidings.simulator.planting import mutant, patched
from tidings_lab.bugs.paxos import ONE, ORDER, PROMISES, STAYS
from tidings_lab.simulated_replicas.checkers import ReadsAreCurrent
from tidings_lab.simulated_replicas.row import Row

READS = ReadsAreCurrent.RULE

_mutant = partial(mutant, world="paxos")


@_mutant("apply-twice", "a command that was chosen twice is applied twice", ORDER, STAYS)
def _apply_twice() -> Iterator[None]:
    def planted(self: Row, command: Command, address: int) -> bytes:
        return str(self._append(bytes(command.body), address)).encode()

    with patched(Row, "apply", lambda _: planted):
        yield


@_mutant("snapshot-without-sessions", "a snapshot does not say which commands were applied", ORDER)
def _snapshot_without_sessions() -> Iterator[None]:
    def make(seal: Any) -> Any:
        def planted(self: Row) -> Any:
            lasts, self._lasts = self._lasts, {}
            try:
                return seal(self)
            finally:
                self._lasts = lasts

        return planted

    with patched(Row, "seal", make):
        yield


def _snapshot(make: Callable[[Snapshot], Snapshot]) -> Any:
    return patched(ReplicaEngine, "_snapshot", lambda snapshot: lambda self: make(snapshot(self)))


@_mutant("snapshot-of-another-slot", "a snapshot says that it holds one slot more than it does", ORDER, ASSERTIONS)
def _snapshot_of_another_slot() -> Iterator[None]:
    with _snapshot(lambda snapshot: msgspec.structs.replace(snapshot, next_slot=snapshot.next_slot + 1)):
        yield


@_mutant("snapshot-without-voters", "a snapshot has the voters of the beginning", ORDER, ONE, PROGRESS, ASSERTIONS)
def _snapshot_without_voters() -> Iterator[None]:
    with _snapshot(lambda snapshot: msgspec.structs.replace(snapshot, terms=snapshot.terms[:1])):
        yield


@_mutant(
    "snapshot-without-accepted",
    "a snapshot forgets what was accepted and is not decided",
    ONE,
    ORDER,
    STAYS,
    ASSERTIONS,
)
def _snapshot_without_accepted() -> Iterator[None]:
    def make(seal: Any) -> Any:
        def planted(self: ReplicaEngine) -> Any:
            kept, self._kept = self._kept, {}
            try:
                return seal(self)
            finally:
                self._kept = kept

        return planted

    with patched(ReplicaEngine, "_seal", make):
        yield


@_mutant(
    "exchange-without-accepted",
    "who takes over files forgets what it has accepted itself",
    ONE,
    ORDER,
    STAYS,
    PROGRESS,
    ASSERTIONS,
)
def _exchange_without_accepted() -> Iterator[None]:
    def make(exchange_state: Any) -> Any:
        def planted(self: ReplicaEngine, now_ms: int) -> None:
            self._kept.clear()
            exchange_state(self, now_ms)

        return planted

    with patched(ReplicaEngine, "_exchange_state", make):
        yield


@_mutant("exchange-forgets-promise", "who takes over files takes over the other's promise too", PROMISES, ONE)
def _exchange_forgets_promise() -> Iterator[None]:
    def make(install: Any) -> Any:
        def planted(self: FileCopy, head: SnapshotHeader) -> None:
            install(self, msgspec.structs.replace(head, promised=ZERO))

        return planted

    with patched(FileCopy, "install", make):
        yield


@_mutant(
    "exchange-in-two-steps",
    "files of another are renamed before all of them count",
    ORDER,
    ONE,
    STAYS,
    ASSERTIONS,
)
def _exchange_in_two_steps() -> Iterator[None]:
    def make(replace: Any) -> Any:
        def planted(self: SimulatedDisk, name: str, buffers: Any) -> None:
            if name == LIST_NAME:
                for each in msgspec.msgpack.decode(b"".join(buffers), type=list[str]):
                    self.rename(each + INCOMING_SUFFIX, each)
            replace(self, name, buffers)

        return planted

    with patched(SimulatedDisk, "replace", make):
        yield


@_mutant("damage-left-alone", "what is damaged is found, and nobody asked for it", PROGRESS)
def _damage_left_alone() -> Iterator[None]:
    with patched(ReplicaEngine, "mend", lambda _: lambda self, span: False):
        yield


@_mutant("repair-forgotten", "what was damaged is fetched, and looked for where it was", PROGRESS)
def _repair_forgotten() -> Iterator[None]:
    with (
        patched(Row, "move", lambda _: lambda self, address, size_bytes, new_address: None),
        patched(Row, "copies_within", lambda _: lambda self, start, end: []),
    ):
        yield


@_mutant("apply-before-sync", "what is decided is applied before it is on this disk", ORDER, STAYS, ASSERTIONS)
def _apply_before_sync() -> Iterator[None]:
    def planted(self: ReplicaEngine) -> None:
        while self._decided:
            decided = self._decided.popleft()
            entry = self.replica.log.entries[decided.slot]
            self._kept.setdefault(decided.slot, Kept(entry, self.journal.end_address, self.journal.end_address))
            self._apply(decided.slot, self._kept[decided.slot])

    with patched(ReplicaEngine, "_apply_ready", lambda _: planted):
        yield


@_mutant("read-unconfirmed", "a leader answers reads without asking whether it still leads", READS)
def _read_unconfirmed() -> Iterator[None]:
    def make(on_read: Any) -> Any:
        def planted(self: Replica, token: int) -> None:
            if self.leads:
                self._effects.append(Notify(ReadReady(token, self.log.decided)))
            else:
                on_read(self, token)

        return planted

    with patched(Replica, "_on_read", make):
        yield


@_mutant(
    "read-before-recovery",
    "a new leader answers reads before it has decided what it was told of",
    READS,
)
def _read_before_recovery() -> Iterator[None]:
    with patched(Leader, "is_up_to_date", lambda _: property(lambda self: self.leading)):
        yield
