"""A message as a row of a file, and back.

Values, keys and headers are bytes. Where they are UTF-8 a file has them as text, elsewhere as base64, and says which.

JSON has an object a line, with the names that `--json` of the commands uses: `text` or `base64`, `key` or
`key_base64`, `headers` and `headers_base64`, `id`. CSV has the columns of `CSV_COLUMNS`: `value` and `key` each with
an encoding beside it (`text`, `base64`, or nothing for no key), `headers` as a JSON object whose values are texts or
`{"base64": ...}`. To be imported a row needs a value; all other fields may be missing, and unknown ones are refused.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from tidings.errors import InvalidRequest
from tidings.message import Batch, Headers

CSV_COLUMNS = (
    "topic",
    "offset",
    "key",
    "key_encoding",
    "value",
    "value_encoding",
    "headers",
    "id",
    "publisher",
    "published_at",
    "stored_at",
)
JSON_FIELDS = frozenset(
    {
        *("topic", "offset", "text", "base64", "value", "key", "key_base64", "headers", "headers_base64", "id"),
        *("publisher", "published_at", "stored_at", "attempt", "redelivered"),
    }
)
"""What an object may have; `value` is another name for `text`, and those of the last line are not imported."""


@dataclass
class Rows:
    """Messages to be published, as columns."""

    values: list[bytes] = field(default_factory=list)
    keys: list[bytes | None] = field(default_factory=list)
    headers: list[Headers | None] = field(default_factory=list)
    ids: list[str | None] = field(default_factory=list)

    def add(self, value: bytes, key: bytes | None, headers: Headers | None, name: str | None) -> None:
        """One more."""
        self.values.append(value)
        self.keys.append(key)
        self.headers.append(headers)
        self.ids.append(name)

    def after(self, count: int) -> Rows:
        """All but the first so many."""
        return Rows(self.values[count:], self.keys[count:], self.headers[count:], self.ids[count:])

    def __len__(self) -> int:
        return len(self.values)


def as_json(batch: Batch) -> Iterator[bytes]:
    """The messages of a batch as lines."""
    stored = time_text(batch.stored_at)
    for message in batch:
        fields: dict[str, Any] = {"topic": message.topic, "offset": message.offset}
        _add(fields, "text", "base64", message.value)
        if message.key is not None:
            _add(fields, "key", "key_base64", message.key)
        for name, value in (message.headers or {}).items():
            text = _text(value)
            where, shown = ("headers", text) if text is not None else ("headers_base64", _base64(value))
            fields.setdefault(where, {})[name] = shown
        if message.id is not None:
            fields["id"] = message.id
        fields |= {"publisher": message.publisher, "published_at": time_text(message.published_at)}
        if stored:
            fields["stored_at"] = stored
        yield json.dumps(fields, ensure_ascii=False).encode() + b"\n"


def as_csv(batch: Batch) -> Iterator[list[str]]:
    """The messages of a batch as rows of `CSV_COLUMNS`."""
    stored = time_text(batch.stored_at)
    for message in batch:
        key, key_encoding = ("", "") if message.key is None else _encoded(message.key)
        value, value_encoding = _encoded(message.value)
        headers = {
            name: text if (text := _text(given)) is not None else {"base64": _base64(given)}
            for name, given in (message.headers or {}).items()
        }
        shown = json.dumps(headers, ensure_ascii=False) if headers else ""
        place = (message.topic, str(message.offset))
        times = (time_text(message.published_at), stored)
        contents = (key, key_encoding, value, value_encoding, shown, message.id or "")
        yield [*place, *contents, message.publisher, *times]


def add_json(rows: Rows, line: bytes) -> None:
    """Adds the message of a line, or raises InvalidRequest saying what is wrong with it."""
    try:
        fields = json.loads(line)
    except ValueError as error:
        raise InvalidRequest(f"is not JSON ({error})") from error
    if not isinstance(fields, dict):
        raise InvalidRequest("is not a JSON object")
    _check_names(fields, JSON_FIELDS)
    value = _bytes_of(fields, "text", "base64")
    if value is None:
        value = _bytes_of(fields, "value", "base64")
    if value is None:
        raise InvalidRequest("has neither text nor base64")
    headers: Headers = {}
    for where, decode in (("headers", _from_text), ("headers_base64", _from_base64)):
        given = fields.get(where) or {}
        if not isinstance(given, dict):
            raise InvalidRequest(f"has {where} that are not an object")
        headers |= {name: decode(each, f"header {name!r}") for name, each in given.items()}
    rows.add(value, _bytes_of(fields, "key", "key_base64"), headers or None, _id_of(fields.get("id")))


def add_csv(rows: Rows, fields: Mapping[str, str]) -> None:
    """Adds the message of a row of a CSV file, or raises InvalidRequest saying what is wrong with it."""
    value = _decoded(fields["value"], fields.get("value_encoding") or "text", "value")
    key_text, key_encoding = fields.get("key", ""), fields.get("key_encoding", "text" if fields.get("key") else "")
    key = _decoded(key_text, key_encoding, "key") if key_encoding else None
    headers: Headers = {}
    if fields.get("headers"):
        try:
            given = json.loads(fields["headers"])
        except ValueError as error:
            raise InvalidRequest(f"has headers that are not JSON ({error})") from error
        if not isinstance(given, dict):
            raise InvalidRequest("has headers that are not a JSON object")
        for name, each in given.items():
            decode = _from_base64 if isinstance(each, dict) else _from_text
            headers[name] = decode(each.get("base64") if isinstance(each, dict) else each, f"header {name!r}")
    rows.add(value, key, headers or None, _id_of(fields.get("id") or None))


def check_csv_columns(names: list[str]) -> None:
    """Raises InvalidRequest unless a CSV file has columns that can be imported."""
    if "value" not in names:
        raise InvalidRequest(f"The file has no column value (it has {', '.join(names)}): rename one.")
    _check_names(names, frozenset(CSV_COLUMNS))


def time_text(seconds: float | None) -> str:
    """A time as ISO 8601 in UTC with microseconds, nothing if it is not known.

    >>> time_text(1772366400.25), time_text(None)
    ('2026-03-01T12:00:00.250000Z', '')
    """
    if seconds is None:
        return ""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def _check_names(names: Mapping[str, Any] | list[str], known: frozenset[str]) -> None:
    for name in names:
        if name not in known:
            raise InvalidRequest(f"has a field {name!r}, which no message has: leave it out, or put it into the value")


def _text(value: bytes) -> str | None:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None


def _base64(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _encoded(value: bytes) -> tuple[str, str]:
    text = _text(value)
    return (text, "text") if text is not None else (_base64(value), "base64")


def _decoded(text: str, encoding: str, what: str) -> bytes:
    if encoding == "text":
        return text.encode()
    if encoding == "base64":
        return _from_base64(text, what)
    raise InvalidRequest(f"has a {what} of the encoding {encoding!r}: write text or base64")


def _add(fields: dict[str, Any], text_name: str, base64_name: str, value: bytes) -> None:
    text = _text(value)
    if text is not None:
        fields[text_name] = text
    else:
        fields[base64_name] = _base64(value)


def _bytes_of(fields: Mapping[str, Any], text_name: str, base64_name: str) -> bytes | None:
    if fields.get(text_name) is not None:
        return _from_text(fields[text_name], text_name)
    if fields.get(base64_name) is not None:
        return _from_base64(fields[base64_name], base64_name)
    return None


def _from_text(given: object, what: str) -> bytes:
    if not isinstance(given, str):
        raise InvalidRequest(f"has a {what} that is not a text")
    return given.encode()


def _from_base64(given: object, what: str) -> bytes:
    try:
        if not isinstance(given, str):
            raise binascii.Error("it is not a text")
        return base64.b64decode(given, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidRequest(f"has a {what} that is not base64 ({error})") from error


def _id_of(given: object) -> str | None:
    if given is not None and not (isinstance(given, str) and given):
        raise InvalidRequest("has an id that is not a text of at least one character")
    return given
