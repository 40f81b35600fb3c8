"""What a broker has to know of a batch that it stores: that it can be read, how many messages it has, whose it is.

The messages themselves are of no interest to it, and to make them only to drop them again is a fifth of its work for
a bulk publisher. Where all values of a batch are of one size, as records of measurements or of a table are, they
lie at even distances, and two or three comparisons show that each of them begins as it must. Any other batch is
unpacked as a reader would unpack it.
"""

from __future__ import annotations

import msgspec

from tidings.errors import MessageTooLarge
from tidings.message import Contents, Headers
from tidings.wire.codec import Frame, decode_columns

EVEN_BYTES_MIN = 8 * 1024
"""Smaller bodies are unpacked at once: 0.4 us for a single message, and as much again for a look at it before."""
EVEN_COUNT_MIN = 16
"""So are batches of few, and then large, messages."""

_ARRAY_16, _ARRAY_32 = 0xDC, 0xDD
_VALUE_HEADERS = {0xC4: 2, 0xC5: 3, 0xC6: 5}
"""The first byte of a byte string in msgpack, and how many bytes there are before its content."""


class _Outline(msgspec.Struct, frozen=True, array_like=True):
    """`Columns`, with the values left as they are."""

    format: int
    publisher: str
    values: msgspec.Raw
    keys: list[bytes | None] | None = None
    headers: list[Headers | None] | None = None
    ids: list[str | None] | None = None
    published_us: int | list[int] = 0


_decoder = msgspec.msgpack.Decoder(_Outline)


def read_contents(body: Frame, message_bytes_max: int) -> Contents:
    """What the batch in a body frame holds; ProtocolError or MessageTooLarge if it may not be stored."""
    contents = _read_even(body) if len(body) >= EVEN_BYTES_MIN else None
    if contents is None:
        columns = decode_columns(body)
        # Only a body above the limit can hold a message above it.
        largest = max(map(len, columns.values), default=0) if len(body) > message_bytes_max else 0
        contents = Contents(columns.publisher, len(columns.values), largest, columns.ids)
    if contents.largest_bytes > message_bytes_max:
        raise MessageTooLarge(
            f"A message of {contents.largest_bytes} bytes is above the limit of {message_bytes_max}: "
            "split it or raise the limit."
        )
    return contents


def _read_even(body: Frame) -> Contents | None:
    """The contents of a batch of values of one size; None for any other, and for what is not right."""
    try:
        outline = _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None  # Unpacking it will say what is wrong.
    even = _even(memoryview(outline.values))
    if even is None or outline.format != 1:
        return None
    count, size = even
    for column in (outline.keys, outline.headers, outline.ids, outline.published_us):
        if column is not None and not isinstance(column, int) and len(column) != count:
            return None
    return Contents(outline.publisher, count, size, outline.ids)


def _even(values: memoryview) -> tuple[int, int] | None:
    """How many byte strings of one size an array is made of, and that size; None if it is not."""
    if values[0] == _ARRAY_16:
        start = 3
    elif values[0] == _ARRAY_32:
        start = 5
    else:
        return None
    count = int.from_bytes(values[1:start])
    header_size = _VALUE_HEADERS.get(values[start]) if count >= EVEN_COUNT_MIN else None
    if header_size is None:
        return None
    header = values[start : start + header_size].tobytes()
    size = int.from_bytes(header[1:])
    stride = header_size + size
    if len(values) != start + count * stride:
        return None
    for place, byte in enumerate(header):
        if values[start + place :: stride].tobytes() != bytes((byte,)) * count:
            return None
    return count, size
