"""Batches whose values are all of one size, read without unpacking them.

Records of measurements or of a table are of one size. Their values lie at even distances, and two or three
comparisons show that each of them begins as it must: a broker then knows all that it has to know of the batch, and a
reader in bulk can copy the values out as one block.
"""

from __future__ import annotations

import msgspec

from tidings.message import Headers
from tidings.wire.codec import Frame

EVEN_COUNT_MIN = 16
"""Smaller batches are unpacked at once."""
_HEADS_BYTES_MAX = 64
"""More than there can be before the first value of a batch whose publisher has a short name."""

_FIX_TEXT = 0xA0
"""The first byte of a short text in msgpack, to which its size is added."""
_ARRAY_16, _ARRAY_32 = 0xDC, 0xDD
_VALUE_HEADS = {0xC4: 2, 0xC5: 3, 0xC6: 5}
"""The first byte of a byte string in msgpack, and how many bytes there are before its content."""


class Even(msgspec.Struct, frozen=True):
    """What `Columns` has, with the values as one block: before each of them are `head_bytes` to be left out."""

    publisher: str
    count: int
    head_bytes: int
    value_bytes: int
    values: memoryview
    keys: list[bytes | None] | None
    headers: list[Headers | None] | None
    ids: list[str | None] | None
    published_us: int | list[int]

    @property
    def distance_bytes(self) -> int:
        """How far it is from one value to the next."""
        return self.head_bytes + self.value_bytes

    def part(self, first: int, end: int) -> Even:
        """Only the messages from `first` up to `end`, counted from 0."""
        if first <= 0 and end >= self.count:
            return self
        start = min(max(0, first), self.count)
        rows = slice(start, max(start, min(end, self.count)))
        times = self.published_us
        return Even(
            self.publisher,
            rows.stop - rows.start,
            self.head_bytes,
            self.value_bytes,
            self.values[rows.start * self.distance_bytes : rows.stop * self.distance_bytes],
            None if self.keys is None else self.keys[rows],
            None if self.headers is None else self.headers[rows],
            None if self.ids is None else self.ids[rows],
            times if isinstance(times, int) else times[rows],
        )


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


def read_even(body: Frame) -> Even | None:
    """The batch in a body frame; None if its values are not of one size, and for what is not right."""
    if len(body) < EVEN_COUNT_MIN * 2 or _begins_unevenly(body):
        return None
    try:
        outline = _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None  # Unpacking it will say what is wrong.
    found = _measure(memoryview(outline.values))
    if found is None or outline.format != 1:
        return None
    count, head_bytes, value_bytes, values = found
    for column in (outline.keys, outline.headers, outline.ids, outline.published_us):
        if column is not None and not isinstance(column, int) and len(column) != count:
            return None
    return Even(
        outline.publisher,
        count,
        head_bytes,
        value_bytes,
        values,
        outline.keys,
        outline.headers,
        outline.ids,
        outline.published_us,
    )


def _begins_unevenly(body: Frame) -> bool:
    """Whether the first few values are seen to be of different sizes: such a batch need not be gone through."""
    name = body[2]  # Behind the head of the batch and its format, which take a byte each.
    if len(body) < _HEADS_BYTES_MAX or not _FIX_TEXT <= name < _FIX_TEXT + 32:
        return False
    array = 3 + name - _FIX_TEXT
    first = array + (3 if body[array] == _ARRAY_16 else 5)
    head_bytes = _VALUE_HEADS.get(body[first], 0)
    head = body[first : first + head_bytes]
    distance = head_bytes + int.from_bytes(head[1:])
    return not _are_heads(memoryview(body)[first:], head, distance, EVEN_COUNT_MIN)


def _are_heads(values: memoryview, head: Frame, distance: int, count: int) -> bool:
    """Whether so many values that lie at this distance begin like the first one."""
    end = count * distance
    return all(values[place:end:distance] == bytes((byte,)) * count for place, byte in enumerate(head))


def _measure(array: memoryview) -> tuple[int, int, int, memoryview] | None:
    """How many byte strings of one size an array is made of, their head and size, and the block; None if it is not."""
    if array[0] == _ARRAY_16:
        start = 3
    elif array[0] == _ARRAY_32:
        start = 5
    else:
        return None
    count = int.from_bytes(array[1:start])
    head_bytes = _VALUE_HEADS.get(array[start]) if count >= EVEN_COUNT_MIN else None
    if head_bytes is None:
        return None
    values = array[start:]
    head = values[:head_bytes].tobytes()
    value_bytes = int.from_bytes(head[1:])
    distance = head_bytes + value_bytes
    if len(values) != count * distance:
        return None
    if not _are_heads(values, head, distance, count):
        return None
    return count, head_bytes, value_bytes, values
