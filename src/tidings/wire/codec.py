"""Bytes to messages and back. Bad bytes stop here.

A request or an answer is one header frame (msgpack of a tagged array, see `protocols.broker.messages`)
and the body frames that go with it. `decode_*` either returns a value whose every field has the right
type and size or raises ProtocolError; nothing that came in is ever evaluated or unpickled.
"""

from __future__ import annotations

import msgspec

from tidings.errors import ProtocolError
from tidings.message import Columns, select
from tidings.protocols.broker.messages import AnyAnswer, AnyRequest

HEADER_BYTES_MAX = 4 * 1024 * 1024

Frame = bytes | memoryview

_encoder = msgspec.msgpack.Encoder()
_request_decoder = msgspec.msgpack.Decoder(AnyRequest)
_answer_decoder = msgspec.msgpack.Decoder(AnyAnswer)
_columns_decoder = msgspec.msgpack.Decoder(Columns)

encode = _encoder.encode
"""A header, a command or a body as msgpack."""


def decode_request(header: Frame) -> AnyRequest:
    """The request in a header frame."""
    if len(header) > HEADER_BYTES_MAX:
        raise ProtocolError(f"A header of {len(header)} bytes is above the limit of {HEADER_BYTES_MAX}: ask for less.")
    try:
        request: AnyRequest = _request_decoder.decode(header)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"The request could not be read ({error}): see the wire format in docs/wire.md.") from error
    return request


def decode_answer(header: Frame) -> AnyAnswer:
    """The answer or delivery in a header frame."""
    try:
        answer: AnyAnswer = _answer_decoder.decode(header)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"The answer could not be read ({error}): is that a tidings broker?") from error
    return answer


def decode_columns(body: Frame) -> Columns:
    """The batch in a body frame, its columns all of one length."""
    try:
        columns = _columns_decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"The batch could not be read ({error}): see the wire format in docs/wire.md.") from error
    if columns.format != 1:
        raise ProtocolError(f"The batch has the format {columns.format}, and this version reads format 1: update.")
    count = len(columns.values)
    keys, headers, ids, times = columns.keys, columns.headers, columns.ids, columns.published_us
    if (
        (keys is not None and len(keys) != count)
        or (headers is not None and len(headers) != count)
        or (ids is not None and len(ids) != count)
        or (not isinstance(times, int) and times is not None and len(times) != count)
    ):
        raise ProtocolError("The columns of the batch differ in length: each has one entry for each message.")
    return columns


def guess_request(header: Frame) -> int:
    """The request number of a header that could not be read, 0 when even that is unreadable."""
    try:
        fields = msgspec.msgpack.decode(header)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return 0
    number = fields[1] if isinstance(fields, list) and len(fields) > 1 else 0
    return number if isinstance(number, int) and not isinstance(number, bool) else 0


def thin(body: Frame, kept: tuple[int, ...]) -> bytes:
    """A body with only some of its messages."""
    columns = decode_columns(body)
    return encode(select(columns, kept))
