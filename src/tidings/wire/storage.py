"""Calls to a storage server as bytes and back. Bad bytes stop here, as in `codec`."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tidings.errors import ProtocolError
from tidings.protocols.storage import AnyCall, AnyStorageAnswer
from tidings.wire.codec import Frame, encode

HEADER_BYTES_MAX = 4 * 1024 * 1024
FRAME_BYTES_MAX = 8 * 1024 * 1024
"""Larger buffers travel as several frames."""
CALL_BYTES_MAX = 512 * 1024 * 1024
JOINED_BYTES_MAX = 16 * 1024
"""Buffers up to this size are joined with their neighbours: a frame costs more than copying so few bytes."""

_call_decoder = msgspec.msgpack.Decoder(AnyCall)
_answer_decoder = msgspec.msgpack.Decoder(AnyStorageAnswer)


def decode_call(frames: Sequence[Frame]) -> AnyCall:
    """The call in the first of these frames; the others are its bytes."""
    header = frames[0] if frames else b""
    if len(header) > HEADER_BYTES_MAX or sum(map(len, frames)) > CALL_BYTES_MAX:
        raise ProtocolError("The call is too large: send less at a time.")
    try:
        call: AnyCall = _call_decoder.decode(header)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"The call could not be read ({error}): is that a broker of this version?") from error
    return call


def decode_storage_answer(header: Frame) -> AnyStorageAnswer:
    """The answer in a header frame."""
    try:
        answer: AnyStorageAnswer = _answer_decoder.decode(header)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"The answer could not be read ({error}): is that a tidings storage server?") from error
    return answer


def frames_of(header: AnyCall | AnyStorageAnswer, buffers: Sequence[Frame]) -> list[Frame]:
    """A call or an answer with bytes behind it: small buffers joined, large ones untouched or cut.

    >>> from tidings.protocols.storage import Done
    >>> frames_of(Done(7), [b"a", b"b"])[1:]
    [b'ab']
    """
    frames: list[Frame] = [encode(header)]
    small: list[Frame] = []
    small_bytes = 0
    for buffer in buffers:
        size = len(buffer)
        if size <= JOINED_BYTES_MAX:
            small.append(buffer)
            small_bytes += size
            if small_bytes < FRAME_BYTES_MAX - JOINED_BYTES_MAX:
                continue
        if small:
            frames.append(b"".join(small) if len(small) > 1 else small[0])
            small, small_bytes = [], 0
        if size > FRAME_BYTES_MAX:
            view = memoryview(buffer)
            frames += [view[start : start + FRAME_BYTES_MAX] for start in range(0, size, FRAME_BYTES_MAX)]
        elif size > JOINED_BYTES_MAX:
            frames.append(buffer)
    if small:
        frames.append(b"".join(small) if len(small) > 1 else small[0])
    return frames
