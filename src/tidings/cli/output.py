"""How the commands print: messages as people and as programs read them.

With --json every command prints one JSON object a line. Bytes that are UTF-8 are text; others are base64
in a field of another name (`base64` beside `text`, `key_base64` beside `key`, `headers_base64`).
"""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Mapping
from typing import Any

from tidings.message import Message, Receipt, Receipts, TopicInfo


def print_json(fields: Mapping[str, Any]) -> None:
    """One object on one line, at once: anyone who follows a pipe should not wait for a full buffer."""
    print(json.dumps(fields, ensure_ascii=False, separators=(", ", ": ")), flush=True)


def print_value(value: bytes, prefix: str = "") -> None:
    """A message's bytes as they are, and a newline; on a terminal without what could command it."""
    if sys.stdout.isatty():
        print(prefix + harmless(value.decode(errors="replace")), flush=True)
        return
    sys.stdout.flush()
    sys.stdout.buffer.write(prefix.encode() + value + b"\n")
    sys.stdout.buffer.flush()


def harmless(text: str) -> str:
    """Text for a terminal: control characters are shown, not obeyed.

    >>> harmless("red: \\x1b[31m")
    'red: \\\\x1b[31m'
    """
    return "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text)


def message_fields(message: Message) -> dict[str, Any]:
    """A message as --json shows it."""
    fields: dict[str, Any] = {"topic": message.topic, "offset": message.offset}
    _add_bytes(fields, "text", "base64", message.value)
    if message.key is not None:
        _add_bytes(fields, "key", "key_base64", message.key)
    for name, value in (message.headers or {}).items():
        text = _as_text(value)
        if text is not None:
            fields.setdefault("headers", {})[name] = text
        else:
            fields.setdefault("headers_base64", {})[name] = base64.b64encode(value).decode()
    if message.id is not None:
        fields["id"] = message.id
    fields["publisher"] = message.publisher
    fields["published_at"] = message.published_at
    fields["attempt"] = message.attempt
    fields["redelivered"] = message.redelivered
    return fields


def receipt_fields(receipt: Receipt | Receipts) -> dict[str, Any]:
    """A receipt as --json shows it."""
    return {name: getattr(receipt, name) for name in receipt.__struct_fields__}


def topic_fields(info: TopicInfo) -> dict[str, Any]:
    """A topic as --json shows it."""
    fields = {name: getattr(info, name) for name in info.__struct_fields__}
    return fields | {"count": info.count}


def receipt_line(receipt: Receipt) -> str:
    """A receipt as people read it."""
    place = "removed since" if receipt.offset is None else f"offset {receipt.offset}"
    return f"{harmless(receipt.topic)}: {place}{' (stored before)' if receipt.duplicate else ''}"


def _as_text(value: bytes) -> str | None:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None


def _add_bytes(fields: dict[str, Any], text_name: str, base64_name: str, value: bytes) -> None:
    text = _as_text(value)
    if text is not None:
        fields[text_name] = text
    else:
        fields[base64_name] = base64.b64encode(value).decode()
