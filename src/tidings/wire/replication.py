"""Messages between the replicas of a group as bytes and back. Bad bytes stop here, as in `codec`."""

from __future__ import annotations

import msgspec

from tidings.errors import ProtocolError
from tidings.protocols.multipaxos.messages import AnyMessage

MESSAGE_BYTES_MAX = 64 * 1024 * 1024

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(AnyMessage)


def encode_message(message: AnyMessage) -> bytes:
    return _encoder.encode(message)


def decode_message(data: bytes | memoryview) -> AnyMessage:
    """The message in a frame from another replica.

    >>> from tidings.protocols.multipaxos.messages import Fetch
    >>> decode_message(encode_message(Fetch(first_slot=7)))
    Fetch(first_slot=7)
    """
    if len(data) > MESSAGE_BYTES_MAX:
        raise ProtocolError(f"A message of {len(data)} bytes came from a replica: lower batch_bytes_max there.")
    try:
        message: AnyMessage = _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"A replica's message could not be read ({error}): is it of this version?") from error
    return message
