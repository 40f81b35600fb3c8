"""What a replica keeps on its disk: a row of these records, and now and then a `Whole` in place of all before it.

The last word counts: a later entry of the same slot, which always has a higher ballot, replaces the earlier, and
promises only rise. So records may be replayed on top of a `Whole` that already knows them.

The state that follows from the decided slots is the runtime's, and so are snapshots of it. Here there is only where it
stands (`Snapshot`).
"""

from __future__ import annotations

import msgspec

from tidings.protocols.multipaxos.claims import Memory
from tidings.protocols.multipaxos.membership import Term
from tidings.protocols.multipaxos.values import Ballot, Entry


class Snapshot(msgspec.Struct, frozen=True, array_like=True):
    """That there is a snapshot of the state before a slot, and who decides on the slots from there on."""

    next_slot: int
    window: int
    terms: tuple[Term, ...]


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
    """What the slots below hold here is chosen: the records before this one say what that is."""

    decided: int


class Installed(msgspec.Struct, frozen=True, array_like=True, tag="installed"):
    """This snapshot takes the place of all slots before it."""

    snapshot: Snapshot


class Witnessed(msgspec.Struct, frozen=True, array_like=True, tag="witnessed"):
    """What the other members have said of themselves. Not needed for safety: it shows whose disk has lost something."""

    memories: tuple[Memory, ...]


Record = Named | Promised | Stored | Known | Installed | Witnessed


class Lost(msgspec.Struct, frozen=True):
    """Never on a disk: stands between two records where damage has taken others."""


class Whole(msgspec.Struct, frozen=True):
    """All that the records so far say, in one."""

    promised: Ballot
    snapshot: Snapshot
    entries: tuple[Entry, ...]
    """Those of the ballot `CHOSEN` are known to be chosen."""
    known: int = 0
    """After damage: every slot below is known to be decided, also those of which there is no entry."""


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Record)


def encode(record: Record) -> bytes:
    return _encoder.encode(record)


def decode(data: bytes) -> Record:
    """A record from the disk, for which its checksum has already vouched."""
    record: Record = _decoder.decode(data)
    return record
