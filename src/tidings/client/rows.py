"""What callers give to put, turned into the columns of batches.

Values and keys are bytes; text that is given for either is taken as UTF-8.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, islice
from operator import countOf
from typing import Any

from tidings.client.arguments import check_text
from tidings.errors import InvalidRequest
from tidings.message import ID_LENGTH_MAX, Columns, Headers, check_size, cut
from tidings.wire.codec import encode

Value = bytes | bytearray | memoryview | str
ROW_OVERHEAD_BYTES = 16
"""Counted for each message beside its value, key and headers, so that estimates err on the safe side."""

LIKELY_COUNT = 1024
LIKELY_SHARE = 95
"""How full, in percent, a batch is expected to get: one that turns out too large is made twice."""


def to_bytes(given: Value, what: str) -> bytes:
    """The bytes of a value, key or header; text becomes UTF-8."""
    if isinstance(given, bytes):
        return given
    if isinstance(given, str):
        try:
            return given.encode()
        except UnicodeEncodeError as error:
            raise InvalidRequest(f"A {what} has half a character, which UTF-8 cannot hold: give bytes.") from error
    if isinstance(given, (bytearray, memoryview)):
        return bytes(given)
    raise InvalidRequest(f"A {what} must be bytes or text, not {type(given).__name__}: convert it first.")


def check_id(id: str) -> str:
    """The id itself, if it is one."""
    check_text(id, "A message's id")
    if len(id) > ID_LENGTH_MAX:
        raise InvalidRequest(
            f"A message's id has 1 to {ID_LENGTH_MAX} characters, and this one has {len(id)}: choose another."
        )
    return id


def headers_of(given: Mapping[str, Value]) -> Headers:
    """The headers of one message."""
    if not isinstance(given, Mapping):
        raise InvalidRequest(f"Headers are names with values, and this is {type(given).__name__}: give a dict.")
    return {check_text(name, "A header's name"): to_bytes(each, f"header {name!r}") for name, each in given.items()}


class Source:
    """The values of one put_many, cut into batches as they are asked for, so that few are in memory at once."""

    def __init__(
        self,
        values: Iterable[Value],
        keys: Iterable[Value | None] | None,
        now_us: Callable[[], int],
        headers: Iterable[Mapping[str, Value] | None] | None = None,
        ids: Iterable[str | None] | None = None,
    ) -> None:
        self._values = _Slices(values, "values")
        self._keys = None if keys is None else _Slices(keys, "keys")
        self._headers = None if headers is None else _Slices(headers, "headers")
        self._ids = None if ids is None else _Slices(ids, "ids")
        self._now_us = now_us
        self._likely_count = LIKELY_COUNT
        """How many messages fill a batch, judged by the last one."""

    def take(
        self, publisher: str, messages_max: int, bytes_max: int, message_bytes_max: int
    ) -> tuple[int, bytes] | None:
        """The next batch within these bounds (one message may break them): how many messages, and its body.

        None at the end. The body is made first and looked at then: to count its bytes beforehand costs as much.
        """
        given = self._values.peek(min(messages_max, self._likely_count))
        if not given:
            for name, column in self._beside():
                if column.peek(1):
                    raise InvalidRequest(f"put_many was given more {name} than values: give one for each value.")
            return None
        values = _all_bytes(given, "value")
        count = len(values)
        keys = None if self._keys is None else _keys_of(_as_many(self._keys, "keys", count))
        headers = None if self._headers is None else _all_headers(_as_many(self._headers, "headers", count))
        ids = None if self._ids is None else _ids_of(_as_many(self._ids, "ids", count))
        columns = Columns(1, publisher, values, keys, headers, ids, self._now_us())
        body = encode(columns)
        self._likely_count = max(1, bytes_max * LIKELY_SHARE // 100 * count // len(body))
        if len(body) > message_bytes_max:  # Only a batch above the limit can hold a message above it.
            check_size(max(map(len, values)), message_bytes_max)
        if len(body) > bytes_max:
            ends = list(accumulate(_sizes(columns)))
            count = max(1, bisect_right(ends, bytes_max))
            body = encode(cut(columns, slice(0, count)))
        self._values.skip(count)
        for _, column in self._beside():
            column.skip(count)
        return count, body

    def ended(self) -> Source:
        """The same with nothing left in it."""
        return Source((), None, self._now_us)

    def _beside(self) -> Iterator[tuple[str, _Slices]]:
        for name, column in (("keys", self._keys), ("headers", self._headers), ("ids", self._ids)):
            if column is not None:
                yield name, column


def _as_many(column: _Slices, name: str, count: int) -> list[Any]:
    given = column.peek(count)
    if len(given) < count:
        raise InvalidRequest(f"put_many was given fewer {name} than values: give one for each value, or None.")
    return given


def _keys_of(given: list[Value | None]) -> list[bytes | None]:
    return [None if key is None else to_bytes(key, "key") for key in given]


def _all_headers(given: list[Mapping[str, Value] | None]) -> list[Headers | None] | None:
    headers = [None if each is None else headers_of(each) or None for each in given]
    return headers if any(headers) else None


def _ids_of(given: list[str | None]) -> list[str | None] | None:
    for each in given:
        if each is not None:
            check_id(each)
    return given if any(given) else None


def _sizes(columns: Columns) -> Iterator[int]:
    """About how large each row is; estimates err on the safe side."""
    sizes = [len(value) + ROW_OVERHEAD_BYTES for value in columns.values]
    for row, key in enumerate(columns.keys or ()):
        sizes[row] += len(key or b"")
    for row, headers in enumerate(columns.headers or ()):
        sizes[row] += sum(4 * len(name) + len(value) + 8 for name, value in (headers or {}).items())
    for row, each in enumerate(columns.ids or ()):
        sizes[row] += 4 * len(each or "")
    return iter(sizes)


def _all_bytes(values: Sequence[Value], what: str) -> list[bytes]:
    if countOf(map(type, values), bytes) == len(values):
        return values if isinstance(values, list) else list(values)  # type: ignore[arg-type]
    return [to_bytes(value, what) for value in values]


class _Slices:
    """Reads a sequence or any other iterable piece by piece."""

    def __init__(self, given: Iterable[Any], what: str) -> None:
        if not isinstance(given, Iterable) or isinstance(given, (str, bytes, bytearray, memoryview)):
            raise InvalidRequest(f"put_many takes many {what}, and this is {type(given).__name__}: give a list.")
        self._sequence = given if isinstance(given, (list, tuple)) else None
        self._at = 0
        self._iterator: Iterator[Any] = iter(()) if self._sequence is not None else iter(given)
        self._read: list[Any] = []

    def peek(self, count: int) -> list:  # type: ignore[type-arg]
        """The next `count` items, fewer at the end."""
        if self._sequence is not None:
            piece = self._sequence[self._at : self._at + count]
            return piece if isinstance(piece, list) else list(piece)
        if len(self._read) < count:
            self._read.extend(islice(self._iterator, count - len(self._read)))
        return self._read[:count]

    def skip(self, count: int) -> None:
        """Moves past items that were peeked at."""
        if self._sequence is not None:
            self._at += count
        else:
            del self._read[:count]
