"""Messages between the nodes of a ring as frames and back. Bad bytes stop here, as in `codec`.

MARK | header: the sender's address, the message | frames of a client's request or answer, or bodies
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from tidings.errors import ProtocolError
from tidings.protocols.fields import Name, Several
from tidings.protocols.ring.commit_messages import CommitMessage
from tidings.protocols.ring.handoff_messages import HandoffMessage
from tidings.protocols.ring.messages import NodeMessage, Ref
from tidings.wire.codec import Frame

MARK = b"tidings ring 1"
"""The first frame: what follows is no client's request."""
HEADER_BYTES_MAX = 4 * 1024 * 1024


class Node(NamedTuple):
    """A node of the ring, as the one to send something to."""

    address: str


class RemoteClient(NamedTuple):
    """A client at another node's door, as the one to answer."""

    proxy: str
    connection: int


class Header(msgspec.Struct, frozen=True, array_like=True):
    """A message and the address of the node that sent it."""

    sender: Name
    message: NodeMessage | HandoffMessage | CommitMessage


class Cast(msgspec.Struct, frozen=True, array_like=True):
    """Stored batches of one node, as the payload of a topic's multicast."""

    owner: Name
    """The address of the node whose journal the references are about."""
    refs: Several[Ref]
    bodies: Several[bytes]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Header)
_cast_decoder = msgspec.msgpack.Decoder(Cast)

encode_cast = _encoder.encode
"""A cast as a payload."""


def encode_message(
    sender: str, message: NodeMessage | HandoffMessage | CommitMessage, frames: Sequence[Frame] = ()
) -> list[Frame]:
    """The frames of a message.

    >>> from tidings.protocols.ring.messages import Back
    >>> decode_header(encode_message("tcp://127.0.0.1:7501", Back(7), [b"answer"]))
    Header(sender='tcp://127.0.0.1:7501', message=Back(connection=7))
    """
    return [MARK, _encoder.encode(Header(sender, message)), *frames]


def decode_header(frames: Sequence[Frame]) -> Header:
    """The header of a message in some frames from another node; what follows it begins at frames[2]."""
    if len(frames) < 2 or frames[0] != MARK or len(frames[1]) > HEADER_BYTES_MAX:
        raise ProtocolError(f"{len(frames)} frames are no message of a node of a ring of this version.")
    try:
        return _decoder.decode(frames[1])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"A node's message could not be read ({error}): is it of this version?") from error


def decode_cast(payload: Frame) -> Cast:
    """The cast in a payload, with a body for each reference.

    >>> decode_cast(encode_cast(Cast("tcp://127.0.0.1:7501", (Ref("news", 0, 64, 4),), (b"body",)))).bodies
    (b'body',)
    """
    try:
        cast = _cast_decoder.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"A payload is no cast ({error}): do all nodes run the same version?") from error
    if len(cast.refs) != len(cast.bodies):
        raise ProtocolError(f"A cast has {len(cast.refs)} references and {len(cast.bodies)} bodies.")
    return cast
