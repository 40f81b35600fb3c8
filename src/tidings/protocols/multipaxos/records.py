"""What a replica keeps on its disk: a row of these records, and now and then a `Whole` in place of all before it.

The last word counts: a later entry of the same slot, which always has a higher ballot, replaces the earlier, and
promises only rise. So records may be replayed on top of a `Whole` that already knows them.
"""

from __future__ import annotations

import msgspec

from tidings.protocols.multipaxos.membership import Term
from tidings.protocols.multipaxos.values import Ballot, Entry


class Snapshot(msgspec.Struct, frozen=True, array_like=True, tag="snapshot"):
    """The state before a slot: the state machine's, and who decides on the slots from there on."""

    next_slot: int
    window: int
    terms: tuple[Term, ...]
    state: bytes


class Named(msgspec.Struct, frozen=True, array_like=True, tag="named"):
    """Whose disk this is: the first record of all."""

    node: int


class Promised(msgspec.Struct, frozen=True, array_like=True, tag="promised"):
    """Nothing below this ballot is accepted."""

    ballot: Ballot


class Stored(msgspec.Struct, frozen=True, array_like=True, tag="stored"):
    """A value was accepted under its ballot, which is thereby promised too; or it is known to be chosen."""

    entry: Entry


class Known(msgspec.Struct, frozen=True, array_like=True, tag="known"):
    """What the slots below hold here is chosen. Not needed for safety: it saves asking again after a restart."""

    decided: int


class Installed(msgspec.Struct, frozen=True, array_like=True, tag="installed"):
    """This snapshot takes the place of all slots before it."""

    snapshot: Snapshot


Record = Named | Promised | Stored | Known | Installed


class Whole(msgspec.Struct, frozen=True, array_like=True):
    """All that the records say, in one."""

    node: int
    promised: Ballot
    snapshot: Snapshot | None
    entries: tuple[Entry, ...]
    decided: int


_encoder = msgspec.msgpack.Encoder()
_record_decoder = msgspec.msgpack.Decoder(Record)
_whole_decoder = msgspec.msgpack.Decoder(Whole)
_snapshot_decoder = msgspec.msgpack.Decoder(Snapshot)


def encode(what: Record | Whole | Snapshot) -> bytes:
    return _encoder.encode(what)


def decode_record(data: bytes) -> Record:
    """A record from the disk, for which its checksum has already vouched."""
    record: Record = _record_decoder.decode(data)
    return record


def decode_whole(data: bytes) -> Whole:
    return _whole_decoder.decode(data)


def decode_snapshot(data: bytes) -> Snapshot:
    """A snapshot as another replica sent it; raises msgspec.DecodeError if it is none."""
    return _snapshot_decoder.decode(data)
