"""Planted bugs in what a broker that is alive says to bits that flip in its files."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import msgspec

from tidings.journal.checked import Checked, DamagedPlace
from tidings.journal.disk import Buffer
from tidings.node.stored import StoredBatches
from tidings.protocols.broker import damage
from tidings.protocols.broker.bulk import ReadDone
from tidings.protocols.broker.consumer_groups.coordinators import Coordinators
from tidings.protocols.broker.delivery import Dispatcher
from tidings.protocols.broker.topics import Place
from tidings.protocols.effects import Effect, Forward
from tidings.protocols.events import Damaged
from tidings.simulator.planting import mutant, patched
from tidings_lab.simulated_tampering.served import RULE
from tidings_lab.simulated_tampering.tampering import TAMPERED

_mutant = partial(mutant, world=TAMPERED)


@_mutant("checked-for-ever", "a block that was found good once counts as good for ever", RULE)
def _checked_for_ever() -> Iterator[None]:
    with patched(Checked, "forget", lambda _: lambda self: None):
        yield


@_mutant("send-what-is-damaged", "a batch that cannot be read is sent as it is", RULE)
def _send_what_is_damaged() -> Iterator[None]:
    def make(stored: Any) -> Any:
        def planted(self: StoredBatches, place: Place) -> Buffer:
            try:
                body: Buffer = stored(self, place)
            except DamagedPlace as damaged:
                base_address = damaged.span.start - damaged.position
                return self._journal._disk.read_at(damaged.name, place.address - base_address, place.size_bytes)
            return body

        return planted

    with patched(StoredBatches, "stored", make):
        yield


@_mutant("leave-out-what-is-damaged", "a range goes on behind a batch that cannot be read, without a word", RULE)
def _leave_out_what_is_damaged() -> Iterator[None]:
    def make(shorter: Any) -> Any:
        def planted(forward: Forward, peer: object, done: ReadDone, event: Damaged) -> Effect:
            count = event.readable
            if len(done.batches) == 1:
                failed: Effect = shorter(forward, peer, done, event)
                return failed
            batches = done.batches[:count] + done.batches[count + 1 :]
            places = forward.places[:count] + forward.places[count + 1 :]
            return msgspec.structs.replace(
                forward, message=msgspec.structs.replace(done, batches=batches), places=places
            )

        return planted

    with patched(damage, "_shorter", make):
        yield


@_mutant("stand-without-a-word", "a stream stands before what cannot be read, and nobody is told why", RULE)
def _stand_without_a_word() -> Iterator[None]:
    with patched(Dispatcher, "damage_before", lambda _: lambda self, stream: None):
        yield


@_mutant("group-stands-without-a-word", "a group stands before what cannot be read, and nobody is told why", RULE)
def _group_stands_without_a_word() -> Iterator[None]:
    with patched(Coordinators, "_damage_before", lambda _: lambda self, coordinator: None):
        yield
