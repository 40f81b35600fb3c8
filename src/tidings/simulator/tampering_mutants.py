"""Planted bugs in what a journal says to that which happened to its files while nobody looked."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from tidings.journal import journal, recovery, segment
from tidings.journal.checked import Checked, DamagedPlace
from tidings.journal.disk import Disk
from tidings.journal.recovery import Found, Inventory
from tidings.journal.segment import Envelope
from tidings.simulator.disk import SimulatedDisk
from tidings.simulator.planting import mutant, patched
from tidings.simulator.tampering import RULE, TAMPERED

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


@_mutant("skip-what-is-damaged", "a broker without others goes on behind a damaged record", RULE, first_seed=17)
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
def _begin_anew() -> Iterator[None]:
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


# What is in them.


@_mutant("read-unchecked", "what is read is not compared with the sum of its block", RULE, first_seed=114)
def _read_unchecked() -> Iterator[None]:
    def planted(self: Checked, position: int, size: int) -> memoryview:
        return self._disk.read_at(self._name, position, size)

    with patched(Checked, "read", lambda _: planted):
        yield


@_mutant("zeros-for-damage", "what is damaged is read as zeros", RULE)
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
