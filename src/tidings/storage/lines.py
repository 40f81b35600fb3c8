r"""How topics become file names and messages become lines.

**Names.** A topic's name with everything but letters, digits and `_.-~` written as %XX of its UTF-8, and `.txt`
behind it; a dot in front is written as %2E. No name can leave the folder or hide in it. A name that would be too
long for a file system is cut and ends in `~` and a hash of the whole, so that two topics never share a file.

**Lines.** One message a line, in UTF-8. A line feed is written as `\n`, a carriage return as `\r`, a backslash as
`\\`. A message that is not UTF-8 is not text: each of its bytes above 127 is written as `\xNN`. Nothing is lost:
`message_of` reads a line back.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from hashlib import sha256
from urllib.parse import quote

ENCODED_LENGTH_MAX = 200
CUT_LENGTH = 168
_ESCAPED = re.compile(rb"\\(n|r|\\|x[0-9a-f]{2})")
_MEANINGS = {b"n": b"\n", b"r": b"\r", b"\\": b"\\"}


def file_name(topic: str) -> str:
    """The name of a topic's text.

    >>> file_name("news"), file_name("../x"), file_name("a b")
    ('news.txt', '%2E.%2Fx.txt', 'a%20b.txt')
    """
    encoded = quote(topic, safe="")
    if encoded.startswith("."):
        encoded = "%2E" + encoded[1:]
    if len(encoded) > ENCODED_LENGTH_MAX:
        # Longer than any name that was not cut, so the two kinds cannot meet.
        encoded = f"{encoded[:CUT_LENGTH]}~{sha256(topic.encode()).hexdigest()[:48]}"
    return encoded + ".txt"


def lines_of(values: Sequence[bytes]) -> bytes:
    r"""Messages as lines, each with its line end.

    >>> lines_of([b"one", b"two\nlines", b"a\\b"])
    b'one\ntwo\\nlines\na\\\\b\n'
    """
    data = b"\n".join([*values, b""])
    # Bulk costs next to nothing as long as no message needs an escape, which is the rule.
    if data.count(b"\n") == len(values) and b"\\" not in data and b"\r" not in data and _is_text(data):
        return data
    return b"\n".join([*map(_line_of, values), b""])


def message_of(line: bytes) -> bytes:
    r"""The message that a line stands for, without its line end.

    >>> message_of(rb"two\nlines \xff")
    b'two\nlines \xff'
    """

    def meaning(match: re.Match[bytes]) -> bytes:
        code = match[1]
        return bytes([int(code[1:], 16)]) if code[:1] == b"x" else _MEANINGS[code]

    return _ESCAPED.sub(meaning, line)


def _is_text(data: bytes) -> bool:
    if data.isascii():
        return True
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _line_of(value: bytes) -> bytes:
    value = value.replace(b"\\", b"\\\\").replace(b"\n", b"\\n").replace(b"\r", b"\\r")
    return value if _is_text(value) else value.decode("latin-1").encode("ascii", "backslashreplace")
