"""Values of different sizes, found in a stored batch without making objects of them.

In msgpack a byte string of up to 255 bytes begins with 0xC4 and its size. Few texts have that byte in them, so mostly
it stands only where values begin, and numpy finds all of these places at once. That this is so is proved and not
assumed: the first value is where it must be, and each ends where the next begins. Any other batch is unpacked.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pyarrow as pa

from tidings.client.link import Frame
from tidings.message import Headers

try:
    import numpy as np
except ImportError:  # Batches are unpacked then.
    np = None  # type: ignore[assignment]

VARIED_COUNT_MIN = 256
"""Smaller batches are unpacked at once."""
HEAD_BYTES = 2
VALUE_BYTES_MAX = 255

_SHORT_BYTES, _FIX_ARRAY, _FIX_TEXT, _ARRAY_16 = 0xC4, 0x90, 0xA0, 0xDC
_PLACES = 0x0001020304050607
"""Times a word in which only byte k is set, to 1: a word with k in its highest byte."""
_COLUMNS_BEFORE = 3
"""What a batch has up to its values: the format, the publisher, and themselves."""


class Spaced(msgspec.Struct, frozen=True):
    """Values that still have their heads before them."""

    array: pa.Array


class Varied(msgspec.Struct, frozen=True):
    """What `Columns` has, with the values as they stand in the batch."""

    publisher: str
    count: int
    values: Spaced
    keys: list[bytes | None] | None
    headers: list[Headers | None] | None
    ids: list[str | None] | None
    published_us: int | list[int]

    def part(self, first: int, end: int) -> Varied:
        """Only the messages from `first` up to `end`, counted from 0."""
        if first <= 0 and end >= self.count:
            return self
        rows = slice(first, end)
        times = self.published_us
        return Varied(
            self.publisher,
            end - first,
            Spaced(self.values.array.slice(first, end - first)),
            None if self.keys is None else self.keys[rows],
            None if self.headers is None else self.headers[rows],
            None if self.ids is None else self.ids[rows],
            times if isinstance(times, int) else times[rows],
        )


class _Rest(msgspec.Struct, frozen=True, array_like=True):
    """What a batch has behind its values."""

    keys: list[bytes | None] | None = None
    headers: list[Headers | None] | None = None
    ids: list[str | None] | None = None
    published_us: int | list[int] = 0


_decoder = msgspec.msgpack.Decoder(_Rest)


def read_varied(body: Frame) -> Varied | None:
    """The batch in a body frame; None if that cannot be shown to be right, and then it has to be unpacked."""
    if np is None or len(body) < VARIED_COUNT_MIN * HEAD_BYTES:
        return None
    fields, name_bytes = body[0] - _FIX_ARRAY, body[2] - _FIX_TEXT
    start = 3 + name_bytes  # Of the array: before it are its batch's head, the format, and the publisher's name.
    if not (_COLUMNS_BEFORE <= fields <= 7 and body[1] == 1 and 0 <= name_bytes < 32 and body[start] == _ARRAY_16):
        return None
    count = int.from_bytes(body[start + 1 : start + 3])
    if count < VARIED_COUNT_MIN:
        return None
    offsets = _offsets(np.frombuffer(body, np.uint8), start + 3, count)
    if offsets is None:
        return None
    try:
        publisher = bytes(body[3:start]).decode()
        rest = _decoder.decode(bytes((_FIX_ARRAY + fields - _COLUMNS_BEFORE,)) + body[offsets[-1] :])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None  # Unpacking it will say what is wrong.
    for column in (rest.keys, rest.headers, rest.ids, rest.published_us):
        if column is not None and not isinstance(column, int) and len(column) != count:
            return None
    spaced = pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(body)])
    return Varied(publisher, count, Spaced(spaced), rest.keys, rest.headers, rest.ids, rest.published_us)


def _offsets(body: Any, first: int, count: int) -> Any:
    """Where each value begins with its head, and where the last one ends; None if that cannot be seen."""
    # Eight bytes at a time: few of them have one of those looked for. Where there are two, as with values of less than
    # six bytes, the wrong place comes out, and does not fit to the others.
    words = (body[: len(body) & ~7] == _SHORT_BYTES).view(np.uint64)
    at = np.flatnonzero(words != 0)
    at = at[np.searchsorted(at, first >> 3) :][:count]
    places = (at << 3) + (words[at] * np.uint64(_PLACES) >> np.uint64(56)).astype(np.int64)
    if len(places) != count or places[0] != first or places[-1] + 1 >= len(body):
        return None
    ends = places + HEAD_BYTES + body[places + 1]
    if ends[-1] > len(body) or not np.array_equal(places[1:], ends[:-1]) or (body[places] != _SHORT_BYTES).any():
        return None
    offsets = np.empty(count + 1, np.int32)
    offsets[:-1], offsets[-1] = places, ends[-1]
    return offsets
