"""The socket protocol of editors and subscribers, as bytes: fields of UTF-8 that each end with a NUL.

    PUBLISH NUL topic NUL text NUL            -> 0 the text is kept, 1 it is not
    SUBSCRIBE NUL topic NUL port NUL          -> 0 done, 1 there is no such topic
    UNSUBSCRIBE NUL topic NUL port NUL        -> 0 done, 1 not subscribed, 2 there is no such topic
    topic NUL text NUL                        a delivery, to the subscriber's port, which answers nothing

A connection carries one request or one delivery. An answer is a digit and a NUL, so that anyone who reads one byte and
anyone who reads a field get the same. Lengths are counted in characters, as people count them; that is why a field is
cut off only at four times as many bytes. What comes after the last field is not read.
"""

from __future__ import annotations

import msgspec

from tidings.errors import InvalidRequest, ProtocolError, TidingsError
from tidings.message import TOPIC_LENGTH_MAX, check_topic

TEXT_LENGTH_MAX = 1_024
UTF8_BYTES_MAX = 4
"""Of one character."""

DONE = 0
REFUSED = 1
"""Of a PUBLISH and a SUBSCRIBE."""
NOT_SUBSCRIBED = 1
NO_TOPIC = 2
"""Of an UNSUBSCRIBE."""
ANSWER_BYTES_MAX = 4


class Publish(msgspec.Struct, frozen=True):
    topic: str
    text: str


class Subscribe(msgspec.Struct, frozen=True):
    topic: str
    port: int


class Unsubscribe(msgspec.Struct, frozen=True):
    topic: str
    port: int


Request = Publish | Subscribe | Unsubscribe

FAILURES = {b"PUBLISH": REFUSED, b"SUBSCRIBE": REFUSED, b"UNSUBSCRIBE": NO_TOPIC}
"""The operations, and what each is answered when its fields cannot be right."""
OPERATION_BYTES_MAX = max(map(len, FAILURES))
FIELDS_BYTES_MAX = (OPERATION_BYTES_MAX, TOPIC_LENGTH_MAX * UTF8_BYTES_MAX, TEXT_LENGTH_MAX * UTF8_BYTES_MAX)
REQUEST_BYTES_MAX = sum(FIELDS_BYTES_MAX) + len(FIELDS_BYTES_MAX)


class Malformed(ProtocolError):
    """Bytes that are not a request. `answer` is what the sender is told, None when nothing would be understood."""

    def __init__(self, sentence: str, answer: int | None = None) -> None:
        super().__init__(sentence)
        self.answer = answer


class FieldReader:
    """Takes bytes as they come until so many fields are there; never holds more than the fields may have."""

    def __init__(self, sizes_max: tuple[int, ...]) -> None:
        self.fields: list[bytes] = []
        self._sizes_max = sizes_max
        self._open = b""

    def feed(self, data: bytes) -> bool:
        """Takes more bytes; whether all fields are there."""
        *ended, rest = (self._open + data).split(b"\0", len(self._sizes_max) - len(self.fields))
        for field in ended:
            self._check(field)
            self.fields.append(field)
        if len(self.fields) == len(self._sizes_max):
            return True
        self._check(rest)
        self._open = rest
        return False

    def _check(self, field: bytes) -> None:
        """Refuses a field, complete or not, that can no longer become a good one."""
        size_max = self._sizes_max[len(self.fields)]
        if len(field) > size_max:
            raise Malformed(f"its field {len(self.fields) + 1} was longer than {size_max} bytes", self._answer())

    def _answer(self) -> int | None:
        return None


class RequestReader(FieldReader):
    """Takes the fields of a request, and nothing else for as long as it can be told.

    >>> reader = RequestReader()
    >>> reader.feed(b"PUBLISH\\0ne"), reader.feed(b"ws\\0hello\\0and more")
    (False, True)
    >>> parse(reader.fields)
    Publish(topic='news', text='hello')
    """

    def __init__(self) -> None:
        super().__init__(FIELDS_BYTES_MAX)

    def _check(self, field: bytes) -> None:
        if not self.fields and not any(name.startswith(field) for name in FAILURES):
            raise Malformed(f"it began with {field[: OPERATION_BYTES_MAX + 1]!r}, which is no operation")
        super()._check(field)

    def _answer(self) -> int | None:
        return FAILURES.get(self.fields[0])


def parse(fields: list[bytes]) -> Request:
    """The request that three fields stand for, or Malformed."""
    operation, raw_topic, last = fields
    answer = FAILURES.get(operation)
    if answer is None:
        raise Malformed(f"{operation!r} is no operation")
    try:
        topic = check_topic(raw_topic.decode())
        if operation == b"PUBLISH":
            return Publish(topic, check_text(last.decode()))
    except UnicodeDecodeError as error:
        raise Malformed("its fields were not UTF-8", answer) from error
    except TidingsError as error:
        raise Malformed(f"its fields cannot be used: {error}", answer) from error
    if not (last.isdigit() and len(last) <= 5 and 0 < int(last) < 65_536):
        raise Malformed(f"{last[:16]!r} is no port", answer)
    return Subscribe(topic, int(last)) if operation == b"SUBSCRIBE" else Unsubscribe(topic, int(last))


def check_text(text: str) -> str:
    """The text itself if the protocol can carry it, or InvalidRequest saying why not."""
    if len(text) > TEXT_LENGTH_MAX:
        raise InvalidRequest(f"A text has at most {TEXT_LENGTH_MAX:,} characters, and this one has {len(text):,}.")
    if "\0" in text:
        raise InvalidRequest("A text cannot hold a NUL, which ends it on this protocol.")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest("A text must be UTF-8, and this one has bytes that are not.") from error
    return text


def encode(*fields: str | int) -> bytes:
    """Fields as they travel.

    >>> encode("SUBSCRIBE", "news", 4201)
    b'SUBSCRIBE\\x00news\\x004201\\x00'
    """
    return b"".join(str(field).encode() + b"\0" for field in fields)
