"""What a replica's snapshots and indexes hold beside those of its state.

A segment of a replica's journal is sealed with a `SnapshotHeader`: the state, where it stands, what was promised, and
what was accepted beyond it, by its place in the journal. The index of each segment has the places of the slots that
were applied while it was written, so that those who are behind can be sent them, however old they are.

Segments that were sealed before, by a broker alone, hold the broker's own snapshot and index.
"""

from __future__ import annotations

import msgspec

from tidings.protocols.multipaxos.claims import Memory
from tidings.protocols.multipaxos.records import Snapshot
from tidings.protocols.multipaxos.values import Ballot, Entry


class Held(msgspec.Struct, frozen=True, array_like=True):
    """A value that is accepted and not applied: the record at this address has it."""

    slot: int
    address: int
    chosen: bool = False
    """Known to be chosen, and waiting only for what damage has taken before it."""


class SnapshotHeader(msgspec.Struct, frozen=True, array_like=True):
    """All that the records before it say."""

    node: int
    promised: Ballot
    snapshot: Snapshot
    held: tuple[Held, ...]
    state: bytes
    taken: tuple[Entry, ...] = ()
    """The same as `held`, of a replica that has exchanged its journal for another's: no record has them any more."""
    reach: int = 0
    """The first slot above everything that was accepted or known to be decided, be it damaged here by now or not."""
    memories: tuple[Memory, ...] = ()
    """What the other members have said of themselves."""
    known: int = 0
    """Not 0 while something is missing that damage has taken: every slot below is known to be decided."""


class Piece(msgspec.Struct, frozen=True, array_like=True):
    """What was applied while a segment was written: where the records are, slot by slot; the state's index."""

    first_slot: int
    addresses: bytes
    command_sizes: bytes
    state: bytes
    moved: tuple[tuple[int, int, int], ...] = ()
    """Slots of earlier segments whose records were damaged and came again: their new addresses and command sizes."""


_encoder = msgspec.msgpack.Encoder()
_header_decoder = msgspec.msgpack.Decoder(SnapshotHeader)
_piece_decoder = msgspec.msgpack.Decoder(Piece)


def encode(what: SnapshotHeader | Piece) -> bytes:
    return _encoder.encode(what)


def decode_snapshot_header(data: bytes | memoryview) -> SnapshotHeader | None:
    """What a replica sealed; None for the snapshot of a broker alone, which has topics where a ballot would be."""
    try:
        return _header_decoder.decode(data)
    except msgspec.ValidationError:
        return None


def decode_piece(data: bytes | memoryview) -> Piece:
    """The index of a segment; that of a broker alone begins with a list, and speaks of no slots."""
    try:
        return _piece_decoder.decode(data)
    except msgspec.ValidationError:
        return Piece(0, b"", b"", bytes(data))
