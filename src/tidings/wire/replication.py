"""Messages between the replicas of a group as frames and back. Bad bytes stop here, as in `codec`.

    MARK | header: group, sender, receiver, message, which values have their bodies behind it, claim | these bodies

Small commands travel in the header, large ones in frames of their own, so that they are not copied into it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, cast

import msgspec

from tidings.errors import ProtocolError
from tidings.protocols.fields import NUMBER_MAX, Number, Several
from tidings.protocols.multipaxos.claims import Claim
from tidings.protocols.multipaxos.joining import JoiningMessage
from tidings.protocols.multipaxos.messages import Accept, AnyMessage, Chosen, Promise, Remembered
from tidings.protocols.multipaxos.values import Command, Entry, Value
from tidings.wire.codec import Frame

MARK = b"tidings replica 1"
"""The first frame: what follows is no client's request."""
REPLICA_PEER_NAME = "replica"
"""Whose key members use among each other, where connections are encrypted."""
MESSAGE_BYTES_MAX = 64 * 1024 * 1024
INLINE_BYTES_MAX = 4 * 1024


class ReplicaPeer(NamedTuple):
    """Another member of the group, as the one to send something to."""

    address: str


class Header(msgspec.Struct, frozen=True, array_like=True):
    """A message on its way from one number of a group to another."""

    group: bytes
    sender: Number
    receiver: Number
    message: AnyMessage | JoiningMessage
    apart: Several[Number] = ()
    """Which of the message's values, counted from 0, have their bodies in frames of their own."""
    claim: Claim | None = None
    """What the sender says of itself; None from one without a number, and from an older version."""


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Header)


def encode_message(
    message: AnyMessage | JoiningMessage,
    group: bytes = b"",
    sender: int = 0,
    receiver: int = 0,
    claim: Claim | None = None,
) -> list[Frame]:
    """The frames of a message.

    >>> from tidings.protocols.multipaxos.messages import Fetch
    >>> decode_message(encode_message(Fetch(first_slot=7), b"group", 1, 2)).message
    Fetch(first_slot=7)
    """
    values = _values(message)
    apart = [
        place for place, value in enumerate(values) if isinstance(value, Command) and len(value.body) > INLINE_BYTES_MAX
    ]
    if not apart:
        return [MARK, _encoder.encode(Header(group, sender, receiver, message, claim=claim))]
    bodies: list[Frame] = []
    for place in apart:
        command = cast(Command, values[place])
        bodies.append(command.body)
        values[place] = Command(command.client, command.sequence, b"")
    header = Header(group, sender, receiver, _with_values(message, values), tuple(apart), claim)
    return [MARK, _encoder.encode(header), *bodies]


def decode_message(frames: Sequence[Frame]) -> Header:
    """The message in some frames from another replica, whole again."""
    size = sum(map(len, frames))
    if len(frames) < 2 or frames[0] != MARK or size > MESSAGE_BYTES_MAX:
        raise ProtocolError(f"{len(frames)} frames of {size} bytes are no message of a replica of this version.")
    try:
        header = _decoder.decode(frames[1])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"A replica's message could not be read ({error}): is it of this version?") from error
    _check_ballots(header)
    if not header.apart and len(frames) == 2:
        return header
    values = _values(header.message)
    if len(header.apart) != len(frames) - 2 or not all(0 <= place < len(values) for place in header.apart):
        raise ProtocolError("A replica's message has other bodies than it says: is it of this version?")
    for place, body in zip(header.apart, frames[2:], strict=True):
        command = values[place]
        if not isinstance(command, Command):
            raise ProtocolError("A replica's message has a body for what has none: is it of this version?")
        values[place] = Command(command.client, command.sequence, cast(bytes, body))
    return msgspec.structs.replace(header, message=_with_values(header.message, values), apart=())


def _check_ballots(header: Header) -> None:
    """Raises for a ballot after which there is hardly another; no replica says `CHOSEN`, which is one."""
    message, claim = header.message, header.claim
    extents = (claim.began, claim.now) if claim is not None else ()
    if isinstance(message, Remembered):
        extents = (*extents, message.extent)
    ballots = [extent.promised for extent in extents]
    ballots += [getattr(message, name) for name in ("ballot", "promised") if hasattr(message, name)]
    if any(ballot.number > NUMBER_MAX for ballot in ballots):
        raise ProtocolError("A replica's message has a ballot that nobody can have raised: is it of this version?")


def _values(message: AnyMessage | JoiningMessage) -> list[Value]:
    match message:
        case Accept() | Chosen():
            return list(message.values)
        case Promise():
            return [entry.value for entry in message.entries]
    return []


def _with_values(message: AnyMessage | JoiningMessage, values: list[Value]) -> AnyMessage:
    if isinstance(message, Promise):
        entries = zip(message.entries, values, strict=True)
        return msgspec.structs.replace(
            message, entries=tuple(Entry(entry.slot, entry.ballot, value) for entry, value in entries)
        )
    assert isinstance(message, Accept | Chosen)
    return msgspec.structs.replace(message, values=tuple(values))
