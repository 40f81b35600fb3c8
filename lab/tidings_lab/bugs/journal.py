"""Planted bugs of the journal, of its snapshots and of its indexes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from tidings.journal import journal, record, recovery
from tidings.node import alone
from tidings.protocols.broker.machine import Machine
from tidings.protocols.broker.snapshots import SegmentIndex, Snapshot
from tidings.protocols.broker.topics import Topic
from tidings.simulator.checkers.rules import ASSERTIONS, LOST, RECOVERY
from tidings.simulator.planting import mutant, patched
from tidings.simulator.world.node import NodeProcess

# The journal.


@mutant("skip-sync", "the disk says that it has synced and has not", RECOVERY, LOST)
def _skip_sync() -> Iterator[None]:
    def make(start: Any) -> Any:
        def planted(self: NodeProcess) -> None:
            self.disk.skip_syncs = True
            start(self)

        return planted

    with patched(NodeProcess, "start", make):
        yield


@mutant("commit-unsynced", "a commit is written and not synced before the answer", RECOVERY, LOST)
def _commit_unsynced() -> Iterator[None]:
    def make(write: Any) -> Any:
        def planted(self: journal.Journal, commit: journal.Commit) -> None:
            self._syncs, syncs = False, self._syncs
            try:
                write(self, commit)
            finally:
                self._syncs = syncs

        return planted

    with patched(journal.Journal, "write", make):
        yield


@mutant("accept-torn", "recovery takes a record whose checksum is wrong", RECOVERY)
def _accept_torn() -> Iterator[None]:
    def make(_crc32: Any) -> Any:
        return lambda data, value=0: 0

    # With the same wrong sum on both sides every record is accepted.
    with patched(record, "crc32", make):
        yield


@mutant("cut-too-much", "recovery cuts off the last whole record together with a torn tail", RECOVERY)
def _cut_too_much() -> Iterator[None]:
    def make(scan: Any) -> Any:
        def planted(view: memoryview, *rest: Any) -> Iterator[record.Record]:
            found = list(scan(view, *rest))
            base_address = rest[1]
            torn = found and found[-1].end_address - base_address < len(view)
            yield from found[:-1] if torn else found

        return planted

    with patched(recovery, "scan", make):
        yield


@mutant("remove-live-segment", "retention removes every sealed segment", LOST, RECOVERY, ASSERTIONS)
def _remove_live_segment() -> Iterator[None]:
    with patched(alone, "lowest_address", lambda _: lambda machine, end_address: end_address):
        yield


# The snapshot and the indexes.


def _reseal(change: Callable[[SegmentIndex, Snapshot], tuple[SegmentIndex, Snapshot]]) -> Any:
    """A `seal` that changes what it writes down."""

    def make(seal: Any) -> Any:
        def planted(self: Machine) -> tuple[bytes, bytes]:
            index, snapshot = seal(self)
            changed = change(
                msgspec.msgpack.decode(index, type=SegmentIndex), msgspec.msgpack.decode(snapshot, type=Snapshot)
            )
            return msgspec.msgpack.encode(changed[0]), msgspec.msgpack.encode(changed[1])

        return planted

    return patched(Machine, "seal", make)


@mutant("lose-index-piece", "a sealed segment's index of the topics is not written", RECOVERY)
def _lose_index_piece() -> Iterator[None]:
    with _reseal(lambda index, snapshot: (msgspec.structs.replace(index, topics=[]), snapshot)):
        yield


@mutant("snapshot-without-subscriptions", "the snapshot leaves out the subscriptions", RECOVERY)
def _snapshot_without_subscriptions() -> Iterator[None]:
    with _reseal(lambda index, snapshot: (index, msgspec.structs.replace(snapshot, subscriptions=[]))):
        yield


@mutant("snapshot-before-last-batch", "the snapshot has each publisher's sequence number before the last", RECOVERY)
def _snapshot_before_last_batch() -> Iterator[None]:
    def change(index: SegmentIndex, snapshot: Snapshot) -> tuple[SegmentIndex, Snapshot]:
        clients = [
            msgspec.structs.replace(each, lasts={topic: last - 1 for topic, last in each.lasts.items()})
            for each in snapshot.clients
        ]
        return index, msgspec.structs.replace(snapshot, clients=clients)

    with _reseal(change):
        yield


@mutant("forget-sequences", "a restart forgets the publishers' sequence numbers", RECOVERY)
def _forget_sequences() -> Iterator[None]:
    def make(restore: Any) -> Any:
        def planted(self: Machine, *arguments: Any) -> None:
            restore(self, *arguments)
            for client in self.clients.values():
                client.tracks = {}

        return planted

    with patched(Machine, "restore", make):
        yield


@mutant("forget-carried", "a batch that was carried forward keeps its old address", RECOVERY, LOST, ASSERTIONS)
def _forget_carried() -> Iterator[None]:
    with patched(Topic, "_load_carried", lambda _: lambda self, carried: None):
        yield
