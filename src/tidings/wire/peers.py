"""What the nodes of an overlay say to each other, as bytes. Bad bytes stop here.

A message between nodes is two frames, each a msgpack array:

    ["From", 1, "tcp://10.0.0.5:7500", 1763212345678]    the format, who sends it, and since when that one runs
    ["AskLinks", 7]                                       the message: its type, then its fields in their order

The sender is named in every message because a ROUTER socket knows connections and no addresses. The time at which the
sender began tells one life of a node from the next one under the same address.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from operator import or_
from typing import Any

import msgspec

from tidings.errors import ProtocolError
from tidings.protocols.chord.identifiers import KEY_BYTES
from tidings.protocols.chord.messages import JOIN, ROUTE, Hop
from tidings.protocols.fields import Name, Number
from tidings.protocols.stack import Message
from tidings.wire.codec import Frame, encode

FORMAT = 1
ADDRESS_CHARACTERS_MAX = 255
HEADER_BYTES_MAX = 1_024


class From(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """The first frame of a message between nodes."""

    format: Number
    sender: Name
    life: Number


def encode_header(sender: str, life: int) -> bytes:
    return encode(From(FORMAT, sender, life))


def check_address(address: str) -> str:
    """The address itself if a node may have it: tcp://HOST:PORT.

    >>> check_address("tcp://127.0.0.1:7500")
    'tcp://127.0.0.1:7500'
    """
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    if (
        not address.startswith("tcp://")
        or not (host and host.isprintable() and " " not in host and "*" not in host)
        or not (port.isascii() and port.isdecimal() and 0 < int(port) < 65_536)
        or len(address) > ADDRESS_CHARACTERS_MAX
    ):
        raise ProtocolError(f"{address[:80]!r} is not a node's address: write tcp://HOST:PORT.")
    return address


_header_decoder = msgspec.msgpack.Decoder(From)


def decode_header(frame: Frame) -> From:
    """The first frame of a message between nodes."""
    if len(frame) > HEADER_BYTES_MAX:
        raise ProtocolError(f"A header of {len(frame)} bytes is above the limit of {HEADER_BYTES_MAX}: is that a node?")
    try:
        header = _header_decoder.decode(frame)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"A header could not be read ({error}): is that a node of this version?") from error
    if header.format != FORMAT:
        raise ProtocolError(f"A message has the format {header.format}, and this version reads {FORMAT}: update.")
    check_address(header.sender)
    return header


class MessageDecoder:
    """Reads the messages of one kind of stack.

    >>> from tidings.protocols.heartbeat import Beat
    >>> MessageDecoder([Beat]).decode(encode(Beat()))
    Beat()
    """

    def __init__(self, kinds: Iterable[type[Message]]) -> None:
        union: Any = reduce(or_, kinds)
        self._decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(union)

    def decode(self, frame: Frame) -> Message:
        """The message in a frame, every field of its type; ProtocolError for anything else."""
        try:
            message = self._decoder.decode(frame)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ProtocolError(f"A message could not be read ({error}): does its sender run this overlay?") from error
        if type(message) is Hop:
            _check_hop(message)
        return message


def _check_hop(hop: Hop) -> None:
    if len(hop.key) != KEY_BYTES or not ROUTE <= hop.kind <= JOIN or hop.hops < 0:
        raise ProtocolError(f"A routed message of kind {hop.kind} with a key of {len(hop.key)} bytes makes no sense.")
