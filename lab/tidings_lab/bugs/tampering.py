"""Planted bugs in what a journal says to that which happened to its files while nobody looked."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import msgspec

from tidings.journal import journal, recovery, segment
from tidings.journal.checked import Checked, DamagedPlace
from tidings.journal.disk import Disk
from tidings.journal.recovery import Found, Inventory
from tidings.journal.segment import Envelope
from tidings.protocols.broker.consumer_groups.groups import GroupState
from tidings.protocols.broker.consumer_groups.progress import Progress
from tidings.protocols.broker.snapshots import Snapshot
from tidings.protocols.broker.staged import StagesState
from tidings.simulator.disk import SimulatedDisk
from tidings.simulator.planting import mutant, patched
from tidings_lab.simulated_tampering.served import RULE as SERVED_RULE
from tidings_lab.simulated_tampering.tampering import RULE, TAMPERED

_mutant = partial(mutant, world=TAMPERED)

# How much of a file must be there.


@_mutant("ignore-the-mark", "nothing is known of how much of a file had been synced", RULE)
def _ignore_the_mark() -> Iterator[None]:
    with patched(SimulatedDisk, "durable_size", lambda _: lambda self, name: 0):
        yield


@_mutant("mark-follows-file", "a file that ends too early is taken for one that was never longer", RULE)
def _mark_follows_file() -> Iterator[None]:
    def make(durable_size: Any) -> Any:
        return lambda self, name: min(durable_size(self, name), self.size(name))

    with patched(SimulatedDisk, "durable_size", make):
        yield


@_mutant("cut-what-is-damaged", "everything behind a damaged record is cut off, as if it had been torn", RULE)
def _cut_what_is_damaged() -> Iterator[None]:
    with (
        patched(SimulatedDisk, "durable_size", lambda _: lambda self, name: 0),
        patched(recovery, "synced_behind", lambda _: lambda view, position, base_address: False),
    ):
        yield


@_mutant("skip-what-is-damaged", "a broker without others goes on behind a damaged record", RULE)
def _skip_what_is_damaged() -> Iterator[None]:
    def make(recover: Any) -> Any:
        return lambda self, skips_damage=False: recover(self, True)

    with patched(journal.Journal, "recover", make):
        yield


# Which files must be there.


@_mutant("forget-oldest", "nothing says which segment is the oldest that must be there", RULE)
def _forget_oldest() -> Iterator[None]:
    yield from _with_inventory(lambda found, slots: Inventory(min(slots, default=found.oldest), found.newest))


@_mutant("forget-newest", "nothing says which segment is the newest that must be there", RULE)
def _forget_newest() -> Iterator[None]:
    yield from _with_inventory(
        lambda found, slots: Inventory(min(found.oldest, max(slots, default=0)), max(slots, default=0))
    )


def _with_inventory(change: Any) -> Iterator[None]:
    def make(read_note: Any) -> Any:
        def planted(disk: Disk, name: str, kind: type) -> Any:
            found = read_note(disk, name, kind)
            slots = segment.slots_of(disk.names(), segment.JOURNAL_SUFFIX)
            return change(found, slots) if isinstance(found, Inventory) else found

        return planted

    with patched(recovery, "read_note", make):
        yield


@_mutant("begin-anew", "a folder without a journal is taken for a new one", RULE)
def _start_over() -> Iterator[None]:
    def make(survey: Any) -> Any:
        def planted(disk: Disk) -> Found:
            if not segment.slots_of(disk.names(), segment.JOURNAL_SUFFIX):
                for name in disk.names():
                    disk.remove(name)
            found: Found = survey(disk)
            return found

        return planted

    with patched(journal, "survey", make):
        yield


def _with_snapshot_made_up(without: Callable[[Snapshot], Snapshot]) -> Iterator[None]:
    """A snapshot that got lost is taken to be what another source tells, which does not know everything."""
    known: dict[int, Envelope] = {}

    def make_encode(encode: Any) -> Any:
        def planted(envelope: Envelope, salt: int = 0) -> Any:
            known[envelope.next_slot] = envelope
            return encode(envelope, salt)

        return planted

    def make_survey(survey: Any) -> Any:
        def planted(disk: Disk) -> Found:
            names = disk.names()
            slot = (segment.slots_of(names, segment.JOURNAL_SUFFIX) or [0])[-1]
            name = segment.snapshot_name(slot)
            if name not in names and slot in known:
                state = without(msgspec.msgpack.decode(known[slot].payload, type=Snapshot))
                made_up = known[slot]._replace(payload=msgspec.msgpack.encode(state))
                disk.replace(name, segment.encode_snapshot(made_up, disk.salt))
            found: Found = survey(disk)
            return found

        return planted

    with patched(segment, "encode_snapshot", make_encode), patched(journal, "survey", make_survey):
        yield


@_mutant("groups-from-nothing", "with a lost snapshot the progress of every group begins from nothing", RULE)
def _groups_from_nothing() -> Iterator[None]:
    def begin(group: GroupState) -> GroupState:
        return msgspec.structs.replace(group, progress=Progress(0).encode())

    yield from _with_snapshot_made_up(
        lambda state: msgspec.structs.replace(state, groups=[begin(group) for group in state.groups])
    )


@_mutant("queries-from-nothing", "with a lost snapshot nothing is known of what queries have published", RULE)
def _queries_from_nothing() -> Iterator[None]:
    yield from _with_snapshot_made_up(lambda state: msgspec.structs.replace(state, stages=StagesState()))


# What is in them.


@_mutant("read-unchecked", "what is read is not compared with the sum of its block", RULE, SERVED_RULE)
def _read_unchecked() -> Iterator[None]:
    def planted(self: Checked, position: int, size: int) -> memoryview:
        return self._disk.read_at(self._name, position, size)

    with patched(Checked, "read", lambda _: planted):
        yield


@_mutant("zeros-for-damage", "what is damaged is read as zeros", RULE, SERVED_RULE)
def _zeros_for_damage() -> Iterator[None]:
    def make(read: Any) -> Any:
        def planted(self: Checked, position: int, size: int) -> memoryview:
            try:
                found: memoryview = read(self, position, size)
            except DamagedPlace:
                return memoryview(bytes(size))
            return found

        return planted

    with patched(Checked, "read", make):
        yield


@_mutant("snapshot-unchecked", "snapshots and indexes are taken as they are", RULE)
def _snapshot_unchecked() -> Iterator[None]:
    def planted(magic_wanted: bytes, data: memoryview, name: str, salt: int) -> Envelope:
        next_slot, *fields = segment._ENVELOPE.unpack_from(data, segment._PREFIX.size)
        sealed = segment.Segment(*fields)
        is_index = magic_wanted == segment._INDEX_MAGIC
        payload_at = segment._ENVELOPE_SIZE + (segment._sums_size(sealed) if is_index else 0)
        sums = bytes(data[segment._ENVELOPE_SIZE : payload_at])
        return Envelope(next_slot, sealed, bytes(data[payload_at:]), sums)

    with patched(segment, "_decode_envelope", lambda _: planted):
        yield
